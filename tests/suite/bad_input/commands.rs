//! Commands with a name that is wrong: said in one line, and nothing of another slot's is touched.

use anyhow::Result;
use walrelay_testbed::{Relay, RelayBuilder};

use crate::setup::last_line;
use crate::world::{LONG, World, text};

/// A relay that is set up, and the configuration of another one whose slot nobody has ever set up.
async fn misspelt() -> Result<(World, Relay, Relay)> {
    let world = World::new().await?;
    let right = world.relay().build()?;
    right.setup().await?;
    let wrong = world.relay().slot("misspelt").build()?;
    Ok((world, right, wrong))
}

#[tokio::test]
async fn a_slot_that_was_never_set_up_is_named_by_every_command() -> Result<()> {
    let (world, right, wrong) = misspelt().await?;
    for arguments in [
        ["status"].as_slice(),
        &["dead-letters", "list"],
        &["dead-letters", "show", "7"],
        &["dead-letters", "retry", "7"],
        &["dead-letters", "discard", "--all", "--yes", "--reason", "a test"],
        &["skip", "7", "--reason", "a test"],
        &["wait", "--current"],
    ] {
        let output = wrong.run_command(arguments).await?;
        assert_eq!(output.code(), Some(1), "{arguments:?}: {}", output.stderr);
        let said = output.stdout.clone() + &output.stderr;
        for words in [
            "the replication slot `misspelt` does not exist, and was never set up in this database",
            "run `walrelay setup`, or correct postgres.slot",
        ] {
            assert!(said.contains(words), "{arguments:?}: {said}");
        }
    }
    let skips = text(&world.client, "select count(*)::text from walrelay.skips").await?;
    assert_eq!(skips, "0");
    // Of the right one there is none, which is no fault.
    let listed = right.run_command(&["dead-letters", "list"]).await?;
    assert_eq!(listed.code(), Some(0), "{}", listed.stderr);
    Ok(())
}

/// The publication is what the other slot's relay lives by.
#[tokio::test]
async fn a_teardown_of_a_misspelt_slot_leaves_the_publication_to_the_slot_that_reads_it() -> Result<()> {
    let (world, mut right, wrong) = misspelt().await?;
    let output = wrong.run_command(&["teardown", "--yes"]).await?;
    assert_eq!(output.code(), Some(0), "{}", output.stderr);
    assert_eq!(
        output.stdout,
        format!(
            "absent   slot misspelt\nkept     publication walrelay: read by slot slot_{}\n",
            world.database.name()
        )
    );
    right.start()?;
    right.wait_ready(LONG).await?;
    right.kill().await?;
    let output = right.run_command(&["teardown", "--yes"]).await?;
    assert!(
        output.stdout.contains("dropped  publication walrelay\n"),
        "{}",
        output.stdout
    );
    Ok(())
}

#[tokio::test]
async fn a_schema_that_does_not_exist_is_named_with_what_to_do() -> Result<()> {
    let world = World::new().await?;
    let relay = world.relay().outboxes(&["nowhere.outbox"]).build()?;
    let output = relay.run_command(&["setup"]).await?;
    assert_eq!(output.code(), Some(1), "{}", output.stdout);
    insta::assert_snapshot!(last_line(&output), @"walrelay: create the outbox table: ERROR 3F000: schema \"nowhere\" does not exist: create the schema, or correct outbox.table");
    Ok(())
}

#[tokio::test]
async fn a_duration_that_is_none_is_answered_with_an_example() -> Result<()> {
    let relay = RelayBuilder::new(env!("CARGO_BIN_EXE_walrelay")).build()?;
    for arguments in [
        ["purge", "--older-than", "soon"],
        ["wait", "--current", "--timeout=1x"],
    ] {
        let output = relay.run_command(&arguments).await?;
        assert_eq!(output.code(), Some(2));
        assert!(
            output
                .stderr
                .contains("expected a duration such as 90s, 2h or 7d"),
            "{}",
            output.stderr
        );
    }
    Ok(())
}
