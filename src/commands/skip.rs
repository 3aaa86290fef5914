//! `walrelay skip`.

use std::net::SocketAddr;
use std::time::Duration;

use super::table::{render, visible};
use super::{Exit, block_on, in_session, print, resolve, say, with_remedy};
use crate::admin::client::ask;
use crate::cli::SkipArgs;
use crate::config::Loaded;
use crate::postgres::skips::{self, OpenSkip, Selector};
use crate::postgres::slot::check_known;
use crate::postgres::{Connector, SlotName};

/// How long the relay may take to say what it holds.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) fn execute(args: &SkipArgs, loaded: &Loaded) -> anyhow::Result<Exit> {
    let (connector, source) = resolve::database(&loaded.config)?;
    let slot = &source.slot;
    if let Some(id) = args.withdraw {
        withdraw(id, &connector, slot)?;
    } else if let (Some(event), Some(reason)) = (&args.event, &args.reason) {
        request(event, reason, loaded.config.admin.listen, &connector, slot)?;
    } else {
        list(&connector, slot)?;
    }
    Ok(Exit::Clean)
}

fn request(
    event: &Selector,
    reason: &str,
    listen: SocketAddr,
    connector: &Connector,
    slot: &SlotName,
) -> anyhow::Result<()> {
    // Before: it may be settled right after.
    let held = is_held(event, listen, slot);
    let requested = block_on(in_session(connector, slot, async |session| {
        check_known(session, slot).await?;
        skips::request(session, slot, event, reason).await
    }))?
    .map_err(with_remedy)?;
    let (id, event) = (requested.id, visible(&event.to_string()));
    let recorded = match requested.is_new {
        true => "recorded",
        false => "recorded anew",
    };
    match held {
        Some(true) => print(&format!(
            "{recorded} as skip {id}: event {event} of slot {slot} is held now; the relay settles it\n"
        )),
        Some(false) => {
            print(&format!("{recorded} as skip {id} of slot {slot}\n"))?;
            say(&format!(
                "warning: no such event is held now; the request stays and takes the next event {event} that is \
                 (`walrelay skip --withdraw {id}` takes it back)"
            ));
            Ok(())
        }
        None => {
            print(&format!("{recorded} as skip {id} of slot {slot}\n"))?;
            say(&format!(
                "no relay of this slot answers at {listen} (admin.listen), so it is not known whether event {event} is \
                 held; it is skipped when it is (`walrelay skip --withdraw {id}` takes that back)"
            ));
            Ok(())
        }
    }
}

/// Whether the slot's running relay holds the event; unknown where none answers.
fn is_held(event: &Selector, listen: SocketAddr, slot: &SlotName) -> Option<bool> {
    let answer = ask(listen, "/readyz", None, PATIENCE).ok()?;
    let readiness: serde_json::Value = serde_json::from_str(&answer.body).ok()?;
    if readiness["slot"] != slot.as_str() || readiness["role"] != "active" {
        return None;
    }
    let (name, value) = match event {
        Selector::EventId(id) => ("event_id", id.clone()),
        Selector::Position(position) => ("key", position.to_string()),
    };
    Some(readiness["delivery"][name] == value)
}

fn list(connector: &Connector, slot: &SlotName) -> anyhow::Result<()> {
    let open = block_on(in_session(connector, slot, async |session| {
        skips::open(session, slot).await
    }))?
    .map_err(with_remedy)?;
    if open.is_empty() {
        return print(&format!("no skip of slot {slot} waits for its event\n"));
    }
    print(&table(&open))
}

fn table(open: &[OpenSkip]) -> String {
    let rows: Vec<_> = open
        .iter()
        .map(|skip| {
            [
                skip.id.to_string(),
                skip.selector.to_string(),
                humantime::format_rfc3339_seconds(skip.requested_at).to_string(),
                skip.requested_by.clone(),
                skip.reason.clone(),
            ]
        })
        .collect();
    render(["SKIP", "EVENT", "REQUESTED", "BY", "REASON"], &rows)
}

fn withdraw(id: i64, connector: &Connector, slot: &SlotName) -> anyhow::Result<()> {
    let event = block_on(in_session(connector, slot, async |session| {
        skips::withdraw(session, slot, id).await
    }))?
    .map_err(with_remedy)?;
    let Some(event) = event else {
        anyhow::bail!("no skip {id} of slot {slot} waits for its event: see `walrelay skip --list`");
    };
    print(&format!("withdrawn: skip {id} of event {}\n", visible(&event)))
}
