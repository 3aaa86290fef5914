//! The value of `log.level`: one level for walrelay, and levels by target.

use std::fmt;
use std::str::FromStr;

use tracing::level_filters::LevelFilter;

/// Levels by target, as in `info,walrelay::rabbitmq=debug`: the bare level is walrelay's own.
///
/// `tracing_subscriber::filter::Targets` reads the same text, but takes a misspelt level for the name of a
/// target and turns everything on for it; here that is an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLevels {
    /// The level of walrelay's own lines.
    pub own: LevelFilter,
    /// Levels of other targets, or of parts of walrelay, by prefix of the module path.
    pub targets: Vec<(String, LevelFilter)>,
}

/// The text is neither a level nor a list of `target=level`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a log level")]
pub struct NotALevel;

impl LogLevels {
    /// The words for levels, from few lines to many.
    pub const WORDS: &[&str] = &["off", "error", "warn", "info", "debug", "trace"];
}

impl FromStr for LogLevels {
    type Err = NotALevel;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut own = None;
        let mut targets = Vec::new();
        for part in text.split(',').map(str::trim) {
            match part.split_once('=') {
                None if own.is_none() => own = Some(level(part)?),
                None => return Err(NotALevel),
                Some((target, word)) => {
                    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-');
                    if target.is_empty() || !target.chars().all(fits) {
                        return Err(NotALevel);
                    }
                    targets.push((target.to_owned(), level(word)?));
                }
            }
        }
        Ok(Self {
            own: own.unwrap_or(LevelFilter::INFO),
            targets,
        })
    }
}

impl fmt::Display for LogLevels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.own)?;
        self.targets
            .iter()
            .try_for_each(|(target, level)| write!(f, ",{target}={level}"))
    }
}

fn level(word: &str) -> Result<LevelFilter, NotALevel> {
    if !LogLevels::WORDS.contains(&word) {
        return Err(NotALevel);
    }
    word.parse().map_err(|_| NotALevel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_and_printed_alike() {
        for text in [
            "info",
            "off",
            "debug,tokio=trace",
            "warn,walrelay::relay=debug,tokio_postgres=off",
        ] {
            assert_eq!(text.parse::<LogLevels>().expect(text).to_string(), text);
        }
        assert_eq!(
            "walrelay::rabbitmq=debug"
                .parse::<LogLevels>()
                .expect("valid")
                .to_string(),
            "info,walrelay::rabbitmq=debug"
        );
    }

    #[test]
    fn a_misspelt_level_is_an_error_not_a_target() {
        for text in [
            "",
            "inof",
            "INFO ",
            "info,debug",
            "info,",
            "tokio=",
            "=info",
            "tokio=loud",
            "5",
        ] {
            assert_eq!(text.parse::<LogLevels>(), Err(NotALevel), "{text:?}");
        }
    }
}
