use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const URLS: &str = "postgres.url = 'postgres://u@db/shop'\nrabbitmq.uri = 'amqp://u@mq'\n";
const SAMPLE: &str = include_str!("../../config/walrelay.toml");

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

#[test]
fn without_anything_set_the_defaults_hold() {
    let Config {
        postgres,
        outbox,
        rabbitmq,
        delivery,
        admin,
        log,
    } = loaded(URLS, &Sources::default()).config;
    assert_eq!(
        (&*postgres.slot, &*postgres.publication),
        ("walrelay", "walrelay")
    );
    assert_eq!(postgres.wal_sender_timeout, Duration::from_secs(10));
    assert_eq!(postgres.status_interval, Duration::from_secs(1));
    assert_eq!(postgres.password_file, None);
    assert_eq!(
        outbox,
        [OutboxConfig {
            table: "public.outbox_events".to_owned(),
            after_publish: None,
        }]
    );
    assert_eq!(rabbitmq.exchange, "outbox");
    assert_eq!(rabbitmq.routing_key, "{aggregate_type}.{event_type}");
    assert_eq!(rabbitmq.heartbeat, Duration::from_secs(30));
    assert_eq!(rabbitmq.app_id, "walrelay");
    assert_eq!(
        (rabbitmq.declare, rabbitmq.ca_file, rabbitmq.password_file),
        (None, None, None)
    );
    let expected = DeliveryConfig {
        max_in_flight: 1000,
        max_in_flight_bytes: 32 * 1024 * 1024,
        max_message_bytes: None,
        max_event_bytes: 16 * 1024 * 1024,
        ordering: Ordering::Pipelined,
        max_rate: None,
        on_unroutable: FailurePolicy::Hold,
        on_invalid: FailurePolicy::Hold,
        hold_max_wal: None,
        dead_letters_max: 10_000,
        mark_batch: 1_000,
        mark_interval: Duration::from_secs(1),
        confirm_timeout: Duration::from_secs(30),
        shutdown_grace: Duration::from_secs(10),
    };
    assert_eq!(delivery, expected);
    assert_eq!(admin.listen.to_string(), "127.0.0.1:10187");
    assert_eq!(
        (log.format, log.level.to_string()),
        (LogFormat::Text, "info".to_owned())
    );
}

#[test]
fn the_environment_wins_over_the_file_and_a_flag_over_both() {
    let text = format!("{URLS}[postgres]\n").replace("postgres.url = ", "[postgres]\nurl = ");
    let text = text.replace(
        "rabbitmq.uri = 'amqp://u@mq'\n[postgres]\n",
        "slot = 'file'\npublication = 'file'\n",
    );
    let text = format!("{text}[rabbitmq]\nuri = 'amqp://u@mq'\n[delivery]\nmax_in_flight = 1\n");
    let mut sources = environment(&[
        ("WALRELAY_POSTGRES_SLOT", "environment"),
        ("WALRELAY_DELIVERY_MAX_IN_FLIGHT", "2"),
        ("WALRELAY_LOG_LEVEL", "warn"),
    ]);
    sources.set = vec![
        "delivery.max_in_flight=3".to_owned(),
        "log.level=error".to_owned(),
    ];
    sources.flags = vec![("--log-level", "log.level", "trace".to_owned())];
    let Loaded { config, settings, .. } = loaded(&text, &sources);
    assert_eq!(config.postgres.publication, "file");
    assert_eq!(config.postgres.slot, "environment");
    assert_eq!(config.delivery.max_in_flight, 3);
    assert_eq!(config.log.level.to_string(), "trace");
    let origin = |path| settings.origin(path).map(ToString::to_string);
    assert_eq!(origin("postgres.publication").as_deref(), Some("walrelay.toml:4"));
    assert_eq!(origin("postgres.slot").as_deref(), Some("WALRELAY_POSTGRES_SLOT"));
    assert_eq!(origin("delivery.max_in_flight").as_deref(), Some("--set"));
    assert_eq!(origin("log.level").as_deref(), Some("--log-level"));
    assert_eq!(origin("log.format").as_deref(), Some("default"));
    assert_eq!(origin("rabbitmq.ca_file"), None);
}

