//! Outbox tables whose columns are called otherwise, of other types, and marked otherwise: each through its whole life.

mod life;
mod wrong;

use anyhow::Result;
use walrelay_testbed::{CommandOutput, RelayBuilder, eventually};

use crate::world::{LONG, World, text};

/// A table and how it is configured. Its events of the type `order` find a queue, others do not.
struct Shape<'a> {
    create: &'a str,
    /// Lines of its `[[outbox]]`.
    settings: &'a str,
    /// Inserts `$2` rows of the event type `$1`, and returns their ids as text.
    insert: &'a str,
    /// The condition that a row is unsent.
    unsent: &'a str,
}

/// Debezium's columns, with a status as pollers have it.
const DEBEZIUM: Shape<'_> = Shape {
    create: "create table outbox (id bigint generated always as identity primary key, aggregatetype varchar(255) not null,
                 aggregateid varchar(255) not null, type varchar(255) not null, payload varchar(4000) not null,
                 status varchar(10) not null default 'NEW', attempts integer not null default 0,
                 made_at timestamptz not null default clock_timestamp())",
    settings: "preset = 'debezium'\nunsent = \"status = 'NEW' and attempts < 3\"\nmark_set = \"status = 'SENT', attempts = attempts + 1\"\n\
               [outbox.columns]\ncreated_at = 'made_at'",
    insert: "insert into outbox (aggregatetype, aggregateid, type, payload)
             select 'shop', '42', $1::text, '{\"a\":  1.0}' from generate_series(1, $2::int) returning id::text",
    unsent: "status = 'NEW'",
};

/// Names that only quotes can hold, and a payload of bytes.
const AWKWARD: Shape<'_> = Shape {
    create: "create table outbox (\"Event Id\" uuid primary key, \"order\" text not null, \"sent \"\"at\"\"\" timestamptz,
                 \"sel'ect\" bytea not null, \"When?\" timestamptz not null default clock_timestamp(), \"Größe\" bigint not null)",
    settings: "[outbox.columns]\nid = 'Event Id'\naggregate_type = { value = 'shop' }\naggregate_id = 'Größe'\n\
               event_type = 'order'\npayload = \"sel'ect\"\ncreated_at = 'When?'\nsent_at = 'sent \"at\"'",
    insert: "insert into outbox (\"Event Id\", \"order\", \"sel'ect\", \"Größe\")
             select gen_random_uuid(), $1::text, '\\x7b7d', 42 from generate_series(1, $2::int) returning \"Event Id\"::text",
    unsent: "\"sent \"\"at\"\"\" is null",
};

/// Ids of a fixed length, which lose their blanks where they are cast; and a flag for a mark.
const BLANKS: Shape<'_> = Shape {
    create: "create table outbox (id char(40) primary key, aggregate_type text not null, aggregate_id text not null,
                 event_type text not null, payload json not null, done boolean, created_at timestamptz not null default clock_timestamp());
             create sequence numbers",
    settings: "unsent = 'done is null'\nmark_set = 'done = true'",
    insert: "insert into outbox (id, aggregate_type, aggregate_id, event_type, payload)
             select 'ö, {\"' || nextval('numbers'), 'shop', '42', $1::text, '{}' from generate_series(1, $2::int)
             returning concat(id)",
    unsent: "done is null",
};

/// Ids of any text, and a flag that is set together with a time.
const TEXTS: Shape<'_> = Shape {
    create: "create table outbox (id text primary key, aggregate_type text not null, aggregate_id text not null, event_type text not null,
                 payload text not null, done boolean, sent_on timestamptz, created_at timestamptz not null default clock_timestamp());
             create sequence numbers",
    settings: "unsent = 'done is null'\nmark_set = 'done = true, sent_on = clock_timestamp()'\n\
               [outbox.columns]\nsent_at = 'sent_on'",
    ..BLANKS
};

impl Shape<'_> {
    /// A world with the table, in which events of the type `order` find the queue.
    async fn world(&self) -> Result<World> {
        let world = World::for_orders().await?;
        world.client.batch_execute(self.create).await?;
        Ok(world)
    }

    fn relay(&self, world: &World) -> RelayBuilder {
        world
            .relay()
            .outboxes(&["public.outbox"])
            .text("rabbitmq.routing_key", "{event_type}")
            .text("delivery.on_unroutable", "dead_letter")
            .extra(self.settings)
    }

    async fn insert(&self, world: &World, event_type: &str, count: i32) -> Result<Vec<String>> {
        let rows = world.client.query(self.insert, &[&event_type, &count]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    async fn wait_unsent(&self, world: &World, count: usize) -> Result<()> {
        let sql = format!("select count(*)::text from outbox where {}", self.unsent);
        wait_for(world, &sql, &count.to_string()).await
    }
}

async fn wait_for(world: &World, sql: &str, expected: &str) -> Result<()> {
    let what = format!("`{sql}` to be {expected}");
    eventually(&what, LONG, async || {
        text(&world.client, sql)
            .await
            .is_ok_and(|found| found == expected)
    })
    .await?;
    Ok(())
}

/// A line without the folder of the configuration.
fn stable(line: &str) -> &str {
    line.find("walrelay.toml:").map_or(line, |at| &line[at..])
}

/// What a command has written where it ended well.
fn well(output: &CommandOutput) -> Result<&str> {
    anyhow::ensure!(output.code() == Some(0), "{output:?}");
    Ok(&output.stdout)
}
