//! Short SQL sessions over the same connector. They are never left idle: an idle one blocks a smart shutdown
//! of the server for ever. [`KeptSession`](super::KeptSession) keeps one for a moment.

use std::error::Error as _;
use std::future::Future;
use std::io;
use std::time::Duration;

use secrecy::ExposeSecret;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::Client;

use super::agreed::Agreed;
use super::authentication::unbound_reason;
use super::connect::{Connector, ServerTry};
use super::error::{Error, Step};
use super::identifier::SlotName;
use super::replication::{application_name, text_settings};
use super::servers::{ServerRole, Tries};
use super::startup::render_options;
use super::url::{ChannelBinding, ConnectTarget};
use super::walsender::{milliseconds, within};

/// How long one statement may run on the server.
pub(super) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long one statement may wait for a lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// What the network may add to a statement before it is given up.
const NETWORK_GRACE: Duration = Duration::from_secs(5);

/// An SQL session. Dropping it ends its connection; [`close`](Self::close) does so in good order.
#[derive(Debug)]
pub struct ControlSession {
    client: Client,
    connection: Connection,
    role: String,
    stream_name: String,
    /// Pinned to this session's server.
    connector: Connector,
    opened: Instant,
}

/// The task that moves the session's bytes; it ends with the session.
#[derive(Debug)]
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ControlSession {
    /// Opens a session named `walrelay <slot> control` with the first server that will do. Each has the connector's deadline.
    ///
    /// Cancel safety: dropping the future closes the connection.
    ///
    /// # Errors
    /// Everything that keeps a session from being opened.
    pub async fn open(connector: &Connector, slot: &SlotName) -> Result<Self, Error> {
        let servers = connector.servers();
        let mut tries = Tries::of(servers.len());
        for server in servers {
            match Self::open_at(server, connector.deadline(), slot).await {
                Ok(session) => return Ok(session),
                Err(error) => tries.failed(&server, error)?,
            }
        }
        Err(tries.into_error())
    }

    async fn open_at(server: ServerTry<'_>, deadline: Instant, slot: &SlotName) -> Result<Self, Error> {
        const STEP: Step = Step::OpenControl;
        let (stream, connector) = server.open(deadline).await?;
        let password = connector.password()?;

        let settings: Vec<_> = [
            ("statement_timeout", milliseconds(STATEMENT_TIMEOUT)),
            ("lock_timeout", milliseconds(LOCK_TIMEOUT)),
            (
                "idle_in_transaction_session_timeout",
                milliseconds(STATEMENT_TIMEOUT),
            ),
        ]
        .into_iter()
        .chain(text_settings())
        .collect();
        let stream_name = application_name(&connector, slot);
        let mut config = tokio_postgres::Config::new();
        config
            .user(&connector.target().user)
            .dbname(&connector.target().dbname)
            .application_name(format!("{stream_name} control"))
            .options(render_options(&settings));
        Agreed::configure(&mut config, connector.target().channel_binding);
        if let Some(password) = &password {
            config.password(password.expose_secret());
        }

        let unbound = unbound_reason(stream.is_encrypted(), stream.server_end_point().is_some());
        let opening = async {
            let opened = config.connect_raw(stream, Agreed).await;
            opened.map_err(|error| {
                server.explained(opening_error(
                    error,
                    connector.target(),
                    password.is_some(),
                    unbound,
                ))
            })
        };
        let (client, connection) = within(deadline, STEP, Box::pin(opening)).await?;
        let mut reported = ServerRole::default();
        for name in ["in_hot_standby", "default_transaction_read_only"] {
            reported.note(name, connection.parameter(name));
        }
        reported.check(connector.target().session_attrs)?;
        let connection = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = %error, "sql session ended");
            }
        });
        Ok(Self {
            client,
            connection: Connection(connection),
            role: connector.target().user.clone(),
            stream_name,
            connector,
            opened: Instant::now(),
        })
    }

    /// The client for statements; run them through [`run`](Self::run), which bounds them.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// The client for transactions.
    pub const fn client_mut(&mut self) -> &mut Client {
        &mut self.client
    }

    /// A connector that leads to this session's server and to no other, though a name or a list may do so by now.
    #[must_use]
    pub const fn connector(&self) -> &Connector {
        &self.connector
    }

    /// The role that the session was opened as.
    #[must_use]
    pub fn role(&self) -> &str {
        &self.role
    }

    /// The `application_name` of the stream that belongs to this session's slot.
    #[must_use]
    pub fn stream_name(&self) -> &str {
        &self.stream_name
    }

    /// How long ago the session was opened.
    pub(super) fn age(&self) -> Duration {
        self.opened.elapsed()
    }

    /// Whether its connection has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Awaits one statement, at most as long as the server may take for it plus the network's share. `purpose`
    /// is what an error names.
    ///
    /// # Errors
    /// What the server reports, a broken connection, or [`Error::Deadline`].
    pub async fn run<T>(
        &self,
        purpose: &'static str,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Error> {
        self.run_step(Step::Query(purpose), statement).await
    }

    /// As [`run`](Self::run), for a step with a row of its own in the table of error codes.
    pub(super) async fn run_step<T>(
        &self,
        step: Step,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Error> {
        bounded(step, statement).await
    }

    /// Ends the session in good order, or at the latest at the deadline of one statement.
    pub async fn close(self) {
        let Self {
            client,
            mut connection,
            ..
        } = self;
        // Without a client the connection sends Terminate and ends.
        drop(client);
        let ended = tokio::time::timeout(NETWORK_GRACE, &mut connection.0).await;
        if ended.is_err() {
            tracing::debug!("sql session did not end in time");
        }
    }
}

