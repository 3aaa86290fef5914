//! Ends the servers and removes their files when this process dies, however it dies.
//!
//! A small shell script reads from a pipe whose only writer is this process. The kernel closes the pipe even
//! after SIGKILL; at the end of the input the script ends every process group that it was told to watch and
//! removes the base folder. (The usual
//! `PR_SET_PDEATHSIG` would need `unsafe` code between fork and exec, and misses the death of a mere thread's parent.)

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::error::{Attempt as _, Result};
use crate::process::Signal;

/// `watch GROUP SIGNAL`, `forget GROUP`; at the end of input each watched group gets its signal, after 3 s SIGKILL.
const SCRIPT: &str = r#"
groups=
while read -r verb group signal; do
  rest=
  for g in $groups; do [ "${g%%:*}" = "$group" ] || rest="$rest $g"; done
  groups=$rest
  [ "$verb" = watch ] && groups="$groups $group:$signal"
done
for g in $groups; do kill -s "${g#*:}" -- "-${g%%:*}" 2>/dev/null; done
tries=0
while [ $tries -lt 30 ]; do
  alive=
  for g in $groups; do kill -s 0 -- "-${g%%:*}" 2>/dev/null && alive=yes; done
  [ -z "$alive" ] && break
  sleep 0.1
  tries=$((tries + 1))
done
for g in $groups; do kill -s KILL -- "-${g%%:*}" 2>/dev/null; done
tries=0
while [ $tries -lt 50 ]; do
  rm -rf -- "$1" 2>/dev/null && [ ! -e "$1" ] && break
  sleep 0.1
  tries=$((tries + 1))
done
"#;

struct Watchdog {
    commands: Mutex<ChildStdin>,
    base: PathBuf,
}

/// The folder under which all private folders of this process lie; it goes with the process.
///
/// # Errors
/// When the folder cannot be made or the watchdog not started.
pub(crate) fn base_folder() -> Result<&'static Path> {
    Ok(&watchdog()?.base)
}

/// Has the process group ended by `signal` when this process dies.
///
/// # Errors
/// When the watchdog cannot be started or has gone.
pub(crate) fn watch(group: u32, signal: Signal) -> Result<()> {
    tell(&format!("watch {group} {}\n", signal.name()))
}

/// Undoes [`watch`], for a group that has ended: its number may be used again.
pub(crate) fn forget(group: u32) {
    // Nothing can be done about a watchdog that has gone, and the caller is often a drop.
    drop(tell(&format!("forget {group}\n")));
}

fn tell(command: &str) -> Result<()> {
    let mut pipe = watchdog()?
        .commands
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    pipe.write_all(command.as_bytes()).attempt("tell the watchdog")
}

fn watchdog() -> Result<&'static Watchdog> {
    static WATCHDOG: OnceLock<Watchdog> = OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(watchdog) = WATCHDOG.get() {
        return Ok(watchdog);
    }
    let watchdog = start()?;
    Ok(WATCHDOG.get_or_init(|| watchdog))
}

fn start() -> Result<Watchdog> {
    let base = tempfile::Builder::new()
        .prefix("walrelay-")
        .tempdir_in(short_temp_dir())
        .attempt("make the test bed's temporary folder")?;
    // PostgreSQL runs as another user when the tests run as root.
    std::fs::set_permissions(base.path(), std::fs::Permissions::from_mode(0o755))
        .attempt("open the folder")?;
    let mut child = Command::new("/bin/sh")
        .args(["-c", SCRIPT, "walrelay-watchdog"])
        .arg(base.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // A group of its own, so that Ctrl-C in a terminal does not end it first.
        .process_group(0)
        .spawn()
        .attempt("start the watchdog (/bin/sh)")?;
    let commands = child
        .stdin
        .take()
        .ok_or_else(|| std::io::Error::other("no pipe"))
        .attempt("start the watchdog")?;
    Ok(Watchdog {
        commands: Mutex::new(commands),
        base: base.keep(),
    })
}

/// The temporary folder, unless its name leaves no room for a Unix socket's path (107 bytes on Linux).
fn short_temp_dir() -> PathBuf {
    let dir = std::env::temp_dir();
    if dir.as_os_str().len() > 50 {
        PathBuf::from("/tmp")
    } else {
        dir
    }
}
