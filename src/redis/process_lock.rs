//! Lock files by which the processes of one machine know which of them are dead.
//!
//! ```text
//!  <folder>/0.seat   locked by the process that owns it      its id, and the ids of earlier owners
//!  <folder>/1.seat   not locked: its owner is dead           ids that were not reported yet
//! ```
//!
//! A process holds the lock on its file for as long as it lives. The kernel releases it when the process dies, no
//! matter how. Each process writes a random id of its own, so the ids in an unlocked file are dead for good: the next
//! owner of the file is not one of them.

use std::{
    env,
    fs::{self, DirBuilder, File, Metadata, TryLockError},
    hash::{BuildHasher as _, RandomState},
    io,
    os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use tracing::warn;

use crate::events::{emit, event};

/// Number of lock files in a folder.
const MAX_LOCK_FILES: u32 = 256;

/// Maximum number of ids in a file. The death of a process beyond it is detected by its silence.
const MAX_IDS: usize = 32;

/// Others must not be able to report a process as dead.
const WRITABLE_BY_ALL: u32 = 0o002;

/// Why no lock file can be taken.
#[derive(Debug, thiserror::Error)]
pub enum ProcessLockError {
    /// The folder or a file in it cannot be created, read, written or locked.
    #[error("cannot use the folder {}: {error}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Cause.
        error: io::Error,
    },
    /// Others could report this process as dead in the folder.
    #[error("the folder {} belongs to another user or is writable by everyone", path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
    },
    /// Every lock file is taken.
    #[error("all 256 lock files in {} are taken", path.display())]
    Full {
        /// The folder.
        path: PathBuf,
    },
}

/// The lock of a process, held until this is dropped.
#[derive(Debug)]
pub struct ProcessLock {
    id: String,
    life: u64,
    file: Option<LockFile>,
}

/// A locked file in its folder.
#[derive(Debug)]
struct LockFile {
    folder: PathBuf,
    path: PathBuf,
    file: File,
}

impl ProcessLock {
    /// Folder for the lock files of one application on this machine, unless the settings name another one. It must not
    /// be shared with other machines that do not see its locks.
    #[must_use]
    pub fn folder(set: Option<&Path>, application: u64) -> PathBuf {
        let root = set.map_or_else(|| env::temp_dir().join(format!("guildhall-seats-{}", user())), Path::to_path_buf);
        root.join(application.to_string())
    }

    /// Takes the first lock file that is free. Like all methods here it does file I/O, but never for long.
    ///
    /// # Errors
    ///
    /// When the folder cannot be used, or has no free lock file.
    pub fn take(folder: &Path) -> Result<Self, ProcessLockError> {
        let unusable = |error| ProcessLockError::Folder { path: folder.to_owned(), error };
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(unusable)?;
        if !is_safe(&fs::metadata(folder).map_err(unusable)?, own_uid(folder).map_err(unusable)?) {
            return Err(ProcessLockError::Foreign { path: folder.to_owned() });
        }
        let mut failed = None;
        for number in 0..MAX_LOCK_FILES {
            match LockFile::lock(folder, number, MissingFile::Create)
                .and_then(|free| free.map(Self::acquire).transpose())
            {
                Ok(Some(lock)) => return Ok(lock),
                Ok(None) => {}
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.map_or_else(|| ProcessLockError::Full { path: folder.to_owned() }, unusable))
    }

    fn acquire(file: LockFile) -> io::Result<Self> {
        let lock = Self::without_file();
        let before = file.read()?;
        file.write([&lock.id].into_iter().chain(&before))?;
        Ok(Self { file: Some(file), ..lock })
    }

    /// Takes a lock file. If that fails, logs a warning and continues without one: the death of this process is then
    /// detected only by its silence.
    #[must_use]
    pub fn take_or_continue_without(folder: &Path) -> Self {
        Self::take(folder).unwrap_or_else(|error| {
            emit(ProcessLockUnavailable { error: &error });
            Self::without_file()
        })
    }

    fn without_file() -> Self {
        Self { id: format!("{:016x}{:016x}", random_number(), random_number()), life: random_number(), file: None }
    }

    /// Id of this process, unique for all time.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// A random number.
    #[must_use]
    pub fn life(&self) -> u64 {
        self.life
    }

    /// Ids of processes that used this folder and are certainly dead. They are reported until [`ProcessLock::forget`].
    #[must_use]
    pub fn dead_ids(&self) -> Vec<String> {
        let Some(own) = &self.file else { return Vec::new() };
        let mut dead: Vec<String> = own.read_or_empty().into_iter().filter(|id| *id != self.id).collect();
        for free in own.free_files() {
            dead.extend(free.read_or_empty());
        }
        dead
    }

    /// Removes dead processes that all others know of, and their files.
    pub fn forget(&mut self, dead: &[String]) {
        let Some(own) = &self.file else { return };
        let is_known = |id: &String| dead.contains(id) && *id != self.id;
        own.remove_ids(is_known);
        for free in own.free_files() {
            free.remove_ids(is_known);
        }
    }

    /// Releases the lock file of a process that has left properly: its death need not be reported.
    pub fn release(self) {
        if let Some(own) = &self.file {
            own.remove_ids(|id| *id == self.id);
        }
    }
}

/// What to do about a missing file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MissingFile {
    Create,
    Skip,
}

