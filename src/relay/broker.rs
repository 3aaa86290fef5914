//! The broker's side, or that of what takes its place: a link to the sink, and what is published over it.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use walrelay_engine::Lsn;
use walrelay_engine::dedup::{Resume, UnknownId};
use walrelay_engine::flow::{DeliveryError, Flow, ProducerLog, Replay};

use super::side::Side;
use super::sink::{OpenedSink, Sink, SinkError, SinkLink};
use crate::fault::{Fault, FaultKind};
use crate::rabbitmq::LinkEvent;

/// Bytes of messages handed to the socket at once.
const PUBLISH_TARGET: usize = 128 * 1024;

/// What a connection gets for its good-bye.
pub(super) const FAREWELL: Duration = Duration::from_secs(1);

/// What publishes over a link, and hears what becomes of its messages.
pub(super) trait Publisher {
    fn link_up(&mut self, frame_max: u32, max_message_bytes: usize, now: Instant);
    /// Whose events go to a stream; none while they may not.
    fn producer_log(&self) -> Option<ProducerLog>;
    /// As [`link_up`](Self::link_up), with a link to a stream.
    fn stream_up(&mut self, frame_max: u32, resume: Resume, now: Instant);
    fn link_refused(&mut self, reply_code: u16, reply_text: &str, now: Instant);
    fn link_lost(&mut self);
    fn handle_blocked(&mut self, blocked: bool, now: Instant);
    fn handle_ack(&mut self, tag: u64, multiple: bool, now: Instant) -> Result<(), DeliveryError>;
    fn handle_nack(&mut self, tag: u64, multiple: bool, now: Instant) -> Result<(), DeliveryError>;
    fn handle_return(&mut self, position: (Lsn, u64), reply_code: u16) -> Result<(), DeliveryError>;
    fn handle_stored(&mut self, publisher: u8, id: u64, now: Instant) -> Result<(), DeliveryError>;
    fn poll_publish(&mut self, out: &mut Vec<u8>, target: usize, now: Instant) -> usize;
}

/// The link, while there is one, and what it is opened to.
#[derive(Debug)]
pub(super) struct Broker {
    pub(super) side: Side<SinkLink, OpenedSink>,
    sink: Sink,
    /// A link to a stream is opened for a session, and there is none.
    awaits_session: bool,
}

/// Why there is no link.
#[derive(Debug)]
pub(super) struct NotOpened {
    pub(super) fault: Fault,
    /// Whether each place has failed in a row in a way that does not heal alone.
    pub(super) needs_person: bool,
}

impl Broker {
    pub(super) fn new(sink: Sink) -> Self {
        Self {
            side: Side::new(sink.side()),
            awaits_session: false,
            sink,
        }
    }

    /// Starts the next try to open a link if it is due; to a stream only while there is a session.
    pub(super) fn open_if_due(&mut self, publisher: &impl Publisher, now: Instant) {
        if self.side.deadline().is_none_or(|due| now < due) {
            return;
        }
        let log = publisher.producer_log();
        self.awaits_session = self.sink.is_stream() && log.is_none();
        if self.awaits_session {
            return self.side.hold_back();
        }
        let sink = &self.sink;
        self.side.open_if_due(now, || sink.open(log));
    }

    /// A link to a stream, or a try to make one, is given up for another, as for a new session.
    pub(super) fn begin_again(&mut self, publisher: &mut impl Publisher, now: Instant) {
        if !self.sink.is_stream() {
            return;
        }
        publisher.link_lost();
        if let Some(link) = self.side.begin_again(now) {
            tokio::spawn(link.dismiss(now + FAREWELL));
        }
    }

    /// Says that the link is up, unless a fault is still to be disproved.
    pub(super) fn tell_up(&mut self) {
        let is_in_doubt = self.side.is_in_doubt();
        if let Some(link) = self.side.up().filter(|_| !is_in_doubt) {
            self.sink.tell_up(link);
        }
    }

    /// Takes in what the broker has said.
    ///
    /// # Errors
    /// Why the link must be given up.
    pub(super) fn read(&mut self, publisher: &mut impl Publisher, now: Instant) -> Result<(), Fault> {
        self.take_in(publisher, now)
            .map_err(|error| self.judge(&error, publisher, now))
    }

