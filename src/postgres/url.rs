//! The connection target, parsed once from a libpq URL or `key=value` string.
//!
//! Our own parser, because tokio-postgres refuses `verify-full` and `sslrootcert`. No error text holds any part
//! of a value that could be a password, not even when quoting gone wrong puts one in another place.
//!
//! <https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING>

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use secrecy::SecretString;

use crate::net::endpoint_text;
use crate::net::tls::{RootSource, TlsVerification};

/// PostgreSQL's port.
const DEFAULT_PORT: u16 = 5432;
/// Where a URL without a host points.
const DEFAULT_HOST: &str = "localhost";
/// How long connecting may take where `connect_timeout` does not say.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The parameters that are understood.
const KNOWN: [&str; 9] = [
    "host",
    "port",
    "user",
    "password",
    "dbname",
    "sslmode",
    "sslrootcert",
    "connect_timeout",
    "application_name",
];

/// Where and as whom to connect. `Debug` does not show the password.
#[derive(Debug, Clone)]
pub struct ConnectTarget {
    /// The server's host.
    pub host: Host,
    /// The server's port; part of the socket's file name with [`Host::Unix`].
    pub port: u16,
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
    /// The time for TCP, TLS, startup and authentication together.
    pub connect_timeout: Duration,
    /// The session's name in `pg_stat_activity`, where the string sets one.
    pub application_name: Option<String>,
}

/// A way to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// A DNS name or an address.
    Tcp(String),
    /// The folder of a Unix-domain socket.
    Unix(PathBuf),
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

/// Why a text is no connection target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Neither `postgres://` nor `key=value`.
    #[error("expected postgres://user@host:port/database or a key=value string")]
    Form,
    /// More or other `@` than one between the credentials and the host.
    #[error("an @ stands after the host: percent-encode the characters @ : / ? % of user and password")]
    StrayAt,
    /// A `%` without two hexadecimal digits, or encoded bytes that are no UTF-8.
    #[error("the {part} is not percent-encoded UTF-8 (write % as %25)")]
    Encoding {
        /// The part of the URL.
        part: &'static str,
    },
    /// An IPv6 address without its closing bracket, or with something behind it.
    #[error("the host's brackets do not match (expected [IPv6 address]:port)")]
    Brackets,
    /// A port that is no number from 1 to 65535. Not echoed: it may be the rest of a password.
    #[error("the port is not a number from 1 to 65535 (percent-encode @ : / ? % in user and password)")]
    Port,
    /// More than one host.
    #[error("more than one host: name one")]
    ManyHosts,
    /// No user.
    #[error("no user: expected postgres://user@host or user=...")]
    NoUser,
    /// A zero byte, which no startup packet can hold.
    #[error("the {part} holds a zero byte")]
    ZeroByte {
        /// The parameter.
        part: &'static str,
    },
    /// An unknown parameter.
    #[error("unknown parameter `{name}`{}", .nearest.map(|near| format!(": did you mean `{near}`?")).unwrap_or_default())]
    UnknownParameter {
        /// Its name.
        name: String,
        /// The known one closest to it.
        nearest: Option<&'static str>,
    },
    /// A parameter whose name may be a piece of a password.
    #[error("parameter {number} is unknown (a password with spaces needs quotes: password='...')")]
    UnknownAfterPassword {
        /// Its place, counted from 1.
        number: usize,
    },
    /// A parameter without `=`.
    #[error("parameter {number} has no `=` (a value with spaces needs quotes: key='a b')")]
    NoEquals {
        /// Its place, counted from 1.
        number: usize,
    },
    /// A quoted value that does not end.
    #[error("the quote of parameter {number} is not closed")]
    OpenQuote {
        /// Its place, counted from 1.
        number: usize,
    },
    /// A value that the parameter cannot have.
    #[error("`{name}` must be {expected}")]
    Value {
        /// The parameter.
        name: &'static str,
        /// What is allowed.
        expected: &'static str,
    },
    /// `sslrootcert=system` with a mode that does not verify.
    #[error("sslrootcert=system needs sslmode=verify-full")]
    WeakSystemRoots,
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
    /// `host:port` or the path of the socket: what error texts name.
    #[must_use]
    pub fn endpoint(&self) -> String {
        match &self.host {
            Host::Tcp(host) => endpoint_text(host, self.port),
            Host::Unix(folder) => socket_path(folder, self.port).display().to_string(),
        }
    }

    /// The path of the Unix-domain socket, where it is one.
    #[must_use]
    pub fn socket_path(&self) -> Option<PathBuf> {
        match &self.host {
            Host::Tcp(_) => None,
            Host::Unix(folder) => Some(socket_path(folder, self.port)),
        }
    }

    /// How TLS verifies the server; `None` where no TLS is asked for.
    #[must_use]
    pub fn tls_verification(&self) -> Option<TlsVerification> {
        let roots = || self.sslrootcert.clone().unwrap_or(RootSource::System);
        match self.sslmode {
            SslMode::Disable => None,
            SslMode::Prefer => Some(TlsVerification::None),
            SslMode::Require => Some(match &self.sslrootcert {
                Some(source) => TlsVerification::Chain(source.clone()),
                None => TlsVerification::None,
            }),
            SslMode::VerifyCa => Some(TlsVerification::Chain(roots())),
            SslMode::VerifyFull => Some(TlsVerification::Full(roots())),
        }
    }
}

