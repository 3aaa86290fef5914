//! Which columns of an outbox table are which fields of an event.

/// Where a field of an event comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Source {
    /// Nowhere: the event has no such field.
    #[default]
    Absent,
    /// The column of this name, which must be there.
    Column(String),
    /// The column of this name, where there is one.
    ColumnIfThere(String),
    /// This text, for every event.
    Constant(String),
}

impl Source {
    /// The column's name, if it is to be one.
    #[must_use]
    pub fn column(&self) -> Option<&str> {
        match self {
            Self::Column(name) | Self::ColumnIfThere(name) => Some(name),
            Self::Absent | Self::Constant(_) => None,
        }
    }
}

/// Where each field of a table's events comes from.
///
/// `id` and `payload` are always columns: an id that is the same for all would make consumers drop all but one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    /// The event's id, of any type: its text is the message id.
    pub id: String,
    /// The kind of thing it happened to.
    pub aggregate_type: Source,
    /// Which one.
    pub aggregate_id: Source,
    /// What happened.
    pub event_type: Source,
    /// The body.
    pub payload: String,
    /// A JSON object that joins the message's headers; a column or absent.
    pub headers: Source,
    /// When the row was written; a column or absent. Only SQL statements and formats look at it.
    pub created_at: Source,
    /// Not NULL in rows that are sent; a column or absent.
    pub sent_at: Source,
    /// The routing key, where it has one; else the template's.
    pub routing_key: Source,
    /// The exchange, where it has one; else the template's.
    pub exchange: Source,
    /// The property `content_type`, else by the payload's type.
    pub content_type: Source,
    /// The property `expiration`, in milliseconds.
    pub expiration: Source,
    /// The property `priority`, 0 to 255.
    pub priority: Source,
    /// The property `correlation_id`.
    pub correlation_id: Source,
}

/// A table whose columns are called as the fields are.
impl Default for Columns {
    fn default() -> Self {
        let column = |name: &str| Source::Column(name.to_owned());
        let if_there = |name: &str| Source::ColumnIfThere(name.to_owned());
        Self {
            id: "id".to_owned(),
            aggregate_type: column("aggregate_type"),
            aggregate_id: column("aggregate_id"),
            event_type: column("event_type"),
            payload: "payload".to_owned(),
            headers: if_there("headers"),
            created_at: if_there("created_at"),
            sent_at: if_there("sent_at"),
            routing_key: Source::Absent,
            exchange: Source::Absent,
            content_type: Source::Absent,
            expiration: Source::Absent,
            priority: Source::Absent,
            correlation_id: Source::Absent,
        }
    }
}

impl Columns {
    /// The columns of Debezium's outbox event router
    /// (<https://debezium.io/documentation/reference/stable/transformations/outbox-event-router.html>).
    #[must_use]
    pub fn debezium() -> Self {
        let column = |name: &str| Source::Column(name.to_owned());
        Self {
            aggregate_type: column("aggregatetype"),
            aggregate_id: column("aggregateid"),
            event_type: column("type"),
            ..Self::default()
        }
    }

    /// The source of the field of this name; `None` where no field is called so.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<Source> {
        Some(match name {
            "id" => Source::Column(self.id.clone()),
            "aggregate_type" => self.aggregate_type.clone(),
            "aggregate_id" => self.aggregate_id.clone(),
            "event_type" => self.event_type.clone(),
            "payload" => Source::Column(self.payload.clone()),
            "headers" => self.headers.clone(),
            "created_at" => self.created_at.clone(),
            "sent_at" => self.sent_at.clone(),
            "routing_key" => self.routing_key.clone(),
            "exchange" => self.exchange.clone(),
            "content_type" => self.content_type.clone(),
            "expiration" => self.expiration.clone(),
            "priority" => self.priority.clone(),
            "correlation_id" => self.correlation_id.clone(),
            _ => return None,
        })
    }

    /// What a name in a template or a rule stands for: the field of this name before a column that is called so.
    #[must_use]
    pub fn source_of(&self, name: &str) -> Source {
        match self.field(name) {
            Some(Source::Absent) | None => Source::Column(name.to_owned()),
            Some(source) => source,
        }
    }

    /// The columns that a row must have, each with the field that it is, in the order in which faults are reported.
    #[must_use]
    pub fn required(&self) -> Vec<(&'static str, &str)> {
        let fields = [
            ("id", Some(self.id.as_str())),
            ("aggregate_type", self.aggregate_type.column()),
            ("aggregate_id", self.aggregate_id.column()),
            ("event_type", self.event_type.column()),
            ("payload", Some(self.payload.as_str())),
        ];
        let fields = fields.into_iter();
        fields
            .filter_map(|(field, column)| Some((field, column?)))
            .collect()
    }
}
