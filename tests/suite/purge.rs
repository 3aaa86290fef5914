//! `walrelay purge`: rows that were sent long ago, and nothing else.

use std::time::Duration;

use anyhow::{Context as _, Result};
use walrelay::postgres::Purge;

use crate::source::{SetUp, said};
use crate::world::World;

const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// 400 rows created 20 days ago, half of them sent 10 days ago, a quarter yesterday and a quarter never.
pub(crate) const ROWS: &str = "insert into outbox_events
    (id, aggregate_type, aggregate_id, event_type, payload, sent_at, created_at)
    select md5(n::text)::uuid, 'order', n, 'created', '{}', case n % 4 when 0 then null
    when 1 then now() - interval '1 day' else now() - interval '10 days' end,
    now() - interval '20 days' - n * interval '1 second' from generate_series(0, 399) n";

/// How many rows there are, unsent ones, and old ones.
pub(crate) const LEFT: &str = "select concat_ws(' ', count(*), count(*) filter (where sent_at is null),
    count(*) filter (where sent_at < now() - interval '7 days')) from outbox_events";

/// Dead letters for three old rows: of this slot, of another one, and one that nobody wants any more.
pub(crate) const DEAD_LETTERS: &str = "insert into walrelay.dead_letters
    (slot, commit_lsn, tx_seq, outbox, xid, commit_time, event_id, reason, detail, columns, state, discard_reason,
     discarded_at, discarded_by)
    select slot, '16/B374D848', n, 'public.outbox_events', 1, now(), md5(n::text)::uuid::text, 'nacked', '', '{}', state,
    reason, case when reason is not null then now() end, reason
    from (values ('here', 2, 'pending', null), ('elsewhere', 3, 'retrying', null), ('here', 6, 'discarded', 'a test'))
    v(slot, n, state, reason)";

const INDEX: &str = "create index on outbox_events (created_at)";

/// Purges in batches of `limit`; how many rows, in how many batches.
async fn purge(set_up: &SetUp, limit: u32) -> Result<(u64, u32)> {
    let session = set_up.session().await?;
    let mut purge = Purge::prepare(&session, &set_up.source.outboxes[0], WEEK).await?;
    let (mut rows, mut batches) = (0, 0);
    loop {
        let purged = purge.next(&session, limit).await?;
        assert!(purged.rows <= 2 * u64::from(limit));
        rows += purged.rows;
        batches += 1;
        assert!(batches < 1000, "it never ends");
        if purged.is_over {
            session.close().await;
            return Ok((rows, batches));
        }
    }
}

#[tokio::test]
async fn only_rows_sent_long_ago_go_and_never_those_of_dead_letters_that_wait() -> Result<()> {
    for index in ["select", INDEX] {
        let set_up = SetUp::new().await?;
        for sql in [ROWS, DEAD_LETTERS, index] {
            set_up.client.batch_execute(sql).await?;
        }
        let (rows, batches) = purge(&set_up, 50).await?;
        assert_eq!((rows, batches), (198, 4));
        assert_eq!(set_up.text(LEFT).await?, "202 100 2");
        assert_eq!(purge(&set_up, 50).await?, (0, 1));
    }
    Ok(())
}

#[tokio::test]
async fn rows_that_somebody_has_locked_are_passed_over_without_waiting() -> Result<()> {
    for index in ["select", INDEX] {
        let set_up = SetUp::new().await?;
        set_up.client.batch_execute(ROWS).await?;
        set_up.client.batch_execute(index).await?;
        let mut other = set_up.database.client().await?;
        let transaction = other.transaction().await?;
        let locked = transaction
            .execute(
                "update outbox_events set event_type = 'x' where aggregate_id in (2, 3, 398)",
                &[],
            )
            .await?;
        assert_eq!(locked, 3);
        assert_eq!(purge(&set_up, 1000).await?.0, 197);
        transaction.rollback().await?;
        assert_eq!(purge(&set_up, 1000).await?.0, 3);
    }
    Ok(())
}

