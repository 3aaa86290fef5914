//! The connector and the link against a broker that misbehaves by a script.

use std::future::poll_fn;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use walrelay::fault::{FaultKind, chain};
use walrelay::net::tls::{RootSource, TlsVerification};
use walrelay::rabbitmq::{BrokerError, BrokerUri, Connector, Exchange, Link, LinkEvent, Mechanism};
use walrelay_testbed::scripted_broker::{answer, method};
use walrelay_testbed::{Offer, ScriptedBroker, ScriptedConnection};

use crate::world::LONG;

/// What the relay would make of it: short deadline, one exchange that is looked for.
fn connector(broker: &ScriptedBroker) -> Connector {
    Connector {
        uri: BrokerUri::parse(&broker.uri()).expect("a URI"),
        password_file: None,
        tls: None,
        mechanisms: vec![Mechanism::Plain],
        name: "walrelay test".to_owned(),
        heartbeat: Duration::from_secs(1),
        has_open_exchanges: false,
        exchanges: vec![Exchange {
            name: "outbox".to_owned(),
            declare: None,
        }],
        timeout: LONG,
        stream: None,
    }
}

/// A link with the broker's end of it.
async fn linked(offer: Offer) -> Result<(Link, ScriptedConnection)> {
    let broker = ScriptedBroker::start().await?;
    let connector = connector(&broker);
    let (link, connection) = tokio::join!(connector.connect(), broker.open(offer));
    Ok((link?, connection?))
}

/// What the link says next, as the relay's loop asks it.
async fn next_event(link: &mut Link) -> Result<LinkEvent, BrokerError> {
    let limit = Instant::now() + LONG;
    loop {
        assert!(Instant::now() < limit, "the link says nothing");
        if let Some(event) = link.next_event()? {
            return Ok(event);
        }
        link.handle_timeout(tokio::time::Instant::now())?;
        let deadline = link.deadline().unwrap_or_else(|| (Instant::now() + LONG).into());
        tokio::select! {
            done = poll_fn(|cx| link.poll_io(cx, tokio::time::Instant::now())) => done?,
            () = tokio::time::sleep_until(deadline) => {}
        }
    }
}

/// The error with which connecting to a broker fails that plays the first steps of the handshake, then `last`.
async fn refused(steps: usize, last: Option<Vec<u8>>) -> Result<BrokerError> {
    let broker = ScriptedBroker::start().await?;
    let connector = connector(&broker);
    let script = async {
        let mut connection = broker.accept().await?;
        let handshake = [
            (answer::start("PLAIN"), vec![method::START_OK]),
            (answer::tune(0, 0), vec![method::TUNE_OK, method::OPEN]),
            (answer::open_ok(), vec![method::CHANNEL_OPEN]),
            (answer::channel_open_ok(), vec![method::EXCHANGE_DECLARE]),
            (answer::declare_ok(), vec![method::CONFIRM_SELECT]),
        ];
        for (said, expected) in handshake.iter().take(steps) {
            connection.send(said).await?;
            for method in expected {
                connection.expect(*method).await?;
            }
        }
        if let Some(last) = last {
            connection.send(&last).await?;
            connection.closed().await?;
        }
        anyhow::Ok(())
    };
    let (result, script) = tokio::join!(connector.connect(), script);
    script?;
    match result {
        Ok(_) => bail!("connected after {steps} steps"),
        Err(error) => Ok(error),
    }
}

#[tokio::test]
async fn a_broker_that_hangs_up_while_connecting_is_unreachable_whichever_step_it_was() -> Result<()> {
    for (steps, step) in [
        "the protocol handshake",
        "the authentication",
        "opening the virtual host",
        "opening the channel",
        "the check of the exchange",
        "confirm.select",
    ]
    .into_iter()
    .enumerate()
    {
        let error = refused(steps, None).await?;
        assert_eq!(error.kind(), FaultKind::BrokerUnreachable, "{step}: {error}");
        assert!(error.to_string().contains(step), "{step}: {error}");
    }
    Ok(())
}

#[tokio::test]
async fn a_close_while_connecting_means_what_was_going_on() -> Result<()> {
    for (steps, last, kind) in [
        (
            1,
            answer::connection_close(403, "ACCESS_REFUSED"),
            FaultKind::BrokerAuthentication,
        ),
        (
            2,
            answer::connection_close(530, "NOT_ALLOWED"),
            FaultKind::BrokerVhost,
        ),
        (
            2,
            answer::connection_close(403, "ACCESS_REFUSED"),
            FaultKind::BrokerVhost,
        ),
        (
            4,
            answer::channel_close(404, "NOT_FOUND"),
            FaultKind::ExchangeMissing,
        ),
        (
            4,
            answer::channel_close(403, "ACCESS_REFUSED"),
            FaultKind::ExchangeForbidden,
        ),
        (
            4,
            answer::channel_close(406, "PRECONDITION_FAILED"),
            FaultKind::ExchangeMismatch,
        ),
        (
            5,
            answer::connection_close(320, "CONNECTION_FORCED"),
            FaultKind::BrokerClosed,
        ),
    ] {
        let error = refused(steps, Some(last)).await?;
        assert_eq!(error.kind(), kind, "{error}");
    }
    Ok(())
}

