//! What a message carries: its properties, its further headers and its body, by the table's settings.

use super::Event;
use super::binder::{Binder, BoundColumn};
use super::document::Document;
use super::format::{AttributeTexts, Attributes, BoundFormat, Format};
use super::invalid::InvalidRow;
use super::mapping::{MappingError, render};
use super::payload::Payload;
use super::properties::{BoundProperties, PropertyTexts};
use super::time::{EventTime, Written};
use crate::amqp::{EncodedHeaders, HeaderEntries, NameUse};
use crate::pgoutput::Tuple;
use crate::route::{BoundTemplate, Reference, Setting, Template};
use crate::timestamp::PgTimestamp;
use crate::trace::TraceContext;

#[cfg(test)]
mod tests;

/// What the messages of a table look like.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    /// What becomes of the payload.
    pub format: Format,
    /// Headers of every message, by name; a key of the row's own headers wins over an equal one.
    pub headers: Vec<(String, Template)>,
}

/// Settings and columns that are bound to a relation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BoundContent {
    format: BoundFormat,
    properties: BoundProperties,
    fixed: Vec<(String, BoundTemplate)>,
    headers: Option<BoundColumn>,
    created_at: Option<BoundColumn>,
}

/// What is made for one row, reused for the next.
#[derive(Debug, Default)]
pub struct ContentScratch {
    properties: PropertyTexts,
    attributes: AttributeTexts,
    header: String,
    headers: HeaderEntries,
}

/// What one message carries.
#[derive(Debug)]
pub struct MessageContent<'a> {
    /// The property `content_type`, never empty.
    pub content_type: &'a str,
    /// The property `correlation_id`, or empty.
    pub correlation_id: &'a str,
    /// The property `expiration`, or empty; fit for RabbitMQ.
    pub expiration: &'a str,
    /// The property `priority`.
    pub priority: Option<u8>,
    /// Headers beside those of the relay; fit for RabbitMQ, but for their size.
    pub headers: EncodedHeaders<'a>,
    /// How many headers of the row were left out since the relay has such.
    pub overridden: u64,
    body: Body<'a>,
}

#[derive(Debug)]
enum Body<'a> {
    Payload(Payload<'a>),
    CloudEvent {
        attributes: Attributes<'a>,
        payload: Payload<'a>,
        media_type: &'a str,
    },
    Envelope {
        event: Event<'a>,
        created_at: Option<&'a str>,
        headers: Option<&'a str>,
        media_type: &'a str,
    },
}

impl Content {
    /// What its templates name, each with its setting.
    pub(super) fn references(&self) -> impl Iterator<Item = (Setting, &Reference)> {
        let headers = self
            .headers
            .iter()
            .map(|(_, template)| (Setting::from("outbox.headers"), template));
        let templates = headers.chain(self.format.templates());
        templates.flat_map(|(setting, template)| {
            let references = template.references();
            references.map(move |reference| (setting, reference))
        })
    }
}

impl BoundContent {
    pub(super) fn bind(binder: &Binder<'_>, content: &Content) -> Result<Self, MappingError> {
        let fixed = content.headers.iter().map(|(name, template)| {
            let template = binder.template(template, "outbox.headers".into())?;
            Ok((name.clone(), template))
        });
        let columns = binder.columns;
        Ok(Self {
            format: BoundFormat::bind(binder, &content.format)?,
            properties: BoundProperties::bind(binder, columns)?,
            fixed: fixed.collect::<Result<_, _>>()?,
            headers: binder.optional_column("headers", &columns.headers)?,
            created_at: binder.optional_column("created_at", &columns.created_at)?,
        })
    }

