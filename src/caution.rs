//! What `walrelay doctor` warns of, though it is no fault: the relay runs like this. Like the table of faults, this one has
//! one remedy for each.

/// Declares [`Caution`] together with its table.
macro_rules! cautions {
    ($($(#[$doc:meta])+ $caution:ident: $label:literal, $remedy:literal;)+) => {
        /// Something to mind.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Caution { $($(#[$doc])+ $caution,)+ }

        impl Caution {
            /// Every one, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$caution,)+];

            /// The word for it in JSON.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$caution => $label,)+ }
            }

            /// What to do about it, in one sentence.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$caution => $remedy,)+ }
            }
        }
    };
}

cautions! {
    /// Others than the owner can read a file with a secret.
    SecretReadable: "secret_readable",
        "let nobody but the relay's user read the file";
    /// An environment variable that looks like a setting and is none.
    UnknownVariable: "unknown_variable",
        "correct the variable's name, or take it out of the environment";
    /// No TLS over a network.
    Unencrypted: "unencrypted",
        "use TLS: sslmode=verify-full in postgres.url, amqps in rabbitmq.uri; without it rows and messages can be read on the way";
    /// TLS without a look at the certificate.
    Unverified: "unverified",
        "set sslmode=verify-full, and sslrootcert for a private authority, so that nobody else can answer for the server";
    /// A password is sent as it is.
    PasswordInClear: "password_in_clear",
        "let pg_hba.conf ask for scram-sha-256, or use TLS";
    /// A version that came out later than this one of walrelay.
    ServerUntried: "server_untried",
        "this version of walrelay was tried with PostgreSQL 14 to 18; look for a newer one";
    /// A slot may keep all WAL.
    SlotUnbounded: "slot_unbounded",
        "set max_slot_wal_keep_size to what the disk bears: a relay that is down for long fills it otherwise";
    /// A slot that must not lose more.
    SlotInDanger: "slot_in_danger",
        "let the relay catch up now, or raise max_slot_wal_keep_size: the next checkpoint may remove WAL that the slot needs";
    /// A slot that keeps much.
    SlotBehind: "slot_behind",
        "start the relay, or find out what holds it (`walrelay status`); a slot that nobody needs goes with `walrelay teardown`";
    /// A standby takes no part in commits.
    StandbyAsynchronous: "standby_asynchronous",
        "before a promotion, see that the standby has everything (docs/runbook.md), or make it synchronous";
    /// The slot does not go along at a promotion.
    SlotStaysBehind: "slot_stays_behind",
        "after a promotion run `walrelay recover` there; from PostgreSQL 17 on a failover slot goes along (docs/runbook.md)";
    /// Changes are decoded and thrown away.
    PublishesMore: "publishes_more",
        "publish inserts alone: the server decodes and sends other changes for nothing";
    /// The guard cannot tell new tables.
    AllTables: "all_tables",
        "name the outbox tables in the publication: a row of any other table halts delivery";
    /// Rows that no relay delivers.
    ShardMissing: "shard_missing",
        "set each of them up with a postgres.slot and a postgres.publication of its own, and run it: rows that are there are sent first";
    /// Rows that two relays deliver.
    ShardsOverlap: "shards_overlap",
        "tear the slot down that is too many; while the number of shards is changed this is as it should be (docs/scaling.md)";
    /// Rows that could not become messages may be written.
    ColumnNullable: "column_nullable",
        "set the column not null: a row without a value in it is invalid and held";
    /// Marks are dearer than they need be.
    MarkIndexed: "mark_indexed",
        "drop the index, or what it holds or asks of the columns that marks set: each mark has to write to it, and to all others of the row";
    /// The broker may refuse what the settings let through.
    MessageLimit: "message_limit",
        "raise max_message_size of the broker, or lower delivery.max_message_bytes or delivery.max_event_bytes";
    /// A dead connection is found late.
    HeartbeatOff: "heartbeat_off",
        "set rabbitmq.heartbeat to 30s or so: without it a connection that died is found by TCP alone";
    /// The exchange is not there yet, and will be.
    ExchangeUndeclared: "exchange_undeclared",
        "nothing to do: the relay declares it when it starts (rabbitmq.declare); bind queues to it before events are written";
    /// A queue took the message of the probe.
    ProbeTaken: "probe_taken",
        "take the message out of the queue that a catch-all binding led it to; a message that no queue is meant for is never returned then";
    /// Events that no queue is bound for.
    RouteUnbound: "route_unbound",
        "bind a queue to the exchange for each of these keys, or correct the routing key's template or rule";
    /// Rows that no exchange and no routing key can be made for.
    RouteImpossible: "route_impossible",
        "correct the template or rule, with |default:... where a value may be missing: such rows are invalid and held";
    /// Events that no queue is bound for go somewhere all the same.
    AlternateExchange: "alternate_exchange",
        "have somebody look at the queues behind it: for walrelay what they get is delivered, and on_unroutable never applies to it";
    /// Whoever can log in can write events.
    MessagesOpen: "messages_open",
        "give the function to the roles that write events and to the relay's, then take it from public: whoever may emit messages with the prefix writes events";
    /// A host name of a managed service that leads to its pooler.
    PooledHost: "pooled_host",
        "use the service's direct host name: a pooler cannot carry replication";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultKind;

    #[test]
    fn labels_are_words_that_no_fault_has() {
        let mut labels: Vec<_> = Caution::ALL.iter().map(|caution| caution.label()).collect();
        labels.extend(FaultKind::ALL.iter().map(|kind| kind.label()));
        let count = labels.len();
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), count);
    }
}
