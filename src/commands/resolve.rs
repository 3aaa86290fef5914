//! From the configuration to what each module is handed: parsed values, never the configuration itself.

use std::error::Error;
use std::time::Duration;

use anyhow::Context as _;
use secrecy::ExposeSecret as _;
use walrelay_engine::amqp::NameUse;
use walrelay_engine::event::{AfterPublish, OutboxTable};
use walrelay_engine::flow::{FlowConfig, IgnoredTable, ReplayConfig};
use walrelay_engine::marks::MarkSettings;
use walrelay_engine::policy::Policies;
use walrelay_engine::route::{Reference, Template, TemplateError};
use walrelay_engine::window::WindowLimits;

use super::outbox::{
    all_tables, check_expiration, check_priority, check_source, has_dead_letters, outbox_tables, outboxes,
    policy, retention_without_time, shard_of_constant,
};
use super::{WrongUsage, brokers::brokers, stream};
use crate::cli::ReplayArgs;
use crate::config::{
    Agreement, Config, DeliveryConfig, OnSlotLost, Ordering, Pointed, SinkChoice, Validator,
};
use crate::net::tls::RootSource;
use crate::postgres;
use crate::postgres::marker::{MarkSet, Unsent};
use crate::postgres::rows::Filter;
use crate::postgres::{
    ConnectTarget, MessagePrefix, Outbox, PublicationName, QualifiedTable, RecoverOptions, Shard, SlotName,
    Source, StartOptions, UrlError,
};
use crate::rabbitmq::{BrokerUri, Management};
use crate::relay::{CareSettings, DatabaseSettings, RelaySettings, ReplaySettings, RetentionSettings, Sink};
use crate::stdout::Stdout;

/// A line that is written needs no confirm, so none is late: a reader that takes its time is told of as such. A year, so
/// that no sum with an instant overflows.
const STDOUT_CONFIRM_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A session whose server says nothing for so many of its time-outs, though asked half-way, is given up.
const SILENT_TIMEOUTS: u32 = 3;

/// Checks by the modules that texts of the configuration are for, joined here since only commands know them all.
pub(super) const VALIDATORS: &[Validator] = &[
    ("postgres.url", check::<ConnectTarget>),
    ("postgres.slot", check::<SlotName>),
    ("postgres.publication", check::<PublicationName>),
    ("postgres.shard", check::<Shard>),
    ("postgres.ignore_tables", check::<QualifiedTable>),
    ("source.messages.prefix", check::<MessagePrefix>),
    ("outbox.table", check::<QualifiedTable>),
    ("outbox.unsent", check::<Unsent>),
    ("outbox.mark_set", check::<MarkSet>),
    ("otel.endpoint", check_otel_endpoint),
    ("rabbitmq.stream.name", check_stream),
    ("rabbitmq.uri", |text| Ok(BrokerUri::parse(text).map(drop)?)),
    ("rabbitmq.management", |text| {
        Ok(Management::parse(text, "", None, &RootSource::System).map(drop)?)
    }),
    ("rabbitmq.exchange", check_short_template),
    ("rabbitmq.routing_key", check_short_template),
    ("outbox.exchange", check_short_template),
    ("outbox.routing_key", check_short_template),
    ("outbox.route.exchange", check_short_template),
    ("outbox.route.routing_key", check_short_template),
    ("outbox.route.when", |text| {
        Reference::parse(text).map_err(|error| pointed(text, &error))?;
        Ok(())
    }),
    ("outbox.columns.content_type", check_short_template),
    ("outbox.columns.expiration", check_short_template),
    ("outbox.columns.expiration", check_expiration),
    ("outbox.columns.priority", check_short_template),
    ("outbox.columns.priority", check_priority),
    ("outbox.columns.correlation_id", check_short_template),
    ("outbox.headers", check_template),
    ("outbox.cloudevents.source", check_source),
    ("outbox.cloudevents.type", check_template),
];

