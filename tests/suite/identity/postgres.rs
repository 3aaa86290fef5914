//! PostgreSQL's side.

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::OnceCell;
use tokio_postgres::Client;
use walrelay_testbed::{
    Authority, Certificates, Database, Folder, KeyKind, Postgres, PostgresOptions, Relay, RelayBuilder,
    Validity, eventually_some,
};

use super::impostor::Impostor;
use super::{Pair, told};
use crate::complaint::{Part, complains, named, tells_no};
use crate::world::{LONG, World, insert_event};

const SECRET: &str = "not-to-be-told";

/// SCRAM-SHA-256-PLUS on the stream and on SQL sessions, with both hash functions that certificates commonly have.
#[tokio::test]
async fn a_login_is_bound_to_the_channel_where_that_is_required() -> Result<()> {
    let world = World::new().await?;
    let server = secure().await?;
    for settings in [
        "channel_binding=require sslmode=verify-full",
        "channel_binding=disable sslmode=require",
    ] {
        let settings = format!("user=by_scram password={SECRET} {settings}");
        let mut stage = server.stage(&world, &settings).await?;
        stage.delivers(&world).await.context(settings)?;
        tells_no(SECRET, &stage.relay).await?;
    }

    let certificates = Certificates::of(Authority::of_kind("p384", KeyKind::P384)?, &["localhost"])?;
    let options = PostgresOptions::default()
        .tls(&certificates)
        .hba("host all by_scram 127.0.0.1/32 scram-sha-256");
    let postgres = Postgres::start(options).await?;
    create_roles(&postgres).await?;
    let settings = format!("user=by_scram password={SECRET} channel_binding=require sslmode=verify-ca");
    let mut stage = Stage::on(&postgres, &certificates, &world, &settings).await?;
    stage.delivers(&world).await
}

/// Nothing is told to a server that would not bind: no password in plain, no hash of it.
#[tokio::test]
async fn a_server_that_does_not_bind_is_refused_where_that_is_required() -> Result<()> {
    let world = World::new().await?;
    let server = secure().await?;
    let plain = Postgres::start(PostgresOptions::default()).await?;
    let without_tls = format!("port={} user=postgres sslmode=prefer", plain.port());
    for (settings, reason) in [
        ("user=by_plain sslmode=require", "did not ask for scram-sha-256"),
        ("user=postgres sslmode=require", "did not ask for scram-sha-256"),
        (&without_tls, "has no TLS"),
    ] {
        let settings = format!("{settings} password={SECRET} channel_binding=require");
        let mut stage = server.stage(&world, &settings).await?;
        let words = ["channel_binding=require", reason];
        // An SQL session, then the stream.
        let output = stage.relay.run_command(&["setup"]).await?;
        ensure!(
            output.code() == Some(1) && words.iter().all(|word| output.stderr.contains(word)),
            "{settings}: {}",
            output.stderr
        );
        stage.relay.start()?;
        stage.complains("database_authentication", &words).await?;
        tells_no(SECRET, &stage.relay).await?;
    }
    Ok(())
}

/// What binding is for: a certificate that we trust does not help whoever passes our login on.
#[tokio::test]
async fn somebody_in_between_cannot_pass_a_login_on() -> Result<()> {
    let world = World::new().await?;
    let server = secure().await?;
    let stolen = server.certificates.authority().server(&["localhost"])?;
    let impostor = Impostor::start(server.postgres.port(), &stolen).await?;
    let settings = |binding| {
        format!(
            "user=by_scram password={SECRET} sslmode=verify-full channel_binding={binding} port={}",
            impostor.port()
        )
    };
    let mut stage = server.stage(&world, &settings("prefer")).await?;
    stage.relay.start()?;
    stage
        .complains("database_authentication", &["channel binding"])
        .await?;
    // It works otherwise, so nothing else stood in the way.
    let mut stage = server.stage(&world, &settings("disable")).await?;
    stage.delivers(&world).await
}

