//! `walrelay doctor --routes`: the routing keys of the events in each outbox table, and which of them no queue is bound for.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use secrecy::{ExposeSecret as _, SecretString};
use walrelay_engine::event::OutboxTable;
use walrelay_engine::pgoutput::{TextValue, insert_of, read_insert, read_relation, relation_of};
use walrelay_engine::route::{Destination, Router};

use super::super::{in_session, outbox, resolve};
use crate::caution::Caution;
use crate::config::{Config, SinkChoice};
use crate::finding::{Finding, Group};
use crate::net::tls::RootSource;
use crate::postgres::routes::{Combinations, Sample, combinations};
use crate::postgres::{self, Source};
use crate::rabbitmq::{Alternate, Management, Reach, Topology};

const CHECK: &str = "route";
const ALTERNATE: &str = "alternate exchange";

/// So many routes of a table are shown.
const LIMIT: usize = 200;

/// Where columns alone decide, the database counts their combinations.
const OF_COLUMNS: Sample = Sample {
    rows: 100_000,
    combinations: 200,
};

/// Where values inside JSON do, each row has to be read.
const OF_JSON: Sample = Sample {
    rows: 1_000,
    combinations: 1_000,
};

/// The oid of `text`, fixed in PostgreSQL's `pg_type.dat`: routing looks at texts alone.
const TEXT_OID: u32 = 25;

/// What is asked and what it is asked of.
pub(super) struct Routes {
    connector: postgres::Connector,
    source: Source,
    /// Those of `source`, in the same order.
    tables: Vec<OutboxTable>,
    /// The management API and the virtual host.
    management: Option<(Management, String)>,
    /// Whether messages go to queues at all.
    has_broker: bool,
}

impl Routes {
    pub(super) fn new(config: &Config) -> anyhow::Result<Self> {
        let (connector, source) = resolve::database(config)?;
        Ok(Self {
            management: management(config)?,
            tables: outbox::outbox_tables(config)?,
            has_broker: config.delivery.sink == SinkChoice::Rabbitmq,
            connector,
            source,
        })
    }

    pub(super) async fn examine(&self) -> Vec<Group> {
        // All in one short session, before the management API is asked.
        let read = in_session(&self.connector, &self.source.slot, async |session| {
            let mut found = Vec::new();
            for (of_sql, outbox) in self.source.outboxes.iter().zip(&self.tables) {
                let columns: Vec<_> = outbox.routing_columns().into_iter().collect();
                let combinations = combinations(session, &of_sql.table, &columns, sample(outbox)).await;
                found.push((&of_sql.table, outbox, columns, combinations));
            }
            Ok(found)
        });
        let found = match read.await {
            Ok(found) => found,
            Err(error) => return vec![failed("routes".to_owned(), &error)],
        };
        let mut groups = Vec::new();
        for (table, outbox, columns, combinations) in found {
            let about = format!("routes of table {table}");
            groups.push(match combinations {
                Ok(combinations) => self.of_table(about, outbox, &columns, &combinations).await,
                Err(error) => failed(about, &error),
            });
        }
        groups.extend(self.source.messages.as_ref().map(|prefix| {
            let mut group = Group::new(format!("routes of logical messages {prefix}"));
            let why = "they are in no table that could tell";
            group.push(Finding::not_looked(CHECK, why));
            group
        }));
        groups
    }

    async fn of_table(
        &self,
        about: String,
        outbox: &OutboxTable,
        columns: &[String],
        combinations: &Combinations,
    ) -> Group {
        let mut group = Group::new(about);
        // Other values may give the same texts.
        let mut routes = BTreeMap::<(String, String), u64>::new();
        let mut impossible = BTreeMap::<String, u64>::new();
        for (values, rows) in &combinations.found {
            match route(outbox, columns, values) {
                Ok(route) => *routes.entry(route).or_default() += rows,
                Err(why) => *impossible.entry(why).or_default() += rows,
            }
        }
        for (why, rows) in impossible {
            let found = format!("{} cannot be routed: {why}", counted(rows));
            group.push(Finding::caution(CHECK, Caution::RouteImpossible, found));
        }
        let mut topology = Topology::default();
        for ((exchange, key), rows) in routes.iter().take(LIMIT) {
            let shown = match exchange.as_str() {
                "" => format!("default exchange, `{key}`: {}", counted(*rows)),
                exchange => format!("`{exchange}`, `{key}`: {}", counted(*rows)),
            };
            group.push(self.of_key(&mut topology, exchange, key, shown).await);
        }
        let exchanges: BTreeSet<_> = routes.keys().map(|(exchange, _)| exchange.as_str()).collect();
        for exchange in exchanges {
            if let Some(finding) = self.of_exchange(&mut topology, exchange).await {
                group.push(finding);
            }
        }
        if routes.is_empty() {
            group.push(Finding::not_looked(
                CHECK,
                "there are no rows to tell the routes by",
            ));
        } else if self.management.is_none() {
            let why = match self.has_broker {
                true => {
                    "rabbitmq.management is not set: only that API tells what is bound, and of alternate exchanges"
                }
                false => "messages go to standard output: no broker is looked at",
            };
            group.push(Finding::not_looked("bindings", why));
            group.push(Finding::not_looked(ALTERNATE, why));
        }
        let Sample { rows, .. } = sample(outbox);
        if combinations.has_more || combinations.is_sampled || routes.len() > LIMIT {
            group.push(Finding::not_looked(
                CHECK,
                format!("more than {LIMIT} combinations or {rows} rows: the rest was left out"),
            ));
        }
        group
    }

