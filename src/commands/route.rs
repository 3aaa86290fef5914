//! `walrelay route`: what a row would become, by the configuration alone.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value as Json};
use walrelay_engine::amqp::{FieldValue, PropertyValue, Table};
use walrelay_engine::emitted::{self, PAYLOAD_OID};
use walrelay_engine::event::{MappingError, OutboxTable};
use walrelay_engine::flow::{GivenColumn, Preview, PreviewConfig, PreviewError, preview};
use walrelay_engine::policy::Policy;

use super::outbox::{all_tables, policy};
use super::table::visible;
use super::{Exit, WrongUsage, print};
use crate::cli::{OutputArg, RouteArgs};
use crate::config::{Config, Loaded};
use crate::postgres::QualifiedTable;

/// A larger file is no row: PostgreSQL sends none whose values have more than 1 GiB.
const LARGEST: u64 = 1 << 30;

/// RabbitMQ's default (<https://www.rabbitmq.com/docs/configure>, `frame_max`).
const FRAME_MAX: u32 = 131_072;

/// Oids of the types that a file tells apart; fixed in PostgreSQL's `pg_type.dat`.
const TEXT: u32 = 25;
const BYTEA: u32 = 17;
const JSONB: u32 = 3802;

/// Headers whose values the stream alone knows.
const OF_STREAM: [&str; 2] = ["commit_lsn", "tx_seq"];

pub(super) fn execute(args: &RouteArgs, loaded: &Loaded) -> anyhow::Result<Exit> {
    let config = &loaded.config;
    let tables = all_tables(config)?;
    let table = chosen(&tables, config.outbox.len(), args.table.as_ref())?;
    // No outbox table is in that schema.
    let is_emitted = config.messages_prefix.is_some() && table.schema == emitted::SCHEMA;
    let columns = columns(&read(&args.json)?, is_emitted).with_context(|| args.json.display().to_string())?;
    let delivery = &config.delivery;
    let settings = PreviewConfig {
        app_id: &config.rabbitmq.app_id,
        max_message_bytes: delivery.max_message_bytes.map(usize::try_from).transpose()?,
        frame_max: FRAME_MAX,
    };
    let found = preview(table, &columns, settings).map_err(|error| match error {
        PreviewError::Row(reason) => anyhow::anyhow!("the row is invalid: {reason}"),
        PreviewError::Mapping(
            error @ (MappingError::ColumnMissing { .. } | MappingError::TemplateColumnMissing { .. }),
        ) => anyhow::anyhow!("{error}; the row has to have it, if only as null"),
        error @ (PreviewError::Mapping(_) | PreviewError::Columns(_)) => error.into(),
    })?;
    let shown = Shown::new(config, table, &found).context("read the message that was made")?;
    print(&match args.output {
        OutputArg::Human => shown.text(),
        OutputArg::Json => serde_json::to_string_pretty(&shown)? + "\n",
    })?;
    Ok(Exit::Clean)
}

/// The table that is named, or the only one among so many of rows; where there is none, the one that stands for events
/// without a table.
fn chosen<'a>(
    tables: &'a [OutboxTable],
    of_rows: usize,
    named: Option<&QualifiedTable>,
) -> anyhow::Result<&'a OutboxTable> {
    let name = |table: &OutboxTable| QualifiedTable {
        schema: table.schema.clone(),
        name: table.name.clone(),
    };
    match (named, tables) {
        (Some(named), tables) => {
            let found = tables.iter().find(|table| name(table) == *named);
            found.with_context(|| format!("{named} is not among the outbox tables of the configuration"))
        }
        (None, [table, ..]) if of_rows <= 1 => Ok(table),
        (None, tables) => {
            let names: Vec<_> = tables.iter().map(|table| name(table).to_string()).collect();
            let usage = format!("--table is needed: the configuration has {}", names.join(", "));
            Err(WrongUsage(usage).into())
        }
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let (mut file, mut stdin);
    let input: &mut dyn Read = match path.to_str() {
        Some("-") => {
            stdin = io::stdin().lock();
            &mut stdin
        }
        _ => {
            file = File::open(path).with_context(|| path.display().to_string())?;
            &mut file
        }
    };
    let read = input.take(LARGEST + 1).read_to_string(&mut text);
    let length = read.with_context(|| path.display().to_string())?;
    anyhow::ensure!(
        u64::try_from(length)? <= LARGEST,
        "{}: it is larger than any row, {LARGEST} bytes",
        path.display()
    );
    Ok(text)
}

