//! JSON read strictly, piece by piece, without a tree: for what is encoded anew as headers, and for a text that is said to
//! be JSON and goes into another document.
//!
//! RFC 8259, <https://www.rfc-editor.org/rfc/rfc8259>.

/// A text that is no JSON, from this byte on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotJson {
    pub(crate) at: usize,
}

/// How deep a text may be nested that is only passed over.
const DEEPEST: u16 = 256;

/// A place in a text.
#[derive(Debug, Clone)]
pub(crate) struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

/// A string as it is written, without its quotes. Its escapes are known to be well formed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quoted<'a> {
    raw: &'a str,
    at: usize,
}

/// Whether all of a text is one JSON value.
pub(crate) fn check(text: &str) -> Result<(), NotJson> {
    let mut cursor = Cursor::new(text);
    cursor.pass()?;
    cursor.end()
}

impl<'a> Cursor<'a> {
    pub(crate) const fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// The fault that the text is no JSON from here on.
    pub(crate) const fn fault(&self) -> NotJson {
        NotJson { at: self.at }
    }

    /// The next byte that is no white space.
    pub(crate) fn peek(&mut self) -> Option<u8> {
        let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        let rest = self.rest();
        let space = rest.iter().take_while(|byte| is_space(byte)).count();
        let next = rest.get(space).copied();
        self.at += space;
        next
    }

    /// Goes beyond this byte, if it is the next one.
    pub(crate) fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// Goes beyond this byte, which must be the next one.
    pub(crate) fn expect(&mut self, byte: u8) -> Result<(), NotJson> {
        match self.take(byte) {
            true => Ok(()),
            false => Err(self.fault()),
        }
    }

    /// Whether nothing is left.
    pub(crate) fn end(&mut self) -> Result<(), NotJson> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.fault()),
        }
    }

    /// Reads a string (section 7).
    pub(crate) fn string(&mut self) -> Result<Quoted<'a>, NotJson> {
        self.expect(b'"')?;
        let start = self.at;
        loop {
            let rest = self.rest();
            let plain = rest
                .iter()
                .take_while(|byte| !matches!(byte, b'"' | b'\\' | 0..=0x1f))
                .count();
            let end = start.max(self.at + plain);
            self.at = end;
            match self.rest() {
                [b'"', ..] => {
                    self.at += 1;
                    let raw = self.text.get(start..end).ok_or(NotJson { at: start })?;
                    return Ok(Quoted { raw, at: start });
                }
                [b'\\', b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => self.at += 2,
                [b'\\', b'u', digits @ ..] if digits.get(..4).is_some_and(is_hex) => self.at += 6,
                _ => return Err(self.fault()),
            }
        }
    }

    /// Reads a number (section 6), as it is written.
    pub(crate) fn number(&mut self) -> Result<&'a str, NotJson> {
        self.peek();
        let start = self.at;
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
        self.text.get(start..self.at).ok_or(NotJson { at: start })
    }

    /// Reads `true`, `false` or `null`.
    pub(crate) fn word(&mut self) -> Result<Option<bool>, NotJson> {
        self.peek();
        for (word, value) in [("true", Some(true)), ("false", Some(false)), ("null", None)] {
            if self.rest().starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.fault())
    }

    /// Passes over a value of any kind.
    pub(crate) fn pass(&mut self) -> Result<(), NotJson> {
        self.pass_at(0)
    }

    fn pass_at(&mut self, depth: u16) -> Result<(), NotJson> {
        let close = match self.peek() {
            Some(b'{') => b'}',
            Some(b'[') => b']',
            Some(b'"') => return self.string().map(drop),
            Some(b'-' | b'0'..=b'9') => return self.number().map(drop),
            _ => return self.word().map(drop),
        };
        if depth == DEEPEST {
            return Err(self.fault());
        }
        self.at += 1;
        if self.take(close) {
            return Ok(());
        }
        loop {
            if close == b'}' {
                self.string()?;
                self.expect(b':')?;
            }
            self.pass_at(depth + 1)?;
            if self.take(close) {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    /// One digit or more.
    fn digits(&mut self) -> Result<(), NotJson> {
        let count = self
            .rest()
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        self.at += count;
        match count {
            0 => Err(self.fault()),
            _ => Ok(()),
        }
    }

    /// Goes beyond one of these bytes, if it is there.
    fn skip(&mut self, bytes: &[u8]) -> bool {
        let is_there = self.rest().first().is_some_and(|byte| bytes.contains(byte));
        self.at += usize::from(is_there);
        is_there
    }

    fn rest(&self) -> &'a [u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }
}

impl Quoted<'_> {
    /// Appends the text that it stands for.
    ///
    /// # Errors
    /// Half a pair of surrogates, which is no character, though PostgreSQL's `json` takes it.
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) -> Result<(), NotJson> {
        let mut rest = self.raw;
        while let Some((plain, escaped)) = rest.split_once('\\') {
            out.extend_from_slice(plain.as_bytes());
            let (character, after) = unescaped(escaped).ok_or(NotJson { at: self.at })?;
            out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            rest = after;
        }
        out.extend_from_slice(rest.as_bytes());
        Ok(())
    }
}

