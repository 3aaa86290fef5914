//! Everything between the URI and a confirm, looked at for `walrelay doctor`. Nothing is declared, and nothing is published
//! unless that is asked for.

use std::net::IpAddr;
use std::time::Duration;

use super::probe::{self, Answer};
use super::{BrokerError, Connector, Exchange, Link};
use crate::caution::Caution;
use crate::fault::{Fault, FaultKind};
use crate::finding::{Finding, Group};

/// The checks of a broker, in their order.
const CHECKS: &[&str] = &[
    "connection",
    "TLS",
    "authentication",
    "virtual host",
    "version",
    "frames",
    "message size",
    "heartbeat",
    "exchange",
    "publishing",
    "alarms",
];

/// The time for a good-bye.
const GOOD_BYE: Duration = Duration::from_secs(2);

/// What is to be looked at.
#[derive(Debug, Clone)]
pub struct Examination {
    /// The brokers.
    pub connectors: Vec<Connector>,
    /// `delivery.max_message_bytes`, where it is set.
    pub max_message_bytes: Option<u64>,
    /// `delivery.max_event_bytes`.
    pub max_event_bytes: u64,
    /// Publish one message that nobody is meant to get.
    pub probe: bool,
}

impl Examination {
    /// Looks at each broker, with two short connections.
    pub async fn examine(&self) -> Vec<Group> {
        let mut groups = Vec::new();
        for connector in &self.connectors {
            groups.push(self.examine_broker(connector).await);
        }
        // They are tried in turn, so one that will do is enough.
        if groups.iter().any(|group| !group.has_failed()) {
            groups.iter_mut().for_each(Group::soften);
        }
        groups
    }

    async fn examine_broker(&self, connector: &Connector) -> Group {
        let mut group = Group::new(format!("RabbitMQ {}", connector.uri.endpoint()));
        // Without the exchange first, so that what a missing one hides is seen all the same.
        let alone = Connector {
            exchanges: Vec::new(),
            has_open_exchanges: true,
            ..connector.clone()
        };
        match alone.connect().await {
            Ok(link) => {
                self.opened(connector, &link, &mut group);
                close(link).await;
                self.publish(connector, &mut group).await;
            }
            Err(error) => refused(connector, &error, &mut group),
        }
        group.complete(CHECKS, "no connection that could publish")
    }

    fn opened(&self, connector: &Connector, link: &Link, group: &mut Group) {
        up_to(connector, Some(link), "virtual host", group);
        let version = link.server_version().unwrap_or("unknown");
        group.push(Finding::passed("version", format!("RabbitMQ {version}")));
        group.push(Finding::passed(
            "frames",
            format!("one channel, frames of up to {} bytes", link.frame_max()),
        ));
        group.push(self.message_size(link));
        let heartbeat = link.heartbeat();
        group.push(if heartbeat.is_zero() {
            Finding::caution("heartbeat", Caution::HeartbeatOff, "off")
        } else {
            let agreed = humantime::format_duration(heartbeat);
            Finding::passed("heartbeat", format!("{agreed}, as agreed on"))
        });
    }

    fn message_size(&self, link: &Link) -> Finding {
        const CHECK: &str = "message size";
        let size = bytesize::ByteSize;
        let broker = u64::try_from(link.max_message_bytes()).unwrap_or(u64::MAX);
        let event = self.max_event_bytes;
        let limits = format!(
            "a broker of this version takes {} by default; columns of up to {} are read (delivery.max_event_bytes)",
            size(broker),
            size(event)
        );
        if let Some(ours) = self.max_message_bytes.filter(|ours| *ours > broker) {
            let found = format!("delivery.max_message_bytes is {}; {limits}", size(ours));
            return Finding::caution(CHECK, Caution::MessageLimit, found);
        }
        if event > broker {
            return Finding::caution(CHECK, Caution::MessageLimit, limits);
        }
        Finding::passed(CHECK, limits)
    }

    async fn publish(&self, connector: &Connector, group: &mut Group) {
        #[cfg(feature = "stream")]
        if let Some(target) = &connector.stream {
            const CHECK: &str = "exchange";
            group.push(match connector.look_for_stream(target).await {
                Ok(()) => {
                    let name = &target.name;
                    let found = format!(
                        "none: events go to the stream `{name}`, which is there and may be written to"
                    );
                    Finding::passed(CHECK, found)
                }
                Err(error) => Finding::error(CHECK, error.kind(), &error),
            });
            self.without_probe("events go to a stream", group);
            return;
        }
        if connector.exchanges.is_empty() {
            group.push(Finding::passed(
                "exchange",
                "its name has a column in it, so each event tells",
            ));
            self.without_probe("each event names its exchange", group);
            return;
        }
        let mut first = None;
        for exchange in &connector.exchanges {
            // Only looked for, whatever the relay would do.
            let passive = Connector {
                exchanges: vec![Exchange {
                    name: exchange.name.clone(),
                    declare: None,
                }],
                ..connector.clone()
            };
            match passive.connect().await {
                Err(error) => group.push(no_exchange(exchange, &error)),
                Ok(link) => {
                    let found = match exchange.name.as_str() {
                        "" => "the default exchange, which is always there".to_owned(),
                        name => format!("`{name}` is there"),
                    };
                    group.push(Finding::passed("exchange", found));
                    match first {
                        None => first = Some((exchange, link)),
                        Some(_) => close(link).await,
                    }
                }
            }
        }
        let Some((exchange, link)) = first else { return };
        if self.probe {
            probed(connector, link, &exchange.name, group).await;
        } else {
            close(link).await;
            self.without_probe("seen only by publishing: --probe sends one message", group);
        }
    }