#[tokio::test]
async fn a_close_while_connecting_is_answered() -> Result<()> {
    let broker = ScriptedBroker::start().await?;
    let connector = connector(&broker);
    let script = async {
        let mut connection = broker.accept().await?;
        connection.send(&answer::start("PLAIN")).await?;
        connection.expect(method::START_OK).await?;
        connection
            .send(&answer::connection_close(403, "ACCESS_REFUSED"))
            .await?;
        connection.expect(method::CONNECTION_CLOSE_OK).await
    };
    let (result, script) = tokio::join!(connector.connect(), script);
    script?;
    assert_eq!(
        result.map(drop).unwrap_err().to_string(),
        "RabbitMQ closed the connection (reply code 403): ACCESS_REFUSED"
    );
    Ok(())
}

#[tokio::test]
async fn a_channel_closed_while_connecting_is_answered_with_a_good_bye() -> Result<()> {
    let broker = ScriptedBroker::start().await?;
    let connector = connector(&broker);
    let script = async {
        let mut connection = broker.accept().await?;
        connection.send(&answer::start("PLAIN")).await?;
        connection.expect(method::START_OK).await?;
        connection.send(&answer::tune(0, 0)).await?;
        connection.expect(method::TUNE_OK).await?;
        connection.expect(method::OPEN).await?;
        connection.send(&answer::open_ok()).await?;
        connection.expect(method::CHANNEL_OPEN).await?;
        connection.send(&answer::channel_open_ok()).await?;
        connection.expect(method::EXCHANGE_DECLARE).await?;
        connection.send(&answer::channel_close(404, "NOT_FOUND")).await?;
        connection.expect(method::CHANNEL_CLOSE_OK).await?;
        connection.expect(method::CONNECTION_CLOSE).await
    };
    let (result, script) = tokio::join!(connector.connect(), script);
    script?;
    assert_eq!(result.map(drop).unwrap_err().kind(), FaultKind::ExchangeMissing);
    Ok(())
}

#[tokio::test]
async fn whatever_is_no_amqp_is_named_in_one_short_line() -> Result<()> {
    for (bytes, words) in [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            "check that the address is RabbitMQ's AMQP port",
        ),
        (b"AMQP\0\0\x09\x01".to_vec(), "refuses AMQP 0-9-1"),
        (b"AMQP\x03\x01\0\0".to_vec(), "refuses AMQP 0-9-1"),
        (answer::open_ok(), "connection.open-ok"),
        (answer::ack(1, false), "basic.ack"),
        (
            b"\x01\0\0\xFF\xFF\xFF\xFF".to_vec(),
            "exceeds the negotiated frame_max",
        ),
    ] {
        let error = refused(0, Some(bytes)).await?;
        let line = chain(&error);
        assert_eq!(error.kind(), FaultKind::BrokerProtocol, "{line}");
        assert!(line.contains(words) && line.len() < 250, "{line}");
    }
    // A frame in the right place that never ends.
    let mut cut = answer::start("PLAIN");
    cut.truncate(cut.len() - 1);
    let broker = ScriptedBroker::start().await?;
    let connector = connector(&broker);
    let script = async {
        let mut connection = broker.accept().await?;
        connection.send(&cut).await
    };
    let (result, script) = tokio::join!(connector.connect(), script);
    script?;
    assert!(
        matches!(result, Err(BrokerError::Eof { .. })),
        "{:?}",
        result.map(drop)
    );
    Ok(())
}

#[tokio::test]
async fn a_method_out_of_place_is_named_without_its_arguments() -> Result<()> {
    let error = refused(1, Some(answer::start(&"SECRET ".repeat(1000)))).await?;
    assert_eq!(
        error.to_string(),
        "RabbitMQ sent connection.start, which has no place during the authentication"
    );
    Ok(())
}

#[tokio::test]
async fn a_broker_without_plain_is_told_apart() -> Result<()> {
    let error = refused(0, Some(answer::start("EXTERNAL AMQPLAIN"))).await?;
    assert_eq!(
        error.to_string(),
        "RabbitMQ offers the SASL mechanisms EXTERNAL AMQPLAIN, not PLAIN"
    );
    assert_eq!(error.kind(), FaultKind::BrokerAuthentication);
    Ok(())
}

/// A root file may be replaced, or come late: it is looked for at each connect, and its absence heals.
#[tokio::test]
async fn a_broker_that_goes_away_in_the_tls_handshake_is_unreachable_and_a_missing_root_file_is_not_fatal()
-> Result<()> {
    let broker = ScriptedBroker::start().await?;
    let mut connector = connector(&broker);
    for (verification, kind) in [
        (TlsVerification::None, FaultKind::BrokerUnreachable),
        (
            TlsVerification::Full(RootSource::File("/nowhere/ca.pem".into())),
            FaultKind::BrokerTls,
        ),
    ] {
        connector.tls = Some(verification.into());
        let accept = async { broker.accept_silent().await?.read_some().await };
        let (result, accepted) = tokio::join!(connector.connect(), accept);
        accepted?;
        let error = result.map(drop).unwrap_err();
        assert_eq!(error.kind(), kind, "{}", chain(&error));
    }
    Ok(())
}

