//! Managed services: how each is told, and what it wants in place of the usual statements.

use super::super::catalog::column;
use super::super::control::ControlSession;
use super::super::error::Error;
use super::super::identifier::quote_identifier;

/// A service that runs PostgreSQL for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    /// Amazon RDS and Aurora.
    Rds,
    /// Google Cloud SQL.
    CloudSql,
    /// Azure Database for PostgreSQL.
    Azure,
    /// Supabase.
    Supabase,
    /// Neon.
    Neon,
}

impl Service {
    /// By settings, roles and the host's name; each is enough.
    pub(super) async fn recognise(session: &ControlSession) -> Result<Option<Self>, Error> {
        const PURPOSE: &str = "look for the signs of a managed service";
        let sql = "select current_setting('rds.logical_replication', true) is not null \
                   or exists (select from pg_catalog.pg_roles where rolname = 'rds_superuser'), \
                   current_setting('cloudsql.logical_decoding', true) is not null \
                   or exists (select from pg_catalog.pg_roles where rolname = 'cloudsqlsuperuser'), \
                   current_setting('azure.extensions', true) is not null \
                   or exists (select from pg_catalog.pg_roles where rolname = 'azure_pg_admin'), \
                   exists (select from pg_catalog.pg_roles where rolname = 'supabase_admin'), \
                   current_setting('neon.timeline_id', true) is not null \
                   or exists (select from pg_catalog.pg_roles where rolname = 'neon_superuser')";
        let row = session.run(PURPOSE, session.client().query_one(sql, &[])).await?;
        for (index, service) in [Self::Rds, Self::CloudSql, Self::Azure, Self::Supabase, Self::Neon]
            .into_iter()
            .enumerate()
        {
            if column(&row, index, PURPOSE)? {
                return Ok(Some(service));
            }
        }
        Ok(Self::of_host(&session.connector().endpoints()))
    }

    fn of_host(endpoint: &str) -> Option<Self> {
        let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
        let ends = [
            (".rds.amazonaws.com", Self::Rds),
            (".postgres.database.azure.com", Self::Azure),
            (".supabase.co", Self::Supabase),
            (".supabase.com", Self::Supabase),
            (".neon.tech", Self::Neon),
        ];
        ends.into_iter()
            .find(|(end, _)| host.ends_with(end))
            .map(|(_, service)| service)
    }

    /// Whether a host's name leads to the service's pooler.
    pub(super) fn is_pooled(endpoint: &str) -> bool {
        match Self::of_host(endpoint) {
            Some(Self::Neon) => endpoint.contains("-pooler."),
            Some(Self::Supabase) => endpoint.contains(".pooler."),
            Some(Self::Rds) => endpoint.contains(".proxy-"),
            Some(Self::Azure | Self::CloudSql) | None => false,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Rds => "Amazon RDS or Aurora",
            Self::CloudSql => "Google Cloud SQL",
            Self::Azure => "Azure Database for PostgreSQL",
            Self::Supabase => "Supabase",
            Self::Neon => "Neon",
        }
    }

    /// How logical decoding is switched on there.
    pub(super) const fn logical_decoding(self) -> &'static str {
        match self {
            Self::Rds => {
                "set rds.logical_replication = 1 in the instance's DB parameter group, then reboot the instance"
            }
            Self::CloudSql => {
                "gcloud sql instances patch INSTANCE --database-flags=cloudsql.logical_decoding=on  # it restarts; name all other flags too"
            }
            Self::Azure => {
                "az postgres flexible-server parameter set -g GROUP -s SERVER -n wal_level -v logical  # then restart it"
            }
            Self::Supabase => {
                "wal_level is logical there already; use the direct connection (db.PROJECT.supabase.co), not the pooler"
            }
            Self::Neon => "enable logical replication in the project's settings",
        }
    }

    /// How a role gets to replicate there.
    pub(super) fn may_replicate(self, role: &str) -> String {
        let role = quote_identifier(role);
        match self {
            Self::Rds => format!("grant rds_replication to {role};"),
            Self::CloudSql | Self::Azure | Self::Supabase => format!("alter role {role} replication;"),
            Self::Neon => format!("grant neon_superuser to {role};  -- or create the role in the console"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_known_by_their_hosts() {
        for (endpoint, service, is_pooled) in [
            (
                "shop.abc.eu-west-1.rds.amazonaws.com:5432",
                Some(Service::Rds),
                false,
            ),
            (
                "p.proxy-abc.eu-west-1.rds.amazonaws.com:5432",
                Some(Service::Rds),
                true,
            ),
            (
                "shop.postgres.database.azure.com:5432",
                Some(Service::Azure),
                false,
            ),
            ("db.abc.supabase.co:5432", Some(Service::Supabase), false),
            ("aws-0-eu.pooler.supabase.com:6543", Some(Service::Supabase), true),
            ("ep-x-pooler.eu.aws.neon.tech:5432", Some(Service::Neon), true),
            ("ep-x.eu.aws.neon.tech:5432", Some(Service::Neon), false),
            ("db1:5432", None, false),
            ("/run/postgresql/.s.PGSQL.5432", None, false),
        ] {
            assert_eq!(Service::of_host(endpoint), service, "{endpoint}");
            assert_eq!(Service::is_pooled(endpoint), is_pooled, "{endpoint}");
        }
    }
}
