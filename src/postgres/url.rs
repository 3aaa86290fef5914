//! The connection target, parsed once from a libpq URL or `key=value` string.
//!
//! Our own parser, because tokio-postgres refuses `verify-full` and `sslrootcert`. No error text holds any part
//! of a value that could be a password, not even when quoting gone wrong puts one in another place.
//!
//! <https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING>

mod error;
mod parse;
mod server;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use secrecy::SecretString;

use crate::net::tls::{Identity, RootSource, TlsSettings, TlsVerification};

pub use error::UrlError;
use parse::Raw;
pub(super) use server::socket_path;
pub use server::{Host, Server};

/// How long connecting may take where `connect_timeout` does not say.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where and as whom to connect. `Debug` does not show the password.
#[derive(Debug, Clone)]
pub struct ConnectTarget {
    /// The servers, in the order in which they are tried; never empty.
    pub servers: Vec<Server>,
    /// Which of them will do.
    pub session_attrs: SessionAttrs,
    /// The role.
    pub user: String,
    /// The password, where the string holds one.
    pub password: Option<SecretString>,
    /// The database, by default named as the role.
    pub dbname: String,
    /// How TLS is used; without meaning for [`Host::Unix`].
    pub sslmode: SslMode,
    /// Trusted roots, where `sslrootcert` names them.
    pub sslrootcert: Option<RootSource>,
    /// Our certificate and key, where `sslcert` and `sslkey` name them.
    pub identity: Option<Identity>,
    /// Whether a password's check is bound to the TLS channel.
    pub channel_binding: ChannelBinding,
    /// The time for TCP, TLS, startup and authentication together, of each server.
    pub connect_timeout: Duration,
    /// The session's name in `pg_stat_activity`, where the string sets one.
    pub application_name: Option<String>,
}

/// libpq's `sslmode`, without `allow`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SslMode {
    /// No TLS.
    Disable,
    /// TLS where the server offers it, without verification. A handshake that fails is an error all the same.
    #[default]
    Prefer,
    /// TLS, without verification; with `sslrootcert` as [`VerifyCa`](Self::VerifyCa).
    Require,
    /// TLS with a certificate from a trusted root.
    VerifyCa,
    /// TLS with a certificate from a trusted root and for this host.
    VerifyFull,
}

impl SslMode {
    /// The value as libpq spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disable => "disable",
            Self::Prefer => "prefer",
            Self::Require => "require",
            Self::VerifyCa => "verify-ca",
            Self::VerifyFull => "verify-full",
        }
    }
}

/// libpq's `channel_binding`: whether SCRAM is bound to the TLS channel, so that nobody in between can pass it on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChannelBinding {
    /// Never.
    Disable,
    /// Wherever the server offers it.
    #[default]
    Prefer,
    /// A server that does not bind is refused before it is told anything.
    Require,
}

/// Which server will do: libpq's `target_session_attrs`, without those for readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SessionAttrs {
    /// The first that lets us in. A standby does, and is no use.
    #[default]
    Any,
    /// One that is no standby and whose sessions may write by default.
    ReadWrite,
    /// One that is no standby.
    Primary,
}

impl FromStr for ConnectTarget {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let mut raw = Raw::default();
        match ["postgres://", "postgresql://"]
            .iter()
            .find_map(|scheme| text.strip_prefix(scheme))
        {
            Some(rest) => raw.read_url(rest)?,
            None if text.contains('=') && !text.trim_start().starts_with("postgres:") => {
                raw.read_pairs(text)?;
            }
            None => return Err(UrlError::Form),
        }
        raw.finish()
    }
}

impl ConnectTarget {
    /// How TLS is spoken; `None` where it is not to be.
    #[must_use]
    pub fn tls(&self) -> Option<TlsSettings> {
        let roots = || self.sslrootcert.clone().unwrap_or(RootSource::System);
        let verification = match self.sslmode {
            SslMode::Disable => return None,
            SslMode::Prefer => TlsVerification::None,
            SslMode::Require => match &self.sslrootcert {
                Some(source) => TlsVerification::Chain(source.clone()),
                None => TlsVerification::None,
            },
            SslMode::VerifyCa => TlsVerification::Chain(roots()),
            SslMode::VerifyFull => TlsVerification::Full(roots()),
        };
        Some(TlsSettings {
            identity: self.identity.clone(),
            ..verification.into()
        })
    }
}

impl fmt::Display for ConnectTarget {
    /// User, endpoints and database; no password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoints: Vec<_> = self.servers.iter().map(Server::endpoint).collect();
        write!(f, "{}@{}/{}", self.user, endpoints.join(","), self.dbname)
    }
}

#[cfg(test)]
mod tests;
