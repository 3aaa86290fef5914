use super::super::catalog::{Column, TableKind};
use super::super::shard::{PublishedRows, Shard};
use super::super::slot::WalStatus;
use super::super::startup::ServerVersion;
use super::*;
use crate::fault::FaultKind;

fn server() -> ServerFacts {
    ServerFacts {
        version: ServerVersion { major: 15, minor: 1 },
        wal_level: "logical".to_owned(),
        in_recovery: false,
        database: "shop".to_owned(),
        encoding: "UTF8".to_owned(),
        role: "walrelay".to_owned(),
        may_replicate: true,
        synchronous_standby_names: String::new(),
        synchronized_standby_slots: String::new(),
        has_physical_slot: false,
    }
}

fn slot() -> SlotState {
    SlotState {
        plugin: Some("pgoutput".to_owned()),
        logical: true,
        database: Some("shop".to_owned()),
        active_pid: None,
        wal_status: Some(WalStatus::Reserved),
        safe_wal_size: None,
        failover: false,
        restart_lsn: None,
        confirmed_flush_lsn: None,
    }
}

fn table() -> TableFacts {
    let column = |name: &str| Column {
        name: name.to_owned(),
        type_oid: 25,
        type_name: "text".to_owned(),
        not_null: true,
    };
    TableFacts {
        oid: 1,
        kind: TableKind::Plain,
        logged: true,
        columns: ["id", "aggregate_type", "aggregate_id", "event_type", "payload"]
            .map(column)
            .to_vec(),
        published: PublishedRows::All,
        column_list: false,
    }
}

fn publication() -> PublicationFacts {
    PublicationFacts {
        oid: 2,
        inserts: true,
        more_than_inserts: false,
        all_tables: false,
        via_partition_root: false,
        tables: vec!["outbox".parse().unwrap()],
    }
}

/// The fault after one fact has been changed.
fn server_fault(change: impl FnOnce(&mut ServerFacts)) -> Option<FaultKind> {
    let mut facts = server();
    change(&mut facts);
    check_server(&facts).err().map(|unfit| unfit.kind())
}

fn slot_fault(change: impl FnOnce(&mut SlotState)) -> Option<FaultKind> {
    let mut state = slot();
    change(&mut state);
    let name = "walrelay".parse().unwrap();
    check_slot(Some(state), &name, "shop")
        .err()
        .map(|unfit| unfit.kind())
}

fn table_fault(change: impl FnOnce(&mut TableFacts, &mut PublicationFacts)) -> Option<FaultKind> {
    let (mut facts, mut published) = (table(), publication());
    change(&mut facts, &mut published);
    let (table, name): (QualifiedTable, _) = ("outbox".parse().unwrap(), "walrelay".parse().unwrap());
    let outbox = table.clone().into();
    let checked = check_publication(Some(published), &name).and_then(|published| {
        let facts = check_table(Some(facts), &outbox)?;
        check_membership(&facts, &table, &published, &name, None)
    });
    checked.err().map(|unfit| unfit.kind())
}

#[test]
fn each_unfit_fact_of_the_server_is_a_fault() {
    assert_eq!(server_fault(|_| {}), None);
    assert_eq!(
        server_fault(|s| s.version.major = 13),
        Some(FaultKind::DatabaseUnsupported)
    );
    assert_eq!(
        server_fault(|s| s.encoding = "SQL_ASCII".to_owned()),
        Some(FaultKind::DatabaseUnsupported)
    );
    assert_eq!(server_fault(|s| s.encoding = "LATIN1".to_owned()), None);
    assert_eq!(
        server_fault(|s| s.in_recovery = true),
        Some(FaultKind::DatabaseStandby)
    );
    assert_eq!(
        server_fault(|s| s.wal_level = "replica".to_owned()),
        Some(FaultKind::WalLevel)
    );
    assert_eq!(
        server_fault(|s| s.may_replicate = false),
        Some(FaultKind::ReplicationRole)
    );
}

#[test]
fn a_stream_that_commits_would_wait_for_is_refused() {
    assert_eq!(check_synchronous("", "walrelay shop"), Ok(()));
    let unfit = check_synchronous("ANY 1 (*)", "walrelay shop").unwrap_err();
    assert_eq!(unfit.kind(), FaultKind::SynchronousStandby);
    assert_eq!(
        unfit.to_string(),
        "synchronous_standby_names (ANY 1 (*)) takes our stream, `walrelay shop`, for a synchronous standby"
    );
}

#[test]
fn each_unfit_fact_of_the_slot_is_a_fault() {
    assert_eq!(slot_fault(|_| {}), None);
    assert_eq!(slot_fault(|s| s.active_pid = Some(1)), None);
    assert_eq!(slot_fault(|s| s.logical = false), Some(FaultKind::SlotForeign));
    assert_eq!(
        slot_fault(|s| s.plugin = Some("wal2json".to_owned())),
        Some(FaultKind::SlotForeign)
    );
    assert_eq!(
        slot_fault(|s| s.database = Some("other".to_owned())),
        Some(FaultKind::SlotForeign)
    );
    assert_eq!(
        slot_fault(|s| s.wal_status = Some(WalStatus::Lost)),
        Some(FaultKind::SlotLost)
    );
    let missing = check_slot(None, &"walrelay".parse().unwrap(), "shop").unwrap_err();
    assert_eq!(missing.kind(), FaultKind::SlotMissing);
}

