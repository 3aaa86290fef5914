//! Events without a table: logical messages with the prefix of `[source.messages]`.

use anyhow::{Context as _, Result};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use uuid::Uuid;
use walrelay_outbox::{Event, Outbox};
use walrelay_testbed::{RelayBuilder, eventually};

use crate::world::{LONG, World, insert_event, text, tx_seq, wait_true, wal_end};

impl World {
    /// The settings of a relay without any outbox table.
    pub(crate) fn table_less(&self) -> RelayBuilder {
        self.relay()
            .outboxes(&[])
            .text("source.messages.prefix", "outbox")
    }
}

/// Emits an event about an order by `walrelay.emit`; returns its id.
pub(crate) async fn emit(client: &Client, payload: &str) -> Result<String> {
    emit_about(client, "order", payload).await
}

/// As [`emit`], about anything.
pub(crate) async fn emit_about(client: &Client, aggregate_type: &str, payload: &str) -> Result<String> {
    let sql = "select walrelay.emit($1, '42', 'OrderCreated', $2::text::json)::text";
    let row = client.query_one(sql, &[&aggregate_type, &payload]).await?;
    Ok(row.get(0))
}

/// JSON that a parser and printer would not leave as it is.
fn odd_payload(number: usize) -> String {
    match number % 8 {
        0 => format!("{{ \"n\" : {number}.10000000000000000001,\n\t\"e\": 1E+2 }}"),
        1 => format!("{{\"z\":{number},\"a\":[],\"z\":{{}}}}"),
        2 => format!("\"a \\\"string\\\" {number} \\u00e9\\/\u{1f600}é\""),
        3 => format!("[ {number} , null,true , -0.0]"),
        4 => format!("-{number}.50"),
        5 => "null".to_owned(),
        6 => format!("{{\"nul\":\"\\u0000\",\"half\":\"\\ud800\",\"n\":{number}}}"),
        _ => format!(
            "{{\"payload\":{{\"id\":\"}}]\"}},\"long\":\"{}\"}}",
            "x".repeat(number * 7)
        ),
    }
}

#[tokio::test]
async fn events_without_a_table_arrive_in_order_and_byte_for_byte() -> Result<()> {
    const EVENTS: usize = 1000;
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world.table_less().build()?;
    let set_up = relay.setup().await?;
    assert!(
        set_up
            .stdout
            .contains("warning  events of messages with prefix outbox are in the log alone"),
        "{}",
        set_up.stdout
    );
    let there = "select (to_regclass('public.outbox_events') is not null or exists (select from pg_publication_rel))::text";
    assert_eq!(text(&world.client, there).await?, "false");
    relay.start()?;
    relay.wait_ready(LONG).await?;

    let sql = "select pg_logical_emit_message(true, 'outbox', $1::text)::text";
    let statement = world.client.prepare(sql).await?;
    for number in 0..EVENTS {
        let payload = odd_payload(number);
        // Fields in any order, and what is no field.
        let message = match number % 2 {
            0 => format!(
                "{{\"id\":\"{number}\",\"aggregate_type\":\"order\",\"aggregate_id\":{number},\"event_type\":\"Odd\",\
                 \"payload\": {payload} }}"
            ),
            _ => format!(
                " {{\"payload\":{payload},\"more\":[1],\"event_type\":\"Odd\",\"id\":{number},\"aggregate_id\":\"x\",\
                 \"aggregate_type\":\"\\u006frder\"}}\n"
            ),
        };
        world.client.query_one(&statement, &[&message]).await?;
    }
    recorder.wait_for_distinct(EVENTS, LONG).await?;
    let deliveries = recorder.deliveries();
    assert_eq!(deliveries.len(), EVENTS);
    for (number, delivery) in deliveries.iter().enumerate() {
        assert_eq!(delivery.message_id, number.to_string());
        assert_eq!(delivery.routing_key, "order.Odd");
        assert_eq!(String::from_utf8_lossy(&delivery.body), odd_payload(number));
        let content_type = delivery.properties.content_type().as_ref();
        assert_eq!(content_type.map(|text| text.as_str()), Some("application/json"));
    }
    // Nothing is left to be marked or cleaned up: the slot has passed them.
    world.wait_flushed(wal_end(&world.client).await?).await
}

