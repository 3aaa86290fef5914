//! How an event becomes a message's body: as its payload, or as a document around it.
//!
//! CloudEvents 1.0.2: <https://github.com/cloudevents/spec/tree/v1.0.2/cloudevents>, with the JSON format and the AMQP
//! binding, whose application properties are AMQP 0-9-1's headers.

use std::fmt::{self, Write as _};

use super::Event;
use super::binder::Binder;
use super::document::Document;
use super::invalid::{AttributeFault, InvalidRow};
use super::mapping::{MappingError, render};
use super::time::EventTime;
use crate::amqp::{EncodeError, HeaderEntries};
use crate::pgoutput::Tuple;
use crate::route::{BoundTemplate, Setting, Template};
use crate::trace::TraceContext;

/// What the messages of a table look like.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Format {
    /// The body is the payload, the headers are the relay's and the row's.
    #[default]
    Payload,
    /// The same, with the attributes of a CloudEvent as headers.
    CloudEventsBinary {
        /// Where its attributes come from.
        event: CloudEvents,
        /// What their names begin with.
        prefix: String,
    },
    /// The body is a CloudEvent in JSON, the payload within it.
    CloudEventsStructured(CloudEvents),
    /// The body is a JSON object of the event's columns.
    Envelope,
}

/// Where those attributes of a CloudEvent come from that are configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloudEvents {
    /// The attribute `source`: a URI-reference.
    pub source: Template,
    /// The attribute `type`.
    pub event_type: Template,
}

impl Format {
    /// Its templates, each with its setting.
    pub(super) fn templates(&self) -> impl Iterator<Item = (Setting, &Template)> {
        let event = match self {
            Self::CloudEventsBinary { event, .. } | Self::CloudEventsStructured(event) => Some(event),
            Self::Payload | Self::Envelope => None,
        };
        event.into_iter().flat_map(|event| {
            [
                (Setting::from("outbox.cloudevents.source"), &event.source),
                (Setting::from("outbox.cloudevents.type"), &event.event_type),
            ]
        })
    }
}

/// A format whose templates are bound to a relation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BoundFormat {
    Payload,
    Binary(BoundCloudEvents, String),
    Structured(BoundCloudEvents),
    Envelope,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BoundCloudEvents {
    source: BoundTemplate,
    event_type: BoundTemplate,
}

/// Texts rendered for one row, reused for the next.
#[derive(Debug, Default)]
pub(super) struct AttributeTexts {
    source: String,
    event_type: String,
}

/// The attributes of one CloudEvent, each checked, but for `datacontenttype`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attributes<'a> {
    id: &'a str,
    source: &'a str,
    event_type: &'a str,
    aggregate_type: &'a str,
    aggregate_id: &'a str,
    time: EventTime<'a>,
    trace: TraceContext<'a>,
}

/// The names of all attributes that a message may have. Extensions: `partitionkey` of the partitioning extension,
/// `traceparent` and `tracestate` of distributed tracing, and `aggregatetype`, which is our own.
const NAMES: [&str; 11] = [
    "specversion",
    "id",
    "source",
    "type",
    "subject",
    "time",
    "datacontenttype",
    "aggregatetype",
    "partitionkey",
    "traceparent",
    "tracestate",
];

impl BoundFormat {
    pub(super) fn bind(binder: &Binder<'_>, format: &Format) -> Result<Self, MappingError> {
        let bind = |event: &CloudEvents| {
            Ok(BoundCloudEvents {
                source: binder.template(&event.source, "outbox.cloudevents.source".into())?,
                event_type: binder.template(&event.event_type, "outbox.cloudevents.type".into())?,
            })
        };
        Ok(match format {
            Format::Payload => Self::Payload,
            Format::CloudEventsBinary { event, prefix } => Self::Binary(bind(event)?, prefix.clone()),
            Format::CloudEventsStructured(event) => Self::Structured(bind(event)?),
            Format::Envelope => Self::Envelope,
        })
    }

    /// Whether a header of this name is an attribute that the message has, or must not have.
    pub(super) fn owns(&self, name: &[u8]) -> bool {
        let Self::Binary(_, prefix) = self else {
            return false;
        };
        let attribute = name.strip_prefix(prefix.as_bytes());
        attribute.is_some_and(|attribute| NAMES.iter().any(|name| name.as_bytes() == attribute))
    }
}

