//! The list below an `[[outbox]]`, and templates that are shown with their fault.

use super::*;

const ROUTES: &str = "[[outbox]]
table = 'a.b'
exchange = 'own'
[[outbox.route]]
when = { aggregate_type = 'order', payload.country = ['DE', 'A*'], 'payload.vip' = true, \"payload.a-b.0\" = 7 }
exchange = 'orders'
on_unroutable = 'discard'
[[outbox.route]]
when = { event_type = 'paid' }
routing_key = 'paid'
[outbox.columns]
id = 'key'
[[outbox]]
table = 'c.d'
";

fn condition(of: &str, any_of: &[&str]) -> ConditionValue {
    ConditionValue {
        of: of.to_owned(),
        any_of: any_of.iter().map(|text| (*text).to_owned()).collect(),
    }
}

fn sorted(mut conditions: Vec<ConditionValue>) -> Vec<ConditionValue> {
    conditions.sort_by(|a, b| a.of.cmp(&b.of));
    conditions
}

#[test]
fn rules_belong_to_the_table_above_them() {
    let config = loaded(&format!("{URLS}{ROUTES}"), &Sources::default()).config;
    let [first, second] = config.outbox.as_slice() else {
        panic!("{:?}", config.outbox)
    };
    assert_eq!(
        (first.exchange.as_deref(), second.exchange.as_deref()),
        (Some("own"), None)
    );
    assert_eq!(first.columns.id, Some(FieldValue::Column("key".to_owned())));
    assert_eq!((first.routes.len(), second.routes.len()), (2, 0));
    let rule = &first.routes[0];
    assert_eq!(
        sorted(rule.when.clone()),
        [
            condition("aggregate_type", &["order"]),
            condition("payload.a-b.0", &["7"]),
            condition("payload.country", &["DE", "A*"]),
            condition("payload.vip", &["true"]),
        ]
    );
    assert_eq!(rule.exchange.as_deref(), Some("orders"));
    assert_eq!(
        (&rule.routing_key, rule.on_unroutable),
        (&None, Some(FailurePolicy::Discard))
    );
    assert_eq!(first.routes[1].routing_key.as_deref(), Some("paid"));
}

#[test]
fn rules_are_shown_as_a_configuration_file_with_origins() {
    let loaded_once = loaded(&format!("{URLS}{ROUTES}"), &Sources::default());
    let shown = loaded_once.settings.to_toml();
    for line in [
        "[[outbox.route]]",
        "exchange = \"own\"  # walrelay.toml:5",
        "exchange = \"orders\"  # walrelay.toml:8",
        "routing_key = \"paid\"  # walrelay.toml:12",
        "when = { event_type = \"paid\" }  # walrelay.toml:11",
    ] {
        assert!(
            shown.lines().any(|shown| shown == line),
            "{line} is not in\n{shown}"
        );
    }
    assert!(
        shown.contains("\"payload.country\" = [\"DE\", \"A*\"]"),
        "{shown}"
    );
    let again = loaded(&shown, &Sources::default()).config.outbox;
    for (again, once) in again.into_iter().zip(loaded_once.config.outbox) {
        for (again, once) in again.routes.into_iter().zip(once.routes) {
            assert_eq!(sorted(again.when), sorted(once.when));
            assert_eq!(
                (again.exchange, again.routing_key),
                (once.exchange, once.routing_key)
            );
        }
    }
}

#[test]
fn what_is_wrong_with_a_rule_names_its_line() {
    let rule = |text: &str| error_of(&format!("[[outbox]]\ntable = 'a.b'\n{text}"));
    for (text, error) in [
        (
            "[[outbox.route]]\nexchange = 'x'\n",
            "walrelay.toml:5: [[outbox.route]] has no when; write when = { aggregate_type = \"order\" } below it",
        ),
        (
            "[outbox.route]\nwhen = {}\n",
            "walrelay.toml:5: outbox.route must be written with two brackets, as [[outbox.route]]",
        ),
        (
            "route = [1]\n",
            "walrelay.toml:5: outbox.route must be a list of tables, as [[outbox.route]]",
        ),
        (
            "[[outbox.route]]\nwhen = { a = 'b' }\nexchang = 'x'\n",
            "walrelay.toml:7: unknown key outbox.route.exchang; did you mean outbox.route.exchange?",
        ),
        (
            "[[outbox.route]]\nwhen = {}\n",
            "walrelay.toml:6: outbox.route.when must be a table of columns and what each must be, as { aggregate_type = \
             \"order\", event_type = [\"paid\", \"refund*\"] }, not an empty table",
        ),
        (
            "[[outbox.route]]\nwhen = { a = 1.5 }\n",
            "walrelay.toml:6: outbox.route.when must be a table of columns and what each must be, as { aggregate_type = \
             \"order\", event_type = [\"paid\", \"refund*\"] }, not a table in which `a` is the number 1.5",
        ),
        (
            "[[outbox.route]]\nwhen = 'order'\n",
            "walrelay.toml:6: outbox.route.when must be a table of columns and what each must be, as { aggregate_type = \
             \"order\", event_type = [\"paid\", \"refund*\"] }, not \"order\"",
        ),
        (
            "[[outbox.route]]\nwhen = { a = 'b' }\non_unroutable = 'drop'\n",
            "walrelay.toml:7: outbox.route.on_unroutable must be hold, dead_letter or discard, not \"drop\"",
        ),
    ] {
        assert_eq!(rule(text), error, "{text}");
    }
}

#[test]
fn a_variable_or_a_flag_that_would_set_a_rule_is_told_where_it_belongs() {
    let end = "can be set in a configuration file only, where [[outbox.route]] can be there several times";
    for key in KEYS.iter().filter(|key| key.is_of_route()) {
        assert_eq!(
            refused_with(URLS, &set(&[&format!("{}=x", key.path)])),
            format!("--set: {} {end}", key.path)
        );
        let name = key.env_name();
        assert_eq!(
            refused_with(URLS, &environment(&[(&name, "x")])),
            format!("{name}: {} {end}", key.path)
        );
    }
}

/// Refuses a text with a `!` in it, there.
fn check(text: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let Some(place) = text.chars().position(|c| c == '!') else {
        return Ok(());
    };
    Err(Box::new(Pointed {
        text: text.to_owned(),
        position: place + 1,
        length: text.chars().filter(|c| *c == '!').count(),
        why: "no exclamations".to_owned(),
    }))
}

#[test]
fn a_fault_inside_a_text_is_shown_with_a_caret_below_it() {
    let sources = Sources {
        validators: &[
            ("outbox.route.routing_key", check),
            ("outbox.route.when", check),
            ("rabbitmq.routing_key", check),
        ],
        ..Sources::default()
    };
    let refused = |text: &str| refused_with(&format!("{URLS}{text}"), &sources);
    assert_eq!(
        refused("rabbitmq.routing_key = 'ü.{a}!!'\nlog.level = 'info'\n"),
        "walrelay.toml:3: rabbitmq.routing_key is not valid: no exclamations\n    ü.{a}!!\n         ^^"
    );
    let rules =
        "[[outbox]]\ntable = 'a.b'\n[[outbox.route]]\nwhen = { a = 'b', c! = 'd' }\nrouting_key = \"\\t!\"\n";
    let rules = rules.replace("c!", "'c!'");
    assert_eq!(
        refused(&rules),
        "walrelay.toml:6: outbox.route.when (item 2) is not valid: no exclamations\n    c!\n     ^\n\
         walrelay.toml:7: outbox.route.routing_key is not valid: no exclamations\n     !\n     ^"
    );
}

#[test]
fn of_a_long_text_what_stands_around_the_fault_is_shown() {
    let sources = Sources {
        validators: &[("rabbitmq.routing_key", check)],
        ..Sources::default()
    };
    let text = format!(
        "{URLS}rabbitmq.routing_key = '{}!{}'",
        "é".repeat(200),
        "b".repeat(200)
    );
    let error = refused_with(&text, &sources);
    let lines: Vec<_> = error.lines().collect();
    let [_, shown, carets] = lines.as_slice() else {
        panic!("{error}")
    };
    assert!(
        shown.chars().count() < 110 && shown.starts_with("    …é") && shown.ends_with("b…"),
        "{shown}"
    );
    let place = |line: &str, wanted| line.chars().position(|c| c == wanted);
    assert_eq!(place(shown, '!'), place(carets, '^'));
}

#[test]
fn a_member_that_is_no_condition_or_no_header_is_named() {
    let rule = |when: &str| {
        error_of(&format!(
            "[[outbox]]\ntable = 'a.b'\n[[outbox.route]]\nwhen = {when}\n"
        ))
    };
    for (when, found) in [
        (
            "{ event_type = [] }",
            "a table in which `event_type` is an empty list",
        ),
        (
            "{ a = 'b', payload.x = {} }",
            "a table in which `payload.x` is an empty table",
        ),
        ("{ a = ['b', 1.5] }", "a table in which `a` holds the number 1.5"),
        (
            "{ event_type = 're*fund' }",
            "a table in which `event_type` is \"re*fund\", with a `*` that is not at the end",
        ),
        (
            "{ event_type = ['paid', '*fund*'] }",
            "a table in which `event_type` holds \"*fund*\", with a `*` that is not at the end",
        ),
    ] {
        let error = rule(when);
        assert!(
            error.starts_with("walrelay.toml:6: outbox.route.when must be a table"),
            "{error}"
        );
        assert!(error.ends_with(&format!(" }}, not {found}")), "{error}");
    }
    let header = |headers: &str| error_of(&format!("[[outbox]]\ntable = 'a.b'\nheaders = {headers}\n"));
    assert_eq!(
        header("{ m = 'x', n = 5 }"),
        "walrelay.toml:5: outbox.headers must be a table of names, each with a text in quotes, not a table in which `n` is \
         the number 5"
    );
    assert_eq!(
        header("{ '' = 'x' }"),
        "walrelay.toml:5: outbox.headers must be headers whose names have 1 to 255 bytes, not an empty name"
    );
}
