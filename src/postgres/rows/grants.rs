//! What a use of an outbox table needs, and which grant is missing where it is refused.

use std::future::Future;

use crate::postgres::control::bounded;
use crate::postgres::error::{Error, SqlState, Step};
use crate::postgres::identifier::{QualifiedTable, quote_identifier};

/// What a use of an outbox table needs.
#[derive(Debug, Clone, Copy)]
pub(in crate::postgres) struct TableUse<'a> {
    /// What an error names: `read rows to replay`.
    pub(in crate::postgres) purpose: &'static str,
    /// The privileges on the table: `select, delete`.
    pub(in crate::postgres) privileges: &'static str,
    /// The table.
    pub(in crate::postgres) table: &'a QualifiedTable,
    /// The tables of walrelay's own that are read as well: `dead_letters`.
    pub(in crate::postgres) own: Option<&'static str>,
}

impl TableUse<'_> {
    /// Awaits one statement, bounded in time, and says of a refusal which grant is missing.
    pub(in crate::postgres) async fn run<T>(
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
        match source.sqlstate {
            SqlState::INSUFFICIENT_PRIVILEGE => Error::TableGrantMissing {
                step,
                grant: self.grant(role),
                source,
            },
            // The outbox table was there a moment ago.
            SqlState::UNDEFINED_TABLE | SqlState::INVALID_SCHEMA_NAME if self.own.is_some() => {
                Error::OwnSchema { step, source }
            }
            _ => Error::Server { step, source },
        }
    }

    /// The statements that grant everything the use needs.
    fn grant(&self, role: &str) -> String {
        let role = quote_identifier(role);
        let schema = quote_identifier(&self.table.schema);
        let mut grant = format!(
            "grant usage on schema {schema} to {role}; grant {} on {} to {role}",
            self.privileges,
            self.table.quoted()
        );
        if let Some(own) = self.own {
            grant.push_str(&format!(
                "; grant usage on schema walrelay to {role}; grant select on walrelay.{own} to {role}"
            ));
        }
        grant
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_can_be_pasted_whatever_the_names() {
        let table = "\"Shop\".\"Out\"\"box\"".parse().unwrap();
        let asked = TableUse {
            purpose: "read rows",
            privileges: "select, delete",
            table: &table,
            own: Some("dead_letters"),
        };
        assert_eq!(
            asked.grant("the role"),
            "grant usage on schema \"Shop\" to \"the role\"; \
             grant select, delete on \"Shop\".\"Out\"\"box\" to \"the role\"; \
             grant usage on schema walrelay to \"the role\"; \
             grant select on walrelay.dead_letters to \"the role\""
        );
    }
}
