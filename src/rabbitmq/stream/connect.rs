//! Opening a link to a stream: TCP, TLS, SASL, tuning, what the stream has of us, and two publishers.

use std::time::Duration;

use secrecy::ExposeSecret as _;
use tokio::time::{Instant, timeout_at};
use walrelay_engine::amqp::encode::sasl_plain;
use walrelay_engine::dedup::{self, COUNTED, Found, Resume, UNCOUNTED};
use walrelay_engine::flow::{LogIdentity, ProducerLog};
use walrelay_engine::stream_protocol::{Command, Frame, code, encode, mechanisms, property, sequence};

use super::link::StreamLink;
use super::read_back;
use crate::net::{Stream, Wire};
use crate::rabbitmq::connect::StreamTarget;
use crate::rabbitmq::{BrokerError, Connector, Mechanism};

/// The largest frame we ask for, in bytes: RabbitMQ's own default (`stream.frame_max`).
pub(super) const FRAME_MAX: u32 = 1024 * 1024;

/// The smallest that is of use: any of ours but a message fits.
const FRAME_MIN: u32 = 8192;

/// So many generations of a producer are not used up by anything that happens.
const MAX_GENERATION: u32 = 10_000;

impl Connector {
    /// Opens a link that is ready to publish events of this log to the stream.
    ///
    /// Cancel safety: dropping the future closes the socket.
    ///
    /// # Errors
    /// Why there is none. Everything is under a deadline.
    pub async fn connect_stream(
        &self,
        target: &StreamTarget,
        log: &ProducerLog,
    ) -> Result<(StreamLink, Resume), BrokerError> {
        let limit = self.timeout;
        let base = target.producer.name(log.identity);
        let least = least_generation(&base, log);
        let (mut session, mut heartbeat, mut version) = self.open_session(target).await?;
        let mut generations = session.look_in_time(target, &base, least, limit).await?;
        let reading = session.read_back(target, &base, generations);
        let read = timeout_at(Instant::now() + target.read_back_timeout, reading).await;
        let found = match read {
            Ok(read) => read?,
            // Another try would take as long. What is still to come on this connection would be in the way of all else.
            Err(_) => {
                tracing::warn!(
                    stream = target.name,
                    limit = ?target.read_back_timeout,
                    "reading back the end of the stream takes too long: going on without"
                );
                (session, heartbeat, version) = self.open_session(target).await?;
                // Something late may have been stored meanwhile.
                generations = session.look_in_time(target, &base, least, limit).await?;
                None
            }
        };
        let resume = generations.resume(target, &base, found);
        let declaring = session.declare(target, &resume.producer);
        let declared = timeout_at(Instant::now() + limit, declaring).await;
        session.judge(declared, limit)?;
        Ok((StreamLink::new(session, heartbeat, version), resume))
    }

    /// Whether the stream is there and we may publish to it. Nothing is published.
    ///
    /// # Errors
    /// Why not. Everything is under a deadline.
    pub(in crate::rabbitmq) async fn look_for_stream(
        &self,
        target: &StreamTarget,
    ) -> Result<(), BrokerError> {
        let (mut session, heartbeat, version) = self.open_session(target).await?;
        let declaring = session.declare(target, "walrelay doctor");
        let declared = timeout_at(Instant::now() + self.timeout, declaring).await;
        session.judge(declared, self.timeout)?;
        StreamLink::new(session, heartbeat, version)
            .close(self.timeout)
            .await
    }

    /// Up to the virtual host. Returns the heartbeat time-out and the server's version too.
    async fn open_session(
        &self,
        target: &StreamTarget,
    ) -> Result<(Session, Duration, Option<String>), BrokerError> {
        let limit = self.timeout;
        let deadline = Instant::now() + limit;
        let mut step = "the TCP connection";
        let opened = timeout_at(deadline, self.open_wire(target.port, deadline, &mut step)).await;
        let wire = opened.map_err(|_| BrokerError::Deadline { step, limit })??;
        let mut session = Session::new(wire);
        let opened = timeout_at(deadline, session.open(self)).await;
        let (heartbeat, version) = session
            .judge(opened, limit)
            .map_err(|error| self.explained(error))?;
        Ok((session, heartbeat, version))
    }
}

