//! The configuration as plain values, ready to be handed to the modules that need them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use super::choices::{
    AuthMechanism, ExchangeType, FailurePolicy, LogFormat, OnSlotLost, Ordering, SinkChoice,
};
use super::content::ContentConfig;
use super::contradictions;
use super::fields::{Field as _, Fields};
use super::key::{self, Key, Presence};
use super::keys::KEYS;
use super::layers::Settings;
use super::log_levels::LogLevels;
use super::problem::{Problem, ProblemKind};
use super::tables::{ColumnsConfig, OutboxConfig, RouteConfig};

/// The keys by which a broker is asked for, or not.
const SINK: &str = "delivery.sink";
const URI: &str = "rabbitmq.uri";

/// The whole configuration. Its `Debug` shows no secret.
#[derive(Debug, Clone)]
pub struct Config {
    /// The database side.
    pub postgres: PostgresConfig,
    /// `[source.messages]`: the prefix of the logical messages that are events, not yet parsed; `None`: none are.
    pub messages_prefix: Option<String>,
    /// The outbox tables, each once: at least one, unless messages are events.
    pub outbox: Vec<OutboxConfig>,
    /// The broker side.
    pub rabbitmq: RabbitmqConfig,
    /// Windows and deadlines.
    pub delivery: DeliveryConfig,
    /// What follows a lost slot.
    pub recovery: RecoveryConfig,
    /// The HTTP endpoint.
    pub admin: AdminConfig,
    /// Spans.
    pub otel: OtelConfig,
    /// Log lines.
    pub log: LogConfig,
}

/// `[postgres]`
#[derive(Debug, Clone)]
pub struct PostgresConfig {
    /// A libpq URL or key=value string, as written.
    pub url: SecretString,
    /// A file with the password, read at every connect.
    pub password_file: Option<PathBuf>,
    /// The password, where it is not in the URL.
    pub password: Option<SecretString>,
    /// The replication slot: 1 to 63 of `[a-z0-9_]`.
    pub slot: String,
    /// The publication: 1 to 63 bytes.
    pub publication: String,
    /// Which shard of the tables' rows is this relay's, as `1/4`, not yet parsed; `None`: all rows.
    pub shard: Option<String>,
    /// Tables of the publication that are no outbox, as `schema.table`, not yet parsed.
    pub ignore_tables: Vec<String>,
    /// `wal_sender_timeout` of the relay's own session; 1 s or more.
    pub wal_sender_timeout: Duration,
    /// Time between status updates while nothing moves; less than half of `wal_sender_timeout`.
    pub status_interval: Duration,
    /// Time between comparisons of the publication with its baseline; 1 s or more.
    pub guard_interval: Duration,
}

/// `[rabbitmq]`
#[derive(Debug, Clone)]
pub struct RabbitmqConfig {
    /// `amqp` or `amqps` URIs, as written, to be tried in turn; at least one, unless messages go elsewhere.
    pub uris: Vec<SecretString>,
    /// A file with the password, read at every connect; for each URI.
    pub password_file: Option<PathBuf>,
    /// The password, where it is not in the URIs.
    pub password: Option<SecretString>,
    /// The template of the exchange; empty for the default exchange.
    pub exchange: String,
    /// The template of the routing key.
    pub routing_key: String,
    /// PEM file of a private certificate authority.
    pub ca_file: Option<PathBuf>,
    /// PEM file of our certificate; never without `key_file`.
    pub cert_file: Option<PathBuf>,
    /// PEM file of its key.
    pub key_file: Option<PathBuf>,
    /// How we tell who we are.
    pub auth_mechanism: AuthMechanism,
    /// URL of the management API, as written; only doctor asks it.
    pub management: Option<SecretString>,
    /// Whole seconds up to 10 minutes; zero turns heartbeats off.
    pub heartbeat: Duration,
    /// The `app_id` property of every message, 255 bytes at most.
    pub app_id: String,
    /// Declare the exchange, durable and of this type; `None`: never declare anything.
    pub declare: Option<ExchangeType>,
    /// The stream to publish to by RabbitMQ's stream protocol, instead of the exchange.
    pub stream_name: Option<String>,
    /// The port of the stream listener; `None`: RabbitMQ's own.
    pub stream_port: Option<u16>,
}

