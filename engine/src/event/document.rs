//! JSON documents that an event is written into, around its payload.

use std::fmt::{self, Display, Write as _};

use super::invalid::InvalidRow;
use super::payload::{Payload, PayloadType};
use crate::json;

/// An object being written: members in the order in which they are added.
pub(super) struct Document<'a> {
    out: &'a mut Vec<u8>,
    is_empty: bool,
}

impl<'a> Document<'a> {
    pub(super) fn open(out: &'a mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, is_empty: true }
    }

    pub(super) fn close(self) {
        self.out.push(b'}');
    }

    /// Adds a string.
    pub(super) fn text(&mut self, name: &str, value: impl Display) {
        self.name(name);
        append_string(self.out, value);
    }

    /// Adds a value that is JSON already, as it is.
    pub(super) fn json(&mut self, name: &str, value: &[u8]) {
        self.name(name);
        self.out.extend_from_slice(value);
    }

    /// Adds a payload whose media type is `content_type`: as it is where that is JSON, else as a string; bytes in base64
    /// under the second of the names. So the JSON format of CloudEvents has it (section 3.1.1).
    pub(super) fn payload(
        &mut self,
        [plain, base64]: [&str; 2],
        payload: &Payload<'_>,
        content_type: &str,
    ) -> Result<(), InvalidRow> {
        match payload.payload_type {
            PayloadType::Bytes => {
                self.name(base64);
                self.out.push(b'"');
                payload.append_base64(self.out)?;
                self.out.push(b'"');
                return Ok(());
            }
            PayloadType::Json if is_json(content_type) => {}
            PayloadType::Text if is_json(content_type) => {
                json::check(payload.utf8()?).map_err(|fault| InvalidRow::PayloadNotJson {
                    column: payload.column.to_owned(),
                    at: fault.at,
                    content_type: content_type.to_owned(),
                })?;
            }
            PayloadType::Json | PayloadType::Text => {
                self.text(plain, payload.utf8()?);
                return Ok(());
            }
        }
        self.name(plain);
        payload.append_to(self.out)
    }

    fn name(&mut self, name: &str) {
        if !std::mem::take(&mut self.is_empty) {
            self.out.push(b',');
        }
        append_string(self.out, name);
        self.out.push(b':');
    }
}

/// Whether a media type says that something is JSON: its subtype is `json` or ends in `+json`.
pub(super) fn is_json(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    let subtype = media_type.split_once('/').map_or("", |(_, subtype)| subtype);
    let suffix = subtype.rsplit_once('+').map_or(subtype, |(_, suffix)| suffix);
    suffix.eq_ignore_ascii_case("json")
}

/// Appends a string of JSON (RFC 8259, section 7).
fn append_string(out: &mut Vec<u8>, text: impl Display) {
    out.push(b'"');
    let written = write!(Escaping(out), "{text}");
    debug_assert!(written.is_ok(), "a Vec takes whatever is written");
    out.push(b'"');
}

struct Escaping<'a>(&'a mut Vec<u8>);

impl fmt::Write for Escaping<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let Self(out) = self;
        let mut rest = text.as_bytes();
        while let Some(plain) = rest
            .iter()
            .position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f))
        {
            let (before, from) = rest.split_at_checked(plain).ok_or(fmt::Error)?;
            let (special, after) = from.split_first().ok_or(fmt::Error)?;
            out.extend_from_slice(before);
            match special {
                b'"' | b'\\' => out.extend_from_slice(&[b'\\', *special]),
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\r' => out.extend_from_slice(b"\\r"),
                b'\t' => out.extend_from_slice(b"\\t"),
                control => {
                    let digit = |value: u8| {
                        if value < 10 {
                            b'0' + value
                        } else {
                            b'a' + value - 10
                        }
                    };
                    out.extend_from_slice(b"\\u00");
                    out.extend_from_slice(&[digit(control >> 4), digit(control & 15)]);
                }
            }
            rest = after;
        }
        out.extend_from_slice(rest);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_media_type_says_whether_it_is_json() {
        for json in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/vnd.order+json",
            "text/json",
        ] {
            assert!(is_json(json), "{json}");
        }
        for other in [
            "",
            "json",
            "text/plain",
            "application/jsonl",
            "application/x; a=/json",
            "application/json+xml",
        ] {
            assert!(!is_json(other), "{other}");
        }
    }

    proptest! {
            #![proptest_config(crate::property::config())]

            #[test]
            fn a_text_is_read_back_by_another_parser(name in "[a-l\"\\\\\u{e9}]{0,5}", text in "\\PC*|[\\x00-\\x1f\"\\\\]{0,9}") {
                let mut out = Vec::new();
                let mut document = Document::open(&mut out);
                document.text(&name, &text);
                document.json("more", b" [1.50] ");
                document.close();
                let read: serde_json::Value = serde_json::from_slice(&out).unwrap();
    prop_assert_eq!(read[name.as_str()].as_str(), Some(text.as_str()));
                let end = b",\"more\": [1.50] }";
            prop_assert!(out.ends_with(end));
            }
        }
}