#[tokio::test]
async fn what_emit_returns_is_the_message_id_and_a_rollback_publishes_nothing() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let relay = world.table_less().start().await?;
    let client = &world.client;

    client.batch_execute("begin").await?;
    emit(client, "1").await?;
    client.batch_execute("rollback; begin").await?;
    let first = emit(client, "{\"n\":  1.0}").await?;
    client.batch_execute("savepoint s").await?;
    emit(client, "2").await?;
    client.batch_execute("rollback to s").await?;
    let sql = "select walrelay.emit('order', '43', 'Order\"Paid\"', '[ 1 ]', \
               headers => '{\"traceparent\": \"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\"}', \
               event_id => '11111111-2222-3333-4444-555555555555')::text";
    let second = text(client, sql).await?;
    client.batch_execute("commit").await?;
    recorder.wait_for_distinct(2, LONG).await?;
    let last = Uuid::new_v4();
    let event = Event {
        id: last,
        aggregate_type: "order",
        aggregate_id: 44,
        event_type: "OrderCreated",
        payload: "{\"n\":\t3.0}",
    };
    let mut producer = world.database.client().await?;
    let transaction = producer.transaction().await?;
    Outbox::emit(&transaction, event).await?;
    transaction.commit().await?;
    recorder.wait_for_distinct(3, LONG).await?;

    let deliveries = recorder.deliveries();
    let found: Vec<_> = deliveries
        .iter()
        .map(|delivery| (delivery.message_id.as_str(), delivery.body.as_slice()))
        .collect();
    assert_eq!(
        found,
        [
            (first.as_str(), b"{\"n\":  1.0}".as_slice()),
            (second.as_str(), b"[ 1 ]"),
            (&last.to_string(), b"{\"n\":\t3.0}"),
        ]
    );
    assert_eq!(second, "11111111-2222-3333-4444-555555555555");
    assert_eq!(deliveries[1].routing_key, "order.Order\"Paid\"");
    let parent = crate::world::header(&deliveries[1], "traceparent");
    assert!(parent.is_some_and(|parent| parent.starts_with("00-0af7")));
    assert_eq!(
        (tx_seq(&deliveries[0]), tx_seq(&deliveries[1])),
        (Some(0), Some(1))
    );
    assert_eq!(relay.metrics().await?.sum("walrelay_events_read_total", &[]), 3.0);

    // What the relay would hold is refused where it is written.
    for call in [
        "null, '42', 'E', '{}'",
        "'order', null, 'E', '{}'",
        "'order', '42', '', '{}'",
        "'order', '42', 'E', null",
        "'order', '42', 'E', '{}', event_id => null",
    ] {
        let error = client
            .batch_execute(&format!("select walrelay.emit({call})"))
            .await;
        let error = error.expect_err(call);
        assert_eq!(error.code(), Some(&SqlState::NULL_VALUE_NOT_ALLOWED), "{call}");
    }
    Ok(())
}

/// R1: rows and messages have their places in one order.
#[tokio::test]
async fn a_table_and_messages_keep_the_order_of_their_transaction() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let messages = |relay: RelayBuilder| relay.text("source.messages.prefix", "outbox");
    let relay = messages(world.relay())
        .text("delivery.ordering", "strict")
        .start()
        .await?;
    let client = &world.client;
    let mut expected = Vec::new();
    for number in 0..20 {
        client.batch_execute("begin").await?;
        expected.push(insert_event(client, number).await?);
        client
            .batch_execute("select pg_logical_emit_message(true, 'another', 'x')")
            .await?;
        expected.push(emit(client, &number.to_string()).await?);
        expected.push(insert_event(client, number).await?);
        client.batch_execute("commit").await?;
    }
    recorder.wait_for_distinct(expected.len(), LONG).await?;
    assert_eq!(recorder.message_ids(), expected);
    let places: Vec<_> = recorder.deliveries().iter().take(3).map(tx_seq).collect();
    assert_eq!(places, [Some(0), Some(2), Some(3)]);
    // Only rows of the table are marked.
    let marked = "select (count(*) = 40)::text from outbox_events where sent_at is not null";
    wait_true(client, "the rows to be marked", marked).await?;
    drop(relay);
    Ok(())
}

