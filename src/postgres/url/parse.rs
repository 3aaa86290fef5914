//! Reading both forms of a connection string, before anything is made of it.

use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use secrecy::SecretString;

use super::{
    ChannelBinding, ConnectTarget, DEFAULT_CONNECT_TIMEOUT, Host, Server, SessionAttrs, SslMode, UrlError,
};
use crate::net::tls::{Identity, RootSource};

/// PostgreSQL's port.
const DEFAULT_PORT: u16 = 5432;
/// Where a URL without a host points.
const DEFAULT_HOST: &str = "localhost";

/// The parameters that are understood.
const KNOWN: [&str; 13] = [
    "host",
    "port",
    "user",
    "password",
    "dbname",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "channel_binding",
    "connect_timeout",
    "application_name",
    "target_session_attrs",
];

/// Values as found, before defaults.
#[derive(Default)]
pub(super) struct Raw {
    /// Empty ones stand for the default.
    hosts: Vec<String>,
    ports: Vec<Option<u16>>,
    user: Option<String>,
    password: Option<SecretString>,
    dbname: Option<String>,
    sslmode: Option<SslMode>,
    sslrootcert: Option<RootSource>,
    sslcert: Option<PathBuf>,
    sslkey: Option<PathBuf>,
    channel_binding: Option<ChannelBinding>,
    connect_timeout: Option<Duration>,
    application_name: Option<String>,
    session_attrs: Option<SessionAttrs>,
}

impl Raw {
    /// Reads what follows the scheme: `[user[:password]@][host][:port][,...][/dbname][?name=value&...]`.
    pub(super) fn read_url(&mut self, rest: &str) -> Result<(), UrlError> {
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
        self.read_servers(server)?;
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

    /// Reads `host[:port][,host[:port]...]`.
    fn read_servers(&mut self, servers: &str) -> Result<(), UrlError> {
        for server in servers.split(',') {
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
            let host = decode("host", host)?;
            if host.contains('\0') {
                return Err(UrlError::ZeroByte { part: "host" });
            }
            self.hosts.push(host);
            self.ports.push(read_port(port)?);
        }
        Ok(())
    }

    /// Reads libpq's `key = value` pairs: a value is quoted with `'` or ends at white space; a backslash
    /// takes the next character as it is.
    pub(super) fn read_pairs(&mut self, text: &str) -> Result<(), UrlError> {
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
                if value.contains('@') {
                    return Err(UrlError::StrayAt);
                }
                self.hosts = value.split(',').map(str::to_owned).collect();
            }
            "port" => self.ports = value.split(',').map(read_port).collect::<Result<_, _>>()?,
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
            "sslcert" => self.sslcert = Some(PathBuf::from(value)),
            "sslkey" => self.sslkey = Some(PathBuf::from(value)),
            "channel_binding" => {
                self.channel_binding = Some(match value.as_str() {
                    "disable" => ChannelBinding::Disable,
                    "prefer" => ChannelBinding::Prefer,
                    "require" => ChannelBinding::Require,
                    _ => return Err(bad("disable, prefer or require")),
                });
            }
            "connect_timeout" => {
                let seconds: u64 = value.parse().map_err(|_| bad("a whole number of seconds"))?;
                self.connect_timeout = Some(seconds)
                    .filter(|seconds| *seconds > 0)
                    .map(Duration::from_secs);
            }
            "target_session_attrs" => {
                self.session_attrs = Some(match value.as_str() {
                    "any" => SessionAttrs::Any,
                    "read-write" => SessionAttrs::ReadWrite,
                    "primary" => SessionAttrs::Primary,
                    // libpq knows read-only, standby and prefer-standby too.
                    _ => return Err(bad("any, read-write or primary (a standby has nothing to relay)")),
                });
            }
            _ => self.application_name = Some(value),
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<ConnectTarget, UrlError> {
        let user = self.user.ok_or(UrlError::NoUser)?;
        let servers = servers(self.hosts, &self.ports)?;
        let sslmode = match (&self.sslrootcert, self.sslmode) {
            (Some(RootSource::System), None) => SslMode::VerifyFull,
            (Some(RootSource::System), Some(mode)) if mode != SslMode::VerifyFull => {
                return Err(UrlError::WeakSystemRoots);
            }
            (_, mode) => mode.unwrap_or_default(),
        };
        let identity = match (self.sslcert, self.sslkey) {
            (Some(certificate), Some(key)) => Some(Identity { certificate, key }),
            (None, None) => None,
            (Some(_), None) => return Err(UrlError::HalfIdentity { missing: "sslkey" }),
            (None, Some(_)) => return Err(UrlError::HalfIdentity { missing: "sslcert" }),
        };
        let channel_binding = self.channel_binding.unwrap_or_default();
        if sslmode == SslMode::Disable && channel_binding == ChannelBinding::Require {
            return Err(UrlError::BindingWithoutTls);
        }
        Ok(ConnectTarget {
            servers,
            dbname: self.dbname.unwrap_or_else(|| user.clone()),
            user,
            password: self.password,
            sslmode,
            sslrootcert: self.sslrootcert,
            identity,
            channel_binding,
            connect_timeout: self.connect_timeout.unwrap_or(DEFAULT_CONNECT_TIMEOUT),
            application_name: self.application_name,
            session_attrs: self.session_attrs.unwrap_or_default(),
        })
    }
}

/// Joins hosts and ports: one port counts for all hosts.
fn servers(mut hosts: Vec<String>, ports: &[Option<u16>]) -> Result<Vec<Server>, UrlError> {
    if hosts.is_empty() {
        hosts.push(String::new());
    }
    let port_of = |index: usize| match ports {
        [] => Some(None),
        [port] => Some(*port),
        _ => ports.get(index).copied(),
    };
    if ports.len() > 1 && ports.len() != hosts.len() {
        return Err(UrlError::PortCount {
            ports: ports.len(),
            hosts: hosts.len(),
        });
    }
    let server = |(index, host): (usize, String)| Server {
        host: match host {
            host if host.is_empty() => Host::Tcp(DEFAULT_HOST.to_owned()),
            path if path.starts_with('/') => Host::Unix(PathBuf::from(path)),
            name => Host::Tcp(name),
        },
        port: port_of(index).flatten().unwrap_or(DEFAULT_PORT),
    };
    Ok(hosts.into_iter().enumerate().map(server).collect())
}

/// Reads one port; an empty one stands for the default.
fn read_port(text: &str) -> Result<Option<u16>, UrlError> {
    match text {
        "" => Ok(None),
        _ => match text.parse() {
            Ok(port) if port != 0 => Ok(Some(port)),
            _ => Err(UrlError::Port),
        },
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
