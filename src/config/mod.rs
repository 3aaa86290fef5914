//! Layered configuration: a TOML file, environment variables over it, flags over both.
//!
//! [`KEYS`] is the one table of what can be set. [`load`] reads the layers, collects everything that is wrong
//! with them, and makes plain values of them. Nothing here knows another module of walrelay: what a URL or a
//! template must look like, its own module says by way of [`Sources::validators`].

mod choices;
mod condition;
mod content;
mod contradictions;
mod env;
mod field;
mod fields;
mod file;
mod key;
mod keys;
mod layers;
mod log_levels;
mod mask;
mod named;
mod problem;
mod rules;
mod suggest;
mod tables;
#[cfg(test)]
mod tests;
mod types;
mod value;
mod wording;

use std::error::Error;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

pub use choices::{
    AfterPublish, AuthMechanism, ExchangeType, FailurePolicy, LogFormat, OnSlotLost, Ordering, SinkChoice,
};
pub use condition::ConditionValue;
pub use content::{ContentConfig, MessageFormat};
pub use env::{CONFIG as CONFIG_VARIABLE, PREFIX as VARIABLE_PREFIX, UnknownVariable};
pub use field::FieldValue;
pub use key::{Key, Kind, Presence};
pub use keys::KEYS;
pub use layers::Settings;
pub use log_levels::{LogLevels, NotALevel};
pub use named::NamedTexts;
pub use problem::{ConfigError, Origin, Pointed, Problem, ProblemKind};
pub use rules::Rule;
pub use tables::{ColumnsConfig, OutboxConfig, Preset, RouteConfig};
pub use types::{AdminConfig, Config, DeliveryConfig, LogConfig, OtelConfig, PostgresConfig, RabbitmqConfig};
pub use value::Value;

use layers::{Layer, Setting};

/// The path of a key of text, and what its own module says of the value in effect.
///
/// The error's text ends up in a line after the key's name; it must show no secret.
pub type Validator = (&'static str, fn(&str) -> Result<(), Box<dyn Error + Send + Sync>>);

/// The path of a key, and why its value does not go with another one, if it does not.
pub type Agreement = (&'static str, fn(&Config) -> Option<&'static str>);

/// What a configuration is made of.
#[derive(Default)]
pub struct Sources<'a> {
    /// The file named by `--config`.
    pub file: Option<PathBuf>,
    /// The environment, whole.
    pub environment: Vec<(OsString, OsString)>,
    /// Values of `--set` in their order, each as `KEY=VALUE`.
    pub set: Vec<String>,
    /// Flags that stand for a key: the flag's name, the key's path, the value.
    pub flags: Vec<(&'static str, &'static str, String)>,
    /// Checks by the modules that the values are for.
    pub validators: &'a [Validator],
    /// Checks of values that must agree with others.
    pub agreements: &'a [Agreement],
}

/// A configuration, and what came to light on the way.
pub struct Loaded {
    /// The values.
    pub config: Config,
    /// The same with origins.
    pub settings: Settings,
    /// The file that was read.
    pub file: Option<PathBuf>,
    /// To be logged as warnings once logging is up.
    pub unknown_variables: Vec<UnknownVariable>,
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded")
            .field("config", &self.config)
            .field("file", &self.file)
            .field("unknown_variables", &self.unknown_variables)
            .finish_non_exhaustive()
    }
}

/// Reads the configuration: the file of `--config`, else of `WALRELAY_CONFIG`, else `walrelay.toml` here, else
/// in `/etc/walrelay`, else none; then the environment and the flags.
///
/// # Errors
/// Everything that is wrong, in one [`ConfigError`].
pub fn load(sources: &Sources<'_>) -> Result<Loaded, ConfigError> {
    let search: Vec<_> = file::SEARCH.iter().map(PathBuf::from).collect();
    let found = find_file(sources, &search).map_err(|problem| ConfigError::new(vec![problem]))?;
    let file = found.as_ref().map(|(path, text)| (path.as_path(), text.as_str()));
    resolve(file, sources)
}

fn find_file(sources: &Sources<'_>, search: &[PathBuf]) -> Result<Option<(PathBuf, String)>, Problem> {
    let by_variable = sources
        .environment
        .iter()
        .find(|(name, value)| name == env::CONFIG && !value.is_empty());
    let named = match (&sources.file, by_variable) {
        (Some(path), _) => Some((path.clone(), Origin::Flag("--config"))),
        (None, Some((_, path))) => Some((path.into(), Origin::Environment(env::CONFIG.to_owned()))),
        (None, None) => None,
    };
    match named {
        Some((path, origin)) => match file::read(&path) {
            Ok(text) => Ok(Some((path, text))),
            Err(kind) => Err(Problem {
                origin: Some(origin),
                kind,
            }),
        },
        None => file::find(search).map_err(|kind| Problem { origin: None, kind }),
    }
}

