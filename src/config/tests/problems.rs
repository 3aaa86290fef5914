//! What is wrong, and how it is said.

use std::path::Path;

use super::*;

#[test]
fn an_unknown_key_names_file_line_key_and_the_nearest() {
    assert_eq!(
        error_of("\n\n[delivery]\n\nmax_inflight = 5\n"),
        "walrelay.toml:7: unknown key delivery.max_inflight; did you mean delivery.max_in_flight?"
    );
    assert_eq!(
        error_of("delivery.backoff_multiplier = 5\n"),
        "walrelay.toml:3: unknown key delivery.backoff_multiplier; known keys of delivery are sink, max_in_flight, \
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
        "walrelay.toml:3: unknown key \"log\\nlevel\"; known tables are postgres, source.messages, outbox, outbox.cloudevents, outbox.columns, outbox.retention, outbox.route, rabbitmq, \
         rabbitmq.declare, rabbitmq.stream, delivery, recovery, admin, otel, log"
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
            "log.level must be error, warn, info, debug, trace or off, or such by target as in \"info,walrelay::rabbitmq=debug\", \
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
        (
            "outbox = [{ table = 'a.b', columns = { id = { value = '7' } } }]",
            "outbox.columns.id must be the name of a column, not { value = \"7\" }",
        ),
        (
            "outbox = [{ table = 'a.b', columns = { sent_at = { value = 'now' } } }]",
            "outbox.columns.sent_at must be the name of a column, or \"\" for none, not { value = \"now\" }",
        ),
    ] {
        assert_eq!(error_of(text), format!("walrelay.toml:3: {error}"));
    }
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
        "no configuration file: neither ./walrelay.toml nor /etc/walrelay/walrelay.toml exists; --config FILE names \
         another\n\
         postgres.url is not set: write url under [postgres] in walrelay.toml, or set WALRELAY_POSTGRES_URL, or pass \
         --set postgres.url=...\n\
         rabbitmq.uri is not set: write uri under [rabbitmq] in walrelay.toml, or set WALRELAY_RABBITMQ_URI, or pass \
         --set rabbitmq.uri=..."
    );
}

#[test]
fn a_broker_is_asked_for_only_where_messages_go_to_one() {
    let text = "postgres.url = 'postgres://u@db/shop'\n[delivery]\nsink = 'stdout'\n";
    let config = loaded(text, &Sources::default()).config;
    assert_eq!(config.delivery.sink, SinkChoice::Stdout);
    assert!(config.rabbitmq.uris.is_empty());
    let error = refused_with(text, &set(&["delivery.sink=rabbitmq"]));
    assert!(error.starts_with("rabbitmq.uri is not set: "), "{error}");
    let error = refused_with(text, &set(&["delivery.sink=kafka"]));
    assert_eq!(
        error,
        "--set: delivery.sink must be rabbitmq or stdout, not \"kafka\""
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
fn attributes_of_a_cloud_event_contradict_another_format() {
    let with = |format: &str, key: &str| {
        let text =
            format!("{URLS}[[outbox]]\ntable = 'a.b'\nformat = '{format}'\n[outbox.cloudevents]\n{key}\n");
        let file = Some((Path::new("walrelay.toml"), text.as_str()));
        resolve(file, &Sources::default())
            .err()
            .map(|error| error.to_string())
    };
    for (format, key, formats) in [
        (
            "payload",
            "source = '//shop'",
            "cloudevents-binary\" or \"cloudevents-structured",
        ),
        (
            "envelope",
            "type = 'x.{event_type}'",
            "cloudevents-binary\" or \"cloudevents-structured",
        ),
        ("cloudevents-structured", "prefix = 'ce-'", "cloudevents-binary"),
    ] {
        let name = key.split(' ').next().unwrap();
        assert_eq!(
            with(format, key),
            Some(format!(
                "walrelay.toml:7: outbox.cloudevents.{name} has no effect with the table's format = \"{format}\": \
                 set format = \"{formats}\", or leave it out"
            ))
        );
        assert_eq!(with("cloudevents-binary", key), None);
    }
    // As in the sample: what is the default anyway promises nothing.
    assert_eq!(
        with("payload", "prefix = 'cloudEvents:'\ntype = '{event_type}'"),
        None
    );
    let flag = set(&["outbox.cloudevents.source=//shop"]);
    assert_eq!(
        refused_with(URLS, &flag),
        "--set: outbox.cloudevents.source has no effect with the table's format = \"payload\": \
         set format = \"cloudevents-binary\" or \"cloudevents-structured\", or leave it out"
    );
}
