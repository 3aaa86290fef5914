//! `delivery.sink = "stdout"`: one JSON line for each message, and what a reader may do to it.

mod lines;

use std::fs::File;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use walrelay_testbed::{Delivery, Readiness, Relay, eventually};

use lines::{Alone, Lines};

use crate::world::{EXCHANGE, LONG, World, commit_at_once, insert_event, text, wal_end};

fn numbers(lines: &[Value]) -> Vec<i64> {
    lines
        .iter()
        .filter_map(|line| line.pointer("/body/number")?.as_i64())
        .collect()
}

async fn exit_code(relay: &mut Relay) -> Result<Option<i32>> {
    Ok(relay.wait_exit(LONG).await?.code())
}

/// Whether the line says what the broker has got.
fn agrees(text: &str, line: &Value, delivery: &Delivery) -> Result<()> {
    let what = &delivery.message_id;
    ensure!(
        line["exchange"] == delivery.exchange.as_str(),
        "exchange of {what}"
    );
    ensure!(
        line["routing_key"] == delivery.routing_key.as_str(),
        "key of {what}"
    );
    let sent = &delivery.properties;
    let short =
        |text: &Option<lapin::types::ShortString>| text.as_ref().map(|text| Value::from(text.as_str()));
    let expected = [
        ("content_type", short(sent.content_type())),
        ("delivery_mode", sent.delivery_mode().map(Value::from)),
        ("message_id", short(sent.message_id())),
        ("timestamp", sent.timestamp().map(Value::from)),
        ("type", short(sent.kind())),
        ("app_id", short(sent.app_id())),
    ];
    let properties = line["properties"].as_object().context("properties")?;
    let count = expected.iter().filter(|(_, value)| value.is_some()).count();
    ensure!(properties.len() == count, "{properties:?}");
    for (name, value) in expected {
        ensure!(properties.get(name) == value.as_ref(), "{name} of {what}");
    }
    let headers = sent.headers().as_ref().context("headers")?.inner();
    ensure!(line["headers"].as_object().map(serde_json::Map::len) == Some(headers.len()));
    for (name, value) in headers {
        let (value, kind) = if let Some(text) = value.as_long_string() {
            (Value::from(text.to_string()), "longstr")
        } else if let Some(number) = value.as_long_long_int() {
            (Value::from(number), "long")
        } else {
            (Value::from(value.as_bool().context("a type of ours")?), "bool")
        };
        ensure!(line["headers"][name.as_str()] == value, "{name} of {what}");
        ensure!(line["header_types"][name.as_str()] == kind, "{name} of {what}");
    }
    let is_same = if line.get("body").is_some() {
        let end = format!(",\"body\":{}}}\n", std::str::from_utf8(&delivery.body)?);
        text.ends_with(&end)
    } else if let Some(text) = line.get("body_text") {
        text.as_str().map(str::as_bytes) == Some(&delivery.body)
    } else {
        STANDARD.decode(line["body_base64"].as_str().context("base64")?)? == delivery.body
    };
    ensure!(is_same, "the body of {what}: {line}");
    Ok(())
}