impl fmt::Display for ConnectTarget {
    /// User, endpoint and database; no password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}/{}", self.user, self.endpoint(), self.dbname)
    }
}

/// `.s.PGSQL.port` in its folder, as PostgreSQL names it.
fn socket_path(folder: &std::path::Path, port: u16) -> PathBuf {
    folder.join(format!(".s.PGSQL.{port}"))
}

/// Values as found, before defaults.
#[derive(Default)]
struct Raw {
    host: Option<String>,
    port: Option<u16>,
    user: Option<String>,
    password: Option<SecretString>,
    dbname: Option<String>,
    sslmode: Option<SslMode>,
    sslrootcert: Option<RootSource>,
    connect_timeout: Option<Duration>,
    application_name: Option<String>,
}

impl Raw {
    /// Reads what follows the scheme: `[user[:password]@][host][:port][/dbname][?name=value&...]`.
    fn read_url(&mut self, rest: &str) -> Result<(), UrlError> {
        let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if tail.contains('@') {
            return Err(UrlError::StrayAt);
        }
        let (path, query) = tail.split_once('?').unwrap_or((tail, ""));

        let server = match authority.split_once('@') {
            None => authority,
            Some((credentials, server)) => {
                if server.contains('@') {
                    return Err(UrlError::StrayAt);
                }
                let (user, password) = match credentials.split_once(':') {
                    Some((user, password)) => (user, Some(password)),
                    None => (credentials, None),
                };
                self.set("user", decode("user", user)?)?;
                if let Some(password) = password {
                    self.set("password", decode("password", password)?)?;
                }
                server
            }
        };
        self.read_server(server)?;
        self.set(
            "dbname",
            decode("database", path.strip_prefix('/').unwrap_or(path))?,
        )?;

        for (index, pair) in query.split('&').filter(|pair| !pair.is_empty()).enumerate() {
            let (name, value) = pair
                .split_once('=')
                .ok_or(UrlError::NoEquals { number: index + 1 })?;
            let (name, value) = (decode("query", name)?, decode("query", value)?);
            // JDBC's spelling, which libpq takes in URLs.
            if name == "ssl" && value == "true" {
                self.set("sslmode", "require".to_owned())?;
            } else {
                self.set(&name, value)?;
            }
        }
        Ok(())
    }

    fn read_server(&mut self, server: &str) -> Result<(), UrlError> {
        if server.contains(',') {
            return Err(UrlError::ManyHosts);
        }
        let (host, port) = match server.strip_prefix('[') {
            Some(bracketed) => {
                let (host, after) = bracketed.split_once(']').ok_or(UrlError::Brackets)?;
                let port = match after.strip_prefix(':') {
                    Some(port) => port,
                    None if after.is_empty() => "",
                    None => return Err(UrlError::Brackets),
                };
                (host, port)
            }
            None => server.split_once(':').unwrap_or((server, "")),
        };
        self.set("host", decode("host", host)?)?;
        self.set("port", port.to_owned())
    }

    /// Reads libpq's `key = value` pairs: a value is quoted with `'` or ends at white space; a backslash
    /// takes the next character as it is.
    fn read_pairs(&mut self, text: &str) -> Result<(), UrlError> {
        let mut rest = text.trim_start();
        let mut after_password = false;
        for number in 1.. {
            if rest.is_empty() {
                break;
            }
            let (name, value) = rest.split_once('=').ok_or(UrlError::NoEquals { number })?;
            let name = name.trim_end();
            if name.is_empty() || name.contains(char::is_whitespace) {
                return Err(UrlError::NoEquals { number });
            }
            if after_password && !KNOWN.contains(&name) {
                return Err(UrlError::UnknownAfterPassword { number });
            }
            let (value, after) = pair_value(value.trim_start()).ok_or(UrlError::OpenQuote { number })?;
            self.set(name, value)?;
            after_password = name == "password";
            rest = after.trim_start();
        }
        Ok(())
    }

