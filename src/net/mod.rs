//! Sockets: connecting, TLS, and the buffered wire that both protocols are spoken over.

mod wire;

pub use wire::{Progress, Wire};
