//! `walrelay skip`: what it says of the event, and requests that wait for theirs.

use anyhow::Result;

use crate::setup::stop;
use crate::world::{LONG, World};

/// Inserts an event that no queue takes; returns its id.
async fn insert_astray(world: &World) -> Result<String> {
    let row = world
        .client
        .query_one(
            "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             values (gen_random_uuid(), 'nobody', 42, 'Asked', '{}') returning id::text",
            &[],
        )
        .await?;
    Ok(row.get(0))
}

/// R9.
#[tokio::test]
async fn a_skip_says_whether_its_event_is_held() -> Result<()> {
    let world = World::for_orders().await?;
    let slot = world.slot();
    let mut relay = world.running().await?;
    let held = insert_astray(&world).await?;
    let ready = relay.wait_not_ready(LONG).await?;
    assert_eq!(ready.json["delivery"]["event_id"], held, "{}", ready.text);
    let key = ready.json["delivery"]["key"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let remedy = ready.json["delivery"]["remedy"].as_str().unwrap_or_default();
    assert!(
        remedy.contains("walrelay skip EVENT_ID --reason TEXT"),
        "{remedy}"
    );

    let typo = relay
        .run_command(&["skip", &held.replace('-', ""), "--reason", "a typing error"])
        .await?;
    assert_eq!(typo.code(), Some(0), "{}", typo.stderr);
    assert_eq!(typo.stdout, format!("recorded as skip 1 of slot {slot}\n"));
    assert!(
        typo.stderr
            .starts_with("warning: no such event is held now; the request stays and takes the next"),
        "{}",
        typo.stderr
    );
    let listed = relay.run_command(&["skip", "--list"]).await?;
    let lines: Vec<_> = listed.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{}", listed.stdout);
    assert!(
        lines[1].starts_with("1 ") && lines[1].ends_with("a typing error"),
        "{}",
        lines[1]
    );
    let withdrawn = relay.run_command(&["skip", "--withdraw", "1"]).await?;
    let event = held.replace('-', "");
    assert_eq!(withdrawn.stdout, format!("withdrawn: skip 1 of event {event}\n"));
    let again = relay.run_command(&["skip", "--withdraw", "1"]).await?;
    assert_eq!((again.code(), again.stdout.as_str()), (Some(1), ""));
    let listed = relay.run_command(&["skip", "--list"]).await?;
    assert_eq!(
        listed.stdout,
        format!("no skip of slot {slot} waits for its event\n")
    );

    let skipped = relay
        .run_command(&["skip", &key, "--reason", "nobody asked"])
        .await?;
    assert_eq!(
        (skipped.stdout, skipped.stderr.as_str()),
        (
            format!("recorded as skip 2: event {key} of slot {slot} is held now; the relay settles it\n"),
            ""
        )
    );
    relay.wait_ready(LONG).await?;
    relay
        .wait_for_log("the skip", LONG, |line| {
            line.contains("held event skipped") && line.contains(&format!("\"event_id\":\"{held}\""))
        })
        .await?;

    stop(&mut relay).await?;
    let unknown = relay
        .run_command(&["skip", &held, "--reason", "in advance"])
        .await?;
    assert_eq!(unknown.code(), Some(0), "{}", unknown.stderr);
    assert!(
        unknown.stderr.starts_with("no relay of this slot answers at "),
        "{}",
        unknown.stderr
    );
    Ok(())
}
