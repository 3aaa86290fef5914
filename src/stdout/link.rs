//! The link: takes the frames of messages as a broker's would, makes lines of them and answers for those that are written.

use std::fs::File;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, timeout};
use walrelay_engine::amqp::{ContentHeader, Frame, FrameKind, Publish};

use super::writer::Writer;
use super::{StdoutError, line};
use crate::rabbitmq::LinkEvent;

/// RabbitMQ's defaults: what would be too large for a frame or a message there is so here, too
/// (<https://www.rabbitmq.com/docs/configure>: `frame_max`; `max_message_size` since 4.0).
const FRAME_MAX: u32 = 131_072;
const MAX_MESSAGE: usize = 16 * 1024 * 1024;

/// Bytes of lines from which on a batch goes out.
const BATCH: usize = 64 * 1024;

/// A buffer that grew beyond this for one large message is given back.
const RETAINED_CAPACITY: usize = 512 * 1024;

/// A write of which the system takes nothing for so long is blocked.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often it is looked whether there still is a reader while nothing is written.
const LOOK: Duration = Duration::from_secs(1);

/// Standard output as something that takes messages and confirms them.
#[derive(Debug)]
pub struct Link {
    /// Frames of messages that no line has been made of.
    output: Vec<u8>,
    writer: Writer,
    /// The buffer of the next batch, while none is under way.
    batch: Vec<u8>,
    /// A body that came in several frames.
    body: Vec<u8>,
    /// Messages that lines have been made of: the last one's delivery tag.
    tag: u64,
    under_way: bool,
    /// To be confirmed, up to this tag.
    written: Option<u64>,
    /// The bytes that the system had taken when it was last looked, and when they grew.
    progress: (u64, Instant),
    blocked: Blocked,
}

/// Whether a write is blocked, and whether that has been told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blocked {
    No,
    Yes,
    Over,
}

impl Link {
    pub(super) fn new(file: File, turn: OwnedMutexGuard<Vec<u8>>) -> std::io::Result<Self> {
        Ok(Self {
            output: Vec::new(),
            writer: Writer::start(file, turn)?,
            batch: Vec::new(),
            body: Vec::new(),
            tag: 0,
            under_way: false,
            written: None,
            progress: (0, Instant::now()),
            blocked: Blocked::No,
        })
    }

    /// The largest frame in bytes.
    #[must_use]
    pub const fn frame_max(&self) -> u32 {
        FRAME_MAX
    }

    /// The largest body in bytes.
    #[must_use]
    pub const fn max_message_bytes(&self) -> usize {
        MAX_MESSAGE
    }

    /// The output buffer, for the frames of whole messages.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Writes whatever is possible. Pending while nothing is done.
    ///
    /// # Errors
    /// Nothing can be written any more.
    pub fn poll_io(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<Result<(), StdoutError>> {
        let mut worked = false;
        loop {
            if self.under_way {
                let Poll::Ready(batch) = self.writer.poll_written(cx) else {
                    return if worked {
                        Poll::Ready(Ok(()))
                    } else {
                        Poll::Pending
                    };
                };
                self.finished(batch.map_err(StdoutError::of_write)?, now);
                worked = true;
            }
            if !self.hand_over(now)? {
                return if worked {
                    Poll::Ready(Ok(()))
                } else {
                    Poll::Pending
                };
            }
        }
    }

    /// What a broker would say now.
    pub const fn next_event(&mut self) -> Option<LinkEvent> {
        if let Some(tag) = self.written.take() {
            return Some(LinkEvent::Ack { tag, multiple: true });
        }
        if matches!(self.blocked, Blocked::Over) {
            self.blocked = Blocked::No;
            return Some(LinkEvent::Unblocked);
        }
        None
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let (_, since) = self.progress;
        match (self.under_way, self.blocked) {
            (true, Blocked::No) => Some(since + PATIENCE),
            (true, Blocked::Yes | Blocked::Over) => None,
            (false, _) => Some(since + LOOK),
        }
    }

    /// Finds out that a write is blocked, or that there is no reader any more.
    ///
    /// # Errors
    /// There is none.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<Option<LinkEvent>, StdoutError> {
        if self.deadline().is_none_or(|due| now < due) {
            return Ok(None);
        }
        let (before, _) = self.progress;
        let progress = self.writer.progress();
        if !self.under_way {
            self.progress = (progress, now);
            return match self.writer.is_closed() {
                true => Err(StdoutError::Closed),
                false => Ok(None),
            };
        }
        if progress > before {
            self.progress = (progress, now);
            return Ok(None);
        }
        self.blocked = Blocked::Yes;
        let reason = format!("standard output has taken nothing for {PATIENCE:?}");
        Ok(Some(LinkEvent::Blocked { reason }))
    }