    /// Sets one parameter; an empty value means the default, as in libpq.
    fn set(&mut self, name: &str, value: String) -> Result<(), UrlError> {
        let Some(known) = KNOWN.into_iter().find(|known| *known == name) else {
            return Err(unknown(name));
        };
        if value.contains('\0') {
            return Err(UrlError::ZeroByte { part: known });
        }
        if value.is_empty() {
            return Ok(());
        }
        let bad = |expected| UrlError::Value {
            name: known,
            expected,
        };
        match known {
            "host" => {
                if value.contains(',') {
                    return Err(UrlError::ManyHosts);
                }
                if value.contains('@') {
                    return Err(UrlError::StrayAt);
                }
                self.host = Some(value);
            }
            "port" => {
                self.port = Some(
                    value
                        .parse()
                        .ok()
                        .filter(|port| *port != 0)
                        .ok_or(UrlError::Port)?,
                )
            }
            "user" => self.user = Some(value),
            "password" => self.password = Some(SecretString::from(value)),
            "dbname" => self.dbname = Some(value),
            "sslmode" => {
                self.sslmode = Some(match value.as_str() {
                    "disable" => SslMode::Disable,
                    "prefer" => SslMode::Prefer,
                    "require" => SslMode::Require,
                    "verify-ca" => SslMode::VerifyCa,
                    "verify-full" => SslMode::VerifyFull,
                    _ => {
                        return Err(bad("disable, prefer, require, verify-ca or verify-full"));
                    }
                });
            }
            "sslrootcert" => {
                self.sslrootcert = Some(match value.as_str() {
                    "system" => RootSource::System,
                    _ => RootSource::File(PathBuf::from(value)),
                });
            }
            "connect_timeout" => {
                let seconds: u64 = value.parse().map_err(|_| bad("a whole number of seconds"))?;
                self.connect_timeout = Some(seconds)
                    .filter(|seconds| *seconds > 0)
                    .map(Duration::from_secs);
            }
            _ => self.application_name = Some(value),
        }
        Ok(())
    }

    fn finish(self) -> Result<ConnectTarget, UrlError> {
        let user = self.user.ok_or(UrlError::NoUser)?;
        let host = match self.host {
            None => Host::Tcp(DEFAULT_HOST.to_owned()),
            Some(path) if path.starts_with('/') => Host::Unix(PathBuf::from(path)),
            Some(name) => Host::Tcp(name),
        };
        let sslmode = match (&self.sslrootcert, self.sslmode) {
            (Some(RootSource::System), None) => SslMode::VerifyFull,
            (Some(RootSource::System), Some(mode)) if mode != SslMode::VerifyFull => {
                return Err(UrlError::WeakSystemRoots);
            }
            (_, mode) => mode.unwrap_or_default(),
        };
        Ok(ConnectTarget {
            host,
            port: self.port.unwrap_or(DEFAULT_PORT),
            dbname: self.dbname.unwrap_or_else(|| user.clone()),
            user,
            password: self.password,
            sslmode,
            sslrootcert: self.sslrootcert,
            connect_timeout: self.connect_timeout.unwrap_or(DEFAULT_CONNECT_TIMEOUT),
            application_name: self.application_name,
        })
    }
}

fn unknown(name: &str) -> UrlError {
    let nearest = KNOWN
        .into_iter()
        .map(|known| (strsim::damerau_levenshtein(known, name), known))
        .filter(|(distance, known)| *distance <= known.len() / 2)
        .min()
        .map(|(_, known)| known);
    UrlError::UnknownParameter {
        name: name.escape_debug().to_string(),
        nearest,
    }
}

/// Decodes percent escapes strictly: a `%` without two digits is an error, as in libpq.
fn decode(part: &'static str, text: &str) -> Result<String, UrlError> {
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('%') {
        if !after
            .as_bytes()
            .get(..2)
            .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
        {
            return Err(UrlError::Encoding { part });
        }
        rest = after;
    }
    match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(UrlError::Encoding { part }),
    }
}

/// Reads one value and yields it with what follows; `None` where a quote stays open.
fn pair_value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let (quoted, body) = match text.strip_prefix('\'') {
        Some(body) => (true, body),
        None => (false, text),
    };
    let mut characters = body.chars();
    loop {
        let before = characters.as_str();
        match characters.next() {
            None if quoted => return None,
            None => return Some((value, "")),
            Some('\'') if quoted => return Some((value, characters.as_str())),
            Some('\\') => value.extend(characters.next()),
            Some(c) if !quoted && c.is_whitespace() => return Some((value, before)),
            Some(c) => value.push(c),
        }
    }
}

#[cfg(test)]
mod tests;
