//! JSON that nobody has checked, read by the letter of RFC 8259: what is taken for a value is one.

use std::ops::Range;

/// How deep arrays and objects may stand in one another. PostgreSQL's own limit lies at some thousands, those of most
/// parsers far lower.
const MAX_DEPTH: usize = 1024;

/// What is wrong with a text, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JsonFault {
    /// What should stand there.
    pub(crate) expected: &'static str,
    /// The byte, counted from 0.
    pub(crate) at: usize,
}

/// Goes over a text, without recursion and without a copy. After an error it is of no further use.
#[derive(Debug, Clone)]
pub(crate) struct Strict<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Strict<'a> {
    /// Starts at the first character.
    pub(crate) const fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Passes over an object, handing each key, as it is written between its quotes, with the place of its value to `each`.
    pub(crate) fn object(&mut self, mut each: impl FnMut(&'a str, Range<usize>)) -> Result<(), JsonFault> {
        self.expect(b'{', "an object")?;
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            let key = self.key()?;
            let value = self.value()?;
            each(key, value);
            if self.take(b'}') {
                return Ok(());
            }
            self.expect(b',', "`,` or `}`")?;
        }
    }

    /// Nothing may follow but white space.
    pub(crate) fn end(&mut self) -> Result<(), JsonFault> {
        match self.next() {
            Some(_) => Err(self.fault("the end")),
            None => Ok(()),
        }
    }

    /// Passes over one value with all that is in it; yields its place.
    fn value(&mut self) -> Result<Range<usize>, JsonFault> {
        let mut open = Nesting::default();
        let first = self.next();
        let start = self.at;
        let mut next = first;
        loop {
            match next {
                Some(b'"') => drop(self.string()?),
                Some(b'{') => {
                    self.at += 1;
                    if !self.take(b'}') {
                        self.open(&mut open, Bracket::Object)?;
                        self.key()?;
                        next = self.next();
                        continue;
                    }
                }
                Some(b'[') => {
                    self.at += 1;
                    if !self.take(b']') {
                        self.open(&mut open, Bracket::Array)?;
                        next = self.next();
                        continue;
                    }
                }
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b't') => self.word("true")?,
                Some(b'f') => self.word("false")?,
                Some(b'n') => self.word("null")?,
                Some(_) | None => return Err(self.fault("a value")),
            }
            // A value has ended; what follows depends on where it stands.
            loop {
                let Some(bracket) = open.innermost() else {
                    return Ok(start..self.at);
                };
                match (bracket, self.next()) {
                    (Bracket::Array, Some(b']')) | (Bracket::Object, Some(b'}')) => {
                        self.at += 1;
                        open.pop();
                    }
                    (Bracket::Array, Some(b',')) => {
                        self.at += 1;
                        break;
                    }
                    (Bracket::Object, Some(b',')) => {
                        self.at += 1;
                        self.key()?;
                        break;
                    }
                    (Bracket::Array, _) => return Err(self.fault("`,` or `]`")),
                    (Bracket::Object, _) => return Err(self.fault("`,` or `}`")),
                }
            }
            next = self.next();
        }
    }

    fn open(&self, open: &mut Nesting, bracket: Bracket) -> Result<(), JsonFault> {
        const TOO_DEEP: &str = "no more than 1024 brackets within one another";
        open.push(bracket).ok_or_else(|| self.fault(TOO_DEEP))
    }

    /// A key with its colon.
    fn key(&mut self) -> Result<&'a str, JsonFault> {
        if self.next() != Some(b'"') {
            return Err(self.fault("a key in quotes"));
        }
        let key = self.string()?;
        self.expect(b':', "`:`")?;
        Ok(key)
    }

    /// A string's inside, as it is written.
    fn string(&mut self) -> Result<&'a str, JsonFault> {
        self.at += 1;
        let start = self.at;
        loop {
            let rest = self.rest();
            let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..=0x1F);
            let run = rest.iter().position(is_special).unwrap_or(rest.len());
            self.at += run;
            match rest.get(run) {
                Some(b'"') => {
                    let inside = self.text.get(start..self.at).unwrap_or_default();
                    self.at += 1;
                    return Ok(inside);
                }
                Some(b'\\') => self.escape()?,
                Some(_) => return Err(self.fault("an escape in place of a control character")),
                None => return Err(self.fault("the end of a string")),
            }
        }
    }

    /// RFC 8259, section 7. Which characters a pair of surrogates makes is not looked at.
    fn escape(&mut self) -> Result<(), JsonFault> {
        self.at += 1;
        match self.rest() {
            [b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => self.at += 1,
            [b'u', digits @ ..]
                if digits
                    .iter()
                    .take(4)
                    .filter(|digit| digit.is_ascii_hexdigit())
                    .count()
                    == 4 =>
            {
                self.at += 5;
            }
            _ => return Err(self.fault("an escape of JSON")),
        }
        Ok(())
    }

    /// RFC 8259, section 6.
    fn number(&mut self) -> Result<(), JsonFault> {
        self.skip(b"-");
        match self.rest() {
            [b'0', ..] => self.at += 1,
            _ => self.digits()?,
        }
        if self.skip(b".") {
            self.digits()?;
        }
        if self.skip(b"eE") {
            self.skip(b"+-");
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonFault> {
        let count = self
            .rest()
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        self.at += count;
        if count == 0 {
            return Err(self.fault("a digit"));
        }
        Ok(())
    }

    fn word(&mut self, word: &str) -> Result<(), JsonFault> {
        if !self.rest().starts_with(word.as_bytes()) {
            return Err(self.fault("a value"));
        }
        self.at += word.len();
        Ok(())
    }

    /// Passes over one of these bytes, if it comes next.
    fn skip(&mut self, bytes: &[u8]) -> bool {
        let is_there = self.rest().first().is_some_and(|byte| bytes.contains(byte));
        self.at += usize::from(is_there);
        is_there
    }

    fn expect(&mut self, byte: u8, expected: &'static str) -> Result<(), JsonFault> {
        match self.take(byte) {
            true => Ok(()),
            false => Err(self.fault(expected)),
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        let is_there = self.next() == Some(byte);
        self.at += usize::from(is_there);
        is_there
    }

    /// The byte that comes after white space (RFC 8259, section 2), which is passed over.
    fn next(&mut self) -> Option<u8> {
        let rest = self.rest();
        let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        let space = rest.iter().take_while(|byte| is_space(byte)).count();
        self.at += space;
        rest.get(space).copied()
    }

    fn rest(&self) -> &'a [u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    const fn fault(&self, expected: &'static str) -> JsonFault {
        JsonFault {
            expected,
            at: self.at,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bracket {
    Array,
    Object,
}

/// The brackets that are open, one bit each.
#[derive(Debug)]
struct Nesting {
    depth: usize,
    objects: [u64; MAX_DEPTH / 64],
}

impl Default for Nesting {
    fn default() -> Self {
        Self {
            depth: 0,
            objects: [0; MAX_DEPTH / 64],
        }
    }
}

impl Nesting {
    /// `None` where there are too many.
    fn push(&mut self, bracket: Bracket) -> Option<()> {
        let bit = 1 << (self.depth % 64);
        let objects = self.objects.get_mut(self.depth / 64)?;
        match bracket {
            Bracket::Object => *objects |= bit,
            Bracket::Array => *objects &= !bit,
        }
        self.depth += 1;
        Some(())
    }

    fn pop(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    fn innermost(&self) -> Option<Bracket> {
        let place = self.depth.checked_sub(1)?;
        let objects = self.objects.get(place / 64)?;
        Some(match objects & 1 << (place % 64) {
            0 => Bracket::Array,
            _ => Bracket::Object,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::de::IgnoredAny;

    use super::*;

    /// The object's keys and values, as they are written.
    fn read(text: &str) -> Result<Vec<(&str, &str)>, JsonFault> {
        let mut strict = Strict::new(text);
        let mut found = Vec::new();
        strict.object(|key, value| found.push((key, &text[value])))?;
        strict.end()?;
        Ok(found)
    }

    #[test]
    fn values_are_found_as_they_are_written() {
        let text = " {\"a\" : [ 1,{\"b\":[]} ] ,\"\\u0062\":-0.50e+03\n,\"\":\"x\\\"}\", \"c\":{ } } ";
        let found = [
            ("a", "[ 1,{\"b\":[]} ]"),
            ("\\u0062", "-0.50e+03"),
            ("", "\"x\\\"}\""),
            ("c", "{ }"),
        ];
        assert_eq!(read(text), Ok(found.to_vec()));
        assert_eq!(read("{}"), Ok(Vec::new()));
    }

    #[test]
    fn a_fault_is_named_with_its_place() {
        for (text, expected, at) in [
            ("", "an object", 0),
            (" [1]", "an object", 1),
            ("{\"a\" 1}", "`:`", 5),
            ("{\"a\":1,}", "a key in quotes", 7),
            ("{a:1}", "a key in quotes", 1),
            ("{\"a\":}", "a value", 5),
            ("{\"a\":tru}", "a value", 5),
            ("{\"a\":[1 2]}", "`,` or `]`", 8),
            ("{\"a\":{\"b\":1]}", "`,` or `}`", 11),
            ("{\"a\":01}", "`,` or `}`", 6),
            ("{\"a\":1.}", "a digit", 7),
            ("{\"a\":\"x\\q\"}", "an escape of JSON", 8),
            ("{\"a\":\"x\ny\"}", "an escape in place of a control character", 7),
            ("{\"a\":\"ü", "the end of a string", 8),
            ("{\"a\":1} x", "the end", 8),
        ] {
            assert_eq!(read(text), Err(JsonFault { expected, at }), "{text}");
        }
    }

    #[test]
    fn brackets_may_stand_within_one_another_up_to_a_bound() {
        let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        // The innermost is empty, so nothing is within it.
        assert!(read(&nested(MAX_DEPTH + 1)).is_ok());
        let fault = read(&nested(MAX_DEPTH + 2)).unwrap_err();
        assert_eq!(fault.at, 5 + MAX_DEPTH + 1);
        assert!(fault.expected.contains(&MAX_DEPTH.to_string()));
    }

    proptest! {
        #![proptest_config(crate::property::config())]

        #[test]
        fn it_takes_what_a_parser_takes(
            text in prop_oneof![
                "[{}\\[\\]\",:\\\\u0-9a-f.eE+\\-truefalsn \u{e9}\n]{0,24}",
                "\\{\"a\":[{}\\[\\]\",:0-9.e\\- \\\\]{0,12}\\}",
                "\\{\"a\": ?(-?[0-9]{1,3}(\\.[0-9]{0,2})?([eE][+-]?[0-9]{0,2})?|\"(\\\\[\"\\\\/bfnrtux]|[0-9a-f\u{1}]){0,6}\")\\}",
            ],
        ) {
            let is_object = text.trim_start_matches([' ', '\n']).starts_with('{');
            let is_taken = is_object && serde_json::from_str::<IgnoredAny>(&text).is_ok();
            prop_assert_eq!(read(&text).is_ok(), is_taken, "{}", text);
        }
    }
}
