//! The smallest role for each feature, as `docs/rights.md` has it: with these rights it works, and without any one of them it
//! says in one line what is missing.

use anyhow::Result;
use walrelay_testbed::{Readiness, Recorder, Relay, eventually};

use crate::backfill::ids;
use crate::setup::stop;
use crate::world::{LONG, World, text};

/// What streaming takes, besides `login replication`.
const STREAM: &[&str] = &[
    "usage on schema walrelay",
    "select on walrelay.state",
    "select on walrelay.slots",
    "select on walrelay.backfill",
];

/// What marks take beyond that.
const MARKS: &[&str] = &[
    "select on walrelay.mark_owners",
    "update (settled_commit_lsn, settled_tx_seq, settled_complete, unswept_xid) on walrelay.state",
];

impl World {
    /// A role of this database's own, with the attributes and these rights.
    pub(crate) async fn role(&self, name: &str, attributes: &str, rights: &[&[&str]]) -> Result<String> {
        let role = format!("{name}_{}", self.database.name());
        let mut sql = format!("create role {role} login {attributes};");
        for right in rights.iter().copied().flatten() {
            sql.push_str(&format!("grant {right} to {role};"));
        }
        self.client.batch_execute(&sql).await?;
        Ok(role)
    }

    pub(crate) fn url_of(&self, role: &str) -> String {
        self.database.url().replace("postgres@", &format!("{role}@"))
    }

    pub(crate) async fn revoke(&self, right: &str, role: &str) -> Result<()> {
        Ok(self
            .client
            .batch_execute(&format!("revoke {right} from {role}"))
            .await?)
    }

    pub(crate) async fn grant(&self, right: &str, role: &str) -> Result<()> {
        Ok(self
            .client
            .batch_execute(&format!("grant {right} to {role}"))
            .await?)
    }

    async fn unsent(&self) -> Result<String> {
        text(
            &self.client,
            "select count(*)::text from outbox_events where sent_at is null",
        )
        .await
    }
}

/// Each right that is taken away halts, or degrades, with a line that says which grant is missing; given back, it heals.
async fn each_is_needed(
    world: &World,
    relay: &mut Relay,
    role: &str,
    rights: &[&str],
    errors: fn(&Readiness) -> Vec<&str>,
) -> Result<()> {
    for right in rights {
        stop(relay).await?;
        world.revoke(right, role).await?;
        relay.start()?;
        world.commit_events(1).await?;
        // Named by the object that the right is on.
        let object = right.rsplit(['.', ' ']).next().unwrap_or_default();
        let names_it = |error: &&str| error.contains("grant ") && error.contains(object);
        let readiness = relay
            .wait_readiness(&format!("{right} to be missed"), LONG, |readiness| {
                errors(readiness).iter().any(names_it)
            })
            .await?;
        assert!(
            errors(&readiness).iter().all(|error| !error.contains('\n')),
            "{}",
            readiness.text
        );
        world.grant(right, role).await?;
    }
    Ok(())
}

fn halts(readiness: &Readiness) -> Vec<&str> {
    let database = &readiness.json["database"];
    let is_forbidden = database["cause"] == "database_forbidden";
    database["error"]
        .as_str()
        .filter(|_| is_forbidden)
        .into_iter()
        .collect()
}

fn degradations(readiness: &Readiness) -> Vec<&str> {
    let parts = readiness.json["degraded"].as_array().into_iter().flatten();
    parts
        .filter(|part| part["cause"] == "marks_forbidden")
        .filter_map(|part| part["error"].as_str())
        .collect()
}

/// A relay of the role, on what an administrator has set up, with a first event delivered.
async fn relaying(world: &World, role: &str, setting: &str) -> Result<(Relay, Recorder)> {
    let mut relay = world
        .relay()
        .text("postgres.guard_interval", "1s")
        .extra(setting)
        .build()?;
    relay.reconfigure(|builder| builder.postgres_url(&world.url_of(role)))?;
    let recorder = world.recorder().await?;
    relay.start()?;
    world.commit_events(1).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    Ok((relay, recorder))
}

