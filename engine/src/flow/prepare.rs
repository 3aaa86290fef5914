//! From a row to an encoded message, as far as the window has room.

use std::hash::BuildHasher as _;

use super::intake::Outbox;
use super::{FlowConfig, Scratch};
use crate::amqp::{HeaderParts, Message, MessageParts, Origin};
use crate::event::{InvalidRow, Mapping};
use crate::key::EventKey;
use crate::marks::TableNo;
use crate::order::AggregateHash;
use crate::pgoutput::Tuple;
use crate::policy::Policy;
use crate::row::Row;
use crate::timestamp::PgTimestamp;
use crate::window::{Failure, Window};

/// A row that the window has room for.
pub(super) struct Prepared {
    pub(super) table: TableNo,
    pub(super) message: Option<Message>,
    pub(super) row: Option<Row>,
    /// Why there is no message.
    pub(super) failure: Option<Failure>,
    pub(super) aggregate: AggregateHash,
    /// How many of its headers were left out since the relay has such.
    pub(super) overridden: u64,
    /// The policy of the rule that it met, where that has one.
    pub(super) on_unroutable: Option<Policy>,
}

/// Encodes a row, where the window has room for it.
///
/// # Errors
/// The bytes for which there is no room: it is of no use to try again before there is.
pub(super) fn prepare(
    config: &FlowConfig,
    window: &mut Window,
    scratch: &mut Scratch,
    outbox: &Outbox,
    row: &Tuple<'_>,
    key: EventKey,
) -> Result<Prepared, usize> {
    #[cfg(test)]
    {
        scratch.prepared += 1;
    }
    let Outbox {
        table,
        mapping,
        names,
    } = outbox;
    let mut buffer = window.spare_buffer();
    let encoded = encode(mapping, row, key.into(), &config.app_id, scratch, &mut buffer);
    let kept = match config.keep_rows {
        true => Some(Row::keep(names, row, window.spare_buffer())),
        false => None,
    };
    let size = encoded.as_ref().map_or(0, Message::len) + kept.as_ref().map_or(0, Row::len);
    if !window.has_room(size) {
        window.recycle(encoded.map_or(buffer, Message::into_buffer));
        window.recycle(kept.map_or_else(Vec::new, Row::into_buffer));
        return Err(size);
    }
    let (message, failure) = match encoded {
        Ok(message) => (Some(message), None),
        Err(reason) => {
            window.recycle(buffer);
            let id = mapping.id(row).map(str::to_owned);
            (None, Some(Failure::Invalid { id, reason }))
        }
    };
    let on_unroutable = message.as_ref().and(scratch.destination.on_unroutable);
    // An invalid row is ordered as well: what comes after it is not sent before it is settled.
    let aggregate = scratch
        .aggregates
        .as_ref()
        .map_or(0, |hasher| hasher.hash_one(mapping.aggregate(row)));
    Ok(Prepared {
        table: *table,
        message,
        row: kept,
        failure,
        aggregate,
        overridden: scratch.overridden,
        on_unroutable,
    })
}

/// What a message says of its event beyond the row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stamp {
    /// When it happened.
    pub(super) time: PgTimestamp,
    pub(super) origin: Origin,
}

impl From<EventKey> for Stamp {
    fn from(key: EventKey) -> Self {
        Self {
            time: key.transaction.commit_time,
            origin: Origin::Stream {
                commit_lsn: key.transaction.commit_lsn,
                tx_seq: key.tx_seq,
                backfill: key.transaction.is_backfill(),
            },
        }
    }
}

/// Encodes a row as a message into `buffer`.
pub(super) fn encode(
    mapping: &Mapping,
    row: &Tuple<'_>,
    stamp: Stamp,
    app_id: &str,
    scratch: &mut Scratch,
    buffer: &mut Vec<u8>,
) -> Result<Message, InvalidRow> {
    scratch.overridden = 0;
    let event = mapping.read(row)?;
    mapping.route(row, &mut scratch.destination)?;
    let trace = mapping.trace(row);
    let content = mapping.content(row, &event, trace, stamp.time, &mut scratch.content)?;
    scratch.overridden = content.overridden;
    let parts = MessageParts {
        exchange: &scratch.destination.exchange,
        routing_key: &scratch.destination.routing_key,
        mandatory: true,
        persistent: true,
        message_id: event.id,
        message_type: event.event_type,
        content_type: content.content_type,
        correlation_id: content.correlation_id,
        expiration: content.expiration,
        priority: content.priority,
        timestamp: stamp.time.unix_seconds(),
        app_id,
        headers: HeaderParts {
            aggregate_type: event.aggregate_type,
            aggregate_id: event.aggregate_id,
            origin: stamp.origin,
            trace,
            more: content.headers,
        },
    };
    Message::encode_with(buffer, &parts, |body| content.append_body(body))
}
