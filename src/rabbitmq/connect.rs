//! Opening a link: TCP, TLS, SASL, tuning, channel, exchange, confirms.

use std::path::PathBuf;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use tokio::time::{Instant, timeout_at};
use walrelay_engine::amqp::{
    FRAME_MAX, FRAME_MIN_SIZE, FieldValue, Frame, FrameKind, Method, PROTOCOL_HEADER, Table, encode,
};
use walrelay_engine::flow::CHANNEL;

use super::error::Phase;
use super::link::{Negotiated, append_close_answer};
use super::{BrokerError, BrokerUri, Exchange, Link, Mechanism};
use crate::credential;
use crate::fault::Fault;
use crate::net::tls::{self, TlsError, TlsSettings};
use crate::net::{self, Stream, Wire};

/// Bodies beyond this are refused by RabbitMQ's default `max_message_size`: 128 MiB up to 3.x, 16 MiB since 4.0.
const MAX_MESSAGE_3: usize = 128 * 1024 * 1024;
const MAX_MESSAGE_4: usize = 16 * 1024 * 1024;

/// How long an answer to a close of the broker's may take to write.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Opens links to one broker.
#[derive(Debug, Clone)]
pub struct Connector {
    /// Where and as whom.
    pub uri: BrokerUri,
    /// A file with the password, which wins over the URI's; read at each connect.
    pub password_file: Option<PathBuf>,
    /// How TLS is spoken, where the URI says `amqps`. Its files are read at each connect.
    pub tls: Option<TlsSettings>,
    /// How we tell who we are: the first of these that the broker offers.
    pub mechanisms: Vec<Mechanism>,
    /// The name that RabbitMQ lists the connection under.
    pub name: String,
    /// The interval of heartbeats that we propose; none if zero.
    pub heartbeat: Duration,
    /// The exchanges to declare or look for.
    pub exchanges: Vec<Exchange>,
    /// Whether messages may also go to exchanges that are not among them, since a row has a say in it.
    pub has_open_exchanges: bool,
    /// The time for everything together.
    pub timeout: Duration,
    /// The stream to publish to, instead of exchanges.
    pub stream: Option<StreamTarget>,
}

/// A stream, and who publishes to it.
#[derive(Debug, Clone)]
pub struct StreamTarget {
    /// Its name.
    pub name: String,
    /// The port of RabbitMQ's stream listener.
    pub port: u16,
    /// The part of the producer's name that tells the slot and how its events become messages; the log comes from the session.
    pub producer: StreamProducer,
    /// The time for reading back what the stream has of us. After it the producer's next generation begins, which gives
    /// duplicates.
    pub read_back_timeout: Duration,
}

/// What a producer's name tells besides the log.
#[derive(Debug, Clone)]
pub struct StreamProducer {
    /// The slot.
    pub slot: String,
    /// Of everything that decides which events become messages.
    pub fingerprint: u64,
}

impl Connector {
    /// Opens a link that is ready to publish.
    ///
    /// Cancel safety: dropping the future closes the socket.
    ///
    /// # Errors
    /// Why there is none. Everything is under one deadline.
    pub async fn connect(&self) -> Result<Link, BrokerError> {
        let mut opening = Opening {
            connector: self,
            step: "the TCP connection",
            deadline: Instant::now() + self.timeout,
        };
        match timeout_at(opening.deadline, opening.connect()).await {
            Ok(link) => link,
            Err(_) => Err(BrokerError::Deadline {
                step: opening.step,
                limit: self.timeout,
            }),
        }
    }

    /// An error of this broker's as a fault that names the broker.
    #[must_use]
    pub fn fault(&self, error: &BrokerError) -> Fault {
        let fault = Fault::new(error.kind(), error);
        Fault {
            message: self.named(fault.message),
            ..fault
        }
    }

    /// A message about this broker, with its host and port unless they are in it.
    #[must_use]
    pub fn named(&self, message: String) -> String {
        let endpoint = self.uri.endpoint();
        match message.contains(&endpoint) {
            true => message,
            false => format!("{endpoint}: {message}"),
        }
    }

    /// A socket to a port of this broker, with TLS where the URI says so.
    pub(super) async fn open_wire(
        &self,
        port: u16,
        deadline: Instant,
        step: &mut &'static str,
    ) -> Result<Wire<Stream>, BrokerError> {
        let socket = net::connect_tcp(&self.uri.host, port, deadline).await?;
        let stream = match &self.tls {
            Some(settings) => {
                *step = "the TLS handshake";
                tls::handshake(settings, &self.uri.host, socket).await?
            }
            None => Stream::Tcp(socket),
        };
        Ok(Wire::new(stream))
    }

    /// Names our certificate where that is what the broker has closed an encrypted connection over.
    pub(super) fn explained(&self, error: BrokerError) -> BrokerError {
        let BrokerError::Io(source) = error else {
            return error;
        };
        match TlsError::of_session(&self.uri.endpoint(), source) {
            Ok(refusal) => refusal.into(),
            Err(source) => source.into(),
        }
    }

