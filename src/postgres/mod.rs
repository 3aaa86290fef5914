//! PostgreSQL: connecting, the replication stream, short SQL sessions, and what `setup` creates.

pub mod catalog;
mod connect;
mod control;
mod error;
mod frame;
pub mod identifier;
pub mod migrations;
mod preflight;
mod replication;
mod setup;
pub mod slot;
mod startup;
mod synchronous;
pub mod url;
mod walsender;

pub use connect::Connector;
pub use control::ControlSession;
pub use error::{Error, ServerError, SqlState, Step};
pub use frame::MAX_FRAME;
pub use identifier::{PublicationName, QualifiedTable, SlotName};
pub use preflight::{Preflight, Source, Unfit, preflight};
pub use replication::{Incoming, Replication, StartOptions};
pub use setup::{Outcome, SetupReport, SetupStep, TeardownReport, setup, teardown};
pub use startup::{MIN_SERVER_MAJOR, ServerVersion};
pub use url::{ConnectTarget, UrlError};
pub use walsender::SystemIdentity;
