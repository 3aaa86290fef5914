//! The one table of faults: what each kind means for delivery, its metric label and its remedy.
//!
//! Readiness, the log, the metrics and `doctor` all read this table, so they name the same cause.

use std::error::Error;
use std::io;

use rustix::io::Errno;

/// What a fault means for delivery (rule 8 of `docs/delivery-rules.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Heals alone: retried for ever, never an exit.
    Unavailable,
    /// Needs a person: named, checked again, and an exit only with `--exit-on-halt`.
    Halted,
    /// One event waits under its policy.
    Held,
    /// Delivery goes on; something could be lost or go wrong later.
    Risk,
    /// Delivery goes on, but something beside it does not, and needs a person.
    Degraded,
}

impl Class {
    /// The word for it in JSON.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Halted => "halted",
            Self::Held => "held",
            Self::Risk => "risk",
            Self::Degraded => "degraded",
        }
    }
}

/// A fault that has happened: its kind and the words of what reported it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Which row of the table.
    pub kind: FaultKind,
    /// What happened: the error and its sources in one line.
    pub message: String,
}

impl Fault {
    /// A fault with the error that shows it. Where the cause is that this process may open nothing more, the kind says
    /// so instead.
    #[must_use]
    pub fn new(kind: FaultKind, error: &dyn Error) -> Self {
        Self {
            kind: match lacks_descriptors(error) {
                true => FaultKind::DescriptorsExhausted,
                false => kind,
            },
            message: chain(error),
        }
    }
}

/// Whether the process (EMFILE) or the whole system (ENFILE) is out of file descriptors.
/// <https://man7.org/linux/man-pages/man3/errno.3.html>
fn lacks_descriptors(error: &dyn Error) -> bool {
    let mut source = error.source();
    while let Some(error) = source {
        let errno = error.downcast_ref::<io::Error>().and_then(Errno::from_io_error);
        if matches!(errno, Some(Errno::MFILE | Errno::NFILE)) {
            return true;
        }
        source = error.source();
    }
    false
}

/// An error with all its sources, in one line.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let text = error.to_string();
        // Some libraries repeat their source's text in their own.
        if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        source = error.source();
    }
    line.replace(['\r', '\n'], " ")
}

/// Declares [`FaultKind`] together with its table, so that a kind without a row cannot exist.
macro_rules! fault_kinds {
    ($($(#[$doc:meta])+ $kind:ident: $class:ident, $label:literal, $remedy:literal;)+) => {
        /// A kind of fault, as operators tell them apart.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum FaultKind { $($(#[$doc])+ $kind,)+ }

        impl FaultKind {
            /// Every kind, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$kind,)+];

            /// Whether it heals alone or needs a person.
            #[must_use]
            pub const fn class(self) -> Class {
                match self { $(Self::$kind => Class::$class,)+ }
            }

            /// The label value in metrics and the `cause` in readiness.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$kind => $label,)+ }
            }

            /// What to do about it, in one sentence.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$kind => $remedy,)+ }
            }
        }
    };
}

