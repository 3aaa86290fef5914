//! `walrelay purge`.

use std::time::{Duration, Instant};

use super::confirm::confirmed;
use super::progress::Progress;
use super::{Exit, block_on, in_session, print, resolve, say, with_remedy};
use crate::cli::PurgeArgs;
use crate::config::Loaded;
use crate::postgres::{Connector, Error, Outbox, Purge, SlotName, SqlState, partitions};

/// How long a session is used, before it is closed and another one opened: a long one would hold up a shutdown.
const SESSION_LIFE: Duration = Duration::from_secs(5);

/// The database gets a rest between two sessions.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) fn execute(args: &PurgeArgs, loaded: &Loaded) -> anyhow::Result<Exit> {
    let (connector, source) = resolve::database(&loaded.config)?;
    let tables = resolve::selected(&source, args.table.as_ref(), "purge")?;
    for outbox in &tables {
        let job = Job {
            connector: &connector,
            slot: &source.slot,
            outbox,
            args,
        };
        if args.partitions {
            job.print_partitions()?;
        } else if args.dry_run {
            job.count()?;
        } else if job.delete()? == Exit::Failed {
            return Ok(Exit::Failed);
        }
    }
    Ok(Exit::Clean)
}

struct Job<'a> {
    connector: &'a Connector,
    slot: &'a SlotName,
    outbox: &'a Outbox,
    args: &'a PurgeArgs,
}

impl Job<'_> {
    fn print_partitions(&self) -> anyhow::Result<()> {
        let Self { outbox, args, .. } = self;
        let table = &outbox.table;
        let found = block_on(in_session(self.connector, self.slot, async |session| {
            partitions::find(session, outbox, args.older_than).await
        }))?
        .map_err(with_remedy)?;
        for partition in &found.kept {
            say(&format!("{partition} stays: it holds a row that must not go"));
        }
        if found.old.is_empty() {
            say(&format!("{table} has no partition that may go"));
        }
        for old in &found.old {
            print(&format!("{old}\n"))?;
        }
        Ok(())
    }

    fn count(&self) -> anyhow::Result<()> {
        let (count, table) = (
            block_on(self.old_rows())?.map_err(with_remedy)?,
            &self.outbox.table,
        );
        print(&format!("{count} rows of {table} would be deleted\n"))
    }

    fn delete(&self) -> anyhow::Result<Exit> {
        let table = &self.outbox.table;
        let total = match block_on(self.old_rows())? {
            Ok(total) => Some(total),
            // Counting a large table takes longer than a statement may.
            Err(error) if error.sqlstate() == Some(SqlState::QUERY_CANCELED) => None,
            Err(error) => return Err(with_remedy(error)),
        };
        let number = total.map_or_else(|| "an unknown number of".to_owned(), |total| total.to_string());
        let age = humantime::format_duration(self.args.older_than);
        let what = format!("purge deletes {number} rows of {table} for good");
        let question = format!("Delete {number} rows of {table} that were sent longer than {age} ago?");
        if !(self.args.yes || total == Some(0) || confirmed(&what, &question)?) {
            say(&format!("nothing of {table} was deleted"));
            return Ok(Exit::Failed);
        }
        let mut progress = Progress::new("rows", total);
        let mut deleted = 0;
        let result = block_on(async {
            let mut purge = None;
            while !self.some_batches(&mut purge, &mut deleted, &mut progress).await? {
                tokio::time::sleep(PAUSE).await;
            }
            Ok(())
        })?;
        progress.clear();
        if result.is_err() {
            say(&format!("{deleted} rows of {table} were deleted until then"));
        }
        result.map_err(with_remedy)?;
        print(&format!("deleted {deleted} rows of {table}\n"))?;
        Ok(Exit::Clean)
    }

    async fn old_rows(&self) -> Result<u64, Error> {
        in_session(self.connector, self.slot, async |session| {
            let purge = Purge::prepare(session, self.outbox, self.args.older_than).await?;
            purge.count(session).await
        })
        .await
    }

    /// Deletes some batches in one session. Returns whether it was the last.
    async fn some_batches(
        &self,
        purge: &mut Option<Purge>,
        deleted: &mut u64,
        progress: &mut Progress,
    ) -> Result<bool, Error> {
        in_session(self.connector, self.slot, async |session| {
            let purge = match purge {
                Some(purge) => purge,
                None => purge.insert(Purge::prepare(session, self.outbox, self.args.older_than).await?),
            };
            let opened = Instant::now();
            while opened.elapsed() < SESSION_LIFE {
                let purged = purge.next(session, self.args.batch).await?;
                *deleted += purged.rows;
                progress.show(*deleted);
                if purged.is_over {
                    return Ok(true);
                }
            }
            Ok(false)
        })
        .await
    }
}
