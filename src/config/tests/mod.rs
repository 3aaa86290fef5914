//! The configuration as a whole, by concept.

mod examples;
mod file;
mod layers;
mod lists;
mod messages;
mod problems;
mod properties;
mod retention;
mod routes;
mod shown;

use std::path::Path;

use super::*;

const URLS: &str = "postgres.url = 'postgres://u@db/shop'\nrabbitmq.uri = 'amqp://u@mq'\n";

fn environment(variables: &[(&str, &str)]) -> Sources<'static> {
    let environment = variables
        .iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
    Sources {
        environment,
        ..Sources::default()
    }
}

fn set(values: &[&str]) -> Sources<'static> {
    Sources {
        set: values.iter().map(|value| (*value).to_owned()).collect(),
        ..Sources::default()
    }
}

fn loaded(text: &str, sources: &Sources<'_>) -> Loaded {
    match resolve(Some((Path::new("walrelay.toml"), text)), sources) {
        Ok(loaded) => loaded,
        Err(error) => panic!("{error}"),
    }
}

fn refused_with(text: &str, sources: &Sources<'_>) -> String {
    match resolve(Some((Path::new("walrelay.toml"), text)), sources) {
        Ok(loaded) => panic!("accepted: {loaded:?}"),
        Err(error) => error.to_string(),
    }
}

/// The error of a file that sets the URLs in its first two lines, then `text`.
fn error_of(text: &str) -> String {
    refused_with(&format!("{URLS}{text}"), &Sources::default())
}
