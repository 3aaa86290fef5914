//! `setup`, `teardown` and `--auto-setup`.

use anyhow::{Result, ensure};
use lapin::ExchangeKind;
use walrelay_testbed::{CommandOutput, QueueOptions, Relay, shared_postgres, shared_rabbitmq};

use crate::complaint::{Part, complains, named};
use crate::world::{EXCHANGE, LONG, QUEUE, World, insert_event};

#[tokio::test]
async fn setup_creates_what_is_missing_and_says_so() -> Result<()> {
    let world = World::without_exchange().await?;
    let relay = world.relay().build()?;

    insta::assert_snapshot!(said(&world, &relay.setup().await?)?, @"
    created  migrations
    created  table public.outbox_events
    created  publication walrelay
    created  baseline of publication and tables
    created  slot SLOT (streams from LSN)
    ");
    let before = world.everything().await?;
    insta::assert_snapshot!(said(&world, &relay.setup().await?)?, @"
    found    migrations
    found    table public.outbox_events
    found    publication walrelay
    found    baseline of publication and tables
    found    slot SLOT
    ");
    assert_eq!(world.everything().await?, before);
    Ok(())
}

#[tokio::test]
async fn setup_uses_the_outbox_table_that_is_there() -> Result<()> {
    let world = World::new().await?;
    world
        .database
        .execute(
            "create table outbox_events (note text, payload text not null, event_type text not null,
             aggregate_id uuid, aggregate_type text not null, id uuid primary key)",
        )
        .await?;
    let before = world.columns("outbox_events").await?;
    let mut relay = world.relay().build()?;

    insta::assert_snapshot!(said(&world, &relay.setup().await?)?, @"
    created  migrations
    found    table public.outbox_events
    created  publication walrelay
    created  baseline of publication and tables
    created  slot SLOT (streams from LSN)
    ");
    assert_eq!(world.columns("outbox_events").await?, before);

    relay.start()?;
    let recorder = world.recorder().await?;
    world
        .database
        .execute(
            "insert into outbox_events values ('n', 'as it is', 'Made', gen_random_uuid(), 'thing', gen_random_uuid())",
        )
        .await?;
    let deliveries = recorder.wait_for(1, LONG).await?;
    assert_eq!(deliveries[0].body, b"as it is");
    assert_eq!(deliveries[0].routing_key, "thing.Made");
    Ok(())
}

#[tokio::test]
async fn rows_of_a_partitioned_table_come_under_its_root() -> Result<()> {
    let world = World::new().await?;
    world
        .database
        .execute(
            "create table outbox_events (id uuid not null, aggregate_type text not null, aggregate_id bigint not null,
             event_type text not null, payload jsonb not null, created_at date not null)
             partition by range (created_at);
             create table early partition of outbox_events for values from ('2020-01-01') to ('2021-01-01');
             create table late partition of outbox_events for values from ('2021-01-01') to ('2022-01-01');",
        )
        .await?;
    let _relay = world.running().await?;
    let via_root = "select pubviaroot from pg_publication where pubname = 'walrelay'";
    assert!(world.client.query_one(via_root, &[]).await?.get::<_, bool>(0));

    let recorder = world.recorder().await?;
    world
        .database
        .execute(
            "insert into outbox_events select gen_random_uuid(), 'order', n, 'OrderCreated', '{}',
             date '2020-06-01' + n * 365 from generate_series(0, 1) n;
             create table later partition of outbox_events for values from ('2022-01-01') to ('2023-01-01');
             insert into outbox_events values (gen_random_uuid(), 'order', 2, 'OrderCreated', '{}', '2022-06-01')",
        )
        .await?;
    recorder.wait_for_distinct(3, LONG).await?;
    Ok(())
}

#[tokio::test]
async fn several_outbox_tables_go_through_one_slot() -> Result<()> {
    let world = World::new().await?;
    world.database.execute("create schema \"Shop two\"").await?;
    let relay = world
        .relay()
        .outboxes(&["public.outbox_events", "\"Shop two\".\"Out\"\"box\""]);
    let mut relay = relay.build()?;
    insta::assert_snapshot!(said(&world, &relay.setup().await?)?, @r#"
    created  migrations
    created  table public.outbox_events
    created  table "Shop two"."Out""box"
    created  publication walrelay
    created  baseline of publication and tables
    created  slot SLOT (streams from LSN)
    "#);
    relay.start()?;

    let recorder = world.recorder().await?;
    let first = insert_event(&world.client, 1).await?;
    world
        .database
        .execute(
            "insert into \"Shop two\".\"Out\"\"box\" select * from outbox_events; \
             update \"Shop two\".\"Out\"\"box\" set payload = '{}'",
        )
        .await?;
    let deliveries = recorder.wait_for(2, LONG).await?;
    assert!(deliveries.iter().all(|delivery| delivery.message_id == first));
    Ok(())
}

#[tokio::test]
async fn a_table_added_later_joins_the_publication() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.relay().build()?;
    relay.setup().await?;
    relay.reconfigure(|relay| relay.outboxes(&["public.outbox_events", "public.second"]))?;
    insta::assert_snapshot!(said(&world, &relay.setup().await?)?, @"
    found    migrations
    found    table public.outbox_events
    created  table public.second
    changed  publication walrelay
    changed  baseline of publication and tables
    found    slot SLOT
    ");
    relay.start()?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn setup_refuses_a_table_that_lacks_a_column_and_creates_no_slot() -> Result<()> {
    let world = World::new().await?;
    world
        .database
        .execute("create table outbox_events (id uuid primary key, payload jsonb)")
        .await?;
    let output = world.relay().build()?.run_command(&["setup"]).await?;
    assert_eq!((output.code(), output.stdout.as_str()), (Some(1), ""));
    insta::assert_snapshot!(last_line(&output), @"walrelay: the table public.outbox_events has no columns `aggregate_type`, `aggregate_id`, `event_type`: give the outbox table the columns id, aggregate_type, aggregate_id, event_type and payload, or name others in outbox.columns; if the slot stands before rows without them, `walrelay recover --new-slot` goes past these");
    assert_eq!(world.slots().await?, 0);
    Ok(())
}

/// Before there is a table too, which set-up would create without them.
#[tokio::test]
async fn setup_refuses_templates_that_name_columns_that_are_not_there() -> Result<()> {
    let world = World::new().await?;
    let relay = world
        .relay()
        .text("rabbitmq.routing_key", "{tenant}.{event_type}");
    let relay = relay.build()?;
    for _ in 0..2 {
        let output = relay.run_command(&["setup"]).await?;
        assert_eq!((output.code(), output.stdout.as_str()), (Some(1), ""));
        insta::allow_duplicates! {
            insta::assert_snapshot!(last_line(&output), @"walrelay: the table public.outbox_events has no column `tenant`, which rabbitmq.routing_key names: correct the template or rule that is named, or add that column to the table");
        }
        let table = "create table if not exists outbox_events (id uuid primary key, aggregate_type text, aggregate_id text, \
                     event_type text, payload jsonb)";
        world.database.execute(table).await?;
    }
    assert_eq!(world.slots().await?, 0);
    let tenant = "alter table outbox_events add column tenant text";
    world.database.execute(tenant).await?;
    relay.setup().await?;
    Ok(())
}

#[tokio::test]
async fn two_setups_at_once_create_everything_once() -> Result<()> {
    let world = World::without_exchange().await?;
    let relay = world.relay().build()?;
    let (one, other) = tokio::join!(relay.setup(), relay.setup());
    let (one, other) = (said(&world, &one?)?, said(&world, &other?)?);
    for thing in ["migrations", "table", "publication", "slot"] {
        let created = format!("created  {thing}");
        assert_eq!(
            one.matches(&created).count() + other.matches(&created).count(),
            1,
            "{created} in\n{one}\n{other}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn setup_behind_another_that_does_not_end_says_so() -> Result<()> {
    let world = World::without_exchange().await?;
    let relay = world.relay().build()?;
    relay.setup().await?;
    let lock = i64::from_be_bytes(*b"walrelay");
    let sql = "select pg_backend_pid() from pg_advisory_lock($1)";
    let holder: i32 = world.client.query_one(sql, &[&lock]).await?.get(0);
    world
        .client
        .batch_execute("set application_name to 'a slow setup'")
        .await?;
    let output = relay.run_command(&["setup"]).await?;
    assert_eq!((output.code(), output.stdout.as_str()), (Some(1), ""));
    let holder = format!("server process {holder} (application_name \"a slow setup\")");
    assert_eq!(
        last_line(&output),
        format!(
            "walrelay: another setup, teardown or recover runs in this database: {holder} did not end within 20s: \
             wait for the session that holds the lock (pg_locks, pg_stat_activity) or end it, then try again"
        )
    );
    assert!(
        output.stderr.contains("waiting for another setup"),
        "{}",
        output.stderr
    );
    Ok(())
}

#[tokio::test]
async fn a_running_relay_never_creates_a_slot() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.relay().build()?;
    relay.start()?;
    let slot = world.slot();
    complains(&mut relay, Part::Database, "not_set_up", &[&slot, "never set up"]).await?;
    assert_eq!(world.slots().await?, 0);

    relay.setup().await?;
    relay.wait_ready(LONG).await?;
    let recorder = world.recorder().await?;
    world.commit_events(1).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    let healed = relay.metrics().await?;
    assert_eq!(healed.sum("walrelay_halted", &[]), 0.0);
    Ok(())
}

#[tokio::test]
async fn auto_setup_creates_slot_and_exchange_at_the_start_only() -> Result<()> {
    let world = World::without_exchange().await?;
    let mut relay = world.relay().arg("--auto-setup").build()?;
    relay.start()?;
    relay.wait_ready(LONG).await?;
    assert_exchange(&world, ExchangeKind::Topic, ExchangeKind::Fanout).await?;
    world.route().await?;
    let recorder = world.recorder().await?;
    world.commit_events(1).await?;
    recorder.wait_for_distinct(1, LONG).await?;

    // An administrator's drop under the running relay: it must not come back empty.
    let slot = world.slot();
    world.database.drop_slots().await?;
    named(&mut relay, Part::Database, "slot_missing").await?;
    let mark = relay.log_mark();
    relay
        .wait_for_log_after(mark, "another try", LONG, |line| line.contains("slot_missing"))
        .await?;
    assert_eq!(world.slots().await?, 0, "{slot} came back");
    Ok(())
}

#[tokio::test]
async fn the_exchange_is_declared_where_that_was_asked_for() -> Result<()> {
    let world = World::without_exchange().await?;
    let relay = world.relay().text("rabbitmq.declare.exchange_type", "direct");
    let _relay = relay.start().await?;
    assert_exchange(&world, ExchangeKind::Direct, ExchangeKind::Topic).await
}

#[tokio::test]
async fn an_exchange_of_another_type_is_left_alone() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world
        .relay()
        .text("rabbitmq.declare.exchange_type", "fanout")
        .build()?;
    relay.setup().await?;
    relay.start()?;
    complains(
        &mut relay,
        Part::Broker,
        "exchange_mismatch",
        &["406", EXCHANGE, "fanout"],
    )
    .await?;
    assert_exchange(&world, ExchangeKind::Topic, ExchangeKind::Fanout).await?;

    world.vhost.delete_exchange(EXCHANGE).await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn nothing_is_declared_unasked() -> Result<()> {
    let world = World::without_exchange().await?;
    let mut relay = world.relay().build()?;
    relay.setup().await?;
    relay.start()?;
    complains(&mut relay, Part::Broker, "exchange_missing", &["404", EXCHANGE]).await?;
    world.vhost.declare_queue(QueueOptions::classic(QUEUE)).await?;
    let bound = world.vhost.bind(QUEUE, EXCHANGE, "#").await;
    assert!(bound.is_err(), "the exchange was declared");

    world.vhost.declare_route(EXCHANGE, QUEUE).await?;
    relay.wait_ready(LONG).await?;
    let recorder = world.recorder().await?;
    world.commit_events(1).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    Ok(())
}

#[tokio::test]
async fn teardown_asks_first() -> Result<()> {
    let world = World::without_exchange().await?;
    let relay = world.relay().build()?;
    relay.setup().await?;
    let output = relay.run_command(&["teardown"]).await?;
    assert_eq!((output.code(), output.stdout.as_str()), (Some(1), ""));
    insta::assert_snapshot!(normalised(&world, &output.stderr), @"walrelay: teardown drops the slot SLOT for good: say --yes where there is no terminal to ask on");
    assert_eq!(world.slots().await?, 1);
    Ok(())
}

#[tokio::test]
async fn teardown_refuses_while_a_relay_streams_then_drops_all_but_the_table() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.running().await?;
    let output = relay.run_command(&["teardown", "--yes"]).await?;
    assert_eq!((output.code(), output.stdout.as_str()), (Some(1), ""));
    let line = last_line(&output);
    for words in ["is active for PID", "stop the other process"] {
        assert!(line.contains(words), "{words:?} is not in {line}");
    }
    assert_eq!(world.slots().await?, 1);
    world.commit_events(1).await?;
    world.recorder().await?.wait_for_distinct(1, LONG).await?;

    stop(&mut relay).await?;
    let output = relay.run_command(&["teardown", "--yes"]).await?;
    insta::assert_snapshot!(said(&world, &output)?, @"
    dropped  slot SLOT
    dropped  publication walrelay
    ");
    assert_eq!(world.slots().await?, 0);
    let rows = "select count(*) from outbox_events";
    assert_eq!(world.client.query_one(rows, &[]).await?.get::<_, i64>(0), 1);
    let output = relay.run_command(&["teardown", "--yes"]).await?;
    insta::assert_snapshot!(said(&world, &output)?, @"
    absent   slot SLOT
    absent   publication walrelay
    ");
    Ok(())
}

impl World {
    /// As [`World::new`], with an empty vhost.
    pub(crate) async fn without_exchange() -> Result<Self> {
        let database = shared_postgres().await?.database().await?;
        let vhost = shared_rabbitmq().await?.vhost().await?;
        let client = database.client().await?;
        Ok(Self {
            database,
            vhost,
            client,
        })
    }

    /// A queue on the exchange that the relay has declared.
    async fn route(&self) -> Result<()> {
        self.vhost.declare_queue(QueueOptions::classic(QUEUE)).await?;
        Ok(self.vhost.bind(QUEUE, EXCHANGE, "#").await?)
    }

    /// The name of the relay's slot.
    pub(crate) fn slot(&self) -> String {
        format!("slot_{}", self.database.name())
    }

    /// How many slots of this name there are.
    pub(crate) async fn slots(&self) -> Result<i64> {
        let sql = "select count(*) from pg_replication_slots where slot_name = $1";
        Ok(self.client.query_one(sql, &[&self.slot()]).await?.get(0))
    }

    async fn columns(&self, table: &str) -> Result<String> {
        let sql = "select string_agg(attname || ' ' || atttypid || ' ' || attnotnull, ', ' order by attnum)
                   from pg_attribute where attrelid = $1::text::regclass and attnum > 0";
        Ok(self.client.query_one(sql, &[&table]).await?.get(0))
    }

    /// Everything that set-up makes, by identity and version of its catalog rows.
    async fn everything(&self) -> Result<String> {
        let sql = "select concat_ws('; ',
            (select string_agg(oid || ' ' || xmin, ', ' order by oid) from pg_class where oid >= 16384),
            (select string_agg(oid || ' ' || xmin, ', ' order by oid) from pg_publication),
            (select string_agg(oid || ' ' || xmin, ', ' order by oid) from pg_publication_rel),
            (select string_agg(slot_name || ' ' || confirmed_flush_lsn, ', ') from pg_replication_slots
             where slot_name = $1),
            (select string_agg(version || ' ' || applied_at, ', ') from walrelay.schema_migrations))";
        Ok(self.client.query_one(sql, &[&self.slot()]).await?.get(0))
    }
}

/// The exchange exists, durable and of this kind, and no other.
async fn assert_exchange(world: &World, kind: ExchangeKind, other: ExchangeKind) -> Result<()> {
    // Were there none, this would create it.
    let other = world.vhost.declare_exchange(EXCHANGE, other).await;
    ensure!(other.is_err(), "there was no exchange, or one of another kind");
    Ok(world.vhost.declare_exchange(EXCHANGE, kind).await?)
}

/// What a successful command has written, with the test's own names and positions replaced.
pub(crate) fn said(world: &World, output: &CommandOutput) -> Result<String> {
    ensure!(output.code() == Some(0), "{output:?}");
    ensure!(
        !output.stderr.contains("\"WARN\"") && !output.stderr.contains("\"ERROR\""),
        "{}",
        output.stderr
    );
    Ok(normalised(world, &output.stdout))
}

pub(crate) fn normalised(world: &World, text: &str) -> String {
    let text = text.replace(&world.slot(), "SLOT");
    let mut lines: Vec<String> = text
        .lines()
        .map(|line| {
            if let Some((before, _)) = line.split_once("(streams from ") {
                format!("{before}(streams from LSN)")
            } else if let Some((outcome, _)) = line.split_once(" migration ") {
                format!("{outcome} migrations")
            } else {
                line.to_owned()
            }
        })
        .collect();
    // However many there are by now.
    lines.dedup();
    lines.join("\n")
}

/// The line for a person: log lines may stand above it.
pub(crate) fn last_line(output: &CommandOutput) -> &str {
    output.stderr.lines().last().unwrap_or_default()
}

pub(crate) async fn stop(relay: &mut Relay) -> Result<()> {
    relay.terminate()?;
    let status = relay.wait_exit(LONG).await?;
    ensure!(status.code() == Some(0), "{status}");
    Ok(())
}