#[tokio::test]
async fn a_client_certificate_lets_us_in_and_is_read_again_at_each_connect() -> Result<()> {
    let world = World::new().await?;
    let server = secure().await?;
    let pair = Pair::of(&server.clients.client("by_cert")?)?;
    let mut stage = server.stage(&world, &certified(&pair)).await?;
    stage.delivers(&world).await?;
    let client = stage.database.client().await?;
    let first = stage.serial(&client).await?.context("no certificate")?;

    // Another one under the same names: the next session shows it.
    pair.replace(&server.clients.client("by_cert")?)?;
    let sql = "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = $1";
    client.query_one(sql, &[&stage.database.name()]).await?;
    eventually_some("a session with the new certificate", LONG, async || {
        match stage.serial(&client).await {
            Ok(Some(now)) if now != first => Some(Ok(())),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        }
    })
    .await??;
    stage.relay.wait_ready(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn what_is_wrong_with_our_certificate_is_told_and_heals() -> Result<()> {
    const CAUSE: &str = "database_client_certificate";
    let world = World::new().await?;
    let server = secure().await?;
    let stranger = Authority::new("stranger")?.client("by_cert")?;
    let ours = server.clients.client("by_cert")?;
    let pair = Pair::of(&ours)?;
    let mut stage = server.stage(&world, &certified(&pair)).await?;
    stage.relay.setup().await?;

    std::fs::remove_file(pair.key())?;
    stage.relay.start()?;
    stage.complains(CAUSE, &["client.key", "No such file"]).await?;
    let relay = &mut stage.relay;
    let mut mark = relay.log_mark();
    pair.folder.write("client.key", ours.key_pem(), 0o644)?;
    let root_or_not = ["open to others (mode 0644)", "chmod 0600"];
    told(relay, mark, CAUSE, &root_or_not).await?;
    mark = relay.log_mark();
    pair.folder.write("client.key", stranger.key_pem(), 0o600)?;
    told(
        relay,
        mark,
        CAUSE,
        &["does not fit the certificate", "client.pem"],
    )
    .await?;
    mark = relay.log_mark();
    pair.replace(&stranger)?;
    told(relay, mark, CAUSE, &["refuses our client certificate"]).await?;
    pair.replace(&ours)?;
    relay.wait_ready(LONG).await?;

    let mut without = server.stage(&world, "user=by_cert sslmode=verify-full").await?;
    without.relay.start()?;
    without
        .complains("database_authentication", &["28000", "client certificate"])
        .await
}

#[tokio::test]
async fn a_certificate_of_the_servers_that_will_not_do_is_told_exactly() -> Result<()> {
    const CAUSE: &str = "database_tls";
    let world = World::new().await?;
    let certificates = Certificates::for_names(&["localhost"])?;
    let postgres = Postgres::start(PostgresOptions::default().tls(&certificates)).await?;
    let authority = certificates.authority();
    let client = postgres.client("postgres").await?;
    let show = async |issued| -> Result<()> {
        postgres.show_certificate(&issued)?;
        client.batch_execute("select pg_reload_conf()").await?;
        Ok(())
    };
    let settings = "user=postgres sslmode=verify-full";
    let mut stage = Stage::on(&postgres, &certificates, &world, settings).await?;
    stage.relay.setup().await?;

    show(authority.server_valid(&["localhost"], Validity::Past)?).await?;
    stage.relay.start()?;
    let words = ["localhost has expired: it was valid until 2020-12-31T00:00:00Z"];
    stage.complains(CAUSE, &words).await?;
    let relay = &mut stage.relay;
    for (issued, words) in [
        (
            authority.server_valid(&["localhost"], Validity::Future)?,
            "not valid yet: it begins at 2100-01-01T00:00:00Z (check the clock)",
        ),
        (
            authority.server(&["db1.example", "10.0.0.1"])?,
            "localhost is for another name: it names db1.example, 10.0.0.1",
        ),
        (
            Authority::new("stranger")?.server(&["localhost"])?,
            "localhost is not signed by a trusted root",
        ),
    ] {
        let mark = relay.log_mark();
        show(issued).await?;
        told(relay, mark, CAUSE, &[words]).await?;
    }
    show(authority.server(&["localhost"])?).await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn a_server_that_falls_silent_in_the_tls_handshake_is_left() -> Result<()> {
    let world = World::new().await?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port();
    let silent = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut request = [0; 8];
            if socket.read_exact(&mut request).await.is_ok() && socket.write_all(b"S").await.is_ok() {
                held.push(socket);
            }
        }
    });
    let url = format!("postgres://u@localhost:{port}/d?sslmode=require&connect_timeout=1");
    let mut relay = world.relay().postgres_url(&url).build()?;
    relay.start()?;
    let readiness = named(&mut relay, Part::Database, "database_silent").await?;
    let error = readiness.json["database"]["error"].as_str().unwrap_or_default();
    ensure!(error.contains("TLS handshake"), "{error}");
    silent.abort();
    Ok(())
}

