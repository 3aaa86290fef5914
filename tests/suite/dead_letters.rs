//! Dead letters in the database, and their commands, without a relay (rules 1, 15 and 16).

use anyhow::Result;
use walrelay::fault::FaultKind;
use walrelay::postgres::dead_letters::{
    Columns, DeadLetter, Found, NewDeadLetter, Reason, RetryFate, State, load, message, pending_count,
    record_retries, store,
};
use walrelay::postgres::skips::{self, Selector};
use walrelay::postgres::{ControlSession, EventPosition, flushed_position};
use walrelay_engine::Lsn;
use walrelay_engine::key::{EventKey, TransactionKey};
use walrelay_engine::timestamp::PgTimestamp;

use walrelay_testbed::{Postgres, PostgresOptions};

use crate::source::{SetUp, said};

pub(crate) fn key(commit_lsn: u64, tx_seq: u64) -> EventKey {
    EventKey {
        transaction: TransactionKey {
            commit_lsn: Lsn::new(commit_lsn),
            xid: 742,
            commit_time: PgTimestamp::new(850_000_000_000_001),
        },
        tx_seq,
    }
}

impl SetUp {
    fn dead_letter(&self, key: EventKey) -> NewDeadLetter {
        let column = |name: &str, value: &str| (name.to_owned(), Some(value.to_owned()));
        NewDeadLetter {
            key,
            outbox: "public.outbox_events".parse().expect("a table"),
            event_id: Some(format!("event-{}", key.tx_seq)),
            reason: Reason::Unroutable,
            detail: "exchange \"outbox\" has no queue".to_owned(),
            exchange: Some("outbox".to_owned()),
            routing_key: Some("order.OrderCreated".to_owned()),
            columns: Columns(vec![
                column("payload", "{\"n\":  1.50}"),
                column("event_type", "OrderCreated"),
                ("headers".to_owned(), None),
            ]),
        }
    }

    /// Stores dead letters of one transaction, as a relay does that streams.
    pub(crate) async fn with_dead_letters(count: u64) -> Result<Self> {
        let set_up = Self::new().await?;
        let (_stream, pid) = set_up.stream().await?;
        let mut session = set_up.session().await?;
        let letters: Vec<_> = (0..count)
            .map(|tx_seq| set_up.dead_letter(key(0x16_0000_0000, tx_seq)))
            .collect();
        store(&mut session, &set_up.source.slot, &letters, pid).await?;
        session.close().await;
        Ok(set_up)
    }

    /// One dead letter by its key, as a relay reads it.
    async fn load(
        &self,
        session: &ControlSession,
        position: EventPosition,
        pid: i32,
    ) -> Result<Option<DeadLetter>> {
        let found = load(session, &self.source.slot, &[position], usize::MAX, pid).await?;
        Ok(found.into_iter().find_map(|found| match found {
            Found::DeadLetter(letter) => Some(*letter),
            Found::Unreadable(_) | Found::Nothing | Found::Later => None,
        }))
    }

