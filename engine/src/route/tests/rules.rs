//! Rules: which exchange and routing key a row gets.

use super::*;
use crate::event::{Columns, Content, InvalidRow, MappingError, OutboxTable, Route, Source};
use crate::pgoutput::{read_relation, relation_of};
use crate::policy::Policy;

const COLUMNS: [(&str, u32); 5] = [
    ("aggregate_type", 25),
    ("event_type", 25),
    ("payload", 114),
    ("own_key", 25),
    ("own_exchange", 25),
];

fn rule(when: &[(&str, &[&str])], exchange: &str, on_unroutable: Option<Policy>) -> Rule {
    let when = when.iter().map(|(reference, any_of)| {
        Condition::new(Reference::parse(reference).unwrap(), any_of.iter().copied())
    });
    Rule {
        when: when.collect(),
        exchange: Template::parse(exchange).unwrap(),
        routing_key: Template::parse("{event_type|lower}")
            .unwrap()
            .of(Setting::of_rule("outbox.route.routing_key", 1)),
        on_unroutable,
    }
}

fn table(rules: Vec<Rule>, columns: Columns) -> OutboxTable {
    OutboxTable {
        schema: "public".to_owned(),
        name: "outbox_events".to_owned(),
        columns,
        route: Route {
            exchange: Template::parse("events").unwrap(),
            routing_key: Template::parse("{aggregate_type}").unwrap(),
            rules,
        },
        content: Content::default(),
        after_publish: None,
    }
}

fn bind(table: &OutboxTable) -> Result<Router, MappingError> {
    let relation = relation_of("public", "outbox_events", COLUMNS.into_iter());
    Router::bind(&read_relation(&relation).unwrap(), table)
}

/// Exchange, routing key, rule and policy of a row.
fn routed(
    table: &OutboxTable,
    row: [Cell; 5],
) -> Result<(String, String, Option<usize>, Option<Policy>), String> {
    let router = bind(table).unwrap();
    let mut out = Destination {
        rule: Some(99),
        on_unroutable: Some(Policy::Hold),
        ..Destination::default()
    };
    with_row(row.to_vec(), |row| router.route(row, &mut out)).map_err(|error| error.to_string())?;
    Ok((out.exchange, out.routing_key, out.rule, out.on_unroutable))
}

fn row(aggregate_type: &str, event_type: &str, payload: &str) -> [Cell; 5] {
    [
        text(aggregate_type),
        text(event_type),
        text(payload),
        Cell::Null,
        Cell::Null,
    ]
}

