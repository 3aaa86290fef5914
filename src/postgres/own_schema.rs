//! walrelay's own tables: what an error about them means, and which grant is missing.

use std::future::Future;

use tokio_postgres::GenericClient;

use super::catalog::column;
use super::control::bounded;
use super::error::{Error, SqlState, Step};
use super::identifier::{SlotName, quote_identifier};

/// What a use of one of walrelay's tables needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Use {
    /// What an error names: `look for a skip`.
    pub(super) purpose: &'static str,
    /// The privileges on the table: `select, insert`.
    pub(super) privileges: &'static str,
    /// The table: `skips`.
    pub(super) table: &'static str,
}

impl Use {
    /// Awaits one statement, as [`ControlSession::run`], and says of a refusal which grant is missing.
    pub(super) async fn run<T>(
        &self,
        role: &str,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Error> {
        bounded(Step::Query(self.purpose), statement)
            .await
            .map_err(|error| self.explain(error, role))
    }

    fn explain(&self, error: Error, role: &str) -> Error {
        let Error::Server { step, source } = error else {
            return error;
        };
        let Self {
            privileges, table, ..
        } = self;
        let role = quote_identifier(role);
        match source.sqlstate {
            SqlState::INSUFFICIENT_PRIVILEGE => Error::GrantMissing {
                step,
                grant: format!(
                    "grant usage on schema walrelay to {role}; grant {privileges} on walrelay.{table} to {role}"
                ),
                source,
            },
            SqlState::UNDEFINED_TABLE | SqlState::INVALID_SCHEMA_NAME | SqlState::UNDEFINED_COLUMN => {
                Error::OwnSchema { step, source }
            }
            _ => Error::Server { step, source },
        }
    }
}

/// Makes the open transaction's commit wait until it is flushed, whatever the role's or database's default.
pub(super) async fn commit_synchronously(
    transaction: &impl GenericClient,
    purpose: &'static str,
) -> Result<(), Error> {
    let sql = "set local synchronous_commit = on";
    bounded(Step::Query(purpose), transaction.batch_execute(sql)).await
}

/// Checks that the transaction's server streams from the slot to the walsender `ours` (rule 15): another one may have
/// other rows.
pub(super) async fn check_stream(
    transaction: &impl GenericClient,
    slot: &SlotName,
    ours: i32,
    purpose: &'static str,
) -> Result<(), Error> {
    let sql = "select active_pid from pg_catalog.pg_replication_slots where slot_name = $1";
    let row = bounded(
        Step::Query(purpose),
        transaction.query_opt(sql, &[&slot.as_str()]),
    )
    .await?;
    let found: Option<i32> = row.map_or(Ok(None), |row| column(&row, 0, purpose))?;
    if found == Some(ours) {
        return Ok(());
    }
    let slot = slot.clone();
    Err(Error::NotOurStream { slot, ours, found })
}