/// The columns of a row. Of their types is known what JSON tells; the payload of an event without a table is JSON itself.
fn columns(text: &str, is_emitted: bool) -> anyhow::Result<Vec<GivenColumn>> {
    let columns: BTreeMap<String, &RawValue> =
        serde_json::from_str(text).context("it is no JSON object of columns and values")?;
    let columns = columns.into_iter().map(|(name, value)| {
        let raw = value.get();
        let (type_oid, text) = match raw.chars().next() {
            Some(_) if is_emitted && name == "payload" => (PAYLOAD_OID, Some(raw.to_owned())),
            Some('"') => {
                let text: String = serde_json::from_str(raw)?;
                (if is_hex(&text) { BYTEA } else { TEXT }, Some(text))
            }
            Some('{' | '[') => (JSONB, Some(raw.to_owned())),
            _ => (
                TEXT,
                match raw {
                    "null" => None,
                    // What PostgreSQL sends of a boolean.
                    "true" => Some("t".to_owned()),
                    "false" => Some("f".to_owned()),
                    number => Some(number.to_owned()),
                },
            ),
        };
        Ok(GivenColumn { name, type_oid, text })
    });
    columns.collect()
}

/// Whether it looks like PostgreSQL's text of a bytea.
fn is_hex(text: &str) -> bool {
    let digits = text.strip_prefix("\\x");
    digits.is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

/// What is printed.
#[derive(Serialize)]
struct Shown {
    table: String,
    /// Counted from 1; none for the table's own route.
    rule: Option<usize>,
    exchange: String,
    routing_key: String,
    mandatory: bool,
    on_unroutable: &'static str,
    /// What only the stream knows is null.
    properties: Map<String, Json>,
    headers: Map<String, Json>,
    body_bytes: usize,
}

impl Shown {
    /// `None`: it cannot be read back, which cannot be.
    fn new(config: &Config, table: &OutboxTable, found: &Preview) -> Option<Self> {
        let Preview { destination, message } = found;
        let properties = message.properties()?;
        let shown = properties.iter().map(|(name, value)| {
            let value = match value {
                // Only the stream knows it.
                PropertyValue::Number(_) if name == "timestamp" => Json::Null,
                PropertyValue::Number(number) => Json::from(number),
                PropertyValue::Text(text) => Json::from(String::from_utf8_lossy(text)),
            };
            (name.to_owned(), value)
        });
        let mut headers = properties.headers().map(table_json).unwrap_or_default();
        for name in OF_STREAM {
            headers.entry(name).and_modify(|value| *value = Json::Null);
        }
        let on_unroutable = destination.on_unroutable;
        Some(Self {
            table: format!("{}.{}", table.schema, table.name),
            rule: destination.rule.map(|place| place + 1),
            exchange: destination.exchange.clone(),
            routing_key: destination.routing_key.clone(),
            mandatory: true,
            on_unroutable: match on_unroutable.unwrap_or(policy(config.delivery.on_unroutable)) {
                Policy::Hold => "hold",
                Policy::DeadLetter => "dead_letter",
                Policy::Discard => "discard",
            },
            properties: shown.collect(),
            headers,
            body_bytes: message.body_len(),
        })
    }

    fn text(&self) -> String {
        let rule = match self.rule {
            Some(number) => format!("{number} of outbox.route"),
            None => "none: the table's own route".to_owned(),
        };
        let exchange = match self.exchange.as_str() {
            "" => "(the default exchange)",
            name => name,
        };
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            text.push_str(format!("{name:<18}{}", visible(value)).trim_end());
            text.push('\n');
        };
        line("table", &self.table);
        line("rule", &rule);
        line("exchange", exchange);
        line("routing key", &self.routing_key);
        line("mandatory", if self.mandatory { "yes" } else { "no" });
        line("on_unroutable", self.on_unroutable);
        line("body", &format!("{} bytes", self.body_bytes));
        for (title, values) in [("properties", &self.properties), ("headers", &self.headers)] {
            line(title, "");
            for (name, value) in values {
                let is_of_stream = OF_STREAM.contains(&name.as_str()) || name == "timestamp";
                let value = match value.as_str() {
                    Some(text) => text.to_owned(),
                    None if value.is_null() && is_of_stream => "(known when it is read)".to_owned(),
                    None => value.to_string(),
                };
                line(&format!("  {}", visible(name)), &value);
            }
        }
        text
    }
}

