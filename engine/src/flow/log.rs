//! Which log positions refer to (R2).

use crate::Lsn;

/// Which log positions refer to: they mean nothing in another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogIdentity {
    /// `IDENTIFY_SYSTEM`'s system id.
    pub system_id: u64,
    /// The timeline.
    pub timeline: u32,
}

/// The log of the newest session.
#[derive(Debug, Default)]
pub(super) struct Log {
    identity: Option<LogIdentity>,
    /// It was flushed up to here at least.
    flushed: Lsn,
}

impl Log {
    /// A session has started whose log is flushed up to `flushed`. Returns whether it is another log than before. What was
    /// flushed once stays so: a server that has less of it was set back to an older state, and goes on another way.
    pub(super) fn session_started(&mut self, identity: LogIdentity, flushed: Lsn) -> bool {
        let changes = |known| known != identity || flushed < self.flushed;
        let is_another = self.identity.is_some_and(changes);
        self.identity = Some(identity);
        self.flushed = flushed;
        is_another
    }

    /// The log is flushed up to here: a walsender sends nothing beyond.
    pub(super) fn is_flushed(&mut self, through: Lsn) {
        self.flushed = self.flushed.max(through);
    }

    /// The log is flushed beyond the start of this record, which the stream has told of.
    pub(super) fn is_flushed_beyond(&mut self, record: Lsn) {
        self.is_flushed(Lsn::new(record.get().saturating_add(1)));
    }

    /// Which log the newest session's is.
    pub(super) const fn identity(&self) -> Option<LogIdentity> {
        self.identity
    }

    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// What a server has that was not set back.
    #[cfg(test)]
    pub(super) const fn flushed(&self) -> Lsn {
        self.flushed
    }
}