impl super::super::StreamProducer {
    /// The producer's name, but for its generation: another log, slot or configuration has another one.
    fn name(&self, log: LogIdentity) -> String {
        format!(
            "walrelay/{}/{}/{}/{:016x}",
            self.slot, log.system_id, log.timeline, self.fingerprint
        )
    }
}

/// The lowest generation that may be used, by what this process has used before.
fn least_generation(base: &str, log: &ProducerLog) -> u32 {
    let producer = log.producer.as_deref();
    let used = producer.and_then(|producer| dedup::generation(base, producer));
    used.map_or(0, |used| used.saturating_add(log.is_spent.into()))
}

/// Which generations of a producer may be used, and which the stream knows.
#[derive(Debug, Clone, Copy)]
struct Generations {
    /// The newest that the stream has something of, and its highest id.
    newest: Option<(u32, u64)>,
    /// The lowest that may be used.
    least: u32,
}

impl Generations {
    /// The newest one, if it may be gone on with.
    fn usable(self) -> Option<(u32, u64)> {
        self.newest.filter(|(generation, _)| *generation >= self.least)
    }

    /// Which producer we are, with what was found of the newest generation.
    fn resume(self, target: &StreamTarget, base: &str, found: Option<Found>) -> Resume {
        let newest = self.newest.map(|(generation, _)| generation);
        if let (Some(generation), Some(found)) = (newest, found) {
            tracing::info!(
                stream = target.name,
                publishing_id = found.newest.id,
                "going on behind what is in the stream"
            );
            return Resume {
                producer: dedup::producer(base, generation),
                generation,
                found: Some(found),
            };
        }
        if newest.is_some() {
            tracing::warn!(
                stream = target.name,
                "what is in the stream tells nothing about what is to come: some events may be in it twice"
            );
        }
        let next = newest.map_or(0, |newest| newest.saturating_add(1));
        let generation = next.max(self.least);
        Resume {
            producer: dedup::producer(base, generation),
            generation,
            found: None,
        }
    }
}

/// A connection on which we ask and are answered.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) wire: Wire<Stream>,
    /// What is going on, for errors.
    pub(super) step: &'static str,
    pub(super) frame_max: u32,
    correlation: u32,
}

/// An answer.
struct Answer {
    code: u16,
    rest: Vec<u8>,
}

impl Session {
    const fn new(wire: Wire<Stream>) -> Self {
        Self {
            wire,
            step: "the protocol handshake",
            frame_max: FRAME_MAX,
            correlation: 0,
        }
    }

    fn judge<T, E>(
        &self,
        result: Result<Result<T, BrokerError>, E>,
        limit: Duration,
    ) -> Result<T, BrokerError> {
        let step = self.step;
        result.unwrap_or(Err(BrokerError::Deadline { step, limit }))
    }

