//! Dead letters and skips in the database, and their commands, without a relay (rules 1, 9, 15 and 16).

use anyhow::Result;
use walrelay::fault::FaultKind;
use walrelay::postgres::dead_letters::{
    Columns, NewDeadLetter, Reason, State, fail_retry, load, message, pending_count, settle_retry, store,
};
use walrelay::postgres::skips::{self, Selector};
use walrelay::postgres::{EventPosition, flushed_position};
use walrelay_engine::Lsn;
use walrelay_engine::key::{EventKey, TransactionKey};
use walrelay_engine::timestamp::PgTimestamp;

use walrelay_testbed::{Postgres, PostgresOptions};

use crate::source::{SetUp, said};

fn key(commit_lsn: u64, tx_seq: u64) -> EventKey {
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
            slot: self.source.slot.clone(),
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
    async fn with_dead_letters(count: u64) -> Result<Self> {
        let set_up = Self::new().await?;
        let (_stream, pid) = set_up.stream().await?;
        let mut session = set_up.session().await?;
        for tx_seq in 0..count {
            store(
                &mut session,
                &set_up.dead_letter(key(0x16_0000_0000, tx_seq)),
                pid,
            )
            .await?;
        }
        session.close().await;
        Ok(set_up)
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
    let slot = new.slot.clone();

    let before = flushed_position(&session).await?;
    let stored = store(&mut session, &new, pid).await?;
    assert!(stored > before);
    let found = load(&session, &slot, EventPosition::from(&key))
        .await?
        .expect("stored");
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
    store(&mut session, &new, pid).await?;
    let again = load(&session, &slot, EventPosition::from(&key))
        .await?
        .expect("stored");
    assert_eq!(
        (again.summary.reason, again.summary.attempts),
        (Reason::Invalid, 2)
    );
    assert_eq!(again.summary.first_failed_at, summary.first_failed_at);
    assert!(again.summary.last_failed_at > summary.last_failed_at);
    assert_eq!(pending_count(&session, &slot).await?, 1);

    // Rule 2: another transaction at the same place, after a restore, does not take its row.
    new.key.transaction.xid = 743;
    let error = store(&mut session, &new, pid).await.unwrap_err();
    assert_eq!(error.kind(), FaultKind::DeadLetterTaken);
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
    let new = set_up.dead_letter(key(0x1600, 0));
    let slot = &new.slot;

    let error = store(&mut session, &new, 1).await.unwrap_err();
    assert_eq!(
        said(&error),
        format!("stream_elsewhere: the slot `{slot}` is not streamed by our server process 1 but by none")
    );
    let (_stream, pid) = set_up.stream().await?;
    let error = store(&mut session, &new, pid + 1).await.unwrap_err();
    assert_eq!(
        said(&error),
        format!(
            "stream_elsewhere: the slot `{slot}` is not streamed by our server process {} but by process {pid}",
            pid + 1
        )
    );
    let position = EventPosition::from(&new.key);
    let error = settle_retry(&mut session, slot, position, pid + 1)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), FaultKind::StreamElsewhere);
    assert_eq!(pending_count(&session, slot).await?, 0);
    // The session serves on after a refusal.
    store(&mut session, &new, pid).await?;
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
    let new = set_up.dead_letter(key(0x1600, 0));
    store(&mut session, &new, pid).await?;
    postgres.kill().await?;
    drop((stream, session));
    postgres.start_again().await?;
    let session = set_up.session().await?;
    assert_eq!(pending_count(&session, &new.slot).await?, 1);
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
    let mut session = set_up.session().await?;
    let row = load(&session, slot, position).await?.expect("kept");
    assert_eq!(row.summary.state, State::Retrying);

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
    fail_retry(&mut session, slot, position, Reason::Nacked, "queue full", pid).await?;
    let row = load(&session, slot, position).await?.expect("kept");
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
    settle_retry(&mut session, slot, position, pid).await?;
    assert!(
        load(&session, slot, position).await?.is_some(),
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
    settle_retry(&mut session, slot, position, pid).await?;
    assert_eq!(load(&session, slot, position).await?, None);
    Ok(())
}

