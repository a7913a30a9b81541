//! The key that callers of the API have to show.

use std::{
    fmt, fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use tempfile::NamedTempFile;

use super::keyring;
use crate::{private_files, random, settings::SecretValue};

/// A key is never this long; a file that is something else may be.
const FILE_MAX: u64 = 4 * 1024;
/// The fewest characters of a key that nobody guesses.
const SHORTEST: usize = 16;
/// How the name of a file starts that is not complete yet.
const TEMPORARY: &str = ".admin.key-";

/// Knows the right key when it sees it, without keeping it.
#[derive(Clone, Copy)]
pub struct AdminKey {
    digest: [u8; 32],
}

impl AdminKey {
    /// Will know this key.
    #[must_use]
    pub fn new(key: &SecretValue) -> Self {
        Self { digest: keyring::digest(key.expose()) }
    }

    /// Will know the key with this SHA-256.
    #[must_use]
    pub fn from_digest(digest: [u8; 32]) -> Self {
        Self { digest }
    }

    /// The SHA-256 of the key.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Whether this is the key. Takes the same time for every wrong one of a length.
    #[must_use]
    pub fn fits(&self, shown: &str) -> bool {
        keyring::is_same(&self.digest, &keyring::digest(shown))
    }
}

impl fmt::Debug for AdminKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminKey")
    }
}

/// There is no key to be had.
#[derive(Debug, thiserror::Error)]
pub enum AdminKeyError {
    /// Its file cannot be read.
    #[error("cannot read the API's key from {}: {error}; make it readable, or set api.admin_key", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Its file cannot be written.
    #[error("cannot keep a key for the API in {}: {error}; make its folder writable, or set api.admin_key", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Its file holds something else.
    #[error("{} holds no key for the API ({SHORTEST} or more letters, digits, `.`, `_` and `-`); remove it, and one is made", file.display())]
    NoKey {
        /// The file.
        file: PathBuf,
    },
    /// Its file can be read by others.
    #[error("{} holds the API's key, and other users may read it; run chmod 600 on it, or remove it and a new key is made", file.display())]
    Open {
        /// The file.
        file: PathBuf,
    },
    /// The system gives no chance.
    #[error("cannot make a key for the API: the system gives no random bytes; set api.admin_key")]
    Chance,
}

/// The key in a file that only this user can read; nothing if there is no file.
///
/// # Errors
///
/// When the file cannot be read, holds something else, or can be read by others.
pub fn find(file: &Path) -> Result<Option<SecretValue>, AdminKeyError> {
    match fs::metadata(file) {
        Ok(metadata) => read(file, &metadata).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(AdminKeyError::Read { file: file.to_owned(), error }),
    }
}

/// The key in a file that only this user can read; one is made if there is no file. Also whether it was.
///
/// # Errors
///
/// When the file cannot be read or made, holds something else, or can be read by others.
pub fn find_or_make(file: &Path) -> Result<(SecretValue, bool), AdminKeyError> {
    match find(file)? {
        Some(key) => Ok((key, false)),
        None => make(file),
    }
}

/// A new key.
///
/// # Errors
///
/// When the system has no random bytes.
pub fn generate() -> Result<SecretValue, AdminKeyError> {
    let bytes: [u8; 32] = random::bytes().map_err(|_| AdminKeyError::Chance)?;
    Ok(SecretValue::new(format!("gh_admin_{}", URL_SAFE_NO_PAD.encode(bytes))))
}

/// Puts a key into a file that only this user can read, in place of the one that is there.
///
/// # Errors
///
/// When the file cannot be written.
pub fn write(file: &Path, key: &SecretValue) -> Result<(), AdminKeyError> {
    let written = temporary(file, key).and_then(|new| new.persist(file).map(drop).map_err(|failed| failed.error));
    written.map_err(|error| AdminKeyError::Write { file: file.to_owned(), error })
}

fn read(file: &Path, metadata: &fs::Metadata) -> Result<SecretValue, AdminKeyError> {
    let file = file.to_owned();
    #[cfg(unix)]
    if std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o077 != 0 {
        return Err(AdminKeyError::Open { file });
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

fn make(file: &Path) -> Result<(SecretValue, bool), AdminKeyError> {
    let key = generate()?;
    // Of two processes that start together one wins.
    let written = temporary(file, &key).and_then(|new| new.persist_noclobber(file).map_err(|failed| failed.error));
    match written {
        Ok(_) => Ok((key, true)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let metadata = fs::metadata(file).map_err(|error| AdminKeyError::Read { file: file.to_owned(), error })?;
            read(file, &metadata).map(|key| (key, false))
        }
        Err(error) => Err(AdminKeyError::Write { file: file.to_owned(), error }),
    }
}

/// A temporary file beside a key's file that holds the key, to be moved there: a reader never sees a part of it. It is created with
/// mode 0600, and removed when it is dropped.
fn temporary(file: &Path, key: &SecretValue) -> io::Result<NamedTempFile> {
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
    fn only_the_key_itself_fits() {
        let key = AdminKey::new(&SecretValue::new("gh_admin_0123456789"));
        assert!(key.fits("gh_admin_0123456789"));
        for wrong in ["", "gh_admin_012345678", "gh_admin_01234567890", "GH_ADMIN_0123456789", "gh_admin_0123456789 "] {
            assert!(!key.fits(wrong), "{wrong}");
        }
        assert_eq!(format!("{key:?}"), "AdminKey");
    }

    #[test]
    fn a_key_is_made_once_and_found_again_and_no_two_are_alike() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("data/admin.key");
        let (made, is_new) = find_or_make(&file).unwrap();
        assert!(is_new && made.expose().len() > 40);
        let (found, is_new) = find_or_make(&file).unwrap();
        assert!(!is_new && found.expose() == made.expose());
        let (other, _) = find_or_make(&folder.path().join("other.key")).unwrap();
        assert_ne!(other.expose(), made.expose());
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[cfg(unix)]
    #[test]
    fn the_file_is_for_its_user_alone_and_one_that_is_not_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("admin.key");
        find_or_make(&file).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        for mode in [0o640, 0o604] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            let error = find_or_make(&file).unwrap_err();
            assert!(matches!(error, AdminKeyError::Open { .. }), "{error}");
        }
    }

    #[test]
    fn a_file_that_holds_no_key_is_refused_and_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("admin.key");
        for text in [&b""[..], b"short", b"has a space in its middle", b"\xff\xfe0123456789012345", &[b'a'; 5_000]] {
            write(&file, &SecretValue::new("")).unwrap();
            fs::write(&file, text).unwrap();
            let error = find_or_make(&file).unwrap_err();
            assert!(matches!(error, AdminKeyError::NoKey { .. }), "{error}");
            assert!(!error.to_string().contains("space"), "{error}");
        }
    }

    #[test]
    fn processes_that_start_together_get_one_key() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("data/admin.key");
        let found: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| find_or_make(&file).unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(found.iter().filter(|(_, made)| *made).count(), 1);
        assert!(found.iter().all(|(key, _)| key.expose() == found[0].0.expose()));
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
        assert!(find_or_make(&file.join("below")).is_err());
    }
}
