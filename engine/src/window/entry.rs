//! One admitted event, and what happens to it.

use crate::amqp::Message;
use crate::emitted::Malformed;
use crate::event::InvalidRow;
use crate::key::EventKey;
use crate::ledger::TransactionNo;
use crate::marks::TableNo;
use crate::order::{AggregateHash, Neighbours};
use crate::policy::Policy;
use crate::row::Row;

/// One admitted event.
#[derive(Debug)]
pub struct Entry {
    /// Which event it is.
    pub key: EventKey,
    /// Its transaction in the current session's ledger; none while no session has brought it again.
    pub transaction: Option<TransactionNo>,
    /// What happened to it.
    pub state: State,
    /// The message, until it is settled; none where the row cannot become one.
    pub message: Option<Message>,
    /// The row, where it may become a dead letter.
    pub row: Option<Row>,
    /// How often the broker has answered for it other than by a confirm.
    pub attempts: u32,
    /// Its table.
    pub table: TableNo,
    /// What to do with it where no queue is bound for it, if its rule says so.
    pub on_unroutable: Option<Policy>,
    pub(super) aggregate: AggregateHash,
    pub(super) neighbours: Neighbours,
}

/// What is admitted.
#[derive(Debug)]
pub struct Admission {
    /// Which event.
    pub key: EventKey,
    /// Its transaction; none for a row that the stream does not bring.
    pub transaction: Option<TransactionNo>,
    /// The message; without one the event must be [failed](super::Window::fail) at once.
    pub message: Option<Message>,
    /// The row, where it may become a dead letter.
    pub row: Option<Row>,
    /// Whose event it is; of no meaning without strict order.
    pub aggregate: AggregateHash,
    /// Its table.
    pub table: TableNo,
    /// What to do with it where no queue is bound for it, if its rule says so.
    pub on_unroutable: Option<Policy>,
}

impl Entry {
    /// Whether it failed in a way that trying again may help.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(&self.state, State::Failed(failure) if failure.is_retryable())
    }

    /// Bytes held.
    pub(super) fn len(&self) -> usize {
        self.message.as_ref().map_or(0, Message::len) + self.row.as_ref().map_or(0, Row::len)
    }
}

/// What happened to an event so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// To be sent on the current link, or on the next one.
    Queued,
    /// Sent on the current link; the broker has not answered.
    Sent,
    /// Needs another try or a person. It stays so while a probe of it is out, until the broker has taken it.
    Failed(Failure),
    /// Being stored as a dead letter.
    SettingAside(Failure),
    /// Final.
    Settled,
}

impl State {
    /// What it adds to the events that have failed, and to those that are being set aside.
    pub(super) const fn counts(&self) -> (usize, usize) {
        match self {
            Self::Failed(_) => (1, 0),
            Self::SettingAside(_) => (0, 1),
            Self::Queued | Self::Sent | Self::Settled => (0, 0),
        }
    }
}

/// Why an event is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The broker returned it: no queue for its key.
    Unroutable {
        /// The return's code, 312 for no route.
        reply_code: u16,
    },
    /// A queue refused it.
    Nacked,
    /// The broker did not answer within `delivery.confirm_timeout`.
    Unanswered,
    /// The broker closed the channel or the connection over this very message.
    Refused {
        /// The reply code, such as 406.
        reply_code: u16,
        /// The broker's words.
        reply_text: String,
    },
    /// The row cannot become a message.
    Invalid {
        /// The row's id, where it has a usable one.
        id: Option<String>,
        /// Why.
        reason: InvalidRow,
    },
    /// A logical message is no event.
    Unreadable {
        /// Why.
        reason: Malformed,
    },
}

impl Failure {
    /// Whether trying again may help: a row that cannot become a message never does.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Unroutable { .. } | Self::Nacked | Self::Unanswered | Self::Refused { .. } => true,
            Self::Invalid { .. } | Self::Unreadable { .. } => false,
        }
    }

    /// Whether it passes without a person: the broker's state, not the event's fault (R11).
    #[must_use]
    pub const fn heals_alone(&self) -> bool {
        match self {
            Self::Nacked | Self::Unanswered => true,
            Self::Unroutable { .. }
            | Self::Refused { .. }
            | Self::Invalid { .. }
            | Self::Unreadable { .. } => false,
        }
    }
}
