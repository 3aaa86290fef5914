//! One message that nobody is meant to get: does the broker take it, and does it come back?

use std::future::poll_fn;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use walrelay_engine::Lsn;
use walrelay_engine::amqp::{Message, MessageParts, Origin};
use walrelay_engine::flow::CHANNEL;

use super::{BrokerError, Link, LinkEvent};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What became of the message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Unroutable, and confirmed.
    Returned,
    /// Confirmed: a queue has it.
    Taken,
    /// Refused by a queue.
    Nacked,
    /// An alarm.
    Blocked {
        /// The broker's words.
        reason: String,
    },
    /// Nothing, in all that time.
    None,
}

/// A message that was sent.
#[derive(Debug)]
pub(super) struct Probe {
    /// Its routing key, new each time: no binding can expect it, though one that takes every key does.
    pub(super) routing_key: String,
    /// What became of it.
    pub(super) answer: Result<Answer, BrokerError>,
}

/// Sends the message and waits for what becomes of it. The link is dropped then.
pub(super) async fn publish(mut link: Link, exchange: &str) -> Probe {
    let routing_key = format!("walrelay.doctor.{:032x}", fastrand::u128(..));
    let answer = send(&mut link, exchange, &routing_key).await;
    match &answer {
        // The good-bye would not be read while the broker takes nothing.
        Ok(Answer::Blocked { .. } | Answer::None) => {}
        Ok(Answer::Returned | Answer::Taken | Answer::Nacked) => super::examination::close(link).await,
        Err(_) => link.dismiss(Instant::now() + PATIENCE).await,
    }
    Probe { routing_key, answer }
}

async fn send(link: &mut Link, exchange: &str, routing_key: &str) -> Result<Answer, BrokerError> {
    let origin = Origin::Stream {
        commit_lsn: Lsn::INVALID,
        tx_seq: 0,
        backfill: false,
    };
    let parts = MessageParts {
        exchange,
        routing_key,
        persistent: false,
        message_id: routing_key,
        message_type: "walrelay.doctor",
        app_id: "walrelay doctor",
        ..MessageParts::empty(origin)
    };
    let message = Message::encode(&mut Vec::new(), &parts, b"")?;
    let frame_max = link.frame_max();
    message.write_frames(CHANNEL, frame_max, link.output());
    let deadline = Instant::now() + PATIENCE;
    let mut is_returned = false;
    loop {
        while let Some(event) = link.next_event()? {
            match event {
                LinkEvent::Return { .. } => is_returned = true,
                LinkEvent::Ack { .. } if is_returned => return Ok(Answer::Returned),
                LinkEvent::Ack { .. } => return Ok(Answer::Taken),
                LinkEvent::Nack { .. } => return Ok(Answer::Nacked),
                LinkEvent::Blocked { reason } => return Ok(Answer::Blocked { reason }),
                LinkEvent::Unblocked | LinkEvent::Stored { .. } => {}
            }
        }
        let now = Instant::now();
        if now >= deadline {
            return Ok(Answer::None);
        }
        link.handle_timeout(now)?;
        let wake = link.deadline().map_or(deadline, |due| due.min(deadline));
        tokio::select! {
            done = poll_fn(|cx| link.poll_io(cx, Instant::now())) => done?,
            () = sleep_until(wake) => {}
        }
    }
}
