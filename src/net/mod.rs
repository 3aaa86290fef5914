//! Sockets: connecting, TLS, and the buffered wire that both protocols are spoken over.

mod stream;
pub mod tls;
mod wire;

pub use stream::{ConnectError, Stream, connect_address, connect_tcp, connect_unix, endpoint_text};
pub use wire::{Progress, Wire};