#[tokio::test]
async fn dead_letters_are_listed_shown_and_discarded_without_a_relay() -> Result<()> {
    let set_up = SetUp::with_dead_letters(2).await?;
    let slot = &set_up.source.slot;
    let listed = set_up
        .run(&["dead-letters", "list", "--reason", "unroutable", "--since", "1h"])
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
        "--reason=invalid",
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
async fn r9_a_skip_takes_exactly_the_event_it_names_and_only_once() -> Result<()> {
    let set_up = SetUp::new().await?;
    let slot = &set_up.source.slot;
    let output = set_up
        .run(&["skip", "event-7", "--reason", "a typing error"])
        .await?;
    assert_eq!(
        (output.code(), output.stdout),
        (
            Some(0),
            format!("recorded: event event-7 of slot {slot} is skipped when it is held\n")
        ),
        "{}",
        output.stderr
    );
    let output = set_up.run(&["skip", "event-7", "--reason", "a test"]).await?;
    assert!(output.stdout.starts_with("recorded anew"), "{}", output.stdout);

    let mut session = set_up.session().await?;
    let (first, second) = (key(0x1600, 0), key(0x1700, 0));
    assert_eq!(skips::take(&session, slot, &first, Some("event-8")).await?, None);
    assert_eq!(skips::take(&session, slot, &first, None).await?, None);
    let other = "another".parse()?;
    assert_eq!(
        skips::take(&session, &other, &first, Some("event-7")).await?,
        None
    );
    let skip = skips::take(&session, slot, &first, Some("event-7"))
        .await?
        .expect("asked for");
    assert_eq!(
        (skip.reason.as_str(), skip.requested_by.as_str()),
        ("a test", "postgres")
    );
    skips::settled(&mut session, &skip, &first, None).await?;

    // The same event comes again if the slot had not passed it; another one of the same id is another event.
    assert_eq!(
        skips::take(&session, slot, &first, Some("event-7")).await?,
        Some(skip)
    );
    assert_eq!(skips::take(&session, slot, &second, Some("event-7")).await?, None);
    let mut restored = first;
    restored.transaction.xid += 1;
    assert_eq!(
        skips::take(&session, slot, &restored, Some("event-7")).await?,
        None
    );

    // A row without a usable id goes by its key.
    let selector = Selector::Position(EventPosition::from(&second));
    assert!(skips::request(&session, slot, &selector, "no id").await?);
    let skip = skips::take(&session, slot, &second, None)
        .await?
        .expect("asked for");
    skips::settled(&mut session, &skip, &second, None).await?;
    assert!(skips::request(&session, slot, &selector, "again").await?);
    Ok(())
}

#[tokio::test]
async fn commands_name_the_grant_that_they_lack() -> Result<()> {
    let set_up = SetUp::new().await?;
    let (mut session, role) = set_up.session_as_plain_role().await?;
    let (_stream, pid) = set_up.stream().await?;
    let new = set_up.dead_letter(key(0x1600, 0));
    let error = store(&mut session, &new, pid).await.unwrap_err();
    assert_eq!(error.kind(), FaultKind::DatabaseForbidden);
    let grant = format!("grant select, insert, update on walrelay.dead_letters to \"{role}\"");
    assert!(said(&error).contains(&grant), "{}", said(&error));
    let grants = format!("grant usage on schema walrelay to \"{role}\"; {grant}");
    set_up.client.batch_execute(&grants).await?;
    store(&mut session, &new, pid).await?;

    let selector = Selector::EventId("event-1".to_owned());
    let error = skips::request(&session, &new.slot, &selector, "a test")
        .await
        .unwrap_err();
    let grant = format!("grant select, insert, update on walrelay.skips to \"{role}\"");
    assert!(said(&error).contains(&grant), "{}", said(&error));
    set_up.client.batch_execute(&grant).await?;
    assert!(skips::request(&session, &new.slot, &selector, "a test").await?);
    session.close().await;
    let sql = format!("drop owned by \"{role}\"; drop role \"{role}\"");
    Ok(set_up.client.batch_execute(&sql).await?)
}
