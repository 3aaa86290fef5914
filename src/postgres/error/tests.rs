use super::*;
use proptest::prelude::*;

fn server(step: Step, code: &str) -> Error {
    let mut source = ServerError::parse(b"");
    source.sqlstate = SqlState::from_text(code);
    Error::Server {
        step,
        source: Box::new(source),
    }
}

#[test]
fn an_error_body_keeps_code_message_detail_and_hint() {
    let body = b"SFEHLER\0VERROR\0C55006\0Mslot is active\0Dby PID 7\0Hwait\nor stop it\0Fslot.c\0\0";
    let error = ServerError::parse(body);
    assert_eq!(error.sqlstate, SqlState::OBJECT_IN_USE);
    assert_eq!(
        error.to_string(),
        "ERROR 55006: slot is active (by PID 7) (wait or stop it)"
    );
}

#[test]
fn a_truncated_error_body_keeps_what_was_said() {
    let error = ServerError::parse(b"VFATAL\0C57P03\0Mthe database sys");
    assert_eq!(
        (error.severity.as_str(), error.sqlstate),
        ("FATAL", SqlState::CANNOT_CONNECT_NOW)
    );
}

#[test]
fn the_same_code_is_another_fault_in_another_step() {
    for (step, code, kind) in [
        (Step::StartStreaming, "42704", FaultKind::SlotMissing),
        (Step::Stream, "42704", FaultKind::PublicationMissing),
        (Step::Query("read the catalog"), "42704", FaultKind::DatabaseError),
        (Step::OpenReplication, "42501", FaultKind::ReplicationRole),
        (Step::CreateSlot, "42501", FaultKind::ReplicationRole),
        (
            Step::Query("create the publication"),
            "42501",
            FaultKind::DatabaseForbidden,
        ),
        (Step::StartStreaming, "55006", FaultKind::SlotInUse),
        (Step::DropSlot, "55006", FaultKind::SlotInUse),
        (Step::CreateSlot, "55000", FaultKind::WalLevel),
        (Step::CreateSlot, "55P03", FaultKind::SlotBlocked),
        (
            Step::Query("create the publication"),
            "55P03",
            FaultKind::DatabaseLocked,
        ),
        (Step::CreateSlot, "53400", FaultKind::SlotsExhausted),
        (
            Step::OpenControl,
            "53300",
            FaultKind::DatabaseConnectionsExhausted,
        ),
        (Step::OpenControl, "28P01", FaultKind::DatabaseAuthentication),
        (Step::OpenReplication, "28000", FaultKind::DatabaseAuthentication),
        (Step::OpenReplication, "3D000", FaultKind::DatabaseMissing),
        (Step::OpenReplication, "57P03", FaultKind::DatabaseRestarting),
        (Step::Stream, "57P01", FaultKind::DatabaseRestarting),
        (Step::Stream, "XX000", FaultKind::DatabaseError),
        (Step::Stream, "08006", FaultKind::DatabaseUnreachable),
        (Step::OpenReplication, "08P01", FaultKind::DatabaseProtocol),
    ] {
        assert_eq!(server(step, code).kind(), kind, "{step} {code}");
    }
}

#[test]
fn a_stream_ended_by_57p01_asks_for_a_look_at_the_slot() {
    assert!(server(Step::Stream, "57P01").is_ambiguous());
    assert!(server(Step::StartStreaming, "55000").is_ambiguous());
    assert!(!server(Step::OpenControl, "57P01").is_ambiguous());
    assert!(!server(Step::Stream, "42704").is_ambiguous());
}

#[test]
fn a_code_that_is_none_reads_as_an_internal_error() {
    for text in ["", "57P0", "57P011", "57P\u{e9}", "57 01"] {
        assert_eq!(SqlState::from_text(text), SqlState::INTERNAL_ERROR, "{text:?}");
    }
}

proptest! {
    #[test]
    fn no_error_body_makes_the_parser_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        ServerError::parse(&body).to_string();
    }
}
