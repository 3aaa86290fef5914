//! The configuration file of a relay under test.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::database::Database;
use crate::error::Result;
use crate::folder::Folder;
use crate::ports::free_port;
use crate::relay::Relay;
use crate::vhost::Vhost;

/// Describes a relay to run: its program, its configuration file, its environment.
///
/// Without further ado: table `public.outbox_events`, publication `walrelay`, exchange `outbox`, a free port
/// for `admin.listen`, debug logs as JSON lines.
#[derive(Debug, Clone)]
#[must_use]
pub struct RelayBuilder {
    pub(crate) binary: PathBuf,
    /// Section, key, and the value as it stands in TOML.
    values: BTreeMap<String, BTreeMap<String, String>>,
    outboxes: Vec<String>,
    extra: String,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) arguments: Vec<String>,
    pub(crate) admin_port: u16,
}

impl RelayBuilder {
    /// A relay by this program: in tests `env!("CARGO_BIN_EXE_walrelay")`.
    pub fn new(binary: impl Into<PathBuf>) -> RelayBuilder {
        let admin_port = free_port();
        let builder = RelayBuilder {
            binary: binary.into(),
            values: BTreeMap::new(),
            outboxes: vec!["public.outbox_events".to_owned()],
            extra: String::new(),
            environment: Vec::new(),
            arguments: Vec::new(),
            admin_port,
        };
        builder
            .text("postgres.publication", "walrelay")
            .text("rabbitmq.exchange", "outbox")
            .text("admin.listen", &format!("127.0.0.1:{admin_port}"))
            .text("log.format", "json")
            .text("log.level", "debug")
    }

    /// Takes another program, such as a script that starts the relay.
    pub fn binary(mut self, binary: impl Into<PathBuf>) -> Self {
        self.binary = binary.into();
        self
    }

    /// Relays from this database, by a slot that is named after it (slots are the server's, and tests share
    /// servers).
    pub fn database(self, database: &Database) -> Self {
        self.text("postgres.url", &database.url())
            .slot(&format!("slot_{}", database.name()))
    }

    /// Relays to this virtual host.
    pub fn vhost(self, vhost: &Vhost) -> Self {
        self.text("rabbitmq.uri", &vhost.uri())
    }

    /// Sets `postgres.url`.
    pub fn postgres_url(self, url: &str) -> Self {
        self.text("postgres.url", url)
    }

    /// Sets `rabbitmq.uri`.
    pub fn rabbitmq_uri(self, uri: &str) -> Self {
        self.text("rabbitmq.uri", uri)
    }

    /// Sets `postgres.slot`.
    pub fn slot(self, name: &str) -> Self {
        self.text("postgres.slot", name)
    }

    /// Relays these tables instead of `public.outbox_events`.
    pub fn outboxes(mut self, tables: &[&str]) -> Self {
        self.outboxes = tables.iter().map(|table| (*table).to_owned()).collect();
        self
    }

    /// Sets a key (`delivery.max_in_flight`) to a value in TOML's own notation (`10`, `true`, `"1s"` with its
    /// quotes).
    pub fn set(mut self, key: &str, value: &str) -> Self {
        let (section, key) = key.rsplit_once('.').unwrap_or(("", key));
        self.values
            .entry(section.to_owned())
            .or_default()
            .insert(key.to_owned(), value.to_owned());
        self
    }

    /// Sets a key to a text.
    pub fn text(self, key: &str, value: &str) -> Self {
        // JSON's strings are TOML's basic strings.
        self.set(key, &serde_json::Value::from(value).to_string())
    }

    /// Removes a key.
    pub fn unset(mut self, key: &str) -> Self {
        let (section, key) = key.rsplit_once('.').unwrap_or(("", key));
        if let Some(keys) = self.values.get_mut(section) {
            keys.remove(key);
        }
        self
    }

    /// Adds text to the end of the file, as it is.
    pub fn extra(mut self, toml: &str) -> Self {
        self.extra.push_str(toml);
        self.extra.push('\n');
        self
    }

    /// Sets an environment variable. Nothing but PATH and RUST_BACKTRACE comes from the tests' own
    /// environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds an argument to `walrelay run` (`--auto-setup`).
    pub fn arg(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// The configuration file's text.
    pub fn toml(&self) -> String {
        let mut text = String::new();
        for (section, keys) in &self.values {
            if !section.is_empty() {
                text.push_str(&format!("[{section}]\n"));
            }
            keys.iter()
                .for_each(|(key, value)| text.push_str(&format!("{key} = {value}\n")));
        }
        for table in &self.outboxes {
            text.push_str(&format!(
                "[[outbox]]\ntable = {}\n",
                serde_json::Value::from(table.as_str())
            ));
        }
        text + &self.extra
    }

    /// Writes the configuration file; nothing runs yet.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn build(self) -> Result<Relay> {
        Relay::new(self, Folder::new("relay-")?)
    }

    /// The usual: writes the file, runs `walrelay setup`, starts `walrelay run`, waits until it is ready.
    ///
    /// # Errors
    /// [`Error::Process`](crate::Error::Process) with the relay's output when one of them fails.
    pub async fn start(self) -> Result<Relay> {
        let mut relay = self.build()?;
        relay.setup().await?;
        relay.start()?;
        relay.wait_ready(crate::relay::READY_DEADLINE).await?;
        Ok(relay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_sections_then_outboxes_then_extra_text() {
        let builder = RelayBuilder::new("walrelay")
            .text("postgres.url", "a\"b")
            .set("delivery.max_in_flight", "10");
        let toml = builder.set("top", "1").unset("log.level").extra("# end").toml();
        assert!(
            toml.starts_with("top = 1\n[admin]\nlisten = \"127.0.0.1:"),
            "{toml}"
        );
        assert!(
            toml.contains("[delivery]\nmax_in_flight = 10\n[log]\nformat = \"json\"\n[postgres]\n"),
            "{toml}"
        );
        assert!(toml.contains("url = \"a\\\"b\"\n"), "{toml}");
        assert!(
            toml.ends_with("[[outbox]]\ntable = \"public.outbox_events\"\n# end\n"),
            "{toml}"
        );
    }
}
