//! The Erlang port mapper, by which brokers and their tools find each other.

use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::error::Result;
use crate::ports::free_port;
use crate::process::{Process, Signal};

/// The port of this process's own Erlang port mapper, which all its brokers share; the one that a broker
/// starts outlives the broker.
///
/// # Errors
/// When there is no `epmd` on the PATH.
pub(crate) fn epmd_port() -> Result<u16> {
    static EPMD: OnceLock<(u16, Process)> = OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((port, _)) = EPMD.get() {
        return Ok(*port);
    }
    let port = free_port();
    let mut command = Command::new("epmd");
    command
        .args(["-port", &port.to_string(), "-address", "127.0.0.1"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let epmd = Process::spawn("epmd", &mut command, Signal::Kill)?;
    Ok(EPMD.get_or_init(|| (port, epmd)).0)
}