/// The broker is the oracle: two relays send the same rows, one to RabbitMQ and one to a pipe.
#[tokio::test]
async fn a_line_says_what_rabbitmq_would_get() -> Result<()> {
    let world = World::new().await?;
    let tables = ["outbox_events", "of_json", "of_text", "of_bytea"];
    for (table, kind) in [("of_json", "json"), ("of_text", "text"), ("of_bytea", "bytea")] {
        let sql = format!(
            "create table {table} (id uuid primary key default gen_random_uuid(), aggregate_type text not null,
             aggregate_id text not null, event_type text not null, payload {kind} not null, traceparent text)"
        );
        world.client.batch_execute(&sql).await?;
    }
    let names = tables.map(|table| format!("public.{table}"));
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let recorder = world.recorder().await?;
    let _to_broker = world.relay().outboxes(&names).start().await?;
    let extra = names
        .iter()
        .map(|name| format!("[[outbox]]\ntable = \"{name}\"\nafter_publish = \"keep\"\n"));
    let slot = format!("pipe_{}", world.database.name());
    let to_pipe = world
        .relay()
        .unset("rabbitmq.uri")
        .text("delivery.sink", "stdout")
        .slot(&slot)
        .outboxes(&[])
        .extra(&extra.collect::<String>());
    let mut relay = to_pipe.build()?;
    let said = relay.run_command(&["setup", "--backfill", "none"]).await?;
    ensure!(said.status.success(), "{}{}", said.stdout, said.stderr);
    let mut lines = Lines::of(&mut relay)?;
    relay.wait_ready(LONG).await?;
    let sql = r#"
        insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload) values
          (gen_random_uuid(), 'a "quoted" \ type', -7, E'tab\tand\nline', '{"b": 1.0, "a": "\" \\ \u0007 ü € 😀"}'),
          (gen_random_uuid(), 'order', 1, 'Null', 'null'),
          (gen_random_uuid(), 'order', 1, 'Text', '"{\"not\": 1}"');
        insert into of_json (aggregate_type, aggregate_id, event_type, payload, traceparent) values
          ('order', '1', 'OneLine', ' {"b":1,"a":2,"a":3} ', '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'),
          ('order', '2', 'Lines', E'{\n  "a": [1,\r\n 2]\n}', null);
        insert into of_text (aggregate_type, aggregate_id, event_type, payload) values
          ('order', '2', 'Text', E'{"looks like": "JSON"}\n\x01 \x7f " \\\\ \u2028 \u00e9');
        insert into of_bytea (aggregate_type, aggregate_id, event_type, payload) values
          ('order', '1', 'Bytes', '\x00ff0a0d22'), ('order', '3', 'Ascii', 'plain');"#;
    world.client.batch_execute(sql).await?;
    // In several frames, and the last one to the byte.
    for length in [131_064, 131_065, 3_000_000] {
        let sql = format!(
            "insert into of_json (aggregate_type, aggregate_id, event_type, payload)
             values ('order', '1', 'Large', ('\"' || repeat('x', {length} - 2) || '\"')::json)"
        );
        world.client.batch_execute(&sql).await?;
    }
    recorder.wait_for_distinct(11, LONG).await?;
    let texts = lines.next_texts(11).await?;
    let found: Vec<Value> = texts
        .iter()
        .map(|line| serde_json::from_str(line))
        .collect::<Result<_, _>>()?;
    assert_eq!(recorder.count(), 11);
    let deliveries = recorder.deliveries();
    for ((text, line), delivery) in texts.iter().zip(&found).zip(&deliveries) {
        agrees(text, line, delivery)?;
    }
    let shapes: Vec<_> = found
        .iter()
        .map(|line| {
            ["body", "body_text", "body_base64"]
                .into_iter()
                .find(|shape| line.get(shape).is_some())
        })
        .collect();
    let (json, text, base64) = (Some("body"), Some("body_text"), Some("body_base64"));
    assert_eq!(
        shapes,
        [
            json, json, json, json, text, text, base64, base64, json, json, json
        ]
    );
    relay.terminate()?;
    assert_eq!(exit_code(&mut relay).await?, Some(0));
    assert_eq!(lines.rest()?, "");
    Ok(())
}

