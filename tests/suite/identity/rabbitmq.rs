//! RabbitMQ's side.

use anyhow::{Context as _, Result, ensure};
use tokio::sync::OnceCell;
use walrelay_testbed::{
    Authority, Certificates, RabbitMq, RabbitMqOptions, Recorder, Relay, RelayBuilder, Vhost, eventually_some,
};

use super::{Pair, told};
use crate::complaint::{Part, complains};
use crate::world::{EXCHANGE, LONG, QUEUE, World};

/// The user that certificates name.
const USER: &str = "relay-by-certificate";

#[tokio::test]
async fn the_broker_takes_us_for_whom_the_certificate_names() -> Result<()> {
    let world = World::new().await?;
    let (broker, vhost) = guarded_vhost().await?;
    let pair = Pair::of(&broker.certificates.authority().client(USER)?)?;
    let by_keys = world
        .relay()
        .rabbitmq_uri(&uri(broker, &vhost, ""))
        .text(
            "rabbitmq.ca_file",
            &broker.certificates.ca_path().to_string_lossy(),
        )
        .text("rabbitmq.cert_file", &pair.certificate().to_string_lossy())
        .text("rabbitmq.key_file", &pair.key().to_string_lossy())
        .text("rabbitmq.auth_mechanism", "external");
    let relay = delivers(&world, &vhost, by_keys).await?;
    assert_eq!(logins(broker, &vhost).await?, [format!("{USER}\tEXTERNAL")]);
    drop(relay);
    eventually_some("the connection to be gone", LONG, async || {
        logins(broker, &vhost)
            .await
            .is_ok_and(|logins| logins.is_empty())
            .then_some(())
    })
    .await?;

    // The same by the URI's own parameters, which know the broker under another name.
    let parameters = format!(
        "?cacertfile={}&certfile={}&keyfile={}&server_name_indication=localhost&auth_mechanism=external",
        broker.certificates.ca_path().display(),
        pair.certificate().display(),
        pair.key().display()
    );
    let by_uri = uri(broker, &vhost, &parameters).replace("localhost:", "127.0.0.1:");
    let _relay = delivers(&world, &vhost, world.relay().rabbitmq_uri(&by_uri)).await?;
    assert_eq!(logins(broker, &vhost).await?, [format!("{USER}\tEXTERNAL")]);
    Ok(())
}

#[tokio::test]
async fn what_is_wrong_with_our_certificate_is_told_and_heals() -> Result<()> {
    const CAUSE: &str = "broker_client_certificate";
    let world = World::new().await?;
    let (broker, vhost) = guarded_vhost().await?;
    let ours = broker.certificates.authority().client(USER)?;
    let stranger = Authority::new("stranger")?.client(USER)?;
    let ca = broker.certificates.ca_path().to_string_lossy().into_owned();
    let plain = uri(broker, &vhost, &format!("?cacertfile={ca}"));
    let mut relay = world.relay().rabbitmq_uri(&plain).build()?;
    relay.setup().await?;
    relay.start()?;
    let words = ["localhost", "demands a client certificate"];
    complains(&mut relay, Part::Broker, CAUSE, &words).await?;
    relay.kill().await?;

    let pair = Pair::of(&stranger)?;
    let mut relay = world
        .relay()
        .rabbitmq_uri(&plain)
        .text("rabbitmq.cert_file", &pair.certificate().to_string_lossy())
        .text("rabbitmq.key_file", &pair.key().to_string_lossy())
        .build()?;
    relay.start()?;
    complains(
        &mut relay,
        Part::Broker,
        CAUSE,
        &["refuses our client certificate"],
    )
    .await?;
    let mark = relay.log_mark();
    pair.folder.write("client.key", ours.key_pem(), 0o600)?;
    told(&relay, mark, CAUSE, &["does not fit the certificate"]).await?;
    pair.replace(&ours)?;
    relay.wait_ready(LONG).await?;

    // Rotated while it runs: the connection that follows shows the new certificate.
    pair.replace(&broker.certificates.authority().client_of("renewed", USER)?)?;
    broker
        .rabbitmq
        .ctl(&["close_all_connections", "--vhost", vhost.name(), "rotated"])
        .await?;
    eventually_some(
        "a connection with the new certificate",
        LONG,
        async || match listed(broker, &vhost, &["peer_cert_subject"]).await {
            Ok(subjects) => subjects.concat().contains("renewed").then_some(Ok(())),
            Err(error) => Some(Err(error)),
        },
    )
    .await??;
    relay.wait_ready(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn external_without_a_certificate_is_a_wrong_configuration() -> Result<()> {
    let world = World::new().await?;
    let relay = world
        .relay()
        .rabbitmq_uri("amqps://localhost/")
        .text("rabbitmq.auth_mechanism", "external")
        .build()?;
    let output = relay.run_command(&["run"]).await?;
    ensure!(output.code() == Some(78), "{output:?}");
    ensure!(
        output.stderr.contains("needs amqps:// and a certificate"),
        "{}",
        output.stderr
    );
    Ok(())
}

/// A broker that demands a certificate of everybody who comes by TLS.
struct Guarded {
    rabbitmq: RabbitMq,
    certificates: Certificates,
}

async fn guarded_vhost() -> Result<(&'static Guarded, Vhost)> {
    static GUARDED: OnceCell<Guarded> = OnceCell::const_new();
    let start = async || -> Result<_> {
        let certificates = Certificates::for_names(&["localhost"])?;
        let options = RabbitMqOptions::default()
            .tls(&certificates)
            .client_certificates();
        let rabbitmq = RabbitMq::start(options).await?;
        rabbitmq.ctl(&["add_user", USER, "never-used"]).await?;
        rabbitmq.ctl(&["clear_password", USER]).await?;
        Ok(Guarded {
            rabbitmq,
            certificates,
        })
    };
    let broker = GUARDED.get_or_try_init(start).await?;
    let vhost = broker.rabbitmq.vhost().await?;
    vhost.declare_route(EXCHANGE, QUEUE).await?;
    let rights = ["set_permissions", "-p", vhost.name(), USER, ".*", ".*", ".*"];
    broker.rabbitmq.ctl(&rights).await?;
    Ok((broker, vhost))
}

fn uri(broker: &Guarded, vhost: &Vhost, parameters: &str) -> String {
    let port = broker.rabbitmq.tls_port().unwrap_or_default();
    format!("amqps://localhost:{port}/{}{parameters}", vhost.name())
}

/// Sets up, starts, and sees an event through.
async fn delivers(world: &World, vhost: &Vhost, relay: RelayBuilder) -> Result<Relay> {
    let mut relay = relay.build()?;
    relay.setup().await?;
    relay.start()?;
    relay.wait_ready(LONG).await?;
    let recorder = Recorder::start(vhost, QUEUE).await?;
    world.commit_events(1).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    Ok(relay)
}

/// User and mechanism of each TLS connection to the virtual host.
async fn logins(broker: &Guarded, vhost: &Vhost) -> Result<Vec<String>> {
    listed(broker, vhost, &["user", "auth_mechanism"]).await
}

async fn listed(broker: &Guarded, vhost: &Vhost, columns: &[&str]) -> Result<Vec<String>> {
    let arguments = [&["list_connections", "vhost", "ssl"], columns].concat();
    let listed = broker
        .rabbitmq
        .ctl(&arguments)
        .await
        .context("list connections")?;
    let ours = format!("{}\ttrue\t", vhost.name());
    Ok(listed
        .lines()
        .filter_map(|line| line.strip_prefix(&ours).map(str::to_owned))
        .collect())
}
