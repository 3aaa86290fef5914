//! From the configuration to what each module is handed: parsed values, never the configuration itself.

use std::error::Error;
use std::time::Duration;

use anyhow::Context as _;
use secrecy::ExposeSecret as _;
use walrelay_engine::event::{AfterPublish, OutboxTable, Route};
use walrelay_engine::flow::{FlowConfig, IgnoredTable, ReplayConfig};
use walrelay_engine::marks::MarkSettings;
use walrelay_engine::policy::{Policies, Policy};
use walrelay_engine::route::Template;
use walrelay_engine::window::WindowLimits;

use super::WrongUsage;
use super::outbox::{outbox_tables, outboxes, retention_without_time, route};
use crate::cli::ReplayArgs;
use crate::config::{
    Agreement, AuthMechanism, Config, ConfigError, ExchangeType, FailurePolicy, OnSlotLost, Ordering,
    RabbitmqConfig, Validator,
};
use crate::net::tls::{Identity, RootSource, TlsSettings, TlsVerification};
use crate::postgres;
use crate::postgres::marker::{MarkSet, Unsent};
use crate::postgres::rows::Filter;
use crate::postgres::{
    ConnectTarget, Outbox, PublicationName, QualifiedTable, RecoverOptions, SlotName, Source, StartOptions,
    UrlError,
};
use crate::rabbitmq::{self, BrokerUri, Brokers, Exchange, Management, Mechanism};
use crate::relay::{CareSettings, DatabaseSettings, RelaySettings, ReplaySettings, RetentionSettings};

/// The time for connecting to the broker, all steps together.
const BROKER_TIMEOUT: Duration = Duration::from_secs(10);

/// A session whose server says nothing for so many of its time-outs, though asked half-way, is given up.
const SILENT_TIMEOUTS: u32 = 3;

/// Checks by the modules that texts of the configuration are for, joined here since only commands know them all.
pub(super) const VALIDATORS: &[Validator] = &[
    ("postgres.url", check::<ConnectTarget>),
    ("postgres.slot", check::<SlotName>),
    ("postgres.publication", check::<PublicationName>),
    ("postgres.ignore_tables", check::<QualifiedTable>),
    ("outbox.table", check::<QualifiedTable>),
    ("outbox.unsent", check::<Unsent>),
    ("outbox.mark_set", check::<MarkSet>),
    ("otel.endpoint", check_otel_endpoint),
    ("rabbitmq.uri", |text| Ok(BrokerUri::parse(text).map(drop)?)),
    ("rabbitmq.management", |text| {
        Ok(Management::parse(text, "", None, &RootSource::System).map(drop)?)
    }),
    ("rabbitmq.exchange", |text| Ok(Template::parse(text).map(drop)?)),
    (
        "rabbitmq.routing_key",
        |text| Ok(Template::parse(text).map(drop)?),
    ),
];

/// What values of the configuration must agree on, beyond what it can know itself.
pub(super) const AGREEMENTS: &[Agreement] = &[
    ("outbox.retention.keep_sent", retention_without_time),
    ("rabbitmq.declare.exchange_type", |config| {
        let is_fixed = |name: Template| name.as_constant().is_some_and(|name| !name.is_empty());
        let can_declare = Template::parse(&config.rabbitmq.exchange).is_ok_and(is_fixed);
        (config.rabbitmq.declare.is_some() && !can_declare).then_some(
        "rabbitmq.declare cannot declare an exchange with a column in its name, nor the default exchange: leave it out",
    )
    }),
];

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
    let route = route(config)?;
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
        tables: outbox_tables(config)?,
        ignore_tables: ignore_tables.iter().map(ignored_table).collect(),
        limits: limits(config)?,
        max_message_bytes: delivery.max_message_bytes.map(usize::try_from).transpose()?,
        confirm_timeout: delivery.confirm_timeout,
        status_interval: config.postgres.status_interval,
        silence_timeout: config.postgres.wal_sender_timeout * SILENT_TIMEOUTS,
        app_id: config.rabbitmq.app_id.clone(),
        policies,
        keep_rows: delivery.hold_max_wal.is_some()
            || [policies.unroutable, policies.invalid].contains(&Policy::DeadLetter),
        strict: delivery.ordering == Ordering::Strict,
        max_rate: delivery.max_rate,
        marks: MarkSettings {
            batch: delivery.mark_batch.into(),
            interval: delivery.mark_interval,
        },
    };
    Ok(RelaySettings {
        brokers: brokers(config, &route, &format!("walrelay {}", source.slot), auto_setup)?,
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
    let route = route(config)?;
    let tables = selected(&source, args.table.as_ref())?;
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
        brokers: brokers(config, &route, &name, false)?,
        delivery: ReplayConfig {
            limits: limits(config)?,
            max_message_bytes: delivery.max_message_bytes.map(usize::try_from).transpose()?,
            confirm_timeout: delivery.confirm_timeout,
            app_id: config.rabbitmq.app_id.clone(),
            max_rate: Some(args.rate),
        },
        shutdown_grace: delivery.shutdown_grace,
    })
}