    /// Waits for at most `limit` for the write that is under way. The rest is not written.
    ///
    /// # Errors
    /// It failed; nothing depends on it.
    pub async fn close(mut self, limit: Duration) -> Result<(), StdoutError> {
        if !self.under_way {
            return Ok(());
        }
        let written = std::future::poll_fn(|cx| self.writer.poll_written(cx));
        let written = timeout(limit, written).await.map_err(|_| StdoutError::Stuck)?;
        written.map(drop).map_err(StdoutError::of_write)
    }

    fn finished(&mut self, batch: Vec<u8>, now: Instant) {
        self.under_way = false;
        self.batch = batch;
        self.written = Some(self.tag);
        self.progress = (self.writer.progress(), now);
        if self.blocked == Blocked::Yes {
            self.blocked = Blocked::Over;
        }
    }

    /// Makes lines of the next messages and hands them to the writer; returns whether there were any.
    fn hand_over(&mut self, now: Instant) -> Result<bool, StdoutError> {
        self.batch.clear();
        self.batch.shrink_to(RETAINED_CAPACITY);
        let mut taken = 0;
        while self.batch.len() < BATCH
            && let Some(frames) = self.output.get(taken..).filter(|frames| !frames.is_empty())
        {
            taken += append_line(&mut self.batch, frames, &mut self.body)?;
            self.tag += 1;
        }
        if taken == 0 {
            return Ok(false);
        }
        self.output.drain(..taken);
        self.output.shrink_to(RETAINED_CAPACITY);
        self.body.shrink_to(RETAINED_CAPACITY);
        self.progress = (self.writer.progress(), now);
        self.writer.write(std::mem::take(&mut self.batch))?;
        self.under_way = true;
        Ok(true)
    }
}

/// Appends the line of the first message; returns the bytes of its frames. `pieces` is for a body of several frames.
fn append_line(out: &mut Vec<u8>, frames: &[u8], pieces: &mut Vec<u8>) -> Result<usize, StdoutError> {
    let mut taken = 0;
    let mut next = |kind| {
        let frame = frames.get(taken..).map(|rest| Frame::decode(rest, FRAME_MAX));
        let Some((frame, size)) = frame.transpose()?.flatten() else {
            return Err(not_ours());
        };
        taken += size;
        if frame.kind == kind {
            Ok(frame.payload)
        } else {
            Err(not_ours())
        }
    };
    let publish = Publish::decode(next(FrameKind::Method)?)?.ok_or_else(not_ours)?;
    let header = ContentHeader::decode(next(FrameKind::Header)?)?;
    let size = usize::try_from(header.body_size).map_err(|_| not_ours())?;
    let mut body: &[u8] = &[];
    if size > 0 {
        body = next(FrameKind::Body)?;
    }
    if body.len() < size {
        pieces.clear();
        pieces.extend_from_slice(body);
        while pieces.len() < size {
            pieces.extend_from_slice(next(FrameKind::Body)?);
        }
        body = pieces;
    }
    line::append(out, &publish, &header, body)?;
    Ok(taken)
}

/// Only whole messages are written into the output.
fn not_ours() -> StdoutError {
    StdoutError::Failed(std::io::Error::other("frames of half a message"))
}
