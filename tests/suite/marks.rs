//! What becomes of published rows (R18, R20, R21): marked, deleted, kept; and what keeps them from it.

use anyhow::{Context as _, Result};
use tokio_postgres::Client;
use walrelay_testbed::{Readiness, Relay, Signal, eventually};

use crate::world::{EXCHANGE, LONG, QUEUE, World, insert_event, text, wait_true, wal_end};

/// How many rows of the outbox there are, and how many of them are unsent.
pub(crate) async fn rows(client: &Client) -> Result<(i64, i64)> {
    let sql = "select count(*), count(*) filter (where sent_at is null) from outbox_events";
    let row = client.query_one(sql, &[]).await?;
    Ok((row.get(0), row.get(1)))
}

pub(crate) async fn wait_for_rows(client: &Client, all: i64, unsent: i64) -> Result<()> {
    let reached = async || rows(client).await.is_ok_and(|found| found == (all, unsent));
    let what = format!("{all} rows, {unsent} of them unsent");
    eventually(&what, LONG, reached).await?;
    Ok(())
}

pub(crate) async fn metric(relay: &Relay, name: &str) -> Result<f64> {
    Ok(relay.metrics().await?.sum(name, &[]))
}

fn is_degraded(readiness: &Readiness, cause: &str) -> bool {
    let parts = readiness.json["degraded"].as_array();
    parts.is_some_and(|parts| parts.iter().any(|part| part["cause"] == cause))
}

pub(crate) async fn wait_for_degraded(relay: &mut Relay, cause: &str) -> Result<String> {
    let readiness = relay
        .wait_readiness(cause, LONG, |readiness| is_degraded(readiness, cause))
        .await?;
    assert_eq!(readiness.status, 200, "delivery goes on: {}", readiness.text);
    let degraded = relay.metrics().await?;
    assert_eq!(
        degraded.value("walrelay_degraded", &[("cause", cause)]),
        Some(1.0)
    );
    Ok(readiness.text)
}

/// Nothing is degraded any more, and ten new rows after the first ten are marked.
pub(crate) async fn wait_until_healed(world: &World, relay: &mut Relay) -> Result<()> {
    relay
        .wait_readiness("no degradation", LONG, |readiness| {
            readiness.json["degraded"].is_null()
        })
        .await?;
    world.commit_events(10).await?;
    eventually("the new rows to be marked", LONG, async || {
        rows(&world.client)
            .await
            .is_ok_and(|(all, unsent)| all == 20 && unsent <= 10)
    })
    .await?;
    Ok(())
}

/// R18: what is acknowledged is marked.
#[tokio::test]
async fn published_rows_are_marked_before_they_are_acknowledged() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let relay = world.running().await?;
    world.commit_events(50).await?;
    let committed = wal_end(&world.client).await?;
    world.wait_flushed(committed).await?;
    assert_eq!(rows(&world.client).await?, (50, 0), "acknowledged before marked");
    assert_eq!(recorder.distinct_count(), 50);
    assert_eq!(metric(&relay, "walrelay_marked_total").await?, 50.0);
    assert_eq!(metric(&relay, "walrelay_marks_late_total").await?, 0.0);
    assert_eq!(metric(&relay, "walrelay_marks_dropped_total").await?, 0.0);
    Ok(())
}

/// R18.
#[tokio::test]
async fn a_clean_stop_marks_what_is_published_first() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world
        .relay()
        .text("delivery.mark_interval", "60s")
        .start()
        .await?;
    world.commit_events(20).await?;
    recorder.wait_for_distinct(20, LONG).await?;
    relay.terminate()?;
    assert!(relay.wait_exit(LONG).await?.success());
    assert_eq!(rows(&world.client).await?, (20, 0));
    Ok(())
}

#[tokio::test]
async fn published_rows_are_deleted_or_kept_as_configured() -> Result<()> {
    for (setting, left) in [("delete", (0, 0)), ("keep", (20, 20))] {
        let world = World::new().await?;
        let recorder = world.recorder().await?;
        let setting = format!("after_publish = \"{setting}\"");
        let _relay = world.relay().extra(&setting).start().await?;
        world.commit_events(20).await?;
        world.wait_flushed(wal_end(&world.client).await?).await?;
        assert_eq!(rows(&world.client).await?, left, "{setting}");
        assert_eq!(recorder.distinct_count(), 20);
    }
    Ok(())
}