#[test]
fn the_first_rule_that_a_row_meets_counts_and_without_one_the_tables_own_route() {
    let table = table(
        vec![
            rule(
                &[
                    ("aggregate_type", &["order"]),
                    ("payload.country", &["DE", "A*", "\""]),
                ],
                "near",
                Some(Policy::Discard),
            ),
            rule(
                &[("aggregate_type", &["order"])],
                "far.{payload.country|default:x}",
                None,
            ),
            rule(&[("event_type", &["Sent*"])], "sent", None),
        ],
        Columns::default(),
    );
    let own = |key: &str| Ok(("events".to_owned(), key.to_owned(), None, None));
    let of = |exchange: &str, key: &str, rule, policy| {
        Ok((exchange.to_owned(), key.to_owned(), Some(rule), policy))
    };
    let near = of("near", "created", 0, Some(Policy::Discard));
    assert_eq!(
        routed(&table, row("order", "Created", r#"{"country": "DE"}"#)),
        near
    );
    assert_eq!(
        routed(&table, row("order", "Created", r#"{"country": "\u0041T"}"#)),
        near
    );
    assert_eq!(
        routed(&table, row("order", "Created", r#"{"country": "\""}"#)),
        near
    );
    let far = |country: &str| of(&format!("far.{country}"), "created", 1, None);
    assert_eq!(
        routed(&table, row("order", "Created", r#"{"country": "DEU"}"#)),
        far("DEU")
    );
    assert_eq!(
        routed(&table, row("order", "Created", r#"{"country": null}"#)),
        far("x")
    );
    let sent = of("sent", "sentlate", 2, None);
    assert_eq!(routed(&table, row("invoice", "SentLate", "{}")), sent);
    assert_eq!(routed(&table, row("invoice", "Paid", "{}")), own("invoice"));
    assert_eq!(routed(&table, row("Order", "Paid", "{}")), own("Order"));
}

#[test]
fn a_rule_that_cannot_be_decided_makes_the_row_invalid() {
    let rules = vec![
        rule(&[("event_type", &["Created"])], "created", None),
        rule(&[("payload.list", &["x"])], "list", None),
    ];
    let table = table(rules, Columns::default());
    let error = "{payload.list} cannot be looked up: the column holds no JSON, which outbox.route.when (rule 2) asks for";
    assert_eq!(
        routed(&table, row("order", "Paid", "text")),
        Err(error.to_owned())
    );
    // The first rule is enough, and no object is equal to a text.
    assert_eq!(
        routed(&table, row("order", "Created", "text")).unwrap().0,
        "created"
    );
    assert_eq!(
        routed(&table, row("order", "Paid", r#"{"list": ["x"]}"#))
            .unwrap()
            .0,
        "events"
    );
}

#[test]
fn a_key_of_255_bytes_is_the_longest() {
    let table = table(Vec::new(), Columns::default());
    let of = |length: usize| routed(&table, row(&"ü".repeat(length / 2), "x", "{}"));
    assert_eq!(of(254).unwrap().1.len(), 254);
    assert_eq!(
        of(256),
        Err("routing key has 256 bytes, AMQP allows 255: shorten it".to_owned())
    );
}

#[test]
fn an_error_names_the_setting_of_its_template() {
    let table = table(
        vec![rule(&[("aggregate_type", &["order"])], "x", None)],
        Columns::default(),
    );
    let mut row = row("order", "", "{}");
    row[1] = Cell::Null;
    let error = "{event_type} is null or missing, which outbox.route.routing_key (rule 1) asks for";
    assert_eq!(routed(&table, row), Err(error.to_owned()));
}

#[test]
fn a_column_of_its_own_counts_before_rule_and_template_where_it_has_a_value() {
    let columns = Columns {
        routing_key: Source::Column("own_key".to_owned()),
        exchange: Source::Column("own_exchange".to_owned()),
        ..Columns::default()
    };
    let table = table(
        vec![rule(
            &[("aggregate_type", &["order"])],
            "rule",
            Some(Policy::DeadLetter),
        )],
        columns,
    );
    let mut row = row("order", "Created", "{}");
    row[3] = text("own {key}");
    let (exchange, key, rule, policy) = routed(&table, row.clone()).unwrap();
    assert_eq!((exchange.as_str(), key.as_str()), ("rule", "own {key}"));
    assert_eq!((rule, policy), (Some(0), Some(Policy::DeadLetter)));
    row[4] = text("");
    assert_eq!(routed(&table, row.clone()).unwrap().0, "");
    row[4] = Cell::Text(vec![0xFF]);
    assert_eq!(
        routed(&table, row),
        Err("column \"own_exchange\" is not UTF-8".to_owned())
    );
}

#[test]
fn what_is_the_same_for_every_row_is_decided_once() {
    let columns = Columns {
        aggregate_type: Source::Constant("order".to_owned()),
        exchange: Source::Constant("{fixed}".to_owned()),
        ..Columns::default()
    };
    let rules = vec![
        rule(&[("aggregate_type", &["invoice"])], "a", None),
        rule(&[("aggregate_type", &["ord*"])], "b", None),
    ];
    let table = table(rules, columns);
    assert_eq!(
        routed(&table, row("whatever", "Created", "{}")),
        Ok(("{fixed}".to_owned(), "created".to_owned(), Some(1), None))
    );
}

#[test]
fn a_missing_column_of_a_rule_names_its_setting() {
    let of = |rules| bind(&table(rules, Columns::default())).unwrap_err().to_string();
    assert_eq!(
        of(vec![rule(&[("colour", &["red"])], "x", None)]),
        "table public.outbox_events has no column \"colour\", which outbox.route.when (rule 1) names"
    );
    assert_eq!(
        of(vec![rule(&[], "{shade}", None)]),
        "table public.outbox_events has no column \"shade\", which rabbitmq.exchange names"
    );
    let columns = Columns {
        exchange: Source::Column("nowhere".to_owned()),
        ..Columns::default()
    };
    let error = bind(&table(Vec::new(), columns)).unwrap_err();
    assert!(
        matches!(
            error,
            MappingError::ColumnMissing {
                field: "exchange",
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(
        InvalidRow::NotUtf8("x".to_owned()).to_string(),
        "column \"x\" is not UTF-8"
    );
}

#[test]
fn more_values_than_are_kept_are_looked_up_all_the_same() {
    let names: Vec<_> = (0..12).map(|n| format!("payload.k{n}")).collect();
    let rules = names.iter().map(|name| rule(&[(name, &["yes"])], name, None));
    let table = table(rules.collect(), Columns::default());
    for wanted in 0..12 {
        let payload = format!("{{\"k{wanted}\": \"yes\"}}");
        let found = routed(&table, row("order", "Created", &payload)).unwrap();
        assert_eq!(found.2, Some(wanted));
    }
}