/// The unindexed way goes through all blocks of all partitions, whatever their size.
#[tokio::test]
async fn rows_of_all_partitions_go_whose_ids_may_repeat() -> Result<()> {
    let database = walrelay_testbed::shared_postgres().await?.database().await?;
    let client = database.client().await?;
    client
        .batch_execute(
            "create table outbox_events (id uuid, aggregate_type text not null, aggregate_id bigint not null,
                 event_type text not null, payload jsonb not null, sent_at timestamptz, created_at timestamptz not null,
                 primary key (id, created_at)) partition by range (created_at);
             create table early partition of outbox_events for values from ('2020-01-01') to ('2026-01-01');
             create table late partition of outbox_events for values from ('2026-01-01') to ('2060-01-01');
             insert into outbox_events select md5(n::text)::uuid, 'order', n, 'created', to_jsonb(repeat('x', 500)),
                 '2026-01-02', '2025-01-01' from generate_series(1, 6000) n;
             insert into outbox_events select md5(n::text)::uuid, 'order', n, 'created', '{}',
                 case when n > 10 then null else timestamptz '2026-01-02' end, '2026-01-01' from generate_series(1, 20) n",
        )
        .await?;
    let set_up = SetUp::on(database).await?;
    assert!(
        set_up
            .text("select (pg_relation_size('early') > 3000000)::text")
            .await?
            == "true"
    );
    assert_eq!(purge(&set_up, 700).await?.0, 6010);
    assert_eq!(
        set_up
            .text("select concat_ws(' ', count(*), min(aggregate_id)) from outbox_events")
            .await?,
        "10 11"
    );
    Ok(())
}

#[tokio::test]
async fn the_smallest_role_that_may_purge_is_the_one_that_the_error_names() -> Result<()> {
    let set_up = SetUp::new().await?;
    set_up.client.batch_execute(ROWS).await?;
    let (session, role) = set_up.session_as_plain_role().await?;
    let mut purge = Purge::prepare(&session, &set_up.source.outboxes[0], WEEK).await?;
    let error = said(&purge.next(&session, 10).await.unwrap_err());
    assert_eq!(
        error.replace(&role, "ROLE"),
        "database_forbidden: delete rows that were sent long ago: a privilege is missing (as the table's owner: grant usage on \
         schema \"public\" to \"ROLE\"; grant select, update (\"sent_at\"), delete on \"public\".\"outbox_events\" to \"ROLE\"; \
         grant usage on schema walrelay to \"ROLE\"; grant select on walrelay.dead_letters to \"ROLE\"): ERROR 42501: \
         permission denied for schema walrelay"
    );
    let (_, grant) = error.split_once("owner: ").context("a grant")?;
    let (grant, _) = grant.split_once("): ").context("its end")?;
    set_up.client.batch_execute(grant).await?;
    assert_eq!(purge.next(&session, 10).await?.rows, 10);
    Ok(())
}

#[tokio::test]
async fn a_table_that_cannot_be_purged_is_refused_in_one_line() -> Result<()> {
    let set_up = SetUp::new().await?;
    let session = set_up.session().await?;
    let mut lines = Vec::new();
    for sql in [
        "alter table outbox_events drop constraint outbox_events_pkey",
        "alter table outbox_events alter sent_at type date",
        "alter table outbox_events drop column sent_at",
        "drop table outbox_events",
    ] {
        set_up.client.batch_execute(sql).await?;
        let error = Purge::prepare(&session, &set_up.source.outboxes[0], WEEK)
            .await
            .unwrap_err();
        lines.push(said(&error));
    }
    assert_eq!(
        lines,
        [
            "table_unfit: the table public.outbox_events has no index that begins with id",
            "table_unfit: the table public.outbox_events has no column `sent_at` of the type timestamptz, by which rows are old",
            "table_unfit: the table public.outbox_events has no column `sent_at` of the type timestamptz, by which rows are old",
            "table_missing: the table public.outbox_events does not exist",
        ]
    );
    Ok(())
}

#[tokio::test]
async fn the_command_counts_and_deletes() -> Result<()> {
    let set_up = SetUp::new().await?;
    set_up.client.batch_execute(ROWS).await?;
    let counted = set_up.run(&["purge", "--older-than", "7d", "--dry-run"]).await?;
    assert_eq!(
        counted.stdout, "200 rows of public.outbox_events would be deleted\n",
        "{}",
        counted.stderr
    );
    let unasked = set_up.run(&["purge", "--older-than", "7d"]).await?;
    assert_eq!((unasked.code(), unasked.stdout.as_str()), (Some(1), ""));
    assert!(
        unasked
            .stderr
            .contains("deletes 200 rows of public.outbox_events for good: say --yes"),
        "{}",
        unasked.stderr
    );
    let whole = set_up
        .run(&["purge", "--older-than", "7d", "--partitions", "--print"])
        .await?;
    assert!(
        whole.stderr.contains("leave --partitions out"),
        "{}",
        whole.stderr
    );
    assert_eq!(set_up.text(LEFT).await?, "400 100 200");
    let purged = set_up
        .run(&[
            "purge",
            "--older-than",
            "7d",
            "--batch",
            "7",
            "--yes",
            "--table",
            "outbox_events",
        ])
        .await?;
    assert_eq!(
        (purged.code(), purged.stdout.as_str(), purged.stderr.as_str()),
        (Some(0), "deleted 200 rows of public.outbox_events\n", "")
    );
    assert_eq!(set_up.text(LEFT).await?, "200 100 0");
    Ok(())
}