#[tokio::test]
async fn a_message_of_no_transaction_is_refused_counted_and_said() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let relay = world.table_less().start().await?;
    let client = &world.client;
    let refused =
        "select pg_logical_emit_message(false, 'outbox', '{\"id\": \"x\"}') from generate_series(1, 3);
                   begin; select pg_logical_emit_message(false, 'outbox', 'y'); rollback;
                   select pg_logical_emit_message(false, 'other', 'z')";
    client.batch_execute(refused).await?;
    let event = emit(client, "1").await?;
    recorder.wait_for_distinct(1, LONG).await?;
    assert_eq!(recorder.message_ids(), [event]);
    let metrics = relay.metrics().await?;
    assert_eq!(metrics.value("walrelay_messages_refused_total", &[]), Some(4.0));
    let line = relay
        .wait_for_log("the refusal", LONG, |line| {
            line.contains("non-transactional message refused")
        })
        .await?;
    assert!(
        line.contains("\"prefix\":\"outbox\"") && line.contains("remedy"),
        "{line}"
    );
    let said = relay
        .log()
        .iter()
        .filter(|line| line.contains("non-transactional"))
        .count();
    assert_eq!(said, 1);
    Ok(())
}

#[tokio::test]
async fn what_cannot_serve_events_without_a_table_says_so() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.table_less().build()?;
    relay.setup().await?;
    relay.start()?;
    relay.wait_ready(LONG).await?;
    for (arguments, what) in [
        (["replay", "--dry-run", "--since", "1d"].as_slice(), "replay"),
        (&["purge", "--older-than", "1d", "--dry-run"], "purge"),
    ] {
        let refused = relay.run_command(arguments).await?;
        assert_eq!(refused.code(), Some(1), "{}", refused.stderr);
        let expected = format!(
            "events of logical messages (source.messages) are in no table: there is nothing to {what}; \
             docs/table-less.md says what else there is"
        );
        assert!(refused.stderr.contains(&expected), "{}", refused.stderr);
    }
    let again = relay.run_command(&["setup"]).await?;
    assert!(
        again.stdout.contains("found    publication walrelay"),
        "{}",
        again.stdout
    );

    let doctor = relay.run_command(&["doctor", "--routes"]).await?;
    assert_eq!(doctor.code(), Some(0), "{}", doctor.stdout);
    for line in [
        "logical messages outbox",
        "they are in the log alone: no replay, no marks or retention",
        "every role of this database: pg_logical_emit_message is open to public",
        "begin; grant usage on schema walrelay to WRITERS; grant execute on function pg_logical_emit_message(",
        "from public; commit;",
        "they are in no table that could tell",
    ] {
        assert!(doctor.stdout.contains(line), "{line}: {}", doctor.stdout);
    }
    let recovered = relay.run_command(&["recover"]).await?;
    assert_eq!(recovered.code(), Some(0), "{}", recovered.stderr);
    relay.kill().await?;
    let slot_free =
        "select (active_pid is null)::text from pg_replication_slots where database = current_database()";
    wait_true(&world.client, "the slot to be free", slot_free).await?;
    let unconfirmed = relay.run_command(&["recover", "--new-slot"]).await?;
    assert_ne!(unconfirmed.code(), Some(0), "{}", unconfirmed.stdout);
    assert!(
        unconfirmed
            .stderr
            .contains("events of logical messages that it has not brought are lost"),
        "{}",
        unconfirmed.stderr
    );
    let status = relay.run_command(&["status"]).await?;
    assert!(!status.stdout.contains("UNSENT"), "{}", status.stdout);
    let anew = relay.run_command(&["recover", "--new-slot", "--yes"]).await?;
    assert_eq!(anew.code(), Some(0), "{}", anew.stderr);
    let lost =
        "warning  events of logical messages that the old slot had not passed are lost: they are in no table";
    assert!(anew.stdout.contains(lost), "{}", anew.stdout);

    relay.reconfigure(|relay| relay.text("recovery.on_slot_lost", "rescan"))?;
    let refused = relay.run_command(&["config", "check"]).await?;
    assert!(
        refused.stderr.contains("goes on after a lost slot without"),
        "{}",
        refused.stderr
    );
    relay.reconfigure(|relay| {
        relay
            .unset("recovery.on_slot_lost")
            .outboxes(&["walrelay.\"messages:outbox\""])
    })?;
    let refused = relay.run_command(&["config", "check"]).await?;
    assert!(
        refused.stderr.contains("the name that stands for the messages"),
        "{}",
        refused.stderr
    );
    Ok(())
}

