//! Seats: how the processes of one machine know which of them are dead.
//!
//! ```text
//!  <folder>/0.seat   locked by the process that sits there     its id, and who sat there before
//!  <folder>/1.seat   free: whoever sat there is dead           ids that nobody has been told of yet
//! ```
//!
//! A process keeps the lock on its file for as long as it lives, and the kernel lets go of it when it dies, however it dies.
//! Each process writes an id of its own, made by chance, so the ids in a file that is free are dead for ever: whoever takes
//! the seat next is not one of them.

use std::{
    env,
    fs::{self, DirBuilder, File, Metadata, TryLockError},
    hash::{BuildHasher as _, RandomState},
    io,
    os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use tracing::warn;

use crate::events::{InternalEvent, emit};

/// Seats in a folder.
const SEATS: u32 = 256;

/// Ids that are remembered in a file. One that is too many is found by its silence.
const MOST_IDS: usize = 32;

/// Others must not be able to say that somebody is dead.
const WRITABLE_BY_ALL: u32 = 0o002;

/// Why no seat can be taken.
#[derive(Debug, thiserror::Error)]
pub enum ProcessLockError {
    /// The folder, or what is in it, cannot be made, read, written or locked.
    #[error("the folder {} cannot be used: {error}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Others could say in the folder that this process is dead.
    #[error("the folder {} belongs to another user, or everybody may write to it", path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
    },
    /// Every seat is taken.
    #[error("all {SEATS} seats in {} are taken", path.display())]
    Full {
        /// The folder.
        path: PathBuf,
    },
}

/// A process's seat, for as long as this lives.
#[derive(Debug)]
pub struct ProcessLock {
    id: String,
    life: u64,
    place: Option<LockFile>,
}

/// A file that is locked, in its folder.
#[derive(Debug)]
struct LockFile {
    folder: PathBuf,
    path: PathBuf,
    file: File,
}

impl ProcessLock {
    /// Where the processes of one application on this machine keep their seats, unless the settings name another folder.
    /// The folder must not be shared with other machines that do not see its locks.
    #[must_use]
    pub fn folder(set: Option<&Path>, application: u64) -> PathBuf {
        let root = set.map_or_else(|| env::temp_dir().join(format!("guildhall-seats-{}", user())), Path::to_path_buf);
        root.join(application.to_string())
    }

    /// Takes the first seat that is free. Reads and writes files, as all of this does, but never for long.
    ///
    /// # Errors
    ///
    /// When the folder cannot be used, or has no free seat.
    pub fn take(folder: &Path) -> Result<Self, ProcessLockError> {
        let unusable = |error| ProcessLockError::Folder { path: folder.to_owned(), error };
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(unusable)?;
        if !is_safe(&fs::metadata(folder).map_err(unusable)?, own_uid(folder).map_err(unusable)?) {
            return Err(ProcessLockError::Foreign { path: folder.to_owned() });
        }
        let mut failed = None;
        for number in 0..SEATS {
            match LockFile::lock(folder, number, MissingFile::Make).and_then(|free| free.map(Self::sit).transpose()) {
                Ok(Some(seat)) => return Ok(seat),
                Ok(None) => {}
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.map_or_else(|| ProcessLockError::Full { path: folder.to_owned() }, unusable))
    }

    fn sit(place: LockFile) -> io::Result<Self> {
        let seat = Self::without_place();
        let before = place.read()?;
        place.write([&seat.id].into_iter().chain(&before))?;
        Ok(Self { place: Some(place), ..seat })
    }

    /// Takes a seat; if there is none to be had, goes on without. Then nobody learns of this process's death but by its
    /// silence, which the log says.
    #[must_use]
    pub fn take_or_do_without(folder: &Path) -> Self {
        Self::take(folder).unwrap_or_else(|error| {
            emit(ProcessLockUnavailable { error: &error });
            Self::without_place()
        })
    }

    fn without_place() -> Self {
        Self { id: format!("{:016x}{:016x}", chance(), chance()), life: chance(), place: None }
    }

    /// What the other processes know this one by. Nobody else ever has or had it.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// A number by chance.
    #[must_use]
    pub fn life(&self) -> u64 {
        self.life
    }

    /// The ids of processes that sat in this folder and are certainly dead. They are told again and again until
    /// [`ProcessLock::forget`].
    #[must_use]
    pub fn dead(&self) -> Vec<String> {
        let Some(own) = &self.place else { return Vec::new() };
        let mut dead: Vec<String> = own.read_or_nothing().into_iter().filter(|id| *id != self.id).collect();
        for free in own.free_ones() {
            dead.extend(free.read_or_nothing());
        }
        dead
    }

    /// Everybody knows of these dead: they need not be told any more, and their files go.
    pub fn forget(&mut self, dead: &[String]) {
        let Some(own) = &self.place else { return };
        let is_known = |id: &String| dead.contains(id) && *id != self.id;
        own.strike(is_known);
        for free in own.free_ones() {
            free.strike(is_known);
        }
    }

    /// Leaves the seat. For a process that has said goodbye: nobody has to be told of its death.
    pub fn leave(self) {
        if let Some(own) = &self.place {
            own.strike(|id| *id == self.id);
        }
    }
}

/// What to do about a file that is not there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MissingFile {
    Make,
    Pass,
}

