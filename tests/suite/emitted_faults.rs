//! What goes wrong with events without a table: deaths, messages that are no events, and such as cannot be delivered.

use anyhow::{Context as _, Result, ensure};
use walrelay_testbed::{Relay, eventually};

use crate::emitted::{emit, emit_about};
use crate::world::{EXCHANGE, LONG, QUEUE, World, text, wal_end};

/// Characters of an oversized message; the limit is 16 MiB.
const LARGE: usize = 100_000_000;

/// What the relay may have resident at most while it reads such a message.
const RSS_KIB: u64 = 40 * 1024;

/// The key of the event that is held, and why it is.
async fn held(relay: &mut Relay) -> Result<(String, String)> {
    let readiness = relay
        .wait_readiness("an event to be held", LONG, |readiness| {
            readiness.json["delivery"]["cause"] == "event_invalid"
        })
        .await?;
    let text = |name: &str| readiness.json["delivery"][name].as_str().map(str::to_owned);
    Ok((text("key").context("a key")?, text("error").context("an error")?))
}

/// I1, I2, I3: while it reads, publishes and reports.
#[tokio::test]
async fn a_relay_killed_among_messages_loses_none_and_keeps_the_order() -> Result<()> {
    const DEATHS: usize = 6;
    const EACH: usize = 400;
    const WINDOW: usize = 50;
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world
        .table_less()
        .set("delivery.max_in_flight", &WINDOW.to_string())
        .start()
        .await?;
    let mut expected = Vec::new();
    for death in 0..DEATHS {
        for batch in 0..4 {
            // Some transactions are larger than the window.
            let sql = format!(
                "select walrelay.emit('order', '42', 'OrderCreated', to_json(n))::text from generate_series(1, {}) n",
                EACH / 4
            );
            let rows = world.client.query(&sql, &[]).await?;
            expected.extend(rows.iter().map(|row| row.get::<_, String>(0)));
            if batch == 2 {
                recorder.wait_for_distinct(EACH * death + 37, LONG).await?;
                relay.kill().await?;
                relay.start()?;
            }
        }
    }
    recorder.wait_for_distinct(DEATHS * EACH, LONG).await?;
    let mut first = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for id in recorder.message_ids() {
        if seen.insert(id.clone()) {
            first.push(id);
        }
    }
    assert_eq!(first, expected);
    let duplicates = recorder.duplicates();
    // A position is reported behind a whole transaction, and moves within a window of settled events.
    let bound = DEATHS * (EACH / 4 + 2 * WINDOW);
    ensure!(duplicates <= u64::try_from(bound)?, "{duplicates}");
    relay.wait_ready(LONG).await?;
    world.wait_flushed(wal_end(&world.client).await?).await
}

/// R9: a message without an id is skipped by its key.
#[tokio::test]
async fn a_message_that_is_no_event_is_held_until_it_is_skipped_by_its_key() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world.table_less().start().await?;
    for (content, why) in [
        (
            "'{\"id\": \"x\" \"y\"}'",
            "the logical message is no JSON object of an event: expected `,` or `}` at byte 12",
        ),
        (
            "'\\xe9'::bytea",
            "the logical message is not UTF-8 from byte 1 on",
        ),
        (
            "'{\"id\": \"x\", \"payload\": 1, \"aggregate_type\": \"order\", \"aggregate_id\": 1}'",
            "\"event_type\" is null or missing",
        ),
    ] {
        let sql = format!("select pg_logical_emit_message(true, 'outbox', {content})");
        world.client.batch_execute(&sql).await?;
        let (key, error) = held(&mut relay).await?;
        assert!(error.ends_with(why), "{error}");
        let behind = emit(&world.client, "1").await?;
        let skipped = relay.run_command(&["skip", &key, "--reason", "no event"]).await?;
        assert_eq!(skipped.code(), Some(0), "{}", skipped.stderr);
        recorder
            .wait_until("the event behind it", LONG, |deliveries| {
                deliveries.iter().any(|delivery| delivery.message_id == behind)
            })
            .await?;
    }
    let outboxes = "select string_agg(distinct settled_outbox, ',') from walrelay.skips";
    eventually("the skips to be on record", LONG, async || {
        text(&world.client, outboxes)
            .await
            .is_ok_and(|found| found == "walrelay.\"messages:outbox\"")
    })
    .await?;
    Ok(())
}

