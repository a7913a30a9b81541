//! The admin key of the API.

use std::{
    fmt, fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use tempfile::NamedTempFile;

use super::keyring;
use crate::{private_files, random, settings::SecretValue};

/// A key is never this long; a file with other content may be.
const FILE_MAX: u64 = 4 * 1024;
/// Minimum length of a key that cannot be guessed.
const SHORTEST: usize = 16;
/// Prefix of the name of a file that is not complete yet.
const TEMPORARY: &str = ".admin.key-";

/// Recognizes the admin key by its digest, without storing the key.
#[derive(Clone, Copy)]
pub struct AdminKey {
    digest: [u8; 32],
}

impl AdminKey {
    /// Recognizes this key.
    #[must_use]
    pub fn new(key: &SecretValue) -> Self {
        Self { digest: keyring::digest(key.expose()) }
    }

    /// Recognizes the key with this SHA-256.
    #[must_use]
    pub fn from_digest(digest: [u8; 32]) -> Self {
        Self { digest }
    }

    /// The SHA-256 of the key.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Whether this is the key. Takes the same time for every wrong key of the same length.
    #[must_use]
    pub fn matches(&self, presented: &str) -> bool {
        keyring::constant_time_eq(&self.digest, &keyring::digest(presented))
    }
}

impl fmt::Debug for AdminKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminKey")
    }
}

/// The admin key is not available.
#[derive(Debug, thiserror::Error)]
pub enum AdminKeyError {
    /// The file cannot be read.
    #[error("cannot read the admin key from {}: {error}; make the file readable, or set api.admin_key", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write an admin key to {}: {error}; make its folder writable, or set api.admin_key", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The content of the file is not a key.
    #[error("{} does not contain an admin key ({SHORTEST} or more letters, digits, `.`, `_` and `-`); delete it, and a \
        new key is generated", file.display())]
    NoKey {
        /// The file.
        file: PathBuf,
    },
    /// Other users can read the file.
    #[error("{} contains the admin key, and other users can read it; run chmod 600 on it, or delete it, and a new key \
        is generated", file.display())]
    Exposed {
        /// The file.
        file: PathBuf,
    },
    /// The system has no random bytes.
    #[error("cannot generate an admin key: the system provides no random bytes; set api.admin_key")]
    NoRandomBytes,
}

/// Reads the key from a file that only this user can read; `None` if the file does not exist.
///
/// # Errors
///
/// When the file cannot be read, contains something else, or can be read by others.
pub fn find(file: &Path) -> Result<Option<SecretValue>, AdminKeyError> {
    match fs::metadata(file) {
        Ok(metadata) => read(file, &metadata).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(AdminKeyError::Read { file: file.to_owned(), error }),
    }
}

/// Reads the key from a file that only this user can read, or generates one if the file does not exist. Also returns
/// whether it was generated.
///
/// # Errors
///
/// When the file cannot be read or written, contains something else, or can be read by others.
pub fn find_or_generate(file: &Path) -> Result<(SecretValue, bool), AdminKeyError> {
    match find(file)? {
        Some(key) => Ok((key, false)),
        None => create(file),
    }
}

/// Generates a key.
///
/// # Errors
///
/// When the system provides no random bytes.
pub fn generate() -> Result<SecretValue, AdminKeyError> {
    let bytes: [u8; 32] = random::bytes().map_err(|_| AdminKeyError::NoRandomBytes)?;
    Ok(SecretValue::new(format!("gh_admin_{}", URL_SAFE_NO_PAD.encode(bytes))))
}

/// Writes a key to a file that only this user can read, replacing an existing file.
///
/// # Errors
///
/// When the file cannot be written.
pub fn write(file: &Path, key: &SecretValue) -> Result<(), AdminKeyError> {
    let written = write_temporary(file, key).and_then(|new| new.persist(file).map(drop).map_err(|failed| failed.error));
    written.map_err(|error| AdminKeyError::Write { file: file.to_owned(), error })
}