/// What values of the configuration must agree on, beyond what it can know itself.
pub(super) const AGREEMENTS: &[Agreement] = &[
    ("outbox.retention.keep_sent", retention_without_time),
    ("rabbitmq.declare.exchange_type", |config| {
        // What is wrong with the tables is said of them.
        let tables = all_tables(config).ok()?;
        let mut exchanges = tables.iter().flat_map(OutboxTable::fixed_exchanges);
        let can_declare = exchanges.any(|name| !name.is_empty());
        (config.rabbitmq.declare.is_some() && !can_declare).then_some(
        "rabbitmq.declare cannot declare an exchange with a column in its name, nor the default exchange: leave it out",
    )
    }),
    ("source.messages.prefix", |config| {
        let table = config
            .messages_prefix
            .as_deref()?
            .parse()
            .ok()
            .map(|prefix: MessagePrefix| prefix.table());
        let is_taken = config
            .outbox
            .iter()
            .any(|outbox| outbox.table.parse().ok() == table);
        is_taken
            .then_some("an outbox.table has the name that stands for the messages of source.messages.prefix")
    }),
    ("postgres.shard", |config| {
        (config.postgres.shard.is_some() && config.messages_prefix.is_some()).then_some(
            "postgres.shard divides rows of tables, but logical messages (source.messages) come to every slot: give them a relay of \
             its own, without a shard",
        )
    }),
    ("postgres.shard", shard_of_constant),
    ("recovery.on_slot_lost", |config| {
        (config.messages_prefix.is_some() && config.recovery.on_slot_lost == OnSlotLost::Rescan).then_some(
        "recovery.on_slot_lost = \"rescan\" goes on after a lost slot without the events of messages, which are in no table \
         (source.messages): use \"halt\", so that somebody looks for what is missing",
    )
    }),
    ("rabbitmq.declare.exchange_type", |config| {
        (config.rabbitmq.declare.is_some() && stream::is_sink(config))
            .then_some("rabbitmq.declare has no effect together with rabbitmq.stream, which needs no exchange: leave it out")
    }),
    ("delivery.ordering", |config| {
        (config.delivery.ordering == Ordering::Strict && stream::is_sink(config)).then_some(
            "a stream keeps the commit order anyway, and needs it: leave delivery.ordering out together with rabbitmq.stream",
        )
    }),
    ("rabbitmq.stream.port", |config| {
        (config.rabbitmq.stream_port.is_some() && config.rabbitmq.stream_name.is_none())
            .then_some("rabbitmq.stream.port has no effect without rabbitmq.stream.name: leave it out, or name the stream")
    }),
    ("outbox.headers", own_header),
];

fn check_template(text: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    Template::parse(text).map_err(|error| pointed(text, &error))?;
    Ok(())
}

/// The same, of what becomes a short string.
fn check_short_template(text: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    // AMQP 0-9-1, section 4.2.5.3, "Strings".
    const LONGEST: usize = 255;
    let template = Template::parse(text).map_err(|error| pointed(text, &error))?;
    match template.as_constant().map(str::len) {
        Some(length) if length > LONGEST => {
            Err(format!("it has {length} bytes, AMQP allows {LONGEST}: shorten it").into())
        }
        Some(_) | None => Ok(()),
    }
}

/// What is wrong with a template, to be shown with its place.
fn pointed(text: &str, error: &TemplateError) -> Pointed {
    Pointed {
        text: text.to_owned(),
        position: error.position,
        length: error.length,
        why: error.fault(),
    }
}

fn check<T: std::str::FromStr<Err: Error + Send + Sync + 'static>>(
    text: &str,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    text.parse::<T>()?;
    Ok(())
}

#[cfg(feature = "otel")]
fn check_otel_endpoint(endpoint: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    Ok(crate::otel::traces_url(endpoint).map(drop)?)
}

/// A key that would have no effect is an error.
#[cfg(not(feature = "otel"))]
fn check_otel_endpoint(_endpoint: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    Err("this walrelay was built without the cargo feature otel (cargo build --features otel)".into())
}

/// Why a header that every message of a table should get cannot be such.
fn own_header(config: &Config) -> Option<&'static str> {
    let mut names = config
        .outbox
        .iter()
        .flat_map(|outbox| outbox.content.headers.iter());
    names.find_map(|(name, _)| match name {
        "CC" | "BCC" => Some("outbox.headers cannot hold CC and BCC, which are lists: put them into the column of headers"),
        name if !NameUse::of(name.as_bytes()).joins() => Some(
            "outbox.headers cannot hold aggregate_type, aggregate_id, commit_lsn, tx_seq, backfill, replayed, replay_seq, \
             traceparent and tracestate, which walrelay sets itself",
        ),
        _ => None,
    })
}

