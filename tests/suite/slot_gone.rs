//! A slot that was set up and is gone, and teardown, which alone makes it forgotten.

use anyhow::Result;

use crate::complaint::{Part, named};
use crate::setup::{last_line, normalised, said, stop};
use crate::world::{LONG, World, insert_event, text};

/// R23: a slot made anew by set-up would begin behind what the old one missed.
#[tokio::test]
async fn setup_makes_no_slot_where_one_was_set_up_and_is_gone() -> Result<()> {
    let world = World::new().await?;
    let relay = world.relay().build()?;
    relay.setup().await?;
    world
        .client
        .batch_execute("alter table outbox_events drop sent_at")
        .await?;
    world.database.drop_slots().await?;
    insert_event(&world.client, 1).await?;

    let refused = relay.run_command(&["setup"]).await?;
    assert_eq!((refused.code(), refused.stdout.as_str()), (Some(1), ""));
    insta::assert_snapshot!(normalised(&world, last_line(&refused)), @"walrelay: slot `SLOT` was set up before and is gone: run `walrelay recover`, which sends what the tables still hold; `walrelay setup --new-slot`, if nothing may be sent");
    assert_eq!(world.slots().await?, 0);

    let anew = relay.run_command(&["setup", "--new-slot"]).await?;
    insta::assert_snapshot!(said(&world, &anew)?, @"
    found    migrations
    found    table public.outbox_events
    found    publication walrelay
    created  baseline of publication and tables
    created  slot SLOT (streams from LSN)
    ");
    let again = relay.run_command(&["setup", "--new-slot"]).await?;
    insta::assert_snapshot!(said(&world, &again)?, @"
    found    migrations
    found    table public.outbox_events
    found    publication walrelay
    found    baseline of publication and tables
    found    slot SLOT
    warning  slot SLOT is there, so --new-slot changed nothing
    ");
    Ok(())
}

/// What a recovery that failed half-way left must not be mistaken for a first set-up.
#[tokio::test]
async fn setup_makes_no_slot_after_a_recovery_that_failed() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.running().await?;
    stop(&mut relay).await?;
    world.database.drop_slots().await?;
    // As `recover` writes it before it creates the slot.
    world
        .client
        .batch_execute(
            "update walrelay.slots set consistent_point = null; update walrelay.state set baseline_by = 'recover'",
        )
        .await?;
    let refused = relay.run_command(&["setup"]).await?;
    assert_eq!(refused.code(), Some(1), "{}", refused.stdout);
    relay.start()?;
    named(&mut relay, Part::Database, "slot_missing").await?;
    let recovered = relay.run_command(&["recover", "--yes"]).await?;
    assert_eq!(recovered.code(), Some(0), "{}", recovered.stderr);
    relay.wait_ready(LONG).await?;
    let kept = relay.run_command(&["recover", "--since", "1h"]).await?;
    assert_eq!(
        (kept.code(), last_line(&kept)),
        (
            Some(0),
            "warning: --since was ignored: no table's rows were to be found by their time"
        )
    );
    Ok(())
}

/// `--auto-setup` is `setup`: it leaves the slot to recovery.
#[tokio::test]
async fn auto_setup_recovers_a_slot_that_is_gone_only_where_that_was_asked_for() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.relay().arg("--auto-setup").start().await?;
    stop(&mut relay).await?;
    world.database.drop_slots().await?;
    let id = insert_event(&world.client, 1).await?;
    relay.start()?;
    named(&mut relay, Part::Database, "slot_missing").await?;
    assert_eq!(world.slots().await?, 0);
    stop(&mut relay).await?;

    relay.reconfigure(|relay| relay.text("recovery.on_slot_lost", "rescan"))?;
    let recorder = world.recorder().await?;
    relay.start()?;
    assert_eq!(recorder.wait_for(1, LONG).await?[0].message_id, id);
    Ok(())
}

/// Half of it would leave a slot's note behind, by which a relay may make the slot anew.
#[tokio::test]
async fn teardown_by_a_role_that_may_not_do_all_of_it_does_nothing() -> Result<()> {
    let world = World::new().await?;
    let role = format!("relay_{}", world.database.name());
    world
        .client
        .batch_execute(&format!("create role {role} login"))
        .await?;
    let url = world.database.url().replace("postgres@", &format!("{role}@"));
    let relay = world.relay().postgres_url(&url).build()?;
    let administrator = world.database.url();
    let set_up = relay
        .run_command(&["setup", "--url", &administrator, "--grant-to", &role])
        .await?;
    assert_eq!(set_up.code(), Some(0), "{}", set_up.stderr);

    let refused = relay.run_command(&["teardown", "--yes"]).await?;
    assert_eq!((refused.code(), refused.stdout.as_str()), (Some(1), ""));
    insta::assert_snapshot!(normalised(&world, last_line(&refused)).replace(&role, "ROLE"), @"walrelay: the role `ROLE` may not tear down, and nothing was dropped: it lacks ownership of publication walrelay, delete on walrelay.backfills, delete on walrelay.mark_owners, delete on walrelay.slots: run `walrelay teardown --url ADMIN` with the URL of an administrator, such as setup was run with");
    assert_eq!(world.slots().await?, 1);

    let torn_down = relay
        .run_command(&["teardown", "--yes", "--url", &administrator])
        .await?;
    insta::assert_snapshot!(said(&world, &torn_down)?, @"
    dropped  slot SLOT
    dropped  publication walrelay
    ");
    let noted = "select (select count(*) from walrelay.slots) + (select count(*) from walrelay.mark_owners)";
    assert_eq!(
        text(&world.client, &format!("select ({noted})::text")).await?,
        "0"
    );
    Ok(())
}
