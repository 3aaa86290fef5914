//! The relay as a real child process.

use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::error::{Attempt as _, Error, Result};
use crate::folder::Folder;
use crate::http::http_get;
use crate::metrics::Samples;
use crate::process::{Lines, Process, Signal};
use crate::relay_config::RelayBuilder;
use crate::wait::{eventually_some, patience};

/// How long a relay may take to become ready in [`RelayBuilder::start`].
pub(crate) const READY_DEADLINE: Duration = Duration::from_secs(20);

/// How long `walrelay setup` and its like may take.
const COMMAND_DEADLINE: Duration = Duration::from_secs(60);

/// How many of the last lines an error or a failed test shows.
const SHOWN_LINES: usize = 60;

/// What a command has said.
#[derive(Debug, Clone)]
pub struct CommandOutput {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl CommandOutput {
    /// The exit code, unless a signal ended it.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }
}

/// What `/readyz` has said.
#[derive(Debug, Clone, PartialEq)]
pub struct Readiness {
    /// The HTTP status: 200 when events would flow, 503 when not.
    pub status: u16,
    /// The body, null when it is not JSON.
    pub json: serde_json::Value,
    /// The body as it came.
    pub text: String,
}

impl Readiness {
    /// Whether the status is 200.
    pub fn is_ready(&self) -> bool {
        self.status == 200
    }
}

/// A relay with a configuration file of its own; killed on drop. When the test fails, its last lines are
/// printed.
#[derive(Debug)]
pub struct Relay {
    builder: RelayBuilder,
    process: Option<Process>,
    lines: Lines,
    folder: Folder,
}

impl Relay {
    pub(crate) fn new(builder: RelayBuilder, folder: Folder) -> Result<Relay> {
        folder.write("walrelay.toml", &builder.toml(), 0o600)?;
        Ok(Relay {
            builder,
            process: None,
            lines: Lines::default(),
            folder,
        })
    }

    /// The configuration file.
    pub fn config_path(&self) -> PathBuf {
        self.folder.path().join("walrelay.toml")
    }

    /// A folder of the relay's own, for password files and the like.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// The port of `/livez`, `/readyz` and `/metrics`.
    pub fn admin_port(&self) -> u16 {
        self.builder.admin_port
    }

    /// Changes the configuration file; a running relay does not notice before its next start.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn reconfigure(&mut self, change: impl FnOnce(RelayBuilder) -> RelayBuilder) -> Result<()> {
        self.builder = change(self.builder.clone());
        self.folder
            .write("walrelay.toml", &self.builder.toml(), 0o600)
            .map(drop)
    }

