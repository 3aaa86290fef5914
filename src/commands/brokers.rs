//! The brokers that the configuration names.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;
use secrecy::ExposeSecret as _;
use walrelay_engine::event::OutboxTable;

use super::outbox::all_tables;
use crate::config::{AuthMechanism, Config, ConfigError, ExchangeType, RabbitmqConfig};
use crate::net::tls::{Identity, RootSource, TlsSettings, TlsVerification};
use crate::rabbitmq::{self, BrokerUri, Brokers, Exchange, Mechanism};

/// The time for connecting to the broker, all steps together.
const BROKER_TIMEOUT: Duration = Duration::from_secs(10);

/// Connectors to all brokers, each of which declares what the configuration says. `name` is what a broker lists the
/// connection under.
pub(super) fn brokers(config: &Config, name: &str, auto_setup: bool) -> anyhow::Result<Brokers> {
    let rabbitmq = &config.rabbitmq;
    let declare = rabbitmq.declare.or(auto_setup.then_some(ExchangeType::Topic));
    // A stream is published to without an exchange.
    let tables = match rabbitmq.stream_name {
        Some(_) => Vec::new(),
        None => all_tables(config)?,
    };
    let has_open_exchanges = tables.iter().any(OutboxTable::has_open_exchange);
    let exchanges: BTreeSet<_> = tables.iter().flat_map(OutboxTable::fixed_exchanges).collect();
    let exchanges = exchanges.into_iter().map(|name| Exchange {
        name: name.to_owned(),
        declare: declare.map(|kind| kind.as_str().to_owned()),
    });
    let exchanges: Vec<_> = exchanges.collect();
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
            exchanges: exchanges.clone(),
            has_open_exchanges,
            timeout: BROKER_TIMEOUT,
            stream: None,
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