/// What docs/table-less.md says of rights.
#[tokio::test]
async fn a_role_needs_usage_of_the_schema_and_execute_to_emit() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let relay = world.table_less().start().await?;
    let role = world.role("writer", "", &[&["usage on schema walrelay"]]).await?;
    let config: tokio_postgres::Config = world.url_of(&role).parse()?;
    let (client, connection) = config.connect(tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    let event = emit(&client, "1").await?;
    recorder.wait_for_distinct(1, LONG).await?;
    assert_eq!(recorder.message_ids(), [event]);

    let doctor = relay.run_command(&["doctor"]).await?;
    let revoke = doctor
        .stdout
        .lines()
        .find_map(|line| Some(&line[line.find("revoke execute")?..]))
        .context("what takes the function from public")?;
    world.client.batch_execute(revoke).await?;
    let forbidden = emit(&client, "2").await.expect_err("may not");
    assert!(format!("{forbidden:#}").contains("db error"), "{forbidden:#}");
    let closed = relay.run_command(&["doctor"]).await?;
    assert!(
        closed
            .stdout
            .contains("roles that were given pg_logical_emit_message"),
        "{}",
        closed.stdout
    );
    // PostgreSQL 17 gave it a fourth argument.
    let function = "select oid::regprocedure::text from pg_proc \
                    where proname = 'pg_logical_emit_message' and proargtypes[2] = 'bytea'::regtype";
    let function = text(&world.client, function).await?;
    world
        .grant(&format!("execute on function {function}"), &role)
        .await?;
    emit(&client, "3").await?;
    recorder.wait_for_distinct(2, LONG).await?;
    world.revoke("usage on schema walrelay", &role).await?;
    assert!(emit(&client, "4").await.is_err());
    Ok(())
}

/// A message's bytes come as they were written, unlike a row's text.
#[tokio::test]
async fn what_emit_writes_is_utf8_whatever_the_encoding_of_the_database() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let name = format!("latin_{}", world.database.name());
    let sql = format!("create database {name} encoding 'LATIN1' locale 'C' template template0");
    world.client.batch_execute(&sql).await?;
    let url = world.database.url().replace(world.database.name(), &name);
    let relay = world.table_less().postgres_url(&url).slot(&name).start().await?;
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    let event = emit_about(&client, "commande-réglée", "\"é\"").await?;
    recorder.wait_for_distinct(1, LONG).await?;
    let delivery = recorder.deliveries().into_iter().next().context("a delivery")?;
    assert_eq!(delivery.message_id, event);
    assert_eq!(delivery.routing_key, "commande-réglée.OrderCreated");
    assert_eq!(delivery.body, "\"é\"".as_bytes());
    drop(relay);
    let terminate = format!(
        "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = '{name}'"
    );
    let gone = format!(
        "select (count(pg_drop_replication_slot(slot_name)) >= 0)::text from pg_replication_slots \
                        where slot_name = '{name}' and not active"
    );
    world.client.batch_execute(&terminate).await?;
    eventually("the slot to be dropped", LONG, async || {
        let dropped = text(&world.client, &gone).await.is_ok();
        let left =
            format!("select (count(*) = 0)::text from pg_replication_slots where slot_name = '{name}'");
        dropped && text(&world.client, &left).await.is_ok_and(|none| none == "true")
    })
    .await?;
    Ok(())
}