#[tokio::test]
async fn streaming_takes_no_more_than_reading_walrelays_own_tables() -> Result<()> {
    let keep = "after_publish = \"keep\"";
    let world = World::new().await?;
    world.relay().extra(keep).build()?.setup().await?;
    let role = world.role("streams", "replication", &[STREAM]).await?;
    let (mut relay, recorder) = relaying(&world, &role, keep).await?;
    relay.wait_ready(LONG).await?;
    // The settled prefix, which only saves duplicates, is a right of the marks.
    let readiness = relay.ready().await?;
    assert!(readiness.is_ready(), "{}", readiness.text);
    each_is_needed(&world, &mut relay, &role, STREAM, halts).await?;
    recorder.wait_for_distinct(1 + STREAM.len(), LONG).await?;
    Ok(())
}

#[tokio::test]
async fn marking_takes_one_column_and_deleting_the_table() -> Result<()> {
    let mark = [
        "select (id, sent_at) on public.outbox_events",
        "update (sent_at) on public.outbox_events",
    ];
    let delete = [
        "select (id) on public.outbox_events",
        "update (sent_at) on public.outbox_events",
        "delete on public.outbox_events",
    ];
    for (setting, table) in [("", mark.as_slice()), ("after_publish = \"delete\"", &delete)] {
        let world = World::new().await?;
        world.relay().extra(setting).build()?.setup().await?;
        let role = world
            .role("marks", "replication", &[STREAM, MARKS, table])
            .await?;
        let (mut relay, recorder) = relaying(&world, &role, setting).await?;
        eventually("the row to be marked", LONG, || async {
            world.unsent().await.is_ok_and(|unsent| unsent == "0")
        })
        .await?;
        let readiness = relay.ready().await?;
        assert!(readiness.json["degraded"].is_null(), "{}", readiness.text);
        each_is_needed(&world, &mut relay, &role, &[MARKS, table].concat(), degradations).await?;
        recorder
            .wait_for_distinct(1 + MARKS.len() + table.len(), LONG)
            .await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_backfill_takes_reading_the_table_and_striking_its_notes_out() -> Result<()> {
    let rights = [
        "select on walrelay.backfills",
        "select on public.outbox_events",
        "delete on walrelay.backfill",
    ];
    for missing in [None, Some(0), Some(1), Some(2)] {
        let world = World::new().await?.with_old_table().await?;
        let keep = "after_publish = \"keep\"";
        let old = world.old_rows(3).await?;
        let relay = world.relay().extra(keep).build()?;
        let set_up = relay.run_command(&["setup", "--backfill", "all"]).await?;
        assert_eq!(set_up.code(), Some(0), "{}", set_up.stderr);
        let role = world.role("backfills", "replication", &[STREAM, &rights]).await?;
        let mut relay = relay;
        relay.reconfigure(|builder| builder.postgres_url(&world.url_of(&role)))?;
        let recorder = world.recorder().await?;
        if let Some(missing) = missing {
            let right = rights[missing];
            world.revoke(right, &role).await?;
            relay.start()?;
            let object = right.rsplit(['.', ' ']).next().unwrap_or_default();
            relay
                .wait_readiness(&format!("{right} to be missed"), LONG, |readiness| {
                    halts(readiness).iter().any(|error| error.contains(object))
                })
                .await?;
            world.grant(right, &role).await?;
        } else {
            relay.start()?;
        }
        recorder.wait_for_distinct(3, LONG).await?;
        world.wait_backfilled().await?;
        if missing.is_none() {
            assert_eq!(ids(&recorder.deliveries()), old);
        }
        world.commit_events(1).await?;
        recorder.wait_for_distinct(4, LONG).await?;
    }
    Ok(())
}
