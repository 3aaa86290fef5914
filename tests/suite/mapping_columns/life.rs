//! What an outbox goes through, from the rows that were there before to the last one that is deleted.

use anyhow::{Result, ensure};
use walrelay_testbed::{Recorder, Relay};

use super::{AWKWARD, BLANKS, DEBEZIUM, Shape, TEXTS, stable, wait_for, well};
use crate::setup::{last_line, said, stop};
use crate::world::{EXCHANGE, LONG, QUEUE, World, text, wal_end};

const DEAD_LETTERS: &str = "select count(*)::text from walrelay.dead_letters";

#[tokio::test]
async fn a_table_of_debezium_s_with_a_status_lives_its_whole_life() -> Result<()> {
    let (world, relay, recorder) = live(&DEBEZIUM).await?;
    assert!(
        recorder
            .deliveries()
            .iter()
            .all(|delivery| delivery.body == b"{\"a\":  1.0}")
    );
    assert_eq!(
        text(&world.client, "select max(attempts)::text from outbox").await?,
        "1",
        "no row was marked twice"
    );
    let doctor = relay.run_command(&["doctor"]).await?;
    insta::assert_snapshot!("doctor_of_debezium", about_table(&doctor.stdout));
    // There is no time by which a row is old.
    let purge = relay
        .run_command(&["purge", "--older-than", "1ms", "--yes"])
        .await?;
    let mut refusals = vec![last_line(&purge).to_owned()];
    for columns in ["", "sent_at = ''\n"] {
        let text = format!(
            "{}\n{columns}[outbox.retention]\nkeep_sent = '1d'",
            DEBEZIUM.settings
        );
        let shape = Shape {
            settings: &text,
            ..DEBEZIUM
        };
        let refused = shape.relay(&world).build()?.run_command(&["status"]).await?;
        refusals.push(stable(last_line(&refused)).to_owned());
    }
    insta::assert_snapshot!("refusals_without_a_time", refusals.join("\n"));
    Ok(())
}

#[tokio::test]
async fn a_table_of_awkward_names_lives_its_whole_life() -> Result<()> {
    let (world, relay, recorder) = live(&AWKWARD).await?;
    assert!(
        recorder
            .deliveries()
            .iter()
            .all(|delivery| delivery.body == b"{}")
    );
    let doctor = relay.run_command(&["doctor"]).await?;
    insta::assert_snapshot!("doctor_of_awkward_names", about_table(&doctor.stdout));
    let waiting = text(&world.client, "select event_id from walrelay.dead_letters").await?;
    let purge = relay
        .run_command(&["purge", "--older-than", "1ms", "--yes"])
        .await?;
    well(&purge)?;
    assert_eq!(
        text(
            &world.client,
            "select string_agg(\"Event Id\"::text, ',') from outbox"
        )
        .await?,
        waiting,
        "the dead letter's row stays"
    );
    Ok(())
}

#[tokio::test]
async fn ids_of_a_fixed_length_keep_their_blanks_through_the_whole_life() -> Result<()> {
    let (_world, _relay, recorder) = live(&BLANKS).await?;
    assert!(recorder.message_ids().iter().all(|id| id.chars().count() == 40));
    Ok(())
}

/// Both must say so before a row is deleted: the time and the mark.
#[tokio::test]
async fn a_table_of_text_ids_with_a_flag_and_a_time_lives_its_whole_life() -> Result<()> {
    let (world, relay, _recorder) = live(&TEXTS).await?;
    let sql = "insert into outbox (id, aggregate_type, aggregate_id, event_type, payload, sent_on)
               values ('unmarked', 'shop', '42', 'order', '{}', now() - interval '1 day')";
    world.client.batch_execute(sql).await?;
    let count = relay
        .run_command(&["purge", "--older-than", "1ms", "--dry-run"])
        .await?;
    assert_eq!(well(&count)?, "16 rows of public.outbox would be deleted\n");
    let purge = relay
        .run_command(&["purge", "--older-than", "1ms", "--yes"])
        .await?;
    assert_eq!(well(&purge)?, "deleted 16 rows of public.outbox\n");
    assert_eq!(
        text(
            &world.client,
            "select string_agg(event_type || coalesce(done::text, ' unmarked'), ', ' order by event_type) from outbox"
        )
        .await?,
        "order unmarked, unheard unmarked"
    );
    Ok(())
}

#[tokio::test]
async fn rows_of_awkward_names_are_deleted_where_that_is_configured() -> Result<()> {
    let settings = format!("after_publish = 'delete'\n{}", AWKWARD.settings);
    let shape = Shape {
        settings: &settings,
        ..AWKWARD
    };
    let world = shape.world().await?;
    let recorder = world.recorder().await?;
    shape.insert(&world, "order", 3).await?;
    let mut relay = shape.relay(&world).build()?;
    relay.setup().await?;
    relay.start()?;
    recorder.wait_for_distinct(3, LONG).await?;
    shape.insert(&world, "order", 3).await?;
    recorder.wait_for_distinct(6, LONG).await?;
    wait_for(&world, "select count(*)::text from outbox", "0").await?;
    Ok(())
}