/// R18: only what is confirmed or discarded.
#[tokio::test]
async fn dead_letters_and_skipped_rows_stay_unsent_and_discarded_ones_do_not() -> Result<()> {
    let world = World::new().await?;
    world.vhost.delete_queue(QUEUE).await?;
    world
        .vhost
        .declare_queue(walrelay_testbed::QueueOptions::classic(QUEUE))
        .await?;
    world.vhost.bind(QUEUE, EXCHANGE, "order.#").await?;
    let insert = async |aggregate_type: &str, event_type: &str| -> Result<String> {
        let sql = "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
                   values (gen_random_uuid(), $1, 1, $2, '{}') returning id::text";
        let row = world
            .client
            .query_one(sql, &[&aggregate_type, &event_type])
            .await?;
        Ok(row.get(0))
    };
    let mut relay = world
        .relay()
        .text("delivery.on_unroutable", "dead_letter")
        .text("delivery.on_invalid", "discard")
        .start()
        .await?;
    let astray = insert("nobody", "Asked").await?;
    insert("order", "").await?;
    insert("order", "Created").await?;
    wait_for_rows(&world.client, 3, 1).await?;
    let unsent = "select id::text from outbox_events where sent_at is null";
    assert_eq!(text(&world.client, unsent).await?, astray);

    // A retry that is delivered is published after all.
    world.vhost.bind(QUEUE, EXCHANGE, "#").await?;
    let retried = relay
        .run_command(&["dead-letters", "retry", "--id", &astray])
        .await?;
    assert_eq!(retried.code(), Some(0), "{}", retried.stderr);
    wait_for_rows(&world.client, 3, 0).await?;

    relay.terminate()?;
    relay.wait_exit(LONG).await?;
    relay.reconfigure(|builder| builder.text("delivery.on_invalid", "hold"))?;
    relay.start()?;
    let held = insert("order", "").await?;
    relay.wait_not_ready(LONG).await?;
    let skip = relay.run_command(&["skip", &held, "--reason", "a test"]).await?;
    assert_eq!(skip.code(), Some(0), "{}", skip.stderr);
    insert("order", "Created").await?;
    wait_for_rows(&world.client, 5, 1).await?;
    assert_eq!(text(&world.client, unsent).await?, held);
    Ok(())
}

#[tokio::test]
async fn a_row_that_somebody_has_locked_holds_nothing_up_and_is_marked_later() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world.relay().build()?;
    relay.setup().await?;
    let locked = insert_event(&world.client, 0).await?;
    world.commit_events(9).await?;
    let other = world.database.client().await?;
    other
        .batch_execute(&format!(
            "begin; select from outbox_events where id = '{locked}' for update"
        ))
        .await?;
    let committed = wal_end(&world.client).await?;
    relay.start()?;
    recorder.wait_for_distinct(10, LONG).await?;
    wait_for_rows(&world.client, 10, 1).await?;
    world.wait_flushed(committed).await?;
    assert_eq!(
        rows(&world.client).await?,
        (10, 1),
        "R18: a second later it is acknowledged all the same"
    );
    assert!(metric(&relay, "walrelay_marks_late_total").await? >= 1.0);
    other.batch_execute("rollback").await?;
    wait_for_rows(&world.client, 10, 0).await?;
    Ok(())
}

