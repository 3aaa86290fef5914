//! The exit codes, in one place.

use std::process::ExitCode;

/// How the process ends. The numbers above 63 are those of `sysexits.h`
/// (<https://man.openbsd.org/sysexits.3>).
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
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}
