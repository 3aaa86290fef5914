//! A virtual host of a test's own; `topology` declares things in it.

use std::time::Duration;

use lapin::{Connection, ConnectionProperties};

use crate::error::{Attempt as _, Error, Result};
use crate::wait::patience;

/// A virtual host of a test's own.
#[derive(Debug, Clone)]
pub struct Vhost {
    pub(crate) name: String,
    pub(crate) port: u16,
    pub(crate) tls_port: Option<u16>,
}

impl Vhost {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The broker's port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its URI as user `guest`.
    pub fn uri(&self) -> String {
        self.uri_through(self.port)
    }

    /// Its URI by way of another port of 127.0.0.1: a [`TcpProxy`](crate::TcpProxy)'s.
    pub fn uri_through(&self, port: u16) -> String {
        format!("amqp://guest:guest@127.0.0.1:{port}/{}", self.name)
    }

    /// The same by way of another port of 127.0.0.1: for consumers behind a [`TcpProxy`](crate::TcpProxy).
    #[must_use]
    pub fn through(&self, port: u16) -> Vhost {
        Vhost { port, ..self.clone() }
    }

    /// Its `amqps` URI under the name `localhost`, where the broker has a TLS listener.
    pub fn tls_uri(&self) -> Option<String> {
        self.tls_port
            .map(|port| format!("amqps://guest:guest@localhost:{port}/{}", self.name))
    }

    /// Connects with lapin, within 10 s.
    ///
    /// # Errors
    /// [`Error::Amqp`] or [`Error::Timeout`].
    pub async fn connect(&self) -> Result<Connection> {
        let waited = patience(Duration::from_secs(10));
        let uri = self.uri();
        let connecting = Connection::connect(&uri, ConnectionProperties::default());
        match tokio::time::timeout(waited, connecting).await {
            Ok(connected) => connected.attempt(format!("connect to virtual host {}", self.name)),
            Err(_elapsed) => Err(Error::Timeout {
                what: "an AMQP connection".to_owned(),
                waited,
            }),
        }
    }
}