/// R18, R21: the table cannot be written when the relay is killed, with a batch of marks under way.
#[tokio::test]
async fn a_relay_killed_in_the_middle_of_a_marking_batch_leaves_no_published_row_unsent() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world.relay().build()?;
    relay.setup().await?;
    world.commit_events(30).await?;
    let committed = wal_end(&world.client).await?;
    let other = world.database.client().await?;
    other
        .batch_execute("begin; lock table outbox_events in share mode")
        .await?;
    relay.start()?;
    recorder.wait_for_distinct(30, LONG).await?;
    // Marking has lasted for longer than a second, and a first batch has failed, which is on record.
    world.wait_flushed(committed).await?;
    let recorded = "select (not settled_complete)::text from walrelay.state";
    wait_true(&world.client, "the failure to be on record", recorded).await?;
    let waits = "select exists (select from pg_locks where relation = 'outbox_events'::regclass and not granted)::text";
    wait_true(&world.client, "a batch to wait for the table", waits).await?;
    relay.kill().await?;
    other.batch_execute("rollback").await?;
    relay.start()?;
    wait_for_rows(&world.client, 30, 0).await?;
    assert_eq!(recorder.duplicates(), 0, "the slot had passed them all");
    Ok(())
}

/// Gives a role of its own what streaming needs, and nothing more.
pub(crate) async fn plain_role(world: &World) -> Result<String> {
    let role = format!("plain_{}", world.database.name());
    let sql = format!(
        "create role {role} login replication; grant usage on schema walrelay to {role};
         grant select on walrelay.state, walrelay.slots, walrelay.backfill, walrelay.mark_owners, walrelay.dead_letters, walrelay.skips to {role}"
    );
    world.client.batch_execute(&sql).await?;
    Ok(role)
}

/// R20: delivery goes on, and the right that is missing is said as it is to be granted.
#[tokio::test]
async fn a_missing_right_is_said_with_its_grant_and_heals_once_it_is_granted() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world.relay().text("postgres.guard_interval", "1s").build()?;
    relay.setup().await?;
    let role = plain_role(&world).await?;
    let url = world.database.url().replace("postgres@", &format!("{role}@"));
    relay.reconfigure(|builder| builder.postgres_url(&url))?;
    relay.start()?;
    world.commit_events(10).await?;
    recorder.wait_for_distinct(10, LONG).await?;
    let said = wait_for_degraded(&mut relay, "marks_forbidden").await?;
    world.wait_flushed(wal_end(&world.client).await?).await?;
    assert_eq!(rows(&world.client).await?, (10, 10));
    let readiness = relay.ready().await?;
    let parts = readiness.json["degraded"].as_array().context("parts")?;
    let mut grants = Vec::new();
    for part in parts {
        let error = part["error"].as_str().context("an error")?;
        let (_, grant) = error
            .split_once("(grant ")
            .or(error.split_once(": grant "))
            .context("a grant")?;
        grants.push(format!("grant {}", grant.trim_end_matches(')')));
    }
    assert_eq!(grants.len(), 2, "{said}");
    for grant in grants {
        // As it stands: the columns' parenthesis at the end is a part of it.
        let balanced = grant.matches('(').count() - grant.matches(')').count();
        world
            .client
            .batch_execute(&format!("{grant}{}", ")".repeat(balanced)))
            .await?;
    }
    wait_until_healed(&world, &mut relay).await
}

/// R20: doctor and the start say it, not the first event.
#[tokio::test]
async fn a_missing_right_is_said_before_there_is_anything_to_mark() -> Result<()> {
    for (setting, grant) in [
        ("", "update (\"sent_at\") on \"public\".\"outbox_events\""),
        (
            "after_publish = \"delete\"",
            "update, delete on \"public\".\"outbox_events\"",
        ),
    ] {
        let world = World::new().await?;
        let mut relay = world
            .relay()
            .text("postgres.guard_interval", "1s")
            .extra(setting)
            .build()?;
        relay.setup().await?;
        let role = plain_role(&world).await?;
        let url = world.database.url().replace("postgres@", &format!("{role}@"));
        relay.reconfigure(|builder| builder.postgres_url(&url))?;
        let doctor = relay.run_command(&["doctor"]).await?;
        assert!(doctor.stdout.contains(grant), "{}", doctor.stdout);
        relay.start()?;
        let said = wait_for_degraded(&mut relay, "marks_forbidden").await?;
        assert!(said.contains(&grant.replace('"', "\\\"")), "{said}");
        assert!(
            said.contains("grant select, update (settled_commit_lsn"),
            "{said}"
        );
        assert!(relay.ready().await?.is_ready(), "{said}");
    }
    Ok(())
}