/// Readiness, metrics, `doctor` and `status` say where messages go; logs are on stderr, and the rows are marked.
#[tokio::test]
async fn the_sink_is_named_wherever_the_relay_tells_of_itself() -> Result<()> {
    let alone = Alone::new().await?;
    let (mut relay, mut lines) = alone.piped(alone.relay()).await?;
    insert_event(&alone.client, 1).await?;
    let [line] = lines.next(1).await?.try_into().expect("one line");
    assert_eq!(line["exchange"], EXCHANGE);
    let ready = relay.ready().await?.json;
    assert_eq!(
        (&ready["sink"], &ready["broker"]["state"]),
        (&"stdout".into(), &"up".into())
    );
    let metrics = relay.metrics().await?;
    assert_eq!(metrics.sum("walrelay_sink", &[("sink", "stdout")]), 1.0);
    let marked = "select (count(*) filter (where sent_at is not null))::text from outbox_events";
    eventually("the mark", LONG, || async {
        text(&alone.client, marked).await.is_ok_and(|count| count == "1")
    })
    .await?;
    let doctor = relay.run_command(&["doctor"]).await?;
    assert_eq!(doctor.code(), Some(0), "{}", doctor.stdout);
    for said in [
        "✓ sink: each message is a JSON line on the standard output of `walrelay run`",
        "– connection, exchange, publishing: messages go to standard output: no broker is looked at",
    ] {
        ensure!(doctor.stdout.contains(said), "{}", doctor.stdout);
    }
    let routes = relay.run_command(&["doctor", "--routes"]).await?;
    ensure!(
        routes.stdout.contains("`outbox`, `order.OrderCreated`: 1 row"),
        "{}",
        routes.stdout
    );
    let status = relay.run_command(&["status"]).await?;
    assert_eq!(status.code(), Some(0), "{}", status.stdout);
    ensure!(
        status
            .stdout
            .lines()
            .any(|line| line.starts_with("stdout ") && line.contains("up since")),
        "{}",
        status.stdout
    );
    relay.terminate()?;
    assert_eq!(exit_code(&mut relay).await?, Some(0));
    assert_eq!(lines.rest()?, "");
    ensure!(
        relay
            .log()
            .iter()
            .any(|line| line.contains("messages go to standard output")),
        "{:?}",
        relay.log()
    );
    Ok(())
}

/// I1 and I5: what the pipe does not take is not read, is not acknowledged and costs no memory; the session lives on.
#[tokio::test]
async fn a_reader_that_pauses_is_waited_for() -> Result<()> {
    const TRANSACTIONS: usize = 200;
    const EVENTS: usize = 100;
    let alone = Alone::new().await?;
    let relay = alone
        .relay()
        .text("delivery.max_in_flight_bytes", "2MiB")
        .text("postgres.wal_sender_timeout", "2s")
        .text("postgres.status_interval", "200ms");
    let (mut relay, mut lines) = alone.piped(relay).await?;
    insert_event(&alone.client, 0).await?;
    lines.next(1).await?;
    alone.wait_flushed(wal_end(&alone.client).await?).await?;
    let before = relay.peak_rss_kib()?;
    // 40 MB in all, and 200 kB in the first transaction, which is more than a pipe takes.
    let mut first = 0;
    for transaction in 0..TRANSACTIONS {
        let sql = format!(
            "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             select gen_random_uuid(), 'order', n, 'OrderCreated',
               jsonb_build_object('number', n, 'text', repeat('x', 2000))
             from generate_series({}, {}) n",
            transaction * EVENTS + 1,
            (transaction + 1) * EVENTS
        );
        alone.client.batch_execute(&sql).await?;
        if transaction == 0 {
            first = wal_end(&alone.client).await?;
        }
    }
    let is_blocked = |readiness: &Readiness| readiness.json["broker"]["cause"] == "stdout_blocked";
    let blocked = relay
        .wait_readiness("the pipe to be full", LONG, is_blocked)
        .await?;
    ensure!(!blocked.is_ready());
    assert_eq!(blocked.json["broker"]["class"], "unavailable");
    // Many times the server's patience: the positions are reported all the while.
    let reported = relay.metrics().await?.sum("walrelay_status_updates_total", &[]);
    eventually("many status updates", LONG, || async {
        relay
            .metrics()
            .await
            .is_ok_and(|metrics| metrics.sum("walrelay_status_updates_total", &[]) >= reported + 30.0)
    })
    .await?;
    let metrics = relay.metrics().await?;
    assert_eq!(metrics.sum("walrelay_sessions_total", &[]), 1.0);
    assert_eq!(metrics.sum("walrelay_links_total", &[]), 1.0);
    assert_eq!(metrics.sum("walrelay_fault", &[("cause", "stdout_blocked")]), 1.0);
    ensure!(alone.flushed().await? < first, "what nobody took is acknowledged");
    let grown = relay.peak_rss_kib()? - before;
    ensure!(grown < 16 * 1024, "{grown} KiB more");
    let found = lines.next(TRANSACTIONS * EVENTS).await?;
    let all: Vec<_> = (1..=TRANSACTIONS * EVENTS).collect();
    let expected: Vec<_> = all
        .iter()
        .map(|number| i64::try_from(*number))
        .collect::<Result<_, _>>()?;
    ensure!(numbers(&found) == expected, "order or number");
    relay.wait_ready(LONG).await?;
    alone.wait_flushed(wal_end(&alone.client).await?).await?;
    let grown = relay.peak_rss_kib()? - before;
    ensure!(grown < 16 * 1024, "{grown} KiB more");
    relay.terminate()?;
    assert_eq!(exit_code(&mut relay).await?, Some(0));
    assert_eq!(lines.rest()?, "", "duplicates");
    Ok(())
}

