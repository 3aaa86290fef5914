//! What the broker's answers mean for delivery: the relay between a real database and a broker that acts by a script.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;
use walrelay_testbed::scripted_broker::{answer, method};
use walrelay_testbed::{
    Database, Offer, Postgres, PostgresOptions, Published, Relay, RelayBuilder, ScriptedBroker,
    ScriptedConnection, eventually, eventually_some, shared_postgres,
};

use crate::world::{LONG, commit_at_once, insert_event};

/// Frames as small as AMQP allows, and a heartbeat of ours every two seconds: a clock for what must not come.
const OFFER: Offer = Offer {
    frame_max: 4096,
    heartbeat: 4,
};

/// A database, a scripted broker, and the relay between them, which has connected.
pub(crate) struct Scripted {
    database: Database,
    pub(crate) client: Client,
    broker: ScriptedBroker,
    relay: Relay,
}

impl Scripted {
    pub(crate) async fn start(
        configure: impl FnOnce(RelayBuilder) -> RelayBuilder,
    ) -> Result<(Self, ScriptedConnection)> {
        Self::beside(shared_postgres().await?, configure).await
    }

    async fn beside(
        postgres: &Postgres,
        configure: impl FnOnce(RelayBuilder) -> RelayBuilder,
    ) -> Result<(Self, ScriptedConnection)> {
        let database = postgres.database().await?;
        let broker = ScriptedBroker::start().await?;
        let builder = RelayBuilder::new(env!("CARGO_BIN_EXE_walrelay"))
            .database(&database)
            .rabbitmq_uri(&broker.uri())
            .text("rabbitmq.heartbeat", "60s");
        let mut relay = configure(builder).build()?;
        relay.setup().await?;
        relay.start()?;
        let connection = broker.open(OFFER).await?;
        relay.wait_ready(LONG).await?;
        let scripted = Self {
            client: database.client().await?,
            database,
            broker,
            relay,
        };
        Ok((scripted, connection))
    }

    /// Commits so many events in one transaction, numbered from `first`.
    async fn commit(&self, first: usize, count: usize) -> Result<()> {
        self.client.batch_execute("begin").await?;
        for number in first..first + count {
            insert_event(&self.client, number).await?;
        }
        Ok(self.client.batch_execute("commit").await?)
    }

    /// Waits until a counter of `/metrics` has reached a value.
    async fn counted(&self, name: &str, value: f64) -> Result<()> {
        let name = format!("walrelay_{name}_total");
        eventually(&format!("{name} = {value}"), LONG, async || {
            let samples = self.relay.metrics().await;
            samples.is_ok_and(|samples| samples.value(&name, &[]) == Some(value))
        })
        .await?;
        Ok(())
    }

    /// I1: whether the slot would bring this message's transaction again.
    async fn is_unacknowledged(&self, message: &Published) -> Result<bool> {
        let before =
            "select confirmed_flush_lsn <= $1::text::pg_lsn from pg_replication_slots where database = $2";
        let parameters: [&(dyn ToSql + Sync); 2] = [&commit_lsn(message)?, &self.database.name()];
        Ok(self.client.query_one(before, &parameters).await?.get(0))
    }

    /// Waits until everything written so far is acknowledged to PostgreSQL.
    pub(crate) async fn acknowledged(&self) -> Result<()> {
        let written = "select pg_current_wal_lsn()::text";
        let written: String = self.client.query_one(written, &[]).await?.get(0);
        let reached =
            "select confirmed_flush_lsn >= $1::text::pg_lsn from pg_replication_slots where database = $2";
        eventually("the slot to reach what is written", LONG, async || {
            let row = self
                .client
                .query_one(reached, &[&written, &self.database.name()])
                .await;
            row.is_ok_and(|row| row.get(0))
        })
        .await?;
        Ok(())
    }