/// R20.
#[tokio::test]
async fn without_a_unique_index_on_exactly_the_id_rows_are_not_marked() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world.relay().text("postgres.guard_interval", "1s").build()?;
    relay.setup().await?;
    let sql = "alter table outbox_events drop constraint outbox_events_pkey;
               create unique index on outbox_events (id, created_at);
               create unique index on outbox_events (id) where sent_at is null";
    world.client.batch_execute(sql).await?;
    let warned = relay.setup().await?;
    assert!(
        warned.stdout.contains("no unique index on exactly (id)"),
        "{}",
        warned.stdout
    );
    relay.start()?;
    world.commit_events(10).await?;
    recorder.wait_for_distinct(10, LONG).await?;
    wait_for_degraded(&mut relay, "marks_index").await?;
    assert_eq!(rows(&world.client).await?, (10, 10));
    world
        .client
        .batch_execute("create unique index on outbox_events (id)")
        .await?;
    wait_until_healed(&world, &mut relay).await
}

/// R20: a shadow run keeps its hands off the other's marks.
#[tokio::test]
async fn a_second_slot_on_a_table_has_to_keep_its_rows() -> Result<()> {
    let world = World::new().await?;
    let owner = world.relay().build()?;
    owner.setup().await?;
    let slot = format!("shadow_{}", world.database.name());
    let mut shadow = world.relay().slot(&slot).build()?;
    let refused = shadow.run_command(&["setup"]).await?;
    assert_ne!(refused.code(), Some(0));
    let owned = format!("are marked by slot `slot_{}`", world.database.name());
    assert!(refused.stderr.contains(&owned), "{}", refused.stderr);
    shadow.reconfigure(|builder| builder.extra("after_publish = \"keep\""))?;
    shadow.setup().await?;
    shadow.start()?;
    shadow.wait_ready(LONG).await?;
    let recorder = world.recorder().await?;
    world.commit_events(10).await?;
    recorder.wait_for_distinct(10, LONG).await?;
    assert_eq!(rows(&world.client).await?, (10, 10));

    // One that marks although the table is not its own marks nothing, and says so.
    shadow.signal(Signal::Kill)?;
    shadow.wait_exit(LONG).await?;
    shadow.reconfigure(|builder| builder.extra("").text("delivery.mark_interval", "10ms"))?;
    let sql = "update walrelay.mark_owners set slot = 'somebody'";
    world.client.batch_execute(sql).await?;
    let mut marking = owner;
    marking.start()?;
    wait_for_degraded(&mut marking, "marks_owned").await?;
    assert_eq!(rows(&world.client).await?, (10, 10));
    Ok(())
}

