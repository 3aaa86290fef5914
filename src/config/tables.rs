//! `[[outbox]]` as plain values.

use std::time::Duration;

use super::choices::{AfterPublish, FailurePolicy};
use super::condition::ConditionValue;
use super::content::ContentConfig;
use super::field::FieldValue;

/// One `[[outbox]]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxConfig {
    /// The table, as `schema.table`, not empty and not yet parsed.
    pub table: String,
    /// What becomes of published rows; `None`: marked where there is a `sent_at`, else kept.
    pub after_publish: Option<AfterPublish>,
    /// The SQL condition that a row is not sent; `None`: `sent_at` tells it.
    pub unsent: Option<String>,
    /// What marks a row, as SQL assignments; `None`: `sent_at` is set.
    pub mark_set: Option<String>,
    /// How long rows stay after they were marked as sent; `None`: for ever.
    pub keep_sent: Option<Duration>,
    /// What its columns are called where `columns` does not say.
    pub preset: Preset,
    /// What its columns are called.
    pub columns: ColumnsConfig,
    /// What its messages look like.
    pub content: ContentConfig,
    /// The template of the exchange; `None`: that of `[rabbitmq]`.
    pub exchange: Option<String>,
    /// The template of the routing key; `None`: that of `[rabbitmq]`.
    pub routing_key: Option<String>,
    /// What counts before these two, the first that an event meets.
    pub routes: Vec<RouteConfig>,
}

/// One `[[outbox.route]]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteConfig {
    /// What an event must meet, all of it; at least one.
    pub when: Vec<ConditionValue>,
    /// The template of the exchange; `None`: the table's.
    pub exchange: Option<String>,
    /// The template of the routing key; `None`: the table's.
    pub routing_key: Option<String>,
    /// What to do with an event of this route that no queue is bound for; `None`: as for all others.
    pub on_unroutable: Option<FailurePolicy>,
}

/// `[outbox.columns]`: where each field comes from; `None`: as the preset has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ColumnsConfig {
    /// The message id.
    pub id: Option<FieldValue>,
    /// The kind of thing that an event happened to.
    pub aggregate_type: Option<FieldValue>,
    /// Which one.
    pub aggregate_id: Option<FieldValue>,
    /// What happened.
    pub event_type: Option<FieldValue>,
    /// The body.
    pub payload: Option<FieldValue>,
    /// A JSON object of further headers.
    pub headers: Option<FieldValue>,
    /// When the row was written.
    pub created_at: Option<FieldValue>,
    /// When it was published.
    pub sent_at: Option<FieldValue>,
    /// The routing key.
    pub routing_key: Option<FieldValue>,
    /// The exchange.
    pub exchange: Option<FieldValue>,
    /// The property `content_type`.
    pub content_type: Option<FieldValue>,
    /// The property `expiration`.
    pub expiration: Option<FieldValue>,
    /// The property `priority`.
    pub priority: Option<FieldValue>,
    /// The property `correlation_id`.
    pub correlation_id: Option<FieldValue>,
}

/// How an outbox table's columns are called where nothing else is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// As the fields of an event are.
    Walrelay,
    /// As Debezium's outbox event router has them.
    Debezium,
}