    /// Up to the virtual host. Returns the heartbeat time-out and the server's version.
    async fn open(&mut self, connector: &Connector) -> Result<(Duration, Option<String>), BrokerError> {
        let properties = [
            ("product", "walrelay"),
            ("version", env!("CARGO_PKG_VERSION")),
            ("platform", "Rust"),
            ("connection_name", &connector.name),
        ];
        let peer = self
            .ask(|out, correlation| encode::peer_properties(out, correlation, &properties))
            .await?;
        let version = property(&peer, "version").map(|version| String::from_utf8_lossy(version).into_owned());
        let offered = self.ask(encode::sasl_handshake).await?;
        let offered = mechanisms(&offered);
        let is_offered = |ours: &&Mechanism| offered.contains(&ours.as_str().as_bytes());
        let Some(mechanism) = connector.mechanisms.iter().find(is_offered) else {
            let names = offered.iter().map(|name| String::from_utf8_lossy(name));
            return Err(BrokerError::Mechanism {
                wanted: connector.mechanisms.clone(),
                offered: names.collect::<Vec<_>>().join(" "),
            });
        };
        self.step = "the authentication";
        let response = match mechanism {
            Mechanism::Plain => sasl_plain(&connector.uri.user, connector.password()?.expose_secret()),
            // Who we are is in the certificate.
            Mechanism::External => Default::default(),
        };
        self.ask(|out, correlation| {
            encode::sasl_authenticate(out, correlation, mechanism.as_str(), &response);
        })
        .await?;
        self.step = "tuning";
        let (frame_max, seconds) = self.await_tune().await?;
        self.frame_max = match frame_max {
            0 => FRAME_MAX,
            theirs => theirs.clamp(FRAME_MIN, FRAME_MAX),
        };
        let ours = u32::try_from(connector.heartbeat.as_secs()).unwrap_or(u32::MAX);
        let seconds = match (ours, seconds) {
            (0, _) => 0,
            (ours, 0) => ours,
            (ours, theirs) => ours.min(theirs),
        };
        encode::tune(self.wire.output(), self.frame_max, seconds);
        self.step = "opening the virtual host";
        self.ask(|out, correlation| encode::open(out, correlation, &connector.uri.vhost))
            .await?;
        Ok((Duration::from_secs(seconds.into()), version))
    }

    /// Looks which generations of the producer the stream knows.
    async fn look_in_time(
        &mut self,
        target: &StreamTarget,
        base: &str,
        least: u32,
        limit: Duration,
    ) -> Result<Generations, BrokerError> {
        let looking = self.look(target, base, least);
        let looked = timeout_at(Instant::now() + limit, looking).await;
        self.judge(looked, limit)
    }

    async fn look(
        &mut self,
        target: &StreamTarget,
        base: &str,
        least: u32,
    ) -> Result<Generations, BrokerError> {
        self.step = "the look for the stream";
        let (mut newest, mut generation, mut unused) = (None, 0, 0);
        // One may have been passed over without anything being stored under it.
        while (unused < 2 || generation <= least) && generation < MAX_GENERATION {
            match self.last_id(target, &dedup::producer(base, generation)).await? {
                0 => unused += 1,
                last => {
                    newest = Some((generation, last));
                    unused = 0;
                }
            }
            generation += 1;
        }
        Ok(Generations { newest, least })
    }

    /// Reads back what the stream has of the newest generation. None where there is none that may be gone on with.
    async fn read_back(
        &mut self,
        target: &StreamTarget,
        base: &str,
        generations: Generations,
    ) -> Result<Option<Found>, BrokerError> {
        let Some((generation, last)) = generations.usable() else {
            return Ok(None);
        };
        self.step = "reading back the end of the stream";
        read_back::read(self, &target.name, dedup::producer(base, generation), last).await
    }

    async fn last_id(&mut self, target: &StreamTarget, producer: &str) -> Result<u64, BrokerError> {
        let answer = self
            .ask(|out, correlation| {
                encode::query_publisher_sequence(out, correlation, producer, &target.name);
            })
            .await?;
        sequence(&answer).ok_or_else(|| self.unexpected("an answer without a publishing id"))
    }

    async fn declare(&mut self, target: &StreamTarget, producer: &str) -> Result<(), BrokerError> {
        self.step = "declaring a publisher";
        for (publisher, reference) in [(COUNTED, producer), (UNCOUNTED, "")] {
            self.ask(|out, correlation| {
                encode::declare_publisher(out, correlation, publisher, reference, &target.name);
            })
            .await?;
        }
        self.step = "publishing";
        Ok(())
    }

