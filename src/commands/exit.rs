//! The exit codes, in one place.

use std::process::ExitCode;

/// How the process ends. The numbers from 64 to 78 are those of `sysexits.h`
/// (<https://man.openbsd.org/sysexits.3>); from 128 on they are what a shell says of a process that a signal ended
/// (<https://www.gnu.org/software/bash/manual/html_node/Exit-Status.html>).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done, or stopped on request.
    Clean,
    /// The command failed otherwise than below.
    Failed,
    /// Wrong usage of the command line; clap exits with the same number.
    Usage,
    /// Halted, with `--exit-on-halt` (`EX_UNAVAILABLE`).
    Halted,
    /// A second signal, of this number, ended the process before it had stopped in good order.
    CutShort(u8),
    /// A bug: an inner contradiction or a panic (`EX_SOFTWARE`).
    Bug,
    /// Wrong configuration (`EX_CONFIG`).
    Configuration,
}

impl Exit {
    /// The number that the shell sees.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Clean => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Halted => 69,
            Self::Bug => 70,
            Self::Configuration => 78,
            Self::CutShort(signal) => 128_u8.saturating_add(signal),
        }
    }
}

/// Wrong usage that only the command itself can tell.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct WrongUsage(
    /// What is wrong, and what would be right.
    pub(super) String,
);

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}
