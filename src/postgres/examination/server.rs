//! The server itself and our role.

use super::super::catalog::{ServerFacts, column};
use super::super::control::ControlSession;
use super::super::error::Error;
use super::super::preflight::Unfit;
use super::super::preflight::checks::{
    check_encoding, check_primary, check_role, check_synchronous, check_version, check_wal_level,
};
use super::super::url::SessionAttrs;
use super::managed::Service;
use super::{Examination, error_finding, reach, unfit_finding};
use crate::caution::Caution;
use crate::finding::{Finding, Group};

/// The checks of a server, in their order.
pub(super) const CHECKS: &[&str] = &[
    "connection",
    "TLS",
    "authentication",
    "session",
    "version",
    "managed service",
    "primary",
    "encoding",
    "wal_level",
    "replication right",
    "replication session",
    "synchronous standbys",
    "wal_sender_timeout",
];

/// The newest version that this one was tried with.
const NEWEST_TRIED: u32 = 18;

/// Looks at a server through a session. Returns its facts where they could be read.
pub(super) async fn examine(
    examination: &Examination,
    session: &ControlSession,
    group: &mut Group,
) -> Option<ServerFacts> {
    let server = match ServerFacts::read(session).await {
        Ok(server) => server,
        Err(error) => {
            group.push(error_finding("version", &error));
            return None;
        }
    };
    group.push(version(&server));
    let service = match Service::recognise(session).await {
        Ok(service) => service,
        Err(error) => {
            group.push(error_finding("managed service", &error));
            None
        }
    };
    group.push(managed(session, service));
    group.push(primary(examination, session, &server).await);
    group.judge("encoding", check_encoding(&server), server.encoding.as_str());
    group.push(match check_wal_level(&server) {
        Ok(()) => Finding::passed("wal_level", "logical"),
        Err(unfit) => {
            let usual = unfit.fix();
            let fix = service.map_or(usual, |service| Some(service.logical_decoding().to_owned()));
            unfit_finding("wal_level", &unfit).with_fix(fix)
        }
    });
    let role = &server.role;
    match check_role(&server) {
        Ok(()) => {
            group.push(Finding::passed(
                "replication right",
                format!("`{role}` may replicate"),
            ));
            group.push(reach::replication(examination, session).await);
        }
        Err(unfit) => {
            let fix = service.map_or_else(|| unfit.fix(), |service| Some(service.may_replicate(role)));
            group.push(unfit_finding("replication right", &unfit).with_fix(fix));
            let why = format!("`{role}` may not replicate");
            group.push(Finding::not_looked("replication session", why));
        }
    }
    let setting = &server.synchronous_standby_names;
    group.judge(
        "synchronous standbys",
        check_synchronous(setting, session.stream_name()),
        match setting.as_str() {
            "" => "none are asked for".to_owned(),
            _ => format!("synchronous_standby_names ({setting}) does not take our stream for one"),
        },
    );
    group.push(match time_out(examination, session).await {
        Ok(found) => Finding::passed("wal_sender_timeout", found),
        Err(error) => error_finding("wal_sender_timeout", &error),
    });
    Some(server)
}

fn version(server: &ServerFacts) -> Finding {
    const CHECK: &str = "version";
    let found = format!("PostgreSQL {}", server.version);
    match check_version(server) {
        Err(unfit) => unfit_finding(CHECK, &unfit),
        Ok(()) if server.version.major > NEWEST_TRIED => {
            Finding::caution(CHECK, Caution::ServerUntried, found)
        }
        Ok(()) => Finding::passed(CHECK, found),
    }
}

fn managed(session: &ControlSession, service: Option<Service>) -> Finding {
    const CHECK: &str = "managed service";
    let found = service.map_or("no sign of one", Service::name);
    if Service::is_pooled(&session.connector().endpoints()) {
        let found = format!("{found}, and the host's name is that of its pooler");
        return Finding::caution(CHECK, Caution::PooledHost, found);
    }
    Finding::passed(CHECK, found)
}

async fn primary(examination: &Examination, session: &ControlSession, server: &ServerFacts) -> Finding {
    const CHECK: &str = "primary";
    match check_primary(server) {
        Err(Unfit::Standby) if examination.passes_standbys_over() => {
            Finding::passed(CHECK, "a standby: passed over for another server of the list")
        }
        Err(unfit) => unfit_finding(CHECK, &unfit),
        Ok(()) if examination.connector.target().session_attrs == SessionAttrs::ReadWrite => {
            match is_read_only(session).await {
                Ok(true) => unfit_finding(CHECK, &Unfit::ReadOnly),
                Ok(false) => Finding::passed(CHECK, "it takes writes"),
                Err(error) => error_finding(CHECK, &error),
            }
        }
        Ok(()) => Finding::passed(CHECK, "it takes writes"),
    }
}

async fn is_read_only(session: &ControlSession) -> Result<bool, Error> {
    const PURPOSE: &str = "look at default_transaction_read_only";
    let sql = "select current_setting('default_transaction_read_only') = 'on'";
    let row = session.run(PURPOSE, session.client().query_one(sql, &[])).await?;
    column(&row, 0, PURPOSE)
}

async fn time_out(examination: &Examination, session: &ControlSession) -> Result<String, Error> {
    const PURPOSE: &str = "look at wal_sender_timeout";
    let sql = "select current_setting('wal_sender_timeout')";
    let row = session.run(PURPOSE, session.client().query_one(sql, &[])).await?;
    let theirs: String = column(&row, 0, PURPOSE)?;
    Ok(format!(
        "the relay sets {} for its own stream (the server's: {theirs})",
        humantime::format_duration(examination.wal_sender_timeout)
    ))
}