    /// The contents of walrelay's messages in the log from a position on, in its order.
    async fn messages(&self, probe: &str) -> Result<Vec<String>> {
        // M, flags, lsn (8), prefix and its zero, length (4), content.
        let skip = 1 + 1 + 8 + message::PREFIX.len() + 1 + 4;
        let sql = format!(
            "select convert_from(substr(data, {}), 'UTF8') from pg_logical_slot_get_binary_changes($1, null, null, \
             'proto_version', '1', 'publication_names', 'walrelay', 'messages', 'true') \
             where get_byte(data, 0) = ascii('M')",
            skip + 1
        );
        let rows = self.client.query(&sql, &[&probe]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// A second slot, to look into the log with.
    async fn probe(&self) -> Result<String> {
        let name = format!("probe_{}", self.database.name());
        let sql = "select pg_create_logical_replication_slot($1, 'pgoutput')::text";
        self.client.query_one(sql, &[&name]).await?;
        Ok(name)
    }
}

#[tokio::test]
async fn a_dead_letter_keeps_key_reason_and_text_and_counts_attempts() -> Result<()> {
    let set_up = SetUp::new().await?;
    let (stream, pid) = set_up.stream().await?;
    let mut session = set_up.session().await?;
    let key = key(0x16_B374_D848, 3);
    let mut new = set_up.dead_letter(key);
    let slot = &set_up.source.slot;

    let before = flushed_position(&session).await?;
    let stored = store(&mut session, slot, std::slice::from_ref(&new), pid).await?;
    assert!(stored.end > before);
    assert_eq!(stored.rows, 1);
    let position = EventPosition::from(&key);
    let found = set_up.load(&session, position, pid).await?.expect("stored");
    assert_eq!(found.columns, new.columns);
    let summary = &found.summary;
    assert_eq!(
        (summary.xid, summary.attempts, summary.state),
        (742, 1, State::Pending)
    );
    assert_eq!(summary.event_type.as_deref(), Some("OrderCreated"));
    assert_eq!(
        humantime_micros(summary.commit_time),
        850_000_000_000_001 + 946_684_800_000_000
    );

    new.reason = Reason::Invalid;
    let other = set_up.dead_letter(self::key(0x16_B374_D848, 4));
    let stored = store(&mut session, slot, &[new.clone(), other], pid).await?;
    assert_eq!(stored.rows, 1, "the other one is new");
    let again = set_up.load(&session, position, pid).await?.expect("stored");
    assert_eq!(
        (again.summary.reason, again.summary.attempts),
        (Reason::Invalid, 2)
    );
    assert_eq!(again.summary.first_failed_at, summary.first_failed_at);
    assert!(again.summary.last_failed_at > summary.last_failed_at);
    assert_eq!(pending_count(&session, slot).await?, 2);

    // Rule 2: another transaction at the same place, after a restore, does not take its row. It is all or none.
    new.key.transaction.xid = 743;
    let other = set_up.dead_letter(self::key(0x16_B374_D848, 5));
    let error = store(&mut session, slot, &[other, new], pid).await.unwrap_err();
    assert!(error.to_string().contains("16/B374D848:3"), "{error}");
    assert_eq!(error.kind(), FaultKind::DeadLetterTaken);
    assert_eq!(pending_count(&session, slot).await?, 2);
    drop(stream);
    Ok(())
}

fn humantime_micros(time: std::time::SystemTime) -> u128 {
    time.duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_micros())
}

#[tokio::test]
async fn r15_nothing_is_stored_unless_the_slot_streams_to_us() -> Result<()> {
    let set_up = SetUp::new().await?;
    let mut session = set_up.session().await?;
    let new = [set_up.dead_letter(key(0x1600, 0))];
    let slot = &set_up.source.slot;

    let error = store(&mut session, slot, &new, 1).await.unwrap_err();
    assert_eq!(
        said(&error),
        format!("stream_elsewhere: the slot `{slot}` is not streamed by our server process 1 but by none")
    );
    let (_stream, pid) = set_up.stream().await?;
    let error = store(&mut session, slot, &new, pid + 1).await.unwrap_err();
    assert_eq!(
        said(&error),
        format!(
            "stream_elsewhere: the slot `{slot}` is not streamed by our server process {} but by process {pid}",
            pid + 1
        )
    );
    let position = EventPosition::from(&new[0].key);
    let fates = [RetryFate {
        position,
        failure: None,
    }];
    let error = record_retries(&mut session, slot, &fates, pid + 1)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), FaultKind::StreamElsewhere);
    // Another server may not know the row of a retry, which would be dropped then.
    let error = load(&session, slot, &[position], usize::MAX, pid + 1)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), FaultKind::StreamElsewhere);
    assert_eq!(pending_count(&session, slot).await?, 0);
    // The session serves on after a refusal.
    store(&mut session, slot, &new, pid).await?;
    assert_eq!(pending_count(&session, slot).await?, 1);
    Ok(())
}