/// As [`ControlSession::run`], for use while a transaction borrows the session.
pub(super) async fn bounded<T>(
    step: Step,
    statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Error> {
    let deadline = Instant::now() + STATEMENT_TIMEOUT + NETWORK_GRACE;
    within(deadline, step, async {
        statement.await.map_err(|error| sql_error(step, error))
    })
    .await
}

/// Sorts an error of tokio-postgres into ours.
pub(super) fn sql_error(step: Step, error: tokio_postgres::Error) -> Error {
    if let Some(source) = error.as_db_error() {
        return Error::Server {
            step,
            source: Box::new(source.into()),
        };
    }
    if error.is_closed() {
        return Error::Closed { step };
    }
    if !is_io(&error) {
        return Error::Sql { step, source: error };
    }
    match error.into_source().map(|source| source.downcast::<io::Error>()) {
        Some(Ok(source)) => Error::Io {
            step,
            source: *source,
        },
        _ => Error::Closed { step },
    }
}

fn is_io(error: &tokio_postgres::Error) -> bool {
    error.source().is_some_and(|source| source.is::<io::Error>())
}

/// As [`sql_error`], for a session that is being opened: tokio-postgres says only in words that a password is
/// missing, that SCRAM failed, or that the server did not bind (for the reason `unbound`).
fn opening_error(
    error: tokio_postgres::Error,
    target: &ConnectTarget,
    has_password: bool,
    unbound: &'static str,
) -> Error {
    let step = Step::OpenControl;
    let is_unbound = target.channel_binding == ChannelBinding::Require
        && error
            .source()
            .is_some_and(|source| source.to_string().contains("channel binding"));
    if is_unbound {
        return Error::NotBound { reason: unbound };
    }
    let error = sql_error(step, error);
    if matches!(error, Error::Sql { .. }) && !has_password {
        return Error::PasswordMissing {
            user: target.user.clone(),
        };
    }
    if let Error::Io { source, .. } = error {
        let kind = source.kind();
        return if kind == io::ErrorKind::InvalidInput {
            Error::Scram(source)
        } else if kind == io::ErrorKind::UnexpectedEof {
            Error::Closed { step }
        } else {
            Error::Io { step, source }
        };
    }
    error
}