/// The character of an escape, from behind its backslash, and what follows.
fn unescaped(escape: &str) -> Option<(char, &str)> {
    let (kind, rest) = escape.split_at_checked(1)?;
    let character = match kind {
        "b" => '\u{8}',
        "f" => '\u{c}',
        "n" => '\n',
        "r" => '\r',
        "t" => '\t',
        "u" => return code_point(rest),
        other => other.chars().next()?,
    };
    Some((character, rest))
}

/// One unit of UTF-16, or a pair of surrogates.
fn code_point(digits: &str) -> Option<(char, &str)> {
    let unit = |text: &str| u32::from_str_radix(text.get(..4)?, 16).ok();
    let (first, rest) = (unit(digits)?, digits.get(4..)?);
    if !(0xd800..0xdc00).contains(&first) {
        return Some((char::from_u32(first)?, rest));
    }
    let rest = rest.strip_prefix("\\u")?;
    let second = unit(rest)?;
    if !(0xdc00..0xe000).contains(&second) {
        return None;
    }
    let character = char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00))?;
    Some((character, rest.get(4..)?))
}

fn is_hex(digits: &[u8]) -> bool {
    digits.iter().all(u8::is_ascii_hexdigit)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_json_is_told_from_what_is_not() {
        for text in [
            "{}",
            " [ ] ",
            "null",
            "-0",
            "0.5e+7",
            "1E400",
            r#""\u00e4\ud83d\ude00\/\"""#,
            r#""\ud800""#,
            "{\"a\": [true, false, null, {\"b\": \"ü\"}]}\n",
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
        for (text, at) in [
            ("", 0),
            ("{", 1),
            ("{} x", 3),
            ("01", 1),
            ("1.", 2),
            (".5", 0),
            ("+1", 0),
            ("1e", 2),
            ("nul", 0),
            ("nullx", 4),
            ("[1,]", 3),
            ("{\"a\":1,}", 7),
            ("{a:1}", 1),
            ("\"a\nb\"", 2),
            (r#""\x""#, 1),
            (r#""\u00g0""#, 1),
            ("\"", 1),
            ("'a'", 0),
            ("NaN", 0),
        ] {
            assert_eq!(check(text), Err(NotJson { at }), "{text}");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(check(&nested(256)), Ok(()));
        assert_eq!(check(&nested(257)), Err(NotJson { at: 256 }));
        assert!(check(&"[".repeat(1_000_000)).is_err());
    }

    #[test]
    fn half_a_pair_of_surrogates_is_no_character() {
        for raw in [r#""\ud800""#, r#""\udc00""#, r#""\ud800\u0041""#, r#""\ud800x""#] {
            let string = Cursor::new(raw).string().unwrap();
            assert!(string.append_to(&mut Vec::new()).is_err(), "{raw}");
        }
    }

    proptest! {
        #![proptest_config(crate::property::config())]

        #[test]
        fn it_takes_what_another_parser_takes(text in "[{}\\[\\]\",:\\\\u0-9a-fnulltrue.+\\-eE \n\u{e9}]{0,24}") {
            let theirs = serde_json::from_str::<serde_json::Value>(&text).map_err(|error| error.to_string());
            // That one wants more than the grammar does.
            let is_pickier = theirs.as_ref().is_err_and(|why| {
                ["number out of range", "surrogate", "code point"].iter().any(|more| why.contains(more))
            });
            prop_assert!(is_pickier || check(&text).is_ok() == theirs.is_ok(), "{}: {:?}", text, theirs);
        }

        #[test]
        fn a_string_stands_for_what_another_parser_reads(text in "\\PC*|[\\x00-\\x1f\u{1f600}\"\\\\]{0,9}") {
            let written = serde_json::to_string(&text).unwrap();
            let mut out = Vec::new();
            Cursor::new(&written).string().unwrap().append_to(&mut out).unwrap();
            prop_assert_eq!(out, text.as_bytes());
        }
    }
}
