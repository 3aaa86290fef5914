//! Totals of what became of events.

use crate::latency::Latency;

/// Totals since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Events read from the stream and admitted.
    pub read: u64,
    /// Rows that the stream does not bring, admitted.
    pub backfilled: u64,
    /// Messages sent, again or for the first time.
    pub published: u64,
    /// Events confirmed.
    pub confirmed: u64,
    /// Messages returned as unroutable.
    pub returned: u64,
    /// Messages that a queue refused.
    pub nacked: u64,
    /// Messages without an answer in time.
    pub unanswered: u64,
    /// Rows that cannot become a message.
    pub invalid: u64,
    /// Headers of rows that were left out since the relay has a header of the same name.
    pub headers_overridden: u64,
    /// Messages over which the broker closed the channel or the connection.
    pub refused: u64,
    /// Events stored as dead letters.
    pub dead_lettered: u64,
    /// Events dropped by policy.
    pub discarded: u64,
    /// Dead letters delivered on request.
    pub retried: u64,
    /// Held events that a person skipped.
    pub skipped: u64,
    /// Rows inserted with `sent_at` already set.
    pub already_sent: u64,
    /// Rows inserted into a table that is to be ignored.
    pub ignored: u64,
    /// Logical messages with the configured prefix that were of no transaction, and so no events.
    pub refused_messages: u64,
    /// Events that a new session brought again although they were settled or in flight.
    pub recognised: u64,
    /// Transactions received whole.
    pub transactions: u64,
    /// How long confirmed events took from their commit.
    pub commit_to_confirm: Latency,
}
