//! Who is who: logins bound to their TLS channel, certificates on both sides, and secrets that change while the relay
//! runs.

mod impostor;
mod postgres;
mod rabbitmq;

use std::path::PathBuf;

use anyhow::Result;
use walrelay_testbed::{Folder, Issued, Relay};

use crate::world::LONG;

/// A certificate and its key under names that stay while what is in them changes.
struct Pair {
    folder: Folder,
}

impl Pair {
    fn of(issued: &Issued) -> Result<Self> {
        let pair = Self {
            folder: Folder::new("pair-")?,
        };
        pair.replace(issued)?;
        Ok(pair)
    }

    fn replace(&self, issued: &Issued) -> Result<()> {
        self.folder.write("client.pem", issued.certificate_pem(), 0o644)?;
        self.folder.write("client.key", issued.key_pem(), 0o600)?;
        Ok(())
    }

    fn certificate(&self) -> PathBuf {
        self.folder.path().join("client.pem")
    }

    fn key(&self) -> PathBuf {
        self.folder.path().join("client.key")
    }
}

/// Waits for a log line about `cause` that holds all `words`, from `mark` on. Only the first of a kind is a warning.
async fn told(relay: &Relay, mark: usize, cause: &str, words: &[&str]) -> Result<()> {
    let cause = format!("\"cause\":\"{cause}\"");
    let what = format!("{cause} with {words:?}");
    let line = relay.wait_for_log_after(mark, &what, LONG, |line| {
        line.contains(&cause) && words.iter().all(|word| line.contains(word))
    });
    line.await?;
    Ok(())
}
