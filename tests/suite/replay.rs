//! `walrelay replay`: rows that are still in their table, published again beside a live relay.

use std::collections::HashSet;

use anyhow::{Context as _, Result};
use lapin::types::AMQPValue;
use walrelay_testbed::{CommandOutput, Delivery, QueueOptions, Relay, eventually};

use crate::world::{EXCHANGE, LONG, QUEUE, World, header};

/// Everything of a message but what a replay changes: routing, body, properties, the aggregate.
fn told(delivery: &Delivery) -> impl PartialEq + std::fmt::Debug {
    let properties = &delivery.properties;
    let short = |text: &Option<lapin::types::ShortString>| text.as_ref().map(ToString::to_string);
    (
        (
            delivery.message_id.clone(),
            delivery.exchange.clone(),
            delivery.routing_key.clone(),
        ),
        delivery.body.clone(),
        (
            short(properties.content_type()),
            short(properties.kind()),
            short(properties.app_id()),
        ),
        *properties.delivery_mode(),
        *properties.timestamp(),
        header(delivery, "aggregate_type").map(str::to_owned),
        header(delivery, "aggregate_id").map(str::to_owned),
    )
}

fn header_names(delivery: &Delivery) -> Vec<String> {
    let headers = delivery.properties.headers().as_ref();
    headers.map_or_else(Vec::new, |headers| {
        headers.inner().keys().map(ToString::to_string).collect()
    })
}

fn is_replayed(delivery: &Delivery) -> bool {
    let headers = delivery.properties.headers().as_ref();
    headers.is_some_and(|headers| headers.inner().get("replayed") == Some(&AMQPValue::Boolean(true)))
}

async fn replay(relay: &Relay, arguments: &[&str]) -> Result<CommandOutput> {
    Ok(relay.run_command(&[&["replay"], arguments].concat()).await?)
}

/// I4. The row of a table with quoted, mixed-case names in another schema, with bytes for a body.
#[tokio::test]
async fn a_replayed_message_is_the_first_one_but_for_its_headers() -> Result<()> {
    let world = World::new().await?;
    let client = &world.client;
    client
        .batch_execute(
            "create schema \"Shop\";
             create table \"Shop\".\"Out Box\" (payload bytea not null, \"Kind\" char(8), event_type text not null, aggregate_id
                 text not null, aggregate_type text not null, id bigint primary key, created_at timestamptz not null
                 default now())",
        )
        .await?;
    let recorder = world.recorder().await?;
    let relay = world
        .relay()
        .outboxes(&["public.outbox_events", "\"Shop\".\"Out Box\""])
        .text("rabbitmq.routing_key", "{aggregate_type}.{event_type}")
        .start()
        .await?;
    client
        .batch_execute(
            "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             values ('7d5f1c5e-0000-4000-8000-000000000000', 'order', 42, 'created',
             '{\"n\": 0.10000000000000000001, \"t\": \"\\u00e4 ü\"}');
             insert into \"Shop\".\"Out Box\" values ('\\x00ff5c0a', 'x', 'packed', 'a/b', 'parcel', 7)",
        )
        .await?;
    let first = recorder.wait_for(2, LONG).await?;

    for (arguments, of_first) in [
        (
            ["--id", "7d5f1c5e-0000-4000-8000-000000000000"].as_slice(),
            &first[0],
        ),
        (&["--aggregate", "parcel/a/b", "--yes"], &first[1]),
    ] {
        let table = ["--table", "public.outbox_events"];
        let table = if arguments[0] == "--id" {
            table.as_slice()
        } else {
            &["--table", "\"Shop\".\"Out Box\""]
        };
        let before = recorder.deliveries().len();
        let ended = replay(&relay, &[arguments, table].concat()).await?;
        assert_eq!(
            (ended.code(), ended.stdout.as_str()),
            (Some(0), "1 confirmed, 0 failed\n"),
            "{}",
            ended.stderr
        );
        recorder.wait_for(u64::try_from(before)? + 1, LONG).await?;
        let again = recorder.deliveries().pop().context("a message")?;
        assert_eq!(told(&again), told(of_first));
        assert_eq!(
            header_names(&again),
            ["aggregate_id", "aggregate_type", "replay_seq", "replayed"]
        );
        assert!(is_replayed(&again) && !is_replayed(of_first));
    }
    assert_eq!(first[1].body, b"\x00\xff\x5c\x0a");
    Ok(())
}

