//! A consumer that notes when each message came, on a thread of its own: as little as measuring takes.

use std::io::{ErrorKind, Read as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use walrelay_engine::amqp::FrameKind;
use walrelay_testbed::Vhost;

use crate::link::{Link, method_frame};

/// Methods that a publisher does not need (<https://www.rabbitmq.com/amqp-0-9-1-reference>).
const BASIC_QOS: (u16, u16) = (60, 10);
const BASIC_CONSUME: (u16, u16) = (60, 20);
const BASIC_CONSUME_OK: (u16, u16) = (60, 21);
const BASIC_DELIVER: (u16, u16) = (60, 60);
const BASIC_ACK: (u16, u16) = (60, 80);

/// How many messages the broker may have sent without an acknowledgement.
const PREFETCH: u16 = 2_000;

/// How often the thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// What stands before the number in the payload, as jsonb prints it.
const NUMBER: &[u8] = b"\"t\": ";

/// Nanoseconds since this program first asked: what goes into payloads.
pub(crate) fn nanoseconds() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

/// A message: the number in its payload, and when it came in [`nanoseconds`].
pub(crate) type Arrival = (u64, u64);

/// Consumes a queue until dropped.
pub(crate) struct Consumer {
    arrivals: Arc<Mutex<Vec<Arrival>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Consumer {
    /// Begins to consume; acknowledges each group of messages that came together.
    pub(crate) fn start(vhost: &Vhost, queue: &str) -> Result<Consumer> {
        let mut link = Link::open(vhost)?;
        let mut out = Vec::new();
        let [high, low] = PREFETCH.to_be_bytes();
        method_frame(&mut out, BASIC_QOS, &[0, 0, 0, 0, high, low, 0]);
        let mut arguments = vec![0, 0];
        push_short(&mut arguments, queue)?;
        push_short(&mut arguments, "")?;
        // No flag is set, and no argument given.
        arguments.extend_from_slice(&[0; 5]);
        method_frame(&mut out, BASIC_CONSUME, &arguments);
        link.stream.write_all(&out)?;
        link.answered("basic.consume-ok", |method| {
            matches!(method, walrelay_engine::amqp::Method::Other { class_id, method_id }
                if (*class_id, *method_id) == BASIC_CONSUME_OK)
        })?;
        link.stream.set_read_timeout(Some(LOOK))?;
        let (arrivals, stop) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (theirs, ending) = (Arc::clone(&arrivals), Arc::clone(&stop));
        let thread = std::thread::spawn(move || consume(link, &theirs, &ending));
        Ok(Consumer {
            arrivals,
            stop,
            thread: Some(thread),
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// What came since the last time.
    pub(crate) fn take(&self) -> Vec<Arrival> {
        std::mem::take(&mut *self.lock())
    }

    /// Ends it, and tells what went wrong meanwhile.
    pub(crate) fn end(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_panic)) => Err(anyhow!("the consumer's thread panicked")),
            None => Ok(()),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arrival>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn consume(mut link: Link, arrivals: &Mutex<Vec<Arrival>>, stop: &AtomicBool) -> Result<()> {
    let mut out = Vec::new();
    let mut group = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let stream = &mut link.stream;
        match link.input.fill(|room| stream.read(room)) {
            Ok(0) => bail!("the broker hung up on the consumer"),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(error) => return Err(error).context("consume"),
        }
        let came = nanoseconds();
        let mut newest = None;
        while let Some(frame) = link.input.frame()? {
            match frame.kind {
                FrameKind::Method => newest = delivery_tag(frame.payload).or(newest),
                FrameKind::Body => group.push((number(frame.payload).context("a strange payload")?, came)),
                FrameKind::Header | FrameKind::Heartbeat => {}
            }
        }
        arrivals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .append(&mut group);
        if let Some(tag) = newest {
            out.clear();
            let mut arguments = [1; 9];
            arguments[..8].copy_from_slice(&tag.to_be_bytes());
            method_frame(&mut out, BASIC_ACK, &arguments);
            link.stream.write_all(&out).context("acknowledge messages")?;
        }
    }
    Ok(())
}

/// The tag of a `basic.deliver`, behind the consumer's tag. One whose content has not come yet may be acknowledged: it is on its
/// way.
fn delivery_tag(payload: &[u8]) -> Option<u64> {
    let (ids, rest) = payload.split_first_chunk::<4>()?;
    let [c1, c0, m1, m0] = *ids;
    let method = (u16::from_be_bytes([c1, c0]), u16::from_be_bytes([m1, m0]));
    let (length, rest) = rest.split_first()?;
    let tag = rest.get(usize::from(*length)..)?.first_chunk::<8>()?;
    (method == BASIC_DELIVER).then(|| u64::from_be_bytes(*tag))
}

fn number(body: &[u8]) -> Option<u64> {
    let start = body.windows(NUMBER.len()).position(|window| window == NUMBER)? + NUMBER.len();
    let digits = body[start..].iter().take_while(|byte| byte.is_ascii_digit());
    digits
        .map(|digit| u64::from(digit - b'0'))
        .reduce(|number, digit| number * 10 + digit)
}

fn push_short(out: &mut Vec<u8>, text: &str) -> Result<()> {
    out.push(u8::try_from(text.len()).context("a name of more than 255 bytes")?);
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_found_in_a_payload() {
        let payload = crate::backlog::payload(1_234_567_890_123);
        assert_eq!(number(payload.as_bytes()), Some(1_234_567_890_123));
        assert_eq!(number(b"{}"), None);
    }
}
