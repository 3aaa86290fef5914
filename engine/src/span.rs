//! Publishing as a trace sees it: one span for each message of an event that belongs to a sampled trace, from its sending
//! to the broker's answer.

use std::collections::VecDeque;
use std::time::Instant;

use crate::amqp::Message;
use crate::confirms::Outcome;
use crate::flow::Flow;
use crate::window::Seq;

/// How many spans are open, or wait to be taken, at a time. Further ones are dropped and counted: a trace must not cost
/// what it watches.
const LIMIT: usize = 2048;

/// A message that was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishSpan {
    /// The span that caused the event, and its trace.
    pub parent: Parent,
    /// The message's `tracestate`; empty where there is none.
    pub tracestate: String,
    /// The event's id.
    pub message_id: String,
    /// The exchange.
    pub exchange: String,
    /// The routing key.
    pub routing_key: String,
    /// When it was handed to the link.
    pub sent: Instant,
    /// When the broker answered, or the link was lost.
    pub ended: Instant,
    /// How it ended.
    pub ending: Ending,
}

/// How a publish ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The broker has it.
    Confirmed,
    /// No queue has it.
    Returned,
    /// A queue refused it.
    Nacked,
    /// The link was lost, or given up, without an answer.
    Unanswered,
}

impl From<Outcome> for Ending {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Confirmed => Self::Confirmed,
            Outcome::Returned { .. } => Self::Returned,
            Outcome::Nacked => Self::Nacked,
        }
    }
}

/// A `traceparent` (<https://www.w3.org/TR/trace-context/#traceparent-header>).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parent {
    /// The trace.
    pub trace_id: [u8; 16],
    /// The span.
    pub span_id: [u8; 8],
    /// The flags; the first bit says that the trace is sampled.
    pub flags: u8,
}

impl Parent {
    /// Reads a header's value; `None` where the standard says to ignore it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let [version] = hex(parts.next()?)?;
        let parent = Self {
            trace_id: hex(parts.next()?)?,
            span_id: hex(parts.next()?)?,
            flags: hex::<1>(parts.next()?)?.into_iter().next()?,
        };
        // A later version may have more parts, this one has not.
        let is_whole = version != 0 || parts.next().is_none();
        let is_valid = version != 0xff && parent.trace_id != [0; 16] && parent.span_id != [0; 8];
        (is_whole && is_valid).then_some(parent)
    }

    /// Whether the caller has the trace recorded.
    #[must_use]
    pub const fn is_sampled(&self) -> bool {
        self.flags & 1 == 1
    }
}

/// So many bytes, as two lower-case digits each.
fn hex<const BYTES: usize>(text: &str) -> Option<[u8; BYTES]> {
    let is_hex = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    if text.len() != BYTES * 2 || !text.bytes().all(is_hex) {
        return None;
    }
    let mut bytes = [0; BYTES];
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().as_chunks::<2>().0) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// The spans of one flow.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    /// In the order of sending.
    open: VecDeque<(Seq, PublishSpan)>,
    ended: VecDeque<PublishSpan>,
    dropped: u64,
}

impl Spans {
    /// A message is sent.
    pub(crate) fn sent(&mut self, seq: Seq, message: &Message, now: Instant) {
        let parent = message.header("traceparent").and_then(Parent::parse);
        let Some(parent) = parent.filter(Parent::is_sampled) else {
            return;
        };
        if self.open.len() + self.ended.len() >= LIMIT {
            self.dropped += 1;
            return;
        }
        let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
        let span = PublishSpan {
            parent,
            tracestate: text(message.header("tracestate")),
            message_id: text(message.message_id()),
            exchange: text(message.exchange()),
            routing_key: text(message.routing_key()),
            sent: now,
            ended: now,
            ending: Ending::Unanswered,
        };
        self.open.push_back((seq, span));
    }

    /// The broker has answered for it.
    pub(crate) fn answered(&mut self, seq: Seq, ending: Ending, now: Instant) {
        // Answers come mostly in the order of sending.
        if let Some(place) = self.open.iter().position(|(open, _)| *open == seq)
            && let Some((_, span)) = self.open.remove(place)
        {
            self.ended.push_back(PublishSpan {
                ended: now,
                ending,
                ..span
            });
        }
    }

    /// No answer will come to any.
    pub(crate) fn link_lost(&mut self) {
        self.ended.extend(self.open.drain(..).map(|(_, span)| span));
    }
}

