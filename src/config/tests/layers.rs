//! What holds when several sources speak, or none.

use std::time::Duration;

use super::*;

#[test]
fn without_anything_set_the_defaults_hold() {
    let Config {
        postgres,
        messages_prefix,
        outbox,
        rabbitmq,
        delivery,
        recovery,
        admin,
        otel,
        log,
    } = loaded(URLS, &Sources::default()).config;
    assert_eq!(
        (&*postgres.slot, &*postgres.publication),
        ("walrelay", "walrelay")
    );
    assert_eq!(postgres.wal_sender_timeout, Duration::from_secs(10));
    assert_eq!(postgres.status_interval, Duration::from_secs(1));
    assert_eq!(postgres.password_file, None);
    assert_eq!(messages_prefix, None);
    assert_eq!(
        outbox,
        [OutboxConfig {
            table: "public.outbox_events".to_owned(),
            keep_sent: None,
            after_publish: None,
            unsent: None,
            mark_set: None,
            preset: Preset::Walrelay,
            columns: ColumnsConfig::default(),
            content: ContentConfig {
                format: MessageFormat::Payload,
                headers: NamedTexts::default(),
                cloudevents_prefix: "cloudEvents:".to_owned(),
                cloudevents_source: None,
                cloudevents_type: "{event_type}".to_owned(),
            },
            exchange: None,
            routing_key: None,
            routes: Vec::new(),
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
        sink: SinkChoice::Rabbitmq,
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
    assert_eq!(recovery.on_slot_lost, OnSlotLost::Halt);
    assert_eq!(otel.endpoint, None);
    assert_eq!(rabbitmq.auth_mechanism, AuthMechanism::Plain);
    assert_eq!((rabbitmq.cert_file, rabbitmq.key_file), (None, None));
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
fn what_the_environment_or_a_flag_sets_of_an_outbox_goes_to_the_only_one_there_is() {
    let one = format!("{URLS}[[outbox]]\ntable = 'a.b'\nexchange = 'own'\nrouting_key = 'file'\n");
    let mut sources = environment(&[
        ("WALRELAY_OUTBOX_ROUTING_KEY", "environment"),
        ("WALRELAY_OUTBOX_FORMAT", "envelope"),
    ]);
    sources.set = vec!["outbox.routing_key=flag".to_owned()];
    let loaded_once = loaded(&one, &sources);
    let [outbox] = loaded_once.config.outbox.as_slice() else {
        panic!("{:?}", loaded_once.config.outbox)
    };
    assert_eq!(
        (
            &*outbox.table,
            outbox.exchange.as_deref(),
            outbox.routing_key.as_deref()
        ),
        ("a.b", Some("own"), Some("flag"))
    );
    assert_eq!(outbox.content.format, MessageFormat::Envelope);
    let of_default = loaded(URLS, &sources).config.outbox;
    assert_eq!(of_default[0].table, "public.outbox_events");
    assert_eq!(of_default[0].routing_key.as_deref(), Some("flag"));
    sources.set.push("outbox.table=c.d".to_owned());
    let of_flags = loaded(&one, &sources).config.outbox;
    assert_eq!(
        (&*of_flags[0].table, of_flags[0].exchange.as_deref()),
        ("c.d", None)
    );
}

#[test]
fn with_several_outboxes_in_the_file_no_other_source_sets_one_of_their_keys() {
    let two = format!("{URLS}[[outbox]]\ntable = 'a.b'\n[[outbox]]\ntable = 'c.d'\n");
    let mut sources = environment(&[("WALRELAY_OUTBOX_EXCHANGE", "x")]);
    let of_exchange = "WALRELAY_OUTBOX_EXCHANGE: there are 2 [[outbox]] tables: set outbox.exchange in the file, in the \
                       one that it is for";
    assert_eq!(refused_with(&two, &sources), of_exchange);
    sources.set = vec!["outbox.columns.id=key".to_owned()];
    assert_eq!(
        refused_with(&two, &sources),
        format!(
            "{of_exchange}\n{}",
            of_exchange
                .replace("WALRELAY_OUTBOX_EXCHANGE", "--set")
                .replace("outbox.exchange", "outbox.columns.id")
        )
    );
}

#[test]
fn every_key_reaches_the_configuration() {
    let of_events = format!("{URLS}[[outbox]]\ntable = 'a.b'\nformat = 'cloudevents-binary'\n");
    for key in KEYS.iter().filter(|key| !key.secret && !key.is_of_route()) {
        let value = match key.kind {
            Kind::Named => "{ \"a.b\" = \"x\", c = \"\" }",
            Kind::Conditions => "{ event_type = 'x' }",
            Kind::Text | Kind::Texts | Kind::Template | Kind::Password | Kind::Field | Kind::Path => "other",
            Kind::Duration { .. } => "4s",
            Kind::Size { .. } => "7777",
            Kind::Integer { .. } => "77",
            Kind::Boolean => "true",
            Kind::Choice(words) => words[words.len() - 1],
            Kind::Address => "[::1]:80",
            Kind::LogLevels => "debug",
        };
        // Of no effect with another format.
        let file = match key.path.starts_with("outbox.cloudevents.") {
            true => of_events.as_str(),
            false => URLS,
        };
        let before = format!("{:?}", loaded(file, &Sources::default()).config);
        // These go together only.
        let partner = match key.path {
            "rabbitmq.cert_file" => "rabbitmq.key_file",
            "rabbitmq.key_file" => "rabbitmq.cert_file",
            "outbox.unsent" => "outbox.mark_set",
            "outbox.mark_set" => "outbox.unsent",
            _ => key.path,
        };
        let both = [partner, key.path].map(|path| format!("{path}={value}"));
        let by_flag = loaded(file, &set(&[&both[0], &both[1]])).config;
        let names = [partner, key.path].map(|path| Key::find(path).unwrap().env_name());
        let variables = [(names[0].as_str(), value), (names[1].as_str(), value)];
        let by_variable = loaded(file, &environment(&variables)).config;
        assert_ne!(format!("{by_flag:?}"), before, "{}", key.path);
        assert_eq!(format!("{by_flag:?}"), format!("{by_variable:?}"), "{}", key.path);
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
fn a_field_is_a_column_a_constant_or_absent() {
    let file = "[[outbox]]\ntable = 'a.b'\n[outbox.columns]\nid = 'key'\nevent_type = { value = 'a \"b\"' }\nsent_at = ''\n";
    let by_file = loaded(&format!("{URLS}{file}"), &Sources::default());
    let columns = ColumnsConfig {
        id: Some(FieldValue::Column("key".to_owned())),
        event_type: Some(FieldValue::Constant("a \"b\"".to_owned())),
        sent_at: Some(FieldValue::Absent),
        ..ColumnsConfig::default()
    };
    assert_eq!(by_file.config.outbox[0].columns, columns);
    let shown = by_file.settings.to_toml();
    assert!(
        shown.contains("event_type = { value = \"a \\\"b\\\"\" }  # "),
        "{shown}"
    );
    let by_flags = set(&[
        "outbox.columns.id=key",
        "outbox.columns.event_type={ value = 'a \"b\"' }",
        "outbox.columns.sent_at=",
    ]);
    assert_eq!(loaded(URLS, &by_flags).config.outbox[0].columns, columns);
}

#[test]
fn a_field_that_cannot_come_from_there_is_refused() {
    for (setting, problem) in [
        (
            "outbox.columns.id=",
            "outbox.columns.id must be the name of a column, not \"\"",
        ),
        (
            "outbox.columns.payload={ value = 'x' }",
            "outbox.columns.payload must be the name of a column, not \"{ value = \\'x\\' }\"",
        ),
        (
            "outbox.columns.event_type=",
            "outbox.columns.event_type must be the name of a column or { value = \"...\" }, not \"\"",
        ),
        (
            "outbox.columns.sent_at={ value = 'x' }",
            "outbox.columns.sent_at must be the name of a column, or \"\" for none, not \"{ value = \\'x\\' }\"",
        ),
        (
            "outbox.columns.priority={ valu = 'x' }",
            "outbox.columns.priority must be a column's name in quotes or { value = \"...\" }, not \"{ valu = \\'x\\' }\"",
        ),
    ] {
        let shown = refused_with(URLS, &set(&[setting]));
        assert_eq!(shown, format!("--set: {problem}"), "{setting}");
    }
}

#[test]
fn a_constant_of_a_file_is_refused_where_a_column_is_needed() {
    for (field, expected) in [
        ("id", "the name of a column"),
        ("payload", "the name of a column"),
        ("headers", "the name of a column, or \"\" for none"),
        ("created_at", "the name of a column, or \"\" for none"),
        ("sent_at", "the name of a column, or \"\" for none"),
    ] {
        let file = format!("[[outbox]]\ntable = 'a.b'\n[outbox.columns]\n{field} = {{ value = \"7\" }}\n");
        assert_eq!(
            error_of(&file),
            format!("walrelay.toml:6: outbox.columns.{field} must be {expected}, not {{ value = \"7\" }}")
        );
    }
}
