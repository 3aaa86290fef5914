//! The guard (rules 4 and 5) and `walrelay recover`.

use anyhow::Result;
use walrelay::fault::FaultKind;
use walrelay::postgres::slot::SlotState;
use walrelay::postgres::{QualifiedTable, Unfit, flushed_position, guard, preflight, teardown};
use walrelay_testbed::{Postgres, PostgresOptions};

use crate::source::{SetUp, said};

impl SetUp {
    /// What the guard says; empty if nothing.
    async fn guard(&self) -> Result<String> {
        let session = self.session().await?;
        let checked = guard::check(&session, &self.source).await;
        session.close().await;
        Ok(checked.err().map(|error| said(&error)).unwrap_or_default())
    }

    async fn change(&self, sql: &str) -> Result<()> {
        Ok(self.client.batch_execute(sql).await?)
    }
}

const ALTERED: &str = "publication_changed: publication \"walrelay\" was altered since set-up (publish, another \
                       option, name or owner)";

/// What the metrics of the slot are made of.
#[tokio::test]
async fn the_guard_sees_how_the_slot_stands() -> Result<()> {
    let set_up = SetUp::new().await?;
    let session = set_up.session().await?;
    let before = flushed_position(&session).await?;
    let checked = guard::check(&session, &set_up.source).await?;
    assert!(checked.slot.is_some());
    assert_eq!(
        checked.slot,
        SlotState::read(&session, &set_up.source.slot).await?
    );
    assert!((before..=flushed_position(&session).await?).contains(&checked.log_end));
    set_up.database.drop_slots().await?;
    assert_eq!(guard::check(&session, &set_up.source).await?.slot, None);
    Ok(())
}

#[tokio::test]
async fn r5_a_publication_that_was_altered_and_altered_back_is_noticed() -> Result<()> {
    let set_up = SetUp::new().await?;
    assert_eq!(set_up.guard().await?, "");
    let oids = "select concat_ws(' ', (select oid from pg_publication), (select oid from pg_publication_rel), \
                'outbox_events'::regclass::oid)";
    let before = set_up.text(oids).await?;
    set_up
        .change("alter publication walrelay set (publish = 'update')")
        .await?;
    set_up
        .change("alter publication walrelay set (publish = 'insert')")
        .await?;
    assert_eq!(set_up.text(oids).await?, before, "no object id tells");
    assert_eq!(set_up.guard().await?, ALTERED);
    Ok(())
}

#[tokio::test]
async fn r5_neither_vacuum_nor_use_is_taken_for_a_change() -> Result<()> {
    let set_up = SetUp::new().await?;
    set_up
        .change("vacuum (freeze) pg_publication, pg_publication_rel")
        .await?;
    set_up.change("vacuum full pg_publication_rel").await?;
    set_up
        .change("create index on outbox_events (created_at); alter table outbox_events add column extra text")
        .await?;
    set_up
        .change("truncate outbox_events; analyze outbox_events")
        .await?;
    set_up.set_up_again().await?;
    assert_eq!(set_up.guard().await?, "");
    Ok(())
}

#[tokio::test]
async fn r5_every_way_to_lose_rows_is_named() -> Result<()> {
    for (change, words) in [
        (
            "alter publication walrelay drop table outbox_events; \
             alter publication walrelay add table outbox_events",
            "table public.outbox_events was taken out of the publication and added again, or its filter or columns \
             were changed, since set-up",
        ),
        (
            "create table other (id int); alter publication walrelay add table other",
            "table public.other was added to the publication since set-up",
        ),
        (
            "alter table outbox_events rename to away",
            "table public.outbox_events was renamed to public.away since set-up",
        ),
        (
            "drop table outbox_events",
            "table public.outbox_events was taken out of the publication since set-up; table public.outbox_events \
             was dropped since set-up",
        ),
        (
            "alter table outbox_events rename to away; create table outbox_events (like away)",
            "table public.outbox_events was dropped and created again, or another was renamed to it, since set-up",
        ),
        (
            "drop publication walrelay; create publication walrelay for table outbox_events with (publish = 'insert')",
            "publication \"walrelay\" was dropped and created again since set-up",
        ),
        (
            "drop publication walrelay",
            "publication \"walrelay\" was dropped or renamed since set-up",
        ),
        (
            "create schema shop; alter publication walrelay add tables in schema shop",
            "schema shop was added to the publication since set-up",
        ),
    ] {
        let set_up = SetUp::new().await?;
        let version = set_up
            .text("select current_setting('server_version_num')")
            .await?;
        if change.contains("tables in schema") && version.as_str() < "150000" {
            continue;
        }
        set_up.change(change).await?;
        assert_eq!(
            set_up.guard().await?,
            format!("publication_changed: {words}"),
            "{change}"
        );
        set_up.database.drop_slots().await?;
    }
    Ok(())
}