    /// The next link, with the cause that a part of `/readyz` or the log gave for the end of the last one.
    async fn reopened(&mut self, cause: &str) -> Result<ScriptedConnection> {
        let logged = format!("\"cause\":\"{cause}\"");
        self.relay
            .wait_for_log(&logged, LONG, |line| line.contains(&logged))
            .await?;
        Ok(self.broker.open(OFFER).await?)
    }

    /// Waits until `/readyz` says that an event is held, and that it is for this cause, and until the log says so at the
    /// level of what heals alone or needs a person.
    pub(crate) async fn held(&mut self, cause: &str) -> Result<()> {
        let level = match cause {
            "event_nacked" | "confirm_timeout" => "\"WARN\"",
            _ => "\"ERROR\"",
        };
        let is_held = |json: &Value| json.pointer("/delivery/cause") == Some(&Value::from(cause));
        self.relay
            .wait_readiness(cause, LONG, |readiness| is_held(&readiness.json))
            .await?;
        let logged = format!("\"cause\":\"{cause}\"");
        self.relay
            .wait_for_log("the held event", LONG, |line| {
                line.contains("event is held") && line.contains(&logged) && line.contains(level)
            })
            .await?;
        Ok(())
    }
}

/// The number in a message's body.
fn number(message: &Published) -> Result<usize> {
    let body: Value = serde_json::from_slice(&message.body)?;
    let number = body
        .pointer("/number")
        .and_then(Value::as_u64)
        .context("a number")?;
    Ok(number.try_into()?)
}

/// The commit LSN in a message's headers: a long string behind its name.
fn commit_lsn(message: &Published) -> Result<String> {
    let name = b"commit_lsnS";
    let at = message
        .header
        .windows(name.len())
        .position(|window| window == name);
    let value = at
        .and_then(|at| message.header.get(at + name.len()..))
        .context("a commit LSN")?;
    let (length, value) = value.split_first_chunk().context("its length")?;
    let value = value
        .get(..u32::from_be_bytes(*length) as usize)
        .context("its text")?;
    Ok(String::from_utf8(value.to_vec())?)
}

/// The numbers of the next messages.
pub(crate) async fn numbers(connection: &mut ScriptedConnection, count: usize) -> Result<Vec<usize>> {
    let mut numbers = Vec::with_capacity(count);
    for _ in 0..count {
        numbers.push(number(&connection.published().await?)?);
    }
    Ok(numbers)
}

/// I1: single acks in any order, multiple ones, and tag 0.
#[tokio::test]
async fn every_form_of_ack_settles_what_it_means_and_no_more() -> Result<()> {
    let (scripted, mut connection) = Scripted::start(|relay| relay).await?;
    scripted.commit(1, 6).await?;
    let first = connection.published().await?;
    assert_eq!(numbers(&mut connection, 5).await?, [2, 3, 4, 5, 6]);

    connection.send(&answer::ack(5, false)).await?;
    connection.send(&answer::ack(2, false)).await?;
    scripted.counted("confirmed", 2.0).await?;
    connection.send(&answer::ack(3, true)).await?;
    scripted.counted("confirmed", 4.0).await?;
    // Two are unanswered: the transaction is not settled.
    connection.idle(1).await?;
    ensure!(scripted.is_unacknowledged(&first).await?);
    connection.send(&answer::ack(0, true)).await?;
    scripted.counted("confirmed", 6.0).await?;
    scripted.acknowledged().await?;

    scripted.commit(7, 1).await?;
    assert_eq!(numbers(&mut connection, 1).await?, [7]);
    connection.send(&answer::ack(7, false)).await?;
    scripted.acknowledged().await
}

