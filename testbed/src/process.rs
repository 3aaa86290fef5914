//! A child process in a process group of its own, watched by the watchdog, waited for without a runtime.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, kill_process, kill_process_group};

use crate::error::{Attempt as _, Error, Result};
use crate::wait::{eventually, eventually_some};
use crate::watchdog;

/// The signals that tests send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: please end.
    Terminate,
    /// SIGINT.
    Interrupt,
    /// SIGQUIT: PostgreSQL's immediate shutdown.
    Quit,
    /// SIGKILL: no last words.
    Kill,
    /// SIGSTOP: freeze.
    Stop,
    /// SIGCONT: thaw.
    Continue,
    /// SIGHUP: read the configuration again.
    HangUp,
}

impl Signal {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Signal::Terminate => "TERM",
            Signal::Interrupt => "INT",
            Signal::Quit => "QUIT",
            Signal::Kill => "KILL",
            Signal::Stop => "STOP",
            Signal::Continue => "CONT",
            Signal::HangUp => "HUP",
        }
    }

    fn number(self) -> rustix::process::Signal {
        use rustix::process::Signal as S;
        match self {
            Signal::Terminate => S::TERM,
            Signal::Interrupt => S::INT,
            Signal::Quit => S::QUIT,
            Signal::Kill => S::KILL,
            Signal::Stop => S::STOP,
            Signal::Continue => S::CONT,
            Signal::HangUp => S::HUP,
        }
    }
}

/// The lines that a process has written, shared with the threads that read them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn find(&self, from: usize, matches: &mut dyn FnMut(&str) -> bool) -> Option<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().skip(from).find(|line| matches(line)).cloned()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Reads a stream to its end on a thread of its own.
    fn follow(&self, stream: impl Read + Send + 'static) -> JoinHandle<()> {
        let lines = self.clone();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stream);
            let mut line = Vec::new();
            while matches!(reader.read_until(b'\n', &mut line), Ok(1..)) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                lines.0.lock().unwrap_or_else(PoisonError::into_inner).push(text);
                line.clear();
            }
        })
    }
}

/// A running child, ended on drop.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    ended: Option<ExitStatus>,
    /// What reads its outputs, where they are captured.
    readers: Vec<JoinHandle<()>>,
    farewell: Signal,
}

impl Process {
    /// Starts `command` in a process group of its own, without input. `farewell` ends it on drop, or when
    /// this process dies.
    pub(crate) fn spawn(name: &str, command: &mut Command, farewell: Signal) -> Result<Process> {
        let child = command
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .attempt(format!("start {name} ({})", command.get_program().display()))?;
        watchdog::watch(child.id(), farewell)?;
        Ok(Process {
            name: name.to_owned(),
            child,
            ended: None,
            readers: Vec::new(),
            farewell,
        })
    }

    /// As [`Process::spawn`], collecting what it writes to both outputs in `lines`.
    pub(crate) fn spawn_captured(name: &str, command: &mut Command, lines: &Lines) -> Result<Process> {
        command.stdout(Stdio::piped());
        Process::spawn_heard(name, command, lines)
    }

    /// As [`Process::spawn_captured`], with the standard output that `command` has been given.
    pub(crate) fn spawn_heard(name: &str, command: &mut Command, lines: &Lines) -> Result<Process> {
        command.stderr(Stdio::piped());
        let mut process = Process::spawn(name, command, Signal::Kill)?;
        if let Some(stdout) = process.child.stdout.take() {
            process.readers.push(lines.follow(stdout));
        }
        if let Some(stderr) = process.child.stderr.take() {
            process.readers.push(lines.follow(stderr));
        }
        Ok(process)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the process itself (not to its group); to one that has ended it is no error.
    pub(crate) fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.exit_status()?.is_some() {
            return Ok(());
        }
        kill_process(Pid::from_child(&self.child), signal.number())
            .map_err(std::io::Error::from)
            .attempt(format!("send SIG{} to {}", signal.name(), self.name))
    }

    /// How it ended, or `None` while it runs.
    pub(crate) fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self
                .child
                .try_wait()
                .attempt(format!("ask after {}", self.name))?;
            if self.ended.is_some() {
                watchdog::forget(self.child.id());
            }
        }
        Ok(self.ended)
    }

    /// Waits for its end, and until its last line has been read: on a busy machine that may take longer.
    pub(crate) async fn wait_exit(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let what = format!("the end of {}", self.name);
        let status = eventually_some(&what, deadline, || {
            std::future::ready(self.exit_status().transpose())
        })
        .await??;
        let what = format!("the end of what {} writes", self.name);
        eventually(&what, deadline, || {
            std::future::ready(self.readers.iter().all(JoinHandle::is_finished))
        })
        .await?;
        Ok(status)
    }

    /// SIGKILL to its whole group, and waits for its end.
    pub(crate) async fn kill(&mut self) -> Result<ExitStatus> {
        self.kill_group();
        self.wait_exit(Duration::from_secs(10)).await
    }

    fn kill_group(&mut self) {
        if self.ended.is_none() {
            // It fails only when nobody is left in the group.
            kill_process_group(Pid::from_child(&self.child), Signal::Kill.number()).ok();
        }
    }
}

impl Drop for Process {
    /// Blocks until the process has ended: for some milliseconds, at most 5 s when it does not heed its
    /// farewell.
    fn drop(&mut self) {
        if self.farewell != Signal::Kill {
            drop(self.signal(self.farewell));
            let asked = Instant::now();
            while matches!(self.exit_status(), Ok(None)) && asked.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        if matches!(self.exit_status(), Ok(None)) {
            self.kill_group();
            drop(self.child.wait());
            watchdog::forget(self.child.id());
        }
    }
}

/// The processes whose parent is `parent`.
pub(crate) fn children_of(parent: u32) -> HashSet<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return HashSet::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| matches!(state_and_parent(*pid), Some((_, p)) if p == parent))
        .collect()
}

/// Whether a process still runs; one that has ended but was not yet reaped does not.
pub(crate) fn is_running(pid: u32) -> bool {
    matches!(state_and_parent(pid), Some((state, _)) if state != 'Z' && state != 'X')
}

/// From `/proc/PID/stat` (see proc(5)): the command's name is in parentheses and may itself hold any
/// character.
fn state_and_parent(pid: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Runs a program to its end on a thread of its own, for programs that end soon.
///
/// # Errors
/// [`Error::Process`] with its output when it fails.
pub(crate) async fn run(name: String, mut command: Command) -> Result<String> {
    let program = format!("{name} ({})", command.get_program().display());
    let running = tokio::task::spawn_blocking(move || command.stdin(Stdio::null()).output());
    let output = running
        .await
        .map_err(std::io::Error::from)
        .attempt("run a program")?
        .attempt(format!("run {program}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let output_text = format!("{stdout}{}", String::from_utf8_lossy(&output.stderr));
    Err(Error::Process {
        program,
        status: output.status.to_string(),
        output: output_text,
    })
}