    /// Sends a request and waits for its answer, which must be a good one; returns what else it says.
    pub(super) async fn ask(
        &mut self,
        append: impl FnOnce(&mut Vec<u8>, u32),
    ) -> Result<Vec<u8>, BrokerError> {
        self.correlation += 1;
        let asked = self.correlation;
        append(self.wire.output(), asked);
        let answer = self
            .await_command(|command| {
                let Command::Response {
                    correlation,
                    code,
                    rest,
                } = command
                else {
                    return None;
                };
                (*correlation == asked).then(|| Answer {
                    code: *code,
                    rest: rest.to_vec(),
                })
            })
            .await?;
        match answer.code {
            code::OK => Ok(answer.rest),
            code => Err(self.refused(code)),
        }
    }

    async fn await_tune(&mut self) -> Result<(u32, u32), BrokerError> {
        self.await_command(|command| {
            let Command::Tune { frame_max, heartbeat } = command else {
                return None;
            };
            Some((*frame_max, *heartbeat))
        })
        .await
    }

    /// Writes what is pending and waits for one command; heartbeats may come before it.
    async fn await_command<T>(&mut self, take: impl Fn(&Command<'_>) -> Option<T>) -> Result<T, BrokerError> {
        self.wire.flush().await?;
        loop {
            let Some((frame, size)) = Frame::decode(self.wire.input(), FRAME_MAX)? else {
                self.fill().await?;
                continue;
            };
            let command = Command::decode(frame)?;
            let taken = take(&command);
            let refused = match ended(&command) {
                Some(code) => Some(self.refused(code)),
                None if taken.is_some() || command == Command::Heartbeat => None,
                None => Some(self.unexpected("another command")),
            };
            self.wire.consume(size);
            if let Some(error) = refused {
                return Err(error);
            }
            if let Some(taken) = taken {
                return Ok(taken);
            }
        }
    }

    /// Passes over a frame that is no delivery.
    pub(super) async fn pass_over(&mut self) -> Result<(), BrokerError> {
        // No request has this number.
        self.is_answered(0).await.map(drop)
    }

    /// Takes in a frame that is no delivery. Whether it is the answer to this request.
    pub(super) async fn is_answered(&mut self, asked: u32) -> Result<bool, BrokerError> {
        loop {
            let Some((frame, size)) = Frame::decode(self.wire.input(), FRAME_MAX)? else {
                self.fill().await?;
                continue;
            };
            let command = Command::decode(frame)?;
            let answer = if let Command::Response {
                correlation, code, ..
            } = &command
                && *correlation == asked
            {
                Some(*code)
            } else {
                None
            };
            let is_answer = answer.is_some();
            let refused = match answer {
                Some(code) => Some(code).filter(|code| *code != code::OK),
                None => ended(&command),
            };
            self.wire.consume(size);
            return match refused {
                Some(code) => Err(self.refused(code)),
                None => Ok(is_answer),
            };
        }
    }

    /// Reads more.
    pub(super) async fn fill(&mut self) -> Result<(), BrokerError> {
        match self.wire.fill().await? {
            0 => Err(BrokerError::Eof { step: self.step }),
            _ => Ok(()),
        }
    }

    pub(super) const fn refused(&self, code: u16) -> BrokerError {
        BrokerError::Stream {
            step: self.step,
            code,
        }
    }

    pub(super) fn unexpected(&self, received: &str) -> BrokerError {
        BrokerError::Unexpected {
            received: received.to_owned(),
            step: self.step,
        }
    }

    /// The number of the next request.
    pub(super) const fn next_correlation(&mut self) -> u32 {
        self.correlation += 1;
        self.correlation
    }
}

/// Why the broker ends the connection, or gives up the stream, where that is what it says.
const fn ended(command: &Command<'_>) -> Option<u16> {
    if let Command::Close { code, .. } | Command::MetadataUpdate { code } = command {
        Some(*code)
    } else {
        None
    }
}