#[test]
fn each_outbox_of_the_file_is_a_table_and_a_variable_replaces_them_all() {
    let text = format!("{URLS}[[outbox]]\ntable = 'a.b'\n[[outbox]]\ntable = 'c.d'\n");
    let tables = |loaded: Loaded| -> Vec<_> {
        loaded
            .config
            .outbox
            .into_iter()
            .map(|outbox| outbox.table)
            .collect()
    };
    assert_eq!(tables(loaded(&text, &Sources::default())), ["a.b", "c.d"]);
    assert_eq!(
        tables(loaded(&text, &environment(&[("WALRELAY_OUTBOX_TABLE", "e.f")]))),
        ["e.f"]
    );
    assert_eq!(tables(loaded(&text, &set(&["outbox.table=g.h"]))), ["g.h"]);
}

#[test]
fn every_key_reaches_the_configuration() {
    let before = format!("{:?}", loaded(URLS, &Sources::default()).config);
    for key in KEYS.iter().filter(|key| !key.secret) {
        let value = match key.kind {
            Kind::Text | Kind::Template | Kind::Path => "other",
            Kind::Duration { .. } => "4s",
            Kind::Size { .. } => "7777",
            Kind::Integer { .. } => "77",
            Kind::Boolean => "true",
            Kind::Choice(words) => words[words.len() - 1],
            Kind::Address => "[::1]:80",
            Kind::LogLevels => "debug",
        };
        let by_flag = loaded(URLS, &set(&[&format!("{}={value}", key.path)])).config;
        let by_variable = loaded(URLS, &environment(&[(&key.env_name(), value)])).config;
        assert_ne!(format!("{by_flag:?}"), before, "{}", key.path);
        assert_eq!(format!("{by_flag:?}"), format!("{by_variable:?}"), "{}", key.path);
    }
}

#[test]
fn an_unknown_key_names_file_line_key_and_the_nearest() {
    assert_eq!(
        error_of("\n\n[delivery]\n\nmax_inflight = 5\n"),
        "walrelay.toml:7: unknown key delivery.max_inflight; did you mean delivery.max_in_flight?"
    );
    assert_eq!(
        error_of("delivery.backoff_multiplier = 5\n"),
        "walrelay.toml:3: unknown key delivery.backoff_multiplier; known keys of delivery are max_in_flight, \
         max_in_flight_bytes, max_message_bytes, max_event_bytes, ordering, max_rate, on_unroutable, on_invalid, hold_max_wal, \
         dead_letters_max, confirm_timeout, mark_batch, mark_interval, shutdown_grace"
    );
    assert_eq!(
        error_of("[rabitmq]\nx = 1"),
        "walrelay.toml:3: unknown table rabitmq; did you mean rabbitmq?"
    );
    assert_eq!(
        error_of("[[outbox]]\ntable = 'a.b'\ntabel = 'c.d'\n"),
        "walrelay.toml:5: unknown key outbox.tabel; did you mean outbox.table?"
    );
    assert_eq!(
        error_of("\"log\\nlevel\" = 1\n"),
        "walrelay.toml:3: unknown key \"log\\nlevel\"; known tables are postgres, outbox, rabbitmq, \
         rabbitmq.declare, delivery, admin, log"
    );
}