/// First deliveries go on. What is created after the start is the live relay's.
#[tokio::test]
async fn a_replay_runs_beside_a_live_relay_and_takes_exactly_the_rows_asked_for() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let relay = world.running().await?;
    world
        .client
        .batch_execute(
            "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload, created_at)
             select gen_random_uuid(), 'order', n % 10, case n % 4 when 0 then 'OrderPaid' else 'OrderCreated' end, '{}',
             now() - n * interval '10 minutes' from generate_series(1, 4000) n",
        )
        .await?;
    recorder.wait_for_distinct(4000, LONG).await?;
    let expected = world
        .client
        .query(
            "select id::text from outbox_events where event_type = 'OrderCreated'
             order by created_at desc limit 2250",
            &[],
        )
        .await?;
    let expected: HashSet<String> = expected.iter().map(|row| row.get(0)).collect();

    let conditions = ["--event-type", "OrderCreated", "--since", "30000m"];
    let counted = replay(&relay, &[conditions.as_slice(), &["--dry-run"]].concat()).await?;
    assert_eq!(
        (counted.code(), counted.stdout.as_str()),
        (Some(0), "2250 rows would be published again\n"),
        "{}",
        counted.stderr
    );
    let arguments = [conditions.as_slice(), &["--rate", "1000", "--yes"]].concat();
    let replayed = || -> Vec<_> { recorder.deliveries().into_iter().filter(is_replayed).collect() };
    let writing = async {
        recorder
            .wait_until("a replayed message", LONG, |deliveries| {
                deliveries.iter().any(is_replayed)
            })
            .await?;
        world.commit_events(20).await
    };
    let (ended, written) = tokio::join!(replay(&relay, &arguments), writing);
    let (ended, written) = (ended?, written?);
    assert_eq!(
        (ended.code(), ended.stdout.as_str()),
        (Some(0), "2250 confirmed, 0 failed\n"),
        "{}",
        ended.stderr
    );
    recorder.wait_for_distinct(4020, LONG).await?;
    eventually("all replayed messages to come", LONG, || {
        std::future::ready(replayed().len() >= 2250)
    })
    .await?;
    let replayed = replayed();
    let ids: HashSet<_> = replayed
        .iter()
        .map(|delivery| delivery.message_id.clone())
        .collect();
    assert_eq!((ids.len(), &ids), (replayed.len(), &expected), "each once");
    assert!(written.iter().all(|id| !ids.contains(id)));
    // In order of creation.
    let times: Vec<_> = replayed
        .iter()
        .map(|delivery| *delivery.properties.timestamp())
        .collect();
    assert!(times.is_sorted());
    Ok(())
}

#[tokio::test]
async fn rows_that_are_returned_refused_or_invalid_are_named_and_the_others_delivered() -> Result<()> {
    let world = World::without_exchange().await?;
    let vhost = &world.vhost;
    vhost
        .declare_exchange(EXCHANGE, lapin::ExchangeKind::Topic)
        .await?;
    vhost.declare_queue(QueueOptions::classic(QUEUE)).await?;
    vhost.bind(QUEUE, EXCHANGE, "order.#").await?;
    vhost
        .declare_queue(QueueOptions::classic("full").refusing_beyond(1))
        .await?;
    vhost.bind("full", EXCHANGE, "full.#").await?;
    // Nothing relays these: the slot is made after they were written.
    world
        .client
        .batch_execute(
            "create table outbox_events (id text primary key, aggregate_type text not null, aggregate_id bigint not null,
                 event_type text not null, payload jsonb, created_at timestamptz not null default now());
             insert into outbox_events values ('a', 'order', 1, 'created', '{}'), ('b', 'nobody', 1, 'created', '{}'),
                 ('c', 'order', 1, 'created', null), ('d', 'full', 1, 'created', '{}'), ('e', 'full', 1, 'created', '{}'),
                 ('f', 'order', 1, 'created', '{}')",
        )
        .await?;
    let recorder = world.recorder().await?;
    let relay = world.relay().build()?;
    relay.setup().await?;

    let ended = replay(&relay, &["--since", "1h", "--rate", "1000000", "--yes"]).await?;
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    let mut lines: Vec<_> = ended.stdout.lines().collect();
    lines.sort_unstable();
    insta::assert_snapshot!("replay_with_failures", lines.join("\n"));
    recorder.wait_for_distinct(2, LONG).await?;
    assert_eq!(recorder.message_ids(), ["a", "f"]);
    Ok(())
}