impl LockFile {
    /// Locks a file. `None` if another process holds it.
    fn lock(folder: &Path, number: u32, missing: MissingFile) -> io::Result<Option<Self>> {
        let path = folder.join(format!("{number}.seat"));
        let create = missing == MissingFile::Create;
        loop {
            let file =
                match File::options().read(true).write(true).create(create).truncate(false).mode(0o600).open(&path) {
                    Err(error) if !create && error.kind() == io::ErrorKind::NotFound => return Ok(None),
                    file => file?,
                };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // The file may have been removed between the two steps: then the lock is on a deleted file.
            match fs::metadata(&path) {
                Ok(present) if is_same_file(&present, &file.metadata()?) => {
                    return Ok(Some(Self { folder: folder.to_owned(), path, file }));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Locks the other free files of the folder, each while it is processed.
    fn free_files(&self) -> impl Iterator<Item = Self> {
        // A file that cannot be opened or locked proves no death. The own file is locked, too.
        (0..MAX_LOCK_FILES).filter_map(|number| Self::lock(&self.folder, number, MissingFile::Skip).ok().flatten())
    }

    fn read(&self) -> io::Result<Vec<String>> {
        let mut bytes = vec![0; MAX_IDS * 64];
        let length = self.file.read_at(&mut bytes, 0)?;
        let text = String::from_utf8_lossy(&bytes[..length]);
        Ok(text.lines().filter(|line| is_id(line)).map(str::to_owned).collect())
    }

    fn read_or_empty(&self) -> Vec<String> {
        self.read().unwrap_or_default()
    }

    fn write<'a>(&self, ids: impl Iterator<Item = &'a String>) -> io::Result<()> {
        let text: String = ids.take(MAX_IDS).flat_map(|id| [id, "\n"]).collect();
        // Overwrites first and truncates after: the file is never empty.
        self.file.write_all_at(text.as_bytes(), 0)?;
        self.file.set_len(text.len() as u64)
    }

    /// Removes ids, and the file itself if none remains. If that fails, they are only reported once more.
    fn remove_ids(&self, is_known: impl Fn(&String) -> bool) {
        let Ok(ids) = self.read() else { return };
        let rest: Vec<&String> = ids.iter().filter(|id| !is_known(id)).collect();
        let done = match rest.len() {
            0 => fs::remove_file(&self.path),
            remaining if remaining < ids.len() => self.write(rest.into_iter()),
            _ => return,
        };
        drop(done);
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // Closing the file is not enough while a child process that is being started still shares it.
        drop(self.file.unlock());
    }
}

fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_same_file(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Whether only this user and root may report processes as dead in the folder.
fn is_safe(folder: &Metadata, own_uid: u32) -> bool {
    [own_uid, 0].contains(&folder.uid()) && folder.mode() & WRITABLE_BY_ALL == 0
}

/// User id of this process: the owner of a file that it creates.
fn own_uid(folder: &Path) -> io::Result<u32> {
    let path = folder.join(format!("{:016x}.new", random_number()));
    let metadata = File::options().write(true).create_new(true).mode(0o600).open(&path)?.metadata();
    fs::remove_file(&path)?;
    Ok(metadata?.uid())
}

/// User that this process runs as, so that users do not conflict.
fn user() -> String {
    match fs::metadata("/proc/self") {
        Ok(metadata) => metadata.uid().to_string(),
        Err(_) => env::var("USER").ok().filter(|name| !name.contains('/')).unwrap_or_else(|| "unknown".to_owned()),
    }
}

/// From the system's random source: no two processes may have the same.
fn random_number() -> u64 {
    RandomState::new().hash_one(0_u8)
}

event! {
    /// A process continues without a lock file.
    struct ProcessLockUnavailable<'a> { error: &'a ProcessLockError }
    warn!(
        %error,
        "no lock file for this process; if it dies, the others detect it only by its silence; see redis.seat_dir"
    );
}

#[cfg(test)]
mod tests;
