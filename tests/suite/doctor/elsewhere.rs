//! The configuration and the endpoint's address.

use std::net::TcpListener;

use anyhow::Result;

use super::{said, set_up};

#[tokio::test]
async fn secrets_are_open_and_the_endpoint_s_port_is_taken() -> Result<()> {
    let (world, mut relay) = set_up().await?;
    let folder = relay.folder();
    folder.write("open", "secret\n", 0o644)?;
    folder.write("empty", "\n", 0o600)?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (open, empty) = (path("open"), path("empty"));
    let missing = path("missing");
    relay.reconfigure(|relay| {
        relay
            .text("postgres.password_file", &open)
            .text("rabbitmq.password_file", &empty)
            .text("admin.token_file", &missing)
            .env("WALRELAY_POSTGRES_URI", "postgres://elsewhere")
    })?;
    let _taken = TcpListener::bind(("127.0.0.1", relay.admin_port()))?;
    insta::assert_snapshot!("secrets_and_port", said(&world, &relay, &[]).await?);
    Ok(())
}

#[tokio::test]
async fn a_wrong_configuration_is_told_as_by_every_command() -> Result<()> {
    let (_world, mut relay) = set_up().await?;
    relay.reconfigure(|relay| relay.text("delivery.confirm_timeout", "soon"))?;
    let output = relay.run_command(&["doctor"]).await?;
    assert_eq!(output.code(), Some(78));
    assert!(
        output.stderr.contains("delivery.confirm_timeout"),
        "{}",
        output.stderr
    );
    Ok(())
}
