//! One server of each kind for all tests of a process.

use tokio::sync::OnceCell;

use crate::error::Result;
use crate::postgres::{Postgres, PostgresOptions};
use crate::rabbitmq::{RabbitMq, RabbitMqOptions};

/// The process's shared PostgreSQL, started by the first who asks. Make a [`Database`](crate::Database) of
/// your own in it.
///
/// # Errors
/// As [`Postgres::start`]; the next caller tries again.
pub async fn shared_postgres() -> Result<&'static Postgres> {
    static SHARED: OnceCell<Postgres> = OnceCell::const_new();
    SHARED
        .get_or_try_init(|| Postgres::start(PostgresOptions::default()))
        .await
}

/// The process's shared RabbitMQ, started by the first who asks. Make a [`Vhost`](crate::Vhost) of your own
/// in it.
///
/// # Errors
/// As [`RabbitMq::start`]; the next caller tries again.
pub async fn shared_rabbitmq() -> Result<&'static RabbitMq> {
    static SHARED: OnceCell<RabbitMq> = OnceCell::const_new();
    SHARED
        .get_or_try_init(|| RabbitMq::start(RabbitMqOptions::default()))
        .await
}