/// A table of headers as JSON.
fn table_json(table: Table<'_>) -> Map<String, Json> {
    let entries = table.iter().map_while(Result::ok);
    entries
        .map(|(name, value)| (String::from_utf8_lossy(name).into_owned(), value_json(value)))
        .collect()
}

fn value_json(value: FieldValue<'_>) -> Json {
    if let Some(number) = value.integer() {
        return number.into();
    }
    match value {
        FieldValue::Bool(on) => on.into(),
        FieldValue::F32(number) => f64::from(number).into(),
        FieldValue::F64(number) => number.into(),
        FieldValue::Decimal { scale, value } => format!("{value}e-{scale}").into(),
        FieldValue::Text(text) | FieldValue::Bytes(text) => String::from_utf8_lossy(text).into(),
        FieldValue::Timestamp(seconds) => seconds.into(),
        FieldValue::Array(items) => items.iter().map_while(Result::ok).map(value_json).collect(),
        FieldValue::Table(table) => table_json(table).into(),
        FieldValue::Void
        | FieldValue::I8(_)
        | FieldValue::U8(_)
        | FieldValue::I16(_)
        | FieldValue::U16(_)
        | FieldValue::I32(_)
        | FieldValue::U32(_)
        | FieldValue::I64(_) => Json::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Sources, load};

    fn of(more: &[&str]) -> (Config, Vec<OutboxTable>) {
        let urls = ["postgres.url=postgres://u@db/shop", "rabbitmq.uri=amqp://u@mq"];
        let set = urls.iter().chain(more);
        let sources = Sources {
            set: set.map(|text| (*text).to_owned()).collect(),
            ..Sources::default()
        };
        let config = load(&sources).expect("a configuration").config;
        let tables = all_tables(&config).expect("tables");
        (config, tables)
    }

    #[test]
    fn without_outbox_tables_a_row_is_an_event_without_a_table() {
        let (config, tables) = of(&["source.messages.prefix=shop"]);
        let table = chosen(&tables, config.outbox.len(), None).expect("a table");
        assert_eq!((&*table.schema, &*table.name), ("walrelay", "messages:shop"));
        let row = r#"{"id": "1", "aggregate_type": "order", "aggregate_id": "7", "event_type": "paid", "payload": "x"}"#;
        let row = columns(row, true).expect("columns");
        let settings = PreviewConfig {
            app_id: "walrelay",
            max_message_bytes: None,
            frame_max: FRAME_MAX,
        };
        let found = preview(table, &row, settings).expect("a message");
        let shown = Shown::new(&config, table, &found).expect("it can be read");
        assert_eq!((&*shown.routing_key, shown.body_bytes), ("order.paid", 3));
        assert_eq!(
            shown.properties.get("content_type"),
            Some(&Json::from("application/json"))
        );
    }

    #[test]
    fn beside_events_without_a_table_the_only_outbox_table_needs_no_name() {
        let (config, tables) = of(&["source.messages.prefix=shop", "outbox.table=a.b"]);
        let table = chosen(&tables, config.outbox.len(), None).expect("a table");
        assert_eq!(&*table.name, "b");
        let named = QualifiedTable {
            schema: "walrelay".to_owned(),
            name: "messages:shop".to_owned(),
        };
        let table = chosen(&tables, config.outbox.len(), Some(&named)).expect("a table");
        assert_eq!(&*table.name, "messages:shop");
    }
}
