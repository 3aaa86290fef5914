//! The trace that an event belongs to, passed on as it is: columns `traceparent` and `tracestate`, or those keys of the
//! JSON object in the column `headers`.
//!
//! <https://www.w3.org/TR/trace-context/>. A trace must not hold up what it only watches: whatever cannot be passed on is
//! left out.

use std::fmt::{self, Write as _};

use crate::json::{Scanner, Unescaped, is_text};
use crate::pgoutput::{Tuple, Value};

/// A longer value is not passed on: all properties of a message have to fit into one frame. The standard asks for 512
/// characters of `tracestate`.
const LONGEST: usize = 4096;

/// What is passed on, borrowing from the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TraceContext<'a> {
    /// Which span caused the event.
    pub traceparent: Option<TraceValue<'a>>,
    /// What tracing systems noted with it.
    pub tracestate: Option<TraceValue<'a>>,
}

/// Where a table's rows name their trace; found by name, and none has to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceColumns {
    traceparent: Option<usize>,
    tracestate: Option<usize>,
    headers: Option<usize>,
}

impl TraceColumns {
    /// Finds the columns.
    pub(crate) fn bind(index_of: impl Fn(&str) -> Option<usize>) -> Self {
        Self {
            traceparent: index_of("traceparent"),
            tracestate: index_of("tracestate"),
            headers: index_of("headers"),
        }
    }

    /// What a row names: a column of its own counts before a key in `headers`.
    pub(crate) fn of<'a>(&self, row: &Tuple<'a>) -> TraceContext<'a> {
        let text = |column: Option<usize>| match column.and_then(|column| row.value(column)) {
            Some(Value::Text(text)) => Some(text),
            Some(Value::Binary(_) | Value::Null | Value::Unchanged | Value::Oversized { .. }) | None => None,
        };
        let columns = TraceContext {
            traceparent: text(self.traceparent).and_then(TraceValue::of_column),
            tracestate: text(self.tracestate).and_then(TraceValue::of_column),
        };
        match text(self.headers) {
            Some(headers) => columns.or(TraceContext::of_json(headers)),
            None => columns,
        }
    }
}

/// A text that stands in the row as it is, or as JSON writes it. Printed, it is the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceValue<'a> {
    raw: &'a str,
    is_escaped: bool,
}

impl<'a> TraceValue<'a> {
    /// A column's value, where it can be passed on.
    #[must_use]
    pub fn of_column(text: &'a [u8]) -> Option<Self> {
        let raw = std::str::from_utf8(text).ok()?;
        (!raw.is_empty() && raw.len() <= LONGEST).then_some(Self {
            raw,
            is_escaped: false,
        })
    }

    /// A string of JSON without its quotes, where it can be passed on.
    fn of_json(raw: &'a str) -> Option<Self> {
        let is_escaped = raw.contains('\\');
        let fits = !raw.is_empty() && raw.len() <= LONGEST;
        (fits && (!is_escaped || Unescaped(raw).all(|c| c.is_some()))).then_some(Self { raw, is_escaped })
    }
}

impl fmt::Display for TraceValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_escaped {
            return f.write_str(self.raw);
        }
        Unescaped(self.raw).flatten().try_for_each(|c| f.write_char(c))
    }
}

impl<'a> TraceContext<'a> {
    /// The two keys of a JSON object. Of keys that come twice the last counts, as everywhere.
    #[must_use]
    pub fn of_json(object: &'a [u8]) -> Self {
        let mut found = Self::default();
        let Ok(text) = std::str::from_utf8(object) else {
            return found;
        };
        let mut scanner = Scanner::new(text);
        // What is no whole object ends the scan: nothing of it counts.
        match scanner.object(&mut found) {
            Some(()) if scanner.is_at_end() => found,
            _ => Self::default(),
        }
    }

    /// Where this one has no value, the other's.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            traceparent: self.traceparent.or(other.traceparent),
            tracestate: self.tracestate.or(other.tracestate),
        }
    }
}