/// What a partition holds when it is attached is not in the stream, nor is the clearing of `sent_at`.
#[tokio::test]
async fn what_no_stream_brings_is_published_by_a_replay() -> Result<()> {
    let world = World::new().await?;
    let client = &world.client;
    client
        .batch_execute(
            "create table outbox_events (id uuid, aggregate_type text not null, aggregate_id bigint not null,
                 event_type text not null, payload jsonb not null, sent_at timestamptz, created_at timestamptz not null,
                 primary key (id, created_at)) partition by range (created_at);
             create table late partition of outbox_events for values from ('2026-01-01') to ('2027-01-01');
             create table early (payload jsonb not null, id uuid not null, created_at timestamptz not null, event_type text not
                 null, aggregate_id bigint not null, aggregate_type text not null, sent_at timestamptz)",
        )
        .await?;
    let recorder = world.recorder().await?;
    let relay = world.running().await?;
    client
        .batch_execute(
            "insert into early values ('{\"early\": 1}', gen_random_uuid(), '2025-03-01', 'filled', 1, 'order', now());
             alter table outbox_events attach partition early for values from ('2025-01-01') to ('2026-01-01');
             update outbox_events set sent_at = null;
             insert into outbox_events values (gen_random_uuid(), 'order', 2, 'streamed', '{}', null, '2026-03-01')",
        )
        .await?;
    let first = recorder.wait_for(1, LONG).await?;
    assert_eq!(first[0].routing_key, "order.streamed");

    let ended = replay(&relay, &["--until", "2026-01-01T00:00:00Z", "--yes"]).await?;
    assert_eq!(
        (ended.code(), ended.stdout.as_str()),
        (Some(0), "1 confirmed, 0 failed\n"),
        "{}",
        ended.stderr
    );
    let came = recorder.wait_for(2, LONG).await?;
    assert_eq!(came[1].body, b"{\"early\": 1}");
    assert_eq!(came[1].routing_key, "order.filled");
    Ok(())
}

#[tokio::test]
async fn a_replay_asks_and_says_what_is_missing_in_one_line() -> Result<()> {
    let world = World::new().await?;
    let relay = world.relay().build()?;
    relay.setup().await?;
    let id = world.commit_events(1).await?.remove(0);
    let role = format!("plain_{}", world.database.name());
    world
        .client
        .batch_execute(&format!("create role {role} login replication"))
        .await?;
    let url = world.database.url().replace("postgres@", &format!("{role}@"));
    let plain = format!("postgres.url={url}");
    let mut said = Vec::new();
    for arguments in [
        ["--event-type", "OrderCreated"].as_slice(),
        &["--aggregate", "order/43", "--yes"],
        &["--table", "public.other", "--since", "1h"],
        &["--id", "no-uuid"],
        &["--id", &id, "--set", &plain],
        &["--id", &id, "--set", "rabbitmq.exchange=gone"],
    ] {
        let ended = replay(&relay, arguments).await?;
        assert_eq!(
            (ended.code(), ended.stdout.as_str()),
            (
                Some(1),
                if arguments.contains(&"rabbitmq.exchange=gone") {
                    "0 confirmed, 0 failed until then\n"
                } else {
                    ""
                }
            )
        );
        let lines = ended.stderr.lines().filter(|line| line.starts_with("walrelay: "));
        let broker = format!("127.0.0.1:{}", world.vhost.port());
        said.extend(lines.map(|line| {
            line.replace(&role, "ROLE")
                .replace(world.vhost.name(), "VHOST")
                .replace(&broker, "BROKER")
        }));
    }
    insta::assert_snapshot!("replay_refusals", said.join("\n"));
    let usage = replay(&relay, &["--yes"]).await?;
    assert_eq!(
        usage.code(),
        Some(2),
        "all rows are never meant by saying nothing"
    );
    Ok(())
}