    /// Hands messages to the link; returns how many.
    pub(super) fn publish(&mut self, publisher: &mut impl Publisher, now: Instant) -> usize {
        self.side.up().map_or(0, |link| {
            publisher.poll_publish(link.output(), PUBLISH_TARGET, now)
        })
    }

    /// The result of a try to connect, once it is there.
    pub(super) fn poll_opened(
        &mut self,
        cx: &mut Context<'_>,
        publisher: &mut impl Publisher,
        now: Instant,
    ) -> Poll<Result<(), NotOpened>> {
        self.side.poll_opened(cx).map(|result| match result {
            Ok(OpenedSink { link, resume }) => {
                if !self.side.is_in_doubt() {
                    self.sink.connected();
                }
                match resume {
                    Some(resume) => publisher.stream_up(link.frame_max(), resume, now),
                    None => publisher.link_up(link.frame_max(), link.max_message_bytes(), now),
                }
                self.side.opened(link, now);
                Ok(())
            }
            Err(fault) => Err(NotOpened {
                needs_person: self.sink.failed(fault.kind),
                fault,
            }),
        })
    }

    /// Nothing speaks against the link any more.
    pub(super) fn proved(&mut self) {
        self.side.proved();
        self.sink.connected();
    }

    /// A link that was up is lost for this; whether each place has failed in a row in a way that does not heal alone.
    pub(super) fn struck(&mut self, kind: FaultKind) -> bool {
        self.sink.struck(kind)
    }

    /// Polls the link.
    ///
    /// # Errors
    /// Why the link must be given up.
    pub(super) fn poll_io(
        &mut self,
        cx: &mut Context<'_>,
        publisher: &mut impl Publisher,
        now: Instant,
    ) -> Poll<Result<(), Fault>> {
        let Some(link) = self.side.up() else {
            return Poll::Pending;
        };
        link.poll_io(cx, now).map(|result| {
            result.map_err(|error| {
                // What the broker said before it hung up tells more than that it did.
                let error = self.take_in(publisher, now).err().unwrap_or(error);
                self.judge(&error, publisher, now)
            })
        })
    }

    /// The link is given up, or there is none.
    pub(super) fn lost(&mut self, publisher: &mut impl Publisher, fault: Fault, now: Instant) {
        publisher.link_lost();
        if let Some(link) = self.side.failed(fault, now) {
            // Nothing waits for this task: it answers the broker's close, or the deadline drops the socket.
            tokio::spawn(link.dismiss(now + FAREWELL));
        }
    }

    /// Why a link is given up on which the oldest message has waited for so long.
    pub(super) fn unanswered(&self, limit: Duration) -> Fault {
        let message = format!("the oldest message was not confirmed within {limit:?}");
        Fault {
            kind: FaultKind::ConfirmTimeout,
            message: self.sink.named(message),
        }
    }

    /// When something is due: a try, or the link's heartbeat.
    pub(super) fn deadline(&mut self) -> Option<Instant> {
        let link = self.side.up().and_then(|link| link.deadline());
        let due = self.side.deadline().filter(|_| !self.awaits_session);
        due.or(link)
    }

    /// Closes the link for good.
    pub(super) async fn close(&mut self) {
        if let Some(link) = self.side.take()
            && let Err(error) = link.close(FAREWELL).await
        {
            tracing::debug!(error = %error, "link cut off");
        }
    }

    fn take_in(&mut self, publisher: &mut impl Publisher, now: Instant) -> Result<(), SinkError> {
        while let Some(link) = self.side.up() {
            let Some(event) = link.next_event(now)? else {
                return Ok(());
            };
            let taken = match event {
                LinkEvent::Ack { tag, multiple } => publisher.handle_ack(tag, multiple, now),
                LinkEvent::Nack { tag, multiple } => publisher.handle_nack(tag, multiple, now),
                LinkEvent::Stored { publisher: by, id } => publisher.handle_stored(by, id, now),
                LinkEvent::Return { position, reply_code } => publisher.handle_return(position, reply_code),
                LinkEvent::Blocked { reason } => {
                    publisher.handle_blocked(true, now);
                    self.side.set_fault(Some(Fault {
                        kind: self.sink.blocked_kind(),
                        message: reason,
                    }));
                    Ok(())
                }
                LinkEvent::Unblocked => {
                    publisher.handle_blocked(false, now);
                    self.side.set_fault(None);
                    self.sink.tell_unblocked();
                    Ok(())
                }
            };
            taken.map_err(|error| self.sink.misled(error))?;
        }
        Ok(())
    }

