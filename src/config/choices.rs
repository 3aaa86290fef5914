//! The words that some keys choose from.

/// How the broker is told who we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthMechanism {
    /// By user and password.
    Plain,
    /// By the certificate of the TLS handshake.
    External,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Where messages go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkChoice {
    /// To RabbitMQ.
    Rabbitmq,
    /// To standard output.
    Stdout,
}

/// In which order first deliveries come (R14 of `docs/delivery-rules.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ordering {
    /// In commit order, but for nacks and returns.
    Pipelined,
    /// In commit order for each aggregate, always.
    Strict,
}

/// What a running relay does when its slot is lost (R23).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnSlotLost {
    /// It waits for `walrelay recover`.
    Halt,
    /// It recovers by itself.
    Rescan,
}

/// What becomes of a row whose event is published (R18 to R21).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterPublish {
    /// `sent_at` is set.
    Mark,
    /// It is deleted.
    Delete,
    /// Nothing.
    Keep,
}

/// What to do with an event that cannot be delivered (R8 to R10).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailurePolicy {
    /// It waits, and nothing passes it.
    Hold,
    /// It is stored in `walrelay.dead_letters`.
    DeadLetter,
    /// It is dropped, counted and logged.
    Discard,
}

/// The types of exchange that RabbitMQ has built in
/// (<https://www.rabbitmq.com/docs/exchanges#types>), and one that comes with it as a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExchangeType {
    /// By patterns of the routing key.
    Topic,
    /// By the whole routing key.
    Direct,
    /// To every bound queue.
    Fanout,
    /// By headers.
    Headers,
    /// To one of the bound queues, the same for equal keys.
    ConsistentHash,
}

impl ExchangeType {
    /// The word of `exchange.declare`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Topic => "topic",
            Self::Direct => "direct",
            Self::Fanout => "fanout",
            Self::Headers => "headers",
            Self::ConsistentHash => "x-consistent-hash",
        }
    }
}
