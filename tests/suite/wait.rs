//! `walrelay wait` (rule 24).

use anyhow::Result;
use walrelay::postgres::{Connector, ControlSession, commit_marker};
use walrelay_engine::Lsn;
use walrelay_testbed::{Postgres, PostgresOptions, StopMode, eventually_some};

use crate::source::SetUp;
use crate::world::{LONG, World};

#[tokio::test]
async fn r24_the_position_lies_behind_asynchronous_commits() -> Result<()> {
    // A WAL writer that is late, so that an asynchronous commit stays unflushed.
    let postgres = Postgres::start(
        PostgresOptions::default()
            .setting("wal_writer_delay", "10s")
            .setting("wal_writer_flush_after", "1GB"),
    )
    .await?;
    let client = postgres.client("postgres").await?;
    client
        .batch_execute("create table t (n int); set synchronous_commit = off")
        .await?;
    let connector = Connector::new(postgres.url("postgres").parse()?);
    let session = ControlSession::open(&connector, &"any".parse()?).await?;
    // The log writer may happen to flush in between: what is shown is shown by one try.
    let mut beyond = false;
    for _ in 0..20 {
        let row = client
            .query_one(
                "with written as (insert into t values (1) returning 1) select count(*) from written",
                &[],
            )
            .await?;
        assert_eq!(row.get::<_, i64>(0), 1);
        let row = client
            .query_one(
                "select pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text",
                &[],
            )
            .await?;
        let committed: Lsn = row.get::<_, &str>(0).parse()?;
        let flushed: Lsn = row.get::<_, &str>(1).parse()?;
        beyond |= flushed < committed;
        let marker = commit_marker(&session).await?;
        assert!(marker >= committed, "{marker} < {committed}");
    }
    assert!(beyond, "no commit was ever beyond the flushed position");
    Ok(())
}

#[tokio::test]
async fn wait_says_how_far_it_came_when_time_is_up() -> Result<()> {
    let set_up = SetUp::new().await?;
    let slot = &set_up.source.slot;
    let output = set_up.run(&["wait", "--current", "--timeout", "300ms"]).await?;
    assert_eq!((output.code(), output.stdout.as_str()), (Some(1), ""));
    let start = format!("walrelay: not settled within 300ms: slot {slot} has confirmed ");
    assert!(output.stderr.starts_with(&start), "{}", output.stderr);
    assert!(
        output.stderr.ends_with("; no relay streams from it\n"),
        "{}",
        output.stderr
    );
    // What has been confirmed already is not waited for.
    let output = set_up.run(&["wait", "--lsn", "0/1"]).await?;
    assert_eq!(
        (output.code(), output.stdout.as_str()),
        (Some(0), "settled up to 0/1\n")
    );
    Ok(())
}

#[tokio::test]
async fn wait_refuses_a_position_that_the_log_has_not_reached() -> Result<()> {
    let set_up = SetUp::new().await?;
    // It would wait for an hour.
    let output = set_up
        .run(&["wait", "--lsn", "FFFF/0", "--timeout", "1h"])
        .await?;
    assert_eq!((output.code(), output.stdout.as_str()), (Some(1), ""));
    let start = "walrelay: the server's log ends at ";
    assert!(output.stderr.starts_with(start), "{}", output.stderr);
    assert!(output.stderr.contains(", before FFFF/0: "), "{}", output.stderr);
    Ok(())
}

#[tokio::test]
async fn wait_ends_at_once_where_there_is_no_slot() -> Result<()> {
    let set_up = SetUp::new().await?;
    set_up.database.drop_slots().await?;
    let output = set_up.run(&["wait", "--current"]).await?;
    let slot = &set_up.source.slot;
    assert_eq!(output.code(), Some(1));
    assert!(
        output.stderr.starts_with(&format!(
            "walrelay: the replication slot `{slot}` does not exist: "
        )),
        "{}",
        output.stderr
    );
    Ok(())
}

#[tokio::test]
async fn r24_wait_returns_once_everything_committed_before_is_settled() -> Result<()> {
    let world = World::new().await?;
    let relay = world.running().await?;
    let recorder = world.recorder().await?;
    world.client.batch_execute("set synchronous_commit = off").await?;
    let committed = world.commit_events(20).await?;
    let output = relay
        .run_command(&["wait", "--current", "--timeout", "60s"])
        .await?;
    assert_eq!(output.code(), Some(0), "{}", output.stderr);
    recorder.wait_for_distinct(committed.len(), LONG).await?;
    let confirmed: String = world
        .client
        .query_one(
            "select confirmed_flush_lsn::text from pg_replication_slots where database = current_database()",
            &[],
        )
        .await?
        .get(0);
    let reached: Lsn = output
        .stdout
        .trim()
        .trim_start_matches("settled up to ")
        .parse()?;
    assert!(confirmed.parse::<Lsn>()? >= reached);
    Ok(())
}

#[tokio::test]
async fn wait_holds_up_no_restart_of_the_server_and_outlives_it() -> Result<()> {
    let mut postgres = Postgres::start(PostgresOptions::default()).await?;
    let set_up = SetUp::on(postgres.database().await?).await?;
    let watched = "select from pg_stat_activity where application_name like 'walrelay % control' and state = 'idle' \
                   and query like '%walrelay.backfill%'";
    let client = postgres.client("postgres").await?;
    let restart = async {
        eventually_some("the wait to look", LONG, async || {
            let rows = client.query(watched, &[]).await.ok()?;
            (!rows.is_empty()).then_some(())
        })
        .await?;
        postgres.restart(StopMode::Fast).await
    };
    let arguments = ["wait", "--current", "--timeout", "5s"];
    let (output, restarted) = tokio::join!(set_up.run(&arguments), restart);
    restarted?;
    let stderr = output?.stderr;
    assert!(
        stderr.contains("not settled within 5s: ") && stderr.ends_with("; no relay streams from it\n"),
        "{stderr}"
    );
    Ok(())
}
