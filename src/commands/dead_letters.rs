//! `walrelay dead-letters list`, `show`, `retry` and `discard`.

use std::time::SystemTime;

use serde::Serialize;

use super::confirm::confirmed;
use super::table::{render, visible};
use super::{Exit, block_on, in_session, print, resolve, say, with_remedy};
use crate::cli::{
    ChosenArgs, DeadLettersCommand, DeadLettersDiscardArgs, DeadLettersListArgs, DeadLettersRetryArgs,
    DeadLettersShowArgs, FilterArgs,
};
use crate::config::Loaded;
use crate::postgres::dead_letters::{self, Columns, DeadLetter, Filter, State, Summary};
use crate::postgres::skips::Selector;
use crate::postgres::{self, Connector, ControlSession, SlotName, Source};

/// Ids repeat, but not so often that more could be looked at.
const SHOWN: u32 = 20;

pub(super) fn execute(command: &DeadLettersCommand, loaded: &Loaded) -> anyhow::Result<Exit> {
    let (connector, source) = resolve::database(&loaded.config)?;
    match command {
        DeadLettersCommand::List(args) => list(args, &connector, &source),
        DeadLettersCommand::Show(args) => show(args, &connector, &source),
        DeadLettersCommand::Retry(args) => retry(args, &connector, &source),
        DeadLettersCommand::Discard(args) => discard(args, &connector, &source),
    }
}

fn list(args: &DeadLettersListArgs, connector: &Connector, source: &Source) -> anyhow::Result<Exit> {
    let slot = &source.slot;
    let mut filter = filter(&args.filter, None, source);
    filter.states = match args.state {
        Some(state) => vec![state],
        None => vec![State::Pending, State::Retrying],
    };
    let (summaries, total) = block_on(in_session(connector, slot, async |session| {
        let found = dead_letters::list(session, slot, &filter, args.limit).await?;
        check_found(session, slot, found.1 == 0).await?;
        Ok(found)
    }))?
    .map_err(with_remedy)?;
    if args.json {
        let shown: Vec<_> = summaries.iter().map(|summary| Json::new(summary, None)).collect();
        print(&(serde_json::to_string_pretty(&shown)? + "\n"))?;
    } else if summaries.is_empty() {
        print(&format!("no dead letters in slot {slot}\n"))?;
    } else {
        print(&table(&summaries))?;
    }
    let shown = u64::try_from(summaries.len()).unwrap_or(u64::MAX);
    if shown < total {
        say(&format!("the oldest {shown} of {total}; --limit shows more"));
    }
    Ok(Exit::Clean)
}

fn show(args: &DeadLettersShowArgs, connector: &Connector, source: &Source) -> anyhow::Result<Exit> {
    let slot = &source.slot;
    let filter = filter(&FilterArgs::default(), Some(&args.event), source);
    let found = block_on(in_session(connector, slot, async |session| {
        let found = dead_letters::show(session, slot, &filter, SHOWN).await?;
        check_found(session, slot, found.is_empty()).await?;
        Ok(found)
    }))?
    .map_err(with_remedy)?;
    anyhow::ensure!(
        !found.is_empty(),
        "slot {slot} has no dead letter {}: see `walrelay dead-letters list`",
        visible(&args.event.to_string())
    );
    let text = if args.json {
        let shown: Vec<_> = found
            .iter()
            .map(|found| Json::new(&found.summary, Some(&found.columns)))
            .collect();
        serde_json::to_string_pretty(&shown)? + "\n"
    } else {
        let shown: Vec<_> = found.iter().map(details).collect::<Result<_, _>>()?;
        shown.join("\n")
    };
    print(&text)?;
    Ok(Exit::Clean)
}

fn retry(args: &DeadLettersRetryArgs, connector: &Connector, source: &Source) -> anyhow::Result<Exit> {
    let slot = &source.slot;
    let what = "retry delivers everything that the filter takes";
    let Some(filter) = agreed(&args.chosen, connector, source, what, |letters| {
        format!("Deliver {letters} of slot {slot} again?")
    })?
    else {
        return Ok(Exit::Failed);
    };
    let keys = block_on(in_session(connector, slot, async |session| {
        let keys = dead_letters::request_retry(session, slot, &filter).await?;
        check_found(session, slot, keys.is_empty()).await?;
        Ok(keys)
    }))?
    .map_err(with_remedy)?;
    if keys.is_empty() {
        return nothing_matches(slot, &filter);
    }
    print(&format!(
        "asked for {} of slot {slot}; each stays listed as retrying until the broker has confirmed it\n",
        counted(keys.len(), "retry", "retries")
    ))?;
    Ok(Exit::Clean)
}

