//! A message as one line of JSON.
//!
//! ```json
//! {"exchange":"outbox","routing_key":"order.OrderCreated","properties":{"content_type":"application/json","message_id":"…"},
//!  "headers":{"aggregate_id":"42","tx_seq":0},"header_types":{"aggregate_id":"longstr","tx_seq":"long"},"body":{"total":1}}
//! ```
//!
//! The body is under `body` where it is JSON, as it stands; under `body_text` where it is another text, and under
//! `body_base64` where it is neither. JSON that spans several lines is a text too: without its line breaks it would not be
//! byte for byte the payload any more, and the text gives it back exactly.

use std::fmt::Display;
use std::io::Write as _;

use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use serde::de::IgnoredAny;
use walrelay_engine::amqp::{
    AmqpError, ContentHeader, FieldArray, FieldValue, PropertyValue, Publish, Table,
};

/// Appends the line, with its end.
///
/// # Errors
/// A header table that cannot be read; `out` ends in mid-line then.
pub(super) fn append(
    out: &mut Vec<u8>,
    publish: &Publish<'_>,
    header: &ContentHeader<'_>,
    body: &[u8],
) -> Result<(), AmqpError> {
    let mut line = Line { out };
    line.raw("{\"exchange\":");
    line.text(publish.exchange);
    line.raw(",\"routing_key\":");
    line.text(publish.routing_key);
    line.raw(",\"properties\":{");
    for (index, (name, value)) in header.properties.iter().enumerate() {
        line.name(index, name.as_bytes());
        match value {
            PropertyValue::Text(text) => line.text(text),
            PropertyValue::Number(number) => line.display(number),
        }
    }
    line.raw("}");
    if let Some(headers) = header.properties.headers() {
        line.raw(",\"headers\":");
        line.table(headers, Line::value)?;
        line.raw(",\"header_types\":");
        line.table(headers, Line::kind)?;
    }
    line.body(header.properties.content_type(), body);
    line.raw("}\n");
    Ok(())
}

struct Line<'l> {
    out: &'l mut Vec<u8>,
}

/// How a value of a table is written: itself, or the name of its type.
type Write<'l> = fn(&mut Line<'l>, FieldValue<'_>) -> Result<(), AmqpError>;

impl<'l> Line<'l> {
    fn raw(&mut self, json: &str) {
        self.out.extend_from_slice(json.as_bytes());
    }

    fn display(&mut self, value: impl Display) {
        let written = write!(self.out, "{value}");
        debug_assert!(written.is_ok(), "a Vec takes whatever is written");
    }

    /// A string. All texts of ours are UTF-8: what is not would be of somebody else.
    fn text(&mut self, text: &[u8]) {
        self.out.push(b'"');
        escape(self.out, &String::from_utf8_lossy(text));
        self.out.push(b'"');
    }

    /// The name of an object's member, with what stands before it.
    fn name(&mut self, index: usize, name: &[u8]) {
        if index > 0 {
            self.out.push(b',');
        }
        self.text(name);
        self.out.push(b':');
    }

