//! The account that PostgreSQL runs under when the tests run as root.

use std::path::Path;

use crate::error::{Attempt as _, Error, Result};

/// An account other than root's: PostgreSQL refuses to run as root.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Account {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Account {
    /// The account to switch to: none unless we are root.
    pub(crate) fn for_servers() -> Result<Option<Account>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let passwd = std::fs::read_to_string("/etc/passwd").attempt("read /etc/passwd")?;
        let account = |name: &str| {
            passwd.lines().find_map(|line| {
                let mut fields = line.split(':');
                (fields.next() == Some(name)).then_some(())?;
                let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
                Some(Account { uid, gid })
            })
        };
        let found = account("postgres").or_else(|| account("nobody"));
        let missing =
            "PostgreSQL refuses to run as root, and there is no account postgres or nobody to switch to";
        found.map(Some).ok_or_else(|| Error::Missing(missing.to_owned()))
    }
}

/// Makes the account the owner of a file or folder.
pub(crate) fn give(path: &Path, account: Option<Account>) -> Result<()> {
    let Some(Account { uid, gid }) = account else {
        return Ok(());
    };
    std::os::unix::fs::chown(path, Some(uid), Some(gid)).attempt(format!("give {} away", path.display()))
}