/// R15, R16.
#[tokio::test]
async fn a_message_that_no_queue_takes_becomes_a_dead_letter_and_is_retried_as_it_was() -> Result<()> {
    let world = World::for_orders().await?;
    let recorder = world.recorder().await?;
    let relay = world
        .table_less()
        .text("delivery.on_unroutable", "dead_letter")
        .text("delivery.on_invalid", "dead_letter")
        .start()
        .await?;
    let payload = "{ \"n\": 0.10000000000000000001, \"nul\": \"\\u0000\" }";
    let astray = emit_about(&world.client, "nobody", payload).await?;
    // Neither an event nor a text: it is kept so that a person can read it, and so that the commands still can.
    let nonsense = "select pg_logical_emit_message(true, 'outbox', '\\x7b00e97d'::bytea)";
    world.client.batch_execute(nonsense).await?;
    let event = emit(&world.client, "1").await?;
    recorder.wait_for_distinct(1, LONG).await?;
    world.wait_flushed(wal_end(&world.client).await?).await?;

    let listed = relay.run_command(&["dead-letters", "list"]).await?;
    assert!(
        listed.stdout.contains(&astray),
        "{}\n{}",
        listed.stdout,
        listed.stderr
    );
    let kept = "select string_agg(outbox || ' ' || reason || ' ' || coalesce(columns ->> 'content', ''), ';' order by commit_lsn)
                from walrelay.dead_letters";
    assert_eq!(
        text(&world.client, kept).await?,
        "walrelay.\"messages:outbox\" unroutable ;walrelay.\"messages:outbox\" invalid {\u{FFFD}\u{FFFD}}"
    );

    world.vhost.bind(QUEUE, EXCHANGE, "nobody.#").await?;
    let retried = relay.run_command(&["dead-letters", "retry", &astray]).await?;
    assert_eq!(retried.code(), Some(0), "{}", retried.stderr);
    recorder.wait_for_distinct(2, LONG).await?;
    let deliveries = recorder.deliveries();
    assert_eq!(
        (
            deliveries[0].message_id.as_str(),
            deliveries[1].message_id.as_str()
        ),
        (event.as_str(), astray.as_str())
    );
    assert_eq!(String::from_utf8_lossy(&deliveries[1].body), payload);
    assert_eq!(deliveries[1].routing_key, "nobody.OrderCreated");
    eventually("the dead letter to be gone", LONG, async || {
        text(&world.client, "select count(*)::text from walrelay.dead_letters")
            .await
            .is_ok_and(|left| left == "1")
    })
    .await?;

    // What was never an event is said to be none, and stays for a person.
    let key = "select commit_lsn::text || ':' || tx_seq from walrelay.dead_letters";
    let key = text(&world.client, key).await?;
    let retried = relay
        .run_command(&["dead-letters", "retry", "--key", &key])
        .await?;
    assert_eq!(retried.code(), Some(0), "{}", retried.stderr);
    let fate = "select state || ' ' || attempts || ' ' || detail from walrelay.dead_letters";
    let expected = ": it is a logical message that was no event, of which no message can be made: \
                    correct who wrote it, and discard the dead letter";
    eventually("the retry to have failed", LONG, async || {
        text(&world.client, fate)
            .await
            .is_ok_and(|fate| fate.starts_with("pending 2 ") && fate.ends_with(expected))
    })
    .await
    .with_context(|| format!("expected {expected}"))?;
    Ok(())
}

#[tokio::test]
async fn an_oversized_message_is_invalid_under_its_key_and_never_buffered() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world.table_less().start().await?;
    let before = emit(&world.client, "1").await?;
    let sql = format!("select pg_logical_emit_message(true, 'outbox', repeat('x', {LARGE}))");
    world.client.batch_execute(&sql).await?;
    // Nobody's, and passed over.
    let sql = format!("select pg_logical_emit_message(true, repeat('p', 300), repeat('x', {LARGE} / 4))");
    world.client.batch_execute(&sql).await?;
    let behind = emit(&world.client, "2").await?;

    let (key, error) = held(&mut relay).await?;
    let why = format!(
        "column \"payload\" has {LARGE} bytes; there is room for 16777216 (delivery.max_event_bytes)"
    );
    assert!(error.ends_with(&why), "{error}");
    relay.kill().await?;
    relay.start()?;
    assert_eq!(held(&mut relay).await?, (key.clone(), error), "its key stays");
    let skipped = relay
        .run_command(&["skip", &key, "--reason", "too large"])
        .await?;
    assert_eq!(skipped.code(), Some(0), "{}", skipped.stderr);
    recorder.wait_for_distinct(2, LONG).await?;
    let delivered = recorder.distinct_ids();
    assert!(delivered.contains(&before) && delivered.contains(&behind));
    let peak = relay.peak_rss_kib()?;
    ensure!(peak < RSS_KIB, "{peak} KiB resident");
    Ok(())
}
