//! What a running process may use of the system, and what it uses.

use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::error::{Attempt as _, Error, Result};
use crate::relay::Relay;

/// Processor time that a running process has used so far, by the scheduler's own account (`schedstat`, see
/// <https://docs.kernel.org/scheduler/sched-stats.html>): far finer than clock ticks. Threads that have ended are not in it.
///
/// # Errors
/// When it does not run, or the kernel keeps no such account.
pub fn processor_time(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/task");
    let mut time = Duration::ZERO;
    for task in std::fs::read_dir(&path).attempt(format!("read {path}"))? {
        let file = task.attempt(format!("read {path}"))?.path().join("schedstat");
        // A thread may have ended meanwhile.
        let Ok(account) = std::fs::read_to_string(&file) else {
            continue;
        };
        let on_processor = account
            .split_whitespace()
            .next()
            .and_then(|first| first.parse().ok());
        time += on_processor
            .map(Duration::from_nanos)
            .ok_or_else(|| Error::Unexpected(format!("{} holds {account:?}", file.display())))?;
    }
    Ok(time)
}

/// Memory that a running process has resident now, in KiB.
///
/// # Errors
/// When it does not run.
pub fn resident_kib(pid: u32) -> Result<u64> {
    status_kib(pid, "VmRSS:")
}

/// The most memory that a running process ever had resident, in KiB.
///
/// # Errors
/// When it does not run.
pub fn peak_resident_kib(pid: u32) -> Result<u64> {
    status_kib(pid, "VmHWM:")
}

/// An entry of `/proc/PID/status`, see proc(5).
fn status_kib(pid: u32, entry: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).attempt(format!("read {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(entry));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| Error::Unexpected(format!("{path} has no {entry} the process has ended")))
}

impl Relay {
    /// The most memory that the newest `walrelay run` ever had resident, in KiB.
    ///
    /// # Errors
    /// When it does not run.
    pub fn peak_rss_kib(&self) -> Result<u64> {
        peak_resident_kib(self.pid()?)
    }

    /// Limits the numbers that new descriptors may have; those that are open stay. `None` ends the limit.
    ///
    /// # Errors
    /// When it does not run, or the system refuses.
    pub fn limit_descriptors(&self, limit: Option<u64>) -> Result<()> {
        self.limit(Resource::Nofile, limit)
    }

    /// Limits its address space; what it has mapped stays. `None` ends the limit.
    ///
    /// # Errors
    /// As [`limit_descriptors`](Self::limit_descriptors).
    pub fn limit_address_space(&self, bytes: Option<u64>) -> Result<()> {
        self.limit(Resource::As, bytes)
    }

    /// How many threads it has.
    ///
    /// # Errors
    /// When it does not run.
    pub fn threads(&self) -> Result<usize> {
        let path = format!("/proc/{}/task", self.pid()?);
        Ok(std::fs::read_dir(&path).attempt(format!("read {path}"))?.count())
    }

    /// Processor time used so far, in clock ticks of 10 ms.
    ///
    /// # Errors
    /// When it does not run.
    pub fn processor_ticks(&self) -> Result<u64> {
        let path = format!("/proc/{}/stat", self.pid()?);
        let stat = std::fs::read_to_string(&path).attempt(format!("read {path}"))?;
        // utime and stime are fields 14 and 15 of proc(5); the name's closing bracket ends field 2.
        let fields = stat
            .rsplit_once(')')
            .map(|(_, fields)| fields)
            .unwrap_or_default();
        let mut times = fields.split_whitespace().skip(11).map(str::parse::<u64>);
        match (times.next(), times.next()) {
            (Some(Ok(user)), Some(Ok(system))) => Ok(user + system),
            _ => Err(Error::Unexpected(format!("{path} is not as in proc(5): {stat}"))),
        }
    }

    /// How often its threads have given the processor up, because there was nothing to do or because it was taken from them.
    /// One that turns round and round does so by the hundred on a busy machine; on one that is not, it uses
    /// [`processor_ticks`](Self::processor_ticks).
    ///
    /// # Errors
    /// When it does not run.
    pub fn context_switches(&self) -> Result<u64> {
        let path = format!("/proc/{}/task", self.pid()?);
        let mut switches = 0;
        for task in std::fs::read_dir(&path).attempt(format!("read {path}"))? {
            let status = task.attempt(format!("read {path}"))?.path().join("status");
            // A thread may have ended meanwhile.
            let status = std::fs::read_to_string(status).unwrap_or_default();
            let counts = status
                .lines()
                .filter_map(|line| line.split_once("ctxt_switches:"));
            switches += counts
                .filter_map(|(_, count)| count.trim().parse::<u64>().ok())
                .sum::<u64>();
        }
        Ok(switches)
    }

    /// Only the soft limit, so that it can be lifted again.
    fn limit(&self, resource: Resource, limit: Option<u64>) -> Result<()> {
        // The child has inherited ours.
        let ours = getrlimit(resource);
        let new = Rlimit {
            current: limit.or(ours.current),
            maximum: ours.maximum,
        };
        let pid = i32::try_from(self.pid()?).ok().and_then(Pid::from_raw);
        prlimit(pid, resource, new)
            .map_err(std::io::Error::from)
            .attempt("limit the relay")
            .map(drop)
    }
}
