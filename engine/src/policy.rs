//! What to do with an event that cannot be delivered as it is (rules 8 to 10).

use crate::window::Failure;

/// The broker's codes where the user may not write to the exchange, or where there is none
/// (<https://www.rabbitmq.com/amqp-0-9-1-reference#constants>).
const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;

/// What happens to one event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Policy {
    /// It waits, and nothing is admitted behind it, until it can be delivered or a person decides.
    #[default]
    Hold,
    /// It is stored as a dead letter, and delivery goes on.
    DeadLetter,
    /// It is dropped: counted, and logged with its key.
    Discard,
}

/// The policies of one relay.
#[derive(Debug, Clone, Copy, Default)]
pub struct Policies {
    /// For messages that the broker returned: no queue for their key.
    pub unroutable: Policy,
    /// For rows that cannot become a message, and messages that the broker refuses.
    pub invalid: Policy,
}

impl Policies {
    /// The policy for a failure. Nacks, missing answers, a missing exchange and a missing permission are the broker's
    /// state, not the event's fault: such events are tried again (R11). `on_unroutable` is the policy of the event's own
    /// rule, where that has one.
    #[must_use]
    pub const fn of(&self, failure: &Failure, on_unroutable: Option<Policy>) -> Policy {
        match (failure, on_unroutable) {
            (Failure::Unroutable { .. }, Some(policy)) => policy,
            (failure, _) => self.of_any(failure),
        }
    }

    const fn of_any(&self, failure: &Failure) -> Policy {
        match failure {
            Failure::Unroutable { .. } => self.unroutable,
            Failure::Refused {
                reply_code: ACCESS_REFUSED | NOT_FOUND,
                ..
            } => Policy::Hold,
            Failure::Invalid { .. } | Failure::Unreadable { .. } | Failure::Refused { .. } => self.invalid,
            Failure::Nacked | Failure::Unanswered => Policy::Hold,
        }
    }
}