    pub(super) fn password(&self) -> Result<SecretString, BrokerError> {
        let Some(path) = &self.password_file else {
            // RabbitMQ's own default user, which it lets in from localhost only.
            return Ok(self
                .uri
                .password
                .clone()
                .unwrap_or_else(|| SecretString::from("guest")));
        };
        let text = credential::read_text(path).map_err(|source| BrokerError::PasswordFile {
            path: path.clone(),
            source,
        })?;
        Ok(SecretString::from(text.trim_end_matches(['\r', '\n'])))
    }
}

/// One attempt. `step` says how far it got, for the deadline's error.
struct Opening<'a> {
    connector: &'a Connector,
    step: &'static str,
    deadline: Instant,
}

impl Opening<'_> {
    async fn connect(&mut self) -> Result<Link, BrokerError> {
        let mut wire = self
            .connector
            .open_wire(self.connector.uri.port, self.deadline, &mut self.step)
            .await?;
        match self.handshake(&mut wire).await {
            Ok(negotiated) => Ok(Link::new(wire, negotiated)),
            Err(error) => {
                self.answer_close(&mut wire, &error).await;
                Err(self.connector.explained(error))
            }
        }
    }

    async fn handshake(&mut self, wire: &mut Wire<Stream>) -> Result<Negotiated, BrokerError> {
        let server = self.authenticate(wire).await?;
        let negotiated = self.tune(wire, server).await?;
        self.open_channel(wire).await?;
        Ok(negotiated)
    }

    /// Answers a close of the broker's, which would otherwise wait for it and warn in its log at each attempt.
    async fn answer_close(&self, wire: &mut Wire<Stream>, error: &BrokerError) {
        if let BrokerError::Closed { channel, .. } = error
            && append_close_answer(wire.output(), *channel).is_ok()
        {
            let deadline = self.deadline.min(Instant::now() + ANSWER_LIMIT);
            if let Ok(Err(error)) = timeout_at(deadline, wire.flush()).await {
                tracing::debug!(error = %error, "cannot answer the broker's close");
            }
        }
    }

    /// Protocol header, start and start-ok. Returns the server's version.
    async fn authenticate(&mut self, wire: &mut Wire<Stream>) -> Result<Option<String>, BrokerError> {
        self.step = "the protocol handshake";
        wire.output().extend_from_slice(&PROTOCOL_HEADER);
        let (version, mechanisms) = self
            .expect(wire, Phase::Authentication, |method| {
                let Method::ConnectionStart {
                    server_properties,
                    mechanisms,
                    ..
                } = method
                else {
                    return None;
                };
                Some((
                    version(*server_properties),
                    String::from_utf8_lossy(mechanisms).into_owned(),
                ))
            })
            .await?;
        let is_offered = |ours: &&Mechanism| mechanisms.split(' ').any(|theirs| theirs == ours.as_str());
        let Some(mechanism) = self.connector.mechanisms.iter().find(is_offered) else {
            return Err(BrokerError::Mechanism {
                wanted: self.connector.mechanisms.clone(),
                offered: mechanisms,
            });
        };
        self.step = "the authentication";
        let response = match mechanism {
            Mechanism::Plain => {
                let password = self.connector.password()?;
                encode::sasl_plain(&self.connector.uri.user, password.expose_secret())
            }
            // Who we are is in the certificate.
            Mechanism::External => Default::default(),
        };
        let client = encode::ClientProperties {
            version: env!("CARGO_PKG_VERSION"),
            connection_name: &self.connector.name,
        };
        encode::connection_start_ok(wire.output(), mechanism.as_str(), &response, &client)?;
        Ok(version)
    }

    /// Tune, tune-ok, open and open-ok.
    async fn tune(
        &mut self,
        wire: &mut Wire<Stream>,
        version: Option<String>,
    ) -> Result<Negotiated, BrokerError> {
        let (frame_max, heartbeat) = self
            .expect(wire, Phase::Authentication, |method| {
                let Method::ConnectionTune {
                    frame_max, heartbeat, ..
                } = method
                else {
                    return None;
                };
                Some((*frame_max, *heartbeat))
            })
            .await?;
        let negotiated = negotiate(frame_max, heartbeat, self.connector.heartbeat, version);
        let seconds = u16::try_from(negotiated.heartbeat.as_secs()).unwrap_or(u16::MAX);
        encode::connection_tune_ok(wire.output(), CHANNEL, negotiated.frame_max, seconds);
        self.step = "opening the virtual host";
        encode::connection_open(wire.output(), &self.connector.uri.vhost)?;
        self.expect(wire, Phase::Open, |method| {
            matches!(method, Method::ConnectionOpenOk).then_some(())
        })
        .await?;
        Ok(negotiated)
    }

    /// The channel, the exchange, and confirms.
    async fn open_channel(&mut self, wire: &mut Wire<Stream>) -> Result<(), BrokerError> {
        self.step = "opening the channel";
        encode::channel_open(wire.output(), CHANNEL);
        self.expect(wire, Phase::Topology, |method| {
            matches!(method, Method::ChannelOpenOk).then_some(())
        })
        .await?;
        self.step = "the check of the exchange";
        for exchange in &self.connector.exchanges {
            if exchange.append_declare(wire.output(), CHANNEL)? {
                let declared =
                    |method: &Method<'_>| matches!(method, Method::ExchangeDeclareOk).then_some(());
                self.expect(wire, Phase::Topology, declared).await?;
            }
        }
        self.step = "confirm.select";
        encode::confirm_select(wire.output(), CHANNEL);
        self.expect(wire, Phase::Publishing, |method| {
            matches!(method, Method::ConfirmSelectOk).then_some(())
        })
        .await
    }

    /// Sends what is pending and waits for one method; heartbeats may come before it.
    async fn expect<T>(
        &self,
        wire: &mut Wire<Stream>,
        phase: Phase,
        take: impl Fn(&Method<'_>) -> Option<T>,
    ) -> Result<T, BrokerError> {
        wire.flush().await?;
        loop {
            let Some((frame, size)) = Frame::decode(wire.input(), FRAME_MAX)? else {
                if wire.fill().await? == 0 {
                    return Err(BrokerError::Eof { step: self.step });
                }
                continue;
            };
            if frame.kind == FrameKind::Heartbeat {
                wire.consume(size);
                continue;
            }
            let method = match frame.kind {
                FrameKind::Method => Method::decode(frame.payload)?,
                FrameKind::Header | FrameKind::Body | FrameKind::Heartbeat => {
                    return Err(BrokerError::Unexpected {
                        received: "a message".to_owned(),
                        step: self.step,
                    });
                }
            };
            if let Some(value) = take(&method) {
                wire.consume(size);
                return Ok(value);
            }
            #[expect(
                clippy::wildcard_enum_match_arm,
                reason = "whatever else comes is out of place"
            )]
            let error = match &method {
                Method::ConnectionClose(close) => BrokerError::closed(false, phase, close),
                Method::ChannelClose(close) => BrokerError::closed(true, phase, close),
                other => BrokerError::unexpected(other, self.step),
            };
            return Err(error);
        }
    }
}

