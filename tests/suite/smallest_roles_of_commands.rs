//! The smallest role for each command, as `docs/rights.md` has it: with these rights it works, and without any one of them it
//! says in one line what is missing.

use anyhow::Result;
use walrelay_testbed::Relay;

use crate::backfill::LEFT;
use crate::setup::{last_line, stop};
use crate::world::{LONG, World, text};

/// What `recover` takes, whether the slot streams or not.
const RECOVER: &[&str] = &[
    "usage on schema walrelay",
    "select on walrelay.state",
    "insert on walrelay.state",
    "update on walrelay.state",
    "select on walrelay.slots",
    "select on walrelay.backfill",
    "select on walrelay.mark_owners",
    "insert on walrelay.mark_owners",
    "update on walrelay.mark_owners",
];

/// What asking again for retries takes, which comes last: without it the rest is done.
const RETRY: &[&str] = &[
    "select on walrelay.dead_letters",
    "update on walrelay.dead_letters",
];

/// What it takes beyond that to note rows.
const NOTE: &[&str] = &[
    "select on walrelay.backfills",
    "insert on walrelay.backfills",
    "update on walrelay.backfills",
    "insert on walrelay.backfill",
    "delete on walrelay.backfill",
    "select on walrelay.skips",
    "select on public.outbox_events",
];

/// What it takes beyond that to make a slot anew.
const ANEW: &[&str] = &[
    "select on walrelay.schema_migrations",
    "insert on walrelay.slots",
    "update on walrelay.slots",
];

/// What it takes to wait for the writers of a table: any right to write.
const LOCK: &[&str] = &["delete on public.outbox_events"];

/// The command fails without any one of the rights, in a line that names what it is on, and works with them.
async fn each_is_needed(
    world: &World,
    relay: &Relay,
    command: &[&str],
    rights: &[&[&str]],
) -> Result<String> {
    let role = world.role("commands", "replication", rights).await?;
    let url = format!("postgres.url={}", world.url_of(&role));
    let mut arguments = command.to_vec();
    arguments.extend(["--set", &url]);
    for right in rights.iter().copied().flatten() {
        world.revoke(right, &role).await?;
        let refused = relay.run_command(&arguments).await?;
        let object = right.rsplit(['.', ' ']).next().unwrap_or_default();
        let line = last_line(&refused);
        assert!(
            refused.code() == Some(1) && line.contains("42501") && line.contains(object),
            "without {right}: {:?} {}",
            refused.code(),
            refused.stderr
        );
        world.grant(right, &role).await?;
    }
    let done = relay.run_command(&arguments).await?;
    assert_eq!(done.code(), Some(0), "{}", done.stderr);
    Ok(done.stdout)
}

#[tokio::test]
async fn recovering_takes_what_set_up_takes_of_walrelays_own_tables() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.running().await?;
    stop(&mut relay).await?;
    world.commit_events(3).await?;
    // A slot that streams, and its missed rows.
    let command = ["recover", "--rescan"];
    each_is_needed(&world, &relay, &command, &[RECOVER, NOTE, LOCK, RETRY]).await?;
    assert_eq!(text(&world.client, LEFT).await?, "3", "each is noted once");
    Ok(())
}

#[tokio::test]
async fn recovering_a_lost_slot_takes_little_more() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.running().await?;
    stop(&mut relay).await?;
    world.commit_events(3).await?;
    world.database.drop_slots().await?;
    let command = ["recover", "--yes"];
    each_is_needed(&world, &relay, &command, &[RECOVER, NOTE, ANEW, RETRY]).await?;
    assert_eq!(text(&world.client, LEFT).await?, "3", "each is noted once");
    assert_eq!(world.slots().await?, 1, "no failure has left a slot behind");
    let recorder = world.recorder().await?;
    relay.start()?;
    recorder.wait_for_distinct(3, LONG).await?;
    Ok(())
}

#[tokio::test]
async fn replaying_takes_reading_the_table_and_nothing_of_walrelays_own() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.running().await?;
    stop(&mut relay).await?;
    let id = world.commit_events(1).await?.remove(0);
    let recorder = world.recorder().await?;
    let command = ["replay", "--id", &id];
    let said = each_is_needed(&world, &relay, &command, &[&["select on public.outbox_events"]]).await?;
    assert_eq!(said, "1 confirmed, 0 failed\n");
    recorder.wait_for_distinct(1, LONG).await?;
    Ok(())
}

#[tokio::test]
async fn purging_takes_deleting_from_the_table_and_knowing_the_dead_letters() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.running().await?;
    stop(&mut relay).await?;
    world.commit_events(3).await?;
    let old = "update outbox_events set sent_at = now() - interval '8 days', created_at = now() - interval '8 days'";
    world.client.batch_execute(old).await?;
    let looks = [
        "select on public.outbox_events",
        "usage on schema walrelay",
        "select on walrelay.dead_letters",
    ];
    let deletes = [
        "update (sent_at) on public.outbox_events",
        "delete on public.outbox_events",
    ];
    let command = ["purge", "--older-than", "7d", "--dry-run"];
    let role = world.role("looks", "", &[&looks]).await?;
    let url = format!("postgres.url={}", world.url_of(&role));
    let counted = relay
        .run_command(&[&command[..], &["--set", &url]].concat())
        .await?;
    assert_eq!(counted.code(), Some(0), "{}", counted.stderr);
    let command = ["purge", "--yes", "--older-than", "7d"];
    let said = each_is_needed(&world, &relay, &command, &[&looks, &deletes]).await?;
    assert!(said.contains('3'), "{said}");
    Ok(())
}