fn discard(args: &DeadLettersDiscardArgs, connector: &Connector, source: &Source) -> anyhow::Result<Exit> {
    let slot = &source.slot;
    let what = "discard gives up everything that the filter takes";
    let Some(filter) = agreed(&args.chosen, connector, source, what, |letters| {
        format!("Discard {letters} of slot {slot}? What is discarded is not delivered.")
    })?
    else {
        return Ok(Exit::Failed);
    };
    let count = block_on(in_session(connector, slot, async |session| {
        let count = dead_letters::discard(session, slot, &filter, &args.reason).await?;
        check_found(session, slot, count == 0).await?;
        Ok(count)
    }))?
    .map_err(with_remedy)?;
    if count == 0 {
        return nothing_matches(slot, &filter);
    }
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    print(&format!(
        "discarded {} of slot {slot}\n",
        counted(count, "dead letter", "dead letters")
    ))?;
    Ok(Exit::Clean)
}

/// Where nothing is found, the slot's name may be wrong.
async fn check_found(
    session: &ControlSession,
    slot: &SlotName,
    is_nothing: bool,
) -> Result<(), postgres::Error> {
    match is_nothing {
        true => postgres::slot::check_known(session, slot).await,
        false => Ok(()),
    }
}

/// The filter, unless the person who was asked said no. Nobody is asked about none.
fn agreed(
    args: &ChosenArgs,
    connector: &Connector,
    source: &Source,
    what: &str,
    question: impl FnOnce(&str) -> String,
) -> anyhow::Result<Option<Filter>> {
    let filter = filter(&args.filter, args.event.as_ref(), source);
    if args.yes || is_exact(&filter) {
        return Ok(Some(filter));
    }
    let pending = pending(&filter, connector, &source.slot)?;
    let letters = counted(pending, "dead letter", "dead letters");
    if pending == 0 || confirmed(what, &question(&letters))? {
        return Ok(Some(filter));
    }
    say("nothing was changed");
    Ok(None)
}

/// How many pending ones the filter takes.
fn pending(filter: &Filter, connector: &Connector, slot: &SlotName) -> anyhow::Result<usize> {
    let filter = Filter {
        states: vec![State::Pending],
        ..filter.clone()
    };
    let (_, total) = block_on(in_session(connector, slot, async |session| {
        dead_letters::list(session, slot, &filter, 0).await
    }))?
    .map_err(with_remedy)?;
    Ok(usize::try_from(total).unwrap_or(usize::MAX))
}

/// Whoever names one expects it to be there; of many it may well be that none is left.
fn nothing_matches(slot: &SlotName, filter: &Filter) -> anyhow::Result<Exit> {
    anyhow::ensure!(
        !is_exact(filter),
        "no pending dead letter of slot {slot} matches: see `walrelay dead-letters list`"
    );
    print(&format!("no pending dead letter of slot {slot} matches\n"))?;
    Ok(Exit::Clean)
}

fn filter(args: &FilterArgs, event: Option<&Selector>, source: &Source) -> Filter {
    let (event_id, position) = match event {
        Some(Selector::EventId(id)) => (Some(id.clone()), None),
        Some(Selector::Position(position)) => (None, Some(*position)),
        None => (args.id.clone(), args.key),
    };
    Filter {
        states: Vec::new(),
        reason: args.failure,
        event_type: args.event_type.clone(),
        outboxes: source.outboxes.clone(),
        since: args.since,
        event_id,
        position,
    }
}

/// Whether the filter names one event, so that nobody need be asked.
fn is_exact(filter: &Filter) -> bool {
    filter.event_id.is_some() || filter.position.is_some()
}

fn counted(count: usize, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

fn table(summaries: &[Summary]) -> String {
    let cell = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let rows: Vec<_> = summaries
        .iter()
        .map(|summary| {
            [
                summary.position.to_string(),
                summary.state.to_string(),
                summary.reason.to_string(),
                summary.attempts.to_string(),
                time(summary.last_failed_at),
                cell(&summary.event_type),
                cell(&summary.event_id),
                cell(&summary.routing_key),
            ]
        })
        .collect();
    let headings = [
        "KEY",
        "STATE",
        "REASON",
        "ATTEMPTS",
        "LAST FAILED",
        "EVENT TYPE",
        "EVENT ID",
        "ROUTING KEY",
    ];
    render(headings, &rows)
}

/// Everything about one dead letter, a line each; the columns as JSON, which escapes what a terminal would obey.
fn details(dead_letter: &DeadLetter) -> anyhow::Result<String> {
    let summary = &dead_letter.summary;
    let mut lines = vec![
        ("key", summary.position.to_string()),
        ("state", summary.state.to_string()),
        ("reason", summary.reason.to_string()),
        ("detail", summary.detail.clone()),
        ("attempts", summary.attempts.to_string()),
        ("first failed", time(summary.first_failed_at)),
        ("last failed", time(summary.last_failed_at)),
        ("outbox", summary.outbox.clone()),
        (
            "transaction",
            format!("{} at {}", summary.xid, time(summary.commit_time)),
        ),
    ];
    let optional = [
        ("event id", &summary.event_id),
        ("exchange", &summary.exchange),
        ("routing key", &summary.routing_key),
    ];
    lines.extend(
        optional
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.clone()?))),
    );
    if let Some(discard) = &summary.discard {
        lines.push((
            "discarded",
            format!("{} by {}: {}", time(discard.at), discard.by, discard.reason),
        ));
    }
    let mut text: String = lines
        .iter()
        .map(|(name, value)| format!("{name:13} {}\n", visible(value)))
        .collect();
    text.push_str(&format!(
        "columns       {}\n",
        serde_json::to_string_pretty(&dead_letter.columns)?
    ));
    Ok(text)
}