    /// What an error of the link means; a message that the broker refused is told to the publisher.
    fn judge(&self, error: &SinkError, publisher: &mut impl Publisher, now: Instant) -> Fault {
        let (mut fault, refusal) = self.sink.judge(error);
        if let Some((reply_code, reply_text)) = refusal {
            publisher.link_refused(reply_code, reply_text, now);
            fault.kind = FaultKind::BrokerClosed;
        }
        fault
    }
}

impl Publisher for Flow {
    fn link_up(&mut self, frame_max: u32, max_message_bytes: usize, now: Instant) {
        self.link_up(frame_max, max_message_bytes, now);
    }

    fn producer_log(&self) -> Option<ProducerLog> {
        self.producer_log()
    }

    fn stream_up(&mut self, frame_max: u32, resume: Resume, now: Instant) {
        self.stream_up(frame_max, resume, now);
    }

    fn handle_stored(&mut self, publisher: u8, id: u64, now: Instant) -> Result<(), DeliveryError> {
        self.handle_stored(publisher, id, now)
    }

    fn link_refused(&mut self, reply_code: u16, reply_text: &str, now: Instant) {
        self.link_refused(reply_code, reply_text, now);
    }

    fn link_lost(&mut self) {
        self.link_lost();
    }

    fn handle_blocked(&mut self, blocked: bool, now: Instant) {
        self.handle_blocked(blocked, now);
    }

    fn handle_ack(&mut self, tag: u64, multiple: bool, now: Instant) -> Result<(), DeliveryError> {
        self.handle_ack(tag, multiple, now)
    }

    fn handle_nack(&mut self, tag: u64, multiple: bool, now: Instant) -> Result<(), DeliveryError> {
        self.handle_nack(tag, multiple, now)
    }

    fn handle_return(&mut self, position: (Lsn, u64), reply_code: u16) -> Result<(), DeliveryError> {
        self.handle_return(position, reply_code)
    }

    fn poll_publish(&mut self, out: &mut Vec<u8>, target: usize, now: Instant) -> usize {
        self.poll_publish(out, target, now)
    }
}

impl Publisher for Replay {
    fn link_up(&mut self, frame_max: u32, max_message_bytes: usize, now: Instant) {
        self.link_up(frame_max, max_message_bytes, now);
    }

    /// A replay's settings name no stream.
    fn producer_log(&self) -> Option<ProducerLog> {
        None
    }

    fn stream_up(&mut self, _frame_max: u32, _resume: Resume, _now: Instant) {
        self.link_lost();
    }

    fn handle_stored(&mut self, publisher: u8, id: u64, _now: Instant) -> Result<(), DeliveryError> {
        Err(UnknownId { publisher, id }.into())
    }

    fn link_refused(&mut self, reply_code: u16, reply_text: &str, _now: Instant) {
        self.link_refused(reply_code, reply_text);
    }

    fn link_lost(&mut self) {
        self.link_lost();
    }

    fn handle_blocked(&mut self, blocked: bool, now: Instant) {
        self.handle_blocked(blocked, now);
    }

    fn handle_ack(&mut self, tag: u64, multiple: bool, _now: Instant) -> Result<(), DeliveryError> {
        self.handle_ack(tag, multiple)
    }

    fn handle_nack(&mut self, tag: u64, multiple: bool, _now: Instant) -> Result<(), DeliveryError> {
        self.handle_nack(tag, multiple)
    }

    fn handle_return(&mut self, position: (Lsn, u64), reply_code: u16) -> Result<(), DeliveryError> {
        self.handle_return(position, reply_code)
    }

    fn poll_publish(&mut self, out: &mut Vec<u8>, target: usize, now: Instant) -> usize {
        self.poll_publish(out, target, now)
    }
}
