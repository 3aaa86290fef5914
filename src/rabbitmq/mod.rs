//! The broker's side: connecting, and the link that publishes. What to publish is the engine's decision.

mod any_link;
mod binding;
mod brokers;
mod connect;
mod error;
mod examination;
mod link;
mod management;
mod probe;
mod pulse;
mod reach;
#[cfg(feature = "stream")]
mod stream;
mod topology;
mod uri;

pub use any_link::{AnyLink, OpenedLink};
pub use brokers::Brokers;
pub use connect::{Connector, StreamProducer, StreamTarget};
pub use error::BrokerError;
pub(crate) use error::refused_kind;
pub use examination::Examination;
pub use link::{Link, LinkEvent};
pub use management::{Management, ManagementError, ManagementUrlError};
pub use reach::{Alternate, Reach, Topology};
#[cfg(feature = "stream")]
pub use stream::StreamLink;
pub use topology::Exchange;
pub use uri::{BrokerUri, Mechanism, UriError, UriQuery};