#[tokio::test]
async fn password_and_authority_are_rotated_while_the_relay_runs() -> Result<()> {
    const RENEWED: &str = "renewed-not-to-be-told";
    let world = World::new().await?;
    let certificates = Certificates::for_names(&["localhost"])?;
    let options = PostgresOptions::default()
        .tls(&certificates)
        .hba("host all by_scram 127.0.0.1/32 scram-sha-256");
    let postgres = Postgres::start(options).await?;
    create_roles(&postgres).await?;
    let folder = Folder::new("rotated-")?;
    let authority = folder.write("ca.pem", &std::fs::read_to_string(certificates.ca_path())?, 0o644)?;
    let password = folder.write("password", SECRET, 0o600)?;
    let settings = format!(
        "user=by_scram sslmode=verify-full channel_binding=require sslrootcert={}",
        authority.display()
    );
    let mut stage = Stage::on(&postgres, &certificates, &world, &settings).await?;
    let password = password.to_string_lossy().into_owned();
    stage
        .relay
        .reconfigure(|relay| relay.text("postgres.password_file", &password))?;
    stage.delivers(&world).await?;

    let client = stage.database.client().await?;
    let before = stage.pid(&client).await?;
    let renewed = Authority::new("renewed")?;
    postgres.show_certificate(&renewed.server(&["localhost"])?)?;
    folder.write("ca.pem", &std::fs::read_to_string(renewed.ca_path())?, 0o644)?;
    let alter = format!("alter role by_scram password '{RENEWED}'; select pg_reload_conf()");
    client.batch_execute(&alter).await?;
    folder.write("password", &format!("{RENEWED}\n"), 0o600)?;
    client
        .query_one("select pg_terminate_backend($1)", &[&before])
        .await?;
    eventually_some("a session by the new secrets", LONG, async || {
        match stage.pid(&client).await {
            Ok(Some(pid)) if Some(pid) != before => Some(Ok(())),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        }
    })
    .await??;
    stage.relay.wait_ready(LONG).await?;
    tells_no(RENEWED, &stage.relay).await
}

/// `credential:NAME` and a password in the environment.
#[tokio::test]
async fn a_password_comes_from_a_credential_or_the_environment() -> Result<()> {
    let world = World::new().await?;
    let server = secure().await?;
    let credentials = Folder::new("credentials-")?;
    credentials.write("postgres", &format!("{SECRET}\n"), 0o600)?;
    let folder = credentials.path().to_string_lossy().into_owned();
    let by_credential = |relay: RelayBuilder| relay.text("postgres.password_file", "credential:postgres");
    for change in [
        &(|relay: RelayBuilder| by_credential(relay).env("CREDENTIALS_DIRECTORY", &folder))
            as &dyn Fn(RelayBuilder) -> RelayBuilder,
        &|relay| relay.env("WALRELAY_POSTGRES_PASSWORD", SECRET),
    ] {
        let mut stage = server.stage(&world, "user=by_scram sslmode=require").await?;
        stage.relay.reconfigure(change)?;
        stage.delivers(&world).await?;
        tells_no(SECRET, &stage.relay).await?;
    }
    let mut stage = server.stage(&world, "user=by_scram sslmode=require").await?;
    stage.relay.reconfigure(by_credential)?;
    stage.relay.start()?;
    stage
        .complains(
            "database_authentication",
            &["credential:postgres", "LoadCredential="],
        )
        .await
}

