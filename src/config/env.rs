//! Reads the environment: known names only, since Kubernetes injects variables of its own under our prefix.

use std::ffi::OsString;
use std::fmt;

use super::key::Key;
use super::keys::KEYS;
use super::layers::{Layer, Setting};
use super::problem::{Origin, Problem, ProblemKind};
use super::suggest;
use super::value::Value;

/// What all of our variables begin with.
pub const PREFIX: &str = "WALRELAY_";

/// Names the configuration file, as `--config` does.
pub const CONFIG: &str = "WALRELAY_CONFIG";

/// Prefixes of variables that belong to the test suite and the demo.
const OTHERS: &[&str] = &["WALRELAY_TEST_", "WALRELAY_DEMO_"];

/// A variable under our prefix that means nothing to us: a misspelt one, or one that Kubernetes injected for
/// a service named `walrelay` (<https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables>).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownVariable {
    /// Its name.
    pub name: String,
    /// The nearest name that we know, if one is near.
    pub nearest: Option<String>,
}

impl fmt::Display for UnknownVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown environment variable {} is ignored",
            self.name.escape_debug()
        )?;
        match &self.nearest {
            Some(nearest) => write!(f, "; did you mean {nearest}?"),
            None => Ok(()),
        }
    }
}

/// Takes the known names out of the environment.
pub(super) fn read(variables: &[(OsString, OsString)]) -> (Layer, Vec<UnknownVariable>) {
    let mut layer = Layer::default();
    let mut unknown = Vec::new();
    for (name, value) in variables {
        let name = name.to_string_lossy();
        if !name.starts_with(PREFIX) || name == CONFIG || OTHERS.iter().any(|prefix| name.starts_with(prefix))
        {
            continue;
        }
        let Some(key) = KEYS.iter().find(|key| key.env_name() == name) else {
            unknown.push(UnknownVariable {
                nearest: nearest(&name),
                name: name.into_owned(),
            });
            continue;
        };
        let origin = Origin::Environment(name.into_owned());
        match value
            .to_str()
            .ok_or(ProblemKind::NotText)
            .and_then(|text| Value::from_outside(key, text))
        {
            Ok(value) => layer.set(Setting { key, value, origin }),
            Err(kind) => layer.problems.push(Problem {
                origin: Some(origin),
                kind,
            }),
        }
    }
    unknown.sort_by(|a, b| a.name.cmp(&b.name));
    (layer, unknown)
}

fn nearest(name: &str) -> Option<String> {
    let known: Vec<_> = KEYS
        .iter()
        .map(Key::env_name)
        .chain([CONFIG.to_owned()])
        .collect();
    // The prefix is common to all: only what follows it may differ by a third.
    let rest = name.strip_prefix(PREFIX).unwrap_or(name);
    let rests = known.iter().filter_map(|name| name.strip_prefix(PREFIX));
    suggest::nearest_word(rest, rests).map(|rest| format!("{PREFIX}{rest}"))
}
