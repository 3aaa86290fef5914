//! The trace that an event belongs to, passed on as it is: columns `traceparent` and `tracestate`, or those keys of the
//! JSON object in the column `headers`.
//!
//! <https://www.w3.org/TR/trace-context/>. A trace must not hold up what it only watches: whatever cannot be passed on is
//! left out.

use std::fmt::{self, Write as _};

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
        let mut scanner = Scanner { rest: text };
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

/// Goes over JSON that PostgreSQL has checked, without recursion and without a copy. It need not tell every malformed
/// text; it has to come through all of them.
pub(crate) struct Scanner<'a> {
    pub(crate) rest: &'a str,
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

    /// Passes over one value; yields a string's inside.
    pub(crate) fn value(&mut self) -> Option<Option<&'a str>> {
        self.skip_space();
        match self.rest.chars().next()? {
            '"' => self.string().map(Some),
            '{' | '[' => self.nested().map(|()| None),
            _ => self.scalar().map(|()| None),
        }
    }

    /// Passes over an object or an array with all that is in it.
    fn nested(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            let place = self.rest.find(['"', '{', '[', '}', ']'])?;
            let (_, from) = self.rest.split_at_checked(place)?;
            let (bracket, after) = split_char(from)?;
            match bracket {
                '"' => {
                    self.rest = from;
                    self.string()?;
                    continue;
                }
                '{' | '[' => depth += 1,
                _ => depth = depth.checked_sub(1)?,
            }
            self.rest = after;
            if depth == 0 {
                return Some(());
            }
        }
    }

    /// Passes over a number, `true`, `false` or `null`.
    fn scalar(&mut self) -> Option<()> {
        let end = self.rest.find([',', '}', ']', ' ', '\t', '\r', '\n'])?;
        self.rest = self.rest.get(end..)?;
        (end > 0).then_some(())
    }

    /// A string's inside, as it is written.
    pub(crate) fn string(&mut self) -> Option<&'a str> {
        self.expect('"')?;
        let mut from = 0;
        loop {
            let place = from + self.rest.get(from..)?.find(['"', '\\'])?;
            if self.rest.get(place..)?.starts_with('"') {
                let inside = self.rest.get(..place)?;
                self.rest = self.rest.get(place + 1..)?;
                return Some(inside);
            }
            // A backslash and what it escapes, which may be a longer character in a text that is no JSON.
            let escaped = self.rest.get(place + 1..)?.chars().next()?;
            from = place + 1 + escaped.len_utf8();
        }
    }

    pub(crate) fn expect(&mut self, wanted: char) -> Option<()> {
        self.take(wanted).then_some(())
    }

    pub(crate) fn take(&mut self, wanted: char) -> bool {
        self.skip_space();
        match self.rest.strip_prefix(wanted) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// White space of JSON (RFC 8259, section 2).
    pub(crate) fn skip_space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
    }

    pub(crate) fn is_at_end(&mut self) -> bool {
        self.skip_space();
        self.rest.is_empty()
    }
}

fn split_char(text: &str) -> Option<(char, &str)> {
    let mut characters = text.chars();
    Some((characters.next()?, characters.as_str()))
}

/// Whether a string of JSON, as it is written, is this text.
pub(crate) fn is_text(raw: &str, text: &str) -> bool {
    match raw.contains('\\') {
        false => raw == text,
        true => Unescaped(raw).eq(text.chars().map(Some)),
    }
}

/// The characters that a string of JSON stands for; `None` for what is no escape (RFC 8259, section 7).
pub(crate) struct Unescaped<'a>(pub(crate) &'a str);

impl Iterator for Unescaped<'_> {
    type Item = Option<char>;

    fn next(&mut self) -> Option<Option<char>> {
        let (first, rest) = split_char(self.0)?;
        self.0 = rest;
        if first != '\\' {
            return Some(Some(first));
        }
        let Some((kind, rest)) = split_char(rest) else {
            return Some(None);
        };
        self.0 = rest;
        Some(match kind {
            '"' | '\\' | '/' => Some(kind),
            'b' => Some('\u{8}'),
            'f' => Some('\u{c}'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'u' => self.code_point(),
            _ => None,
        })
    }
}

impl Unescaped<'_> {
    /// What follows `\u`: one unit of UTF-16, or a pair of surrogates.
    fn code_point(&mut self) -> Option<char> {
        let first = self.unit()?;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first);
        }
        self.0 = self.0.strip_prefix("\\u")?;
        let second = self.unit()?;
        if !(0xdc00..0xe000).contains(&second) {
            return None;
        }
        char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00))
    }

    fn unit(&mut self) -> Option<u32> {
        let digits = self.0.get(..4)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        self.0 = self.0.get(4..)?;
        u32::from_str_radix(digits, 16).ok()
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
