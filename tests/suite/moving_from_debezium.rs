//! The steps of `docs/moving-from-debezium.md`, in their order. In Debezium's place a reader of a pgoutput slot of its own
//! does what its connector does with the slot.

use std::collections::HashSet;

use anyhow::{Context as _, Result, ensure};
use tokio_postgres::Client;
use walrelay_testbed::eventually;

use crate::setup::{said, stop};
use crate::world::{LONG, World, text};

/// The bytes of an Insert message before the text of its first column, and a uuid's.
const BEFORE_ID: usize = 13;
const UUID: usize = 36;

/// Debezium: what it has sent, by its slot.
struct Debezium {
    slot: String,
    client: Client,
    sent: HashSet<String>,
}

impl Debezium {
    async fn set_up(world: &World) -> Result<Self> {
        let slot = format!("debezium_{}", world.database.name());
        let client = world.database.client().await?;
        client
            .batch_execute("create publication debezium for table outbox_events")
            .await?;
        let sql = "select pg_create_logical_replication_slot($1::text, 'pgoutput')::text";
        client.query_one(sql, &[&slot]).await?;
        let sent = HashSet::new();
        Ok(Self { slot, client, sent })
    }

    /// Sends what is there, and acknowledges it.
    async fn run(&mut self) -> Result<()> {
        let sql = "select data from pg_logical_slot_get_binary_changes($1::text::name, null, null, 'proto_version', '1', \
                   'publication_names', 'debezium')";
        for row in self.client.query(sql, &[&self.slot]).await? {
            let data: &[u8] = row.get(0);
            if data.first() == Some(&b'I') {
                let id = data.get(BEFORE_ID..BEFORE_ID + UUID).context("an id")?;
                self.sent.insert(std::str::from_utf8(id)?.to_owned());
            }
        }
        Ok(())
    }

    /// The condition of step 3, at a moment when nobody writes.
    async fn has_caught_up(&self, until: &str) -> Result<bool> {
        let sql = "select confirmed_flush_lsn >= $2::text::pg_lsn from pg_replication_slots where slot_name = $1::text";
        Ok(self.client.query_one(sql, &[&self.slot, &until]).await?.get(0))
    }
}

/// The application, which knows of nothing.
async fn write(world: &World, count: i32) -> Result<Vec<String>> {
    let sql = "insert into outbox_events (id, aggregatetype, aggregateid, type, payload)
               select gen_random_uuid(), 'order', '42', 'OrderCreated', '{}' from generate_series(1, $1::int) returning id::text";
    let rows = world.client.query(sql, &[&count]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

#[tokio::test]
async fn from_debezium_and_back() -> Result<()> {
    let world = World::new().await?;
    world
        .client
        .batch_execute(
            "create table outbox_events (id uuid primary key, aggregatetype varchar(255) not null,
                 aggregateid varchar(255) not null, type varchar(255) not null, payload jsonb not null)",
        )
        .await?;
    let mut debezium = Debezium::set_up(&world).await?;
    let mut written = write(&world, 5).await?;
    debezium.run().await?;

    // 1. How the columns are understood, before anything is there.
    let mut relay = world
        .relay()
        .outboxes(&["public.outbox_events"])
        .extra("preset = \"debezium\"\nafter_publish = \"keep\"")
        .build()?;
    let doctor = relay.run_command(&["doctor"]).await?;
    ensure!(
        doctor
            .stdout
            .contains("aggregate_type = \"aggregatetype\" (character varying(255))"),
        "{}",
        doctor.stdout
    );

    // 2. Set-up, while Debezium still runs.
    let output = relay.run_command(&["setup", "--backfill", "none"]).await?;
    insta::assert_snapshot!(said(&world, &output)?, @"
    created  migrations
    found    table public.outbox_events
    created  publication walrelay
    created  baseline of publication and tables
    created  slot SLOT (streams from LSN)
    ");
    let of_both = write(&world, 5).await?;
    written.extend(of_both.clone());

    // 3. Nobody writes: Debezium catches up.
    let until = text(&world.client, "select pg_current_wal_lsn()::text").await?;
    ensure!(
        !debezium.has_caught_up(&until).await?,
        "step 3 has nothing to wait for"
    );
    debezium.run().await?;
    ensure!(
        debezium.has_caught_up(&until).await?,
        "Debezium has not caught up"
    );
    assert_eq!(debezium.sent.len(), written.len());

    // 4. Debezium is stopped; what it sent since step 2 comes twice, and nothing else.
    let recorder = world.recorder().await?;
    relay.start()?;
    relay.wait_ready(LONG).await?;
    let by_relay = write(&world, 5).await?;
    written.extend(by_relay.clone());
    recorder.wait_for_distinct(10, LONG).await?;
    assert_eq!(recorder.message_ids(), [of_both, by_relay.clone()].concat());

    // Back: Debezium goes on where it stood. What the relay sent meanwhile comes twice.
    stop(&mut relay).await?;
    let before: HashSet<String> = debezium.sent.clone();
    written.extend(write(&world, 5).await?);
    debezium.run().await?;
    let again: HashSet<String> = debezium.sent.difference(&before).cloned().collect();
    assert_eq!(again.len(), 10, "from where it stood, and no more");
    assert!(by_relay.iter().all(|id| again.contains(id)));
    assert_eq!(debezium.sent, written.iter().cloned().collect());

    // And forth again; then step 5.
    relay.start()?;
    recorder.wait_for_distinct(15, LONG).await?;
    world
        .client
        .batch_execute(&format!(
            "select pg_drop_replication_slot('{}'); drop publication debezium",
            debezium.slot
        ))
        .await?;
    let last = write(&world, 1).await?;
    eventually("the relay to go on alone", LONG, || {
        std::future::ready(recorder.distinct_ids().contains(&last[0]))
    })
    .await?;
    assert_eq!(recorder.duplicates(), 0);
    Ok(())
}
