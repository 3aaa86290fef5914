//! `recover` where the slot still streams: what it may have missed is sent if that is asked for, and a slot that stands
//! before something unreadable is made anew (R5, R23).

use std::collections::HashSet;

use anyhow::Result;

use crate::complaint::{Part, named};
use crate::halts::halts;
use crate::marks::wait_for_rows;
use crate::setup::{last_line, normalised, said, stop};
use crate::world::{LONG, World, insert_event, wait_true};

/// R5: an alteration and back has lost two rows, and one was being written meanwhile.
#[tokio::test]
async fn r23_rows_that_a_slot_missed_are_sent_if_that_is_asked_for() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world.running().await?;
    world.commit_events(2).await?;
    recorder.wait_for_distinct(2, LONG).await?;
    stop(&mut relay).await?;
    let alter = |what: &str| format!("alter publication walrelay set (publish = '{what}')");
    world.client.batch_execute(&alter("update")).await?;
    let mut missed = world.commit_events(2).await?;
    let writer = world.database.client().await?;
    writer.batch_execute("begin").await?;
    missed.push(insert_event(&writer, 3).await?);
    world.client.batch_execute(&alter("insert")).await?;
    relay.start()?;
    named(&mut relay, Part::Database, "publication_changed").await?;

    let output = relay.run_command(&["recover"]).await?;
    insta::assert_snapshot!(said(&world, &output)?, @r#"
    found    publication "walrelay" was altered since set-up (publish, another option, name or owner)
    written  baseline of publication and tables
    warning  the stream may lack rows that were written meanwhile: `walrelay recover --rescan` sends those that are not marked as sent
    "#);
    world.commit_events(1).await?;
    recorder.wait_for_distinct(3, LONG).await?;
    wait_for_rows(&world.client, 5, 2).await?;
    // The relay streams, and hears of the rows by itself.
    let recover = async { relay.run_command(&["recover", "--rescan"]).await };
    let end = async {
        let waits = "select exists (select from pg_locks where relation = 'outbox_events'::regclass and not granted)::text";
        wait_true(&world.client, "recover to wait for the writer", waits).await?;
        anyhow::Ok(writer.batch_execute("commit").await?)
    };
    let (output, ended) = tokio::join!(recover, end);
    ended?;
    insta::assert_snapshot!(said(&world, &output?)?, @"
    found    nothing changed since set-up
    written  baseline of publication and tables
    copied   3 unsent rows of public.outbox_events, to be sent first, by created_at
    warning  up to 3 of these may be duplicates: the stream still brings them, or they were sent, but not yet marked or deleted
    ");
    recorder.wait_for_distinct(6, LONG).await?;
    world.wait_backfilled().await?;
    let delivered = recorder.distinct_ids();
    assert!(missed.iter().all(|id| delivered.contains(id)));
    wait_for_rows(&world.client, 6, 0).await?;
    assert_eq!(recorder.duplicates(), 0);
    Ok(())
}

/// The halt names the command, and the command ends it.
#[tokio::test]
async fn r23_a_row_that_can_never_be_read_is_passed_by_a_new_slot() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world.running().await?;
    world.commit_events(1).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    wait_for_rows(&world.client, 1, 0).await?;
    let away = "alter table outbox_events rename column event_type to kind";
    let sql = format!(
        "{away}; insert into outbox_events (id, aggregate_type, aggregate_id, kind, payload)
         values (gen_random_uuid(), 'order', 42, 'OrderCreated', '{{}}')"
    );
    world.client.batch_execute(&sql).await?;
    halts(&mut relay, &["column_missing"]).await?;
    world
        .client
        .batch_execute("alter table outbox_events rename column kind to event_type")
        .await?;
    let halted = halts(&mut relay, &["column_missing"]).await?;
    let remedy = halted.json["database"]["remedy"].as_str().unwrap_or_default();
    assert!(
        remedy.contains("`walrelay recover --new-slot`"),
        "{}",
        halted.text
    );
    let later = world.commit_events(2).await?;

    let unasked = relay.run_command(&["recover", "--new-slot"]).await?;
    assert_eq!((unasked.code(), unasked.stdout.as_str()), (Some(1), ""));
    insta::assert_snapshot!(normalised(&world, last_line(&unasked)), @"walrelay: the replication slot `SLOT` still streams, and recover makes it anew: say --yes where there is no terminal to ask on");
    let output = relay.run_command(&["recover", "--new-slot", "--yes"]).await?;
    insta::assert_snapshot!(said(&world, &output)?, @"
    found    a slot that streams, to be made anew
    found    publication walrelay
    dropped  slot SLOT
    created  slot SLOT (streams from LSN)
    written  baseline of publication and tables
    copied   3 unsent rows of public.outbox_events, to be sent first, by created_at
    warning  up to 3 of these may be duplicates: sent, but not yet marked or deleted; normally those of the last second
    warning  rows that were inserted and deleted while no slot kept them cannot be recovered
    ");
    recorder.wait_for_distinct(4, LONG).await?;
    world.wait_backfilled().await?;
    let delivered: HashSet<String> = recorder.distinct_ids();
    assert!(later.iter().all(|id| delivered.contains(id)));
    world.commit_events(1).await?;
    recorder.wait_for_distinct(5, LONG).await?;
    assert_eq!(recorder.duplicates(), 0);
    Ok(())
}
