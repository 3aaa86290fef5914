//! A private folder that goes away with its owner, or with the process.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::error::{Attempt as _, Result};
use crate::watchdog;

/// A temporary folder, removed on drop and by the watchdog.
#[derive(Debug)]
pub struct Folder(tempfile::TempDir);

impl Folder {
    /// Makes an empty folder whose name begins with `prefix`; everybody may look into it.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new(prefix: &str) -> Result<Folder> {
        let folder = tempfile::Builder::new()
            .prefix(prefix)
            .tempdir_in(watchdog::base_folder()?)
            .attempt("make a private folder")?;
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))
            .attempt("open the folder")?;
        Ok(Folder(folder))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file with the given access mode, and returns its path.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn write(&self, name: &str, content: &str, mode: u32) -> Result<PathBuf> {
        let path = self.path().join(name);
        std::fs::write(&path, content).attempt(format!("write {}", path.display()))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))
            .attempt("set a file's mode")?;
        Ok(path)
    }
}
