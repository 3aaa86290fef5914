//! What does not fit is said in one line, before anything depends on it.

use std::collections::BTreeMap;

use anyhow::Result;
use walrelay_testbed::{Postgres, PostgresOptions, RelayBuilder, shared_rabbitmq};

use super::{DEBEZIUM, Shape, stable};
use crate::marks::{metric, plain_role, wait_for_degraded};
use crate::setup::last_line;
use crate::world::{LONG, World, wait_true, wal_end};

/// What of a configuration differs from [`DEBEZIUM`]'s: keys of `[[outbox]]`.
type Other<'a> = &'a [(&'a str, &'a str)];

/// The configuration's `[[outbox]]`.
fn settings(other: Other<'_>) -> String {
    let mut keys = BTreeMap::from([
        ("preset", "debezium"),
        ("unsent", "status = 'NEW'"),
        ("mark_set", "status = 'SENT'"),
        ("columns.created_at", "made_at"),
    ]);
    keys.extend(other.iter().copied());
    let lines = keys
        .iter()
        .map(|(key, value)| format!("{key} = {}", serde_json::Value::from(*value)));
    lines.collect::<Vec<_>>().join("\n")
}

/// A relay so configured.
fn relay_of(world: &World, other: Other<'_>) -> RelayBuilder {
    Shape {
        settings: &settings(other),
        ..DEBEZIUM
    }
    .relay(world)
}

#[tokio::test]
async fn columns_and_marks_that_do_not_fit_are_refused_by_setup_in_one_line() -> Result<()> {
    let world = DEBEZIUM.world().await?;
    let mut said = Vec::new();
    for other in [
        [("unsent", "status = 'NEW'; drop table outbox")].as_slice(),
        &[("unsent", "status = 'NEW') or (true")],
        &[("mark_set", "set status = 'SENT'")],
        &[("mark_set", "status = 'SENT' where true")],
        &[("unsent", "state = 'NEW'")],
        &[("unsent", "status")],
        &[("unsent", "count(*) > 0")],
        &[("unsent", "outbox.status = 'NEW'")],
        &[("mark_set", "state = 'SENT'")],
        &[("mark_set", "status = (select 1 from nowhere)")],
        &[("mark_set", "attempts = 'many'")],
        &[("mark_set", "attempts = 5 / 0, status = 'SENT'")],
        &[("mark_set", "attempts = 1")],
        &[("mark_set", "status = 'SENT', id = 3")],
        &[("columns.payload", "attempts")],
        &[("columns.created_at", "mad_at")],
        &[("preset", "walrelay")],
        &[("columns.event_type", "TypE")],
        // All that is wrong with the columns, at once.
        &[
            ("preset", "walrelay"),
            ("columns.event_type", "TypE"),
            ("columns.payload", "attempts"),
            ("columns.expiration", "expires"),
            ("columns.created_at", "mad_at"),
        ],
    ] {
        let output = relay_of(&world, other).build()?.run_command(&["setup"]).await?;
        assert_eq!(output.stdout, "", "{other:?}");
        assert_ne!(output.code(), Some(0));
        let line = stable(last_line(&output));
        let (line, _) = line
            .split_once(": change what the error names")
            .unwrap_or((line, ""));
        let (line, _) = line.split_once(": give the outbox table").unwrap_or((line, ""));
        said.push(line.to_owned());
    }
    assert_eq!(world.slots().await?, 0);
    insta::assert_snapshot!("refused_by_setup", said.join("\n"));
    Ok(())
}

/// Once set up, what no longer fits is said by doctor and by the relay, which goes on delivering.
#[tokio::test]
async fn a_marker_that_does_not_fit_any_more_degrades_the_relay_and_is_named_by_doctor() -> Result<()> {
    let world = DEBEZIUM.world().await?;
    let recorder = world.recorder().await?;
    let mut relay = DEBEZIUM
        .relay(&world)
        .text("postgres.guard_interval", "1s")
        .build()?;
    relay.setup().await?;
    world
        .client
        .batch_execute("alter table outbox rename status to state")
        .await?;
    relay.start()?;
    DEBEZIUM.insert(&world, "order", 3).await?;
    recorder.wait_for_distinct(3, LONG).await?;
    let said = wait_for_degraded(&mut relay, "marks_unfit").await?;
    assert!(
        said.contains(
            "outbox.unsent does not fit the table public.outbox: column \\\"status\\\" does not exist"
        ),
        "{said}"
    );
    let doctor = relay.run_command(&["doctor"]).await?;
    let marks = doctor.stdout.lines().find(|line| line.contains(" marks: "));
    insta::assert_snapshot!("doctor_after_a_rename", marks.unwrap_or_default());

    // A mark that leaves its row unsent would be set for ever.
    world
        .client
        .batch_execute("alter table outbox rename state to status")
        .await?;
    let endless = [("unsent", "coalesce(status, 'NEW') in ('NEW', 'SENT')")];
    let doctor = relay_of(&world, &endless)
        .build()?
        .run_command(&["doctor"])
        .await?;
    let marks = doctor.stdout.lines().find(|line| line.contains(" marks: "));
    insta::assert_snapshot!("doctor_of_endless_marks", marks.unwrap_or_default());

    // What was published meanwhile gets its mark.
    DEBEZIUM.wait_unsent(&world, 0).await?;
    Ok(())
}

