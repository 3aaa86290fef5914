//! Rows of a table read by SQL: the same text as the stream's, in batches that miss nothing.

use anyhow::{Context as _, Result, bail};
use tokio_postgres::Client;
use walrelay::postgres::rows::{Filter, Scan, TextColumns};
use walrelay::postgres::{Outbox, QualifiedTable};
use walrelay_engine::condense::Condenser;
use walrelay_engine::pgoutput::{Value, read_insert, read_relation};
use walrelay_engine::walsender::ServerMessage;

use crate::source::{SetUp, said};

/// Larger than any text in these tests.
const LIMIT: u32 = 1024 * 1024;

/// A column whose value the stream passes as a text, or as NULL.
type Columns = Vec<(String, Option<String>)>;

/// Joins the columns of a Relation with the values of an Insert.
fn columns(relation: &[u8], insert: &[u8]) -> Result<Columns> {
    let (relation, insert) = (read_relation(relation)?, read_insert(insert)?);
    let values = relation.columns().zip(insert.new.values());
    let text = |value: Value<'_>| match value {
        Value::Null => Ok(None),
        Value::Text(text) => Ok(Some(String::from_utf8(text.to_vec())?)),
        other @ (Value::Unchanged | Value::Binary(_) | Value::Oversized { .. }) => bail!("{other:?}"),
    };
    values
        .map(|(column, value)| Ok((column.name.to_owned(), text(value)?)))
        .collect()
}

async fn create_slot(client: &Client, slot: &str) -> Result<()> {
    let sql = "select pg_create_logical_replication_slot($1, 'pgoutput')::text";
    client.query_one(sql, &[&slot]).await?;
    Ok(())
}

/// The Relation and Insert messages that the slot brings.
async fn streamed(client: &Client, slot: &str) -> Result<Vec<Vec<u8>>> {
    let sql = "select data from pg_logical_slot_get_binary_changes($1, null, null, 'proto_version', '1',
               'publication_names', 'probe') where get_byte(data, 0) in (ascii('R'), ascii('I'))";
    let rows = client.query(sql, &[&slot]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// I4: what a replayed or backfilled message is made of.
#[tokio::test]
async fn a_row_read_by_sql_has_the_very_text_of_the_stream() -> Result<()> {
    let set_up = SetUp::new().await?;
    let client = &set_up.client;
    let slot = format!("probe_{}", set_up.database.name());
    client
        .batch_execute(
            "create schema \"Shop\";
             create type \"Shop\".pair as (a integer, b text);
             create domain \"Shop\".short as char(6);
             create table \"Shop\".\"Out\"\"box\" (
                 id uuid primary key, truth boolean, blank char(10), \"MixedCase\" \"Shop\".short, address inet, bytes bytea,
                 ratio double precision, small real, document jsonb, raw json, span interval, moment timestamptz,
                 day date, list text[], empty \"Shop\".pair, letter \"char\", price money, nothing text, gone integer,
                 twice integer generated always as (2) stored,
                 aggregate_type text, aggregate_id bigint, event_type text, payload jsonb);
             alter table \"Shop\".\"Out\"\"box\" drop column gone;
             create publication probe for table \"Shop\".\"Out\"\"box\" with (publish = 'insert');
             set TimeZone = 'UTC'",
        )
        .await?;
    create_slot(client, &slot).await?;
    client
        .batch_execute(
            "insert into \"Shop\".\"Out\"\"box\" values (gen_random_uuid(), true, 'a', 'b', '10.0.0.1', '\\x00ff', 0.1::float8 + 0.2,
             0.3, '{\"n\": 0.10000000000000000001, \"t\": \"\\u00e4\"}', '{\"a\":1,  \"a\":2}', '1 day 02:00',
             '2026-11-30 08:00:00.123456+02', '2026-11-30', '{\"x, y\",NULL}', row(null, null), 'q', 12.5, null,
             default, 'order', 42, 'created', '{}')",
        )
        .await?;
    let streamed = streamed(client, &slot).await?;
    let streamed = columns(&streamed[0], &streamed[1])?;

    let session = set_up.session().await?;
    let outbox = &Outbox::from("\"Shop\".\"Out\"\"box\"".parse::<QualifiedTable>()?);
    let read = TextColumns::read(&session, &outbox.table, LIMIT).await?;
    let relation = read.relation().to_vec();
    let mut scan = Scan::new(&session, outbox, read, Filter::default()).await?;
    let rows = scan.next(&session, 10, LIMIT).await?;
    assert_eq!(columns(&relation, &rows[0].insert)?, streamed);
    assert_eq!(streamed[1], ("truth".to_owned(), Some("t".to_owned())));
    assert_eq!(scan.next(&session, 10, LIMIT).await?, []);
    Ok(())
}