/// Settles on the smaller of both sides' limits; zero means none (specification, section 1.4.2.5 and .6).
fn negotiate(
    frame_max: u32,
    server_heartbeat: u16,
    heartbeat: Duration,
    version: Option<String>,
) -> Negotiated {
    let ours = heartbeat.as_secs();
    let heartbeat = match (ours, u64::from(server_heartbeat)) {
        (0, _) => 0,
        (ours, 0) => ours,
        (ours, theirs) => ours.min(theirs),
    };
    let major = version
        .as_deref()
        .and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    Negotiated {
        frame_max: if frame_max == 0 {
            FRAME_MAX
        } else {
            frame_max.clamp(FRAME_MIN_SIZE, FRAME_MAX)
        },
        heartbeat: Duration::from_secs(heartbeat),
        // An unknown version is taken for a new one, whose limit is the smaller.
        max_message_bytes: if major.is_some_and(|major| major < 4) {
            MAX_MESSAGE_3
        } else {
            MAX_MESSAGE_4
        },
        version,
    }
}

fn version(server_properties: Table<'_>) -> Option<String> {
    let Some(FieldValue::Text(version)) = server_properties.find("version") else {
        return None;
    };
    Some(String::from_utf8_lossy(version).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_limit_of_both_sides_counts_and_zero_is_none() {
        let negotiated = |frame_max, theirs, ours| {
            let negotiated = negotiate(frame_max, theirs, Duration::from_secs(ours), None);
            (negotiated.frame_max, negotiated.heartbeat.as_secs())
        };
        assert_eq!(negotiated(0, 60, 30), (131_072, 30));
        assert_eq!(negotiated(8192, 10, 30), (8192, 10));
        assert_eq!(negotiated(1_000_000, 0, 30), (131_072, 30));
        assert_eq!(negotiated(131_072, 60, 0), (131_072, 0));
    }

    #[test]
    fn the_body_limit_is_that_of_the_servers_version() {
        for (version, limit) in [
            (Some("3.10.8"), MAX_MESSAGE_3),
            (Some("3.13.7"), MAX_MESSAGE_3),
            (Some("4.0.5"), MAX_MESSAGE_4),
            (None, MAX_MESSAGE_4),
        ] {
            let negotiated = negotiate(0, 0, Duration::ZERO, version.map(str::to_owned));
            assert_eq!(negotiated.max_message_bytes, limit, "{version:?}");
        }
    }
}
