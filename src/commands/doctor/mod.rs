//! `walrelay doctor`.

mod configuration;
mod endpoint;
mod report;
mod routes;

use super::{Exit, block_on, outbox, print, resolve, stream};
use crate::cli::DoctorArgs;
use crate::config::{Config, Loaded, SinkChoice};
use crate::finding::{Finding, Group};
use crate::{postgres, rabbitmq};

use report::Report;

pub(super) fn execute(args: &DoctorArgs, loaded: &Loaded) -> anyhow::Result<Exit> {
    let config = &loaded.config;
    let database = database(config)?;
    let brokers = match config.delivery.sink {
        SinkChoice::Rabbitmq => Some(brokers(config, args.probe)?),
        SinkChoice::Stdout => None,
    };
    let routes = args.routes.then(|| routes::Routes::new(config));
    let mut groups = vec![configuration::examine(loaded)];
    groups.extend(block_on(async {
        // One after the other: what is slow is a server that does not answer, and then its deadline is all it costs.
        let mut groups: Vec<Group> = Box::pin(database.examine()).await;
        match &brokers {
            Some(brokers) => groups.extend(Box::pin(brokers.examine()).await),
            None => groups.push(stdout()),
        }
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

/// What takes the place of the brokers.
fn stdout() -> Group {
    let mut group = Group::new("standard output");
    let found =
        "each message is a JSON line on the standard output of `walrelay run` (delivery.sink = \"stdout\")";
    group.push(Finding::passed("sink", found));
    let why = "messages go to standard output: no broker is looked at";
    for check in ["connection", "exchange", "publishing"] {
        group.push(Finding::not_looked(check, why));
    }
    group
}

fn database(config: &Config) -> anyhow::Result<postgres::Examination> {
    let (connector, source) = resolve::database(config)?;
    let kept = source.outboxes.iter().zip(&config.outbox);
    let retention = kept.filter(|(_, outbox)| outbox.keep_sent.is_some());
    Ok(postgres::Examination {
        retention: retention.map(|(outbox, _)| outbox.table.clone()).collect(),
        ignore_tables: resolve::ignore_tables(config)?,
        wal_sender_timeout: config.postgres.wal_sender_timeout,
        has_dead_letters: outbox::has_dead_letters(config),
        connector,
        source,
    })
}

fn brokers(config: &Config, probe: bool) -> anyhow::Result<rabbitmq::Examination> {
    let name = format!("walrelay {} doctor", config.postgres.slot);
    let brokers = stream::publishing_to(super::brokers::brokers(config, &name, false)?, config);
    Ok(rabbitmq::Examination {
        connectors: brokers.each().cloned().collect(),
        max_message_bytes: config.delivery.max_message_bytes,
        max_event_bytes: config.delivery.max_event_bytes,
        probe,
    })
}
