//! How far a long command has come, on stderr: a bar on a terminal, a line now and then elsewhere.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use super::say;

/// Between two changes of the bar, and between two lines.
const BAR_INTERVAL: Duration = Duration::from_millis(200);
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Characters of the bar.
const WIDTH: u64 = 30;

/// Counts up to a total, where that is known.
#[derive(Debug)]
pub(super) struct Progress {
    what: &'static str,
    total: Option<u64>,
    on_terminal: bool,
    started: Instant,
    shown_at: Option<Instant>,
    is_open: bool,
}

impl Progress {
    /// `what` is counted: `rows`.
    pub(super) fn new(what: &'static str, total: Option<u64>) -> Self {
        let started = Instant::now();
        Self {
            what,
            total,
            on_terminal: io::stderr().is_terminal(),
            started,
            shown_at: None,
            is_open: false,
        }
    }

    /// So many are done. Shown if it is time.
    pub(super) fn show(&mut self, done: u64) {
        let now = Instant::now();
        let interval = if self.on_terminal {
            BAR_INTERVAL
        } else {
            LINE_INTERVAL
        };
        if now < self.shown_at.unwrap_or(self.started) + interval {
            return;
        }
        self.shown_at = Some(now);
        let line = line(self.what, done, self.total, now - self.started);
        if self.on_terminal {
            drop(write!(io::stderr(), "\r{line}\x1b[K"));
            self.is_open = true;
        } else {
            say(&line);
        }
    }

    /// Takes the bar away, so that something else can be said.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.is_open) {
            drop(write!(io::stderr(), "\r\x1b[K"));
            self.shown_at = None;
        }
    }
}

fn line(what: &str, done: u64, total: Option<u64>, elapsed: Duration) -> String {
    let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = done.saturating_mul(1000) / millis;
    let Some(total) = total.filter(|total| *total > 0) else {
        return format!("{done} {what}, {rate}/s");
    };
    // Rows may be added while we count.
    let shown = done.min(total);
    let full = shown.saturating_mul(WIDTH) / total;
    let percent = shown.saturating_mul(100) / total;
    let bar: String = (0..WIDTH).map(|at| if at < full { '#' } else { '.' }).collect();
    let left = (total - shown)
        .checked_div(rate)
        .map_or_else(String::new, |seconds| {
            format!(
                ", {} left",
                humantime::format_duration(Duration::from_secs(seconds))
            )
        });
    format!("[{bar}] {percent}% {done} of {total} {what}, {rate}/s{left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_share_pace_and_what_is_left() {
        let second = Duration::from_secs(1);
        assert_eq!(
            line("rows", 500, Some(2000), second),
            "[#######.......................] 25% 500 of 2000 rows, 500/s, 3s left"
        );
        assert_eq!(line("rows", 500, None, second * 10), "500 rows, 50/s");
        assert_eq!(
            line("rows", 3, Some(2), second),
            "[##############################] 100% 3 of 2 rows, 3/s, 0s left"
        );
        assert_eq!(
            line("rows", 0, Some(2), Duration::ZERO),
            "[..............................] 0% 0 of 2 rows, 0/s"
        );
    }
}
