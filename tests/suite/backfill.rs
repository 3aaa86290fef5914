//! Rows that are older than the slot: which are sent, in which order, and as what (R22).

use std::collections::HashSet;

use anyhow::Result;
use walrelay::postgres::migrations::create_table;
use walrelay_testbed::{Delivery, Keep, Recorder, eventually};

use crate::marks::wait_for_rows;
use crate::setup::{last_line, said};
use crate::world::{LONG, QUEUE, World, header, text};

/// Of the relay in most tests here: small, so that bounds show.
pub(crate) const WINDOW: u64 = 100;

pub(crate) const LEFT: &str = "select count(*)::text from walrelay.backfill";

impl World {
    /// With an outbox table that is older than any slot.
    pub(crate) async fn with_old_table(self) -> Result<Self> {
        let sql = create_table(&"public.outbox_events".parse()?);
        self.database.execute(&sql).await?;
        Ok(self)
    }

    /// Commits so many rows at once, created a second apart and inserted in another order; their ids in the order of
    /// creation.
    pub(crate) async fn old_rows(&self, count: i32) -> Result<Vec<String>> {
        let rows = self
            .client
            .query(
                "with made as (insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload, created_at)
                 select gen_random_uuid(), 'order', n % 10, 'OrderCreated', jsonb_build_object('number', n),
                 '2026-01-01'::timestamptz + n * interval '1 s' from generate_series(1, $1::int) n order by md5(n::text)
                 returning id, created_at) select id::text from made order by created_at",
                &[&count],
            )
            .await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Nothing is left to be sent before the stream.
    pub(crate) async fn wait_backfilled(&self) -> Result<()> {
        eventually("no row to be left", LONG, || async {
            text(&self.client, LEFT).await.is_ok_and(|left| left == "0")
        })
        .await?;
        Ok(())
    }
}

pub(crate) fn ids(deliveries: &[Delivery]) -> Vec<&str> {
    deliveries
        .iter()
        .map(|delivery| delivery.message_id.as_str())
        .collect()
}

pub(crate) fn is_backfilled(delivery: &Delivery) -> bool {
    let headers = delivery.properties.headers().as_ref();
    headers.is_some_and(|headers| headers.inner().contains_key("backfill"))
}

