//! `walrelay doctor --routes`: the routing keys of the events in each outbox table, and which of them no queue is bound for.

use std::collections::BTreeMap;

use anyhow::Context as _;
use secrecy::{ExposeSecret as _, SecretString};
use walrelay_engine::event::Route;

use super::super::{in_session, resolve};
use crate::caution::Caution;
use crate::config::Config;
use crate::finding::{Finding, Group};
use crate::net::tls::RootSource;
use crate::postgres::routes::{Combinations, combinations};
use crate::postgres::{self, Source};
use crate::rabbitmq::{Management, Reach, Topology};

const CHECK: &str = "route";

/// So many routes of a table are shown.
const LIMIT: u32 = 200;

/// What is asked and what it is asked of.
pub(super) struct Routes {
    connector: postgres::Connector,
    source: Source,
    route: Route,
    columns: Vec<String>,
    /// The management API and the virtual host.
    management: Option<(Management, String)>,
}

impl Routes {
    pub(super) fn new(config: &Config) -> anyhow::Result<Self> {
        let (connector, source) = resolve::database(config)?;
        let route = resolve::route(config)?;
        let mut columns: Vec<_> = [&route.exchange, &route.routing_key]
            .into_iter()
            .flat_map(|template| template.columns().map(str::to_owned))
            .collect();
        columns.sort_unstable();
        columns.dedup();
        Ok(Self {
            management: management(config)?,
            connector,
            source,
            route,
            columns,
        })
    }

    pub(super) async fn examine(&self) -> Vec<Group> {
        // All in one short session, before the management API is asked.
        let read = in_session(&self.connector, &self.source.slot, async |session| {
            let mut found = Vec::new();
            for table in &self.source.tables {
                found.push((table, combinations(session, table, &self.columns, LIMIT).await));
            }
            Ok(found)
        });
        let found = match read.await {
            Ok(found) => found,
            Err(error) => return vec![failed("routes".to_owned(), &error)],
        };
        let mut groups = Vec::new();
        for (table, combinations) in found {
            let about = format!("routes of table {table}");
            groups.push(match combinations {
                Ok(combinations) => self.of_table(about, &combinations).await,
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

    async fn of_table(&self, about: String, combinations: &Combinations) -> Group {
        let mut group = Group::new(about);
        // Other values may give the same texts.
        let mut routes = BTreeMap::<(String, String), u64>::new();
        for (values, rows) in &combinations.found {
            match self.render(values) {
                Some(route) => *routes.entry(route).or_default() += rows,
                None => group.push(Finding::caution(
                    CHECK,
                    Caution::ColumnNullable,
                    format!(
                        "{} cannot be routed: a column of a template is null",
                        counted(*rows)
                    ),
                )),
            }
        }
        let mut topology = Topology::default();
        for ((exchange, key), rows) in &routes {
            let shown = match exchange.as_str() {
                "" => format!("default exchange, `{key}`: {}", counted(*rows)),
                exchange => format!("`{exchange}`, `{key}`: {}", counted(*rows)),
            };
            group.push(self.of_key(&mut topology, exchange, key, shown).await);
        }
        if routes.is_empty() {
            group.push(Finding::not_looked(
                CHECK,
                "there are no rows to tell the routes by",
            ));
        } else if self.management.is_none() {
            let why = "rabbitmq.management is not set: it tells for which of these no queue is bound";
            group.push(Finding::not_looked("bindings", why));
        }
        if combinations.has_more || combinations.is_sampled {
            group.push(Finding::not_looked(
                CHECK,
                format!("more than {LIMIT} combinations or 100,000 rows: the rest was left out"),
            ));
        }
        group
    }

    fn render(&self, values: &[Option<String>]) -> Option<(String, String)> {
        let value_of = |name: &str| {
            let at = self.columns.iter().position(|column| column == name)?;
            values.get(at)?.as_deref()
        };
        let exchange = self.route.exchange.render_by_name(value_of)?;
        Some((exchange, self.route.routing_key.render_by_name(value_of)?))
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
    let Some(url) = &rabbitmq.management else {
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
