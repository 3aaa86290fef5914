//! When to look whether PostgreSQL is shutting down (rule 13).
//!
//! A walsender that shuts down waits until its client has confirmed everything, for ever if need be. A relay that cannot
//! confirm would so keep the database from ending. Two things raise the question; a fresh connection answers it, since the
//! server refuses it before authentication:
//!
//! - keepalives that ask for a reply again and again at one position which we cannot confirm;
//! - nothing read for a second because the flow has no room: those keepalives then lie behind unread data.
//!
//! While events flow, neither happens, so nothing is opened.

use std::time::{Duration, Instant};

use crate::Lsn;
use crate::walsender::{Keepalive, ServerMessage};

/// Between looks, and between the last frame taken and the first look.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// So many questions at one position are a shutdown's.
const QUESTIONS: u32 = 3;

/// The longest pause between such questions. Each of our replies, ten a second, brings the next one; the questions of a
/// server that merely misses us are half a `wal_sender_timeout` apart.
const QUESTION_GAP: Duration = Duration::from_millis(300);

/// Watches one session for the signs of a shutdown.
#[derive(Debug)]
pub struct ShutdownWatch {
    /// When the last frame was taken.
    quiet_since: Instant,
    paused: bool,
    questions: Option<Questions>,
    looked: Option<Instant>,
}

/// Keepalives in a row that ask for a reply at one position.
#[derive(Debug, Clone, Copy)]
struct Questions {
    wal_end: Lsn,
    count: u32,
    last: Instant,
}

impl ShutdownWatch {
    /// For a session that starts `now`.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self {
            quiet_since: now,
            paused: false,
            questions: None,
            looked: None,
        }
    }

    /// The flow has taken a CopyData payload, and `durable` is the durable LSN after it.
    pub fn frame_taken(&mut self, payload: &[u8], durable: Option<Lsn>, now: Instant) {
        self.quiet_since = now;
        self.questions = match ServerMessage::decode(payload) {
            Ok(ServerMessage::Keepalive(Keepalive {
                wal_end,
                reply_requested: true,
                ..
            })) if durable.is_none_or(|durable| durable < wal_end) => Some(self.count(wal_end, now)),
            // A server that shuts down has nothing else to say.
            Ok(ServerMessage::Keepalive(_) | ServerMessage::XLogData(_)) | Err(_) => None,
        };
    }

    /// Whether reading is paused, as of now.
    pub const fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// When a look is due if nothing else happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let asked = self
            .questions
            .filter(|questions| questions.count >= QUESTIONS)
            .map(|questions| questions.last);
        let paused = self.paused.then(|| self.quiet_since + LOOK_INTERVAL);
        let due = [asked, paused].into_iter().flatten().min()?;
        Some(self.looked.map_or(due, |looked| due.max(looked + LOOK_INTERVAL)))
    }

    /// Whether to look now; if so, the next look is a second away.
    pub fn take_due(&mut self, now: Instant) -> bool {
        let due = self.deadline().is_some_and(|deadline| now >= deadline);
        if due {
            self.looked = Some(now);
        }
        due
    }

    fn count(&self, wal_end: Lsn, now: Instant) -> Questions {
        let before = self
            .questions
            .filter(|before| before.wal_end == wal_end && now <= before.last + QUESTION_GAP);
        Questions {
            wal_end,
            count: before.map_or(1, |before| before.count.saturating_add(1)),
            last: now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    #[expect(clippy::disallowed_methods, reason = "an origin for the test's own time")]
    fn watch() -> (ShutdownWatch, Instant) {
        let start = Instant::now();
        (ShutdownWatch::new(start), start)
    }

    fn keepalive(wal_end: u64, reply_requested: bool) -> Vec<u8> {
        let mut payload = vec![b'k'];
        payload.extend_from_slice(&wal_end.to_be_bytes());
        payload.extend_from_slice(&[0; 8]);
        payload.push(u8::from(reply_requested));
        payload
    }

    fn xlog_data() -> Vec<u8> {
        let mut payload = vec![b'w'];
        payload.extend_from_slice(&[0; 24]);
        payload
    }

    /// Hands in ten of these frames a second for a minute; how many looks they cause.
    fn looks(
        watch: &mut ShutdownWatch,
        start: Instant,
        gap: Duration,
        frame: impl Fn(u32) -> Vec<u8>,
    ) -> usize {
        (0..600)
            .filter(|turn| {
                let now = start + gap * *turn;
                watch.frame_taken(&frame(*turn), Some(Lsn::new(50)), now);
                watch.take_due(now)
            })
            .count()
    }

    #[test]
    fn questions_that_repeat_a_position_we_cannot_confirm_cause_a_look_a_second() {
        let (mut watch, start) = watch();
        let asked = keepalive(100, true);
        for turn in 0..2 {
            watch.frame_taken(&asked, Some(Lsn::new(50)), start + 100 * MILLISECOND * turn);
            assert_eq!(watch.deadline(), None);
        }
        let now = start + 200 * MILLISECOND;
        watch.frame_taken(&asked, Some(Lsn::new(50)), now);
        assert!(watch.take_due(now));
        assert_eq!(
            looks(&mut watch, now, 100 * MILLISECOND, |_| keepalive(100, true)),
            59
        );
    }

    #[test]
    fn what_a_healthy_server_says_causes_no_look() {
        type Frames = fn(u32) -> Vec<u8>;
        let cases: [(_, _, Frames); 5] = [
            ("confirmed", 100, |_| keepalive(50, true)),
            ("not asked", 100, |_| keepalive(100, false)),
            ("moving", 100, |turn| keepalive(100 + u64::from(turn), true)),
            ("between events", 1, |turn| match turn % 3 {
                0 => xlog_data(),
                _ => keepalive(100, true),
            }),
            ("half a time-out apart", 500, |_| keepalive(100, true)),
        ];
        for (what, gap, frame) in cases {
            let (mut watch, start) = watch();
            assert_eq!(looks(&mut watch, start, gap * MILLISECOND, frame), 0, "{what}");
        }
    }

    #[test]
    fn a_reader_that_waits_for_room_looks_every_second() {
        let (mut watch, start) = watch();
        watch.set_paused(true);
        assert_eq!(watch.deadline(), Some(start + SECOND));
        let looks = (0..10_000u32).filter(|turn| watch.take_due(start + MILLISECOND * *turn));
        assert_eq!(looks.count(), 9);
        watch.set_paused(false);
        assert_eq!(watch.deadline(), None);
    }

    #[test]
    fn a_full_window_through_which_events_flow_causes_no_look() {
        let (mut watch, start) = watch();
        for turn in 0..1000 {
            let now = start + 10 * MILLISECOND * turn;
            watch.set_paused(false);
            watch.frame_taken(&xlog_data(), Some(Lsn::new(50)), now);
            watch.set_paused(true);
            assert!(!watch.take_due(now));
        }
    }
}
