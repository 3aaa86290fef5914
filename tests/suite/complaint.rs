//! What the relay says about a fault: the log, `/readyz` and the metrics must agree, and say it once.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use walrelay_testbed::{Readiness, Relay, http_get};

use crate::world::LONG;

/// A part of `/readyz`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Database,
    Broker,
}

impl Part {
    const fn name(self) -> &'static str {
        match self {
            Self::Database => "database",
            Self::Broker => "broker",
        }
    }
}

/// Waits until the relay names `cause`, and checks that it says so well: unready with this cause, an error that
/// holds all `words`, and a remedy; the same in exactly one log line, that further tries do not repeat; the same in
/// the metrics; and that it goes on running.
pub(crate) async fn complains(relay: &mut Relay, part: Part, cause: &str, words: &[&str]) -> Result<()> {
    let after = relay.log_mark();
    let readiness = named(relay, part, cause).await?;
    let named = &readiness.json[part.name()];
    let (error, remedy) = (text(named, "error")?, text(named, "remedy")?);
    ensure!(
        readiness.json["ready"] == false,
        "ready in spite of it: {}",
        readiness.text
    );
    for word in words {
        ensure!(error.contains(word), "{word:?} is not in {error:?}");
    }

    // Another try: what is going to be repeated has been by then.
    relay
        .wait_for_log_after(after, "another try", LONG, |line| {
            is_about(line, cause) && line.contains("\"DEBUG\"")
        })
        .await?;
    let log = relay.log();
    let told: Vec<&String> = log
        .iter()
        .filter(|line| is_about(line, cause) && !line.contains("\"DEBUG\""))
        .collect();
    ensure!(told.len() == 1, "said {} times: {told:#?}", told.len());
    let line: Value = serde_json::from_str(told[0])?;
    ensure!(
        text(&line, "error")? == error
            && text(&line, "remedy")? == remedy
            && text(&line, "side")? == part.name(),
        "the log says {line}, readiness {}",
        readiness.text
    );
    let (level, class) = (text(&line, "level")?, text(named, "class")?);
    ensure!(
        level == if class == "halted" { "ERROR" } else { "WARN" },
        "{class} at level {level}"
    );

    let metrics = relay.metrics().await?;
    let halted = metrics.sum("walrelay_halted", &[("reason", cause)]);
    ensure!(
        metrics.value("walrelay_fault", &[("cause", cause)]) == Some(1.0),
        "no metric of the fault"
    );
    ensure!(
        (halted == 1.0) == (class == "halted"),
        "class {class}, halted {halted}"
    );
    ensure!(
        metrics.value("walrelay_ready", &[]) == Some(0.0),
        "ready in the metrics"
    );
    ensure!(relay.exit_status()?.is_none(), "it ended");
    Ok(())
}

/// Waits until `/readyz` names a cause.
pub(crate) async fn named(relay: &mut Relay, part: Part, cause: &str) -> Result<Readiness> {
    let what = format!("{} to be named", cause);
    let named = relay.wait_readiness(&what, LONG, |readiness| {
        readiness.json[part.name()]["cause"] == cause
    });
    let readiness = named.await?;
    ensure!(readiness.status == 503, "status {}", readiness.status);
    Ok(readiness)
}

/// Checks that nothing that the relay says anywhere holds a secret.
pub(crate) async fn tells_no(secret: &str, relay: &Relay) -> Result<()> {
    let mut said = relay.log().join("\n");
    for path in ["/readyz", "/metrics"] {
        said.push_str(&http_get(relay.admin_port(), path).await?.body);
    }
    ensure!(!said.contains(secret), "the secret {secret} is in {said}");
    Ok(())
}

fn is_about(line: &str, cause: &str) -> bool {
    line.contains(&format!("\"cause\":\"{cause}\""))
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    let text = value[key]
        .as_str()
        .with_context(|| format!("no {key} in {value}"))?;
    ensure!(!text.is_empty(), "{key} is empty in {value}");
    Ok(text)
}
