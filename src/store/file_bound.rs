//! How large a file of SQLite may grow, if the settings do not say.

use std::path::Path;

use crate::settings::{StoreSettings as Settings, StoreUrl};

/// The largest bound that is derived for a new file.
const DERIVED_MOST: u64 = 64 << 30;
/// How far a file may grow beyond its present size in any case.
const GROWTH_MOST: u64 = 16 << 30;

/// How large a file of SQLite may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileBound {
    /// In bytes; 0 if that cannot be found out.
    pub bytes: u64,
    /// Whether it was derived from the free space of the disk.
    pub derived: bool,
}

/// The bound of a store's file; nothing if the store is no file.
#[must_use]
pub fn file_bound(settings: &Settings) -> Option<FileBound> {
    let StoreUrl::Sqlite(path) = &settings.url else { return None };
    Some(match settings.max_bytes {
        0 => FileBound { bytes: derived(path), derived: true },
        bytes => FileBound { bytes, derived: false },
    })
}

/// Without a word from the disk there is no bound: a file is not refused for that.
fn derived(path: &Path) -> u64 {
    let size = std::fs::metadata(path).map_or(0, |file| file.len());
    free(path).map_or(0, |free| from_free(size, free))
}

/// Half of the space that the file and the free disk have together, at most 64 GiB. A file that is nearly that large already
/// may grow by a quarter of the free space, at most 16 GiB, so that an upgrade does not stop it.
fn from_free(size: u64, free: u64) -> u64 {
    let half = size.saturating_add(free) / 2;
    let grown = size.saturating_add((free / 4).min(GROWTH_MOST));
    half.min(DERIVED_MOST).max(grown)
}

/// The free space where a file is, or will be.
fn free(path: &Path) -> Option<u64> {
    let absolute = std::path::absolute(path).ok()?;
    let there = absolute.ancestors().find(|ancestor| ancestor.exists())?;
    let stat = rustix::fs::statvfs(there).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn bound_is_half_of_the_space_and_never_below_the_file() {
        assert_eq!(from_free(0, 20 * GIB), 10 * GIB);
        assert_eq!(from_free(2 * GIB, 18 * GIB), 10 * GIB);
        assert_eq!(from_free(0, 1_000 * GIB), 64 * GIB);
        assert_eq!(from_free(60 * GIB, 1_000 * GIB), 76 * GIB);
        assert_eq!(from_free(19 * GIB, 4 * GIB), 20 * GIB);
        assert_eq!(from_free(0, 0), 0);
    }

    #[test]
    fn free_space_is_found_for_a_file_that_is_not_there_yet() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free(&folder.path().join("data").join("guildhall.db")).unwrap() > 0);
    }
}