/// `[delivery]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryConfig {
    /// Where messages go.
    pub sink: SinkChoice,
    /// Messages that may await their confirm, 1 to 65,535.
    pub max_in_flight: u16,
    /// Bytes that may await their confirm.
    pub max_in_flight_bytes: u64,
    /// The largest body in bytes; `None`: by the broker's version.
    pub max_message_bytes: Option<u64>,
    /// The largest column of a row that is read, in bytes; 1 KiB to 256 MiB.
    pub max_event_bytes: u64,
    /// In which order first deliveries come.
    pub ordering: Ordering,
    /// The most messages to send in a second; `None`: no limit.
    pub max_rate: Option<u32>,
    /// What to do with an event that no queue is bound for.
    pub on_unroutable: FailurePolicy,
    /// What to do with a row that cannot become a message, or that the broker refuses.
    pub on_invalid: FailurePolicy,
    /// Bytes of WAL written during a hold before the held event becomes a dead letter; `None`: it holds.
    pub hold_max_wal: Option<u64>,
    /// With so many dead letters pending, further events are held after all.
    pub dead_letters_max: u32,
    /// How long a message may stay unanswered; 1 s or more.
    pub confirm_timeout: Duration,
    /// Published rows marked at once, 1 to 50,000.
    pub mark_batch: u16,
    /// The longest that a published row waits for others to be marked with.
    pub mark_interval: Duration,
    /// How long a stop waits for outstanding confirms; may be zero.
    pub shutdown_grace: Duration,
}

/// `[recovery]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryConfig {
    /// What a running relay does when its slot is lost.
    pub on_slot_lost: OnSlotLost,
}

/// `[admin]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminConfig {
    /// Where the HTTP endpoint listens.
    pub listen: SocketAddr,
    /// Holds the token that whoever looks has to bring, where there is one.
    pub token_file: Option<PathBuf>,
}

/// `[otel]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtelConfig {
    /// The URL of a collector, as written.
    pub endpoint: Option<String>,
}

/// `[log]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// How log lines look.
    pub format: LogFormat,
    /// Which lines are written.
    pub level: LogLevels,
}

impl Config {
    /// Makes plain values of the settings; `file` names the configuration file for people who have to write one.
    pub(super) fn build(settings: &Settings, file: &str) -> Result<Self, Vec<Problem>> {
        let problems: Vec<_> = missing_keys(settings, file, |_| true)
            .into_iter()
            .chain(contradictions::of(settings))
            .collect();
        match Self::from_settings(settings, file) {
            Ok(config) if problems.is_empty() => Ok(config),
            Err(problem) if problems.is_empty() => Err(vec![problem]),
            Ok(_) | Err(_) => Err(problems),
        }
    }