#[cfg(feature = "stream")]
fn check_stream(name: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    match name.is_empty() {
        true => Err("a stream has a name".into()),
        false => Ok(()),
    }
}

/// A key that would have no effect is an error.
#[cfg(not(feature = "stream"))]
fn check_stream(_name: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    Err("this walrelay was built without the cargo feature stream (cargo build --features stream)".into())
}

/// PostgreSQL's side, as every command that talks to it needs it.
pub(super) fn database(config: &Config) -> anyhow::Result<(postgres::Connector, Source)> {
    let postgres = &config.postgres;
    let mut target: ConnectTarget = postgres.url.expose_secret().parse()?;
    target.password = postgres.password.clone().or(target.password);
    let mut connector = postgres::Connector::new(target);
    if let Some(path) = &postgres.password_file {
        connector = connector.with_password_file(path.clone());
    }
    let source = Source {
        slot: postgres.slot.parse()?,
        publication: postgres.publication.parse()?,
        outboxes: outboxes(config)?,
        messages: config.messages_prefix.as_deref().map(str::parse).transpose()?,
        shard: postgres.shard.as_deref().map(str::parse).transpose()?,
    };
    Ok((connector, source))
}

/// As [`database`], for a command that may be given an administrator's URL.
pub(super) fn database_as(
    config: &Config,
    url: Option<&str>,
) -> anyhow::Result<(postgres::Connector, Source)> {
    let (connector, source) = database(config)?;
    let Some(url) = url else {
        return Ok((connector, source));
    };
    // The text of a wrong one is not repeated: it may hold a password.
    let target = url
        .parse()
        .map_err(|error: UrlError| WrongUsage(format!("--url: {error}")))?;
    Ok((postgres::Connector::new(target), source))
}

/// Everything that a running relay needs.
pub(super) fn relay(config: &Config, auto_setup: bool, exit_on_halt: bool) -> anyhow::Result<RelaySettings> {
    let (connector, source) = database(config)?;
    let start = StartOptions {
        slot: source.slot.clone(),
        publication: source.publication.clone(),
        wal_sender_timeout: config.postgres.wal_sender_timeout,
        max_event_bytes: config.delivery.max_event_bytes.try_into()?,
    };
    let delivery = &config.delivery;
    let kept = source.outboxes.iter().zip(&config.outbox);
    let retention = kept.filter_map(|(table, outbox)| {
        outbox.keep_sent.map(|keep_sent| RetentionSettings {
            outbox: table.clone(),
            keep_sent,
        })
    });
    let retention = retention.collect();
    let policies = Policies {
        unroutable: policy(delivery.on_unroutable),
        invalid: policy(delivery.on_invalid),
    };
    let ignore_tables = ignore_tables(config)?;
    let flow = FlowConfig {
        tables: all_tables(config)?,
        messages: source.messages.as_ref().map(|prefix| prefix.as_str().to_owned()),
        ignore_tables: ignore_tables.iter().map(ignored_table).collect(),
        limits: limits(config)?,
        max_message_bytes: delivery.max_message_bytes.map(usize::try_from).transpose()?,
        confirm_timeout: confirm_timeout(delivery),
        status_interval: config.postgres.status_interval,
        silence_timeout: config.postgres.wal_sender_timeout * SILENT_TIMEOUTS,
        app_id: config.rabbitmq.app_id.clone(),
        policies,
        keep_rows: has_dead_letters(config),
        strict: delivery.ordering == Ordering::Strict,
        max_rate: delivery.max_rate,
        marks: MarkSettings {
            batch: delivery.mark_batch.into(),
            interval: delivery.mark_interval,
        },
    };
    Ok(RelaySettings {
        sink: sink(config, &format!("walrelay {}", source.slot), auto_setup)?,
        database: DatabaseSettings {
            connector,
            source,
            ignore_tables,
            start,
            auto_setup,
            rescan: (config.recovery.on_slot_lost == OnSlotLost::Rescan).then(|| RecoverOptions {
                is_unattended: true,
                ..RecoverOptions::default()
            }),
        },
        flow,
        care: CareSettings {
            hold_max_wal: delivery.hold_max_wal,
            dead_letters_max: delivery.dead_letters_max.into(),
            guard_interval: config.postgres.guard_interval,
        },
        retention,
        shutdown_grace: delivery.shutdown_grace,
        exit_on_halt,
        spans: None,
    })
}

