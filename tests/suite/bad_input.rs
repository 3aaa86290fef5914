//! Bad input and faults of the surroundings: one line with cause and remedy, no exit, and no restart to heal.

use anyhow::{Result, anyhow, ensure};
use tokio::sync::OnceCell;
use walrelay_testbed::{
    Postgres, PostgresOptions, Relay, RelayBuilder, StopMode, eventually_some, free_port, shared_rabbitmq,
};

use crate::complaint::{Part, complains, named, tells_no};
use crate::world::{EXCHANGE, LONG, World};

/// A password that no output may hold.
const SECRET: &str = "s3cr3t-passw0rd";

// PostgreSQL: the way to it.

#[tokio::test]
async fn a_wrong_password_of_postgresql_heals_when_the_file_is_corrected() -> Result<()> {
    let world = World::without_exchange().await?;
    let database = asking_postgres().await?.database().await?;
    let url = format!(
        "postgres://asked@127.0.0.1:{}/{}",
        database.port(),
        database.name()
    );
    let mut relay = world.relay().postgres_url(&url).build()?;
    let wrong = relay.folder().write("password", "wrong-0ne\n", 0o600)?;
    relay.reconfigure(|relay| relay.text("postgres.password_file", &wrong.to_string_lossy()))?;
    let output = relay.run_command(&["setup"]).await?;
    ensure!(output.code() == Some(1), "{output:?}");
    ensure!(!output.stderr.contains("wrong-0ne"), "{output:?}");

    relay.start()?;
    complains(
        &mut relay,
        Part::Database,
        "database_authentication",
        &["28P01", "asked"],
    )
    .await?;
    relay.folder().write("password", &format!("{SECRET}\n"), 0o600)?;
    named(&mut relay, Part::Database, "slot_missing").await?;
    tells_no(SECRET, &relay).await?;
    tells_no("wrong-0ne", &relay).await
}

#[tokio::test]
async fn a_password_of_postgresql_that_is_missing_or_unreadable_is_named() -> Result<()> {
    let world = World::without_exchange().await?;
    let port = asking_postgres().await?.port();
    let relay = || {
        let url = format!("postgres://asked@127.0.0.1:{port}/postgres");
        world.relay().postgres_url(&url)
    };
    let mut missing = relay().build()?;
    missing.start()?;
    complains(
        &mut missing,
        Part::Database,
        "database_authentication",
        &["password of `asked`"],
    )
    .await?;
    let mut unreadable = relay().text("postgres.password_file", "/no/such/file").build()?;
    unreadable.start()?;
    let words = ["/no/such/file", "No such file"];
    complains(&mut unreadable, Part::Database, "database_authentication", &words).await?;
    let mut empty = relay().build()?;
    let file = empty.folder().write("empty", "\n", 0o600)?;
    empty.reconfigure(|relay| relay.text("postgres.password_file", &file.to_string_lossy()))?;
    empty.start()?;
    complains(
        &mut empty,
        Part::Database,
        "database_authentication",
        &["is empty"],
    )
    .await
}

#[tokio::test]
async fn a_wrong_host_or_port_of_postgresql_is_named() -> Result<()> {
    let world = World::without_exchange().await?;
    let url = format!("postgres://postgres:{SECRET}@no-such-host.invalid/shop");
    let mut relay = world.relay().postgres_url(&url).build()?;
    relay.start()?;
    complains(
        &mut relay,
        Part::Database,
        "database_unreachable",
        &["no-such-host.invalid"],
    )
    .await?;
    tells_no(SECRET, &relay).await?;

    let endpoint = format!("127.0.0.1:{}", free_port());
    let url = format!("postgres://postgres:{SECRET}@{endpoint}/shop");
    let mut relay = world.relay().postgres_url(&url).build()?;
    relay.start()?;
    complains(
        &mut relay,
        Part::Database,
        "database_unreachable",
        &[&endpoint, "refused"],
    )
    .await?;
    tells_no(SECRET, &relay).await
}