    /// What the message of a row carries.
    pub(super) fn read<'a>(
        &self,
        row: &Tuple<'a>,
        event: &Event<'a>,
        trace: TraceContext<'a>,
        committed: PgTimestamp,
        scratch: &'a mut ContentScratch,
    ) -> Result<MessageContent<'a>, InvalidRow> {
        let ContentScratch {
            properties,
            attributes,
            header,
            headers: entries,
        } = scratch;
        let properties = self.properties.read(row, properties)?;
        let payload = event.payload;
        let media_type = match properties.content_type {
            "" => payload.payload_type.content_type(),
            content_type => content_type,
        };
        let created_at = || match &self.created_at {
            Some(column) => column.optional_text(row),
            None => Ok(None),
        };
        let attributes = match &self.format {
            BoundFormat::Binary(format, _) | BoundFormat::Structured(format) => {
                let written = created_at()?.and_then(Written::of);
                let time = written.map_or(EventTime::Committed(committed), EventTime::Written);
                Some(format.attributes(row, event, trace, time, attributes)?)
            }
            BoundFormat::Payload | BoundFormat::Envelope => None,
        };
        entries.clear();
        if let (BoundFormat::Binary(_, prefix), Some(attributes)) = (&self.format, &attributes) {
            attributes.as_headers(prefix, entries)?;
        }
        let (object, overridden) = self.add_headers(row, entries, header)?;
        let (content_type, body) = match (&self.format, attributes) {
            (BoundFormat::Structured(_), Some(attributes)) => {
                let body = Body::CloudEvent {
                    attributes,
                    payload,
                    media_type,
                };
                ("application/cloudevents+json", body)
            }
            (BoundFormat::Envelope, _) => {
                let body = Body::Envelope {
                    event: *event,
                    created_at: created_at()?,
                    headers: object,
                    media_type,
                };
                ("application/json", body)
            }
            (BoundFormat::Payload | BoundFormat::Binary(..) | BoundFormat::Structured(_), _) => {
                (media_type, Body::Payload(payload))
            }
        };
        Ok(MessageContent {
            content_type,
            correlation_id: properties.correlation_id,
            expiration: properties.expiration,
            priority: properties.priority,
            headers: entries.encoded(),
            overridden,
            body,
        })
    }

    /// Adds the headers of every message and those of the row; returns the object that the row's come from, and how many of
    /// them the relay has itself.
    fn add_headers<'a>(
        &self,
        row: &Tuple<'a>,
        entries: &mut HeaderEntries,
        rendered: &mut String,
    ) -> Result<(Option<&'a str>, u64), InvalidRow> {
        let use_of = |name: &[u8]| match self.format.owns(name) {
            true => NameUse::Overridden,
            false => NameUse::of(name),
        };
        for (name, template) in &self.fixed {
            if use_of(name.as_bytes()).joins() {
                render(template, row, "outbox.headers".into(), rendered)?;
                entries.text(name, &*rendered)?;
            }
        }
        let Some(column) = &self.headers else {
            return Ok((None, 0));
        };
        // NULL, nothing and JSON's null say that there are none.
        let text = column.optional_text(row)?.map(str::trim_ascii);
        let Some(object) = text.filter(|text| !matches!(*text, "" | "null")) else {
            return Ok((None, 0));
        };
        let overridden = entries
            .object(object, use_of)
            .map_err(|fault| InvalidRow::Headers {
                column: column.name.clone(),
                fault,
            })?;
        Ok((Some(object), overridden))
    }
}

impl MessageContent<'_> {
    /// Appends the body. The payload is in it byte for byte, but where a document cannot hold it so: bytes are in base64,
    /// and a text that is no JSON is a string.
    ///
    /// # Errors
    /// The payload does not fit into a document. `out` may then hold a part of the body.
    pub fn append_body(&self, out: &mut Vec<u8>) -> Result<(), InvalidRow> {
        match &self.body {
            Body::Payload(payload) => payload.append_to(out),
            Body::CloudEvent {
                attributes,
                payload,
                media_type,
            } => {
                let mut document = Document::open(out);
                attributes.as_members(&mut document);
                document.text("datacontenttype", media_type);
                document.payload(["data", "data_base64"], payload, media_type)?;
                document.close();
                Ok(())
            }
            Body::Envelope {
                event,
                created_at,
                headers,
                media_type,
            } => {
                let mut document = Document::open(out);
                document.text("id", event.id);
                document.text("aggregate_type", event.aggregate_type);
                document.text("aggregate_id", event.aggregate_id);
                document.text("event_type", event.event_type);
                if let Some(text) = created_at {
                    match Written::of(text) {
                        Some(written) => document.text("created_at", EventTime::Written(written)),
                        None => document.text("created_at", text),
                    }
                }
                if let Some(headers) = headers {
                    document.json("headers", headers.as_bytes());
                }
                document.text("content_type", media_type);
                document.payload(["payload", "payload_base64"], &event.payload, media_type)?;
                document.close();
                Ok(())
            }
        }
    }
}
