//! Dead letters delivered on request, through the stream (R16).

use anyhow::{Context as _, Result};
use walrelay::postgres::dead_letters::{State, load};
use walrelay::postgres::{Connector, ControlSession, EventPosition, SlotName};
use walrelay_testbed::{Relay, eventually};

use crate::world::{EXCHANGE, LONG, QUEUE, World, header, text};

const COUNT: &str = "select count(*)::text from walrelay.dead_letters";

/// A world whose queue takes only what is for `order`, a relay that sets the rest aside, and the id of an event that
/// was set aside.
async fn with_a_dead_letter() -> Result<(World, Relay, String)> {
    let world = World::for_orders().await?;
    let relay = world
        .relay()
        .text("delivery.on_unroutable", "dead_letter")
        .start()
        .await?;
    let id = text(
        &world.client,
        "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
         values (gen_random_uuid(), 'nobody', 42, 'Asked', '{\"n\": 0.10000000000000000001}') returning id::text",
    )
    .await?;
    eventually("the event is set aside", LONG, || async {
        text(&world.client, COUNT).await.is_ok_and(|count| count == "1")
    })
    .await?;
    Ok((world, relay, id))
}

async fn retry(relay: &Relay, id: &str) -> Result<()> {
    let asked = relay.run_command(&["dead-letters", "retry", "--id", id]).await?;
    anyhow::ensure!(asked.code() == Some(0), "{}", asked.stderr);
    Ok(())
}

/// State, attempts and reason of the one dead letter.
async fn row(world: &World) -> Result<String> {
    text(
        &world.client,
        "select concat_ws(' ', state, attempts, reason) from walrelay.dead_letters",
    )
    .await
}

async fn wait_for_row(world: &World, expected: &str) -> Result<()> {
    let what = format!("the dead letter is `{expected}`");
    eventually(&what, LONG, || async {
        row(world).await.is_ok_and(|row| row == expected)
    })
    .await?;
    Ok(())
}

/// Waits until the slot has passed everything written so far.
async fn passed(world: &World) -> Result<()> {
    let sql = "select (pg_current_wal_flush_lsn() - '0/0')::bigint";
    world
        .wait_flushed(world.client.query_one(sql, &[]).await?.get(0))
        .await
}

async fn emit(world: &World, content: &str) -> Result<()> {
    let sql = "select pg_logical_emit_message(true, 'walrelay', $1)::text";
    world.client.query_one(sql, &[&content]).await?;
    Ok(())
}

async fn key(world: &World) -> Result<String> {
    text(
        &world.client,
        "select commit_lsn || ':' || tx_seq from walrelay.dead_letters",
    )
    .await
}

