//! From a row of an outbox table to an event.

mod columns;
mod content;
mod document;
mod format;
mod invalid;
mod mapping;
mod payload;
mod properties;
#[cfg(test)]
mod tests;
mod time;

pub use columns::{Columns, Source};
pub use content::{Content, ContentScratch, MessageContent};
pub use format::{CloudEvents, Format, is_uri_reference};
pub use invalid::{AttributeFault, InvalidRow};
pub use mapping::{Event, Mapping, MappingError};
pub use payload::{Payload, PayloadType};

use crate::route::Template;

/// Where the messages of one table go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The exchange.
    pub exchange: Template,
    /// The routing key.
    pub routing_key: Template,
}

/// An outbox table and where its events go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxTable {
    /// The schema, as PostgreSQL stores it.
    pub schema: String,
    /// The name, as PostgreSQL stores it.
    pub name: String,
    /// Where the fields of its events come from.
    pub columns: Columns,
    /// Where its messages go.
    pub route: Route,
    /// What its messages look like.
    pub content: Content,
    /// What becomes of rows whose events are confirmed or discarded; none for [`AfterPublish::Mark`] where there is a
    /// `sent_at`, else [`AfterPublish::Keep`].
    pub after_publish: Option<AfterPublish>,
}

/// What becomes of a row whose event is confirmed or discarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterPublish {
    /// `sent_at` is set.
    Mark,
    /// It is deleted.
    Delete,
    /// Nothing.
    Keep,
}

impl AfterPublish {
    /// What holds for a table, by its setting and its columns.
    #[must_use]
    pub const fn of(setting: Option<Self>, has_sent_at: bool) -> Self {
        match setting {
            Some(setting) => setting,
            None if has_sent_at => Self::Mark,
            None => Self::Keep,
        }
    }
}
