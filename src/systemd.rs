//! What systemd is told, where it asks by `NOTIFY_SOCKET`: ready, stopping, one line of status, and the watchdog's sign
//! of life.
//!
//! Ready means that the configuration is valid and the loop goes round, not that the servers are up: they may come
//! later, and a unit that waits for them would be killed by its start time-out. The protocol is that of
//! [sd_notify(3)](https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html).

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::watch;

use crate::relay::{Delivery, Status};

/// The line of status is looked at this often.
const TICK: Duration = Duration::from_secs(1);

/// Tells systemd how the relay stands until the relay is gone; at once over where systemd does not ask.
pub async fn report(mut status: watch::Receiver<Status>) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    let watchdog = sd_notify::watchdog_enabled();
    // Half of it, as sd_watchdog_enabled(3) recommends.
    let mut ticks = tokio::time::interval(watchdog.map_or(TICK, |patience| TICK.min(patience / 2)));
    // The loop changes the status with its first turn.
    if status.changed().await.is_err() {
        return;
    }
    tell(&[NotifyState::Ready]);
    let mut told = String::new();
    while status.has_changed().is_ok() {
        ticks.tick().await;
        let (line, since_tick) = {
            let status = status.borrow_and_update();
            (line(&status), status.ticked.elapsed())
        };
        if line != told {
            tell(&[NotifyState::Status(&line)]);
            told = line;
        }
        if watchdog.is_some_and(|patience| is_alive(since_tick, patience)) {
            tell(&[NotifyState::Watchdog]);
        }
    }
}

/// Tells systemd that the process is about to end.
pub fn tell_stopping() {
    tell(&[NotifyState::Stopping]);
}

/// A loop that stands still is what the watchdog is there for. It goes round once a second when there is nothing to do.
fn is_alive(since_tick: Duration, patience: Duration) -> bool {
    since_tick < patience.max(2 * TICK)
}

/// The relay in one line, for `systemctl status`.
fn line(status: &Status) -> String {
    let role = status.role.label();
    if matches!(status.delivery, Delivery::Stopping) {
        return "stopping: delivers what is in flight".to_owned();
    }
    if let Some(fault) = status.faults().next() {
        let (class, cause) = (fault.kind.class().label(), fault.kind.label());
        return format!("{role}, {class} ({cause}): {}", fault.kind.remedy());
    }
    let (database, broker) = (status.database.state.label(), status.broker.state.label());
    format!("{role}, database {database}, broker {broker}")
}

/// A manager that does not listen must not disturb delivery.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(error = %error, "systemd was not told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::{Fault, FaultKind};
    use crate::relay::SideState;

    #[test]
    fn the_line_names_what_stands_in_the_way_with_its_remedy() {
        let mut status = Status::new("walrelay".to_owned());
        assert_eq!(line(&status), "active, database connecting, broker connecting");
        status.database.state = SideState::Up;
        status.broker.state = SideState::Up;
        assert_eq!(line(&status), "active, database up, broker up");
        status.database.fault = Some(Fault {
            kind: FaultKind::SlotLost,
            message: "slot \"walrelay\" is lost".to_owned(),
        });
        let remedy = FaultKind::SlotLost.remedy();
        assert_eq!(line(&status), format!("active, halted (slot_lost): {remedy}"));
        status.delivery = Delivery::Stopping;
        assert!(line(&status).starts_with("stopping"));
    }

    #[test]
    fn a_loop_that_stands_still_does_not_feed_the_watchdog() {
        let patience = Duration::from_secs(30);
        assert!(is_alive(Duration::from_secs(1), patience));
        assert!(!is_alive(Duration::from_secs(30), patience));
        // A patience shorter than the loop's own pace would kill an idle relay.
        assert!(is_alive(Duration::from_secs(1), Duration::from_millis(200)));
    }
}