#[tokio::test]
async fn r15_a_dead_letter_survives_a_crash_whatever_the_databases_default() -> Result<()> {
    // A WAL writer that is late, so that an asynchronous commit is lost by a crash.
    let mut postgres = Postgres::start(
        PostgresOptions::default()
            .setting("synchronous_commit", "off")
            .setting("wal_writer_delay", "10s")
            .setting("wal_writer_flush_after", "1GB"),
    )
    .await?;
    let set_up = SetUp::on(postgres.database().await?).await?;
    let (stream, pid) = set_up.stream().await?;
    let mut session = set_up.session().await?;
    let new = [
        set_up.dead_letter(key(0x1600, 0)),
        set_up.dead_letter(key(0x1600, 1)),
    ];
    store(&mut session, &set_up.source.slot, &new, pid).await?;
    postgres.kill().await?;
    drop((stream, session));
    postgres.start_again().await?;
    let session = set_up.session().await?;
    assert_eq!(pending_count(&session, &set_up.source.slot).await?, 2);
    Ok(())
}

#[tokio::test]
async fn r16_a_retry_puts_slot_and_key_into_the_log_and_keeps_the_row() -> Result<()> {
    let set_up = SetUp::with_dead_letters(3).await?;
    let slot = &set_up.source.slot;
    let probe = set_up.probe().await?;
    let output = set_up.run(&["dead-letters", "retry", "--id", "event-1"]).await?;
    assert_eq!(
        (output.code(), output.stdout),
        (
            Some(0),
            format!(
                "asked for 1 retry of slot {slot}; each stays listed as retrying until the broker has confirmed it\n"
            )
        ),
        "{}",
        output.stderr
    );
    let position: EventPosition = "16/0:1".parse()?;
    assert_eq!(set_up.messages(&probe).await?, [message::encode(slot, position)]);
    assert_eq!(
        set_up
            .text("select concat_ws(' ', state, attempts) from walrelay.dead_letters where tx_seq = 1")
            .await?,
        "retrying 1"
    );

    // It is not asked for twice, but recover does so.
    let output = set_up.run(&["dead-letters", "retry", "--key", "16/0:1"]).await?;
    assert_eq!((output.code(), output.stdout.as_str()), (Some(1), ""));
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    let output = set_up.run(&["recover"]).await?;
    assert!(
        output.stdout.ends_with("again    retry of 1 dead letters\n"),
        "{}",
        output.stdout
    );
    assert_eq!(set_up.messages(&probe).await?, [message::encode(slot, position)]);

    // A failed one waits again, a confirmed one goes.
    let (_stream, pid) = set_up.stream().await?;
    let mut session = set_up.session().await?;
    let fate = |failure| [RetryFate { position, failure }];
    let failed = fate(Some((Reason::Nacked, "queue full".to_owned())));
    let recorded = record_retries(&mut session, slot, &failed, pid).await?;
    assert_eq!(recorded.rows, 0);
    let row = set_up.load(&session, position, pid).await?.expect("kept");
    let summary = &row.summary;
    assert_eq!(
        (
            summary.state,
            summary.reason,
            summary.attempts,
            summary.detail.as_str()
        ),
        (State::Pending, Reason::Nacked, 2, "queue full")
    );
    let recorded = record_retries(&mut session, slot, &fate(None), pid).await?;
    assert_eq!(recorded.rows, 0);
    assert!(
        set_up.load(&session, position, pid).await?.is_some(),
        "not being retried"
    );
    let output = set_up.run(&["dead-letters", "retry", "--all", "--yes"]).await?;
    assert!(
        output.stdout.starts_with("asked for 3 retries"),
        "{}",
        output.stdout
    );
    let expected: Vec<_> = (0..3)
        .map(|tx_seq| message::encode(slot, EventPosition { tx_seq, ..position }))
        .collect();
    assert_eq!(set_up.messages(&probe).await?, expected, "in commit order");
    let before = flushed_position(&session).await?;
    let recorded = record_retries(&mut session, slot, &fate(None), pid).await?;
    assert!(recorded.rows == 1 && recorded.end > before);
    assert_eq!(set_up.load(&session, position, pid).await?, None);
    Ok(())
}

