//! `walrelay doctor`.

mod configuration;
mod endpoint;
mod report;
mod routes;

use super::{Exit, block_on, print, resolve, stream};
use crate::cli::DoctorArgs;
use crate::config::{Config, FailurePolicy, Loaded};
use crate::finding::Group;
use crate::{postgres, rabbitmq};

use report::Report;

pub(super) fn execute(args: &DoctorArgs, loaded: &Loaded) -> anyhow::Result<Exit> {
    let config = &loaded.config;
    let database = database(config)?;
    let brokers = brokers(config, args.probe)?;
    let routes = args.routes.then(|| routes::Routes::new(config));
    let mut groups = vec![configuration::examine(loaded)];
    groups.extend(block_on(async {
        // One after the other: what is slow is a server that does not answer, and then its deadline is all it costs.
        let mut groups: Vec<Group> = Box::pin(database.examine()).await;
        groups.extend(Box::pin(brokers.examine()).await);
        match &routes {
            Some(Ok(routes)) => groups.extend(Box::pin(routes.examine()).await),
            Some(Err(error)) => groups.push(routes::not_looked(error)),
            None => {}
        }
        groups
    })?);
    groups.push(endpoint::examine(config));
    let report = Report::new(groups);
    print(&if args.json { report.json()? } else { report.text() })?;
    let is_well = report.failures == 0 && !(args.strict && report.warnings > 0);
    Ok(if is_well { Exit::Clean } else { Exit::Failed })
}

fn database(config: &Config) -> anyhow::Result<postgres::Examination> {
    let (connector, source) = resolve::database(config)?;
    let route = resolve::route(config)?;
    let templates = [
        ("rabbitmq.exchange", &route.exchange),
        ("rabbitmq.routing_key", &route.routing_key),
    ];
    let columns = templates
        .into_iter()
        .flat_map(|(setting, template)| template.columns().map(move |column| (setting, column.to_owned())));
    let kept = source.tables.iter().zip(&config.outbox);
    let retention = kept.filter(|(_, outbox)| outbox.keep_sent.is_some());
    let delivery = &config.delivery;
    let policies = [delivery.on_unroutable, delivery.on_invalid];
    Ok(postgres::Examination {
        retention: retention.map(|(table, _)| table.clone()).collect(),
        ignore_tables: resolve::ignore_tables(config)?,
        wal_sender_timeout: config.postgres.wal_sender_timeout,
        has_dead_letters: delivery.hold_max_wal.is_some() || policies.contains(&FailurePolicy::DeadLetter),
        template_columns: columns.collect(),
        connector,
        source,
    })
}

fn brokers(config: &Config, probe: bool) -> anyhow::Result<rabbitmq::Examination> {
    let route = resolve::route(config)?;
    let name = format!("walrelay {} doctor", config.postgres.slot);
    let brokers = stream::publishing_to(resolve::brokers(config, &route, &name, false)?, config);
    Ok(rabbitmq::Examination {
        connectors: brokers.each().cloned().collect(),
        max_message_bytes: config.delivery.max_message_bytes,
        max_event_bytes: config.delivery.max_event_bytes,
        probe,
    })
}