/// Everything that a replay needs.
pub(super) fn replay(config: &Config, args: &ReplayArgs) -> anyhow::Result<ReplaySettings> {
    let (connector, source) = database(config)?;
    let delivery = &config.delivery;
    let tables = selected(&source, args.table.as_ref(), "replay")?;
    anyhow::ensure!(
        !stream::is_sink(config),
        "a replay cannot publish to a stream: take a configuration without [rabbitmq.stream], whose rabbitmq.exchange is bound to it"
    );
    let name = format!("walrelay {} replay", config.postgres.slot);
    Ok(ReplaySettings {
        connector,
        slot: source.slot.clone(),
        tables: outbox_tables(config)?
            .into_iter()
            .filter(|outbox| {
                tables
                    .iter()
                    .any(|Outbox { table, .. }| table.schema == outbox.schema && table.name == outbox.name)
            })
            .map(|outbox| OutboxTable {
                after_publish: Some(AfterPublish::Keep),
                ..outbox
            })
            .collect(),
        filter: Filter {
            ids: args.events.iter().chain(&args.id).cloned().collect(),
            aggregate: args.aggregate.clone(),
            event_type: args.event_type.clone(),
            since: args.since,
            until: args.until,
        },
        max_event_bytes: delivery.max_event_bytes.try_into()?,
        sink: sink(config, &name, false)?,
        delivery: ReplayConfig {
            limits: limits(config)?,
            max_message_bytes: delivery.max_message_bytes.map(usize::try_from).transpose()?,
            confirm_timeout: confirm_timeout(delivery),
            app_id: config.rabbitmq.app_id.clone(),
            max_rate: Some(args.rate),
        },
        shutdown_grace: delivery.shutdown_grace,
    })
}

/// The outbox tables that a command is about: the one it names, or all; `what` it does with them.
pub(super) fn selected(
    source: &Source,
    table: Option<&QualifiedTable>,
    what: &str,
) -> anyhow::Result<Vec<Outbox>> {
    let is_of_messages = |prefix: &MessagePrefix| table.is_none_or(|table| *table == prefix.table());
    anyhow::ensure!(
        !(source.messages.as_ref().is_some_and(is_of_messages)
            && (source.outboxes.is_empty() || table.is_some())),
        "events of logical messages (source.messages) are in no table: there is nothing to {what}; docs/table-less.md says \
         what else there is"
    );
    let Some(table) = table else {
        return Ok(source.outboxes.clone());
    };
    let outbox = source.outboxes.iter().find(|outbox| outbox.table == *table);
    let outbox =
        outbox.with_context(|| format!("{table} is not among the outbox tables of the configuration"))?;
    Ok(vec![outbox.clone()])
}

/// Tables of the publication whose rows are passed over.
pub(super) fn ignore_tables(config: &Config) -> anyhow::Result<Vec<QualifiedTable>> {
    let tables = config.postgres.ignore_tables.iter().map(|table| table.parse());
    Ok(tables.collect::<Result<_, _>>()?)
}

fn limits(config: &Config) -> anyhow::Result<WindowLimits> {
    Ok(WindowLimits {
        events: config.delivery.max_in_flight.into(),
        bytes: config.delivery.max_in_flight_bytes.try_into()?,
    })
}

fn ignored_table(table: &QualifiedTable) -> IgnoredTable {
    IgnoredTable {
        schema: table.schema.clone(),
        name: table.name.clone(),
    }
}

const fn confirm_timeout(delivery: &DeliveryConfig) -> Duration {
    match delivery.sink {
        SinkChoice::Rabbitmq => delivery.confirm_timeout,
        SinkChoice::Stdout => STDOUT_CONFIRM_TIMEOUT,
    }
}

/// Where messages go. `name` is what a broker lists the connection under.
fn sink(config: &Config, name: &str, auto_setup: bool) -> anyhow::Result<Sink> {
    Ok(match config.delivery.sink {
        SinkChoice::Rabbitmq => {
            let brokers = brokers(config, name, auto_setup)?;
            Sink::RabbitMq(Box::new(stream::publishing_to(brokers, config)))
        }
        SinkChoice::Stdout => Sink::Stdout(Stdout::default()),
    })
}
