//! PostgreSQL: names and the connection target so far.

pub mod identifier;
pub mod url;

pub use identifier::{PublicationName, QualifiedTable, SlotName};
pub use url::{ConnectTarget, UrlError};