    fn without_probe(&self, why: &str, group: &mut Group) {
        for check in ["publishing", "alarms"] {
            group.push(Finding::not_looked(check, why));
        }
    }
}

/// The steps that a connection takes, up to one of them, as passed.
fn up_to(connector: &Connector, link: Option<&Link>, last: &str, group: &mut Group) {
    let uri = &connector.uri;
    let steps = [
        Finding::passed("connection", "it answers"),
        tls(connector, link),
        Finding::passed("authentication", format!("`{}` is let in", uri.user)),
        Finding::passed("virtual host", format!("`{}` is open to it", uri.vhost)),
    ];
    for step in steps {
        let is_last = step.check == last;
        group.push(step);
        if is_last {
            break;
        }
    }
}

fn tls(connector: &Connector, link: Option<&Link>) -> Finding {
    const CHECK: &str = "TLS";
    let uri = &connector.uri;
    if uri.tls {
        let version = link.and_then(Link::tls_version).unwrap_or("agreed on");
        return Finding::passed(
            CHECK,
            format!("{version}, the certificate is checked for the host's name"),
        );
    }
    let is_loopback = uri.host == "localhost" || uri.host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    if is_loopback {
        return Finding::passed(CHECK, "none, on this machine (amqp)");
    }
    Finding::caution(CHECK, Caution::Unencrypted, "none (amqp)")
}

/// Where connecting ended, by what it was.
fn refused(connector: &Connector, error: &BrokerError, group: &mut Group) {
    let kind = error.kind();
    #[expect(clippy::wildcard_enum_match_arm, reason = "whatever else comes, comes before")]
    let (passed, check) = match kind {
        FaultKind::BrokerTls => (Some("connection"), "TLS"),
        FaultKind::BrokerAuthentication => (Some("TLS"), "authentication"),
        FaultKind::BrokerVhost => (Some("authentication"), "virtual host"),
        _ => (None, "connection"),
    };
    if let Some(last) = passed {
        up_to(connector, None, last, group);
    }
    let user = &connector.uri.user;
    let vhost = &connector.uri.vhost;
    let fix = match kind == FaultKind::BrokerVhost {
        true => Some(format!(
            "rabbitmqctl add_vhost '{vhost}'; rabbitmqctl set_permissions -p '{vhost}' '{user}' '' '.*' ''"
        )),
        false => None,
    };
    group.push(Finding::error(check, kind, error).with_fix(fix));
}

fn no_exchange(exchange: &Exchange, error: &BrokerError) -> Finding {
    const CHECK: &str = "exchange";
    if error.kind() == FaultKind::ExchangeMissing
        && let Some(kind) = &exchange.declare
    {
        let found = format!("`{}` is not there yet (a {kind} exchange)", exchange.name);
        return Finding::caution(CHECK, Caution::ExchangeUndeclared, found);
    }
    let fix = (error.kind() == FaultKind::ExchangeMissing).then(|| {
        format!(
            "rabbitmqadmin declare exchange name='{}' type=topic durable=true",
            exchange.name
        )
    });
    Finding::error(CHECK, error.kind(), error).with_fix(fix)
}

async fn probed(connector: &Connector, link: Link, exchange: &str, group: &mut Group) {
    const CHECK: &str = "publishing";
    let probe = probe::publish(link, exchange).await;
    let key = &probe.routing_key;
    let calm = || Finding::passed("alarms", "none: the broker takes messages");
    match probe.answer {
        Ok(Answer::Returned) => {
            let found =
                format!("a message with the routing key {key} came back as unroutable and was confirmed");
            group.push(Finding::passed(CHECK, found));
            group.push(calm());
        }
        Ok(Answer::Taken) => {
            let found = format!("a queue took the message with the routing key {key}");
            group.push(Finding::caution(CHECK, Caution::ProbeTaken, found));
            group.push(calm());
        }
        Ok(Answer::Blocked { reason }) => {
            let kind = FaultKind::BrokerBlocked;
            let message = format!("the broker takes no messages: {reason}");
            group.push(Finding::fault("alarms", Fault { kind, message }));
            group.push(Finding::not_looked(CHECK, "the broker takes no messages"));
        }
        Ok(Answer::Nacked) => {
            let kind = FaultKind::EventNacked;
            let message = format!("a queue refused the message with the routing key {key}");
            group.push(Finding::fault(CHECK, Fault { kind, message }));
            group.push(calm());
        }
        Ok(Answer::None) => {
            let kind = FaultKind::ConfirmTimeout;
            let message = format!("the message with the routing key {key} got no answer");
            group.push(Finding::fault(CHECK, Fault { kind, message }));
        }
        Err(error) => {
            let uri = &connector.uri;
            let fix = (error.kind() == FaultKind::ExchangeForbidden).then(|| {
                format!(
                    "rabbitmqctl set_permissions -p '{}' '{}' '' '^{exchange}$' ''  # in place of what it has there",
                    uri.vhost, uri.user
                )
            });
            group.push(Finding::error(CHECK, error.kind(), &error).with_fix(fix));
        }
    }
}

/// Says good-bye; nothing depends on the answer.
pub(super) async fn close(link: Link) {
    if let Err(error) = link.close(GOOD_BYE).await {
        tracing::debug!(error = %error, "the good-bye was not answered");
    }
}
