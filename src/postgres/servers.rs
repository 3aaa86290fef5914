//! Several servers, tried in turn: which failure leads on to the next, and what is said when none will do.
//!
//! <https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-MULTIPLE-HOSTS>

use std::fmt;

use super::connect::ServerTry;
use super::error::Error;
use super::preflight::Unfit;
use super::url::SessionAttrs;
use crate::fault::{FaultKind, chain};

/// A server that would not do, and why.
#[derive(Debug)]
pub struct FailedTry {
    /// Where it is.
    pub endpoint: String,
    /// Why not.
    pub error: Error,
}

/// One text: a chain of sources has no branches, so the causes of several tries cannot be sources.
impl fmt::Display for FailedTry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.endpoint, chain(&self.error))
    }
}

/// The fault of a list none of whose servers will do. A standby alone is none: it waits for its promotion, and what keeps
/// the primary away tells more.
pub(super) fn kind(tries: &[FailedTry]) -> FaultKind {
    let mut kinds = tries.iter().rev().map(|failed| failed.error.kind());
    kinds
        .find(|kind| *kind != FaultKind::DatabaseStandby)
        .unwrap_or(FaultKind::DatabaseStandby)
}

/// The tries that have failed so far.
#[derive(Debug)]
pub(super) struct Tries {
    servers: usize,
    failed: Vec<FailedTry>,
}

impl Tries {
    /// For a connector with so many servers.
    pub(super) const fn of(servers: usize) -> Self {
        Self {
            servers,
            failed: Vec::new(),
        }
    }

    /// Takes in why a server would not do.
    ///
    /// # Errors
    /// All that went wrong, where no other server is to be tried: we were refused for what we are. As with libpq, a
    /// password that one server refused is not sent to the next.
    pub(super) fn failed(&mut self, server: &ServerTry<'_>, error: Error) -> Result<(), Error> {
        if self.servers == 1 {
            return Err(error);
        }
        let leads_on = leads_on(error.kind());
        self.failed.push(FailedTry {
            endpoint: server.endpoint(),
            error,
        });
        if leads_on {
            return Ok(());
        }
        Err(Error::NoServer {
            tries: std::mem::take(&mut self.failed),
        })
    }

    /// All that went wrong, when there is no server left.
    pub(super) fn into_error(self) -> Error {
        Error::NoServer { tries: self.failed }
    }
}

/// Whether another server may do where this one will not.
pub(super) const fn leads_on(kind: FaultKind) -> bool {
    matches!(
        kind,
        FaultKind::DatabaseUnreachable
            | FaultKind::DatabaseSilent
            | FaultKind::DatabaseRestarting
            | FaultKind::DatabaseConnectionsExhausted
            | FaultKind::DatabaseTls
            | FaultKind::DatabaseStandby
    )
}

/// What a server reports of itself at startup, from version 14 on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ServerRole {
    /// `in_hot_standby`.
    pub(super) in_hot_standby: Option<bool>,
    /// `default_transaction_read_only`.
    pub(super) read_only: Option<bool>,
}

impl ServerRole {
    /// Takes in a parameter, if it is one of the two.
    pub(super) fn note(&mut self, name: &str, value: Option<&str>) {
        let value = value.map(|value| value == "on");
        match name {
            "in_hot_standby" => self.in_hot_standby = value,
            "default_transaction_read_only" => self.read_only = value,
            _ => {}
        }
    }

    /// Whether such a server will do. One that reports nothing is looked at before streaming, like every other.
    ///
    /// # Errors
    /// Why it will not.
    pub(super) fn check(self, wanted: SessionAttrs) -> Result<(), Unfit> {
        match wanted {
            SessionAttrs::Any => Ok(()),
            SessionAttrs::Primary | SessionAttrs::ReadWrite if self.in_hot_standby == Some(true) => {
                Err(Unfit::Standby)
            }
            SessionAttrs::ReadWrite if self.read_only == Some(true) => Err(Unfit::ReadOnly),
            SessionAttrs::Primary | SessionAttrs::ReadWrite => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::connect::Connector;
    use super::super::error::{ServerError, SqlState, Step};
    use super::*;

    fn refused(sqlstate: &str) -> Error {
        let mut source = ServerError::parse(b"");
        source.sqlstate = SqlState::from_text(sqlstate);
        Error::Server {
            step: Step::OpenReplication,
            source: Box::new(source),
        }
    }

    /// What is said of a list of servers that fail so, and how many of them were tried.
    fn said(errors: Vec<Error>) -> (FaultKind, String, usize) {
        let hosts: Vec<_> = (1..=errors.len()).map(|number| format!("h{number}")).collect();
        let url = format!("postgres://u@{}/d", hosts.join(","));
        let connector = Connector::new(url.parse().unwrap());
        let mut tries = Tries::of(connector.servers().len());
        for (index, (server, error)) in connector.servers().zip(errors).enumerate() {
            if let Err(error) = tries.failed(&server, error) {
                return (error.kind(), error.to_string(), index + 1);
            }
        }
        let error = tries.into_error();
        (error.kind(), error.to_string(), connector.servers().len())
    }

    #[test]
    fn every_server_is_named_with_its_reason() {
        let (kind, said, tried) = said(vec![refused("57P03"), Unfit::Standby.into()]);
        assert_eq!((kind, tried), (FaultKind::DatabaseRestarting, 2));
        assert_eq!(
            said,
            "none of the servers will do: h1:5432: open a replication session: ERROR 57P03: ; \
             h2:5432: the server is a standby (in recovery)"
        );
    }

    #[test]
    fn a_refused_password_goes_to_no_other_server() {
        let (kind, text, tried) = said(vec![
            Unfit::Standby.into(),
            refused("28P01"),
            Unfit::Standby.into(),
        ]);
        assert_eq!((kind, tried), (FaultKind::DatabaseAuthentication, 2));
        assert!(text.contains("h2:5432") && !text.contains("h3"), "{text}");
    }

    #[test]
    fn a_list_of_standbys_waits_for_a_primary() {
        let (kind, ..) = said(vec![Unfit::Standby.into(), Unfit::ReadOnly.into()]);
        assert_eq!(kind, FaultKind::DatabaseStandby);
    }

    #[test]
    fn a_single_server_is_spoken_of_without_a_list() {
        let (_, said, _) = said(vec![Unfit::Standby.into()]);
        assert_eq!(said, "the server is a standby (in recovery)");
    }

    #[test]
    fn each_attribute_takes_the_servers_that_libpq_takes() {
        let role = |in_hot_standby, read_only| {
            let mut role = ServerRole::default();
            role.note("in_hot_standby", in_hot_standby);
            role.note("default_transaction_read_only", read_only);
            role
        };
        let primary = role(Some("off"), Some("off"));
        let read_only = role(Some("off"), Some("on"));
        let standby = role(Some("on"), Some("off"));
        let silent = role(None, None);
        for (wanted, takes) in [
            (SessionAttrs::Any, [true, true, true, true]),
            (SessionAttrs::Primary, [true, true, false, true]),
            (SessionAttrs::ReadWrite, [true, false, false, true]),
        ] {
            let taken = [primary, read_only, standby, silent].map(|role| role.check(wanted).is_ok());
            assert_eq!(taken, takes, "{wanted:?}");
        }
    }
}
