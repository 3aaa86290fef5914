//! A value inside JSON, found by its path: the text is gone over once and nothing of it is copied.

use super::reference::Text;
use crate::json::{Scanner, Unescaped, is_text};

/// How many names a path may have. It bounds the recursion: only containers on the path are entered, all others are
/// passed over however deep they are.
pub(super) const MAX_STEPS: usize = 16;

/// One name of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    /// The key of an object.
    name: String,
    /// The place in an array, where the name can be one.
    index: Option<usize>,
}

impl Step {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            index: name.parse().ok(),
        }
    }

    /// The name as it was written.
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

/// What stands at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found<'a> {
    /// A text, or a number, `true` or `false` as it is written.
    Text(Text<'a>),
    /// Nothing, or `null`.
    Missing,
    /// An object or an array.
    Nested,
    /// A text with an escape that stands for no character, such as half of a surrogate pair.
    BadEscape,
}

/// Looks a path up. Of keys that come twice the last counts, as everywhere. `None`: it is no JSON.
pub(super) fn find<'a>(json: &'a str, path: &[Step]) -> Option<Found<'a>> {
    let mut scanner = Scanner { rest: json };
    scanner.skip_space();
    if scanner.rest.starts_with(['{', '[']) {
        let found = within(&mut scanner, path)?;
        return scanner.is_at_end().then_some(found);
    }
    // There is nothing inside a text, a number, `true`, `false` or `null`.
    let raw = scanner.rest.trim_ascii_end();
    (raw.starts_with('"') || is_scalar(raw)).then_some(Found::Missing)
}

/// Whether it is a number, `true`, `false` or `null`, as far as its beginning tells.
fn is_scalar(raw: &str) -> bool {
    matches!(raw, "true" | "false" | "null") || raw.starts_with(|c: char| c == '-' || c.is_ascii_digit())
}

fn within<'a>(scanner: &mut Scanner<'a>, path: &[Step]) -> Option<Found<'a>> {
    let Some((step, rest)) = path.split_first() else {
        return leaf(scanner);
    };
    let mut found = Found::Missing;
    if scanner.take('{') {
        if scanner.take('}') {
            return Some(found);
        }
        loop {
            let key = scanner.string()?;
            scanner.expect(':')?;
            if is_text(key, &step.name) {
                found = within(scanner, rest)?;
            } else {
                scanner.value()?;
            }
            if scanner.take('}') {
                return Some(found);
            }
            scanner.expect(',')?;
        }
    }
    if scanner.take('[') {
        if scanner.take(']') {
            return Some(found);
        }
        let mut index = 0_usize;
        loop {
            if step.index == Some(index) {
                found = within(scanner, rest)?;
            } else {
                scanner.value()?;
            }
            if scanner.take(']') {
                return Some(found);
            }
            scanner.expect(',')?;
            index = index.checked_add(1)?;
        }
    }
    scanner.value()?;
    Some(found)
}

