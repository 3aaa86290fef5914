//! walrelay's pure part: wire formats, event mapping, confirms, ledger and the flow that joins them.
//!
//! Nothing here opens a socket, starts a task or reads a clock. Time is passed in, bytes are passed in and
//! handed out, so that every rule of delivery can be tested without a server.

pub mod amqp;
pub mod condense;
pub mod confirms;
pub mod decode;
pub mod dedup;
pub mod emitted;
pub mod event;
pub mod flow;
pub mod history;
pub mod hold;
mod json;
pub mod key;
pub mod latency;
pub mod ledger;
pub mod lsn;
pub mod marks;
pub mod order;
pub mod pgoutput;
pub mod policy;
#[cfg(test)]
mod property;
pub mod rate;
pub mod report;
pub mod route;
pub mod row;
pub mod span;
pub mod stream_protocol;
pub mod timestamp;
pub mod trace;
pub mod walsender;
pub mod watch;
pub mod window;

pub use decode::DecodeError;
pub use lsn::Lsn;
pub use timestamp::PgTimestamp;
