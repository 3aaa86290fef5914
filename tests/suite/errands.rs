//! SQL sessions that are kept for a moment: used again, and never in the way of a shutdown (I8).

use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::sync::Mutex;
use walrelay::postgres::{ControlSession, KeptSession};
use walrelay_testbed::{Signal, eventually, eventually_some};

use crate::shutdown::{Stage, commit_batch};
use crate::source::SetUp;
use crate::world::LONG;

impl SetUp {
    fn kept(&self) -> KeptSession {
        KeptSession::new(self.connector.clone(), self.source.slot.clone())
    }
}

async fn process_id(session: &ControlSession) -> Result<i32> {
    let row = session.client().query_one("select pg_backend_pid()", &[]).await?;
    Ok(row.get(0))
}

async fn wait_for_end(set_up: &SetUp, process_id: i32) -> Result<()> {
    let sql = "select from pg_stat_activity where pid = $1";
    eventually("the session's end", Duration::from_secs(5), || async {
        let found = set_up.client.query_opt(sql, &[&process_id]).await;
        found.is_ok_and(|row| row.is_none())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_kept_session_is_used_again_and_ends_after_a_moment_without_use() -> Result<()> {
    let set_up = SetUp::new().await?;
    let mut kept = set_up.kept();
    let session = kept.take().await?;
    let first = process_id(&session).await?;
    kept.keep(session);
    let session = kept.take().await?;
    assert_eq!(process_id(&session).await?, first);
    kept.keep(session);
    wait_for_end(&set_up, first).await?;
    let session = kept.take().await?;
    let second = process_id(&session).await?;
    assert_ne!(second, first);
    kept.keep(session);
    kept.close().await;
    wait_for_end(&set_up, second).await?;
    Ok(())
}

#[tokio::test]
async fn a_kept_session_that_is_dropped_ends() -> Result<()> {
    let set_up = SetUp::new().await?;
    let mut kept = set_up.kept();
    let session = kept.take().await?;
    let process_id = process_id(&session).await?;
    kept.keep(session);
    drop(kept);
    wait_for_end(&set_up, process_id).await
}

#[tokio::test]
async fn a_session_in_use_all_the_time_is_replaced_before_it_is_thirty_seconds_old() -> Result<()> {
    let set_up = SetUp::new().await?;
    let kept = Mutex::new(set_up.kept());
    let began = Instant::now();
    let use_again = async || {
        let mut kept = kept.lock().await;
        let session = kept.take().await?;
        let age = began.elapsed();
        let process_id = process_id(&session).await?;
        kept.keep(session);
        anyhow::Ok((process_id, age))
    };
    let (first, _) = use_again().await?;
    let age = eventually_some("another session", LONG, || async {
        match use_again().await {
            Ok((process_id, _)) if process_id == first => None,
            other => Some(other.map(|(_, age)| age)),
        }
    })
    .await??;
    assert!(age < Duration::from_secs(25), "used until it was {age:?} old");
    wait_for_end(&set_up, first).await
}

#[tokio::test]
async fn a_smart_shutdown_waits_no_longer_for_a_session_that_has_just_been_used() -> Result<()> {
    let mut stage = Stage::new().await?;
    let relay = stage
        .relay()
        .text("delivery.on_invalid", "dead_letter")
        .start()
        .await?;
    commit_batch(&stage.database.client().await?, 10, "").await?;
    eventually("dead letters", LONG, || async {
        let metrics = relay.metrics().await;
        metrics.is_ok_and(|metrics| metrics.sum("walrelay_dead_lettered_total", &[]) == 10.0)
    })
    .await?;
    stage.stop(Signal::Terminate, &relay).await?;
    Ok(())
}
