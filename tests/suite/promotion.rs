//! A standby that is promoted: with a slot that came along (17 and newer), and without.

use std::collections::HashSet;

use anyhow::Result;
use walrelay_testbed::{
    Database, Postgres, PostgresOptions, Recorder, Relay, RelayBuilder, TcpProxy, Vhost, eventually,
    eventually_some, shared_rabbitmq,
};

use crate::complaint::{Part, complains};
use crate::world::{EXCHANGE, LONG, QUEUE, insert_event};

/// A primary with its standby, a database with outbox and slot, and a broker behind a proxy.
struct Stage {
    primary: Postgres,
    standby: Postgres,
    database: Database,
    vhost: Vhost,
    to_broker: TcpProxy,
}

impl Stage {
    async fn new(primary: PostgresOptions) -> Result<Self> {
        let mut primary = Postgres::start(primary).await?;
        let standby = primary.standby(&PostgresOptions::default()).await?;
        let vhost = shared_rabbitmq().await?.vhost().await?;
        vhost.declare_route(EXCHANGE, QUEUE).await?;
        let stage = Self {
            database: primary.database().await?,
            to_broker: TcpProxy::start(vhost.port()).await?,
            primary,
            standby,
            vhost,
        };
        stage.relay().build()?.setup().await?;
        Ok(stage)
    }

    /// A relay that knows both servers.
    fn relay(&self) -> RelayBuilder {
        let url = format!(
            "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/{}?target_session_attrs=read-write",
            self.primary.port(),
            self.standby.port(),
            self.database.name()
        );
        RelayBuilder::new(env!("CARGO_BIN_EXE_walrelay"))
            .database(&self.database)
            .postgres_url(&url)
            .rabbitmq_uri(&self.vhost.uri_through(self.to_broker.port()))
            .text("delivery.on_invalid", "dead_letter")
    }

    /// Whether this server synchronises slots; if not, says that the test is skipped.
    async fn has_failover_slots(&self) -> Result<bool> {
        let major = self.primary.major_version().await?;
        if major < 17 {
            eprintln!("skipped: PostgreSQL {major} has no failover slots (17 has)");
        }
        Ok(major >= 17)
    }

    /// Waits until the standby has the slot for good.
    async fn slot_synchronised(&self) -> Result<()> {
        let (primary, standby) = (
            self.primary.client("postgres").await?,
            self.standby.client("postgres").await?,
        );
        let sql = "select from pg_replication_slots where slot_name = $1 and synced and not temporary";
        let slot = format!("slot_{}", self.database.name());
        eventually_some("the slot to be synchronised", LONG, async || {
            let synchronised = async {
                // A decoding starts from there.
                primary.batch_execute("select pg_log_standby_snapshot()").await?;
                standby
                    .batch_execute("select pg_sync_replication_slots()")
                    .await?;
                standby.query(sql, &[&slot]).await
            };
            match synchronised.await {
                Ok(rows) => (!rows.is_empty()).then_some(Ok(())),
                Err(error) => Some(Err(error)),
            }
        })
        .await??;
        Ok(())
    }

    /// The primary crashes and the standby takes over, with all that was committed.
    async fn fail_over(&mut self) -> Result<Database> {
        self.standby.wait_replayed(&self.primary).await?;
        self.primary.kill().await?;
        self.standby.promote().await?;
        Ok(self.standby.same_database(&self.database))
    }
}

async fn commit(database: &Database, count: usize) -> Result<Vec<String>> {
    let client = database.client().await?;
    let mut ids = Vec::new();
    for number in 0..count {
        ids.push(insert_event(&client, number).await?);
    }
    Ok(ids)
}

