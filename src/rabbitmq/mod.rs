//! The broker's side: connecting, and the link that publishes. What to publish is the engine's decision.

mod binding;
mod brokers;
mod connect;
mod error;
mod examination;
mod link;
mod management;
mod probe;
mod reach;
mod topology;
mod uri;

pub use brokers::Brokers;
pub use connect::Connector;
pub use error::BrokerError;
pub(crate) use error::refused_kind;
pub use examination::Examination;
pub use link::{Link, LinkEvent};
pub use management::{Management, ManagementError, ManagementUrlError};
pub use reach::{Alternate, Reach, Topology};
pub use topology::Exchange;
pub use uri::{BrokerUri, Mechanism, UriError, UriQuery};