    fn table(&mut self, table: Table<'_>, write: Write<'l>) -> Result<(), AmqpError> {
        self.out.push(b'{');
        for (index, entry) in table.iter().enumerate() {
            let (name, value) = entry?;
            self.name(index, name);
            write(self, value)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    fn array(&mut self, array: FieldArray<'_>, write: Write<'l>) -> Result<(), AmqpError> {
        self.out.push(b'[');
        for (index, value) in array.iter().enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            write(self, value?)?;
        }
        self.out.push(b']');
        Ok(())
    }

    /// A header's value, in the nearest type that JSON has.
    fn value(&mut self, value: FieldValue<'_>) -> Result<(), AmqpError> {
        match value {
            FieldValue::Bool(value) => self.display(value),
            FieldValue::I8(value) => self.display(value),
            FieldValue::U8(value) => self.display(value),
            FieldValue::I16(value) => self.display(value),
            FieldValue::U16(value) => self.display(value),
            FieldValue::I32(value) => self.display(value),
            FieldValue::U32(value) => self.display(value),
            FieldValue::I64(value) => self.display(value),
            FieldValue::Timestamp(value) => self.display(value),
            FieldValue::F32(value) => self.float(value.is_finite(), &value),
            FieldValue::F64(value) => self.float(value.is_finite(), &value),
            FieldValue::Decimal { scale, value } => self.display(format_args!("{value}e-{scale}")),
            FieldValue::Text(text) => self.text(text),
            FieldValue::Bytes(bytes) => self.base64(bytes),
            FieldValue::Array(values) => self.array(values, Self::value)?,
            FieldValue::Table(table) => self.table(table, Self::value)?,
            FieldValue::Void => self.raw("null"),
        }
        Ok(())
    }

    /// A header's type, by RabbitMQ's own name for it; of tables and arrays the types of their values.
    /// <https://github.com/rabbitmq/rabbitmq-server/blob/main/deps/rabbit_common/src/rabbit_binary_generator.erl>
    fn kind(&mut self, value: FieldValue<'_>) -> Result<(), AmqpError> {
        let name = match value {
            FieldValue::Array(values) => return self.array(values, Self::kind),
            FieldValue::Table(table) => return self.table(table, Self::kind),
            FieldValue::Bool(_) => "bool",
            FieldValue::I8(_) => "byte",
            FieldValue::U8(_) => "unsignedbyte",
            FieldValue::I16(_) => "short",
            FieldValue::U16(_) => "unsignedshort",
            FieldValue::I32(_) => "signedint",
            FieldValue::U32(_) => "unsignedint",
            FieldValue::I64(_) => "long",
            FieldValue::F32(_) => "float",
            FieldValue::F64(_) => "double",
            FieldValue::Decimal { .. } => "decimal",
            FieldValue::Text(_) => "longstr",
            FieldValue::Bytes(_) => "binary",
            FieldValue::Timestamp(_) => "timestamp",
            FieldValue::Void => "void",
        };
        self.text(name.as_bytes());
        Ok(())
    }

    /// JSON has no infinity and no NaN: those are texts.
    fn float(&mut self, is_finite: bool, value: &dyn std::fmt::Debug) {
        // The form of Debug keeps the point, and long numbers short.
        match is_finite {
            true => self.display(format_args!("{value:?}")),
            false => self.display(format_args!("\"{value:?}\"")),
        }
    }

    fn base64(&mut self, bytes: &[u8]) {
        self.display(format_args!("\"{}\"", Base64Display::new(bytes, &STANDARD)));
    }

    fn body(&mut self, content_type: Option<&[u8]>, body: &[u8]) {
        let media_type = String::from_utf8_lossy(content_type.unwrap_or_default());
        match std::str::from_utf8(body) {
            Ok(text) if is_json(&media_type) && fits_into_a_line(text) => {
                self.raw(",\"body\":");
                self.raw(text);
            }
            Ok(text) if is_text(&media_type) => {
                self.raw(",\"body_text\":");
                self.text(text.as_bytes());
            }
            Ok(_) | Err(_) => {
                self.raw(",\"body_base64\":");
                self.base64(body);
            }
        }
    }
}

/// Whether it is JSON that stays in its line. A column of JSON holds nothing else, but a text may be called so; it is
/// looked through, and neither kept nor printed anew.
fn fits_into_a_line(text: &str) -> bool {
    !text.contains(['\n', '\r']) && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// A media type without its parameters.
fn essence(media_type: &str) -> &str {
    media_type.split(';').next().unwrap_or_default().trim()
}

/// <https://www.rfc-editor.org/rfc/rfc6839#section-3.1>
fn is_json(media_type: &str) -> bool {
    ends_with(essence(media_type), &["/json", "+json"])
}

/// By the type alone: bytes that happen to be UTF-8 would change their form from one message to the next.
fn is_text(media_type: &str) -> bool {
    let essence = essence(media_type);
    let is_of_text = essence
        .get(..5)
        .is_some_and(|start| start.eq_ignore_ascii_case("text/"));
    is_of_text || ends_with(essence, &["/json", "+json", "/xml", "+xml", "/yaml", "+yaml"])
}

fn ends_with(text: &str, ends: &[&str]) -> bool {
    ends.iter().any(|end| {
        let at = text.len().checked_sub(end.len());
        at.and_then(|at| text.get(at..))
            .is_some_and(|found| found.eq_ignore_ascii_case(end))
    })
}

/// <https://www.rfc-editor.org/rfc/rfc8259#section-7>
fn escape(out: &mut Vec<u8>, text: &str) {
    let mut rest = text.as_bytes();
    let needs_it = |byte: &u8| *byte < b' ' || matches!(*byte, b'"' | b'\\');
    while let Some(at) = rest.iter().position(needs_it) {
        let (plain, from) = rest.split_at(at);
        out.extend_from_slice(plain);
        let Some((byte, behind)) = from.split_first() else {
            return;
        };
        rest = behind;
        match *byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            other => {
                let written = write!(out, "\\u{other:04x}");
                debug_assert!(written.is_ok(), "a Vec takes whatever is written");
            }
        }
    }
    out.extend_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line of a message with this content type, these entries of its header table and this body, parsed.
    fn line(content_type: &str, headers: &[u8], body: &[u8]) -> serde_json::Value {
        let text = text_of(content_type, headers, body);
        assert!(
            text.ends_with('\n') && text.lines().count() == 1,
            "not one line: {text}"
        );
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    fn text_of(content_type: &str, headers: &[u8], body: &[u8]) -> String {
        // Class 60, no weight, the size, and the flags of content type, headers and delivery mode.
        let mut payload = vec![0, 60, 0, 0];
        payload.extend_from_slice(&u64::try_from(body.len()).unwrap().to_be_bytes());
        payload.extend_from_slice(&[0xB0, 0]);
        payload.push(content_type.len().try_into().unwrap());
        payload.extend_from_slice(content_type.as_bytes());
        payload.extend_from_slice(&u32::try_from(headers.len()).unwrap().to_be_bytes());
        payload.extend_from_slice(headers);
        payload.push(2);
        let publish = Publish {
            exchange: b"out\"box",
            routing_key: "bestellung.ge\u{e4}ndert".as_bytes(),
            mandatory: true,
        };
        let mut out = Vec::new();
        append(
            &mut out,
            &publish,
            &ContentHeader::decode(&payload).unwrap(),
            body,
        )
        .unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_message_is_one_object_in_one_line() {
        insta::assert_snapshot!(
            text_of("application/json", b"\x01al\0\0\0\0\0\0\0\x07", br#"{"a" : 1.0}"#).trim_end(),
            @r#"{"exchange":"out\"box","routing_key":"bestellung.geändert","properties":{"content_type":"application/json","delivery_mode":2},"headers":{"a":7},"header_types":{"a":"long"},"body":{"a" : 1.0}}"#
        );
    }

    #[test]
    fn json_is_embedded_as_it_stands_unless_it_breaks_the_line() {
        for body in [
            r#"{"b":1,"a":2,"a":3}"#,
            r#" [1e400, 12345678901234567890.10] "#,
            r#""\u00e4\ud800""#,
            "null",
            "\t1",
        ] {
            let text = text_of("application/json", b"", body.as_bytes());
            assert!(text.ends_with(&format!(",\"body\":{body}}}\n")), "{text}");
        }
        for body in ["{\n  \"a\": \"\u{7f}\"\n}", "[1,\r2]"] {
            let line = line("application/json", b"", body.as_bytes());
            assert_eq!(line["body_text"], body);
            assert_eq!(line.get("body"), None);
        }
    }

    #[test]
    fn what_is_only_called_json_is_a_text() {
        for body in ["", "{", "1}{\"body\":2", "{}\n{}", "\u{0}", "nul"] {
            let line = line("application/vnd.orders+JSON; charset=utf-8", b"", body.as_bytes());
            assert_eq!(line["body_text"], body);
        }
        let deep = "[".repeat(1_000_000);
        assert_eq!(line("application/json", b"", deep.as_bytes())["body_text"], deep);
        // Bytes that no text is made of.
        assert_eq!(line("application/json", b"", b"\"\xff\"")["body_base64"], "Iv8i");
    }

    #[test]
    fn the_content_type_alone_tells_text_from_bytes() {
        let every: String = (0..0x300).filter_map(char::from_u32).collect();
        for content_type in ["text/plain", "TEXT/csv; header=present", "application/atom+xml"] {
            assert_eq!(line(content_type, b"", every.as_bytes())["body_text"], every);
            assert_eq!(line(content_type, b"", b"\xc3")["body_base64"], "ww==");
        }
        for content_type in ["application/octet-stream", "", "application/x-protobuf", "text"] {
            assert_eq!(line(content_type, b"", b"plain")["body_base64"], "cGxhaW4=");
        }
    }

    #[test]
    fn headers_keep_their_values_and_tell_their_types() {
        let mut headers = Vec::new();
        let mut entry = |name: &str, kind: u8, value: &[u8]| {
            headers.push(name.len().try_into().unwrap());
            headers.extend_from_slice(name.as_bytes());
            headers.push(kind);
            headers.extend_from_slice(value);
        };
        entry("bool", b't', &[1]);
        entry("i64", b'l', &i64::MIN.to_be_bytes());
        entry("u8", b'B', &[255]);
        entry("f64", b'd', &1.0_f64.to_be_bytes());
        entry("tiny", b'd', &1e-300_f64.to_be_bytes());
        entry("nan", b'f', &f32::NAN.to_be_bytes());
        entry("decimal", b'D', &[2, 0, 0, 1, 59]);
        entry("time", b'T', &1_700_000_000_u64.to_be_bytes());
        entry("bytes", b'x', b"\0\0\0\x02\xff\n");
        entry("a \"name\"\n", b'S', b"\0\0\0\x03a\tb");
        entry("void", b'V', b"");
        entry("list", b'A', b"\0\0\0\x07t\0I\xff\xff\xff\xff");
        entry("table", b'F', b"\0\0\0\x04\x01nb\xfe");
        let line = line("", &headers, b"");
        let expected = serde_json::json!({
            "bool": true, "i64": i64::MIN, "u8": 255, "f64": 1.0, "tiny": 1e-300, "nan": "NaN", "decimal": 3.15,
            "time": 1_700_000_000, "bytes": "/wo=", "a \"name\"\n": "a\tb", "void": null, "list": [false, -1],
            "table": { "n": -2 },
        });
        assert_eq!(line["headers"], expected);
        let types = serde_json::json!({
            "bool": "bool", "i64": "long", "u8": "unsignedbyte", "f64": "double", "tiny": "double", "nan": "float",
            "decimal": "decimal", "time": "timestamp", "bytes": "binary", "a \"name\"\n": "longstr", "void": "void",
            "list": ["bool", "signedint"], "table": { "n": "byte" },
        });
        assert_eq!(line["header_types"], types);
    }
}