#[tokio::test]
async fn a_dead_letter_is_delivered_once_as_it_was_and_its_row_goes() -> Result<()> {
    let (world, relay, id) = with_a_dead_letter().await?;
    let (lsn, seq) = {
        let key = key(&world).await?;
        let (lsn, seq) = key.split_once(':').context("a key")?;
        (lsn.to_owned(), seq.parse::<i64>()?)
    };
    world.vhost.bind(QUEUE, EXCHANGE, "nobody.#").await?;
    let recorder = world.recorder().await?;
    retry(&relay, &id).await?;
    let deliveries = recorder.wait_for(1, LONG).await?;
    let delivery = deliveries.first().context("a delivery")?;
    assert_eq!(
        (delivery.message_id.as_str(), delivery.routing_key.as_str()),
        (id.as_str(), "nobody.Asked")
    );
    assert_eq!(delivery.body, b"{\"n\": 0.10000000000000000001}");
    assert_eq!(header(delivery, "commit_lsn"), Some(lsn.as_str()));
    assert_eq!(header(delivery, "aggregate_id"), Some("42"));
    let headers = delivery.properties.headers().as_ref().context("headers")?;
    assert_eq!(
        headers
            .inner()
            .get("tx_seq")
            .and_then(|seq| seq.as_long_long_int()),
        Some(seq)
    );
    eventually("the dead letter is gone", LONG, || async {
        text(&world.client, COUNT).await.is_ok_and(|count| count == "0")
    })
    .await?;
    passed(&world).await?;
    assert_eq!(recorder.count(), 1);
    assert_eq!(relay.metrics().await?.sum("walrelay_retried_total", &[]), 1.0);
    relay
        .wait_for_log("the delivery", LONG, |line| {
            line.contains("dead letter delivered") && line.contains(&id)
        })
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_retry_that_fails_again_goes_back_and_holds_nothing() -> Result<()> {
    let (world, relay, id) = with_a_dead_letter().await?;
    let recorder = world.recorder().await?;
    retry(&relay, &id).await?;
    wait_for_row(&world, "pending 2 unroutable").await?;
    world.commit_events(1).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    passed(&world).await?;
    assert!(relay.ready().await?.is_ready());
    // As often as it is asked for.
    retry(&relay, &id).await?;
    wait_for_row(&world, "pending 3 unroutable").await?;
    assert_eq!(relay.metrics().await?.sum("walrelay_retried_total", &[]), 0.0);
    Ok(())
}

#[tokio::test]
async fn a_retry_asked_for_while_the_relay_is_down_is_delivered_by_the_next_one() -> Result<()> {
    let (world, mut relay, id) = with_a_dead_letter().await?;
    passed(&world).await?;
    relay.kill().await?;
    world.vhost.bind(QUEUE, EXCHANGE, "nobody.#").await?;
    let recorder = world.recorder().await?;
    retry(&relay, &id).await?;
    assert_eq!(row(&world).await?, "retrying 1 unroutable");
    relay.start()?;
    recorder.wait_for(1, LONG).await?;
    passed(&world).await?;
    assert_eq!(
        (text(&world.client, COUNT).await?.as_str(), recorder.count()),
        ("0", 1)
    );
    Ok(())
}

/// R16: any role can write a message. It can neither bring a body nor cause a delivery.
#[tokio::test]
async fn messages_that_nobody_asked_for_by_command_deliver_nothing() -> Result<()> {
    let (world, relay, _) = with_a_dead_letter().await?;
    world.vhost.bind(QUEUE, EXCHANGE, "nobody.#").await?;
    let recorder = world.recorder().await?;
    let (slot, key) = (world.slot(), key(&world).await?);
    let ours = format!(r#"{{"retry":{{"slot":"{slot}","key":"{key}"}}}}"#);
    let with_body =
        format!(r#"{{"retry":{{"slot":"{slot}","key":"{key}","columns":{{"id":"1","payload":"{{}}"}}}}}}"#);
    // The row is pending: nobody who may change it has asked.
    emit(&world, &ours).await?;
    emit(
        &world,
        &format!(r#"{{"retry":{{"slot":"{slot}","key":"0/1:7"}}}}"#),
    )
    .await?;
    passed(&world).await?;
    world
        .database
        .execute("update walrelay.dead_letters set state = 'retrying'")
        .await?;
    emit(&world, &with_body).await?;
    emit(
        &world,
        &format!(r#"{{"retry":{{"slot":"other","key":"{key}"}}}}"#),
    )
    .await?;
    emit(&world, "{}").await?;
    let ids = world.commit_events(1).await?;
    recorder.wait_for(1, LONG).await?;
    passed(&world).await?;
    assert_eq!(recorder.message_ids(), ids);
    assert_eq!(row(&world).await?, "retrying 1 unroutable");
    assert!(relay.ready().await?.is_ready());
    // With nothing but slot and key it is a request, as `recover` writes it again.
    emit(&world, &ours).await?;
    recorder.wait_for(2, LONG).await?;
    Ok(())
}

/// A walsender sends a commit before other sessions can see it; the lock makes the relay wait for that.
#[tokio::test]
async fn a_dead_letter_that_is_being_changed_is_read_as_it_will_be() -> Result<()> {
    let (world, mut relay, _) = with_a_dead_letter().await?;
    relay.kill().await?;
    let position: EventPosition = key(&world).await?.parse()?;
    let slot: SlotName = world.slot().parse()?;
    let connector = Connector::new(world.database.url().parse()?);
    let session = ControlSession::open(&connector, &slot).await?;
    let mut client = world.database.client().await?;
    let change = client.transaction().await?;
    change
        .execute("update walrelay.dead_letters set state = 'retrying'", &[])
        .await?;
    let loading = tokio::spawn(async move { load(&session, &slot, position).await });
    eventually("the look-up waits", LONG, || async {
        let sql = "select count(*)::text from pg_locks join pg_stat_activity using (pid)
                   where not granted and datname = current_database()";
        text(&world.client, sql).await.is_ok_and(|count| count == "1")
    })
    .await?;
    change.commit().await?;
    let found = loading.await??.context("a dead letter")?;
    assert_eq!(found.summary.state, State::Retrying);
    Ok(())
}