#[tokio::test]
async fn r16_many_are_loaded_in_the_order_asked_for_and_within_bounds_and_recorded_at_once() -> Result<()> {
    let set_up = SetUp::with_dead_letters(5).await?;
    let (_stream, pid) = set_up.stream().await?;
    let slot = &set_up.source.slot;
    let mut session = set_up.session().await?;
    set_up.run(&["dead-letters", "retry", "--all", "--yes"]).await?;
    let at = |tx_seq| EventPosition {
        commit_lsn: Lsn::new(0x16_0000_0000),
        tx_seq,
    };
    let size: usize = set_up
        .text("select max(octet_length(columns::text))::text from walrelay.dead_letters")
        .await?
        .parse()?;
    let asked = [at(3), at(9), at(0), at(1), at(2)];
    let loaded = async |bytes| -> Result<Vec<String>> {
        let found = load(&session, slot, &asked, bytes, pid).await?;
        Ok(found
            .iter()
            .map(|found| match found {
                Found::DeadLetter(letter) => letter.summary.position.to_string(),
                Found::Unreadable(summary) => format!("{} unreadable", summary.position),
                Found::Nothing => "nothing".to_owned(),
                Found::Later => "later".to_owned(),
            })
            .collect())
    };
    let later = "later";
    assert_eq!(
        loaded(usize::MAX).await?,
        ["16/0:3", "nothing", "16/0:0", "16/0:1", "16/0:2"]
    );
    assert_eq!(
        loaded(size * 2).await?,
        ["16/0:3", "nothing", "16/0:0", later, later]
    );
    assert_eq!(loaded(0).await?, ["16/0:3", "nothing", later, later, later]);
    // What somebody has changed by hand stands in no other one's way.
    let sql = "update walrelay.dead_letters set columns = '{\"id\": 1}' where tx_seq = 0";
    set_up.client.batch_execute(sql).await?;
    assert_eq!(
        loaded(usize::MAX).await?,
        ["16/0:3", "nothing", "16/0:0 unreadable", "16/0:1", "16/0:2"]
    );

    // Nor does what another version has stored.
    let sql = "alter table walrelay.dead_letters drop constraint dead_letters_reason_check;
               update walrelay.dead_letters set reason = 'expired' where tx_seq = 1";
    set_up.client.batch_execute(sql).await?;
    assert_eq!(
        loaded(usize::MAX).await?,
        ["16/0:3", "nothing", "16/0:0 unreadable", "nothing", "16/0:2"]
    );
    let listed = set_up.run(&["dead-letters", "list"]).await?;
    assert_eq!(listed.code(), Some(0), "{}", listed.stderr);
    assert!(!listed.stdout.contains("16/0:1"), "{}", listed.stdout);
    assert!(listed.stdout.contains("16/0:2"), "{}", listed.stdout);
    let warned: Vec<_> = listed.stderr.lines().collect();
    assert!(
        matches!(warned[..], [line] if line.contains("`expired` is no reason") && line.contains("\"tx_seq\":1,")),
        "{}",
        listed.stderr
    );

    let fate = |tx_seq, failed: bool| RetryFate {
        position: at(tx_seq),
        failure: failed.then(|| (Reason::Unanswered, format!("attempt of {tx_seq}"))),
    };
    let fates = [
        fate(4, true),
        fate(3, false),
        fate(9, false),
        fate(1, true),
        fate(0, false),
    ];
    assert_eq!(record_retries(&mut session, slot, &fates, pid).await?.rows, 2);
    let left = set_up
        .text(
            "select string_agg(concat_ws(' ', tx_seq, state, reason, attempts, detail), ', ' order by tx_seq)
             from walrelay.dead_letters",
        )
        .await?;
    assert_eq!(
        left,
        "1 pending unanswered 2 attempt of 1, 2 retrying unroutable 1 exchange \"outbox\" has no queue, \
         4 pending unanswered 2 attempt of 4"
    );
    Ok(())
}

