//! What is shown: masked, with origins, and a configuration file again; and the sample.

use std::collections::BTreeSet;

use super::*;

const SAMPLE: &str = include_str!("../../../config/walrelay.toml");

#[test]
fn no_secret_is_in_debug_or_in_what_is_shown() {
    for url in ["postgres://u:hunter2@db/shop", "host=db user=u password=hunter2"] {
        let sources = set(&[&format!("postgres.url={url}"), "rabbitmq.uri=amqp://u:hunter2@mq"]);
        let loaded = loaded("", &sources);
        for text in [
            format!("{loaded:?}"),
            format!("{:#?}", loaded.config),
            loaded.settings.to_toml(),
        ] {
            assert!(!text.contains("hunter2"), "{text}");
            assert!(text.contains("walrelay"), "{text}");
        }
    }
}

#[test]
fn a_password_key_is_never_shown_whatever_it_looks_like() {
    for password in ["hunter2", "https://hunter2.example/", "postgres://hunter2@h/d"] {
        let sources = environment(&[
            ("WALRELAY_POSTGRES_PASSWORD", password),
            ("WALRELAY_RABBITMQ_PASSWORD", password),
        ]);
        let loaded = loaded(URLS, &sources);
        for text in [format!("{:#?}", loaded.config), loaded.settings.to_toml()] {
            assert!(!text.contains("hunter2"), "{text}");
        }
        let shown = "password = \"********\"  # WALRELAY_POSTGRES_PASSWORD";
        assert!(
            loaded.settings.to_toml().contains(shown),
            "{}",
            loaded.settings.to_toml()
        );
    }
}

#[test]
fn what_is_shown_is_a_configuration_file_with_origins() {
    let sources = set(&[
        "postgres.url=postgres://u:hunter2@db/shop",
        "rabbitmq.declare.exchange_type=fanout",
    ]);
    let shown = loaded(
        "rabbitmq.uri = 'amqp://u@mq'\n[[outbox]]\ntable = 'a.\"b\\c\"'\n",
        &sources,
    )
    .settings
    .to_toml();
    for line in [
        "url = \"postgres://u:********@db/shop\"  # --set",
        "# password_file is not set: a file that holds the database password, read at every connect",
        "slot = \"walrelay\"  # default",
        "table = \"a.\\\"b\\\\c\\\"\"  # walrelay.toml:3",
        "exchange_type = \"fanout\"  # --set",
        "max_in_flight = 1000  # default",
        "max_in_flight_bytes = \"32MiB\"  # default",
    ] {
        assert!(
            shown.lines().any(|shown| shown == line),
            "{line} is not in\n{shown}"
        );
    }
    let again = loaded(&shown, &Sources::default());
    assert_eq!(again.config.rabbitmq.declare, Some(ExchangeType::Fanout));
    assert_eq!(again.config.outbox[0].table, "a.\"b\\c\"");
}

#[test]
fn the_sample_states_the_defaults() {
    let sample = loaded(SAMPLE, &Sources::default());
    let origins = sample
        .settings
        .iter()
        .filter(|setting| setting.origin == Origin::Default);
    assert_eq!(
        origins.map(|setting| setting.key.path).collect::<Vec<_>>(),
        Vec::<&str>::new()
    );
    let defaults = loaded(URLS, &Sources::default());
    assert_eq!(format!("{:?}", sample.config), format!("{:?}", defaults.config));
}

#[test]
fn the_sample_holds_every_key() {
    let uncommented: String = SAMPLE
        .lines()
        .map(|line| format!("{}\n", uncommented(line)))
        .collect();
    // What all keys have an effect with.
    let uncommented = uncommented.replace("format = \"payload\"", "format = \"cloudevents-binary\"");
    let sample = loaded(&uncommented, &Sources::default());
    let held = sample
        .settings
        .iter()
        .filter(|setting| setting.origin != Origin::Default);
    let held: BTreeSet<_> = held.map(|setting| setting.key.path).collect();
    assert_eq!(held, KEYS.iter().map(|key| key.path).collect());
}

/// A line of the sample with a key that is commented out, brought in.
fn uncommented(line: &str) -> &str {
    let Some(rest) = line.strip_prefix("# ") else {
        return line;
    };
    let is_key = rest
        .split_once(" = ")
        .is_some_and(|(name, _)| !name.contains(' '));
    if is_key || rest.starts_with('[') {
        rest
    } else {
        line
    }
}