async fn in_flight(relay: &Relay, count: u32) -> Result<()> {
    eventually(&format!("{count} events in flight"), LONG, async || {
        let metrics = relay.metrics().await;
        metrics.is_ok_and(|metrics| metrics.value("walrelay_in_flight_events", &[]) == Some(count.into()))
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn the_relay_follows_a_failover_slot_to_the_promoted_standby_and_loses_nothing() -> Result<()> {
    let mut stage = Stage::new(PostgresOptions::default()).await?;
    if !stage.has_failover_slots().await? {
        return Ok(());
    }
    let recorder = Recorder::start(&stage.vhost, QUEUE).await?;
    let mut relay = stage.relay().build()?;
    relay.start()?;
    relay.wait_ready(LONG).await?;
    let mut committed = commit(&stage.database, 50).await?;
    recorder.wait_for_distinct(50, LONG).await?;
    stage.slot_synchronised().await?;

    // Delivered after the slot was synchronised, so that they come again; then some that are in flight.
    committed.extend(commit(&stage.database, 20).await?);
    recorder.wait_for_distinct(70, LONG).await?;
    // A message is at its consumer before it is confirmed.
    in_flight(&relay, 0).await?;
    stage.to_broker.refuse().await;
    stage.to_broker.cut().await;
    committed.extend(commit(&stage.database, 30).await?);
    in_flight(&relay, 30).await?;

    let promoted = stage.fail_over().await?;
    committed.extend(commit(&promoted, 40).await?);
    stage.to_broker.pass().await?;
    relay.wait_ready(LONG).await?;
    recorder.wait_for_distinct(committed.len(), LONG).await?;
    let mut seen = HashSet::new();
    let first: Vec<_> = recorder
        .message_ids()
        .into_iter()
        .filter(|id| seen.insert(id.clone()))
        .collect();
    assert_eq!(first, committed, "first deliveries are in commit order");
    assert!(recorder.duplicates() <= 70, "{}", recorder.duplicates());
    relay
        .wait_for_log("the new timeline", LONG, |line| line.contains("\"timeline\":2"))
        .await?;

    // R15: what is set aside now is stored where the stream comes from.
    let client = promoted.client().await?;
    let sql = "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
               values (gen_random_uuid(), 'order', 42, repeat('x', 300), '{}')";
    client.batch_execute(sql).await?;
    eventually("the dead letter to be stored", LONG, async || {
        let rows = client.query("select from walrelay.dead_letters", &[]).await;
        rows.is_ok_and(|rows| rows.len() == 1)
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn without_a_failover_slot_a_promotion_halts_delivery_and_no_slot_is_made() -> Result<()> {
    let mut stage = Stage::new(PostgresOptions::default()).await?;
    let recorder = Recorder::start(&stage.vhost, QUEUE).await?;
    let mut relay = stage.relay().build()?;
    relay.start()?;
    relay.wait_ready(LONG).await?;
    commit(&stage.database, 5).await?;
    recorder.wait_for(5, LONG).await?;
    let promoted = stage.fail_over().await?;
    let slot = format!(
        "at 127.0.0.1:{}: the replication slot `slot_{}` does not exist",
        promoted.port(),
        promoted.name()
    );
    complains(&mut relay, Part::Database, "slot_missing", &[&slot]).await?;
    let client = promoted.client().await?;
    assert!(
        client
            .query(
                "select from pg_replication_slots where slot_type = 'logical'",
                &[]
            )
            .await?
            .is_empty()
    );
    Ok(())
}

#[tokio::test]
async fn a_failover_slot_that_no_standby_holds_back_is_told_as_a_risk() -> Result<()> {
    let stage = Stage::new(PostgresOptions::default()).await?;
    if !stage.has_failover_slots().await? {
        return Ok(());
    }
    let mut relay = stage.relay().build()?;
    relay.start()?;
    let readiness = relay.wait_ready(LONG).await?;
    assert_eq!(
        readiness.json["risks"][0]["cause"], "standby_behind",
        "{}",
        readiness.text
    );
    let metrics = relay.metrics().await?;
    let cause = [("cause", "standby_behind")];
    assert_eq!(metrics.value("walrelay_risk", &cause), Some(1.0));
    let told = |line: &&String| line.contains("standby_behind") && line.contains("\"WARN\"");
    assert_eq!(relay.log().iter().filter(told).count(), 1);

    // Set right, it is gone with the next session.
    let admin = stage.primary.client("postgres").await?;
    admin
        .batch_execute("alter system set synchronized_standby_slots = 'standby'")
        .await?;
    admin.batch_execute("select pg_reload_conf()").await?;
    let end = "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_type = 'logical'";
    admin.batch_execute(end).await?;
    relay
        .wait_readiness("the risk to be gone", LONG, |ready| {
            ready.is_ready() && ready.json.get("risks").is_none()
        })
        .await?;
    let recorder = Recorder::start(&stage.vhost, QUEUE).await?;
    commit(&stage.database, 5).await?;
    recorder.wait_for(5, LONG).await?;
    Ok(())
}
