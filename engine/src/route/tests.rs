//! Templates and rules against rows.

use proptest::prelude::*;

use super::*;
use crate::event::{Columns, Content, InvalidRow, MappingError, OutboxTable, Route, Source};
use crate::pgoutput::sample::{Cell, Sample};
use crate::pgoutput::{Insert, Message, Tuple, read_relation, relation_of};
use crate::policy::Policy;

/// Renders a template of the columns `a`, `b` and `c` for one row.
fn render(template: &str, row: [Cell; 3]) -> Result<String, RenderError> {
    let bound = Template::parse(template).unwrap().bind(|name| {
        let mut columns = ["a", "b", "c"].iter();
        columns.position(|column| *column == name).map(Bound::Column)
    });
    with_row(row.to_vec(), |row| {
        let mut out = "what was there before".to_owned();
        bound.unwrap().render(row, &mut out).map(|()| out)
    })
}

fn with_row<T>(new: Vec<Cell>, check: impl FnOnce(&Tuple<'_>) -> T) -> T {
    let frame = Sample::Insert { oid: 1, new }.encode();
    let Ok(Message::Insert(Insert { new, .. })) = Message::decode(&frame) else {
        panic!("not an insert")
    };
    check(&new)
}

fn text(value: &str) -> Cell {
    Cell::Text(value.as_bytes().to_vec())
}

#[test]
fn a_template_is_rendered_with_the_columns_of_the_row() {
    let row = || [text("order"), text(""), text("ü.{b}")];
    for (template, rendered) in [
        ("{a}.{c}", "order.ü.{b}"),
        ("{c}{a}{a}", "ü.{b}orderorder"),
        ("shop.{b}.x", "shop..x"),
        ("{{{a}}}", "{order}"),
        ("constant", "constant"),
        ("", ""),
    ] {
        assert_eq!(render(template, row()).as_deref(), Ok(rendered), "{template}");
    }
}

#[test]
fn a_value_inside_json_is_rendered_as_it_is_written() {
    let row = || {
        let json =
            r#"{"country": "D\u0045", "total": 10.50, "vip": true, "none": null, "list": [{"sku": "A.1"}]}"#;
        [text(json), text("no json"), Cell::Null]
    };
    for (template, rendered) in [
        ("{a.country}.{a.vip}.{a.total}", "DE.true.10.50"),
        ("{a.country|lower}.{a.list.0.sku|kebab}", "de.a.1"),
        ("{a.none|default:}", ""),
        ("{a.town|upper|default:Un known|lower|snake_case}", "un_known"),
        ("{c.country|default:none}.{c|default:x}", "none.x"),
        ("{a.list.1|default:}", ""),
    ] {
        assert_eq!(render(template, row()).as_deref(), Ok(rendered), "{template}");
    }
    for (template, reference, fault) in [
        ("{a.none}", "a.none", ValueFault::Missing),
        ("{a.town|lower}", "a.town", ValueFault::Missing),
        ("{c.town}", "c.town", ValueFault::Missing),
        ("{a.list|default:x}", "a.list", ValueFault::Nested),
        ("{b.town|default:x}", "b.town", ValueFault::NotJson),
    ] {
        let reference = reference.to_owned();
        assert_eq!(
            render(template, row()),
            Err(RenderError { reference, fault }),
            "{template}"
        );
    }
}

#[test]
fn filters_change_one_value_and_no_other() {
    let row = || [text("ShopOrder"), text("Größe"), text("x_Y z")];
    for (template, rendered) in [
        ("{a|snake_case}.{a}", "shop_order.ShopOrder"),
        (
            "{a|snake}{a|kebab_case}{a|kebab}",
            "shop_ordershop-ordershop-order",
        ),
        ("{b|upper}.{b|lower}", "GRÖSSE.größe"),
        ("{a|lower|snake_case}", "shoporder"),
        ("{c|kebab_case|upper}", "X-Y-Z"),
        ("{c|default:other}", "x_Y z"),
    ] {
        assert_eq!(render(template, row()).as_deref(), Ok(rendered), "{template}");
    }
}

#[test]
fn a_column_without_a_usable_value_is_named() {
    let row = |cell| [text("order"), Cell::Null, cell];
    let error = |reference: &str, fault| {
        let reference = reference.to_owned();
        Err(RenderError { reference, fault })
    };
    assert_eq!(render("{a}.{b}", row(text("x"))), error("b", ValueFault::Missing));
    assert_eq!(render("{a}.{c}", row(text("x"))).as_deref(), Ok("order.x"));
    assert_eq!(
        render("{c}", row(Cell::Unchanged)),
        error("c", ValueFault::Missing)
    );
    let not_utf8 = || Cell::Text(vec![0xFF]);
    assert_eq!(
        render("{c|lower}", row(not_utf8())),
        error("c", ValueFault::NotUtf8)
    );
    assert_eq!(
        render("{c.x|default:y}", row(not_utf8())),
        error("c.x", ValueFault::NotUtf8)
    );
}

#[test]
fn a_template_is_literals_and_columns() {
    let template = Template::parse("shop.{aggregate_type}.{payload.x.0|lower}").unwrap();
    assert_eq!(
        template.columns().collect::<Vec<_>>(),
        ["aggregate_type", "payload"]
    );
    let references: Vec<_> = template.references().map(ToString::to_string).collect();
    assert_eq!(references, ["aggregate_type", "payload.x.0"]);
    assert_eq!(template.as_constant(), None);
    assert_eq!(Template::parse("").unwrap().as_constant(), Some(""));
    assert_eq!(
        Template::parse("{{outbox}}").unwrap().as_constant(),
        Some("{outbox}")
    );
    assert_eq!(Template::constant("{x}").as_constant(), Some("{x}"));
}

#[test]
fn a_fault_is_named_with_its_place() {
    for (text, position, length, fault) in [
        ("a{b", 2, 1, "`{` without its `}`"),
        ("ab}", 3, 1, "`}` without its `{` (write `}}` for a brace)"),
        ("{}", 1, 1, "a column's name is missing"),
        ("ü{|lower}", 2, 1, "a column's name is missing"),
        ("ü{a b}", 4, 1, "a column's name has letters, digits and `_` only"),
        ("{a{b}", 3, 1, "a column's name has letters, digits and `_` only"),
        ("{payload..x}", 9, 1, "a name is missing after the dot"),
        ("{payload.}", 9, 1, "a name is missing after the dot"),
        (
            "{payload.a b}",
            11,
            1,
            "a name in a path has no space, quote, brace or bracket",
        ),
        ("{a|}", 3, 1, "a filter's name is missing after the `|`"),
        (
            "{a|lower|snak}",
            10,
            4,
            "there is no such filter: there are default:TEXT, kebab_case, lower, snake_case and upper",
        ),
        (
            "{a|default}",
            4,
            7,
            "the filter needs a text, as in `default:none`",
        ),
        ("{a|default:x{y}", 13, 1, "`{` without its `}`"),
        ("{a|lower:x}", 9, 2, "the filter takes no text"),
        (
            "{event_type | lower}",
            12,
            1,
            "no spaces around `|`, as in `{event_type|lower}`",
        ),
        (
            "{a| lower}",
            4,
            1,
            "no spaces around `|`, as in `{event_type|lower}`",
        ),
        (
            "{a|lower |upper}",
            9,
            1,
            "no spaces around `|`, as in `{event_type|lower}`",
        ),
        (
            "{payload.x |lower}",
            11,
            1,
            "no spaces around `|`, as in `{event_type|lower}`",
        ),
    ] {
        let error = Template::parse(text).unwrap_err();
        let place = (error.position, error.length);
        assert_eq!(
            (error.fault().as_str(), place),
            (fault, (position, length)),
            "{text}"
        );
    }
    let deep = format!("{{payload{}}}", ".x".repeat(17));
    assert_eq!(
        Template::parse(&deep).unwrap_err().to_string(),
        "a path has 16 names at most at character 42 of the template"
    );
}

#[test]
fn an_unknown_column_is_named() {
    let template = Template::parse("{event_type}.{colour.x|lower}").unwrap();
    let index_of = |name: &str| (name == "event_type").then_some(Bound::Column(3));
    assert_eq!(template.bind(index_of), Err("colour".to_owned()));
}

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

proptest! {
    #![proptest_config(crate::property::config())]

    #[test]
    fn any_text_is_parsed_or_refused_with_a_place_inside(text in "[a-z{}_.|: ü]{0,20}|\\PC{0,20}|(\\{[ab](\\.[x0]){0,3}(\\|(lower|snake|default:z|x)){0,2}\\}){0,3}") {
        match Template::parse(&text) {
            Ok(template) => {
                prop_assert_eq!(template.as_constant().is_some(), template.columns().count() == 0);
            }
            Err(error) => {
                let length = text.chars().count();
                prop_assert!(error.position >= 1 && error.length >= 1);
                prop_assert!(error.position + error.length <= length + 1, "{:?} in {:?}", error, text);
            }
        }
    }

    #[test]
    fn a_reference_is_printed_as_it_is_written(text in "[a-z_]{1,5}(\\.[a-z0-9_-]{1,5}){0,4}") {
        let reference = Reference::parse(&text).unwrap();
        prop_assert_eq!(reference.to_string(), text.clone());
        let template = Template::parse(&format!("{{{text}}}")).unwrap();
        prop_assert_eq!(template.references().next(), Some(&reference));
    }
}
