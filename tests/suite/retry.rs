//! Dead letters delivered on request, through the stream (R16).

use anyhow::{Context as _, Result};
use tokio_postgres::Client;
use walrelay::postgres::EventPosition;
use walrelay::postgres::dead_letters::{Found, State, load};
use walrelay_testbed::{
    Postgres, PostgresOptions, QueueOptions, Relay, eventually, shared_postgres, shared_rabbitmq,
};

use crate::marks::metric;
use crate::source::SetUp;
use crate::world::{EXCHANGE, LONG, QUEUE, World, header, text};

const COUNT: &str = "select count(*)::text from walrelay.dead_letters";

/// A world whose queue takes only what is for `order`, and a relay that sets the rest aside.
async fn for_orders(postgres: &Postgres) -> Result<(World, Relay)> {
    let (database, vhost) = (
        postgres.database().await?,
        shared_rabbitmq().await?.vhost().await?,
    );
    let client = database.client().await?;
    let world = World {
        database,
        vhost,
        client,
    };
    world
        .vhost
        .declare_exchange(EXCHANGE, lapin::ExchangeKind::Topic)
        .await?;
    world.vhost.declare_queue(QueueOptions::classic(QUEUE)).await?;
    world.vhost.bind(QUEUE, EXCHANGE, "order.#").await?;
    let relay = world
        .relay()
        .text("delivery.on_unroutable", "dead_letter")
        .start()
        .await?;
    Ok((world, relay))
}

/// As [`for_orders`], and the id of an event that was set aside.
async fn with_a_dead_letter() -> Result<(World, Relay, String)> {
    let (world, relay) = for_orders(shared_postgres().await?).await?;
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

/// What a person does by a command shows, too: the guard counts.
#[tokio::test]
async fn dead_letters_that_wait_are_a_metric() -> Result<()> {
    let (_world, mut relay, id) = with_a_dead_letter().await?;
    let shows = async |relay: &Relay, expected: f64| {
        let what = format!("{expected} dead letters to be shown");
        eventually(&what, LONG, async || {
            metric(relay, "walrelay_dead_letters_pending")
                .await
                .is_ok_and(|count| count == expected)
        })
        .await
    };
    shows(&relay, 1.0).await?;
    // A relay that stores none knows of them, too.
    relay.kill().await?;
    relay.reconfigure(|builder| builder.text("postgres.guard_interval", "1s"))?;
    relay.start()?;
    shows(&relay, 1.0).await?;
    let discarded = relay
        .run_command(&["dead-letters", "discard", "--id", &id, "--reason", "a test"])
        .await?;
    anyhow::ensure!(discarded.code() == Some(0), "{}", discarded.stderr);
    shows(&relay, 0.0).await?;
    Ok(())
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

/// R16: whichever process streams delivers it.
#[tokio::test]
async fn a_retry_asked_for_at_a_standby_is_delivered_by_the_active_relay() -> Result<()> {
    let (world, active, id) = with_a_dead_letter().await?;
    let mut standby = world
        .relay()
        .text("delivery.on_unroutable", "dead_letter")
        .build()?;
    standby.start()?;
    standby
        .wait_readiness("a standby", LONG, |ready| ready.json["role"] == "standby")
        .await?;
    world.vhost.bind(QUEUE, EXCHANGE, "nobody.#").await?;
    let recorder = world.recorder().await?;
    retry(&standby, &id).await?;
    recorder.wait_for(1, LONG).await?;
    passed(&world).await?;
    assert_eq!(active.metrics().await?.sum("walrelay_retried_total", &[]), 1.0);
    assert_eq!(standby.metrics().await?.sum("walrelay_retried_total", &[]), 0.0);
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
    let set_up = SetUp::with_dead_letters(1).await?;
    let (_stream, pid) = set_up.stream().await?;
    let position: EventPosition = set_up
        .text("select commit_lsn || ':' || tx_seq from walrelay.dead_letters")
        .await?
        .parse()?;
    let (session, slot) = (set_up.session().await?, set_up.source.slot.clone());
    let mut client = set_up.database.client().await?;
    let change = client.transaction().await?;
    change
        .execute("update walrelay.dead_letters set state = 'retrying'", &[])
        .await?;
    let loading = tokio::spawn(async move { load(&session, &slot, &[position], 0, pid).await });
    eventually("the look-up waits", LONG, || async {
        let sql = "select count(*)::text from pg_locks join pg_stat_activity using (pid)
                   where not granted and datname = current_database()";
        text(&set_up.client, sql).await.is_ok_and(|count| count == "1")
    })
    .await?;
    change.commit().await?;
    let found = loading.await??;
    let [Found::DeadLetter(letter)] = found.as_slice() else {
        anyhow::bail!("{found:?}")
    };
    assert_eq!(letter.summary.state, State::Retrying);
    Ok(())
}

/// Transactions that have written something since the server was started; the server is this test's own.
async fn written(client: &Client) -> Result<i64> {
    let sql = "select txid_snapshot_xmax(txid_current_snapshot())";
    Ok(client.query_one(sql, &[]).await?.get(0))
}

/// Thousands of transactions, sessions and waits would hold the stream up meanwhile.
#[tokio::test]
async fn many_dead_letters_are_stored_and_delivered_again_in_few_transactions() -> Result<()> {
    const MANY: usize = 1000;
    const FEW: i64 = 400;
    let postgres = Postgres::start(PostgresOptions::default()).await?;
    let (world, relay) = for_orders(&postgres).await?;
    let count = async || text(&world.client, COUNT).await.unwrap_or_default();

    let before = written(&world.client).await?;
    world
        .client
        .execute(
            "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             select gen_random_uuid(), 'nobody', 42, 'Asked', jsonb_build_object('number', number)
             from generate_series(1, $1::text::bigint) number",
            &[&MANY.to_string()],
        )
        .await?;
    eventually("all are set aside", LONG, async || {
        count().await == MANY.to_string()
    })
    .await?;
    passed(&world).await?;
    let stored = written(&world.client).await?;
    assert!(stored - before < FEW, "{} transactions", stored - before);

    world.vhost.bind(QUEUE, EXCHANGE, "nobody.#").await?;
    let recorder = world.recorder().await?;
    let asked = relay
        .run_command(&["dead-letters", "retry", "--all", "--yes"])
        .await?;
    assert_eq!(asked.code(), Some(0), "{}", asked.stderr);
    world.commit_events(1).await?;
    recorder.wait_for_distinct(MANY + 1, LONG).await?;
    eventually("all dead letters are gone", LONG, async || count().await == "0").await?;
    passed(&world).await?;
    let retried = written(&world.client).await?;
    assert!(retried - stored < FEW, "{} transactions", retried - stored);
    assert_eq!(recorder.message_ids().len(), MANY + 1, "each once");
    Ok(())
}