impl Flow {
    /// Records spans from now on. Whoever asks for it has to [take](Self::take_span) them.
    pub fn record_spans(&mut self) {
        self.spans.get_or_insert_default();
    }

    /// The next span that has ended, once. Those whose link was lost have ended now.
    pub fn take_span(&mut self, now: Instant) -> Option<PublishSpan> {
        let mut span = self.spans.as_mut()?.ended.pop_front()?;
        if span.ending == Ending::Unanswered {
            span.ended = now;
        }
        Some(span)
    }

    /// How many spans there was no room for.
    #[must_use]
    pub fn spans_dropped(&self) -> u64 {
        self.spans.as_ref().map_or(0, |spans| spans.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lsn;
    use crate::amqp::{EncodedHeaders, HeaderParts, MessageParts, Origin};
    use crate::trace::{TraceContext, TraceValue};

    const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    fn message(traceparent: &str) -> Message {
        let parts = MessageParts {
            exchange: "outbox",
            routing_key: "order.placed",
            mandatory: true,
            persistent: true,
            message_id: "2f1c",
            message_type: "placed",
            content_type: "application/json",
            correlation_id: "",
            expiration: "",
            priority: None,
            timestamp: 0,
            app_id: "",
            headers: HeaderParts {
                aggregate_type: "order",
                aggregate_id: "42",
                origin: Origin::Stream {
                    commit_lsn: Lsn::new(1),
                    tx_seq: 0,
                    backfill: false,
                },
                trace: TraceContext {
                    traceparent: TraceValue::of_column(traceparent.as_bytes()),
                    tracestate: TraceValue::of_column(b"a=1"),
                },
                more: EncodedHeaders::default(),
            },
        };
        Message::encode(&mut Vec::new(), &parts, b"{}").unwrap()
    }

    #[expect(clippy::disallowed_methods, reason = "an origin for the test's own time")]
    fn origin() -> Instant {
        Instant::now()
    }

    #[test]
    fn a_span_lasts_from_the_sending_to_the_answer() {
        let (mut spans, sent) = (Spans::default(), origin());
        let answered = sent + std::time::Duration::from_millis(5);
        for (seq, traceparent) in [(7, SAMPLED), (8, UNSAMPLED), (9, "nonsense"), (10, SAMPLED)] {
            spans.sent(seq, &message(traceparent), sent);
        }
        spans.answered(8, Ending::Confirmed, answered);
        assert!(spans.ended.is_empty());
        spans.answered(10, Ending::Nacked, answered);
        spans.link_lost();
        let [nacked, lost] = spans.ended.make_contiguous() else {
            panic!("not two")
        };
        assert_eq!(
            (nacked.sent, nacked.ended, nacked.ending),
            (sent, answered, Ending::Nacked)
        );
        assert_eq!(
            (
                &*nacked.exchange,
                &*nacked.routing_key,
                &*nacked.message_id,
                &*nacked.tracestate
            ),
            ("outbox", "order.placed", "2f1c", "a=1")
        );
        assert_eq!(lost.ending, Ending::Unanswered);
        // Sent again over the next link, it is a span of its own.
        spans.sent(7, &message(SAMPLED), answered);
        assert_eq!(spans.open.len(), 1);
    }

    #[test]
    fn what_nobody_takes_does_not_fill_the_memory() {
        let (mut spans, now) = (Spans::default(), origin());
        let message = message(SAMPLED);
        for seq in 0..3000 {
            spans.sent(seq, &message, now);
            spans.answered(seq, Ending::Confirmed, now);
        }
        assert_eq!(spans.ended.len(), LIMIT);
        assert_eq!(spans.dropped, 3000 - u64::try_from(LIMIT).unwrap());
    }

    #[test]
    fn a_traceparent_is_read_as_the_standard_says() {
        let parent = Parent::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap();
        assert_eq!(parent.trace_id[..3], [0x0a, 0xf7, 0x65]);
        assert_eq!(parent.span_id[6..], [0x33, 0x31]);
        assert!(parent.is_sampled());
        for (text, sampled) in [
            (
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
                Some(false),
            ),
            (
                "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03-more",
                Some(true),
            ),
            (
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
                None,
            ),
            ("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None),
            ("00-00000000000000000000000000000000-b7ad6b7169203331-01", None),
            ("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", None),
            ("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", None),
            ("00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", None),
            ("", None),
        ] {
            assert_eq!(
                Parent::parse(text).map(|parent| parent.is_sampled()),
                sampled,
                "{text}"
            );
        }
    }
}