/// Without the copied ids, only what commits after the slot's starting point would ever come.
#[tokio::test]
async fn r22_rows_that_were_there_come_first_and_in_order() -> Result<()> {
    let world = World::new().await?.with_old_table().await?;
    let mut expected = world.old_rows(250).await?;
    let sent = expected.split_off(240);
    world
        .client
        .execute(
            "update outbox_events set sent_at = now() where id = any($1::text[]::uuid[])",
            &[&sent],
        )
        .await?;
    let mut relay = world
        .relay()
        .set("delivery.max_in_flight", &WINDOW.to_string())
        .build()?;
    insta::assert_snapshot!(said(&world, &relay.setup().await?)?, @"
    created  migrations
    found    table public.outbox_events
    created  publication walrelay
    created  baseline of publication and tables
    created  slot SLOT (streams from LSN)
    copied   240 unsent rows of public.outbox_events, to be sent first, by created_at
    ");
    expected.extend(world.commit_events(20).await?);

    let recorder = world.recorder().await?;
    relay.start()?;
    let deliveries = recorder.wait_for(260, LONG).await?;
    assert_eq!(ids(&deliveries), expected);
    let backfilled: Vec<_> = deliveries
        .iter()
        .map(|delivery| u8::from(is_backfilled(delivery)))
        .collect();
    assert_eq!(backfilled, [vec![1; 240], vec![0; 20]].concat());
    world.wait_backfilled().await?;
    let metrics = relay.metrics().await?;
    assert_eq!(metrics.sum("walrelay_backfilled_total", &[]), 240.0);
    assert_eq!(metrics.sum("walrelay_backfill_rows_left", &[]), 0.0);
    assert_eq!(relay.ready().await?.json["delivery"]["state"], "flowing");
    Ok(())
}

#[tokio::test]
async fn all_rows_are_sent_in_another_order_if_that_is_asked_for() -> Result<()> {
    let world = World::new().await?.with_old_table().await?;
    let mut expected = world.old_rows(30).await?;
    world
        .client
        .batch_execute(
            "update outbox_events set sent_at = now(); alter table outbox_events add column rank int",
        )
        .await?;
    world
        .client
        .batch_execute("update outbox_events set rank = -extract(epoch from created_at)")
        .await?;
    expected.reverse();
    let mut relay = world.relay().build()?;
    let refused = relay
        .run_command(&["setup", "--backfill", "all", "--backfill-order", "rang"])
        .await?;
    assert_eq!(refused.code(), Some(1));
    insta::assert_snapshot!(last_line(&refused), @"walrelay: the rows of public.outbox_events that are there cannot be looked for: it has no column `rang` to order its rows by: correct that, or say `--backfill none` to setup and leave the rows that are there unsent");
    assert_eq!(world.slots().await?, 0);
    let output = relay
        .run_command(&["setup", "--backfill", "all", "--backfill-order", "rank"])
        .await?;
    assert_eq!(output.code(), Some(0), "{}", output.stderr);
    let recorder = world.recorder().await?;
    relay.start()?;
    assert_eq!(ids(&recorder.wait_for(30, LONG).await?), expected);
    Ok(())
}

/// The join reads the mark again: a worker that still polls has sent these.
#[tokio::test]
async fn r22_rows_marked_or_deleted_meanwhile_are_passed_over_and_counted() -> Result<()> {
    let world = World::new().await?.with_old_table().await?;
    let mut expected = world.old_rows(50).await?;
    let mut relay = world.relay().build()?;
    relay.setup().await?;
    let gone = expected.split_off(42);
    world
        .client
        .execute(
            "update outbox_events set sent_at = now() where id = any($1::text[]::uuid[])",
            &[&&gone[..5]],
        )
        .await?;
    world
        .client
        .execute(
            "delete from outbox_events where id = any($1::text[]::uuid[])",
            &[&&gone[5..]],
        )
        .await?;
    let recorder = world.recorder().await?;
    relay.start()?;
    recorder.wait_for(42, LONG).await?;
    world.wait_backfilled().await?;
    expected.extend(world.commit_events(1).await?);
    assert_eq!(ids(&recorder.wait_for(43, LONG).await?), expected);
    let metrics = relay.metrics().await?;
    assert_eq!(metrics.sum("walrelay_backfill_marked_total", &[]), 5.0);
    assert_eq!(metrics.sum("walrelay_backfill_deleted_total", &[]), 3.0);
    Ok(())
}

/// The same rows once before the slot and once through it must give the same messages.
#[tokio::test]
async fn a_backfilled_message_is_byte_for_byte_what_the_stream_would_bring() -> Result<()> {
    let world = World::new().await?;
    let client = &world.client;
    let columns = "(id char(12) primary key, aggregate_type text not null, aggregate_id char(8) not null,
        event_type text not null, payload TYPE not null, sent_at timestamptz, created_at timestamptz not null,
        day date, lasts interval, ratio float8, flag boolean, twice text generated always as (event_type || event_type) stored)";
    for name in ["json", "jsonb", "text", "bytea"] {
        let table = format!("create table outbox_{name} {}", columns.replace("TYPE", name));
        client.batch_execute(&table).await?;
    }
    // What would change the text if the sessions did not pin it.
    let database = world.database.name();
    client
        .batch_execute(&format!(
            "alter database {database} set datestyle = 'German'; alter database {database} set timezone = 'Asia/Tokyo';
             alter database {database} set intervalstyle = 'iso_8601'; alter database {database} set bytea_output = 'escape';
             alter database {database} set extra_float_digits = -5"
        ))
        .await?;
    let insert = async |prefix: &str| -> Result<()> {
        for (name, payload) in [
            ("json", r#"' { "b" : 0.10000000000000000001 , "a":"\u00e4" }'"#),
            ("jsonb", r#"'{"b": 1e400, "a": "ä"}'"#),
            ("text", "E'line\\n\\ttab \\\\ ü'"),
            ("bytea", r"'\x00ff5c0a27'"),
        ] {
            let sql = format!(
                "insert into outbox_{name} values ('{prefix}{name}', 'order', 'a b', 'Made', {payload}, null,
                 '2026-02-03 04:05:06.789+09', '2026-02-03', '1 day 02:03', 0.1::float8 + 0.2, true)"
            );
            client.batch_execute(&sql).await?;
        }
        Ok(())
    };
    insert("old ").await?;
    let mut relay = world
        .relay()
        .outboxes(&["outbox_json", "outbox_jsonb", "outbox_text", "outbox_bytea"])
        .text(
            "rabbitmq.routing_key",
            "{aggregate_id}|{created_at}|{day}|{lasts}|{ratio}|{flag}",
        )
        .build()?;
    relay.setup().await?;
    insert("new ").await?;
    let recorder = world.recorder().await?;
    relay.start()?;
    let deliveries = recorder.wait_for(8, LONG).await?;
    let (old, new) = deliveries.split_at(4);
    for (old, new) in old.iter().zip(new) {
        assert_eq!(old.message_id.replace("old ", "new "), new.message_id);
        assert_eq!((is_backfilled(old), is_backfilled(new)), (true, false));
        assert_eq!(old.body, new.body, "{}", new.message_id);
        assert_eq!(old.routing_key, new.routing_key);
        assert_eq!(old.properties.content_type(), new.properties.content_type());
        assert_eq!(old.properties.kind(), new.properties.kind());
        for name in ["aggregate_type", "aggregate_id"] {
            assert_eq!(header(old, name), header(new, name));
        }
    }
    let keys: HashSet<_> = deliveries
        .iter()
        .map(|delivery| {
            format!(
                "{:?} {:?}",
                header(delivery, "commit_lsn"),
                delivery.properties.headers()
            )
        })
        .collect();
    assert_eq!(keys.len(), 8);
    assert!(
        new[0].routing_key.contains("2026-02-02 19:05:06.789+00"),
        "{}",
        new[0].routing_key
    );
    Ok(())
}

#[tokio::test]
async fn a_backfill_of_large_rows_needs_little_memory() -> Result<()> {
    let world = World::new().await?.with_old_table().await?;
    // Hex digits hardly compress. Made once, since an open transaction holds up the creation of any slot.
    world
        .client
        .batch_execute(
            "create table large as select string_agg(md5(n::text), '') as t from generate_series(1, 32768) n;
             insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             select gen_random_uuid(), 'order', n, 'OrderCreated', to_jsonb(t) from large, generate_series(1, 100) n",
        )
        .await?;
    let mut relay = world
        .relay()
        .text("delivery.max_in_flight_bytes", "4MiB")
        .text("log.level", "info")
        .build()?;
    relay.setup().await?;
    let recorder = Recorder::keeping(&world.vhost, QUEUE, Keep::Ids).await?;
    relay.start()?;
    recorder.wait_for_distinct(100, LONG).await?;
    world.wait_backfilled().await?;
    let peak = relay.peak_rss_kib()?;
    assert!(peak < 64 * 1024, "{peak} KiB");
    Ok(())
}

#[tokio::test]
async fn a_row_with_an_oversized_payload_is_invalid_under_its_key() -> Result<()> {
    let world = World::new().await?.with_old_table().await?;
    let old = world.old_rows(3).await?;
    world
        .client
        .execute(
            "update outbox_events set payload = to_jsonb(repeat('x', 4000)) where id = $1::text::uuid",
            &[&old[1]],
        )
        .await?;
    let mut relay = world
        .relay()
        .set("delivery.max_event_bytes", "2000")
        .text("delivery.on_invalid", "dead_letter")
        .build()?;
    relay.setup().await?;
    let recorder = world.recorder().await?;
    relay.start()?;
    let deliveries = recorder.wait_for(2, LONG).await?;
    assert_eq!(ids(&deliveries), [old[0].as_str(), old[2].as_str()]);
    world.wait_backfilled().await?;
    let detail = text(&world.client, "select detail from walrelay.dead_letters").await?;
    assert!(detail.contains("column \"payload\" has 4002 bytes"), "{detail}");
    Ok(())
}

/// Ids may repeat where the table lets them: each row comes once.
#[tokio::test]
async fn rows_of_one_id_and_of_partitions_come_once_each() -> Result<()> {
    let world = World::new().await?;
    world
        .client
        .batch_execute(
            "create table outbox_events (id bigint not null, aggregate_type text not null, aggregate_id bigint not null,
             event_type text not null, payload jsonb not null, created_at date not null, primary key (id, created_at))
             partition by range (created_at);
             create table early partition of outbox_events for values from ('2020-01-01') to ('2021-01-01');
             create table late (payload jsonb not null, created_at date not null, id bigint not null,
             aggregate_type text not null, aggregate_id bigint not null, event_type text not null);
             alter table outbox_events attach partition late for values from ('2021-01-01') to ('2022-01-01');
             insert into outbox_events select n % 7, 'order', n, 'OrderCreated', jsonb_build_object('n', n),
             date '2020-06-01' + (n / 7) * 365 from generate_series(0, 13) n",
        )
        .await?;
    let mut relay = world.relay().build()?;
    let output = relay.run_command(&["setup", "--backfill", "all"]).await?;
    assert_eq!(output.code(), Some(0), "{}", output.stderr);
    let recorder = world.recorder().await?;
    relay.start()?;
    let deliveries = recorder.wait_for(14, LONG).await?;
    let bodies: HashSet<_> = deliveries.iter().map(|delivery| delivery.body.clone()).collect();
    assert_eq!(bodies.len(), 14);
    let mut ids: Vec<_> = ids(&deliveries);
    ids.sort_unstable();
    let twice: Vec<_> = ["0", "1", "2", "3", "4", "5", "6"]
        .iter()
        .flat_map(|id| [*id; 2])
        .collect();
    assert_eq!(ids, twice);
    Ok(())
}

/// R18, R22.
#[tokio::test]
async fn rows_that_were_there_are_marked_once_they_are_sent() -> Result<()> {
    let world = World::new().await?.with_old_table().await?;
    let old = world.old_rows(250).await?;
    let relay = world.running().await?;
    let recorder = world.recorder().await?;
    recorder.wait_for_distinct(old.len(), LONG).await?;
    world.wait_backfilled().await?;
    wait_for_rows(&world.client, 250, 0).await?;
    drop(relay);
    Ok(())
}
