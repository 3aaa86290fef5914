//! Log lines: to stderr, as text or JSON, by level and target.

use std::io::{self, IsTerminal as _};
use std::panic::{self, PanicHookInfo};

use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::{SetGlobalDefaultError, set_global_default};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::registry;

use crate::config::{LogConfig, LogFormat, LogLevels};

/// Logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// It was set up before.
    #[error("set up logging")]
    Twice(#[source] SetGlobalDefaultError),
}

/// Sends log lines to stderr from now on, in colour on a terminal, and a panic as one line of them.
///
/// # Errors
/// Logging is set up already.
pub fn init(config: &LogConfig) -> Result<(), TelemetryError> {
    // https://no-color.org
    let colour =
        io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    set_global_default(subscriber(config, io::stderr, colour)).map_err(TelemetryError::Twice)?;
    panic::set_hook(Box::new(log_panic));
    Ok(())
}

fn subscriber<W>(config: &LogConfig, writer: W, colour: bool) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    // The layer would report a failed write by eprintln!, which panics where stderr is a closed pipe.
    let layer = fmt::layer()
        .with_writer(writer)
        .with_ansi(colour)
        .log_internal_errors(false);
    let targets = targets(&config.level);
    match config.format {
        LogFormat::Text => Box::new(registry().with(layer.with_filter(targets))),
        LogFormat::Json => Box::new(registry().with(layer.json().flatten_event(true).with_filter(targets))),
    }
}

/// The bare level is for walrelay's own lines; dependencies say no more than warnings unless asked by name.
fn targets(levels: &LogLevels) -> Targets {
    Targets::new()
        .with_default(levels.own.min(LevelFilter::WARN))
        .with_target("walrelay", levels.own)
        .with_targets(levels.targets.iter().cloned())
}

/// One line with the place; unwinding goes on, and whoever joins the task sees it.
fn log_panic(info: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let payload = info.payload();
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or(payload.downcast_ref::<String>().map(String::as_str));
    tracing::error!(
        panic = text.unwrap_or("not a text"),
        location = info.location().map(tracing::field::display),
        thread = thread.name(),
        "panicked, which is a bug in walrelay"
    );
}

#[cfg(test)]
mod messages;
#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Collects what is written, from any thread.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("not poisoned").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Lines {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().expect("not poisoned").clone()).expect("UTF-8")
        }
    }

    /// What `emit` logs with this configuration.
    fn logged(format: LogFormat, level: &str, emit: impl FnOnce()) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let config = LogConfig {
            format,
            level: level.parse().expect("a level"),
        };
        tracing::subscriber::with_default(subscriber(&config, move || writer.clone(), false), emit);
        lines.text()
    }

    #[test]
    fn dependencies_say_no_more_than_warnings() {
        let text = logged(LogFormat::Text, "debug", || {
            tracing::debug!(target: "walrelay_engine::flow", "ours");
            tracing::info!(target: "lapin", "chatter");
            tracing::warn!(target: "lapin", "trouble");
        });
        assert!(
            text.contains("ours") && text.contains("trouble") && !text.contains("chatter"),
            "{text}"
        );
    }

    #[test]
    fn a_target_can_be_asked_for_and_all_can_be_off() {
        let text = logged(LogFormat::Text, "error,lapin=info", || {
            tracing::info!(target: "lapin", "chatter");
            tracing::warn!(target: "tokio", "trouble");
            tracing::warn!(target: "walrelay", "ours");
        });
        assert!(
            text.contains("chatter") && !text.contains("trouble") && !text.contains("ours"),
            "{text}"
        );
        assert_eq!(logged(LogFormat::Text, "off", || tracing::error!("anything")), "");
    }

    #[test]
    fn a_json_line_is_one_object_with_the_fields_at_the_top() {
        let text = logged(LogFormat::Json, "info", || {
            tracing::info!(target: "walrelay", slot = "shop", "replication started\nnow");
        });
        assert_eq!(text.lines().count(), 1, "{text}");
        let line: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(line["slot"], "shop");
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["message"], "replication started\nnow");
    }

    #[test]
    fn a_panic_is_one_line_with_its_place() {
        let text = logged(LogFormat::Text, "info", || {
            let before = panic::take_hook();
            // Other tests of this process panic on other threads: leave those to the hook that was there.
            let here = std::thread::current().id();
            panic::set_hook(Box::new(move |info| {
                if std::thread::current().id() == here {
                    log_panic(info)
                } else {
                    before(info)
                }
            }));
            let caught = panic::catch_unwind(|| panic!("out of tea"));
            drop(panic::take_hook());
            assert!(caught.is_err());
        });
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(
            text.contains("out of tea") && text.contains("src/telemetry.rs:"),
            "{text}"
        );
    }
}