/// The value that the path leads to.
fn leaf<'a>(scanner: &mut Scanner<'a>) -> Option<Found<'a>> {
    scanner.skip_space();
    let from = scanner.rest;
    if let Some(raw) = scanner.value()? {
        let is_escaped = raw.contains('\\');
        if is_escaped && !Unescaped(raw).all(|c| c.is_some()) {
            return Some(Found::BadEscape);
        }
        return Some(Found::Text(Text { raw, is_escaped }));
    }
    if from.starts_with(['{', '[']) {
        return Some(Found::Nested);
    }
    let raw = from.get(..from.len().checked_sub(scanner.rest.len())?)?;
    if !is_scalar(raw) {
        return None;
    }
    Some(match raw {
        "null" => Found::Missing,
        raw => Found::Text(Text {
            raw,
            is_escaped: false,
        }),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value as Json};

    use super::*;

    fn path(text: &str) -> Vec<Step> {
        text.split('.').map(Step::new).collect()
    }

    /// What a path leads to, as a text: of other things their name.
    fn found(json: &str, at: &str) -> Option<String> {
        Some(match find(json, &path(at))? {
            Found::Text(text) => {
                let mut out = String::new();
                text.push_to(&mut out);
                out
            }
            Found::Missing => "(missing)".to_owned(),
            Found::Nested => "(nested)".to_owned(),
            Found::BadEscape => "(escape)".to_owned(),
        })
    }

    #[test]
    fn a_path_leads_to_a_value_as_it_is_written() {
        let json = r#" { "a" : {"n": 1.50, "t": true, "null": null, "s": "x\u00e9\n\ud83d\ude00\"", "": "empty"},
            "items": [ {"sku": "A-1"}, [2, [3]], "last" ], "7": {"x": -1e5}, "k\u0065y": "by escape",
            "twice": {"x": 1}, "twice": {"y": "2"}, "surrogate": "\ud800", "deep": [[[[[[{"}": "]"}]]]]]] } "#;
        for (at, value) in [
            ("a.n", "1.50"),
            ("a.t", "true"),
            ("a.s", "xé\n😀\""),
            ("a.", "empty"),
            ("a.null", "(missing)"),
            ("a.none", "(missing)"),
            ("a.n.x", "(missing)"),
            ("a", "(nested)"),
            ("items", "(nested)"),
            ("items.0.sku", "A-1"),
            ("items.1.0", "2"),
            ("items.1.1.0", "3"),
            ("items.2", "last"),
            ("items.3", "(missing)"),
            ("items.sku", "(missing)"),
            ("items.-1", "(missing)"),
            ("7.x", "-1e5"),
            ("key", "by escape"),
            ("twice.x", "(missing)"),
            ("twice.y", "2"),
            ("surrogate", "(escape)"),
        ] {
            assert_eq!(found(json, at).as_deref(), Some(value), "{at}");
        }
    }

    #[test]
    fn what_is_no_json_is_told_from_json_without_the_value() {
        for json in ["5", "\"x\"", "null", " true ", "[]", "{}", "[ ]"] {
            assert_eq!(found(json, "x").as_deref(), Some("(missing)"), "{json}");
        }
        for json in [
            "",
            "hello",
            "text",
            "nulls",
            "\\x7b7d",
            "{",
            "{\"x\": 1",
            "{\"x\": 1} y",
            "{\"x\" 1}",
            "{\"x\": hello}",
            "{x: 1}",
            "[1, 2",
        ] {
            assert_eq!(found(json, "x"), None, "{json}");
        }
    }

    #[test]
    fn an_array_of_any_depth_is_passed_over_without_recursion() {
        let deep = "[".repeat(1_000_000) + &"]".repeat(1_000_000);
        let json = format!("{{\"a\": {deep}, \"b\": 1}}");
        assert_eq!(found(&json, "b").as_deref(), Some("1"));
        assert_eq!(found(&json, "a").as_deref(), Some("(nested)"));
        assert_eq!(found(&json, "a.0.0.0.0").as_deref(), Some("(nested)"));
    }

    /// Any JSON, with keys that are likely to be looked for and what needs escapes.
    fn json() -> impl Strategy<Value = Json> {
        let text = "[ab\"\\\\\n\u{e9}\u{1f600}/]{0,4}";
        let key = prop_oneof!["[ab01]", text];
        let leaf = prop_oneof![
            Just(Json::Null),
            any::<bool>().prop_map(Json::from),
            any::<i64>().prop_map(Json::from),
            text.prop_map(Json::from),
        ];
        leaf.prop_recursive(4, 32, 4, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
                proptest::collection::vec((key.clone(), inner), 0..4)
                    .prop_map(|pairs| Json::Object(pairs.into_iter().collect::<Map<_, _>>())),
            ]
        })
    }

    proptest! {
        #![proptest_config(crate::property::config())]

        #[test]
        fn it_finds_what_a_parser_finds(
            value in json(),
            pretty in any::<bool>(),
            steps in proptest::collection::vec("[ab01]", 1..4),
        ) {
            let text = if pretty { format!("{value:#}") } else { value.to_string() };
            let mut expected = Some(&value);
            for step in &steps {
                expected = expected.and_then(|value| match value.as_array() {
                    Some(items) => items.get(step.parse::<usize>().ok()?),
                    None => value.get(step),
                });
            }
            let expected = match expected {
                None | Some(Json::Null) => "(missing)".to_owned(),
                Some(Json::Object(_) | Json::Array(_)) => "(nested)".to_owned(),
                Some(Json::String(text)) => text.clone(),
                Some(other) => other.to_string(),
            };
            prop_assert_eq!(found(&text, &steps.join(".")), Some(expected), "{}", text);
        }

        #[test]
        fn no_text_makes_it_panic(text in "[{}\\[\\]\",:\\\\u0-9a-f tn\u{e9}\u{1f600}]{0,40}", at in "[a-f0-9.]{0,4}") {
            found(&text, &at);
        }
    }
}