fn read(file: &Path, metadata: &fs::Metadata) -> Result<SecretValue, AdminKeyError> {
    let file = file.to_owned();
    #[cfg(unix)]
    if std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o077 != 0 {
        return Err(AdminKeyError::Exposed { file });
    }
    if metadata.len() > FILE_MAX {
        return Err(AdminKeyError::NoKey { file });
    }
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(AdminKeyError::NoKey { file }),
        Err(error) => return Err(AdminKeyError::Read { file, error }),
    };
    let key = text.trim_end_matches(['\n', '\r']);
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if key.len() < SHORTEST || !key.chars().all(plain) {
        return Err(AdminKeyError::NoKey { file });
    }
    Ok(SecretValue::new(key))
}

fn create(file: &Path) -> Result<(SecretValue, bool), AdminKeyError> {
    let key = generate()?;
    // If two processes start together, one of them creates the file.
    let written =
        write_temporary(file, &key).and_then(|new| new.persist_noclobber(file).map_err(|failed| failed.error));
    match written {
        Ok(_) => Ok((key, true)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let metadata = fs::metadata(file).map_err(|error| AdminKeyError::Read { file: file.to_owned(), error })?;
            read(file, &metadata).map(|key| (key, false))
        }
        Err(error) => Err(AdminKeyError::Write { file: file.to_owned(), error }),
    }
}

/// A temporary file in the same folder that contains the key, to be renamed: a reader never sees a part of it. It is
/// created with mode 0600, and removed when it is dropped.
fn write_temporary(file: &Path, key: &SecretValue) -> io::Result<NamedTempFile> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    private_files::create_folder(folder)?;
    let mut new = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(folder)?;
    writeln!(new, "{}", key.expose())?;
    new.as_file().sync_all()?;
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_itself_matches() {
        let key = AdminKey::new(&SecretValue::new("gh_admin_0123456789"));
        assert!(key.matches("gh_admin_0123456789"));
        for invalid in ["", "gh_admin_012345678", "gh_admin_01234567890", "GH_ADMIN_0123456789", "gh_admin_0123456789 "]
        {
            assert!(!key.matches(invalid), "{invalid}");
        }
        assert_eq!(format!("{key:?}"), "AdminKey");
    }

    #[test]
    fn key_is_generated_once_and_differs_per_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("data/admin.key");
        let (made, is_new) = find_or_generate(&file).unwrap();
        assert!(is_new && made.expose().len() > 40);
        let (found, is_new) = find_or_generate(&file).unwrap();
        assert!(!is_new && found.expose() == made.expose());
        let (other, _) = find_or_generate(&folder.path().join("other.key")).unwrap();
        assert_ne!(other.expose(), made.expose());
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "no temporary file remains");
    }

    #[cfg(unix)]
    #[test]
    fn file_readable_by_others_is_rejected() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("admin.key");
        find_or_generate(&file).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        for mode in [0o640, 0o604] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            let error = find_or_generate(&file).unwrap_err();
            assert!(matches!(error, AdminKeyError::Exposed { .. }), "{error}");
        }
    }

    #[test]
    fn file_without_a_key_is_rejected_and_not_printed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("admin.key");
        for text in [&b""[..], b"short", b"has a space in its middle", b"\xff\xfe0123456789012345", &[b'a'; 5_000]] {
            write(&file, &SecretValue::new("")).unwrap();
            fs::write(&file, text).unwrap();
            let error = find_or_generate(&file).unwrap_err();
            assert!(matches!(error, AdminKeyError::NoKey { .. }), "{error}");
            assert!(!error.to_string().contains("space"), "{error}");
        }
    }

    #[test]
    fn processes_that_start_together_get_one_key() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("data/admin.key");
        let found: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| find_or_generate(&file).unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(found.iter().filter(|(_, made)| *made).count(), 1);
        assert!(found.iter().all(|(key, _)| key.expose() == found[0].0.expose()));
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
        assert!(find_or_generate(&file.join("below")).is_err());
    }
}
