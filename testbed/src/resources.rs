//! What a running relay may use of the system, and what it uses.

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::error::{Attempt as _, Error, Result};
use crate::relay::Relay;

impl Relay {
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
