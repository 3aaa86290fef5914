//! RabbitMQ's stream protocol: opening a link to a stream, reading back its end, and the link that publishes.

mod connect;
mod link;
mod read_back;

pub use link::StreamLink;