impl<'a> Scanner<'a> {
    /// An object; `None` for anything else.
    fn object(&mut self, found: &mut TraceContext<'a>) -> Option<()> {
        self.expect('{')?;
        if self.take('}') {
            return Some(());
        }
        loop {
            let key = self.string()?;
            self.expect(':')?;
            let value = self.value()?;
            if is_text(key, "traceparent") {
                found.traceparent = value.and_then(TraceValue::of_json);
            } else if is_text(key, "tracestate") {
                found.tracestate = value.and_then(TraceValue::of_json);
            }
            if self.take('}') {
                return Some(());
            }
            self.expect(',')?;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value as Json};

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn parent(object: &str) -> Option<String> {
        let context = TraceContext::of_json(object.as_bytes());
        context.traceparent.map(|value| value.to_string())
    }

    #[test]
    fn both_keys_are_taken_out_of_an_object() {
        let object = format!(
            r#" {{ "a": [1, {{"traceparent": "no"}}, "]"], "traceparent" : "{PARENT}", "n": -1.5e3,
               "tracestate": "x=\"1\\\u00e9\ud83d\ude00", "last": null}} "#
        );
        let context = TraceContext::of_json(object.as_bytes());
        assert_eq!(context.traceparent.unwrap().to_string(), PARENT);
        assert_eq!(context.tracestate.unwrap().to_string(), "x=\"1\\é😀");
    }

    #[test]
    fn what_is_no_text_of_an_object_is_left_out() {
        for object in [
            "",
            "null",
            "[]",
            r#""traceparent""#,
            r#"{"traceparent": 1}"#,
            r#"{"traceparent": ""}"#,
            r#"{"traceparent": {"traceparent": "x"}}"#,
            r#"{"traceparent": "x""#,
            r#"{"traceparent": "x"} y"#,
            r#"{"traceparent": "\ud800"}"#,
            r#"{"traceparent": "\x"}"#,
            r#"{"traceparent": "x", "traceparent": null}"#,
        ] {
            assert_eq!(parent(object), None, "{object}");
        }
        assert_eq!(
            parent(&format!(r#"{{"traceparent": "{}"}}"#, "x".repeat(LONGEST + 1))),
            None
        );
        assert_eq!(parent(r#"{"trace\u0070arent": "x"}"#).as_deref(), Some("x"));
    }

    #[test]
    fn a_column_counts_before_a_key() {
        let column = TraceContext {
            traceparent: TraceValue::of_column(b"column"),
            tracestate: TraceValue::of_column(b""),
        };
        let both = column.or(TraceContext::of_json(
            br#"{"traceparent": "key", "tracestate": "key"}"#,
        ));
        assert_eq!(both.traceparent.unwrap().to_string(), "column");
        assert_eq!(both.tracestate.unwrap().to_string(), "key");
        assert_eq!(TraceValue::of_column(b"\xff"), None);
    }

    /// Any JSON, with a liking for the two keys and for what needs escapes.
    fn json() -> impl Strategy<Value = Json> {
        let text = prop_oneof!["[a-z\"\\\\\n\u{e9}\u{1f600}]{0,6}", Just(PARENT.to_owned())];
        let key = prop_oneof![
            Just("traceparent".to_owned()),
            Just("tracestate".to_owned()),
            text.clone()
        ];
        let leaf = prop_oneof![
            Just(Json::Null),
            any::<bool>().prop_map(Json::from),
            any::<f64>().prop_map(Json::from),
            text.prop_map(Json::from),
        ];
        leaf.prop_recursive(4, 24, 4, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
                proptest::collection::vec((key.clone(), inner), 0..4)
                    .prop_map(|pairs| Json::Object(pairs.into_iter().collect::<Map<_, _>>())),
            ]
        })
    }

    proptest! {
        #[test]
        fn it_finds_what_a_parser_finds(value in json(), pretty in any::<bool>()) {
            let text = if pretty { format!("{value:#}") } else { value.to_string() };
            let context = TraceContext::of_json(text.as_bytes());
            for (key, found) in [("traceparent", context.traceparent), ("tracestate", context.tracestate)] {
                let expected = value.as_object().and_then(|object| object.get(key)?.as_str());
                let expected = expected.filter(|text| !text.is_empty()).map(str::to_owned);
                prop_assert_eq!(found.map(|value| value.to_string()), expected, "{} in {}", key, text);
            }
        }

        #[test]
        fn no_text_makes_it_panic(text in "[{}\\[\\]\",:\\\\u0-9a-f traceparent\u{e9}\u{1f600}]{0,40}", bytes in any::<Vec<u8>>()) {
            for value in [text.as_bytes(), &bytes] {
                let context = TraceContext::of_json(value);
                drop(context.traceparent.map(|value| value.to_string()));
            }
        }
    }
}
