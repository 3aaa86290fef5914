//! The flow towards a stream instead of an exchange (rule 26): see [`dedup`](crate::dedup).
//!
//! There are neither returns nor nacks, and no message can be told to be the reason of a close. So an event that was sent is
//! never held: it is confirmed, or found in the stream.

use std::time::Instant;

use super::delivery::DeliveryError;
use super::{Flow, Link, LogIdentity};
use crate::amqp::Message;
use crate::dedup::{Anew, Dedup, Resume};
use crate::event::InvalidRow;
use crate::stream_protocol::encode::PUBLISH_OVERHEAD;
use crate::window::Seq;

/// Whose events go to a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerLog {
    /// The log that they come from.
    pub identity: LogIdentity,
    /// The producer of the last link, once there was one: a process never goes back to an earlier generation, where its
    /// own late messages would go to other events.
    pub producer: Option<String>,
    /// Whether that one's name may not be used any more either.
    pub is_spent: bool,
}

impl Flow {
    /// From now on every link is one to a stream: [`stream_up`](Self::stream_up) takes the place of
    /// [`link_up`](Self::link_up).
    pub fn publish_to_stream(&mut self) {
        self.dedup = Some(Dedup::default());
    }

    /// Which log the session's is, which a producer's name must tell, and the producer whose name is of another log. None
    /// without a session, or where messages go to no stream.
    ///
    /// A link to the stream is opened for a session, and made anew for the next one: another process may have published
    /// between them, and what was read back before then would give its ids to other events.
    #[must_use]
    pub fn producer_log(&self) -> Option<ProducerLog> {
        let dedup = self.dedup.as_ref().filter(|_| self.session.is_some())?;
        Some(ProducerLog {
            identity: self.log.identity()?,
            producer: dedup.producer().map(str::to_owned),
            is_spent: dedup.is_spent(),
        })
    }

    /// Another process delivers what is in flight here: it is dropped, and what comes later is as for a new process.
    pub fn stand_back(&mut self) {
        self.forget();
        if let Some(dedup) = &mut self.dedup {
            dedup.stand_back();
        }
    }

    /// A link to the stream is up: what is unsettled is sent over it, in order, but for what the stream has.
    pub fn stream_up(&mut self, frame_max: u32, resume: Resume, now: Instant) {
        self.link_lost();
        if let Some(dedup) = &mut self.dedup {
            dedup.link_up(resume);
        }
        let largest = usize::try_from(frame_max).unwrap_or(usize::MAX);
        let max_message_bytes = self.config.max_message_bytes.unwrap_or(largest);
        self.link = Some(Link::new(frame_max, max_message_bytes, now));
    }

    /// The stream has a message.
    ///
    /// # Errors
    /// A confirm of nothing that is outstanding.
    pub fn handle_stored(&mut self, publisher: u8, id: u64, now: Instant) -> Result<(), DeliveryError> {
        let Some(dedup) = &mut self.dedup else {
            return Ok(());
        };
        match dedup.confirmed(publisher, id)? {
            Some(tag) => self.handle_ack(tag, false, now),
            None => Ok(()),
        }
    }

    /// What must be begun anew before more is published to a stream.
    #[must_use]
    pub fn anew(&self) -> Option<Anew> {
        self.dedup.as_ref()?.anew()
    }

    pub(super) fn stream_session_started(&mut self) {
        if let Some(dedup) = &mut self.dedup {
            dedup.session_started();
        }
    }

    pub(super) fn stream_session_lost(&mut self) {
        if let Some(dedup) = &mut self.dedup {
            dedup.session_lost();
        }
    }

    /// The stream has had an event's message since an earlier link, or an earlier process.
    pub(super) fn found_in_stream(&mut self, seq: Seq, now: Instant) {
        let probe = self.take_probe(seq);
        self.counters.recognised += 1;
        self.mark(seq, now);
        self.settle(seq, crate::Lsn::INVALID);
        self.resolved(probe, now);
    }
}

/// Why a message may not be sent to a stream by frames of this size, if that is where messages go: it must fit into one.
pub(super) fn unfit(dedup: Option<&Dedup>, message: &Message, frame_max: u32) -> Option<InvalidRow> {
    const MARK: usize = 255;
    dedup?;
    let around = message.max_sections_len() - message.body_len() + PUBLISH_OVERHEAD + MARK;
    let largest = usize::try_from(frame_max).unwrap_or(usize::MAX);
    let limit = largest.saturating_sub(around);
    (message.body_len() > limit).then(|| InvalidRow::BodyTooLarge {
        length: message.body_len(),
        limit,
    })
}