#[tokio::test]
async fn a_return_before_the_ack_and_a_nack_hold_the_event_until_a_probe_is_confirmed() -> Result<()> {
    let (mut scripted, mut connection) = Scripted::start(|relay| relay).await?;
    let large = "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload) values
        (gen_random_uuid(), 'order', 1, 'Large', jsonb_build_object('number', '1', 'filling', repeat('x', 10000)))";
    scripted.client.batch_execute(large).await?;
    let first = connection.published().await?;
    assert_eq!((first.body_frames, connection.largest_frame()), (3, 4096));

    let returned = [answer::returned(&first, 1000), answer::ack(1, false)].concat();
    let (head, tail) = returned.split_at(3000);
    connection.send(head).await?;
    connection.heartbeats(1).await?;
    connection.send(tail).await?;
    scripted.held("event_unroutable").await?;

    assert_eq!(connection.published().await?, first);
    // While the probe is unanswered nothing flows, and nothing else is said.
    connection.idle(1).await?;
    scripted.held("event_unroutable").await?;
    connection.send(&answer::nack(2, false)).await?;
    scripted.held("event_nacked").await?;
    ensure!(scripted.is_unacknowledged(&first).await?);

    assert_eq!(connection.published().await?, first);
    connection.send(&answer::ack(3, false)).await?;
    scripted.relay.wait_ready(LONG).await?;
    scripted.acknowledged().await
}

/// I1, I3: what is unanswered goes out again on the next link, in order.
#[tokio::test]
async fn an_ack_of_an_unknown_tag_gives_the_link_up_and_loses_nothing() -> Result<()> {
    for wrong in [
        answer::ack(99, false),
        answer::ack(0, false),
        answer::nack(4, true),
    ] {
        // Trouble of the peer's heals by a new link: it is no halt.
        let configure = |relay: RelayBuilder| relay.arg("--exit-on-halt");
        let (mut scripted, mut connection) = Scripted::start(configure).await?;
        scripted.commit(1, 3).await?;
        assert_eq!(numbers(&mut connection, 3).await?, [1, 2, 3]);
        connection.send(&answer::ack(1, false)).await?;
        scripted.counted("confirmed", 1.0).await?;
        connection.send(&wrong).await?;
        connection.closed().await?;
        let mut connection = scripted.reopened("broker_protocol").await?;
        assert_eq!(numbers(&mut connection, 2).await?, [2, 3]);
        connection.send(&answer::ack(2, true)).await?;
        scripted.acknowledged().await?;
    }
    Ok(())
}

/// R11 and R12.
#[tokio::test]
async fn a_swallowed_confirm_ends_in_a_new_link_that_tries_the_oldest_message_alone() -> Result<()> {
    let configure = |relay: RelayBuilder| relay.text("delivery.confirm_timeout", "5s");
    let (mut scripted, mut connection) = Scripted::start(configure).await?;
    scripted.commit(1, 4).await?;
    assert_eq!(numbers(&mut connection, 4).await?, [1, 2, 3, 4]);
    connection.send(&answer::ack(2, false)).await?;
    connection.send(&answer::ack(3, false)).await?;
    // Others are answered all the time; the oldest is not.
    let busy = async {
        let mut tag = 4;
        while connection.send(&answer::ack(tag, false)).await.is_ok() {
            tag += 1;
            scripted.commit(tag as usize, 1).await?;
            match connection.published().await {
                Ok(_) => {}
                Err(_) => break,
            }
        }
        anyhow::Ok(())
    };
    busy.await?;
    scripted.counted("unanswered", 1.0).await?;
    let mut connection = scripted.reopened("confirm_timeout").await?;

    assert_eq!(numbers(&mut connection, 1).await?, [1]);
    connection.idle(1).await?;
    scripted.held("confirm_timeout").await?;
    connection.send(&answer::ack(1, false)).await?;
    // What came in while the link was up and was not answered follows at once.
    let next = number(&connection.published().await?)?;
    ensure!(next > 4, "{next}");
    connection.send(&answer::ack(0, true)).await?;
    scripted.acknowledged().await
}