/// The outbox tables that a command is about: the one it names, or all.
pub(super) fn selected(source: &Source, table: Option<&QualifiedTable>) -> anyhow::Result<Vec<Outbox>> {
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

const fn policy(policy: FailurePolicy) -> Policy {
    match policy {
        FailurePolicy::Hold => Policy::Hold,
        FailurePolicy::DeadLetter => Policy::DeadLetter,
        FailurePolicy::Discard => Policy::Discard,
    }
}

fn ignored_table(table: &QualifiedTable) -> IgnoredTable {
    IgnoredTable {
        schema: table.schema.clone(),
        name: table.name.clone(),
    }
}

pub(super) fn brokers(
    config: &Config,
    route: &Route,
    name: &str,
    auto_setup: bool,
) -> anyhow::Result<Brokers> {
    let rabbitmq = &config.rabbitmq;
    let declare = rabbitmq.declare.or(auto_setup.then_some(ExchangeType::Topic));
    // An exchange with a column in its name is known only when an event comes.
    let exchange = route.exchange.as_constant().map(|name| Exchange {
        name: name.to_owned(),
        declare: declare.map(|kind| kind.as_str().to_owned()),
    });
    let connectors = rabbitmq.uris.iter().map(|uri| {
        let mut uri = BrokerUri::parse(uri.expose_secret())?;
        uri.password = rabbitmq.password.clone().or(uri.password);
        let tls = broker_tls(&uri, rabbitmq);
        let mechanisms = mechanisms(&uri, rabbitmq.auth_mechanism);
        let shows = tls.as_ref().is_some_and(|tls| tls.identity.is_some());
        if mechanisms.contains(&Mechanism::External) && !shows {
            return Err(ConfigError::contradiction(format!(
                "auth_mechanism external needs amqps:// and a certificate (rabbitmq.cert_file) at {}",
                uri.endpoint()
            ))
            .into());
        }
        Ok(rabbitmq::Connector {
            tls,
            mechanisms,
            uri,
            password_file: rabbitmq.password_file.clone(),
            name: name.to_owned(),
            heartbeat: rabbitmq.heartbeat,
            exchanges: exchange.clone().into_iter().collect(),
            timeout: BROKER_TIMEOUT,
        })
    });
    let mut connectors = connectors.collect::<anyhow::Result<Vec<_>>>()?.into_iter();
    let first = connectors.next().context("rabbitmq.uri is empty")?;
    Ok(Brokers::new(first, connectors))
}

/// How TLS is spoken with a broker: its URI's parameters win over the keys for all.
fn broker_tls(uri: &BrokerUri, rabbitmq: &RabbitmqConfig) -> Option<TlsSettings> {
    if !uri.tls {
        return None;
    }
    let query = &uri.query;
    let roots = query.ca_file.clone().or_else(|| rabbitmq.ca_file.clone());
    let verification = match query.verify {
        Some(false) => TlsVerification::None,
        Some(true) | None => TlsVerification::Full(roots.map_or(RootSource::System, RootSource::File)),
    };
    // A pair comes whole from one place.
    let certificate = match &query.cert_file {
        Some(_) => (&query.cert_file, &query.key_file),
        None => (&rabbitmq.cert_file, &rabbitmq.key_file),
    };
    let identity = match certificate {
        (Some(certificate), Some(key)) => Some(Identity {
            certificate: certificate.clone(),
            key: key.clone(),
        }),
        _ => None,
    };
    Some(TlsSettings {
        verification,
        identity,
        server_name: query.server_name.clone(),
    })
}

fn mechanisms(uri: &BrokerUri, by_key: AuthMechanism) -> Vec<Mechanism> {
    if !uri.query.mechanisms.is_empty() {
        return uri.query.mechanisms.clone();
    }
    vec![match by_key {
        AuthMechanism::Plain => Mechanism::Plain,
        AuthMechanism::External => Mechanism::External,
    }]
}
