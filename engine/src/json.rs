//! JSON read where it stands: no tree is made of it, and nothing is printed again.
//!
//! <https://www.rfc-editor.org/rfc/rfc8259>

mod nesting;
mod strict;

pub(crate) use nesting::Depth;
pub(crate) use strict::{Cursor, JsonFault, check};

/// Goes over JSON that PostgreSQL has checked, without recursion and without a copy. It need not tell every malformed
/// text; it has to come through all of them. So it jumps from bracket to bracket, where a [`Cursor`] looks at every byte
/// of what nobody has checked.
pub(crate) struct Scanner<'a> {
    pub(crate) rest: &'a str,
}

impl<'a> Scanner<'a> {
    /// Starts at the first character.
    pub(crate) const fn new(text: &'a str) -> Self {
        Self { rest: text }
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

    /// Passes over this character, which must come next.
    pub(crate) fn expect(&mut self, wanted: char) -> Option<()> {
        self.take(wanted).then_some(())
    }

    /// Passes over this character if it comes next.
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

    /// Whether nothing is left but white space.
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