fault_kinds! {
    /// No connection: refused, reset, timed out, host name unknown.
    DatabaseUnreachable: Unavailable, "database_unreachable",
        "check that PostgreSQL runs and that the host and port of postgres.url are right";
    /// The server starts up, shuts down or recovers (57P01, 57P02, 57P03).
    DatabaseRestarting: Unavailable, "database_restarting",
        "wait until PostgreSQL is up again";
    /// The server accepts no further connection (53300).
    DatabaseConnectionsExhausted: Unavailable, "database_connections_exhausted",
        "raise max_connections and max_wal_senders, or end connections that are not needed";
    /// Password or role refused, or no pg_hba.conf line for us (28P01, 28000).
    DatabaseAuthentication: Unavailable, "database_authentication",
        "check the user of postgres.url, its password (postgres.password_file) or certificate (sslcert), and pg_hba.conf";
    /// The TLS handshake with PostgreSQL failed, or the server offers none.
    DatabaseTls: Unavailable, "database_tls",
        "check sslmode and sslrootcert of postgres.url against the server's certificate";
    /// Our certificate or its key cannot be used, or PostgreSQL does not take it.
    DatabaseClientCertificate: Unavailable, "database_client_certificate",
        "check sslcert and sslkey of postgres.url, and which authority the server asks for (ssl_ca_file)";
    /// The server stayed silent beyond its deadline.
    DatabaseSilent: Unavailable, "database_silent",
        "check the network between walrelay and PostgreSQL";
    /// The server or something before it said what the protocol does not allow.
    DatabaseProtocol: Halted, "database_protocol",
        "connect directly to PostgreSQL 14 to 18, not through a pooler that cannot carry replication";
    /// The database named in the URL does not exist (3D000).
    DatabaseMissing: Halted, "database_missing",
        "create the database or correct the name in postgres.url";
    /// The role lacks a privilege other than REPLICATION (42501).
    DatabaseForbidden: Halted, "database_forbidden",
        "grant the role of postgres.url what the error names";
    /// There is no role of the name that `--grant-to` gives.
    RoleMissing: Halted, "role_missing",
        "create it, or correct --grant-to";
    /// The role may not do all of a teardown.
    TeardownForbidden: Halted, "teardown_forbidden",
        "run `walrelay teardown --url ADMIN` with the URL of an administrator, such as setup was run with";
    /// Another session holds a lock that we need (55P03 under `lock_timeout`).
    DatabaseLocked: Unavailable, "database_locked",
        "wait for the session that holds the lock (pg_locks, pg_stat_activity) or end it, then try again";
    /// The server is a standby: it neither keeps the slot nor takes writes.
    DatabaseStandby: Unavailable, "database_standby",
        "name the primary in postgres.url, or all its servers with target_session_attrs=read-write";
    /// A standby could be promoted without events that were published already.
    StandbyBehind: Risk, "standby_behind",
        "name the standby's physical slot in synchronized_standby_slots on the primary (docs/runbook.md)";
    /// An error of the server that has no row of its own in this table.
    DatabaseError: Unavailable, "database_error",
        "look the SQLSTATE up in PostgreSQL's appendix A and in the server's log";
    /// walrelay's own tables are missing or of an older version.
    OwnSchema: Halted, "own_schema",
        "run `walrelay setup`: it creates what is missing in the schema walrelay";
    /// `synchronous_standby_names` takes our stream for a synchronous standby (rule 17).
    SynchronousStandby: Halted, "synchronous_standby",
        "name the real standbys in synchronous_standby_names, or set another application_name in postgres.url";
    /// SQL sessions reach another server than the stream does (rule 15).
    StreamElsewhere: Unavailable, "stream_elsewhere",
        "nothing to do after a failover; if it lasts, let postgres.url lead to one server only";
    /// A dead letter with the same key but of another transaction exists (after a restore).
    DeadLetterTaken: Halted, "dead_letter_taken",
        "look at the old one (`walrelay dead-letters show --key`) and delete its row from walrelay.dead_letters";
    /// The server is older than 14, or the database's encoding is none.
    DatabaseUnsupported: Halted, "database_unsupported",
        "use PostgreSQL 14 to 18, and a database whose encoding is another one than SQL_ASCII";
    /// `wal_level` is not `logical`.
    WalLevel: Halted, "wal_level",
        "alter system set wal_level = 'logical', then restart PostgreSQL";
    /// The role lacks REPLICATION (42501).
    ReplicationRole: Halted, "replication_role",
        "alter role ... replication (on a managed service grant its replication role)";
    /// The slot does not exist, nor was it ever set up here.
    NotSetUp: Halted, "not_set_up",
        "run `walrelay setup`, or correct postgres.slot and postgres.url";
    /// The slot does not exist any more.
    SlotMissing: Halted, "slot_missing",
        "run `walrelay recover`, which sends what the tables still hold; `walrelay setup --new-slot`, if nothing may be sent";
    /// The slot belongs to another plugin or database, or is physical.
    SlotForeign: Halted, "slot_foreign",
        "choose another postgres.slot, or drop that slot if nobody needs it";
    /// Another process streams from the slot (55006).
    SlotInUse: Unavailable, "slot_in_use",
        "wait, or stop the other process that streams from this slot";
    /// The server has no room for another slot (53400).
    SlotsExhausted: Halted, "slots_exhausted",
        "drop slots that nobody needs, or raise max_replication_slots and restart PostgreSQL";
    /// Open transactions keep the slot from being created (55P03 under `lock_timeout`).
    SlotBlocked: Unavailable, "slot_blocked",
        "end the long transactions (pg_stat_activity, pg_prepared_xacts), then run the command again";
    /// The slot's WAL was removed (`wal_status` = lost).
    SlotLost: Halted, "slot_lost",
        "run `walrelay recover`: it makes the slot anew and sends what the tables still hold";
    /// A set-up did not end: the slot is there, but not what should have been copied for it (rule 22).
    SetupInterrupted: Halted, "setup_interrupted",
        "run setup again: `walrelay setup` makes the slot anew";
    /// The same of a recovery: set-up would not note all the rows that this had to.
    RecoveryInterrupted: Halted, "recovery_interrupted",
        "run recover again: `walrelay recover` makes the slot anew and sends what the tables still hold";
    /// The rows that are in a table cannot be looked for: row security, no index, no such column.
    BackfillUnfit: Halted, "backfill_unfit",
        "correct that, or say `--backfill none` to setup and leave the rows that are there unsent";
    /// Rows were noted to be sent before the stream, which is under way.
    RowsNoted: Unavailable, "rows_noted",
        "nothing to do: the session begins anew, and they are sent first";
    /// Nothing tells which rows a lost slot has missed.
    NothingTells: Halted, "nothing_tells",
        "run `walrelay recover --since TIME`: it sends the rows written since, those that were sent before again";
    /// The publication does not exist, or did not at the slot's point of the WAL.
    PublicationMissing: Halted, "publication_missing",
        "run `walrelay setup`; if it was dropped while the slot was there, `walrelay recover --new-slot` goes past that point";
    /// The publication does not publish inserts, or not all rows and columns.
    PublicationUnfit: Halted, "publication_unfit",
        "let the publication publish inserts of all rows and columns: alter publication ... set (publish = 'insert')";
    /// The publication publishes another shard of a table than the one configured, or the slot is another shard's.
    ShardMismatch: Halted, "shard_mismatch",
        "set postgres.shard to what the publication publishes; a shard needs a postgres.slot and a postgres.publication of its own \
         (docs/scaling.md)";
    /// A table cannot be divided into shards.
    ShardUnfit: Halted, "shard_unfit",
        "leave postgres.shard out, or change what the error names (docs/scaling.md)";
    /// Nobody has said whether a new slot takes another one's place.
    ShardSuccession: Halted, "shard_succession",
        "run setup again with --backfill none or --backfill unsent (docs/scaling.md)";
    /// A slot is to go though those that take its place start behind what it has brought (rule 25).
    NotDrained: Halted, "not_drained",
        "run this slot's relay until `walrelay wait --current` ends, then stop it and tear it down (docs/scaling.md)";
    /// The slot whose place this one takes has not come to its start yet (rule 25).
    BeforeItsTurn: Unavailable, "before_its_turn",
        "let the relay of the slot that the error names go on until it is past that position; this one goes on by itself then \
         (docs/scaling.md)";
    /// Publication, its members or an outbox table are no longer what they were at set-up (rule 5).
    PublicationChanged: Halted, "publication_changed",
        "run `walrelay recover`; with --rescan it sends rows that are not marked as sent, which were missed perhaps";
    /// A configured table is missing or not in the publication.
    TableNotPublished: Halted, "table_not_published",
        "run `walrelay setup`, or alter publication ... add table ...";
    /// A configured table does not exist.
    TableMissing: Halted, "table_missing",
        "create the outbox table (`walrelay setup` does, unless outbox.columns names other columns) or correct outbox.table";
    /// A configured table is unlogged or temporary: its rows never reach the WAL.
    TableUnlogged: Halted, "table_unlogged",
        "alter table ... set logged";
    /// A table lacks a column that an event needs.
    ColumnMissing: Halted, "column_missing",
        "give the outbox table the columns id, aggregate_type, aggregate_id, event_type and payload, or name others in outbox.columns; if the slot stands before \
         rows without them, `walrelay recover --new-slot` goes past these";
    /// A table lacks what a command, or the upkeep of its rows, goes by: a column, a unique index.
    TableUnfit: Halted, "table_unfit",
        "give the table the column or the index that the error names";
    /// A command looks for a value that is none of its column's type.
    ConditionUnfit: Halted, "condition_unfit",
        "correct the value, or look through one table only";
    /// A template names a column that a table lacks.
    TemplateColumnMissing: Halted, "template_column_missing",
        "correct the template or rule that is named, or add that column to the table";
    /// The payload column has a type that no body can be made of.
    PayloadType: Halted, "payload_type",
        "make the payload column json, jsonb, text or bytea";
    /// The log at a known position is not the one that was read before.
    LogDiverged: Unavailable, "log_diverged",
        "nothing to do: everything unacknowledged is read and published again; check why the database was restored";
    /// The stream brought a row of a table that is not configured (rule 4).
    TableUnknown: Halted, "table_unknown",
        "add the table to [[outbox]] and run `walrelay setup`, or list it in postgres.ignore_tables; if it is an outbox under \
         another name, `walrelay recover --new-slot` goes past it";
    /// A frame larger than the cap that is no row: large rows are read whatever their size.
    FrameTooLarge: Halted, "frame_too_large",
        "raise delivery.max_event_bytes above that size; if it is far beyond, check what answers at postgres.url";
    /// No connection: refused, reset, timed out, host name unknown.
    BrokerUnreachable: Unavailable, "broker_unreachable",
        "check that RabbitMQ runs and that the host and port of rabbitmq.uri are right";
    /// User or password refused (403 while connecting).
    BrokerAuthentication: Unavailable, "broker_authentication",
        "check the user of rabbitmq.uri and its password (rabbitmq.password_file)";
    /// The TLS handshake with RabbitMQ failed.
    BrokerTls: Unavailable, "broker_tls",
        "check rabbitmq.ca_file and the host name of rabbitmq.uri against the broker's certificate";
    /// Our certificate or its key cannot be used, or RabbitMQ does not take it.
    BrokerClientCertificate: Unavailable, "broker_client_certificate",
        "check rabbitmq.cert_file and rabbitmq.key_file, and which authority the broker asks for (ssl_options.cacertfile)";
    /// The virtual host does not exist or is closed to this user (530).
    BrokerVhost: Halted, "broker_vhost",
        "create the virtual host and give the user permissions on it, or correct rabbitmq.uri";
    /// The broker closed the connection (320 and others).
    BrokerClosed: Unavailable, "broker_closed",
        "wait until RabbitMQ is up again; its log says why it closed the connection";
    /// Neither data nor heartbeat within the deadline.
    BrokerSilent: Unavailable, "broker_silent",
        "check the network between walrelay and RabbitMQ";
    /// The broker raised an alarm and takes no messages (`connection.blocked`).
    BrokerBlocked: Unavailable, "broker_blocked",
        "free memory or disk space on the RabbitMQ node: `rabbitmq-diagnostics alarms` names the alarm";
    /// A message stayed without an answer beyond `delivery.confirm_timeout`.
    ConfirmTimeout: Unavailable, "confirm_timeout",
        "check the queues bound to the exchange: a quorum queue without majority answers nothing";
    /// The broker, or something before it, said what the protocol does not allow. A new link may well behave again.
    BrokerProtocol: Unavailable, "broker_protocol",
        "if it lasts, check that rabbitmq.uri names an AMQP 0-9-1 port of RabbitMQ 3.10 or newer";
    /// The exchange does not exist (404).
    ExchangeMissing: Halted, "exchange_missing",
        "declare the exchange, let walrelay do so ([rabbitmq.declare]), or correct rabbitmq.exchange";
    /// No permission to write to the exchange, or to declare it (403).
    ExchangeForbidden: Halted, "exchange_forbidden",
        "give the user write permission on the exchange, and configure permission to declare it ([rabbitmq.declare]): \
         rabbitmqctl set_permissions -p VHOST USER CONFIGURE WRITE READ";
    /// The exchange exists with other properties than those to declare (406), or the broker lacks its type (503, from 4.0 on 406).
    ExchangeMismatch: Halted, "exchange_mismatch",
        "make [rabbitmq.declare] agree with the exchange that exists, or leave it out; for x-consistent-hash enable the plugin \
         rabbitmq_consistent_hash_exchange";
    /// Nobody reads standard output any more, where that is the sink. It ends the process.
    StdoutClosed: Halted, "stdout_closed",
        "start walrelay again with a reader for its output: what was not written is sent then";
    /// The reader of standard output does not go on.
    StdoutBlocked: Unavailable, "stdout_blocked",
        "let the reader of walrelay's output go on reading, or end it";
    /// A write to standard output failed.
    StdoutFailed: Unavailable, "stdout_failed",
        "look at what the error names, such as a full disk behind a redirection; it is tried again by itself";
    /// No stream of that name, or none that is a stream.
    StreamMissing: Halted, "stream_missing",
        "declare the stream (a durable queue with x-queue-type = stream), or correct rabbitmq.stream.name";
    /// No permission to write to the stream, or to read it back.
    StreamForbidden: Halted, "stream_forbidden",
        "give the user write and read permission on the stream: rabbitmqctl set_permissions -p VHOST USER CONFIGURE WRITE READ";
    /// An event is held: the broker closed the channel or the connection over it (406 and the like).
    MessageRefused: Held, "message_refused",
        "correct the row's producer or the broker's limit (its log names what it refused); or `walrelay skip EVENT_ID --reason TEXT`";
    /// An event is held: returned as unroutable.
    EventUnroutable: Held, "event_unroutable",
        "bind a queue to the exchange for the event's routing key, and it is tried again by itself; or `walrelay skip EVENT_ID --reason TEXT`";
    /// An event is held: a queue refused it (nack).
    EventNacked: Held, "event_nacked",
        "make room in the full queue or raise its limit; walrelay tries the event again by itself";
    /// An event is held: the row cannot become a message.
    EventInvalid: Held, "event_invalid",
        "it stays held until it is settled by hand: `walrelay skip EVENT_ID --reason TEXT` (or LSN:SEQ in place of the id)";
    /// The role may not mark or delete rows, or not store the settled prefix.
    MarksForbidden: Degraded, "marks_forbidden",
        "grant the role of postgres.url what the error names; it is tried again by itself";
    /// A table has no unique index on exactly the id (rule 20).
    MarksIndex: Degraded, "marks_index",
        "create a unique index on exactly (id), or set after_publish = \"keep\" for the table";
    /// A table has no column `sent_at`, or row security hides rows of it.
    MarksUnfit: Degraded, "marks_unfit",
        "change what the error names (row security: alter role ... bypassrls), or set after_publish = \"keep\" for the table";
    /// Another slot marks the table's rows, or set-up has not said who does (rule 20).
    MarksOwned: Degraded, "marks_owned",
        "set after_publish = \"keep\" for the table, or run `walrelay setup` once the other slot is torn down";
    /// Rows cannot be marked for another reason; tried again by itself.
    MarksFailing: Degraded, "marks_failing",
        "look at what the error names; rows are marked again by themselves";
    /// This process stood still for so long that another one may stream from the slot.
    StoodStill: Unavailable, "stood_still",
        "nothing to do: both connections are made anew; find out why the process or its machine stopped";
    /// No file descriptor is free (EMFILE, ENFILE), so nothing can be opened.
    DescriptorsExhausted: Unavailable, "descriptors_exhausted",
        "raise the limit of open files (LimitNOFILE= of the unit, ulimit -n), and find out what uses them up";
    /// The address of `admin.listen` cannot be had: taken, or not this machine's.
    AdminUnbound: Unavailable, "admin_unbound",
        "end the process that listens there, or choose another address for admin.listen; events flow meanwhile";
    /// The exclusive lock of a command is taken by another one, or a rule of the configuration is broken.
    Configuration: Halted, "configuration",
        "correct the configuration: `walrelay config check`";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_unique_and_fit_for_metrics() {
        let mut labels: Vec<_> = FaultKind::ALL.iter().map(|kind| kind.label()).collect();
        labels.sort_unstable();
        let count = labels.len();
        labels.dedup();
        assert_eq!(labels.len(), count);
        assert!(
            labels
                .iter()
                .all(|label| label.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
        );
    }

    #[test]
    fn a_lack_of_descriptors_is_told_from_a_server_that_is_away() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot connect")]
        struct Refused(#[source] io::Error);
        for (errno, kind) in [
            (Errno::MFILE, FaultKind::DescriptorsExhausted),
            (Errno::NFILE, FaultKind::DescriptorsExhausted),
            (Errno::CONNREFUSED, FaultKind::BrokerUnreachable),
        ] {
            let fault = Fault::new(FaultKind::BrokerUnreachable, &Refused(errno.into()));
            assert_eq!(fault.kind, kind);
        }
    }

    #[test]
    fn every_remedy_is_one_line() {
        for kind in FaultKind::ALL {
            assert!(
                !kind.remedy().is_empty() && !kind.remedy().contains('\n'),
                "{kind:?}"
            );
        }
    }
}