#[test]
fn each_unfit_fact_of_table_and_publication_is_a_fault() {
    assert_eq!(table_fault(|_, _| {}), None);
    assert_eq!(
        table_fault(|t, _| t.kind = TableKind::Other),
        Some(FaultKind::TableMissing)
    );
    assert_eq!(
        table_fault(|t, _| t.logged = false),
        Some(FaultKind::TableUnlogged)
    );
    assert_eq!(
        table_fault(|t, _| drop(t.columns.pop())),
        Some(FaultKind::ColumnMissing)
    );
    let to_integers = |t: &mut TableFacts, _: &mut PublicationFacts| {
        t.columns.iter_mut().for_each(|column| column.type_oid = 23);
    };
    assert_eq!(table_fault(to_integers), Some(FaultKind::PayloadType));
    assert_eq!(
        table_fault(|_, p| p.tables.clear()),
        Some(FaultKind::TableNotPublished)
    );
    assert_eq!(
        table_fault(|_, p| p.inserts = false),
        Some(FaultKind::PublicationUnfit)
    );
    assert_eq!(
        table_fault(|t, _| t.published = PublishedRows::Filtered),
        Some(FaultKind::PublicationUnfit)
    );
    assert_eq!(
        table_fault(|t, _| t.column_list = true),
        Some(FaultKind::PublicationUnfit)
    );
    assert_eq!(
        table_fault(|t, _| t.kind = TableKind::Partitioned),
        Some(FaultKind::PublicationUnfit)
    );
    let via_root = |t: &mut TableFacts, p: &mut PublicationFacts| {
        t.kind = TableKind::Partitioned;
        p.via_partition_root = true;
    };
    assert_eq!(table_fault(via_root), None);
    let name = "walrelay".parse().unwrap();
    let missing = check_publication(None, &name).unwrap_err();
    assert_eq!(missing.kind(), FaultKind::PublicationMissing);
}

#[test]
fn a_publication_must_have_the_rows_of_our_shard_no_more_and_no_less() {
    let shard = |text: &str| text.parse::<Shard>().ok();
    let check = |published, configured| {
        let facts = TableFacts { published, ..table() };
        let (table, name) = ("outbox".parse().unwrap(), "p".parse().unwrap());
        let checked = check_membership(&facts, &table, &publication(), &name, configured);
        checked.map_err(|unfit| (unfit.kind(), unfit.to_string()))
    };
    let half = || PublishedRows::Shard("1/2".parse().unwrap());
    assert_eq!(check(half(), shard("1/2")), Ok(()));
    assert_eq!(check(PublishedRows::All, None), Ok(()));
    for (published, configured, what, said) in [
        (PublishedRows::All, "1/2", "all rows", "shard 1/2"),
        (half(), "", "shard 1/2", "all rows"),
        (half(), "0/2", "shard 1/2", "shard 0/2"),
        (half(), "1/4", "shard 1/2", "shard 1/4"),
    ] {
        let said =
            format!("the publication `p` publishes {what} of public.outbox, the configuration says {said}");
        let wrong = Err((FaultKind::ShardMismatch, said));
        assert_eq!(check(published, shard(configured)), wrong);
    }
    let (kind, _) = check(PublishedRows::Filtered, shard("1/2")).unwrap_err();
    assert_eq!(kind, FaultKind::PublicationUnfit);
}

#[test]
fn shards_need_a_server_with_row_filters() {
    let on = |major, shard: &str| {
        let version = ServerVersion { major, minor: 3 };
        let server = ServerFacts { version, ..server() };
        check_sharding(&server, shard.parse().ok())
    };
    assert_eq!(on(14, ""), Ok(()));
    assert_eq!(on(15, "0/2"), Ok(()));
    let unfit = on(14, "0/2").unwrap_err();
    assert_eq!(unfit.kind(), FaultKind::ShardUnfit);
    assert_eq!(
        unfit.to_string(),
        "shard 0/2 needs row filters, which came with PostgreSQL 15; the server is 14.3"
    );
}

#[test]
fn only_a_failover_slot_that_a_standby_can_be_behind_of_is_a_risk() {
    let risks = |failover, has_physical_slot, setting: &str| {
        let found = Preflight {
            server: ServerFacts {
                has_physical_slot,
                synchronized_standby_slots: setting.to_owned(),
                ..server()
            },
            slot: SlotState { failover, ..slot() },
            publication: publication(),
            tables: vec![table()],
            others: Vec::new(),
        };
        let name = "walrelay".parse().unwrap();
        let kinds: Vec<_> = found.risks(&name).map(|risk| risk.kind()).collect();
        kinds
    };
    assert_eq!(risks(true, true, ""), [FaultKind::StandbyBehind]);
    assert_eq!(risks(true, true, "standby"), []);
    assert_eq!(risks(true, false, ""), []);
    assert_eq!(risks(false, true, ""), []);
}

#[test]
fn all_columns_that_are_missing_are_named_in_one_line() {
    let said = |change: &dyn Fn(&mut TableFacts, &mut Outbox)| {
        let mut facts = table();
        let mut outbox = Outbox::from("shop.outbox".parse::<QualifiedTable>().unwrap());
        change(&mut facts, &mut outbox);
        MissingColumns::of(&facts, &outbox).map(|missing| missing.to_string())
    };
    assert_eq!(said(&|_, _| {}), None);
    assert_eq!(
        said(&|facts, _| facts.columns.truncate(3)).as_deref(),
        Some("the table shop.outbox has no columns `event_type`, `payload`")
    );
    assert_eq!(
        said(&|facts, outbox| {
            facts.columns.remove(0);
            outbox.columns.payload = "paylod".to_owned();
        })
        .as_deref(),
        Some(
            "the table shop.outbox has no columns `id`, `paylod` (outbox.columns.payload; is it `payload`?)"
        )
    );
    assert_eq!(
        said(&|_, outbox| outbox.columns.id = "key".to_owned()).as_deref(),
        Some("the table shop.outbox has no column `key`, which is to be the event's id (outbox.columns.id)")
    );
}