#[test]
fn a_wrong_type_names_what_is_expected_and_what_stands_there() {
    for (text, error) in [
        (
            "delivery.max_in_flight = '5'",
            "delivery.max_in_flight must be an integer, not \"5\"",
        ),
        (
            "delivery.max_in_flight = 1.5",
            "delivery.max_in_flight must be an integer, not the number 1.5",
        ),
        (
            "delivery.max_in_flight = -1",
            "delivery.max_in_flight must be from 1 to 65535, not -1",
        ),
        (
            "delivery.max_in_flight = 0x1FFFF",
            "delivery.max_in_flight must be from 1 to 65535, not 0x1FFFF",
        ),
        ("log.format = true", "log.format must be text or json, not true"),
        (
            "log.format = 'jsn'",
            "log.format must be text or json, not \"jsn\"; did you mean json?",
        ),
        (
            "log.level = 'inof'",
            "log.level must be error, warn, info, debug, trace or off, or such by target as in \"info,lapin=debug\", \
             not \"inof\"; did you mean info?",
        ),
        (
            "delivery.confirm_timeout = 30",
            "delivery.confirm_timeout must be a duration such as \"10s\" or \"100ms\", not the number 30",
        ),
        (
            "delivery.confirm_timeout = '30'",
            "delivery.confirm_timeout must be a duration such as \"10s\" or \"100ms\", not \"30\"",
        ),
        (
            "delivery.max_in_flight_bytes = '32 megs'",
            "delivery.max_in_flight_bytes must be a size such as \"32MiB\" or a number of bytes, not \"32 megs\"",
        ),
        (
            "admin.listen = 'localhost:80'",
            "admin.listen must be an IP address and port such as \"127.0.0.1:10187\", not \"localhost:80\"",
        ),
        (
            "rabbitmq.exchange = ['a']",
            "rabbitmq.exchange must be a text in quotes, not an array",
        ),
        (
            "rabbitmq.ca_file = ''",
            "rabbitmq.ca_file must be a path in quotes, not \"\"",
        ),
        ("log = 'info'", "log must be a table"),
        (
            "outbox = {}",
            "outbox must be written with two brackets, as [[outbox]]",
        ),
        ("outbox = [1]", "outbox must be a list of tables, as [[outbox]]"),
        (
            "outbox = []",
            "outbox must hold at least one table; leave it out for the default, public.outbox_events",
        ),
        (
            "outbox = [{}]",
            "[[outbox]] has no table; write table = \"schema.name\" below it",
        ),
    ] {
        assert_eq!(error_of(text), format!("walrelay.toml:3: {error}"));
    }
}

#[test]
fn an_empty_exchange_is_the_default_exchange() {
    assert_eq!(
        loaded(&format!("{URLS}rabbitmq.exchange = ''"), &Sources::default())
            .config
            .rabbitmq
            .exchange,
        ""
    );
}

#[test]
fn values_that_contradict_one_another_are_both_named() {
    assert_eq!(
        error_of("postgres.status_interval = '5s'"),
        "walrelay.toml:3: postgres.status_interval (5s) must be less than half of postgres.wal_sender_timeout (10s)"
    );
    assert_eq!(
        refused_with(
            URLS,
            &environment(&[("WALRELAY_POSTGRES_WAL_SENDER_TIMEOUT", "2s")])
        ),
        "WALRELAY_POSTGRES_WAL_SENDER_TIMEOUT: postgres.status_interval (1s) must be less than half of \
         postgres.wal_sender_timeout (2s)"
    );
    assert_eq!(
        error_of("[[outbox]]\ntable = 'a.b'\n[[outbox]]\ntable = 'a.b'\n"),
        "walrelay.toml:6: outbox.table \"a.b\" is there twice; name each table once"
    );
}

#[test]
fn a_required_key_says_how_to_set_it() {
    let error = resolve(None, &Sources::default()).expect_err("nothing is set");
    assert_eq!(
        error.to_string(),
        "postgres.url is not set: write url under [postgres] in walrelay.toml, or set WALRELAY_POSTGRES_URL, or pass \
         --set postgres.url=...\n\
         rabbitmq.uri is not set: write uri under [rabbitmq] in walrelay.toml, or set WALRELAY_RABBITMQ_URI, or pass \
         --set rabbitmq.uri=..."
    );
}

#[test]
fn all_problems_of_a_file_are_shown_in_the_order_of_its_lines() {
    let text = "postgres.url = 5\nlog.level = 'loud'\ndelivery.max_in_flight = 0\n";
    let error = refused_with(text, &set(&["log.format=xml"]));
    let starts: Vec<_> = error
        .lines()
        .map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        starts,
        [
            "walrelay.toml:1: postgres.url",
            "walrelay.toml:2: log.level",
            "walrelay.toml:3: delivery.max_in_flight",
            "--set: log.format",
            "rabbitmq.uri is",
        ]
    );
}