#[tokio::test]
async fn a_database_that_is_missing_heals_when_it_is_created() -> Result<()> {
    let world = World::new().await?;
    let name = format!("{}_later", world.database.name());
    let url = format!("postgres://postgres@127.0.0.1:{}/{name}", world.database.port());
    let mut relay = world.relay().postgres_url(&url).build()?;
    relay.start()?;
    complains(&mut relay, Part::Database, "database_missing", &["3D000", &name]).await?;
    world
        .database
        .execute(&format!("create database {name} template template0"))
        .await?;
    relay.setup().await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn a_wal_level_that_is_not_logical_heals_when_it_is_raised() -> Result<()> {
    let world = World::new().await?;
    let mut server = Postgres::start(PostgresOptions::default().setting("wal_level", "replica")).await?;
    let mut relay = world.relay().postgres_url(&server.url("postgres")).build()?;
    let output = relay.run_command(&["setup"]).await?;
    ensure!(output.code() == Some(1), "{output:?}");
    ensure!(output.stderr.contains("wal_level is `replica`"), "{output:?}");
    relay.start()?;
    complains(&mut relay, Part::Database, "wal_level", &["replica", "logical"]).await?;

    // The setting of the test bed stands in the file, this one wins over it.
    let client = server.client("postgres").await?;
    client
        .batch_execute("alter system set wal_level = 'logical'")
        .await?;
    server.restart(StopMode::Fast).await?;
    relay.setup().await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn a_role_that_may_not_replicate_is_named_and_heals() -> Result<()> {
    let world = World::new().await?;
    let role = format!("plain_{}", world.database.name());
    world
        .database
        .execute(&format!("create role {role} login"))
        .await?;
    let mut relay = world.relay().build()?;
    relay.setup().await?;
    let (port, name) = (world.database.port(), world.database.name());
    let url = format!("postgres://{role}@127.0.0.1:{port}/{name}");
    relay.reconfigure(|relay| relay.postgres_url(&url))?;
    relay.start()?;
    complains(
        &mut relay,
        Part::Database,
        "replication_role",
        &[&role, "REPLICATION"],
    )
    .await?;
    world
        .database
        .execute(&format!(
            "alter role {role} replication; grant usage on schema walrelay to {role};
             grant select on walrelay.state, walrelay.slots, walrelay.backfill to {role}"
        ))
        .await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

// PostgreSQL: slot, publication, table. Each is set up, then spoilt, then mended.

#[tokio::test]
async fn a_slot_of_another_plugin_is_refused_until_it_is_gone() -> Result<()> {
    let world = World::new().await?;
    let slot = world.slot();
    let create = format!("select pg_create_logical_replication_slot('{slot}', 'test_decoding')");
    world.database.execute(&create).await?;
    let mut relay = world.relay().build()?;
    let output = relay.run_command(&["setup"]).await?;
    ensure!(
        output.code() == Some(1) && output.stderr.contains("test_decoding"),
        "{output:?}"
    );
    relay.start()?;
    complains(
        &mut relay,
        Part::Database,
        "slot_foreign",
        &[&slot, "test_decoding", "pgoutput"],
    )
    .await?;
    world.database.drop_slots().await?;
    relay.setup().await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn a_physical_slot_or_one_of_another_database_is_refused() -> Result<()> {
    let world = World::new().await?;
    let other = World::without_exchange().await?;
    let physical = format!("physical_{}", world.database.name());
    world
        .database
        .execute(&format!(
            "select pg_create_physical_replication_slot('{physical}')"
        ))
        .await?;
    let mut relay = world.relay().slot(&physical).build()?;
    relay.start()?;
    complains(
        &mut relay,
        Part::Database,
        "slot_foreign",
        &[&physical, "physical"],
    )
    .await?;

    other.relay().build()?.setup().await?;
    let mut relay = world.relay().slot(&other.slot()).build()?;
    relay.start()?;
    let words = [&*other.slot(), other.database.name(), world.database.name()];
    complains(&mut relay, Part::Database, "slot_foreign", &words).await?;
    world
        .database
        .execute(&format!("select pg_drop_replication_slot('{physical}')"))
        .await
        .map_err(Into::into)
}

#[tokio::test]
async fn a_table_that_is_not_published_heals_when_it_is_added() -> Result<()> {
    spoilt_publication(
        "alter publication walrelay drop table outbox_events",
        ("table_not_published", &["public.outbox_events", "walrelay"]),
        "alter publication walrelay add table outbox_events",
    )
    .await
}

#[tokio::test]
async fn a_missing_publication_is_named() -> Result<()> {
    spoilt_publication(
        "drop publication walrelay",
        ("publication_missing", &["walrelay"]),
        // Only because nothing was written meanwhile: a slot does not see a publication that is younger.
        "create publication walrelay for table outbox_events with (publish = 'insert')",
    )
    .await
}

#[tokio::test]
async fn a_publication_without_inserts_is_refused() -> Result<()> {
    spoilt_publication(
        "alter publication walrelay set (publish = 'update')",
        ("publication_unfit", &["walrelay", "insert"]),
        "alter publication walrelay set (publish = 'insert')",
    )
    .await
}

#[tokio::test]
async fn a_row_filter_is_refused() -> Result<()> {
    spoilt_publication(
        "alter publication walrelay set table outbox_events where (aggregate_id > 5)",
        ("publication_unfit", &["row filter", "public.outbox_events"]),
        "alter publication walrelay set table outbox_events",
    )
    .await
}

#[tokio::test]
async fn an_unlogged_table_is_refused() -> Result<()> {
    spoilt_publication(
        "alter publication walrelay drop table outbox_events; alter table outbox_events set unlogged",
        ("table_unlogged", &["public.outbox_events", "WAL"]),
        "alter table outbox_events set logged; alter publication walrelay add table outbox_events",
    )
    .await
}

#[tokio::test]
async fn a_missing_table_is_named() -> Result<()> {
    spoilt(
        "alter table outbox_events rename to hidden",
        ("table_missing", &["public.outbox_events"]),
        "alter table hidden rename to outbox_events",
    )
    .await
}

#[tokio::test]
async fn a_missing_column_is_named() -> Result<()> {
    spoilt(
        "alter table outbox_events rename column event_type to kind",
        ("column_missing", &["public.outbox_events", "event_type"]),
        "alter table outbox_events rename column kind to event_type",
    )
    .await
}

#[tokio::test]
async fn a_payload_that_no_body_can_be_made_of_is_refused() -> Result<()> {
    spoilt(
        "alter table outbox_events alter column payload type int using 1",
        ("payload_type", &["public.outbox_events", "payload", "integer"]),
        "alter table outbox_events alter column payload type text",
    )
    .await
}

#[tokio::test]
async fn a_column_that_goes_in_mid_stream_is_named_once_and_readiness_does_not_flap() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.running().await?;
    world.commit_events(1).await?;
    // The row stays in the log as it was written, so only a person can help.
    world
        .database
        .execute(
            "alter table outbox_events rename column event_type to kind;
             insert into outbox_events (id, aggregate_type, aggregate_id, kind, payload)
             values (gen_random_uuid(), 'order', 1, 'OrderCreated', '{}');
             alter table outbox_events rename column kind to event_type",
        )
        .await?;
    complains(&mut relay, Part::Database, "column_missing", &["event_type"]).await?;
    stays_unready(&mut relay, "column_missing").await
}

#[tokio::test]
async fn a_further_cause_of_the_same_kind_is_said_too() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.relay().build()?;
    relay.setup().await?;
    world
        .database
        .execute("alter table outbox_events rename id to a; alter table outbox_events rename payload to b")
        .await?;
    relay.start()?;
    complains(&mut relay, Part::Database, "column_missing", &["`id`"]).await?;
    world
        .database
        .execute("alter table outbox_events rename a to id")
        .await?;
    let told = |line: &str| line.contains("\"ERROR\"") && line.contains("`payload`");
    relay.wait_for_log("the next missing column", LONG, told).await?;
    Ok(())
}

// RabbitMQ.

#[tokio::test]
async fn a_wrong_password_of_rabbitmq_heals_when_the_file_is_corrected() -> Result<()> {
    let world = World::new().await?;
    let uri = format!(
        "amqp://guest@127.0.0.1:{}/{}",
        world.vhost.port(),
        world.vhost.name()
    );
    let mut relay = world.relay().rabbitmq_uri(&uri).build()?;
    relay.setup().await?;
    let file = relay.folder().path().join("password");
    relay.reconfigure(|relay| relay.text("rabbitmq.password_file", &file.to_string_lossy()))?;
    relay.start()?;
    let words = [&*file.to_string_lossy(), "No such file"];
    complains(&mut relay, Part::Broker, "broker_authentication", &words).await?;

    relay.folder().write("password", &format!("{SECRET}\n"), 0o600)?;
    let told = |line: &str| line.contains("broker_authentication") && line.contains("403");
    relay.wait_for_log("the refusal", LONG, told).await?;
    relay.folder().write("password", "guest\n", 0o600)?;
    relay.wait_ready(LONG).await?;
    tells_no(SECRET, &relay).await
}

#[tokio::test]
async fn a_wrong_user_of_rabbitmq_is_named() -> Result<()> {
    let world = World::new().await?;
    let uri = format!(
        "amqp://nobody:{SECRET}@127.0.0.1:{}/{}",
        world.vhost.port(),
        world.vhost.name()
    );
    let mut relay = world.relay().rabbitmq_uri(&uri).build()?;
    relay.start()?;
    complains(
        &mut relay,
        Part::Broker,
        "broker_authentication",
        &["403", "PLAIN"],
    )
    .await?;
    tells_no(SECRET, &relay).await
}

#[tokio::test]
async fn a_wrong_host_or_port_of_rabbitmq_is_named() -> Result<()> {
    let world = World::without_exchange().await?;
    let uri = format!("amqp://guest:{SECRET}@no-such-host.invalid/v");
    let mut relay = world.relay().rabbitmq_uri(&uri).build()?;
    relay.start()?;
    complains(
        &mut relay,
        Part::Broker,
        "broker_unreachable",
        &["no-such-host.invalid"],
    )
    .await?;
    tells_no(SECRET, &relay).await?;

    let endpoint = format!("127.0.0.1:{}", free_port());
    let mut relay = world
        .relay()
        .rabbitmq_uri(&format!("amqp://guest:{SECRET}@{endpoint}/v"))
        .build()?;
    relay.start()?;
    complains(
        &mut relay,
        Part::Broker,
        "broker_unreachable",
        &[&endpoint, "refused"],
    )
    .await?;
    tells_no(SECRET, &relay).await
}

#[tokio::test]
async fn a_vhost_that_is_missing_or_closed_to_the_user_heals() -> Result<()> {
    let world = World::without_exchange().await?;
    let (broker, port) = (shared_rabbitmq().await?, world.vhost.port());
    let name = format!("later-{}", world.database.name());
    let relay = world
        .relay()
        .rabbitmq_uri(&format!("amqp://guest:guest@127.0.0.1:{port}/{name}"));
    let mut relay = relay.text("rabbitmq.declare.exchange_type", "topic").build()?;
    relay.setup().await?;
    relay.start()?;
    complains(&mut relay, Part::Broker, "broker_vhost", &["530", &name]).await?;
    broker.ctl(&["add_vhost", &name]).await?;
    let told = |line: &str| line.contains("broker_vhost") && line.contains("refused for user");
    relay.wait_for_log("the missing permission", LONG, told).await?;
    broker
        .ctl(&["set_permissions", "-p", &name, "guest", ".*", ".*", ".*"])
        .await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn an_exchange_that_may_not_be_written_to_is_named_once_and_heals() -> Result<()> {
    let world = World::new().await?;
    let (broker, vhost) = (shared_rabbitmq().await?, world.vhost.name().to_owned());
    let user = format!("reader-{}", world.database.name());
    broker.ctl(&["add_user", &user, SECRET]).await?;
    broker
        .ctl(&["set_permissions", "-p", &vhost, &user, "", "", ".*"])
        .await?;
    let uri = format!("amqp://{user}:{SECRET}@127.0.0.1:{}/{vhost}", world.vhost.port());
    let mut relay = world.relay().rabbitmq_uri(&uri).build()?;
    relay.setup().await?;
    world.commit_events(3).await?;
    relay.start()?;
    complains(
        &mut relay,
        Part::Broker,
        "exchange_forbidden",
        &["403", EXCHANGE, &user],
    )
    .await?;
    stays_unready(&mut relay, "exchange_forbidden").await?;
    tells_no(SECRET, &relay).await?;

    broker
        .ctl(&["set_permissions", "-p", &vhost, &user, "", ".*", ".*"])
        .await?;
    world.recorder().await?.wait_for_distinct(3, LONG).await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

// The configuration, and the relay's own port.

#[tokio::test]
async fn a_port_in_use_does_not_keep_events_from_flowing_and_heals() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.relay().build()?;
    relay.setup().await?;
    let listener = std::net::TcpListener::bind(("127.0.0.1", relay.admin_port()))?;
    relay.start()?;
    let port = relay.admin_port().to_string();
    let told =
        |line: &str| line.contains("\"WARN\"") && line.contains(&port) && line.contains("admin.listen");
    let line = relay.wait_for_log("the port in use", LONG, told).await?;
    ensure!(
        line.contains("\"remedy\":") && line.contains("Address already in use"),
        "{line}"
    );

    let recorder = world.recorder().await?;
    world.commit_events(1).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    drop(listener);
    relay.wait_ready(LONG).await?;
    let told = relay
        .log()
        .iter()
        .filter(|line| line.contains("Address already in use") && !line.contains("\"DEBUG\""))
        .count();
    ensure!(told == 1, "said {told} times");
    Ok(())
}

#[tokio::test]
async fn what_is_wrong_in_the_configuration_is_one_line_and_exit_78() -> Result<()> {
    let base = || {
        RelayBuilder::new(env!("CARGO_BIN_EXE_walrelay"))
            .postgres_url(&format!("postgres://u:{SECRET}@h/d"))
            .rabbitmq_uri(&format!("amqp://u:{SECRET}@h/v"))
    };
    let cases = [
        (
            base().postgres_url(&format!("http://u:{SECRET}@h/d")),
            "postgres.url is not valid: expected postgres://",
        ),
        (
            base().postgres_url(&format!("postgres://u:{SECRET}@h:port/d")),
            "postgres.url is not valid: the port is not a number",
        ),
        (
            base().postgres_url(&format!("postgres://u:{SECRET}@x@h/d")),
            "postgres.url is not valid: ",
        ),
        (
            base().postgres_url(&format!("host=h user=u password={SECRET} sslmode=always")),
            "`sslmode` must be disable, prefer",
        ),
        (
            base().rabbitmq_uri(&format!("http://u:{SECRET}@h/v")),
            "rabbitmq.uri is not valid: the scheme is `http`",
        ),
        (
            base().rabbitmq_uri(&format!("amqp://u:{SECRET}@h/a/b")),
            "rabbitmq.uri is not valid: the virtual host has a slash",
        ),
        (
            base().rabbitmq_uri(&format!("amqp://u:{SECRET}@h:port/v")),
            "rabbitmq.uri is not valid: ",
        ),
        (
            base().text("postgres.slot", "Not A Slot"),
            "postgres.slot must be 1 to 63 lower-case letters",
        ),
        (
            base().text("postgres.slott", SECRET),
            "unknown key postgres.slott; did you mean postgres.slot?",
        ),
        (
            base().text("postgres.pasword", SECRET),
            "unknown key postgres.pasword",
        ),
        (base().text("admin.listen", "nowhere"), "admin.listen must be "),
        (
            base().text("rabbitmq.exchange", "a{b"),
            "rabbitmq.exchange is not valid: ",
        ),
        (base().unset("postgres.url"), "postgres.url is not set: "),
        (base().extra(&format!("password = \"{SECRET}")), "walrelay.toml:"),
    ];
    for (builder, words) in cases {
        let relay = builder.build()?;
        for command in ["run", "setup"] {
            let output = relay.run_command(&[command]).await?;
            let lines: Vec<&str> = output.stderr.lines().collect();
            ensure!(output.code() == Some(78), "{words}: {output:?}");
            ensure!(output.stdout.is_empty() && lines.len() == 1, "{output:?}");
            ensure!(lines[0].contains(words), "{words:?} is not in {:?}", lines[0]);
            ensure!(!lines[0].contains(SECRET), "{output:?}");
        }
    }
    Ok(())
}

/// A server that asks everybody who comes by TCP for a password, and knows the role `asked`.
async fn asking_postgres() -> Result<&'static Postgres> {
    static ASKING: OnceCell<Postgres> = OnceCell::const_new();
    let start = async || -> Result<Postgres> {
        let server =
            Postgres::start(PostgresOptions::default().hba("host all all 127.0.0.1/32 scram-sha-256"))
                .await?;
        let create = format!("create role asked login replication password '{SECRET}'");
        server.client("postgres").await?.batch_execute(&create).await?;
        Ok(server)
    };
    ASKING.get_or_try_init(start).await
}

/// Sets up, spoils by SQL, sees the relay name it, mends by SQL, sees events pass without a restart.
async fn spoilt(spoil: &str, complaint: (&str, &[&str]), mend: &str) -> Result<()> {
    let (world, mut relay) = named_when_spoilt(spoil, complaint).await?;
    world.database.execute(mend).await?;
    flows_again(&world, &mut relay).await
}

/// The same for what the guard watches: mended, it is not what set-up left, so a person has to say that it will do (R5).
async fn spoilt_publication(spoil: &str, complaint: (&str, &[&str]), mend: &str) -> Result<()> {
    let (world, mut relay) = named_when_spoilt(spoil, complaint).await?;
    world.database.execute(mend).await?;
    relay
        .wait_readiness("the guard's word", LONG, |readiness| {
            readiness.json["database"]["cause"] == "publication_changed"
        })
        .await?;
    let recovered = relay.run_command(&["recover"]).await?;
    anyhow::ensure!(
        recovered.code() == Some(0),
        "recover failed: {}",
        recovered.stderr
    );
    flows_again(&world, &mut relay).await
}

async fn named_when_spoilt(spoil: &str, (cause, words): (&str, &[&str])) -> Result<(World, Relay)> {
    let world = World::new().await?;
    let mut relay = world.relay().build()?;
    relay.setup().await?;
    world.database.execute(spoil).await?;
    relay.start()?;
    complains(&mut relay, Part::Database, cause, words).await?;
    Ok((world, relay))
}

async fn flows_again(world: &World, relay: &mut Relay) -> Result<()> {
    relay.wait_ready(LONG).await?;
    let recorder = world.recorder().await?;
    world.commit_events(1).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    Ok(())
}

/// Through a further try the relay never says that it is ready.
async fn stays_unready(relay: &mut Relay, cause: &str) -> Result<()> {
    let tries = || relay.log().iter().filter(|line| line.contains(cause)).count();
    let until = tries() + 1;
    eventually_some("a further try", LONG, || async {
        match relay.ready().await {
            Ok(readiness) if readiness.is_ready() => Some(Err(anyhow!("it said ready: {}", readiness.text))),
            Ok(_) => (tries() >= until).then_some(Ok(())),
            Err(error) => Some(Err(error.into())),
        }
    })
    .await?
}