/// Several tables in one slot, each with its own setting, under names that need quotes, of other types of id.
#[tokio::test]
async fn tables_of_one_slot_have_settings_of_their_own_and_any_name() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let sql = "create schema \"Shop\";
               create table \"Shop\".\"Out \"\"Box\" (id bigint primary key, aggregate_type text not null,
                   aggregate_id text not null, event_type text not null, payload text not null, sent_at timestamptz);
               create table \"Shop\".\"Kept\" (like \"Shop\".\"Out \"\"Box\" including all);
               create table \"Shop\".\"Gone\" (id varchar(40) primary key, aggregate_type text not null,
                   aggregate_id text not null, event_type text not null, payload text not null)";
    world.client.batch_execute(sql).await?;
    let others = "[[outbox]]\ntable = '\"Shop\".\"Out \"\"Box\"'\n[[outbox]]\ntable = '\"Shop\".\"Gone\"'\n\
                  after_publish = 'delete'\n[[outbox]]\ntable = '\"Shop\".\"Kept\"'\nafter_publish = 'keep'";
    let relay = world.relay().extra(others).start().await?;
    let sql = "begin;
        insert into \"Shop\".\"Out \"\"Box\" select n, 'order', '1', 'Created', '{}' from generate_series(1, 20) n;
        insert into \"Shop\".\"Kept\" select 100 + n, 'order', '1', 'Created', '{}' from generate_series(1, 20) n;
        insert into \"Shop\".\"Gone\" select 'ö, {\"' || n, 'order', '1', 'Created', '{}' from generate_series(1, 20) n;
        insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
            select gen_random_uuid(), 'order', 1, 'Created', '{}' from generate_series(1, 20) n;
        commit";
    world.client.batch_execute(sql).await?;
    world.wait_flushed(wal_end(&world.client).await?).await?;
    recorder.wait_for_distinct(80, LONG).await?;
    let left = "select concat_ws(' ', (select count(*) from \"Shop\".\"Out \"\"Box\" where sent_at is null),
                (select count(*) from \"Shop\".\"Gone\"), (select count(*) from outbox_events where sent_at is null),
                (select count(*) from \"Shop\".\"Kept\" where sent_at is null))";
    assert_eq!(text(&world.client, left).await?, "0 0 0 20");
    assert_eq!(metric(&relay, "walrelay_marked_total").await?, 60.0);
    Ok(())
}

/// R21: a sweep after a crash marks what was published, and nothing else: no older row, even if it was written again, no
/// dead letter, no skipped row.
#[tokio::test]
async fn a_sweep_marks_no_row_that_was_not_published() -> Result<()> {
    let world = World::new().await?;
    world.vhost.delete_queue(QUEUE).await?;
    world
        .vhost
        .declare_queue(walrelay_testbed::QueueOptions::classic(QUEUE))
        .await?;
    world.vhost.bind(QUEUE, EXCHANGE, "order.#").await?;
    let recorder = world.recorder().await?;
    let mut relay = world
        .relay()
        .text("delivery.on_unroutable", "dead_letter")
        .build()?;
    // A table that was there before the slot, with a row that nobody relays.
    relay.setup().await?;
    let torn_down = relay.run_command(&["teardown", "--yes"]).await?;
    assert_eq!(torn_down.code(), Some(0), "{}", torn_down.stderr);
    world.commit_events(2).await?;
    let set_up = relay.run_command(&["setup", "--backfill", "none"]).await?;
    assert_eq!(set_up.code(), Some(0), "{}", set_up.stderr);
    let sql = "update outbox_events set headers = '{}' where id in (select id from outbox_events limit 1)";
    world.client.batch_execute(sql).await?;

    world.commit_events(20).await?;
    let sql = "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
               values (gen_random_uuid(), 'nobody', 1, 'Asked', '{}')";
    world.client.batch_execute(sql).await?;
    let sql = "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
               values (gen_random_uuid(), 'order', 1, '', '{}') returning id::text";
    let skipped = text(&world.client, sql).await?;
    let committed = wal_end(&world.client).await?;
    let other = world.database.client().await?;
    other
        .batch_execute("begin; lock table outbox_events in share mode")
        .await?;
    relay.start()?;
    recorder.wait_for_distinct(20, LONG).await?;
    relay
        .wait_readiness("the invalid row", LONG, |ready| {
            ready.json["delivery"]["cause"] == "event_invalid"
        })
        .await?;
    let skip = relay
        .run_command(&["skip", &skipped, "--reason", "a test"])
        .await?;
    assert_eq!(skip.code(), Some(0), "{}", skip.stderr);
    world.wait_flushed(committed).await?;
    let recorded = "select (count(settled_at) = 1)::text from walrelay.skips";
    wait_true(&world.client, "the skip to be on record", recorded).await?;
    relay.kill().await?;
    other.batch_execute("rollback").await?;
    // Only what was settled and not yet stored could be missing on record.
    let sql =
        "update walrelay.state set settled_complete = false, settled_commit_lsn = '0/1', settled_tx_seq = 0";
    world.client.batch_execute(sql).await?;
    relay.start()?;
    relay
        .wait_for_log("the sweep", LONG, |line| {
            line.contains("rows whose marks were lost are marked")
        })
        .await?;
    assert_eq!(
        rows(&world.client).await?,
        (24, 4),
        "two older rows, a dead letter, a skipped one"
    );
    let left = "select count(*)::text from outbox_events where sent_at is null
                and (id::text in (select event_id from walrelay.dead_letters) or event_type = '' or created_at < now())
                and aggregate_type = 'nobody'";
    assert_eq!(text(&world.client, left).await?, "1");
    assert_eq!(recorder.duplicates(), 0);
    Ok(())
}