#[test]
fn of_very_many_problems_the_first_twenty_are_shown() {
    let text: String = (0..100).map(|n| format!("wrong{n} = 1\n")).collect();
    let error = error_of(&text);
    assert_eq!(error.lines().count(), 21);
    assert!(
        error.starts_with("walrelay.toml:3: ") && error.ends_with("\nand 80 more"),
        "{error}"
    );
}

#[test]
fn a_syntax_error_names_line_and_column_and_shows_nothing_of_the_text() {
    let error = error_of("[postgres\nurl = 'x'\n");
    assert!(error.starts_with("walrelay.toml:3:10: "), "{error}");
    assert_eq!(error.lines().count(), 1);
    let secret = refused_with("[postgres]\nurl = postgres://u:hunter2@db\n", &Sources::default());
    assert!(
        secret.starts_with("walrelay.toml:2:7: ") && !secret.contains("hunter2"),
        "{secret}"
    );
    let twice = error_of("log.level = 'info'\nlog.level = 'warn'\n");
    assert_eq!(twice, "walrelay.toml:4:5: duplicate key");
}

#[test]
fn an_unknown_variable_is_a_warning_with_the_nearest_name() {
    let sources = environment(&[
        ("WALRELAY_PORT", "tcp://10.0.0.1:80"),
        ("WALRELAY_POSTGRES_URI", "x"),
        ("WALRELAY_CONFG", "x"),
        ("WALRELAY_TEST_PATIENCE", "3"),
        ("WALRELAY_DEMO_PORT", "3"),
        ("walrelay_log_level", "loud"),
        ("PATH", "/bin"),
    ]);
    let warnings: Vec<_> = loaded(URLS, &sources)
        .unknown_variables
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        warnings,
        [
            "unknown environment variable WALRELAY_CONFG is ignored; did you mean WALRELAY_CONFIG?",
            "unknown environment variable WALRELAY_PORT is ignored",
            "unknown environment variable WALRELAY_POSTGRES_URI is ignored; did you mean WALRELAY_POSTGRES_URL?",
        ]
    );
}

#[test]
fn a_wrong_value_of_a_variable_or_flag_names_it() {
    assert_eq!(
        refused_with(URLS, &environment(&[("WALRELAY_DELIVERY_MAX_IN_FLIGHT", "many")])),
        "WALRELAY_DELIVERY_MAX_IN_FLIGHT: delivery.max_in_flight must be an integer, not \"many\""
    );
    assert_eq!(
        refused_with(URLS, &set(&["delivery.max_inflight=5"])),
        "--set: unknown key delivery.max_inflight; did you mean delivery.max_in_flight?"
    );
    assert_eq!(
        refused_with(URLS, &set(&["postgres://u:hunter2@db/shop?sslmode=disable"])),
        "--set: needs KEY=VALUE, as in --set log.level=debug"
    );
    let flags = vec![("--log-format", "log.format", "xml".to_owned())];
    assert_eq!(
        refused_with(
            URLS,
            &Sources {
                flags,
                ..Sources::default()
            }
        ),
        "--log-format: log.format must be text or json, not \"xml\""
    );
}

#[cfg(unix)]
#[test]
fn a_variable_that_is_not_text_is_named() {
    use std::os::unix::ffi::OsStringExt as _;
    let environment = vec![("WALRELAY_POSTGRES_SLOT".into(), OsString::from_vec(vec![0xff]))];
    let error = refused_with(
        URLS,
        &Sources {
            environment,
            ..Sources::default()
        },
    );
    assert_eq!(error, "WALRELAY_POSTGRES_SLOT: is not valid UTF-8 text");
}

#[test]
fn a_validator_refuses_the_value_in_effect_with_its_origin() {
    fn host(text: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        if text.contains('@') {
            Ok(())
        } else {
            Err("it has no user".into())
        }
    }
    let validators: &[Validator] = &[("postgres.url", host)];
    let sources = Sources {
        validators,
        ..set(&["postgres.url=postgres://hunter2"])
    };
    assert_eq!(
        refused_with(URLS, &sources),
        "--set: postgres.url is not valid: it has no user"
    );
    assert!(
        resolve(
            Some((Path::new("x"), URLS)),
            &Sources {
                validators,
                ..Sources::default()
            }
        )
        .is_ok()
    );
}

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