    /// Adds arguments to every further `walrelay run`.
    pub fn arguments(&mut self, arguments: &[&str]) {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned());
        self.builder.arguments.extend(arguments);
    }

    /// Runs `walrelay ARGUMENTS --config FILE` to its end, whatever that is.
    ///
    /// # Errors
    /// When the program cannot be started, or does not end within a minute: it is killed then.
    pub async fn run_command(&self, arguments: &[&str]) -> Result<CommandOutput> {
        let folder = Folder::new("command-")?;
        let file =
            |name: &str| std::fs::File::create(folder.path().join(name)).attempt("make an output file");
        let mut command = self.command(arguments);
        command.stdout(file("stdout")?).stderr(file("stderr")?);
        let name = format!("walrelay {}", arguments.join(" "));
        let status = Process::spawn(&name, &mut command, Signal::Kill)?
            .wait_exit(COMMAND_DEADLINE)
            .await?;
        let text = |name: &str| -> Result<String> {
            let bytes = std::fs::read(folder.path().join(name)).attempt("read an output file")?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        Ok(CommandOutput {
            status,
            stdout: text("stdout")?,
            stderr: text("stderr")?,
        })
    }

    /// Runs `walrelay setup`.
    ///
    /// # Errors
    /// [`Error::Process`] with its output when it fails.
    pub async fn setup(&self) -> Result<CommandOutput> {
        let output = self.run_command(&["setup"]).await?;
        if output.status.success() {
            return Ok(output);
        }
        let text = format!("{}{}", output.stdout, output.stderr);
        Err(Error::Process {
            program: "walrelay setup".to_owned(),
            status: output.status.to_string(),
            output: text,
        })
    }

    /// Starts `walrelay run`, for the first time or again.
    ///
    /// # Errors
    /// When the program cannot be started, or runs already.
    pub fn start(&mut self) -> Result<()> {
        let mut command = self.start_command()?;
        self.process = Some(Process::spawn_captured(
            "walrelay run",
            &mut command,
            &self.lines,
        )?);
        Ok(())
    }

    /// As [`start`](Self::start), with a standard output of the test's own: [`log`](Self::log) has standard error alone.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_into(&mut self, stdout: impl Into<Stdio>) -> Result<()> {
        let mut command = self.start_command()?;
        command.stdout(stdout);
        self.process = Some(Process::spawn_heard("walrelay run", &mut command, &self.lines)?);
        Ok(())
    }

    fn start_command(&mut self) -> Result<Command> {
        if let Some(process) = &mut self.process
            && process.exit_status()?.is_none()
        {
            return Err(Error::Unexpected("the relay runs already".to_owned()));
        }
        let mut command = self.command(&["run"]);
        command.args(&self.builder.arguments);
        Ok(command)
    }

    /// The process id of the newest `walrelay run`.
    ///
    /// # Errors
    /// When it was never started.
    pub fn pid(&self) -> Result<u32> {
        self.process.as_ref().map(Process::pid).ok_or_else(never_started)
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When it was never started, or the system refuses.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        self.process.as_mut().ok_or_else(never_started)?.signal(signal)
    }

    /// SIGTERM; does not wait.
    ///
    /// # Errors
    /// As [`signal`](Self::signal).
    pub fn terminate(&mut self) -> Result<()> {
        self.signal(Signal::Terminate)
    }

    /// SIGSTOP: frozen until [`resume`](Self::resume).
    ///
    /// # Errors
    /// As [`signal`](Self::signal).
    pub fn pause(&mut self) -> Result<()> {
        self.signal(Signal::Stop)
    }

    /// SIGCONT.
    ///
    /// # Errors
    /// As [`signal`](Self::signal).
    pub fn resume(&mut self) -> Result<()> {
        self.signal(Signal::Continue)
    }

    /// SIGKILL, and waits for the end.
    ///
    /// # Errors
    /// When it was never started.
    pub async fn kill(&mut self) -> Result<ExitStatus> {
        self.process.as_mut().ok_or_else(never_started)?.kill().await
    }

    /// Waits for the relay to end by itself.
    ///
    /// # Errors
    /// [`Error::Timeout`], or when it was never started.
    pub async fn wait_exit(&mut self, deadline: Duration) -> Result<ExitStatus> {
        self.process
            .as_mut()
            .ok_or_else(never_started)?
            .wait_exit(deadline)
            .await
    }

    /// How the relay has ended, or `None` while it runs.
    ///
    /// # Errors
    /// When it was never started.
    pub fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        self.process.as_mut().ok_or_else(never_started)?.exit_status()
    }

    /// Asks `/readyz`.
    ///
    /// # Errors
    /// When nobody answers.
    pub async fn ready(&self) -> Result<Readiness> {
        let response = http_get(self.admin_port(), "/readyz").await?;
        let json = serde_json::from_str(&response.body).unwrap_or_default();
        Ok(Readiness {
            status: response.status,
            json,
            text: response.body,
        })
    }

    /// Waits until `/readyz` says 200.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the last answer, [`Error::Process`] with its last lines when it has ended.
    pub async fn wait_ready(&mut self, deadline: Duration) -> Result<Readiness> {
        self.wait_readiness("the relay to be ready", deadline, Readiness::is_ready)
            .await
    }

    /// Waits until `/readyz` answers, but not with 200.
    ///
    /// # Errors
    /// As [`wait_ready`](Self::wait_ready).
    pub async fn wait_not_ready(&mut self, deadline: Duration) -> Result<Readiness> {
        self.wait_readiness("the relay to be unready", deadline, |readiness| {
            !readiness.is_ready()
        })
        .await
    }

    /// Waits until an answer of `/readyz` fulfils `condition`.
    ///
    /// # Errors
    /// As [`wait_ready`](Self::wait_ready).
    pub async fn wait_readiness(
        &mut self,
        what: &str,
        deadline: Duration,
        mut condition: impl FnMut(&Readiness) -> bool,
    ) -> Result<Readiness> {
        let waited = patience(deadline);
        let until = tokio::time::Instant::now() + waited;
        let mut last = "no answer yet".to_owned();
        loop {
            if let Some(status) = self.exit_status()? {
                let program = format!("walrelay run, while waiting for {what}");
                return Err(Error::Process {
                    program,
                    status: status.to_string(),
                    output: self.last_lines(),
                });
            }
            match tokio::time::timeout_at(until, self.ready()).await {
                Ok(Ok(readiness)) if condition(&readiness) => return Ok(readiness),
                Ok(Ok(readiness)) => last = format!("{} {}", readiness.status, readiness.text.trim()),
                Ok(Err(error)) => last = format!("{error:?}"),
                Err(_elapsed) => {
                    return Err(Error::Timeout {
                        what: format!("{what}; last answer: {last}\n{}", self.last_lines()),
                        waited,
                    });
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Reads `/metrics`.
    ///
    /// # Errors
    /// When nobody answers.
    pub async fn metrics(&self) -> Result<Samples> {
        Ok(Samples::parse(
            &http_get(self.admin_port(), "/metrics").await?.body,
        ))
    }

    /// All lines that the relay has written so far, over all its starts.
    pub fn log(&self) -> Vec<String> {
        self.lines.all()
    }

    /// How many lines it has written: a mark for [`wait_for_log_after`](Self::wait_for_log_after).
    pub fn log_mark(&self) -> usize {
        self.lines.len()
    }

    /// Waits for a line, one that was written before included, and returns it.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the last lines.
    pub async fn wait_for_log(
        &self,
        what: &str,
        deadline: Duration,
        matches: impl FnMut(&str) -> bool,
    ) -> Result<String> {
        self.wait_for_log_after(0, what, deadline, matches).await
    }

    /// Waits for a line that was written after a mark, and returns it.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the last lines.
    pub async fn wait_for_log_after(
        &self,
        mark: usize,
        what: &str,
        deadline: Duration,
        mut matches: impl FnMut(&str) -> bool,
    ) -> Result<String> {
        let found = eventually_some(what, deadline, || {
            std::future::ready(self.lines.find(mark, &mut matches))
        })
        .await;
        found.map_err(|error| {
            let Error::Timeout { what, waited } = error else {
                return error;
            };
            Error::Timeout {
                what: format!("a log line: {what}\n{}", self.last_lines()),
                waited,
            }
        })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.builder.binary);
        command
            .args(arguments)
            .arg("--config")
            .arg(self.config_path())
            .current_dir(self.folder.path());
        command.env_clear().stdin(Stdio::null());
        for name in ["PATH", "RUST_BACKTRACE"] {
            command.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        command.envs(self.builder.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    fn last_lines(&self) -> String {
        let lines = self.lines.all();
        lines
            .get(lines.len().saturating_sub(SHOWN_LINES)..)
            .unwrap_or_default()
            .join("\n")
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "the last lines of the relay ({}):\n{}",
                self.config_path().display(),
                self.last_lines()
            );
        }
    }
}

fn never_started() -> Error {
    Error::Unexpected("the relay was never started".to_owned())
}