impl BoundCloudEvents {
    /// The attributes of a row's event.
    pub(super) fn attributes<'a>(
        &self,
        row: &Tuple<'a>,
        event: &Event<'a>,
        trace: TraceContext<'a>,
        time: EventTime<'a>,
        texts: &'a mut AttributeTexts,
    ) -> Result<Attributes<'a>, InvalidRow> {
        render(
            &self.source,
            row,
            "outbox.cloudevents.source".into(),
            &mut texts.source,
        )?;
        render(
            &self.event_type,
            row,
            "outbox.cloudevents.type".into(),
            &mut texts.event_type,
        )?;
        let attributes = Attributes {
            id: event.id,
            source: &texts.source,
            event_type: &texts.event_type,
            aggregate_type: event.aggregate_type,
            aggregate_id: event.aggregate_id,
            time,
            trace: TraceContext {
                traceparent: trace.traceparent.filter(is_plain),
                tracestate: trace.tracestate.filter(is_plain),
            },
        };
        attributes.check()?;
        Ok(attributes)
    }
}

impl Attributes<'_> {
    fn check(&self) -> Result<(), InvalidRow> {
        let fault = |attribute, fault| Err(InvalidRow::Attribute { attribute, fault });
        for (attribute, text) in [("source", self.source), ("type", self.event_type)] {
            if text.is_empty() {
                return fault(attribute, AttributeFault::Empty);
            }
        }
        if !is_uri_reference(self.source) {
            return fault("source", AttributeFault::NotUriReference);
        }
        for (attribute, text) in [
            ("id", self.id),
            ("type", self.event_type),
            ("aggregatetype", self.aggregate_type),
            ("subject", self.aggregate_id),
        ] {
            if !is_plain(&text) {
                return fault(attribute, AttributeFault::Characters);
            }
        }
        Ok(())
    }

    /// Hands each attribute to `add`, but `datacontenttype`; those that would be empty are left out.
    fn each<E>(
        &self,
        mut add: impl FnMut(&'static str, &dyn fmt::Display) -> Result<(), E>,
    ) -> Result<(), E> {
        add("specversion", &"1.0")?;
        add("id", &self.id)?;
        add("source", &self.source)?;
        add("type", &self.event_type)?;
        if !self.aggregate_id.is_empty() {
            add("subject", &self.aggregate_id)?;
        }
        add("time", &self.time)?;
        if !self.aggregate_type.is_empty() {
            add("aggregatetype", &self.aggregate_type)?;
        }
        if !self.aggregate_id.is_empty() {
            add("partitionkey", &self.aggregate_id)?;
        }
        if let Some(traceparent) = &self.trace.traceparent {
            add("traceparent", traceparent)?;
        }
        if let Some(tracestate) = &self.trace.tracestate {
            add("tracestate", tracestate)?;
        }
        Ok(())
    }

    /// As headers, all of them texts: the AMQP binding (section 3.1.3.2) allows that, and AMQP's own timestamps have whole
    /// seconds only.
    pub(super) fn as_headers(&self, prefix: &str, headers: &mut HeaderEntries) -> Result<(), EncodeError> {
        self.each(|name, value| headers.text(format_args!("{prefix}{name}"), value))
    }

    /// As members of the CloudEvent in JSON.
    pub(super) fn as_members(&self, document: &mut Document<'_>) {
        let Ok(()) = self.each::<std::convert::Infallible>(|name, value| {
            document.text(name, value);
            Ok(())
        });
    }
}

/// Whether a text has none of the characters that a string of CloudEvents must not have (specification, section "Type
/// System"). Surrogates are none of Rust's.
fn is_plain(text: &impl fmt::Display) -> bool {
    struct Plain;
    impl fmt::Write for Plain {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let is_forbidden = |c: char| {
                let code = u32::from(c);
                c.is_control() || (0xfdd0..=0xfdef).contains(&code) || code & 0xfffe == 0xfffe
            };
            match text.contains(is_forbidden) {
                true => Err(fmt::Error),
                false => Ok(()),
            }
        }
    }
    write!(Plain, "{text}").is_ok()
}

/// Whether a text has only what a URI-reference may have (RFC 3986, appendix A). What is relative is not told from what is
/// not.
#[must_use]
pub fn is_uri_reference(text: &str) -> bool {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let fits = match byte {
            b'%' => {
                let mut is_digit = || bytes.next().is_some_and(|digit| digit.is_ascii_hexdigit());
                is_digit() && is_digit()
            }
            byte => byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=".contains(&byte),
        };
        if !fits {
            return false;
        }
    }
    !text.is_empty()
}