/// Or a row that is valid in the stream would be invalid when it is sent again.
#[tokio::test]
async fn of_a_large_row_the_columns_are_read_that_the_stream_would_bring() -> Result<()> {
    const LIMIT: u32 = 640;
    let set_up = SetUp::new().await?;
    let client = &set_up.client;
    let slot = format!("probe_{}", set_up.database.name());
    client
        .batch_execute(
            "create table large (id int primary key, a text, b bytea, c json, d jsonb, e text, aggregate_type text,
                 aggregate_id text, event_type text);
             create publication probe for table large with (publish = 'insert')",
        )
        .await?;
    create_slot(client, &slot).await?;
    client
        .batch_execute(
            "insert into large select n, repeat('a', 600), decode(repeat('bb', case n when 1 then 300 else 400 end), 'hex'),
             to_json(repeat('c', 600)), to_jsonb(repeat('d', 6)), null from generate_series(1, 2) n",
        )
        .await?;
    let streamed = streamed(client, &slot).await?;
    let session = set_up.session().await?;
    let outbox = &Outbox::from("large".parse::<QualifiedTable>()?);
    let read = TextColumns::read(&session, &outbox.table, LIMIT).await?;
    let mut scan = Scan::new(&session, outbox, read, Filter::default()).await?;
    let rows = scan.next(&session, 10, LIMIT * 10).await?;
    assert_eq!(rows.len(), 2);
    for (row, insert) in rows.iter().zip(&streamed[1..]) {
        let payload = [b"w", [0; 24].as_slice(), insert].concat();
        let mut condenser = Condenser::new(payload.len(), usize::try_from(LIMIT)?);
        condenser.feed(&payload)?;
        let payload = condenser.payload().context("a payload")?;
        let ServerMessage::XLogData(data) = ServerMessage::decode(payload)? else {
            bail!("no row")
        };
        let expected: Vec<_> = read_insert(data.data)?.new.values().collect();
        assert!(
            expected
                .iter()
                .any(|value| matches!(value, Value::Oversized { .. }))
        );
        assert_eq!(
            read_insert(&row.insert)?.new.values().collect::<Vec<_>>(),
            expected
        );
    }
    Ok(())
}

#[tokio::test]
async fn batches_end_by_count_or_size_and_pass_no_row_over() -> Result<()> {
    let set_up = SetUp::new().await?;
    // Three events at each moment, so that batches end between equal ones; and a large one.
    set_up
        .client
        .batch_execute(
            "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload, created_at)
             select md5(n::text)::uuid, 'order', n, 'created', to_jsonb(repeat('x', case n when 17 then 5000 else 10 end)),
             timestamptz '2026-01-01 00:00+00' + (n / 3) * interval '1 second' from generate_series(0, 99) n",
        )
        .await?;
    let session = set_up.session().await?;
    let outbox = &set_up.source.outboxes[0];
    let expected = ids(&set_up, "true").await?;
    for (limit, max_bytes) in [(7, LIMIT), (1000, 300), (1000, LIMIT), (1, 1)] {
        let read = TextColumns::read(&session, &outbox.table, LIMIT).await?;
        let mut scan = Scan::new(&session, outbox, read, Filter::default()).await?;
        assert_eq!(scan.count(&session).await?, 100);
        let mut found = Vec::new();
        loop {
            let rows = scan.next(&session, limit, max_bytes).await?;
            let bytes: usize = rows.iter().map(|row| row.insert.len()).sum();
            assert!(bytes < usize::try_from(max_bytes)? + 7000, "{bytes}");
            let Some(last) = rows.last() else { break };
            assert!(last.created_at.is_some());
            found.extend(rows.into_iter().map(|row| row.id));
        }
        assert_eq!(found, expected, "{limit} {max_bytes}");
    }

    let read = TextColumns::read(&session, &outbox.table, 1024).await?;
    let relation = read.relation().to_vec();
    let filter = Filter {
        aggregate: Some(("order".to_owned(), "17".to_owned())),
        ..Filter::default()
    };
    let rows = Scan::new(&session, outbox, read, filter)
        .await?
        .next(&session, 10, LIMIT)
        .await?;
    let error = columns(&relation, &rows[0].insert).unwrap_err();
    assert_eq!(error.to_string(), "Oversized(5002 bytes)");
    Ok(())
}