fn time(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

/// A dead letter as `--json` prints it. Positions and times are texts, times in RFC 3339.
#[derive(Serialize)]
struct Json<'a> {
    key: String,
    state: &'static str,
    reason: &'static str,
    detail: &'a str,
    attempts: u32,
    first_failed_at: String,
    last_failed_at: String,
    outbox: &'a str,
    xid: u32,
    commit_time: String,
    event_id: Option<&'a str>,
    event_type: Option<&'a str>,
    exchange: Option<&'a str>,
    routing_key: Option<&'a str>,
    discard: Option<DiscardJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    columns: Option<&'a Columns>,
}

#[derive(Serialize)]
struct DiscardJson<'a> {
    reason: &'a str,
    at: String,
    by: &'a str,
}

impl<'a> Json<'a> {
    fn new(summary: &'a Summary, columns: Option<&'a Columns>) -> Self {
        Self {
            key: summary.position.to_string(),
            state: summary.state.as_str(),
            reason: summary.reason.as_str(),
            detail: &summary.detail,
            attempts: summary.attempts,
            first_failed_at: time(summary.first_failed_at),
            last_failed_at: time(summary.last_failed_at),
            outbox: &summary.outbox,
            xid: summary.xid,
            commit_time: humantime::format_rfc3339_micros(summary.commit_time).to_string(),
            event_id: summary.event_id.as_deref(),
            event_type: summary.event_type.as_deref(),
            exchange: summary.exchange.as_deref(),
            routing_key: summary.routing_key.as_deref(),
            discard: summary.discard.as_ref().map(|discard| DiscardJson {
                reason: &discard.reason,
                at: time(discard.at),
                by: &discard.by,
            }),
            columns,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::postgres::dead_letters::{Discard, Reason};

    fn dead_letter() -> DeadLetter {
        let at = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds);
        DeadLetter {
            summary: Summary {
                position: "16/B374D848:0".parse().unwrap(),
                outbox: "public.outbox_events".to_owned(),
                xid: 742,
                commit_time: at(0) + Duration::from_micros(1),
                event_id: Some("7b7f5c1e".to_owned()),
                event_type: Some("OrderCreated".to_owned()),
                reason: Reason::Unroutable,
                detail: "no queue\nfor it".to_owned(),
                exchange: Some("outbox".to_owned()),
                routing_key: Some("order.OrderCreated".to_owned()),
                first_failed_at: at(1),
                last_failed_at: at(2),
                attempts: 3,
                state: State::Discarded,
                discard: Some(Discard {
                    reason: "a test".to_owned(),
                    at: at(3),
                    by: "postgres".to_owned(),
                }),
            },
            columns: Columns(vec![
                ("id".to_owned(), Some("7b7f5c1e".to_owned())),
                ("headers".to_owned(), None),
            ]),
        }
    }

    #[test]
    fn dead_letters_are_printed_as_reviewed() {
        let shown = dead_letter();
        let mut bare = shown.summary.clone();
        (bare.event_id, bare.event_type, bare.routing_key) = (None, None, None);
        insta::assert_snapshot!("dead_letters_list", table(&[shown.summary.clone(), bare]));
        insta::assert_snapshot!("dead_letters_show", details(&shown).unwrap());
        let json = serde_json::to_string_pretty(&Json::new(&shown.summary, Some(&shown.columns))).unwrap();
        insta::assert_snapshot!("dead_letters_json", json);
    }

    #[test]
    fn a_list_in_json_has_no_columns() {
        let json = serde_json::to_string(&Json::new(&dead_letter().summary, None)).unwrap();
        assert!(!json.contains("columns"), "{json}");
    }
}