    fn from_settings(settings: &Settings, file: &str) -> Result<Self, Problem> {
        let values = Fields {
            entry: &settings.values,
            file,
        };
        let outbox = settings.outbox.iter().map(|entry| {
            let routes = entry.routes.iter().map(|entry| {
                let values = Fields { entry, file };
                Ok(RouteConfig {
                    when: values.required("outbox.route.when")?,
                    exchange: values.optional("outbox.route.exchange"),
                    routing_key: values.optional("outbox.route.routing_key"),
                    on_unroutable: values.optional("outbox.route.on_unroutable"),
                })
            });
            let routes = routes.collect::<Result<_, Problem>>()?;
            let values = Fields {
                entry: &entry.values,
                file,
            };
            Ok(OutboxConfig {
                exchange: values.optional("outbox.exchange"),
                routing_key: values.optional("outbox.routing_key"),
                routes,
                table: values.required("outbox.table")?,
                after_publish: values.optional("outbox.after_publish"),
                unsent: values.optional("outbox.unsent"),
                mark_set: values.optional("outbox.mark_set"),
                keep_sent: values.optional("outbox.retention.keep_sent"),
                preset: values.required("outbox.preset")?,
                columns: ColumnsConfig {
                    id: values.optional("outbox.columns.id"),
                    aggregate_type: values.optional("outbox.columns.aggregate_type"),
                    aggregate_id: values.optional("outbox.columns.aggregate_id"),
                    event_type: values.optional("outbox.columns.event_type"),
                    payload: values.optional("outbox.columns.payload"),
                    headers: values.optional("outbox.columns.headers"),
                    created_at: values.optional("outbox.columns.created_at"),
                    sent_at: values.optional("outbox.columns.sent_at"),
                    routing_key: values.optional("outbox.columns.routing_key"),
                    exchange: values.optional("outbox.columns.exchange"),
                    content_type: values.optional("outbox.columns.content_type"),
                    expiration: values.optional("outbox.columns.expiration"),
                    priority: values.optional("outbox.columns.priority"),
                    correlation_id: values.optional("outbox.columns.correlation_id"),
                },
                content: ContentConfig::of(&values)?,
            })
        });
        Ok(Self {
            postgres: PostgresConfig {
                url: values.required("postgres.url")?,
                password_file: values.optional("postgres.password_file"),
                password: values.optional("postgres.password"),
                slot: values.required("postgres.slot")?,
                publication: values.required("postgres.publication")?,
                shard: values.optional("postgres.shard"),
                ignore_tables: values.required("postgres.ignore_tables")?,
                wal_sender_timeout: values.required("postgres.wal_sender_timeout")?,
                status_interval: values.required("postgres.status_interval")?,
                guard_interval: values.required("postgres.guard_interval")?,
            },
            messages_prefix: values.optional(key::MESSAGES_PREFIX),
            outbox: outbox.collect::<Result<_, Problem>>()?,
            rabbitmq: RabbitmqConfig {
                uris: match is_required(URI, settings) {
                    true => values.required(URI)?,
                    false => values.optional(URI).unwrap_or_default(),
                },
                password_file: values.optional("rabbitmq.password_file"),
                password: values.optional("rabbitmq.password"),
                exchange: values.required("rabbitmq.exchange")?,
                routing_key: values.required("rabbitmq.routing_key")?,
                ca_file: values.optional("rabbitmq.ca_file"),
                cert_file: values.optional("rabbitmq.cert_file"),
                key_file: values.optional("rabbitmq.key_file"),
                auth_mechanism: values.required("rabbitmq.auth_mechanism")?,
                management: values.optional("rabbitmq.management"),
                heartbeat: values.required("rabbitmq.heartbeat")?,
                app_id: values.required("rabbitmq.app_id")?,
                declare: values.optional("rabbitmq.declare.exchange_type"),
                stream_name: values.optional("rabbitmq.stream.name"),
                stream_port: values.optional("rabbitmq.stream.port"),
            },
            delivery: DeliveryConfig {
                sink: values.required(SINK)?,
                max_in_flight: values.required("delivery.max_in_flight")?,
                max_in_flight_bytes: values.required("delivery.max_in_flight_bytes")?,
                max_message_bytes: values.optional("delivery.max_message_bytes"),
                max_event_bytes: values.required("delivery.max_event_bytes")?,
                ordering: values.required("delivery.ordering")?,
                max_rate: values.optional("delivery.max_rate"),
                on_unroutable: values.required("delivery.on_unroutable")?,
                on_invalid: values.required("delivery.on_invalid")?,
                hold_max_wal: values.optional("delivery.hold_max_wal"),
                dead_letters_max: values.required("delivery.dead_letters_max")?,
                confirm_timeout: values.required("delivery.confirm_timeout")?,
                mark_batch: values.required("delivery.mark_batch")?,
                mark_interval: values.required("delivery.mark_interval")?,
                shutdown_grace: values.required("delivery.shutdown_grace")?,
            },
            recovery: RecoveryConfig {
                on_slot_lost: values.required("recovery.on_slot_lost")?,
            },
            admin: AdminConfig {
                listen: values.required("admin.listen")?,
                token_file: values.optional("admin.token_file"),
            },
            otel: OtelConfig {
                endpoint: values.optional("otel.endpoint"),
            },
            log: LogConfig {
                format: values.required("log.format")?,
                level: values.required("log.level")?,
            },
        })
    }
}

/// The required keys that nobody set, of those that `counts` admits.
pub(super) fn missing_keys(settings: &Settings, file: &str, counts: impl Fn(&Key) -> bool) -> Vec<Problem> {
    let required = KEYS
        .iter()
        .filter(|key| is_required(key.path, settings) && counts(key));
    let unset = required.filter(|key| !settings.values.contains_key(key.path));
    unset.map(|key| missing(key, file)).collect()
}

/// Whether nothing can start without the key. A broker is needed only where messages go to one.
fn is_required(path: &str, settings: &Settings) -> bool {
    let sink = settings
        .values
        .get(SINK)
        .and_then(|sink| SinkChoice::of(&sink.value));
    let is_needed = path != URI || sink != Some(SinkChoice::Stdout);
    is_needed && Key::find(path).is_some_and(|key| key.presence == Presence::Required)
}

pub(super) fn missing(key: &'static Key, file: &str) -> Problem {
    Problem {
        origin: None,
        kind: ProblemKind::Missing {
            key,
            file: file.to_owned(),
        },
    }
}