    /// Whether what no queue is bound for goes elsewhere in silence.
    async fn of_exchange(&self, topology: &mut Topology, exchange: &str) -> Option<Finding> {
        let (management, vhost) = self.management.as_ref()?;
        Some(match management.alternate(topology, vhost, exchange).await {
            Ok(Alternate::None) => return None,
            Ok(Alternate::Exchange { name, policy }) => {
                let by = policy.map_or_else(
                    || "an argument".to_owned(),
                    |policy| format!("the policy `{policy}`"),
                );
                let found = format!(
                    "`{exchange}` has the alternate exchange `{name}` by {by}: an event that no queue is bound for goes there and is \
                     confirmed, not returned"
                );
                Finding::caution(ALTERNATE, Caution::AlternateExchange, found)
            }
            Ok(Alternate::Hidden { policy }) => Finding::not_looked(
                ALTERNATE,
                format!(
                    "the policy `{policy}` applies to `{exchange}`, and may be read with the tag policymaker only"
                ),
            ),
            Err(error) => Finding::not_looked(ALTERNATE, crate::fault::chain(&error)),
        })
    }

    async fn of_key(&self, topology: &mut Topology, exchange: &str, key: &str, shown: String) -> Finding {
        let Some((management, vhost)) = &self.management else {
            return Finding::passed(CHECK, shown);
        };
        match management.reach(topology, vhost, exchange, key).await {
            Ok(Reach::Queues(queues)) if queues.is_empty() => Finding::caution(
                CHECK,
                Caution::RouteUnbound,
                format!("{shown}; no queue is bound for it"),
            ),
            Ok(Reach::Queues(queues)) => {
                let names: Vec<_> = queues.into_iter().collect();
                Finding::passed(CHECK, format!("{shown}; reaches {}", names.join(", ")))
            }
            Ok(Reach::Undecided(kind)) => Finding::not_looked(
                CHECK,
                format!("{shown}; an exchange of the type {kind} does not decide by the key"),
            ),
            Err(error) => Finding::not_looked(CHECK, format!("{shown}; {}", crate::fault::chain(&error))),
        }
    }
}

/// How much of a table is looked at.
fn sample(outbox: &OutboxTable) -> Sample {
    let references = outbox.references();
    match references.iter().any(|(_, reference)| reference.has_path()) {
        true => OF_JSON,
        false => OF_COLUMNS,
    }
}

/// The exchange and the routing key of a row with these values, as the relay would find them.
///
/// # Errors
/// Why there is none.
fn route(
    outbox: &OutboxTable,
    columns: &[String],
    values: &[Option<String>],
) -> Result<(String, String), String> {
    let names = columns.iter().map(|name| (name.as_str(), TEXT_OID));
    let relation = relation_of(&outbox.schema, &outbox.name, names);
    let texts = values
        .iter()
        .map(|value| value.as_deref().map_or(TextValue::Null, TextValue::Text));
    let insert = insert_of(texts);
    let relation = read_relation(&relation).map_err(|error| error.to_string())?;
    let insert = read_insert(&insert).map_err(|error| error.to_string())?;
    let router = Router::bind(&relation, outbox).map_err(|error| error.to_string())?;
    let mut found = Destination::default();
    let routed = router.route(&insert.new, &mut found);
    routed.map_err(|error| error.to_string())?;
    Ok((found.exchange, found.routing_key))
}

fn failed(about: String, error: &postgres::Error) -> Group {
    let mut group = Group::new(about);
    group.push(Finding::error(CHECK, error.kind(), error));
    group
}

/// What the routes would be asked with is not to be had.
pub(super) fn not_looked(error: &anyhow::Error) -> Group {
    let mut group = Group::new("routes");
    group.push(Finding::not_looked(CHECK, format!("{error:#}")));
    group
}

fn counted(rows: u64) -> String {
    match rows {
        1 => "1 row".to_owned(),
        _ => format!("{rows} rows"),
    }
}

/// The API of the first broker, asked as its user unless the URL names another.
fn management(config: &Config) -> anyhow::Result<Option<(Management, String)>> {
    let rabbitmq = &config.rabbitmq;
    let url = rabbitmq.management.as_ref();
    let Some(url) = url.filter(|_| config.delivery.sink == SinkChoice::Rabbitmq) else {
        return Ok(None);
    };
    let broker = rabbitmq.uris.first().context("rabbitmq.uri is empty")?;
    let broker = crate::rabbitmq::BrokerUri::parse(broker.expose_secret())?;
    let password = match &rabbitmq.password_file {
        Some(path) => {
            let text = std::fs::read_to_string(path).context("read rabbitmq.password_file")?;
            Some(SecretString::from(text.trim_end_matches(['\r', '\n'])))
        }
        None => broker.password.clone(),
    };
    let roots = rabbitmq
        .ca_file
        .clone()
        .map_or(RootSource::System, RootSource::File);
    let management = Management::parse(url.expose_secret(), &broker.user, password.as_ref(), &roots)?;
    Ok(Some((management, broker.vhost)))
}