/// A child that reads the relay's lines into a file.
fn reader(program: &str, arguments: &[&str], file: &File) -> Result<(Child, Stdio)> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(file.try_clone()?)
        .spawn()?;
    let stdin = child.stdin.take().context("its input")?;
    Ok((child, stdin.into()))
}

/// I1: the relay ends with the reader, busy or not, and the next one goes on where nothing was written.
#[tokio::test]
async fn a_reader_that_is_killed_ends_the_relay_and_the_next_run_sends_the_rest() -> Result<()> {
    let alone = Alone::new().await?;
    let mut relay = alone.relay().build()?;
    relay.setup().await?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("lines");
    let (mut cat, pipe) = reader("cat", &[], &File::create(&path)?)?;
    relay.start_into(pipe)?;
    relay.wait_ready(LONG).await?;
    commit_at_once(&alone.client, 50).await?;
    let read = || std::fs::read_to_string(&path).unwrap_or_default();
    eventually("50 lines", LONG, || {
        std::future::ready(read().lines().count() == 50)
    })
    .await?;
    // While nothing is to be written.
    let mark = relay.log_mark();
    cat.kill()?;
    cat.wait()?;
    assert_eq!(exit_code(&mut relay).await?, Some(69));
    let log = relay.log();
    let said = |what: &str| log.iter().skip(mark).any(|line| line.contains(what));
    ensure!(
        said("stdout_closed") && said("start walrelay again with a reader for its output"),
        "{log:?}"
    );

    // While a write is under way, of which the reader has had nothing.
    let end = commit_at_once(&alone.client, 1000).await?;
    let mut lines = Lines::of(&mut relay)?;
    let is_blocked = |readiness: &Readiness| readiness.json["broker"]["cause"] == "stdout_blocked";
    relay
        .wait_readiness("the pipe to be full", LONG, is_blocked)
        .await?;
    ensure!(alone.flushed().await? < end);
    let some = lines.next(100).await?;
    let length = some[99].to_string().len();
    let some = numbers(&some);
    drop(lines);
    assert_eq!(exit_code(&mut relay).await?, Some(69));
    ensure!(
        alone.flushed().await? < end,
        "what was not written is acknowledged"
    );

    let all: Vec<i64> = (1..=1000).collect();
    assert_eq!(some, all[..100], "the first run's are not sent again");

    let mut lines = Lines::of(&mut relay)?;
    let mut rest = numbers(&lines.next(1).await?);
    let from = usize::try_from(rest[0])?;
    rest.extend(numbers(&lines.next(1000 - from).await?));
    assert_eq!(rest, all[from - 1..]);
    // Whatever else was confirmed was in the pipe, which takes 64 KiB and had a batch of as much before it.
    let most = 100 + 2 * 65_536 / length;
    ensure!(from <= most + 1, "{from} comes after {most}");
    alone.wait_flushed(end).await?;
    Ok(())
}

#[tokio::test]
async fn a_pipe_to_head_ends_with_it() -> Result<()> {
    let alone = Alone::new().await?;
    let mut relay = alone.relay().build()?;
    relay.setup().await?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("lines");
    let (mut head, pipe) = reader("head", &["-n", "1"], &File::create(&path)?)?;
    relay.start_into(pipe)?;
    relay.wait_ready(LONG).await?;
    insert_event(&alone.client, 1).await?;
    assert_eq!(exit_code(&mut relay).await?, Some(69));
    ensure!(head.wait()?.success());
    assert_eq!(std::fs::read_to_string(&path)?.lines().count(), 1);
    Ok(())
}

