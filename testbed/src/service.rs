//! A program of a test's own as a real child process.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::process::{Lines, Process};

/// How many of the last lines a failed test shows.
const SHOWN_LINES: usize = 30;

/// A program that can be killed and started again; killed on drop. When the test fails, its last lines are printed.
#[derive(Debug)]
pub struct Service {
    name: String,
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(String, String)>,
    process: Option<Process>,
    lines: Lines,
}

impl Service {
    /// A program to start, by the name under which errors speak of it.
    pub fn new(name: &str, program: impl Into<PathBuf>, arguments: &[&str]) -> Service {
        Service {
            name: name.to_owned(),
            program: program.into(),
            arguments: arguments.iter().map(OsString::from).collect(),
            environment: Vec::new(),
            process: None,
            lines: Lines::default(),
        }
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Service {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The name that it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts it, for the first time or again.
    ///
    /// # Errors
    /// When the program cannot be started, or runs already.
    pub fn start(&mut self) -> Result<()> {
        if let Some(process) = &mut self.process
            && process.exit_status()?.is_none()
        {
            return Err(Error::Unexpected(format!("{} runs already", self.name)));
        }
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .envs(self.environment.iter().cloned());
        self.process = Some(Process::spawn_captured(&self.name, &mut command, &self.lines)?);
        Ok(())
    }

    /// SIGKILL, and waits for the end.
    ///
    /// # Errors
    /// When it was never started.
    pub async fn kill(&mut self) -> Result<ExitStatus> {
        match &mut self.process {
            Some(process) => process.kill().await,
            None => Err(self.never_started()),
        }
    }

    /// Waits for it to end by itself.
    ///
    /// # Errors
    /// [`Error::Timeout`], or when it was never started.
    pub async fn wait_exit(&mut self, deadline: Duration) -> Result<ExitStatus> {
        match &mut self.process {
            Some(process) => process.wait_exit(deadline).await,
            None => Err(self.never_started()),
        }
    }

    /// How it has ended, or `None` while it runs.
    ///
    /// # Errors
    /// When it was never started.
    pub fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        match &mut self.process {
            Some(process) => process.exit_status(),
            None => Err(self.never_started()),
        }
    }

    /// The process id of the newest start.
    ///
    /// # Errors
    /// When it was never started.
    pub fn pid(&self) -> Result<u32> {
        self.process
            .as_ref()
            .map(Process::pid)
            .ok_or_else(|| self.never_started())
    }

    /// All lines that it has written so far, over all its starts.
    pub fn log(&self) -> Vec<String> {
        self.lines.all()
    }

    fn never_started(&self) -> Error {
        Error::Unexpected(format!("{} was never started", self.name))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let lines = self.lines.all();
            let last = lines.get(lines.len().saturating_sub(SHOWN_LINES)..);
            eprintln!(
                "the last lines of {}:\n{}",
                self.name,
                last.unwrap_or_default().join("\n")
            );
        }
    }
}
