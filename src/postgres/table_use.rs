//! What a statement needs of the tables that it uses, and which grant is missing where it is refused.

use std::fmt;
use std::future::Future;

use super::control::bounded;
use super::error::{Error, SqlState, Step};
use super::identifier::{QualifiedTable, quote_identifier};

/// A use of walrelay's own tables, or of an outbox table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Use<'a> {
    /// What an error names: `look for a skip`.
    pub(super) purpose: &'static str,
    /// The privileges on the table: `select, insert`.
    pub(super) privileges: &'a str,
    tables: Tables<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Tables<'a> {
    /// walrelay's own: `skips`.
    Own(&'static [&'static str]),
    /// An outbox, and those of walrelay's own that are read as well.
    Outbox(&'a QualifiedTable, &'static [&'static str]),
}

/// Who can grant what is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grantor {
    /// Of the schema `walrelay`.
    SchemaOwner,
    /// Of the outbox table.
    TableOwner,
}

impl fmt::Display for Grantor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SchemaOwner => "the owner of schema walrelay",
            Self::TableOwner => "the table's owner",
        })
    }
}

impl Use<'static> {
    /// A use of tables in the schema `walrelay`.
    pub(super) const fn own(
        purpose: &'static str,
        privileges: &'static str,
        tables: &'static [&'static str],
    ) -> Self {
        Self {
            purpose,
            privileges,
            tables: Tables::Own(tables),
        }
    }
}

impl<'a> Use<'a> {
    /// A use of an outbox table, and of walrelay's own tables that are read as well.
    pub(super) const fn outbox(
        purpose: &'static str,
        privileges: &'a str,
        table: &'a QualifiedTable,
        read: &'static [&'static str],
    ) -> Self {
        Self {
            purpose,
            privileges,
            tables: Tables::Outbox(table, read),
        }
    }

    /// Awaits one statement, as [`ControlSession::run`](super::ControlSession::run), and says of a refusal which grant is
    /// missing.
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
        // An outbox table was there a moment ago; its columns may be named by who asks.
        let is_own = |sqlstate| match self.tables {
            Tables::Own(_) => sqlstate != SqlState::INSUFFICIENT_PRIVILEGE,
            Tables::Outbox(_, read) => !read.is_empty() && sqlstate != SqlState::UNDEFINED_COLUMN,
        };
        match source.sqlstate {
            SqlState::INSUFFICIENT_PRIVILEGE => Error::GrantMissing {
                step,
                grantor: match self.tables {
                    Tables::Own(_) => Grantor::SchemaOwner,
                    Tables::Outbox(..) => Grantor::TableOwner,
                },
                grant: self.grant(role),
                source,
            },
            state @ (SqlState::UNDEFINED_TABLE
            | SqlState::INVALID_SCHEMA_NAME
            | SqlState::UNDEFINED_COLUMN)
                if is_own(state) =>
            {
                Error::OwnSchema { step, source }
            }
            _ => Error::Server { step, source },
        }
    }

    /// The statements that grant everything the use needs.
    fn grant(&self, role: &str) -> String {
        let role = quote_identifier(role);
        let own = |privileges: &str, tables: &[&str]| {
            let tables: Vec<_> = tables.iter().map(|table| format!("walrelay.{table}")).collect();
            let tables = tables.join(", ");
            format!("grant usage on schema walrelay to {role}; grant {privileges} on {tables} to {role}")
        };
        match self.tables {
            Tables::Own(tables) => own(self.privileges, tables),
            Tables::Outbox(table, read) => {
                let (schema, table) = (quote_identifier(&table.schema), table.quoted());
                let privileges = self.privileges;
                let mut grant = format!(
                    "grant usage on schema {schema} to {role}; grant {privileges} on {table} to {role}"
                );
                if !read.is_empty() {
                    grant.push_str("; ");
                    grant.push_str(&own("select", read));
                }
                grant
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_can_be_pasted_whatever_the_names() {
        let table = "\"Shop\".\"Out\"\"box\"".parse().unwrap();
        assert_eq!(
            Use::outbox("read rows", "select, delete", &table, &["dead_letters"]).grant("the role"),
            "grant usage on schema \"Shop\" to \"the role\"; \
             grant select, delete on \"Shop\".\"Out\"\"box\" to \"the role\"; \
             grant usage on schema walrelay to \"the role\"; \
             grant select on walrelay.dead_letters to \"the role\""
        );
        assert_eq!(
            Use::own("read notes", "select", &["backfill", "backfills"]).grant("r"),
            "grant usage on schema walrelay to \"r\"; \
             grant select on walrelay.backfill, walrelay.backfills to \"r\""
        );
    }
}
