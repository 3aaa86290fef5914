//! JSON that nobody has checked, read by the letter of RFC 8259: what is taken for a value is one.

use std::ops::Range;

use super::Unescaped;
use super::nesting::{Bracket, Depth, Nesting};

/// What is wrong with a text, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JsonFault {
    /// What should stand there.
    pub(crate) expected: &'static str,
    /// The byte, counted from 0.
    pub(crate) at: usize,
}

/// A place in a text, which goes on piece by piece, without recursion and without a copy. After an error it is of no
/// further use.
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

/// Whether all of a text is one JSON value that may be part of a document.
pub(crate) fn check(text: &str) -> Result<(), JsonFault> {
    let mut cursor = Cursor::new(text);
    cursor.pass(Depth::DOCUMENT)?;
    cursor.end()
}

impl<'a> Cursor<'a> {
    /// Starts at the first character.
    pub(crate) const fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// The byte that comes after white space (section 2), which is passed over.
    pub(crate) fn peek(&mut self) -> Option<u8> {
        let rest = self.rest();
        let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        let space = rest.iter().take_while(|byte| is_space(byte)).count();
        self.at += space;
        rest.get(space).copied()
    }

    /// Goes beyond this byte, if it is the next one.
    pub(crate) fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// Goes beyond this byte, which must be the next one.
    pub(crate) fn expect(&mut self, byte: u8, expected: &'static str) -> Result<(), JsonFault> {
        match self.take(byte) {
            true => Ok(()),
            false => Err(self.fault(expected)),
        }
    }

    /// Goes beyond the colon that a key must have.
    pub(crate) fn colon(&mut self) -> Result<(), JsonFault> {
        self.expect(b':', "`:`")
    }

    /// Goes beyond what must stand behind an item: a comma, so that there is one more, or the bracket `close`.
    pub(crate) fn has_more(&mut self, close: u8) -> Result<bool, JsonFault> {
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(true)
            }
            Some(byte) if byte == close => {
                self.at += 1;
                Ok(false)
            }
            _ if close == b']' => Err(self.fault("`,` or `]`")),
            _ => Err(self.fault("`,` or `}`")),
        }
    }

    /// Nothing may follow but white space.
    pub(crate) fn end(&mut self) -> Result<(), JsonFault> {
        match self.peek() {
            Some(_) => Err(self.fault("the end")),
            None => Ok(()),
        }
    }

    /// Passes over an object, handing each key, as it is written between its quotes, with the place of its value to `each`.
    pub(crate) fn object(
        &mut self,
        depth: Depth,
        mut each: impl FnMut(&'a str, Range<usize>),
    ) -> Result<(), JsonFault> {
        self.expect(b'{', "an object")?;
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            let key = self.key()?;
            self.colon()?;
            let value = self.pass(depth)?;
            each(key.raw, value);
            if !self.has_more(b'}')? {
                return Ok(());
            }
        }
    }

    /// Passes over a value of any kind with all that is in it; yields its place.
    pub(crate) fn pass(&mut self, depth: Depth) -> Result<Range<usize>, JsonFault> {
        let mut open = Nesting::default();
        self.peek();
        let start = self.at;
        loop {
            let bracket = match self.peek() {
                Some(b'"') => self.string().map(|_| None)?,
                Some(b'{') => Some(Bracket::Object),
                Some(b'[') => Some(Bracket::Array),
                Some(b'-' | b'0'..=b'9') => self.number().map(|_| None)?,
                _ => self.word().map(|_| None)?,
            };
            if let Some(bracket) = bracket {
                let too_deep = || self.fault(depth.expected);
                open.push(bracket, depth.most).ok_or_else(too_deep)?;
                self.at += 1;
                if !self.take(bracket.close()) {
                    self.key_in(bracket)?;
                    continue;
                }
                open.pop();
            }
            // A value has ended; what follows depends on where it stands.
            loop {
                let Some(bracket) = open.innermost() else {
                    return Ok(start..self.at);
                };
                if self.has_more(bracket.close())? {
                    self.key_in(bracket)?;
                    break;
                }
                open.pop();
            }
        }
    }

    /// Passes over what stands before a value: in an object, its key.
    fn key_in(&mut self, bracket: Bracket) -> Result<(), JsonFault> {
        match bracket {
            Bracket::Array => Ok(()),
            Bracket::Object => {
                self.key()?;
                self.colon()
            }
        }
    }

    /// Reads a key, without its colon.
    pub(crate) fn key(&mut self) -> Result<Quoted<'a>, JsonFault> {
        self.quoted("a key in quotes")
    }

    /// Reads a string.
    pub(crate) fn string(&mut self) -> Result<Quoted<'a>, JsonFault> {
        self.quoted("a string")
    }

    /// Section 7.
    fn quoted(&mut self, expected: &'static str) -> Result<Quoted<'a>, JsonFault> {
        self.expect(b'"', expected)?;
        let start = self.at;
        loop {
            let rest = self.rest();
            let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..=0x1F);
            let run = rest.iter().position(is_special).unwrap_or(rest.len());
            self.at += run;
            match rest.get(run) {
                Some(b'"') => {
                    let raw = self.text.get(start..self.at).unwrap_or_default();
                    self.at += 1;
                    return Ok(Quoted { raw, at: start });
                }
                Some(b'\\') => self.escape()?,
                Some(_) => return Err(self.fault("an escape in place of a control character")),
                None => return Err(self.fault("the end of a string")),
            }
        }
    }

    /// Passes over an escape. Which characters a pair of surrogates makes is not looked at.
    fn escape(&mut self) -> Result<(), JsonFault> {
        let is_hex = |digits: &[u8]| digits.iter().all(u8::is_ascii_hexdigit);
        match self.rest() {
            [_, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => self.at += 2,
            [_, b'u', digits @ ..] if digits.get(..4).is_some_and(is_hex) => self.at += 6,
            _ => return Err(self.fault("an escape of JSON")),
        }
        Ok(())
    }

    /// Reads a number (section 6), as it is written.
    pub(crate) fn number(&mut self) -> Result<&'a str, JsonFault> {
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
        Ok(self.text.get(start..self.at).unwrap_or_default())
    }

    /// Reads `true`, `false` or `null`.
    pub(crate) fn word(&mut self) -> Result<Option<bool>, JsonFault> {
        self.peek();
        for (word, value) in [("true", Some(true)), ("false", Some(false)), ("null", None)] {
            if self.rest().starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.fault("a value"))
    }

    /// One digit or more.
    fn digits(&mut self) -> Result<(), JsonFault> {
        let count = self
            .rest()
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        self.at += count;
        match count {
            0 => Err(self.fault("a digit")),
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

    const fn fault(&self, expected: &'static str) -> JsonFault {
        JsonFault {
            expected,
            at: self.at,
        }
    }
}

impl Quoted<'_> {
    /// Appends the text that it stands for.
    ///
    /// # Errors
    /// Half a pair of surrogates, which is no character, though PostgreSQL's `json` takes it.
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) -> Result<(), JsonFault> {
        let mut rest = self.raw;
        while let Some((plain, escaped)) = rest.find('\\').and_then(|place| rest.split_at_checked(place)) {
            out.extend_from_slice(plain.as_bytes());
            let mut characters = Unescaped(escaped);
            let character = characters.next().flatten().ok_or(JsonFault {
                expected: "whole pairs of surrogates",
                at: self.at,
            })?;
            out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            rest = characters.0;
        }
        out.extend_from_slice(rest.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
