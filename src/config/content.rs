//! What the messages of an `[[outbox]]` look like.

use super::fields::{Field, Fields};
use super::named::NamedTexts;
use super::problem::Problem;
use super::value::Value;

/// The keys of an `[[outbox]]` that say what its messages look like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentConfig {
    /// What becomes of the payload.
    pub format: MessageFormat,
    /// Headers of every message: templates by name.
    pub headers: NamedTexts,
    /// What the headers begin with that are attributes of a CloudEvent; 1 to 200 bytes.
    pub cloudevents_prefix: String,
    /// The template of the attribute `source`; `None`: by the table's name.
    pub cloudevents_source: Option<String>,
    /// The template of the attribute `type`.
    pub cloudevents_type: String,
}

/// What becomes of the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageFormat {
    /// It is the body.
    Payload,
    /// The same, with a CloudEvent's attributes as headers.
    CloudEventsBinary,
    /// It is within a CloudEvent in JSON.
    CloudEventsStructured,
    /// It is within a JSON object of the event's columns.
    Envelope,
}

impl ContentConfig {
    pub(super) fn of(values: &Fields<'_>) -> Result<Self, Problem> {
        Ok(Self {
            format: values.required("outbox.format")?,
            headers: values.optional("outbox.headers").unwrap_or_default(),
            cloudevents_prefix: values.required("outbox.cloudevents.prefix")?,
            cloudevents_source: values.optional("outbox.cloudevents.source"),
            cloudevents_type: values.required("outbox.cloudevents.type")?,
        })
    }
}

impl Field for MessageFormat {
    fn of(value: &Value) -> Option<Self> {
        match value.text() {
            "payload" => Some(Self::Payload),
            "cloudevents-binary" => Some(Self::CloudEventsBinary),
            "cloudevents-structured" => Some(Self::CloudEventsStructured),
            "envelope" => Some(Self::Envelope),
            _ => None,
        }
    }
}

impl Field for NamedTexts {
    fn of(value: &Value) -> Option<Self> {
        if let Value::Named(texts) = value {
            Some(texts.clone())
        } else {
            None
        }
    }
}