#[tokio::test]
async fn bytes_that_trickle_in_one_by_one_make_the_same_frames() -> Result<()> {
    let broker = ScriptedBroker::start().await?;
    let connector = connector(&broker);
    let script = async {
        let mut connection = broker.accept().await?;
        connection.trickle(&answer::heartbeat()).await?;
        connection.trickle(&answer::start("PLAIN")).await?;
        connection.expect(method::START_OK).await?;
        connection.trickle(&answer::tune(8192, 0)).await?;
        connection.expect(method::TUNE_OK).await?;
        connection.expect(method::OPEN).await?;
        connection.trickle(&answer::open_ok()).await?;
        connection.expect(method::CHANNEL_OPEN).await?;
        connection.trickle(&answer::channel_open_ok()).await?;
        connection.expect(method::EXCHANGE_DECLARE).await?;
        connection.trickle(&answer::declare_ok()).await?;
        connection.expect(method::CONFIRM_SELECT).await?;
        connection.trickle(&answer::select_ok()).await?;
        anyhow::Ok(connection)
    };
    let (link, connection) = tokio::join!(connector.connect(), script);
    let (mut link, mut connection) = (link?, connection?);
    assert_eq!((link.frame_max(), link.server_version()), (8192, Some("3.10.8")));
    let said = async {
        connection.trickle(&answer::heartbeat()).await?;
        connection.trickle(&answer::ack(7, true)).await?;
        connection.trickle(&answer::blocked("low on memory")).await
    };
    let heard = async { anyhow::Ok((next_event(&mut link).await?, next_event(&mut link).await?)) };
    let (said, heard) = tokio::join!(said, heard);
    said?;
    assert_eq!(
        heard?,
        (
            LinkEvent::Ack {
                tag: 7,
                multiple: true
            },
            LinkEvent::Blocked {
                reason: "low on memory".to_owned()
            }
        )
    );
    Ok(())
}

#[tokio::test]
async fn a_silent_broker_is_given_up_after_heartbeats_of_ours() -> Result<()> {
    let offer = Offer {
        heartbeat: 1,
        ..Offer::default()
    };
    let (mut link, mut connection) = linked(offer).await?;
    let since = Instant::now();
    let (error, ours) = tokio::join!(next_event(&mut link), connection.heartbeats(3));
    ours.context("our heartbeats")?;
    let error = error.unwrap_err();
    assert!(matches!(error, BrokerError::Silent { .. }), "{error}");
    assert_eq!(error.kind(), FaultKind::BrokerSilent);
    assert!(
        since.elapsed() >= Duration::from_millis(1900),
        "{:?}",
        since.elapsed()
    );
    Ok(())
}

#[tokio::test]
async fn a_good_bye_waits_for_its_answer_but_not_for_ever() -> Result<()> {
    let (link, mut connection) = linked(Offer::default()).await?;
    let answering = async {
        connection.expect(method::CONNECTION_CLOSE).await?;
        connection.send(&answer::ack(1, false)).await?;
        connection.send(&answer::connection_close_ok()).await?;
        connection.closed().await
    };
    let (closed, answered) = tokio::join!(link.close(LONG), answering);
    closed?;
    answered?;

    let (link, mut connection) = linked(Offer::default()).await?;
    let (closed, closing) = tokio::join!(
        link.close(Duration::from_millis(50)),
        connection.expect(method::CONNECTION_CLOSE)
    );
    closing?;
    assert_eq!(
        closed.unwrap_err().to_string(),
        "RabbitMQ did not complete closing the connection within 50ms"
    );
    connection.closed().await?;
    Ok(())
}

/// Set in the process of its own that counts threads and descriptors.
const ALONE: &str = "WALRELAY_TEST_ALONE";

#[test]
fn fifty_hanging_attempts_leave_no_thread_and_no_descriptor_behind() -> Result<()> {
    if std::env::var_os(ALONE).is_some() {
        return count_fifty_attempts();
    }
    // Other tests of this process open threads and sockets of their own.
    let output = Command::new(std::env::current_exe()?)
        .args([
            "--exact",
            "handshake::fifty_hanging_attempts_leave_no_thread_and_no_descriptor_behind",
        ])
        .env(ALONE, "1")
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn count_fifty_attempts() -> Result<()> {
    let broker = ScriptedBroker::start().await?;
    let mut connector = connector(&broker);
    connector.timeout = Duration::from_millis(20);
    let mut counted = Vec::new();
    for _ in 0..51 {
        let (result, connection) = tokio::join!(connector.connect(), broker.accept_silent());
        let error = result.map(drop).expect_err("nobody answers");
        assert!(matches!(error, BrokerError::Deadline { .. }), "{error}");
        connection?.closed().await?;
        let count = |folder| std::fs::read_dir(folder).map(Iterator::count);
        counted.push((count("/proc/self/task")?, count("/proc/self/fd")?));
    }
    assert_eq!(counted.first(), counted.last(), "{counted:?}");
    Ok(())
}