#[test]
fn the_file_is_the_named_one_or_the_first_that_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("b.toml"), "b").expect("written");
    std::fs::write(path("c.toml"), "c").expect("written");
    let search = [path("a.toml"), path("b.toml"), path("c.toml")];
    let found = |sources: &Sources<'_>| find_file(sources, &search).map(|found| found.map(|(_, text)| text));

    assert_eq!(
        found(&Sources::default()).expect("readable").as_deref(),
        Some("b")
    );
    let by_variable = environment(&[(CONFIG_VARIABLE, &path("c.toml").to_string_lossy())]);
    assert_eq!(found(&by_variable).expect("readable").as_deref(), Some("c"));
    let by_flag = Sources {
        file: Some(path("b.toml")),
        ..by_variable
    };
    assert_eq!(found(&by_flag).expect("readable").as_deref(), Some("b"));
    assert_eq!(
        find_file(&Sources::default(), &search[..1]).expect("none is no error"),
        None
    );

    let missing = Sources {
        file: Some(path("a.toml")),
        ..Sources::default()
    };
    let error = found(&missing).expect_err("a named file must exist").to_string();
    assert_eq!(
        error,
        format!(
            "--config: cannot read {}: No such file or directory (os error 2)",
            path("a.toml").display()
        )
    );
}

#[test]
fn what_is_no_configuration_file_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("walrelay.toml");
    std::fs::write(&path, vec![b'#'; 2 * 1024 * 1024]).expect("written");
    assert!(matches!(file::read(&path), Err(ProblemKind::TooLarge { .. })));
    std::fs::write(&path, [b'#', 0xff]).expect("written");
    assert!(matches!(file::read(&path), Err(ProblemKind::Unreadable { .. })));
    assert!(matches!(
        file::read(folder.path()),
        Err(ProblemKind::Unreadable { .. })
    ));
}

/// Pieces of which a file may consist, in any order.
fn pieces() -> impl Strategy<Value = String> {
    let names: Vec<_> = KEYS
        .iter()
        .flat_map(|key| [key.path, key.name(), key.section()])
        .collect();
    let marks = vec![
        "=",
        "\n",
        "[",
        "]",
        "[[",
        "]]",
        ".",
        ",",
        "{",
        "}",
        "'",
        "\"",
        "\"\"\"",
        "'''",
        "#",
        "\\",
        " ",
        "\r\n",
        "é",
        "true",
        "1",
        "-9",
        "0x_",
        "1e5",
        "1979-05-27",
        "\"10s\"",
        "\"32MiB\"",
        "'x'",
        "\u{feff}",
        "inf",
    ];
    let piece = prop_oneof![
        prop::sample::select(names).prop_map(str::to_owned),
        prop::sample::select(marks).prop_map(str::to_owned),
        any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_text_of_a_file_panics(text in pieces()) {
        if let Err(error) = resolve(Some((Path::new("f"), &text)), &Sources::default()) {
            prop_assert!(error.to_string().lines().count() <= 21);
            prop_assert!(error.problems().iter().all(|problem| !problem.to_string().contains('\n')));
        }
    }

    #[test]
    fn no_value_of_a_key_panics(index in 0..KEYS.len(), value in "\\PC{0,20}|[0-9.]{1,30}( ?[a-zA-Zµ]{0,4})") {
        let path = KEYS[index].path;
        let of_flag = resolve(None, &set(&[&format!("{path}={value}")]));
        let of_file = resolve(Some((Path::new("f"), &format!("{path} = {value}"))), &Sources::default());
        prop_assert!(of_flag.is_err() && of_file.is_err(), "neither has both URLs");
    }

    #[test]
    fn a_mask_hides_any_password(password in "[a-z0-9/@:?#%&= '\\\\]{0,8}hunter2[a-z0-9/@:?#%&= '\\\\]{0,8}") {
        for text in [
            format!("postgres://u:{password}@db/shop?sslmode=prefer"),
            format!("postgres://u@db/shop?password={password}"),
            format!("host=db password='{password}' user=u"),
        ] {
            let masked = mask::masked(&text);
            prop_assert!(!masked.contains("hunter2"), "{text} -> {masked}");
        }
    }
}