/// Nothing is made yet that could be looked at, and an index that keeps rows unique is none to drop.
#[tokio::test]
async fn doctor_before_setup_asks_nothing_of_a_table_that_keeps_and_drops_no_unique_index() -> Result<()> {
    let world = DEBEZIUM.world().await?;
    let kept = Shape {
        settings: "preset = 'debezium'\nafter_publish = 'keep'",
        ..DEBEZIUM
    }
    .relay(&world)
    .build()?;
    let doctor = kept.run_command(&["doctor"]).await?;
    assert!(
        doctor.stdout.contains("✓ marks: rows stay as they are"),
        "{}",
        doctor.stdout
    );
    let relay = relay_of(&world, &[]).build()?;
    relay.setup().await?;
    let sql = "create unique index by_status on outbox (status, id)";
    world.client.batch_execute(sql).await?;
    let doctor = relay.run_command(&["doctor"]).await?;
    assert!(
        doctor
            .stdout
            .contains("index on marks: by_status, which is unique"),
        "{}",
        doctor.stdout
    );
    assert!(!doctor.stdout.contains("drop index"), "{}", doctor.stdout);
    Ok(())
}

/// What no look at the texts can tell, the first mark does.
#[tokio::test]
async fn a_mark_that_leaves_its_row_unsent_degrades_the_relay_and_is_not_counted() -> Result<()> {
    let world = DEBEZIUM.world().await?;
    let recorder = world.recorder().await?;
    let other = [("unsent", "status in ('NEW', 'SENT') and attempts is not null")];
    let mut relay = relay_of(
        &world,
        &[other[0], ("mark_set", "status = coalesce(status, 'SENT')")],
    )
    .build()?;
    // Sent as rows of a backfill, and as rows of the stream.
    for count in [2, 3] {
        DEBEZIUM.insert(&world, "order", count).await?;
        if count == 2 {
            relay.setup().await?;
            relay.start()?;
        }
    }
    recorder.wait_for_distinct(5, LONG).await?;
    let said = wait_for_degraded(&mut relay, "marks_unfit").await?;
    assert!(
        said.contains("a row of the table public.outbox that outbox.mark_set has marked is still unsent"),
        "{said}"
    );
    assert_eq!(metric(&relay, "walrelay_marked_total").await?, 0.0);
    Ok(())
}

/// R21: a sweep says it too.
#[tokio::test]
async fn a_sweep_that_leaves_rows_unsent_degrades_the_relay() -> Result<()> {
    let world = DEBEZIUM.world().await?;
    let recorder = world.recorder().await?;
    let other = [
        ("unsent", "status in ('NEW', 'SENT') and attempts is not null"),
        ("mark_set", "status = coalesce(status, 'SENT')"),
    ];
    let mut relay = relay_of(&world, &other).build()?;
    relay.setup().await?;
    DEBEZIUM.insert(&world, "order", 3).await?;
    let locker = world.database.client().await?;
    locker
        .batch_execute("begin; lock table outbox in share mode")
        .await?;
    relay.start()?;
    recorder.wait_for_distinct(3, LONG).await?;
    world.wait_flushed(wal_end(&world.client).await?).await?;
    let recorded = "select (not settled_complete)::text from walrelay.state";
    wait_true(&world.client, "the failure to be on record", recorded).await?;
    relay.kill().await?;
    locker.batch_execute("rollback").await?;
    relay.start()?;
    let said = wait_for_degraded(&mut relay, "marks_unfit").await?;
    assert!(
        said.contains("a row of the table public.outbox that outbox.mark_set has marked is still unsent"),
        "{said}"
    );
    assert_eq!(recorder.duplicates(), 0);
    Ok(())
}

/// The columns of the condition nothing tells but the server.
#[tokio::test]
async fn r20_a_right_that_a_marker_lacks_is_said_with_its_grant() -> Result<()> {
    // No slot can be created on a server with an open transaction, so one for this test alone.
    let postgres = Postgres::start(PostgresOptions::default()).await?;
    let world = World::on(&postgres, shared_rabbitmq().await?).await?;
    world.client.batch_execute(DEBEZIUM.create).await?;
    let recorder = world.recorder().await?;
    let mut relay = DEBEZIUM
        .relay(&world)
        .text("postgres.guard_interval", "1s")
        .build()?;
    relay.setup().await?;
    let role = plain_role(&world).await?;
    // All but the right to read what the condition asks for.
    let rights = format!(
        "grant update (settled_commit_lsn, settled_tx_seq, settled_complete, unswept_xid) on walrelay.state to {role};
         grant select (id), update (status, attempts) on outbox to {role}"
    );
    world.client.batch_execute(&rights).await?;
    let url = world.database.url().replace("postgres@", &format!("{role}@"));
    relay.reconfigure(|builder| builder.postgres_url(&url))?;
    relay.start()?;
    // A sweep passes over what is newer than the oldest open transaction.
    let elsewhere = world.database.client().await?;
    elsewhere
        .batch_execute("begin; select pg_current_xact_id()")
        .await?;
    DEBEZIUM.insert(&world, "order", 3).await?;
    recorder.wait_for_distinct(3, LONG).await?;
    wait_for_degraded(&mut relay, "marks_forbidden").await?;
    let doctor = relay.run_command(&["doctor"]).await?;
    let grant =
        format!("grant select, update (\"status\", \"attempts\") on \"public\".\"outbox\" to \"{role}\";");
    assert!(doctor.stdout.contains(&grant), "{}", doctor.stdout);
    world.client.batch_execute(&grant).await?;
    relay
        .wait_for_log("a sweep", LONG, |line| {
            line.contains("rows whose marks were lost are marked")
        })
        .await?;
    elsewhere.batch_execute("rollback").await?;
    DEBEZIUM.wait_unsent(&world, 0).await?;
    assert_eq!(recorder.duplicates(), 0);
    Ok(())
}