#[tokio::test]
async fn r5_setup_leaves_a_mismatch_for_recover() -> Result<()> {
    let set_up = SetUp::new().await?;
    set_up
        .change("alter publication walrelay set (publish = 'insert, update')")
        .await?;
    let report = set_up.set_up_again().await?;
    assert!(
        report
            .warnings
            .iter()
            .any(|line| line.contains("run `walrelay recover`")),
        "{report}"
    );
    assert_eq!(set_up.guard().await?, ALTERED);

    let recovered = set_up.run(&["recover"]).await?;
    assert_eq!(
        (recovered.code(), recovered.stdout.as_str()),
        (
            Some(0),
            "found    publication \"walrelay\" was altered since set-up (publish, another option, name or owner)\n\
             written  baseline of publication and tables\n\
             warning  the stream may lack rows that were written meanwhile: `walrelay recover --rescan` sends those \
             that are not marked as sent\n"
        ),
        "{}",
        recovered.stderr
    );
    assert_eq!(set_up.guard().await?, "");
    let again = set_up.run(&["recover"]).await?;
    assert!(
        again
            .stdout
            .starts_with("found    nothing changed since set-up\n"),
        "{}",
        again.stdout
    );
    Ok(())
}

#[tokio::test]
async fn setup_takes_in_what_it_adds_itself() -> Result<()> {
    let mut set_up = SetUp::new().await?;
    let more: QualifiedTable = "public.more_events".parse()?;
    set_up.source.outboxes.push(more.into());
    assert_eq!(
        set_up.guard().await?,
        "publication_changed: table public.more_events was configured after set-up (run `walrelay setup`)"
    );
    let report = set_up.set_up_again().await?;
    assert!(
        report
            .to_string()
            .contains("changed  baseline of publication and tables\n"),
        "{report}"
    );
    assert_eq!(set_up.guard().await?, "");
    Ok(())
}

#[tokio::test]
async fn a_slot_without_a_baseline_is_said_and_nothing_is_adopted() -> Result<()> {
    let set_up = SetUp::new().await?;
    set_up.change("delete from walrelay.state").await?;
    let slot = &set_up.source.slot;
    let words = format!(
        "publication_changed: slot `{slot}` has no baseline: it was set up by an older version, or by hand"
    );
    assert_eq!(set_up.guard().await?, words);
    let report = set_up.set_up_again().await?;
    assert!(report.to_string().contains("has no baseline"), "{report}");
    assert_eq!(set_up.guard().await?, words);

    set_up.change("drop table walrelay.state").await?;
    let said = set_up.guard().await?;
    assert!(
        said.starts_with("own_schema: read the baseline: walrelay's own tables are missing"),
        "{said}"
    );
    Ok(())
}

#[tokio::test]
async fn a_role_without_rights_is_told_the_grant() -> Result<()> {
    let set_up = SetUp::new().await?;
    let (session, role) = set_up.session_as_plain_role().await?;
    let error = guard::check(&session, &set_up.source).await.unwrap_err();
    assert_eq!(error.kind(), FaultKind::DatabaseForbidden);
    let grant =
        format!("grant usage on schema walrelay to \"{role}\"; grant select on walrelay.state to \"{role}\"");
    assert!(said(&error).contains(&grant), "{}", said(&error));
    assert_eq!(
        error.sqlstate().map(|code| code.to_string()).as_deref(),
        Some("42501")
    );

    set_up.change(&grant).await?;
    guard::check(&session, &set_up.source).await?;
    set_up.change(&format!("drop owned by \"{role}\"")).await?;
    session.close().await;
    set_up.change(&format!("drop role \"{role}\"")).await
}

#[tokio::test]
async fn recover_asks_before_it_makes_a_slot_anew() -> Result<()> {
    let set_up = SetUp::new().await?;
    let written = "select baseline_by from walrelay.state";
    teardown(&set_up.connector, &set_up.source, drop).await?;
    let output = set_up.run(&["recover"]).await?;
    assert_eq!((output.code(), output.stdout.as_str()), (Some(1), ""));
    let slot = &set_up.source.slot;
    let line = format!(
        "walrelay: the replication slot `{slot}` does not exist, and recover makes it anew: say --yes"
    );
    assert!(output.stderr.starts_with(&line), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1);
    assert_eq!(set_up.text(written).await?, "setup");
    // A new slot begins with a baseline of its own.
    set_up.set_up_again().await?;
    assert_eq!(set_up.guard().await?, "");
    Ok(())
}

#[tokio::test]
async fn r17_a_server_whose_commits_would_wait_for_us_is_refused() -> Result<()> {
    let set_up = SetUp::new().await?;
    let postgres = Postgres::start(
        PostgresOptions::default()
            .setting("synchronous_standby_names", "FIRST 1 (s1, *)")
            // Or creating the database would wait already.
            .setting("synchronous_commit", "local"),
    )
    .await?;
    let url = postgres.url("postgres");
    let connector = walrelay::postgres::Connector::new(url.parse()?);
    let session = walrelay::postgres::ControlSession::open(&connector, &set_up.source.slot).await?;
    let error = preflight(&session, &set_up.source).await.unwrap_err();
    assert_eq!(error.kind(), FaultKind::SynchronousStandby);
    let unfit = matches!(
        error,
        walrelay::postgres::Error::Unfit(Unfit::SynchronousStandby { .. })
    );
    assert!(unfit, "{error}");
    Ok(())
}
