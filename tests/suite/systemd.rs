//! What systemd is told.

use std::collections::VecDeque;
use std::os::unix::net::UnixDatagram;

use anyhow::{Result, ensure};
use tempfile::TempDir;

use crate::world::{LONG, World};

/// The socket that systemd would listen on.
struct Manager {
    folder: TempDir,
    socket: UnixDatagram,
    lines: VecDeque<String>,
}

impl Manager {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let socket = UnixDatagram::bind(folder.path().join("notify"))?;
        socket.set_read_timeout(Some(LONG))?;
        Ok(Self {
            folder,
            socket,
            lines: VecDeque::new(),
        })
    }

    fn address(&self) -> String {
        self.folder.path().join("notify").display().to_string()
    }

    /// The next line that does not feed the watchdog.
    fn next(&mut self) -> Result<String> {
        loop {
            let line = self.next_of_any_kind()?;
            if line != "WATCHDOG=1" {
                return Ok(line);
            }
        }
    }

    fn next_of_any_kind(&mut self) -> Result<String> {
        while self.lines.is_empty() {
            let mut buffer = [0; 4096];
            let length = self.socket.recv(&mut buffer)?;
            let text = std::str::from_utf8(&buffer[..length])?;
            self.lines.extend(text.lines().map(str::to_owned));
        }
        Ok(self.lines.pop_front().unwrap_or_default())
    }

    fn wait_for(&mut self, wanted: &str) -> Result<()> {
        while !self.next()?.starts_with(wanted) {}
        Ok(())
    }
}

#[tokio::test]
async fn systemd_is_told_of_readiness_of_trouble_and_of_the_end() -> Result<()> {
    let world = World::new().await?;
    let mut manager = Manager::new()?;
    let relay = world.relay().env("NOTIFY_SOCKET", &manager.address());
    let mut relay = relay.env("WATCHDOG_USEC", "400000").build()?;
    // Without a slot it halts, and is ready in systemd's sense all the same: it runs.
    relay.start()?;
    ensure!(manager.next()? == "READY=1");
    manager.wait_for("STATUS=active, halted (not_set_up)")?;
    relay.setup().await?;
    manager.wait_for("STATUS=active, database up, broker up")?;
    // Fed again and again.
    for _ in 0..3 {
        while manager.next_of_any_kind()? != "WATCHDOG=1" {}
    }
    relay.terminate()?;
    manager.wait_for("STOPPING=1")?;
    ensure!(relay.wait_exit(LONG).await?.success());
    Ok(())
}

/// What was changed in one unit and not in the other would be missed for years.
#[test]
fn the_template_is_the_unit_but_for_the_name_of_its_instance() {
    let settings = |unit: &'static str| {
        let lines = unit.lines().map(|line| line.replace("%i", "walrelay"));
        let is_setting = |line: &String| !line.starts_with('#') && !line.starts_with("Description");
        lines.filter(is_setting).collect::<Vec<_>>()
    };
    let unit = settings(include_str!("../../config/walrelay.service"));
    assert!(unit.len() > 40, "{unit:?}");
    assert_eq!(unit, settings(include_str!("../../config/walrelay@.service")));
}
