//! One direction of one connection through a proxy.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::acks::AckFilter;
use super::{Direction, Trouble};

/// How many bytes a direction that is stalled or delayed takes in before it stops reading.
const HELD_MAX: usize = 16 << 20;

/// Takes acks out of what passes, while it is asked to.
#[derive(Debug)]
pub(super) struct Swallower {
    pub(super) filter: AckFilter,
    pub(super) swallowed: Arc<AtomicU64>,
}

/// What was read and is not sent.
#[derive(Debug, Default)]
struct Held {
    /// Each with the time at which it is due.
    chunks: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
    /// How much of the first chunk has been sent.
    sent: usize,
}

/// Passes bytes on until the sender ends, or is made to seem so.
pub(super) async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    direction: Direction,
    mut trouble: watch::Receiver<Trouble>,
    mut swallower: Option<Swallower>,
) -> std::io::Result<()> {
    let mut chunk = vec![0; 64 << 10];
    let mut held = Held::default();
    let mut ended = false;
    let half_closes = trouble.borrow().half_closes.of(direction);
    loop {
        let now = *trouble.borrow_and_update();
        ended |= now.half_closes.of(direction) != half_closes;
        if ended && held.chunks.is_empty() {
            return to.shutdown().await;
        }
        let passing = !now.stalled.of(direction);
        let due = held.due().filter(|_| passing);
        let is_due = due.is_some_and(|due| due <= Instant::now());
        // Every branch is cancel safe: a byte is either still in the socket or in `held`.
        tokio::select! {
            changed = trouble.changed() => if changed.is_err() { return Ok(()) },
            count = from.read(&mut chunk), if !ended && held.bytes < HELD_MAX => {
                let read = chunk.get(..count?).unwrap_or_default();
                ended = read.is_empty();
                let due = Instant::now() + now.delay;
                match &mut swallower {
                    Some(Swallower { filter, swallowed }) => {
                        let mut passed = Vec::with_capacity(read.len());
                        let count = filter.pass(read, now.swallowing_acks, &mut passed);
                        swallowed.fetch_add(count, Ordering::Relaxed);
                        held.push(due, &passed);
                    }
                    None => held.push(due, read),
                }
            }
            count = to.write(held.next()), if is_due => held.sent(count?),
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() && !is_due => {}
        }
    }
}

impl Held {
    fn push(&mut self, due: Instant, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.bytes += bytes.len();
        match self.chunks.back_mut() {
            // Never before what came earlier; and what is late already can go together.
            Some((last, chunk)) if *last >= due || due <= Instant::now() => chunk.extend_from_slice(bytes),
            _ => self.chunks.push_back((due, bytes.to_vec())),
        }
    }

    fn due(&self) -> Option<Instant> {
        self.chunks.front().map(|(due, _)| *due)
    }

    fn next(&self) -> &[u8] {
        let first = self.chunks.front().map(|(_, chunk)| chunk.as_slice());
        first.and_then(|chunk| chunk.get(self.sent..)).unwrap_or_default()
    }

    fn sent(&mut self, count: usize) {
        self.sent += count;
        if self.next().is_empty() {
            let sent = self.chunks.pop_front().map_or(0, |(_, chunk)| chunk.len());
            self.bytes -= sent;
            self.sent = 0;
        }
    }
}
