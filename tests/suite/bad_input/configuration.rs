//! The configuration, and the relay's own port.

use anyhow::{Result, ensure};
use walrelay_testbed::RelayBuilder;

use super::SECRET;
use crate::world::{LONG, World};

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
            base().set(
                "rabbitmq.uri",
                &format!("[\"amqp://h/v\", \"http://u:{SECRET}@h/v\"]"),
            ),
            "rabbitmq.uri (item 2) is not valid: the scheme is `http`",
        ),
        (
            base().rabbitmq_uri(&format!("amqp://u:1?{SECRET}@h/v")),
            "rabbitmq.uri is not valid: it has a ? before the @",
        ),
        (
            base().set("postgres.ignore_tables", r#"["a.b", "a.b.c"]"#),
            "postgres.ignore_tables (item 2) is not valid: `a.b.c` is not a table name",
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
        (
            base()
                .text("postgres.shard", "0/2")
                .text("source.messages.prefix", "outbox"),
            "postgres.shard divides rows of tables, but logical messages (source.messages) come to every slot",
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
            // A fault inside a template is shown below the line, with a caret.
            let shown = match lines.as_slice() {
                [_] => true,
                [_, text, caret] => (*text, *caret) == ("    a{b", "     ^"),
                _ => false,
            };
            ensure!(output.stdout.is_empty() && shown, "{output:?}");
            ensure!(lines[0].contains(words), "{words:?} is not in {:?}", lines[0]);
            ensure!(!lines[0].contains(SECRET), "{output:?}");
        }
    }
    Ok(())
}