#[tokio::test]
async fn dead_letters_are_listed_shown_and_discarded_without_a_relay() -> Result<()> {
    let set_up = SetUp::with_dead_letters(2).await?;
    let slot = &set_up.source.slot;
    let listed = set_up
        .run(&["dead-letters", "list", "--failure", "unroutable", "--since", "1h"])
        .await?;
    let lines: Vec<_> = listed.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{}{}", listed.stdout, listed.stderr);
    assert!(
        lines[0].starts_with("KEY     STATE    REASON      ATTEMPTS  LAST FAILED"),
        "{}",
        lines[0]
    );
    assert!(
        lines[1].starts_with("16/0:0  pending  unroutable  1"),
        "{}",
        lines[1]
    );
    assert!(
        lines[1].ends_with("OrderCreated  event-0   order.OrderCreated"),
        "{}",
        lines[1]
    );
    for other in [
        "--failure=invalid",
        "--event-type=Other",
        "--since=2100-01-01T00:00:00Z",
        "--state=discarded",
    ] {
        let listed = set_up.run(&["dead-letters", "list", other]).await?;
        assert_eq!(
            listed.stdout,
            format!("no dead letters in slot {slot}\n"),
            "{other}"
        );
    }
    let listed = set_up
        .run(&["dead-letters", "list", "--limit=1", "--json"])
        .await?;
    let json: serde_json::Value = serde_json::from_str(&listed.stdout)?;
    assert_eq!(json[0]["key"], "16/0:0");
    assert_eq!(listed.stderr, "the oldest 1 of 2; --limit shows more\n");

    let shown = set_up.run(&["dead-letters", "show", "16/0:1", "--json"]).await?;
    let json: serde_json::Value = serde_json::from_str(&shown.stdout)?;
    assert_eq!(json[0]["columns"]["payload"], "{\"n\":  1.50}");
    let shown = set_up.run(&["dead-letters", "show", "event-9"]).await?;
    assert_eq!((shown.code(), shown.stdout.as_str()), (Some(1), ""));

    let output = set_up
        .run(&["dead-letters", "discard", "--all", "--because", "old"])
        .await?;
    assert_eq!(
        (output.code(), output.stderr.as_str()),
        (
            Some(1),
            "walrelay: discard gives up everything that the filter takes: say --yes where there is no terminal to ask on\n"
        )
    );
    let output = set_up
        .run(&[
            "dead-letters",
            "discard",
            "--key",
            "16/0:1",
            "--because",
            "a test",
        ])
        .await?;
    assert_eq!(output.stdout, format!("discarded 1 dead letter of slot {slot}\n"));
    let shown = set_up.run(&["dead-letters", "show", "event-1"]).await?;
    assert!(shown.stdout.contains("by postgres: a test\n"), "{}", shown.stdout);
    let session = set_up.session().await?;
    assert_eq!(pending_count(&session, slot).await?, 1);
    Ok(())
}

#[tokio::test]
async fn commands_name_the_grant_that_they_lack() -> Result<()> {
    let set_up = SetUp::new().await?;
    let (mut session, role) = set_up.session_as_plain_role().await?;
    let (_stream, pid) = set_up.stream().await?;
    let slot = &set_up.source.slot;
    let new = [set_up.dead_letter(key(0x1600, 0))];
    let error = store(&mut session, slot, &new, pid).await.unwrap_err();
    assert_eq!(error.kind(), FaultKind::DatabaseForbidden);
    let grant = format!("grant select, insert, update on walrelay.dead_letters to \"{role}\"");
    assert!(said(&error).contains(&grant), "{}", said(&error));
    let grants = format!("grant usage on schema walrelay to \"{role}\"; {grant}");
    set_up.client.batch_execute(&grants).await?;
    store(&mut session, slot, &new, pid).await?;

    let selector = Selector::EventId("event-1".to_owned());
    let error = skips::request(&session, slot, &selector, "a test")
        .await
        .unwrap_err();
    let grant = format!("grant select, insert, update on walrelay.skips to \"{role}\"");
    assert!(said(&error).contains(&grant), "{}", said(&error));
    set_up.client.batch_execute(&grant).await?;
    assert!(skips::request(&session, slot, &selector, "a test").await?.is_new);
    session.close().await;
    let sql = format!("drop owned by \"{role}\"; drop role \"{role}\"");
    Ok(set_up.client.batch_execute(&sql).await?)
}
