//! What set-up says to a role that lacks rights, and to those who mistype a name.

use anyhow::Result;

use crate::setup::{last_line, normalised};
use crate::world::World;

/// A role of the world's own, without any right, and the URL with which it connects.
async fn plain_role(world: &World) -> Result<(String, String)> {
    let role = format!("plain_{}", world.database.name());
    world
        .client
        .batch_execute(&format!(
            "create role {role} login; revoke create on schema public from public"
        ))
        .await?;
    let url = world.database.url().replace("postgres@", &format!("{role}@"));
    Ok((role, url))
}

#[tokio::test]
async fn the_statements_that_setup_asks_for_are_enough() -> Result<()> {
    let world = World::new().await?;
    let (role, url) = plain_role(&world).await?;
    let relay = world.relay().postgres_url(&url).build()?;
    let refused = relay.run_command(&["setup"]).await?;
    assert_eq!((refused.code(), refused.stdout.as_str()), (Some(1), ""));
    let line = last_line(&refused);
    let name = world.database.name();
    insta::assert_snapshot!(line.replace(&role, "ROLE").replace(name, "DATABASE"), @"walrelay: the role `ROLE` lacks the attribute REPLICATION: as an administrator in database DATABASE: alter role ROLE replication; grant create on database DATABASE to ROLE; grant create on schema public to ROLE");

    let (_, statements) = line.rsplit_once(": ").unwrap_or_default();
    world.client.batch_execute(statements).await?;
    let set_up = relay.run_command(&["setup"]).await?;
    assert_eq!(set_up.code(), Some(0), "{}", set_up.stderr);
    Ok(())
}

#[tokio::test]
async fn a_table_of_another_owner_takes_an_administrator() -> Result<()> {
    let world = World::new().await?.with_old_table().await?;
    let (role, url) = plain_role(&world).await?;
    world
        .client
        .batch_execute(&format!(
            "alter role {role} replication; grant create on database {} to {role}",
            world.database.name()
        ))
        .await?;
    let relay = world.relay().postgres_url(&url).build()?;
    let refused = relay.run_command(&["setup"]).await?;
    insta::assert_snapshot!(last_line(&refused).replace(&role, "ROLE"), @"walrelay: create the publication: ERROR 42501: must be owner of table outbox_events: run `walrelay setup --url ADMIN --grant-to ROLE` with the URL of an administrator");
    Ok(())
}

#[tokio::test]
async fn a_role_that_does_not_exist_is_named_before_anything_is_made() -> Result<()> {
    let world = World::new().await?;
    let relay = world.relay().build()?;
    let refused = relay.run_command(&["setup", "--grant-to", "nobody_role"]).await?;
    assert_eq!(
        (refused.code(), last_line(&refused)),
        (
            Some(1),
            "walrelay: role `nobody_role` does not exist: create it, or correct --grant-to"
        )
    );
    let made = "select from pg_namespace where nspname = 'walrelay'";
    assert!(world.client.query(made, &[]).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn errors_of_another_url_name_the_flag() -> Result<()> {
    let world = World::new().await?;
    let relay = world.relay().build()?;
    let refused = relay
        .run_command(&["setup", "--url", "postgres://nobody@127.0.0.1:9/none"])
        .await?;
    assert_eq!(refused.code(), Some(1));
    let line = last_line(&refused);
    assert!(
        line.ends_with("check that PostgreSQL runs and that the host and port of --url are right"),
        "{line}"
    );
    Ok(())
}

#[tokio::test]
async fn a_table_that_is_made_beside_a_published_one_may_be_a_typing_error() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.relay().build()?;
    relay.setup().await?;
    relay.reconfigure(|relay| relay.outboxes(&["public.outbox_event"]))?;
    let output = relay
        .run_command(&["setup", "--backfill-order", "created_at"])
        .await?;
    assert_eq!(output.code(), Some(0), "{}", output.stderr);
    insta::assert_snapshot!(normalised(&world, &output.stdout), @"
    found    migrations
    created  table public.outbox_event
    changed  publication walrelay
    changed  baseline of publication and tables
    found    slot SLOT
    warning  the publication also lists public.outbox_events, which is no configured outbox: a row of it halts the relay
    warning  created table public.outbox_event, while the publication lists public.outbox_events: is outbox.table spelled right?
    warning  --backfill-order was ignored: no rows were to be noted (--backfill)
    ");
    Ok(())
}