/// Everything but what depends on a time of sending. Returns the running relay, and all that it delivered.
async fn live(shape: &Shape<'_>) -> Result<(World, Relay, Recorder)> {
    let world = shape.world().await?;
    let recorder = world.recorder().await?;
    let mut expected = shape.insert(&world, "order", 5).await?;
    let mut relay = shape.relay(&world).build()?;
    // Rows that were there.
    let setup = relay.run_command(&["setup"]).await?;
    let setup = said(&world, &setup)?;
    ensure!(
        setup.contains("copied   5 unsent rows of public.outbox"),
        "{setup}"
    );
    relay.start()?;
    recorder.wait_for_distinct(5, LONG).await?;
    shape.wait_unsent(&world, 0).await?;

    // The stream.
    expected.extend(shape.insert(&world, "order", 5).await?);
    recorder.wait_for_distinct(10, LONG).await?;
    shape.wait_unsent(&world, 0).await?;
    assert_eq!(recorder.message_ids(), expected);

    dead_letter(shape, &world, &relay, &recorder, &mut expected).await?;
    replay(shape, &relay, &recorder, &expected).await?;
    let count = expected.len();

    // Rows that were published and not marked, as after a crash; and one of a dead letter that waits from now on: it is neither
    // marked nor sent again.
    stop(&mut relay).await?;
    expected.extend(shape.insert(&world, "order", 3).await?);
    shape.insert(&world, "unheard", 1).await?;
    let other = world.database.client().await?;
    other
        .batch_execute("begin; lock table outbox in share mode")
        .await?;
    relay.start()?;
    recorder.wait_for_distinct(count + 3, LONG).await?;
    wait_for(&world, DEAD_LETTERS, "1").await?;
    // R18: for so long the position waits for the marks. Then they are the sweep's.
    world.wait_flushed(wal_end(&world.client).await?).await?;
    wait_for(
        &world,
        "select settled_complete::text from walrelay.state",
        "false",
    )
    .await?;
    relay.kill().await?;
    other.batch_execute("rollback").await?;
    relay.start()?;
    shape.wait_unsent(&world, 1).await?;

    // A slot that is lost.
    stop(&mut relay).await?;
    let drop = format!("select pg_drop_replication_slot('{}')", world.slot());
    world.client.batch_execute(&drop).await?;
    expected.extend(shape.insert(&world, "order", 2).await?);
    let recovered = relay.run_command(&["recover", "--yes"]).await?;
    let recovered = said(&world, &recovered)?;
    ensure!(
        recovered.contains("copied   2 unsent rows of public.outbox"),
        "{recovered}"
    );
    relay.start()?;
    recorder.wait_for_distinct(count + 5, LONG).await?;
    shape.wait_unsent(&world, 1).await?;
    relay.wait_ready(LONG).await?;
    assert_eq!(recorder.distinct_ids(), expected.into_iter().collect());
    let routes = relay.run_command(&["doctor", "--routes"]).await?.stdout;
    ensure!(routes.contains("`outbox`, `order`: 15 rows"), "{routes}");
    let status = relay.run_command(&["status"]).await?;
    ensure!(well(&status)?.contains("public.outbox"), "{}", status.stdout);
    Ok((world, relay, recorder))
}

/// An event that finds no queue, then one.
async fn dead_letter(
    shape: &Shape<'_>,
    world: &World,
    relay: &Relay,
    recorder: &Recorder,
    expected: &mut Vec<String>,
) -> Result<()> {
    let id = shape.insert(world, "nobody", 1).await?.remove(0);
    wait_for(world, DEAD_LETTERS, "1").await?;
    shape.wait_unsent(world, 1).await?;
    let listed = relay
        .run_command(&["dead-letters", "list", "--event-type", "nobody", "--json"])
        .await?;
    let listed: serde_json::Value = serde_json::from_str(well(&listed)?)?;
    assert_eq!(
        (&listed[0]["event_id"], &listed[0]["event_type"]),
        (&id.as_str().into(), &"nobody".into())
    );
    let other = relay
        .run_command(&["dead-letters", "list", "--event-type", "order", "--json"])
        .await?;
    assert_eq!(well(&other)?, "[]\n");
    world.vhost.bind(QUEUE, EXCHANGE, "nobody").await?;
    let retry = relay
        .run_command(&["dead-letters", "retry", "--event-type", "nobody", "--yes"])
        .await?;
    well(&retry)?;
    expected.push(id);
    recorder.wait_for_distinct(expected.len(), LONG).await?;
    wait_for(world, DEAD_LETTERS, "0").await?;
    shape.wait_unsent(world, 0).await?;
    Ok(())
}

/// Rows published again: by id, and as many as each filter takes.
async fn replay(shape: &Shape<'_>, relay: &Relay, recorder: &Recorder, expected: &[String]) -> Result<()> {
    let before = recorder.deliveries().len();
    let replayed = relay.run_command(&["replay", "--id", &expected[1]]).await?;
    assert_eq!(well(&replayed)?, "1 confirmed, 0 failed\n");
    recorder.wait_for(u64::try_from(before)? + 1, LONG).await?;
    assert_eq!(recorder.message_ids()[before], expected[1]);
    for (filter, rows) in [
        (["--event-type", "order"].as_slice(), "10 rows"),
        (&["--aggregate", "shop/42"], "11 rows"),
        (&["--aggregate", "other/42"], "0 rows"),
        (&["--since", "1h", "--event-type", "nobody"], "1 row"),
        (&["--until", "1h"], "0 rows"),
    ] {
        let count = relay
            .run_command(&[&["replay", "--dry-run"], filter].concat())
            .await?;
        assert_eq!(
            well(&count)?,
            format!("{rows} would be published again\n"),
            "{filter:?} {}",
            shape.settings
        );
    }
    Ok(())
}

/// What doctor says about the outbox table.
fn about_table(text: &str) -> String {
    let lines = text.lines().skip_while(|line| !line.starts_with("table "));
    let lines = lines
        .enumerate()
        .take_while(|(at, line)| *at == 0 || line.starts_with(' '));
    lines.map(|(_, line)| line).collect::<Vec<_>>().join("\n")
}
