//! PostgreSQL: connecting, the replication stream, short SQL sessions, and what `setup` creates.

pub mod catalog;
mod connect;
mod control;
pub mod dead_letters;
mod error;
mod frame;
pub mod guard;
pub mod identifier;
pub mod migrations;
mod own_schema;
mod position;
mod preflight;
mod recover;
mod replication;
mod setup;
pub mod skips;
pub mod slot;
mod startup;
pub mod state;
mod synchronous;
pub mod url;
mod walsender;

pub use connect::Connector;
pub use control::ControlSession;
pub use error::{Error, ServerError, SqlState, Step};
pub use frame::MAX_FRAME;
pub use identifier::{PublicationName, QualifiedTable, SlotName};
pub use position::{EventPosition, EventPositionError, commit_marker, flushed_position};
pub use preflight::{Preflight, Source, Unfit, preflight};
pub use recover::{RecoverReport, recover};
pub use replication::{Incoming, Replication, StartOptions};
pub use setup::{Outcome, SetupReport, SetupStep, TeardownReport, setup, teardown};
pub use startup::{MIN_SERVER_MAJOR, ServerVersion};
pub use url::{ConnectTarget, UrlError};
pub use walsender::SystemIdentity;