/// R12: others are answered all the while, and none of them is sent again.
#[tokio::test]
async fn one_confirm_swallowed_among_thousands_is_found_and_costs_one_duplicate() -> Result<()> {
    const EVENTS: usize = 3_000;
    const SWALLOWED: usize = 1_500;
    let configure = |relay: RelayBuilder| relay.text("delivery.confirm_timeout", "6s");
    let (mut scripted, mut connection) = Scripted::start(configure).await?;
    commit_at_once(&scripted.client, EVENTS).await?;
    let mut answered = 0;
    while let Ok(message) = connection.published().await {
        let number = number(&message)?;
        if number != SWALLOWED && connection.send(&answer::ack(number as u64, false)).await.is_ok() {
            answered = number;
        }
    }
    // Nothing is admitted further than a window beyond the oldest.
    ensure!((2_000..EVENTS).contains(&answered), "answered up to {answered}");
    scripted.counted("unanswered", 1.0).await?;
    let mut connection = scripted.reopened("confirm_timeout").await?;
    assert_eq!(numbers(&mut connection, 1).await?, [SWALLOWED]);
    connection.send(&answer::ack(1, false)).await?;
    let rest: Vec<usize> = (answered + 1..=EVENTS).collect();
    for (tag, expected) in (2..).zip(rest) {
        assert_eq!(numbers(&mut connection, 1).await?, [expected]);
        connection.send(&answer::ack(tag, false)).await?;
    }
    scripted.acknowledged().await
}

#[tokio::test]
async fn nothing_is_published_while_blocked_and_the_confirm_time_out_waits() -> Result<()> {
    let configure = |relay: RelayBuilder| relay.text("delivery.confirm_timeout", "1s");
    let (mut scripted, mut connection) = Scripted::start(configure).await?;
    scripted.commit(1, 1).await?;
    assert_eq!(numbers(&mut connection, 1).await?, [1]);
    connection.send(&answer::blocked("low on disk")).await?;
    let blocked = |json: &Value| {
        json.pointer("/broker/cause") == Some(&Value::from("broker_blocked"))
            && json.pointer("/broker/error") == Some(&Value::from("low on disk"))
    };
    scripted
        .relay
        .wait_readiness("blocked", LONG, |readiness| blocked(&readiness.json))
        .await?;
    scripted.commit(2, 2).await?;
    connection.idle(2).await?;
    connection.send(&answer::unblocked()).await?;
    assert_eq!(numbers(&mut connection, 2).await?, [2, 3]);
    connection.send(&answer::ack(0, true)).await?;
    scripted.relay.wait_ready(LONG).await?;
    scripted.counted("unanswered", 0.0).await?;
    scripted.acknowledged().await
}

#[tokio::test]
async fn a_close_is_answered_and_its_code_says_what_is_wrong() -> Result<()> {
    let (mut scripted, mut connection) = Scripted::start(|relay| relay).await?;
    scripted.commit(1, 2).await?;
    for (close, answered, cause) in [
        (
            answer::connection_close(320, "CONNECTION_FORCED"),
            vec![method::CONNECTION_CLOSE_OK],
            "broker_closed",
        ),
        (
            answer::channel_close(404, "NOT_FOUND - no exchange"),
            vec![method::CHANNEL_CLOSE_OK, method::CONNECTION_CLOSE],
            "exchange_missing",
        ),
        (
            answer::channel_close(406, "PRECONDITION_FAILED"),
            vec![method::CHANNEL_CLOSE_OK, method::CONNECTION_CLOSE],
            "broker_closed",
        ),
    ] {
        assert_eq!(numbers(&mut connection, 2).await?, [1, 2]);
        connection.send(&close).await?;
        for method in answered {
            connection.expect(method).await?;
        }
        connection.closed().await?;
        connection = scripted.reopened(cause).await?;
    }
    // A 406 is the fault of one message: they are sent one by one to find out which.
    for number in [1, 2] {
        assert_eq!(numbers(&mut connection, 1).await?, [number]);
        connection.idle(1).await?;
        connection.send(&answer::ack(number as u64, false)).await?;
    }
    scripted.acknowledged().await
}