/// What is printed runs as it is, beside a live relay.
#[tokio::test]
async fn old_partitions_whose_rows_are_all_sent_are_dropped_by_the_sql_that_is_printed() -> Result<()> {
    let world = World::new().await?;
    let client = &world.client;
    client
        .batch_execute(
            "create schema \"Shop\";
             create table \"Shop\".\"Out Box\" (id uuid, aggregate_type text not null, aggregate_id bigint not null,
                 event_type text not null, payload jsonb not null, sent_at timestamptz, created_at timestamptz not null,
                 primary key (id, created_at)) partition by range (created_at);
             create table \"Shop\".\"2020\" partition of \"Shop\".\"Out Box\" for values from ('2020-01-01') to ('2021-01-01')
                 partition by hash (id);
             create table \"Shop\".half partition of \"Shop\".\"2020\" for values with (modulus 2, remainder 0);
             create table \"Shop\".other partition of \"Shop\".\"2020\" for values with (modulus 2, remainder 1);
             create table \"Shop\".unsent partition of \"Shop\".\"Out Box\" for values from ('2021-01-01') to ('2022-01-01');
             create table \"Shop\".dead partition of \"Shop\".\"Out Box\" for values from ('2022-01-01') to ('2023-01-01');
             create table \"Shop\".empty partition of \"Shop\".\"Out Box\" for values from ('2023-01-01') to ('2024-01-01');
             create table \"Shop\".now partition of \"Shop\".\"Out Box\" for values from ('2024-01-01') to (maxvalue);
             insert into \"Shop\".\"Out Box\" select md5(n::text)::uuid, 'order', n, 'created', '{}',
                 case when n = 21 then null else now() - interval '40 days' end, make_timestamptz(2020 + n / 20, 2, 1, 0, 0, n % 20)
                 from generate_series(0, 99) n",
        )
        .await?;
    let recorder = world.recorder().await?;
    let relay = world.relay().outboxes(&["\"Shop\".\"Out Box\""]).start().await?;
    client
        .batch_execute(
            &DEAD_LETTERS
                .replace("public.outbox_events", "\"Shop\".\"Out Box\"")
                .replace("md5(n::text)", "md5('45')"),
        )
        .await?;

    let printed = relay
        .run_command(&["purge", "--partitions", "--print", "--older-than", "30d"])
        .await?;
    assert_eq!(printed.code(), Some(0), "{}", printed.stderr);
    assert_eq!(
        printed
            .stderr
            .lines()
            .filter(|line| line.contains("stays"))
            .collect::<Vec<_>>(),
        [
            "\"Shop\".unsent stays: it holds a row that must not go",
            "\"Shop\".dead stays: it holds a row that must not go",
        ]
    );
    let now = printed
        .stdout
        .split("t.\"sent_at\" < ")
        .nth(1)
        .and_then(|rest| rest.split("::").next());
    let stable = printed.stdout.replace(now.context("a time")?, "'TIME'");
    insta::assert_snapshot!("old_partitions", stable);

    // What arrives between the look and the detaching keeps a partition from being dropped.
    client
        .batch_execute(
            "insert into \"Shop\".\"Out Box\" values (gen_random_uuid(), 'order', 1, 'late', '{}', null, '2023-02-01')",
        )
        .await?;
    recorder.wait_for(1, crate::world::LONG).await?;
    let mut refusals = Vec::new();
    for statement in printed
        .stdout
        .split_inclusive(";\n")
        .fold(Vec::<String>::new(), |mut all, part| {
            // The block between dollar quotes is one statement.
            match all
                .last_mut()
                .filter(|last| last.matches("$walrelay$").count() == 1)
            {
                Some(last) => last.push_str(part),
                None => all.push(part.to_owned()),
            }
            all
        })
    {
        if let Err(error) = client.batch_execute(&statement).await {
            refusals.push(
                error
                    .as_db_error()
                    .context("an error of the server")?
                    .message()
                    .to_owned(),
            );
        }
    }
    assert_eq!(
        refusals,
        [
            "\"Shop\".\"empty\" holds a row that must stay; alter table \"Shop\".\"Out Box\" attach partition \"Shop\".\"empty\" \
          FOR VALUES FROM ('2023-01-01 00:00:00+00') TO ('2024-01-01 00:00:00+00')"
        ]
    );
    let left = "select string_agg(relname, ' ' order by relname) from pg_class where relnamespace = '\"Shop\"'::regnamespace
                and relkind in ('r', 'p')";
    assert_eq!(
        crate::world::text(client, left).await?,
        "Out Box dead empty now unsent"
    );
    client
        .batch_execute(
            "insert into \"Shop\".\"Out Box\" values (gen_random_uuid(), 'order', 1, 'after', '{}', null, now())",
        )
        .await?;
    recorder.wait_for(2, crate::world::LONG).await?;
    Ok(())
}