/// A server that knows us by password, bound or not, and by certificate.
struct Secure {
    postgres: Postgres,
    certificates: Certificates,
    clients: Authority,
}

async fn secure() -> Result<&'static Secure> {
    static SECURE: OnceCell<Secure> = OnceCell::const_new();
    let start = async || -> Result<_> {
        let certificates = Certificates::for_names(&["localhost"])?;
        let clients = Authority::new("clients")?;
        let options = PostgresOptions::default()
            .tls(&certificates)
            .client_authority(&clients)?
            .hba("host all by_scram 127.0.0.1/32 scram-sha-256")
            .hba("host all by_plain 127.0.0.1/32 password")
            .hba("hostssl all by_cert 127.0.0.1/32 cert");
        let postgres = Postgres::start(options).await?;
        create_roles(&postgres).await?;
        Ok(Secure {
            postgres,
            certificates,
            clients,
        })
    };
    SECURE.get_or_try_init(start).await
}

async fn create_roles(postgres: &Postgres) -> Result<()> {
    let client = postgres.client("postgres").await?;
    for role in ["by_scram", "by_plain", "by_cert"] {
        let sql = format!("create role {role} superuser login password '{SECRET}'");
        client.batch_execute(&sql).await?;
    }
    Ok(())
}

impl Secure {
    async fn stage(&self, world: &World, settings: &str) -> Result<Stage> {
        Stage::on(&self.postgres, &self.certificates, world, settings).await
    }
}

/// A relay that is not yet set up, and a database for it.
struct Stage {
    relay: Relay,
    database: Database,
}

impl Stage {
    /// By a connection string, whose later keys win.
    async fn on(
        postgres: &Postgres,
        certificates: &Certificates,
        world: &World,
        settings: &str,
    ) -> Result<Self> {
        let database = postgres.database().await?;
        let url = format!(
            "host=localhost port={} dbname={} sslrootcert={} {settings}",
            database.port(),
            database.name(),
            certificates.ca_path().display()
        );
        let relay = world.relay().slot(database.name()).postgres_url(&url).build()?;
        Ok(Self { relay, database })
    }

    /// Sets up, starts, and sees an event through.
    async fn delivers(&mut self, world: &World) -> Result<()> {
        self.relay.setup().await?;
        self.relay.start()?;
        self.relay.wait_ready(LONG).await?;
        let recorder = world.recorder().await?;
        let id = insert_event(&self.database.client().await?, 1).await?;
        recorder
            .wait_until("the event", LONG, |deliveries| {
                deliveries.iter().any(|delivery| delivery.message_id == id)
            })
            .await?;
        Ok(())
    }

    async fn complains(&mut self, cause: &str, words: &[&str]) -> Result<()> {
        complains(&mut self.relay, Part::Database, cause, words).await
    }

    /// The server's process that streams.
    async fn pid(&self, client: &Client) -> Result<Option<i32>> {
        let sql = "select active_pid from pg_replication_slots where slot_name = $1";
        Ok(client.query_one(sql, &[&self.database.name()]).await?.get(0))
    }

    /// The serial number of the certificate that the stream's session has shown.
    async fn serial(&self, client: &Client) -> Result<Option<String>> {
        let sql = "select client_serial::text from pg_stat_ssl join pg_replication_slots on pid = active_pid
                   where slot_name = $1";
        let row = client.query_opt(sql, &[&self.database.name()]).await?;
        Ok(row.and_then(|row| row.get(0)))
    }
}

fn certified(pair: &Pair) -> String {
    format!(
        "user=by_cert sslmode=verify-full sslcert={} sslkey={}",
        pair.certificate().display(),
        pair.key().display()
    )
}