/// Makes a configuration of a file's text, if there is a file, and the other sources.
fn resolve(file: Option<(&Path, &str)>, sources: &Sources<'_>) -> Result<Loaded, ConfigError> {
    let of_file = file.map(|(path, text)| file::parse(path, text));
    let (of_environment, unknown_variables) = env::read(&sources.environment);
    let layers = [of_file.unwrap_or_default(), of_environment, flags(sources)];
    let (settings, mut problems) = Settings::merge(layers);
    let name = file.map_or_else(
        || "walrelay.toml".to_owned(),
        |(path, _)| path.display().to_string(),
    );
    if problems.is_empty() {
        problems.extend(refused(&settings, sources.validators));
        match Config::build(&settings, &name)
            .and_then(|config| agreeing(config, &settings, sources.agreements))
        {
            Ok(config) if problems.is_empty() => {
                let file = file.map(|(path, _)| path.to_owned());
                return Ok(Loaded {
                    config,
                    settings,
                    file,
                    unknown_variables,
                });
            }
            Ok(_) => {}
            Err(more) => problems.extend(more),
        }
    } else {
        problems.extend(missing_beside(&problems, &settings, &name));
    }
    let misses = |problem: &Problem| matches!(problem.kind, ProblemKind::Missing { .. });
    if file.is_none() && problems.iter().any(misses) {
        problems.insert(
            0,
            Problem {
                origin: None,
                kind: ProblemKind::NoFile {
                    looked_for: file::SEARCH.iter().map(|path| file::shown(path)).collect(),
                },
            },
        );
    }
    Err(ConfigError::new(problems))
}

/// The required keys that are missing beside these problems, unless one of the problems may be the reason.
fn missing_beside(problems: &[Problem], settings: &Settings, file: &str) -> Vec<Problem> {
    let mut refused = Vec::new();
    for problem in problems {
        // Anything else may be the reason: a misspelt key, a file that was not read to its end.
        let ProblemKind::Impossible { key, .. } = &problem.kind else {
            return Vec::new();
        };
        refused.push(key.as_str());
    }
    types::missing_keys(settings, file, |key| !refused.contains(&key.path))
}

fn flags(sources: &Sources<'_>) -> Layer {
    let mut layer = Layer::default();
    let set = sources.set.iter().map(|text| match text.split_once('=') {
        Some((path, value)) => ("--set", path.trim(), value),
        None => ("--set", "", ""),
    });
    let named = sources
        .flags
        .iter()
        .map(|(flag, path, value)| (*flag, *path, value.as_str()));
    for (flag, path, text) in set.chain(named) {
        let value = match Key::find(path) {
            Some(key) => Value::from_outside(key, text).map(|value| (key, value)),
            // What stands before the first `=` of a misplaced URL may be a password: repeat only what looks like a key.
            None if !path.is_empty()
                && path
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)) =>
            {
                let hint = suggest::key_hint(path);
                Err(ProblemKind::Unknown {
                    what: "key",
                    name: path.to_owned(),
                    hint,
                })
            }
            None => Err(ProblemKind::SetWithoutValue),
        };
        match value {
            Ok((key, value)) => layer.set(Setting {
                key,
                value,
                origin: Origin::Flag(flag),
            }),
            Err(kind) => layer.problems.push(Problem {
                origin: Some(Origin::Flag(flag)),
                kind,
            }),
        }
    }
    layer
}

/// The configuration, if its values go with one another.
fn agreeing(config: Config, settings: &Settings, agreements: &[Agreement]) -> Result<Config, Vec<Problem>> {
    let problems: Vec<_> = agreements
        .iter()
        .filter_map(|(path, check)| {
            let why = check(&config)?;
            Some(Problem {
                origin: settings.origin(path).cloned(),
                kind: ProblemKind::Contradiction(why.to_owned()),
            })
        })
        .collect();
    if problems.is_empty() {
        Ok(config)
    } else {
        Err(problems)
    }
}

fn refused(settings: &Settings, validators: &[Validator]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for setting in settings.iter() {
        let texts = setting.value.texts();
        for (path, check) in validators {
            if *path != setting.key.path {
                continue;
            }
            for (index, text) in texts.iter().enumerate() {
                let Err(source) = check(text) else { continue };
                let kind = ProblemKind::Refused {
                    key: setting.key.path,
                    item: (texts.len() > 1).then_some(index + 1),
                    source,
                };
                problems.push(Problem {
                    origin: Some(setting.origin.clone()),
                    kind,
                });
            }
        }
    }
    problems
}
