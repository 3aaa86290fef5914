//! From the address to a session: connection, TLS, authentication, and whether replication passes.

use super::super::connect::Connector;
use super::super::control::ControlSession;
use super::super::error::{Error, Step};
use super::super::replication::{application_name, session_settings};
use super::super::url::SslMode;
use super::super::walsender::Walsender;
use super::greeting::{self, Method};
use super::{Examination, error_finding};
use crate::caution::Caution;
use crate::fault::{Fault, FaultKind};
use crate::finding::{Finding, Group};
use crate::net::Stream;
use crate::net::tls::TlsVerification;

/// An SQL session with the one server of this connector, where there can be one.
pub(super) async fn examine(
    examination: &Examination,
    connector: &Connector,
    group: &mut Group,
) -> Option<ControlSession> {
    let slot = &examination.source.slot;
    let deadline = connector.deadline();
    let server = connector.servers().next()?;
    let (stream, pinned) = match server.open(deadline).await {
        Ok(opened) => opened,
        Err(error) => {
            let is_tls = error.kind() == FaultKind::DatabaseTls;
            if is_tls {
                group.push(Finding::passed("connection", "it answers"));
            }
            group.push(error_finding(if is_tls { "TLS" } else { "connection" }, &error));
            return None;
        }
    };
    group.push(Finding::passed("connection", "it answers"));
    group.push(tls(&stream, connector));
    let is_private = is_local(&stream) || stream.is_encrypted();
    let name = format!("{} doctor", application_name(connector, slot));
    // Where this fails, so does the session, and with it comes the reason.
    let method = greeting::ask(stream, &pinned, &name, deadline)
        .await
        .ok()
        .flatten();

    let session = match ControlSession::open(&pinned, slot).await {
        Ok(session) => session,
        Err(error) => {
            // Of what else went wrong nothing tells whether we were known by then.
            let is_refused = error.kind() == FaultKind::DatabaseAuthentication;
            if error.kind() == FaultKind::DatabaseMissing {
                group.push(authentication(connector, method.as_ref(), is_private));
            }
            let check = if is_refused { "authentication" } else { "session" };
            group.push(error_finding(check, &error));
            return None;
        }
    };
    group.push(authentication(connector, method.as_ref(), is_private));
    group.push(Finding::passed(
        "session",
        format!("database `{}`", connector.target().dbname),
    ));
    Some(session)
}

/// Whether the server is on this machine.
fn is_local(stream: &Stream) -> bool {
    let socket = match stream {
        Stream::Unix(_) => return true,
        Stream::Tls(session) => session.get_ref().0,
        Stream::Tcp(socket) => socket,
    };
    socket.peer_addr().is_ok_and(|address| address.ip().is_loopback())
}

fn tls(stream: &Stream, connector: &Connector) -> Finding {
    const CHECK: &str = "TLS";
    let target = connector.target();
    let mode = format!("sslmode={}", target.sslmode.as_str());
    let Some(version) = stream.tls_version() else {
        return match stream {
            Stream::Unix(_) => Finding::passed(CHECK, "none, and none needed: a Unix socket"),
            Stream::Tcp(_) | Stream::Tls(_) if is_local(stream) => {
                Finding::passed(CHECK, format!("none, on this machine ({mode})"))
            }
            Stream::Tcp(_) | Stream::Tls(_) => Finding::caution(
                CHECK,
                Caution::Unencrypted,
                match target.sslmode {
                    SslMode::Disable => format!("none, as {mode} says"),
                    SslMode::Prefer | SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => {
                        format!("none: the server offers none ({mode})")
                    }
                },
            ),
        };
    };
    match target.tls().map(|tls| tls.verification) {
        Some(TlsVerification::Full(_)) => Finding::passed(
            CHECK,
            format!("{version}, the certificate is checked for the host's name ({mode})"),
        ),
        Some(TlsVerification::Chain(_)) => Finding::passed(
            CHECK,
            format!("{version}, the certificate's issuer is checked, its name is not ({mode})"),
        ),
        Some(TlsVerification::None) | None => {
            let found = format!("{version}, the certificate is not looked at ({mode})");
            match is_local(stream) {
                true => Finding::passed(CHECK, format!("{found}, on this machine")),
                false => Finding::caution(CHECK, Caution::Unverified, found),
            }
        }
    }
}

fn authentication(connector: &Connector, method: Option<&Method>, is_private: bool) -> Finding {
    const CHECK: &str = "authentication";
    let user = &connector.target().user;
    let Some(method) = method else {
        return Finding::passed(CHECK, format!("`{user}` is let in"));
    };
    let found = format!("`{user}` is let in {method}");
    if *method == Method::Clear && !is_private {
        return Finding::caution(CHECK, Caution::PasswordInClear, found);
    }
    Finding::passed(CHECK, found)
}

/// The name of doctor's own replication session.
pub(super) fn name(session: &ControlSession) -> String {
    format!("{} doctor", session.stream_name())
}

/// Whether a session of the replication protocol opens at the server of this SQL session, and is the same server's.
pub(super) async fn replication(examination: &Examination, session: &ControlSession) -> Finding {
    const CHECK: &str = "replication session";
    const PURPOSE: &str = "look for our replication session";
    let connector = session.connector();
    let name = name(session);
    let settings = session_settings(examination.wal_sender_timeout);
    let mut walsender = match Walsender::open(connector, &name, &settings).await {
        Ok(walsender) => walsender,
        Err(error) => return error_finding(CHECK, &error),
    };
    let announced = walsender.process_id;
    let found = async {
        let step = Step::Query(PURPOSE);
        let rows = walsender
            .query("select pg_catalog.pg_backend_pid()::text", step)
            .await?;
        let process = rows.into_iter().flatten().flatten().next();
        let process: Option<i32> = process.and_then(|process| process.parse().ok());
        let sql = "select exists (select from pg_catalog.pg_stat_activity where pid = $1)";
        let seen = session
            .run(PURPOSE, session.client().query_one(sql, &[&process]))
            .await?;
        Ok::<_, Error>((process, super::super::catalog::column(&seen, 0, PURPOSE)?))
    };
    let found = found.await;
    if let Err(error) = walsender.terminate(connector.deadline()).await {
        tracing::debug!(error = %error, "session not closed in good order");
    }
    let pooler = |message: &str| {
        let kind = FaultKind::DatabaseProtocol;
        let message = message.to_owned();
        Finding::fault(CHECK, Fault { kind, message })
    };
    match found {
        Ok((process, true)) if process == Some(announced) => {
            Finding::passed(CHECK, "it opens, with no pooler in the way")
        }
        Ok((_, true)) => {
            pooler("a pooler stands between: it announces another process than the server's own")
        }
        Ok((_, false)) => {
            let kind = FaultKind::StreamElsewhere;
            let message = "it opens at another server than the SQL session".to_owned();
            Finding::fault(CHECK, Fault { kind, message })
        }
        Err(error) => error_finding(CHECK, &error),
    }
}