impl LockFile {
    /// Locks a file. `None` if somebody else has it.
    fn lock(folder: &Path, number: u32, missing: MissingFile) -> io::Result<Option<Self>> {
        let path = folder.join(format!("{number}.seat"));
        let make = missing == MissingFile::Make;
        loop {
            let file = match File::options().read(true).write(true).create(make).truncate(false).mode(0o600).open(&path)
            {
                Err(error) if !make && error.kind() == io::ErrorKind::NotFound => return Ok(None),
                file => file?,
            };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // Somebody may have removed it between the two: then this is a lock on nothing.
            match fs::metadata(&path) {
                Ok(there) if is_same(&there, &file.metadata()?) => {
                    return Ok(Some(Self { folder: folder.to_owned(), path, file }));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The other seats of the folder in which nobody sits. They stay locked while each is looked at.
    fn free_ones(&self) -> impl Iterator<Item = Self> {
        // What cannot be opened or locked is nobody's death. This one is locked, too.
        (0..SEATS).filter_map(|number| Self::lock(&self.folder, number, MissingFile::Pass).ok().flatten())
    }

    fn read(&self) -> io::Result<Vec<String>> {
        let mut bytes = vec![0; MOST_IDS * 64];
        let length = self.file.read_at(&mut bytes, 0)?;
        let text = String::from_utf8_lossy(&bytes[..length]);
        Ok(text.lines().filter(|line| is_id(line)).map(str::to_owned).collect())
    }

    fn read_or_nothing(&self) -> Vec<String> {
        self.read().unwrap_or_default()
    }

    fn write<'a>(&self, ids: impl Iterator<Item = &'a String>) -> io::Result<()> {
        let text: String = ids.take(MOST_IDS).flat_map(|id| [id, "\n"]).collect();
        // Over what was there, and cut only then: at no time is it empty.
        self.file.write_all_at(text.as_bytes(), 0)?;
        self.file.set_len(text.len() as u64)
    }

    /// Takes out ids, and the file itself if it then has none. If that fails, they are only told once more.
    fn strike(&self, is_known: impl Fn(&String) -> bool) {
        let Ok(ids) = self.read() else { return };
        let rest: Vec<&String> = ids.iter().filter(|id| !is_known(id)).collect();
        let done = match rest.len() {
            0 => fs::remove_file(&self.path),
            left if left < ids.len() => self.write(rest.into_iter()),
            _ => return,
        };
        drop(done);
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // Closing the file is not enough while a process that is just being started still shares it.
        drop(self.file.unlock());
    }
}

fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Whether nobody but this user and the system itself may say in the folder who is dead.
fn is_safe(folder: &Metadata, own_uid: u32) -> bool {
    [own_uid, 0].contains(&folder.uid()) && folder.mode() & WRITABLE_BY_ALL == 0
}

/// The number of the user that this process runs as: whoever makes a file owns it.
fn own_uid(folder: &Path) -> io::Result<u32> {
    let path = folder.join(format!("{:016x}.new", chance()));
    let about = File::options().write(true).create_new(true).mode(0o600).open(&path)?.metadata();
    fs::remove_file(&path)?;
    Ok(about?.uid())
}

/// Who runs this process; so that users do not get in each other's way.
fn user() -> String {
    match fs::metadata("/proc/self") {
        Ok(about) => about.uid().to_string(),
        Err(_) => env::var("USER").ok().filter(|name| !name.contains('/')).unwrap_or_else(|| "unknown".to_owned()),
    }
}

/// From the system's own source of chance: no two processes anywhere may have the same.
fn chance() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// A process goes on without a seat.
struct ProcessLockUnavailable<'a> {
    error: &'a ProcessLockError,
}

impl InternalEvent for ProcessLockUnavailable<'_> {
    fn emit(self) {
        warn!(
            error = %self.error,
            "no seat for this process; should it die, the others find out by its silence only; see redis.seat_dir"
        );
    }
}

#[cfg(test)]
mod tests;