/// The ids of the rows for which a condition holds, in order of creation.
async fn ids(set_up: &SetUp, condition: &str) -> Result<Vec<String>> {
    let sql = format!("select id::text from outbox_events where {condition} order by created_at, id");
    let rows = set_up.client.query(&sql, &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

#[tokio::test]
async fn a_filter_takes_the_rows_that_fulfil_all_of_it() -> Result<()> {
    let set_up = SetUp::new().await?;
    set_up
        .client
        .batch_execute(
            "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload, created_at)
             select md5(n::text)::uuid, case n % 2 when 0 then 'order' else 'cart/old' end, n % 5,
             case n % 3 when 0 then 'created' else 'paid' end, '{}',
             timestamptz '2026-01-01 00:00+00' + n * interval '1 day' from generate_series(0, 59) n",
        )
        .await?;
    let session = set_up.session().await?;
    let day =
        |day: u64| Some(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_767_225_600 + day * 86_400));
    let some = ids(&set_up, "created_at < '2026-01-04'").await?;
    for (filter, condition) in [
        (
            Filter {
                ids: some.clone(),
                ..Filter::default()
            },
            "created_at < '2026-01-04'",
        ),
        (
            Filter {
                aggregate: Some(("cart/old".to_owned(), "3".to_owned())),
                event_type: Some("paid".to_owned()),
                ..Filter::default()
            },
            "aggregate_type = 'cart/old' and aggregate_id = 3 and event_type = 'paid'",
        ),
        (
            Filter {
                since: day(10),
                until: day(20),
                event_type: Some("created".to_owned()),
                ..Filter::default()
            },
            "created_at >= '2026-01-11 00:00+00' and created_at < '2026-01-21 00:00+00' and event_type = 'created'",
        ),
    ] {
        let outbox = &set_up.source.outboxes[0];
        let read = TextColumns::read(&session, &outbox.table, LIMIT).await?;
        let mut scan = Scan::new(&session, outbox, read, filter).await?;
        let expected = ids(&set_up, condition).await?;
        assert!(!expected.is_empty());
        assert_eq!(scan.count(&session).await?, u64::try_from(expected.len())?);
        let found = scan.next(&session, 100, LIMIT).await?;
        let found: Vec<_> = found.into_iter().map(|row| row.id).collect();
        assert_eq!(found, expected, "{condition}");
    }
    Ok(())
}

#[tokio::test]
async fn a_table_whose_rows_cannot_be_read_whole_is_refused_with_the_remedy() -> Result<()> {
    let set_up = SetUp::new().await?;
    let outbox = &set_up.source.outboxes[0];
    let (session, role) = set_up.session_as_plain_role().await?;
    let read = TextColumns::read(&session, &outbox.table, LIMIT).await?;
    let mut scan = Scan::new(&session, outbox, read, Filter::default()).await?;
    let error = scan.next(&session, 1, LIMIT).await.unwrap_err();
    assert_eq!(
        said(&error),
        format!(
            "database_forbidden: read rows of the outbox table: a privilege is missing (as the table's owner: grant usage \
             on schema \"public\" to \"{role}\"; grant select on \"public\".\"outbox_events\" to \"{role}\"): ERROR 42501: \
             permission denied for table outbox_events"
        )
    );
    let grant = said(&error);
    let (_, grant) = grant.split_once("owner: ").context("a grant")?;
    let (grant, _) = grant.split_once("): ").context("its end")?;
    set_up.client.batch_execute(grant).await?;
    assert_eq!(scan.next(&session, 1, LIMIT).await?, []);

    set_up
        .client
        .batch_execute("alter table outbox_events enable row level security")
        .await?;
    let error = TextColumns::read(&session, &outbox.table, LIMIT)
        .await
        .unwrap_err();
    assert_eq!(
        said(&error),
        format!(
            "database_forbidden: row security of the table public.outbox_events would hide rows from the role \"{role}\": \
             as a superuser, alter role \"{role}\" bypassrls"
        )
    );
    set_up
        .client
        .batch_execute(
            "alter table outbox_events disable row level security; alter table outbox_events drop constraint outbox_events_pkey",
        )
        .await?;
    let read = TextColumns::read(&session, &outbox.table, LIMIT).await?;
    let error = Scan::new(&session, outbox, read, Filter::default())
        .await
        .unwrap_err();
    assert_eq!(
        said(&error),
        "table_unfit: the table public.outbox_events has no unique index on id, or on id and created_at alone"
    );
    Ok(())
}
