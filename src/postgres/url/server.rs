//! One server of a target.

use std::path::{Path, PathBuf};

use crate::net::endpoint_text;

/// A server: a host and its port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Its host.
    pub host: Host,
    /// Its port; part of the socket's file name with [`Host::Unix`].
    pub port: u16,
}

/// A way to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// A DNS name or an address.
    Tcp(String),
    /// The folder of a Unix-domain socket.
    Unix(PathBuf),
}

impl Server {
    /// `host:port` or the path of the socket: what error texts name.
    #[must_use]
    pub fn endpoint(&self) -> String {
        match &self.host {
            Host::Tcp(host) => endpoint_text(host, self.port),
            Host::Unix(folder) => socket_path(folder, self.port).display().to_string(),
        }
    }
}

/// `.s.PGSQL.port` in its folder, as PostgreSQL names it.
pub(in crate::postgres) fn socket_path(folder: &Path, port: u16) -> PathBuf {
    folder.join(format!(".s.PGSQL.{port}"))
}
