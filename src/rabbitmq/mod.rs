//! The broker's side: connecting, and the link that publishes. What to publish is the engine's decision.

mod brokers;
mod connect;
mod error;
mod link;
mod topology;
mod uri;

pub use brokers::Brokers;
pub use connect::Connector;
pub use error::BrokerError;
pub(crate) use error::refused_kind;
pub use link::{Link, LinkEvent};
pub use topology::Exchange;
pub use uri::{BrokerUri, Mechanism, UriError, UriQuery};