#[tokio::test]
async fn a_broker_without_heartbeats_is_given_up_and_what_it_had_is_sent_again() -> Result<()> {
    let (mut scripted, mut connection) = Scripted::start(|relay| relay).await?;
    scripted.commit(1, 1).await?;
    assert_eq!(numbers(&mut connection, 1).await?, [1]);
    connection.closed().await?;
    let mut connection = scripted.reopened("broker_silent").await?;
    assert_eq!(numbers(&mut connection, 1).await?, [1]);
    connection.send(&answer::ack(1, false)).await?;
    scripted.acknowledged().await
}

/// What a relay does while it has nothing to do, on a server that nobody else writes to: while something is unconfirmed,
/// a walsender sends a keepalive for whatever any database writes.
#[derive(Debug, Clone, Copy)]
struct Activity {
    switches: u64,
    ticks: u64,
}

impl Activity {
    fn of(relay: &Relay) -> Result<Activity> {
        Ok(Activity {
            switches: relay.context_switches()?,
            ticks: relay.processor_ticks()?,
        })
    }

    /// Of a processor that is free, a relay that turns round and round takes all; one that is shared is taken from it
    /// all the time. So this holds on a busy machine too.
    fn ensure_little_since(self, before: Activity) -> Result<()> {
        let switches = self.switches.saturating_sub(before.switches);
        let ticks = self.ticks.saturating_sub(before.ticks);
        ensure!(
            switches <= 1_000 && ticks <= 50,
            "{switches} context switches, {ticks} clock ticks"
        );
        Ok(())
    }
}

/// Nothing turns round and round: with both sides up, with a blocked broker and a message that waits, and with the
/// broker away.
#[tokio::test]
async fn an_idle_relay_needs_next_to_no_processor() -> Result<()> {
    let postgres = Postgres::start(PostgresOptions::default()).await?;
    let (mut scripted, mut connection) = Scripted::beside(&postgres, |relay| relay).await?;
    let before = Activity::of(&scripted.relay)?;
    connection.idle(2).await?;
    let idle = Activity::of(&scripted.relay)?;
    idle.ensure_little_since(before).context("idle")?;

    connection.send(&answer::blocked("low on disk")).await?;
    scripted.relay.wait_not_ready(LONG).await?;
    scripted.commit(1, 1).await?;
    let before = Activity::of(&scripted.relay)?;
    connection.idle(2).await?;
    let blocked = Activity::of(&scripted.relay)?;
    blocked.ensure_little_since(before).context("blocked")?;

    drop(connection);
    drop(scripted.broker);
    let before = Activity::of(&scripted.relay)?;
    let attempts = scripted.relay.log_mark();
    let further = eventually_some("six attempts", LONG, || {
        let lines = scripted.relay.log();
        let tried = lines
            .iter()
            .skip(attempts)
            .filter(|line| line.contains("\"cause\":\"broker_unreachable\""));
        std::future::ready((tried.count() >= 5).then_some(()))
    });
    further.await?;
    let away = Activity::of(&scripted.relay)?;
    away.ensure_little_since(before).context("without a broker")
}

/// A pace (`max_rate`) that allows the next message does not keep the loop turning while that message waits for its
/// probe.
#[tokio::test]
async fn a_held_event_under_a_pace_needs_next_to_no_processor() -> Result<()> {
    let postgres = Postgres::start(PostgresOptions::default()).await?;
    let configure = |relay: RelayBuilder| relay.set("delivery.max_rate", "1000");
    let (mut scripted, mut connection) = Scripted::beside(&postgres, configure).await?;
    scripted.commit(1, 1).await?;
    let message = connection.published().await?;
    for tag in 1..=2 {
        connection
            .send(&[answer::returned(&message, 1000), answer::ack(tag, false)].concat())
            .await?;
        let before = Activity::of(&scripted.relay)?;
        // The probe comes after one second, then after two.
        assert_eq!(connection.published().await?, message);
        let held = Activity::of(&scripted.relay)?;
        held.ensure_little_since(before).context("held")?;
    }
    scripted.held("event_unroutable").await
}
