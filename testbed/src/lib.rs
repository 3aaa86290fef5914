//! Private PostgreSQL and RabbitMQ servers, the relay as a real child process, consumers and a fault-making
//! proxy.
//!
//! One place for everything that walrelay's tests, demo and benches need around them. Servers listen on
//! 127.0.0.1 only, on free ports, keep all files in one temporary folder, and end with the process that
//! started them, even when it is killed (see the `watchdog` module). Nothing here waits by sleeping for a
//! guessed time: every wait has a condition and a deadline.
//!
//! Handles of servers hold no reference to an async runtime, so that one server can serve many
//! `#[tokio::test]`s ([`shared_postgres`], [`shared_rabbitmq`]). Whatever could disturb other users of a
//! server takes `&mut self`, which the shared ones do not give out.
//!
//! Environment: `WALRELAY_TEST_PATIENCE` multiplies every deadline, `WALRELAY_TEST_PG_BIN` and
//! `WALRELAY_TEST_RABBITMQ_BIN` name the folders of the servers' programs.

mod account;
mod certificates;
mod collector;
mod database;
mod epmd;
mod error;
mod folder;
mod http;
mod metrics;
mod ports;
mod postgres;
mod process;
mod proxy;
mod rabbitmq;
mod recorder;
mod relay;
mod relay_config;
mod resources;
pub mod scripted_broker;
mod service;
mod shared;
mod stream_reader;
mod topology;
mod vhost;
mod wait;
mod watchdog;

pub use certificates::{Authority, Certificates, Issued, KeyKind, Validity};
pub use collector::{Collector, ExportRequest};
pub use database::Database;
pub use error::{Error, Result};
pub use folder::Folder;
pub use http::{HttpResponse, http_get};
pub use metrics::{Sample, Samples};
pub use ports::free_port;
pub use postgres::{Postgres, PostgresOptions, StopMode};
pub use process::Signal;
pub use proxy::{Direction, TcpProxy};
pub use rabbitmq::{RabbitMq, RabbitMqOptions};
pub use recorder::{Delivery, Keep, Recorder};
pub use relay::{CommandOutput, Readiness, Relay};
pub use relay_config::RelayBuilder;
pub use resources::{peak_resident_kib, processor_time, resident_kib};
pub use scripted_broker::{Offer, Published, ScriptedBroker, ScriptedConnection};
pub use service::Service;
pub use shared::{shared_postgres, shared_rabbitmq};
pub use stream_reader::{Stored, StreamReader};
pub use topology::{QueueKind, QueueOptions};
pub use vhost::Vhost;
pub use wait::{eventually, eventually_some, patience};
