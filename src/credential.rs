//! Small files that are read when they are needed: passwords, certificates, keys. `credential:NAME` stands for a file of
//! systemd's credentials.
//!
//! <https://systemd.io/CREDENTIALS/>

use std::borrow::Cow;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// What the name of a credential follows.
const SCHEME: &str = "credential:";

/// The variable in which systemd names the folder of a service's credentials.
const DIRECTORY: &str = "CREDENTIALS_DIRECTORY";

/// More than any such file holds; keeps a wrong path from filling the memory.
const LARGEST: u64 = 4 * 1024 * 1024;

/// Reads a file, or a credential. Nothing is kept: a file that was replaced counts from the next call on.
///
/// # Errors
/// What the operating system says, or why the name leads nowhere.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(located(path)?)?
        .take(LARGEST + 1)
        .read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > LARGEST) {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "the file is larger than 4 MiB",
        ));
    }
    Ok(bytes)
}

/// As [`read`], for text.
///
/// # Errors
/// As [`read`], or the file is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
}

/// Where the file is.
///
/// # Errors
/// It is a credential, and there is none of that name or no folder of credentials.
pub fn located(path: &Path) -> io::Result<Cow<'_, Path>> {
    located_in(path, || std::env::var_os(DIRECTORY))
}

fn located_in(path: &Path, directory: impl FnOnce() -> Option<OsString>) -> io::Result<Cow<'_, Path>> {
    let Some(name) = path.to_str().and_then(|path| path.strip_prefix(SCHEME)) else {
        return Ok(Cow::Borrowed(path));
    };
    if !is_name(name) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a credential's name is a plain file name",
        ));
    }
    match directory() {
        Some(directory) if !directory.is_empty() => Ok(Cow::Owned(PathBuf::from(directory).join(name))),
        Some(_) | None => Err(io::Error::new(
            io::ErrorKind::NotFound,
            "CREDENTIALS_DIRECTORY is not set: LoadCredential= of the systemd unit sets it",
        )),
    }
}

fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn located(path: &str, directory: Option<&str>) -> io::Result<PathBuf> {
        located_in(Path::new(path), || directory.map(OsString::from)).map(Cow::into_owned)
    }

    #[test]
    fn a_credential_is_a_file_of_the_services_folder() {
        let folder = Some("/run/credentials/walrelay.service");
        assert_eq!(
            located("credential:amqp", folder).unwrap(),
            Path::new("/run/credentials/walrelay.service/amqp")
        );
        for path in ["/run/secrets/amqp", "secrets/amqp", "./credential:amqp"] {
            assert_eq!(located(path, folder).unwrap(), Path::new(path));
        }
    }

    #[test]
    fn a_credential_without_a_folder_or_outside_of_it_is_an_error() {
        for (path, directory, words) in [
            ("credential:amqp", None, "LoadCredential="),
            ("credential:amqp", Some(""), "LoadCredential="),
            ("credential:", Some("/run"), "plain file name"),
            ("credential:../shadow", Some("/run"), "plain file name"),
            ("credential:..", Some("/run"), "plain file name"),
        ] {
            let error = located(path, directory).unwrap_err().to_string();
            assert!(error.contains(words), "{path}: {error}");
        }
    }

    #[test]
    fn a_file_that_is_no_secret_of_ours_does_not_fill_the_memory() {
        let error = read(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
