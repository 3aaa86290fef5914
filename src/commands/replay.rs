//! `walrelay replay`.

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::confirm::confirmed;
use super::progress::Progress;
use super::table::visible;
use super::{Exit, block_on, print, resolve, say, with_remedy};
use crate::cli::ReplayArgs;
use crate::config::Loaded;
use crate::fault::chain;
use crate::postgres;
use crate::relay::{self, ReplayEnd, ReplayError, ReplayEvent, ReplaySettings, SinkKind};

pub(super) fn execute(args: &ReplayArgs, loaded: &Loaded) -> anyhow::Result<Exit> {
    let settings = resolve::replay(&loaded.config, args)?;
    if args.dry_run {
        let count = block_on(relay::count(&settings))?.map_err(with_remedy)?;
        print(&format!("{} would be published again\n", rows(count)))?;
        return Ok(Exit::Clean);
    }
    let total = match block_on(relay::count(&settings))? {
        Ok(total) => Some(total),
        // Counting a large table takes longer than a statement may.
        Err(error) if error.sqlstate() == Some(postgres::SqlState::QUERY_CANCELED) => None,
        Err(error) => return Err(with_remedy(error)),
    };
    if total == Some(0) {
        anyhow::bail!("no row matches");
    }
    let by_id_alone = !(args.events.is_empty() && args.id.is_empty());
    let number = total.map_or_else(|| "an unknown number of rows".to_owned(), rows);
    let what = "replay publishes everything that the conditions take";
    let question = format!("Publish {number} again?");
    if !(args.yes || by_id_alone || confirmed(what, &question)?) {
        say("nothing was published");
        return Ok(Exit::Failed);
    }
    let sink = settings.sink.kind();
    let end = block_on(run(settings, total))?.map_err(|error| match error.downcast::<ReplayError>() {
        Ok(error) => anyhow::anyhow!("{}: {}", chain(&error), error.kind().remedy()),
        Err(error) => error,
    })?;
    report(sink, &ending(&end))?;
    let is_whole = end.counts.failed == 0 && end.unanswered == 0 && !end.is_cut;
    Ok(if is_whole { Exit::Clean } else { Exit::Failed })
}

async fn run(settings: ReplaySettings, total: Option<u64>) -> anyhow::Result<ReplayEnd> {
    let (stop, stopped) = watch::channel(false);
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let mut progress = Progress::new("rows", total);
    let mut last = relay::Replayed::default();
    let sink = settings.sink.kind();
    let tell = |event| match event {
        ReplayEvent::Failed { id, why } => {
            progress.clear();
            // Where stdout is gone, the count and the exit code still tell.
            drop(report(sink, &failure(&id, &why)));
        }
        ReplayEvent::Progress(counts) => {
            last = counts;
            progress.show(counts.confirmed + counts.failed);
        }
    };
    let replay = async {
        let mut replay = std::pin::pin!(relay::replay(settings, stopped, tell));
        loop {
            tokio::select! {
                biased;
                _ = terminate.recv() => { stop.send_replace(true); }
                _ = interrupt.recv() => { stop.send_replace(true); }
                end = &mut replay => return end,
            }
        }
    };
    let end = replay.await;
    progress.clear();
    if end.is_err() {
        let counts = format!(
            "{} confirmed, {} failed until then\n",
            last.confirmed, last.failed
        );
        report(sink, &counts)?;
    }
    Ok(end?)
}

/// Says what became of the rows, on stderr where the messages themselves go to stdout.
fn report(sink: SinkKind, text: &str) -> anyhow::Result<()> {
    match sink {
        SinkKind::RabbitMq => print(text),
        SinkKind::Stdout => {
            say(text.trim_end());
            Ok(())
        }
    }
}

fn failure(id: &str, why: &str) -> String {
    format!("failed: {}: {}\n", visible(id), visible(why))
}

fn ending(end: &ReplayEnd) -> String {
    let counts = &end.counts;
    let mut text = format!("{} confirmed, {} failed", counts.confirmed, counts.failed);
    if end.unanswered > 0 {
        text.push_str(&format!(", {} sent without an answer", end.unanswered));
    }
    if end.is_cut {
        text.push_str("; stopped before the last row");
    }
    text + "\n"
}

fn rows(count: u64) -> String {
    if count == 1 {
        "1 row".to_owned()
    } else {
        format!("{count} rows")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::Replayed;

    #[test]
    fn a_replay_ends_in_one_line() {
        let end = |confirmed, failed, unanswered, is_cut| {
            ending(&ReplayEnd {
                counts: Replayed { confirmed, failed },
                unanswered,
                is_cut,
            })
        };
        let lines = [end(1200, 0, 0, false), end(40, 2, 0, false), end(40, 0, 3, true)];
        insta::assert_snapshot!("replay_ending", lines.concat());
        assert_eq!(failure("a\nb", "no queue"), "failed: a\\nb: no queue\n");
    }
}
