//! What the engine reports, as faults of the one table.

use walrelay_engine::event::MappingError;
use walrelay_engine::flow::{Held, StreamError, Unbound};
use walrelay_engine::window::Failure;

use crate::fault::{Fault, FaultKind};
use crate::rabbitmq::{self, BrokerError, Connector};

/// The kind of what stopped the stream.
pub(super) const fn stream_kind(error: &StreamError) -> FaultKind {
    match error {
        StreamError::Mapping(error) => mapping_kind(error),
        StreamError::UnknownTable { .. } => FaultKind::TableUnknown,
        StreamError::Diverged { .. } => FaultKind::LogDiverged,
        StreamError::Decode(_)
        | StreamError::UnknownRelation { .. }
        | StreamError::OutsideTransaction { .. }
        | StreamError::NoSession => FaultKind::DatabaseProtocol,
    }
}

/// The kind of why rows that are to be backfilled cannot become events.
pub(super) const fn unbound_kind(error: &Unbound) -> FaultKind {
    match error {
        Unbound::UnknownTable { .. } => FaultKind::TableUnknown,
        Unbound::Mapping(error) => mapping_kind(error),
        Unbound::Names(_) => FaultKind::DatabaseProtocol,
    }
}

pub(super) const fn mapping_kind(error: &MappingError) -> FaultKind {
    match error {
        MappingError::ColumnMissing { .. } => FaultKind::ColumnMissing,
        // The configuration is checked at the start, so there is no such template.
        MappingError::TemplateColumnMissing { .. } | MappingError::Template { .. } => {
            FaultKind::TemplateColumnMissing
        }
        MappingError::PayloadType { .. } => FaultKind::PayloadType,
    }
}

/// Whether an errand's fault means that the stream itself must not go on (R5, R15).
pub(super) const fn stops_the_stream(kind: FaultKind) -> bool {
    matches!(kind, FaultKind::PublicationChanged | FaultKind::StreamElsewhere)
}

/// Whether opening a connection looks for this fault, so that a new connection tells that it is over.
pub(super) const fn is_looked_for_when_opening(kind: FaultKind) -> bool {
    matches!(kind, FaultKind::PublicationChanged)
}

/// Reply code and words of a close over a message, rather than over the connection as a whole.
pub(super) fn refusal<'a>(error: &'a BrokerError, connector: &Connector) -> Option<(u16, &'a str)> {
    let BrokerError::Closed {
        reply_code,
        reply_text,
        ..
    } = error
    else {
        return None;
    };
    let kind = error.kind();
    // Where a row has a say in the exchange, it is missing for some events only: which one is to be found. One that is known
    // beforehand is looked for by every new link.
    let of_event = matches!(kind, FaultKind::ExchangeMissing | FaultKind::ExchangeForbidden)
        && connector.has_open_exchanges;
    (of_event || kind == FaultKind::MessageRefused).then_some((*reply_code, reply_text))
}

/// The kind of why an event is held.
pub(super) fn held_kind(failure: &Failure) -> FaultKind {
    match failure {
        Failure::Unroutable { .. } => FaultKind::EventUnroutable,
        Failure::Nacked => FaultKind::EventNacked,
        Failure::Unanswered => FaultKind::ConfirmTimeout,
        Failure::Invalid { .. } | Failure::Unreadable { .. } => FaultKind::EventInvalid,
        Failure::Refused { reply_code, .. } => rabbitmq::refused_kind(*reply_code),
    }
}

/// A held event in one line: which, and why.
pub(super) fn held(held: &Held<'_>) -> Fault {
    let id = held.message_id.unwrap_or("without a usable id");
    let why = why(held.failure, held.exchange, held.routing_key);
    Fault {
        kind: held_kind(held.failure),
        message: format!("event {id} at {}: {why}", held.key),
    }
}

/// Why a message was not delivered, in one line.
pub(super) fn why(failure: &Failure, exchange: Option<&str>, routing_key: Option<&str>) -> String {
    let (exchange, routing_key) = (exchange.unwrap_or_default(), routing_key.unwrap_or_default());
    match failure {
        Failure::Unroutable { reply_code } => format!(
            "exchange \"{exchange}\" has no queue for routing key \"{routing_key}\" (reply code {reply_code})"
        ),
        Failure::Nacked => {
            format!("a queue bound to exchange \"{exchange}\" for routing key \"{routing_key}\" refused it")
        }
        Failure::Unanswered => format!(
            "exchange \"{exchange}\" did not confirm it with routing key \"{routing_key}\" within the time allowed"
        ),
        Failure::Invalid { reason, .. } => reason.to_string(),
        Failure::Unreadable { reason } => reason.to_string(),
        Failure::Refused {
            reply_code,
            reply_text,
        } => format!("RabbitMQ refused it (reply code {reply_code}): {reply_text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_that_names_no_column_is_no_matter_of_the_required_ones() {
        let table = || "public.outbox_events".to_owned();
        let of_template = MappingError::TemplateColumnMissing {
            table: table(),
            column: "kind".to_owned(),
            setting: "rabbitmq.routing_key".into(),
        };
        let required = MappingError::ColumnMissing {
            table: table(),
            column: "id".to_owned(),
            field: "id",
        };
        assert_eq!(mapping_kind(&of_template), FaultKind::TemplateColumnMissing);
        assert_eq!(mapping_kind(&required), FaultKind::ColumnMissing);
    }
}
