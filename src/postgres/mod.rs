//! PostgreSQL: connecting, the replication stream, short SQL sessions, and what `setup` creates.

mod candidate;
pub mod catalog;
mod connect;
mod control;
mod error;
mod frame;
pub mod identifier;
pub mod migrations;
mod preflight;
mod probe;
mod replication;
mod setup;
pub mod slot;
mod startup;
pub mod url;
mod walsender;

pub use candidate::{Candidate, Started};
pub use connect::Connector;
pub use control::ControlSession;
pub use error::{Error, ServerError, SqlState, Step};
pub use frame::MAX_FRAME;
pub use identifier::{PublicationName, QualifiedTable, SlotName};
pub use preflight::{Preflight, Source, Unfit, preflight};
pub use probe::is_shutting_down;
pub use replication::{Incoming, Replication, StartOptions};
pub use setup::{Outcome, SetupReport, SetupStep, TeardownReport, setup, teardown};
pub use startup::{MIN_SERVER_MAJOR, ServerVersion};
pub use url::{ConnectTarget, UrlError};
pub use walsender::SystemIdentity;
