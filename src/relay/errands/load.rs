//! Loading dead letters that are to be delivered again.

use walrelay_engine::flow::{RetryToken, StoredEvent};
use walrelay_engine::key::{EventKey, TransactionKey};

use super::LoadedRetry;
use crate::postgres::dead_letters::{self, Found, State, Summary};
use crate::postgres::{ControlSession, Error, EventPosition, Outbox, QualifiedTable, SlotName, timestamp};

/// The events of dead letters that are being retried: not every message says the truth (R16).
pub(super) async fn load_retries(
    session: &ControlSession,
    slot: &SlotName,
    configured: &[Outbox],
    requests: Vec<(RetryToken, EventPosition)>,
    bytes: usize,
    process_id: i32,
) -> Result<Vec<(RetryToken, LoadedRetry)>, Error> {
    let positions: Vec<_> = requests.iter().map(|(_, position)| *position).collect();
    let found = dead_letters::load(session, slot, &positions, bytes, process_id).await?;
    let mut outboxes: Vec<Outbox> = Vec::new();
    let mut loaded = Vec::with_capacity(requests.len());
    for ((token, position), found) in requests.into_iter().zip(found) {
        let (summary, columns) = match found {
            Found::DeadLetter(letter) if letter.summary.state == State::Retrying => {
                (letter.summary, Some(letter.columns.0))
            }
            Found::Unreadable(summary) if summary.state == State::Retrying => (*summary, None),
            Found::DeadLetter(_) | Found::Unreadable(_) | Found::Nothing => {
                loaded.push((token, LoadedRetry::NotRetrying(position)));
                continue;
            }
            Found::Later => break,
        };
        let event = stored_event(summary, columns);
        let table = QualifiedTable {
            schema: event.schema.clone(),
            name: event.table.clone(),
        };
        if !outboxes.iter().any(|outbox| outbox.table == table) {
            let outbox = configured.iter().find(|outbox| outbox.table == table);
            outboxes.push(outbox.cloned().unwrap_or_else(|| table.into()));
        }
        loaded.push((token, LoadedRetry::Event(Box::new(event))));
    }
    if outboxes.is_empty() {
        return Ok(loaded);
    }
    let types = dead_letters::payload_types(session, &outboxes).await?;
    for (_, retry) in &mut loaded {
        if let LoadedRetry::Event(event) = retry {
            let mut known = outboxes.iter().zip(&types);
            event.payload_type = known
                .find(|(outbox, _)| {
                    (&outbox.table.schema, &outbox.table.name) == (&event.schema, &event.table)
                })
                .and_then(|(_, payload_type)| *payload_type);
        }
    }
    Ok(loaded)
}

/// The event of a dead letter, its payload's type still to be looked up.
fn stored_event(summary: Summary, columns: Option<Vec<(String, Option<String>)>>) -> StoredEvent {
    // Printed by us, so it parses; if not, there is no such table.
    let outbox = summary.outbox.parse().unwrap_or(QualifiedTable {
        schema: String::new(),
        name: summary.outbox,
    });
    StoredEvent {
        key: EventKey {
            transaction: TransactionKey {
                commit_lsn: summary.position.commit_lsn,
                xid: summary.xid,
                commit_time: timestamp(summary.commit_time),
            },
            tx_seq: summary.position.tx_seq,
        },
        event_id: summary.event_id,
        payload_type: None,
        schema: outbox.schema,
        table: outbox.name,
        columns,
    }
}
