//! The lock file next to an SQLite file: only one process may use the file.

use std::{
    fs::{File, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
    path::{Path, PathBuf},
};

use crate::private_files;

/// The exclusive right to use an SQLite file. The operating system releases it when the process ends, for whatever
/// reason.
#[derive(Debug)]
pub(super) struct FileLock {
    _file: File,
}

/// Reason why the lock was not acquired.
#[derive(Debug)]
pub(super) enum LockError {
    /// Another process holds it. Contains the process ID, if that process has written it.
    Held(Option<u32>),
    /// The lock file cannot be opened.
    Io(io::Error),
}

impl FileLock {
    pub(super) fn acquire(database: &Path) -> Result<Self, LockError> {
        let mut file = private_files::open_or_create(&lock_path(database)).map_err(LockError::Io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                // The process ID is only informative: the result is the same without it.
                let _ = file.take(20).read_to_string(&mut text);
                return Err(LockError::Held(text.trim().parse().ok()));
            }
            Err(TryLockError::Error(error)) => return Err(LockError::Io(error)),
        }
        let written =
            file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
        written.map_err(LockError::Io)?;
        Ok(Self { _file: file })
    }
}

impl FileLock {
    /// Whether a process holds the lock of a file. Creates nothing.
    pub(super) fn is_held(database: &Path) -> bool {
        // A shared lock, and only for a moment.
        let Ok(file) = File::open(lock_path(database)) else { return false };
        matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    }
}

fn lock_path(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_holder_is_refused_with_the_pid_of_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("guildhall.db");
        let first = FileLock::acquire(&database).unwrap();
        let refused = FileLock::acquire(&database).unwrap_err();
        assert!(matches!(refused, LockError::Held(Some(pid)) if pid == std::process::id()), "{refused:?}");
        assert!(FileLock::is_held(&database));
        drop(first);
        assert!(!FileLock::is_held(&database));
        FileLock::acquire(&database).unwrap();
    }
}