/// A reader that does not go on does not keep the relay from ending either.
#[tokio::test]
async fn a_stop_waits_for_the_reader_within_its_grace() -> Result<()> {
    let alone = Alone::new().await?;
    let relay = alone.relay().text("delivery.shutdown_grace", "1s");
    let (mut relay, mut lines) = alone.piped(relay).await?;
    let end = commit_at_once(&alone.client, 1000).await?;
    let is_blocked = |readiness: &Readiness| readiness.json["broker"]["cause"] == "stdout_blocked";
    relay
        .wait_readiness("the pipe to be full", LONG, is_blocked)
        .await?;
    relay.terminate()?;
    assert_eq!(exit_code(&mut relay).await?, Some(0));
    ensure!(alone.flushed().await? < end);
    assert_eq!(numbers(&lines.next(100).await?), (1..=100).collect::<Vec<_>>());

    let mut lines = Lines::of(&mut relay)?;
    let first = numbers(&lines.next(1).await?);
    let left = 1000 - usize::try_from(first[0])?;
    assert_eq!(numbers(&lines.next(left).await?).last(), Some(&1000));
    alone.wait_flushed(end).await?;
    Ok(())
}

/// I9: a disk that is full is trouble outside the process.
#[tokio::test]
async fn a_write_that_fails_is_tried_again_and_acknowledges_nothing() -> Result<()> {
    let alone = Alone::new().await?;
    let mut relay = alone.relay().arg("--exit-on-halt").build()?;
    relay.setup().await?;
    relay.start_into(File::options().write(true).open("/dev/full")?)?;
    relay.wait_ready(LONG).await?;
    let before = alone.flushed().await?;
    insert_event(&alone.client, 1).await?;
    let end = wal_end(&alone.client).await?;
    let failures = [("cause", "stdout_failed")];
    eventually("several tries", LONG, || async {
        relay
            .metrics()
            .await
            .is_ok_and(|metrics| metrics.sum("walrelay_broker_failures_total", &failures) >= 3.0)
    })
    .await?;
    let log = relay.log();
    ensure!(
        log.iter()
            .any(|line| line.contains("No space left on device") && line.contains("WARN")),
        "{log:?}"
    );
    ensure!(
        relay.exit_status()?.is_none() && before <= alone.flushed().await? && alone.flushed().await? < end
    );
    Ok(())
}

/// The commands that publish do so where the relay does.
#[tokio::test]
async fn replays_and_retries_are_lines_too() -> Result<()> {
    let alone = Alone::new().await?;
    let relay = alone
        .relay()
        .text("delivery.on_invalid", "dead_letter")
        .text("delivery.max_message_bytes", "1KiB");
    let (mut relay, mut lines) = alone.piped(relay).await?;
    let id = insert_event(&alone.client, 1).await?;
    lines.next(1).await?;
    let output = relay.run_command(&["replay", &id]).await?;
    assert_eq!(output.code(), Some(0), "{}", output.stderr);
    let line: Value = serde_json::from_str(&output.stdout)?;
    assert_eq!(line["properties"]["message_id"], id.as_str());
    assert_eq!(line["headers"]["replayed"], true);
    assert_eq!(line["header_types"]["replay_seq"], "long");
    ensure!(
        output.stderr.contains("1 confirmed, 0 failed"),
        "{}",
        output.stderr
    );

    let sql = "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
               values (gen_random_uuid(), 'order', 1, 'Large', jsonb_build_object('number', 7, 'text', repeat('x', 2000)))";
    alone.client.batch_execute(sql).await?;
    let pending = "select count(*)::text from walrelay.dead_letters";
    eventually("the dead letter", LONG, || async {
        text(&alone.client, pending).await.is_ok_and(|count| count == "1")
    })
    .await?;
    relay.terminate()?;
    assert_eq!(exit_code(&mut relay).await?, Some(0));
    relay.reconfigure(|relay| relay.unset("delivery.max_message_bytes"))?;
    let mut lines = Lines::of(&mut relay)?;
    relay.wait_ready(LONG).await?;
    let retried = relay
        .run_command(&["dead-letters", "retry", "--all", "--yes"])
        .await?;
    assert_eq!(retried.code(), Some(0), "{}{}", retried.stdout, retried.stderr);
    assert_eq!(numbers(&lines.next(1).await?), [7]);
    Ok(())
}
