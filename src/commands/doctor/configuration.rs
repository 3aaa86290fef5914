//! The configuration itself, which is valid when it gets here: where it comes from, and who else can read its secrets.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use secrecy::ExposeSecret as _;

use crate::caution::Caution;
use crate::config::{Loaded, Origin};
use crate::fault::{Fault, FaultKind};
use crate::finding::{Finding, Group};
use crate::postgres::ConnectTarget;
use crate::rabbitmq::BrokerUri;

/// Permission bits of everybody else.
const OTHERS: u32 = 0o007;

pub(super) fn examine(loaded: &Loaded) -> Group {
    let mut group = Group::new("configuration");
    group.push(file(loaded));
    for variable in &loaded.unknown_variables {
        group.push(Finding::caution(
            "environment",
            Caution::UnknownVariable,
            variable.to_string(),
        ));
    }
    let config = &loaded.config;
    let secrets = [
        (
            "postgres.password_file",
            &config.postgres.password_file,
            FaultKind::DatabaseAuthentication,
        ),
        (
            "rabbitmq.password_file",
            &config.rabbitmq.password_file,
            FaultKind::BrokerAuthentication,
        ),
        (
            "admin.token_file",
            &config.admin.token_file,
            FaultKind::Configuration,
        ),
    ];
    for (key, path, kind) in secrets {
        if let Some(path) = path {
            group.push(secret(key, path, kind));
        }
    }
    group
}

fn file(loaded: &Loaded) -> Finding {
    const CHECK: &str = "file";
    let Some(path) = &loaded.file else {
        return Finding::passed(CHECK, "none: environment and flags alone");
    };
    let found = path.display().to_string();
    if holds_password(loaded) && is_open(path) {
        return readable(
            CHECK,
            path,
            format!("{found} holds a password, and others can read it"),
        );
    }
    Finding::passed(CHECK, found)
}

/// Whether a password stands in the file itself.
fn holds_password(loaded: &Loaded) -> bool {
    let in_file = |key| matches!(loaded.settings.origin(key), Some(Origin::File { .. }));
    let config = &loaded.config;
    let target = config.postgres.url.expose_secret().parse::<ConnectTarget>();
    let of_database = in_file("postgres.url") && target.is_ok_and(|target| target.password.is_some());
    let of_broker = in_file("rabbitmq.uri")
        && config
            .rabbitmq
            .uris
            .iter()
            .any(|uri| BrokerUri::parse(uri.expose_secret()).is_ok_and(|uri| uri.password.is_some()));
    of_database || of_broker
}

fn secret(check: &'static str, path: &Path, kind: FaultKind) -> Finding {
    let shown = path.display();
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            let message = format!("cannot read {shown}: {error}");
            return Finding::fault(check, Fault { kind, message });
        }
    };
    if text.trim_end_matches(['\r', '\n']).is_empty() {
        let message = format!("{shown} is empty");
        return Finding::fault(check, Fault { kind, message });
    }
    if is_open(path) {
        return readable(check, path, format!("others can read {shown}"));
    }
    Finding::passed(check, shown.to_string())
}

fn is_open(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & OTHERS != 0)
}

fn readable(check: &'static str, path: &Path, found: String) -> Finding {
    Finding::caution(check, Caution::SecretReadable, found).with_fix(format!("chmod o= '{}'", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Outcome;

    #[test]
    fn a_secret_is_there_and_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        let look = || secret("postgres.password_file", &path, FaultKind::DatabaseAuthentication).outcome;
        assert_eq!(look(), Outcome::Failed);
        fs::write(&path, "\n").unwrap();
        assert_eq!(look(), Outcome::Failed);
        fs::write(&path, "hunter2\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(look(), Outcome::Warning);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(look(), Outcome::Passed);
    }
}
