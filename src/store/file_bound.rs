//! Maximum size of an SQLite file, if the settings do not set one.

use std::path::Path;

use crate::settings::{StoreSettings as Settings, StoreUrl};

/// Maximum bound that is derived for a new file.
const DERIVED_MOST: u64 = 64 << 30;
/// Maximum growth beyond the present size of a file that is already large.
const GROWTH_MOST: u64 = 16 << 30;

/// Maximum size of an SQLite file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileBound {
    /// In bytes; 0 if the free space is unknown.
    pub bytes: u64,
    /// Whether it was derived from the free space of the disk.
    pub derived: bool,
}

/// Bound of the store's file. `None` if the store is not a file.
#[must_use]
pub fn file_bound(settings: &Settings) -> Option<FileBound> {
    let StoreUrl::Sqlite(path) = &settings.url else { return None };
    Some(match settings.max_bytes {
        0 => FileBound { bytes: derived(path), derived: true },
        bytes => FileBound { bytes, derived: false },
    })
}

/// Returns 0, no bound, if the free space is unknown: that alone is no reason to refuse a file.
fn derived(path: &Path) -> u64 {
    let size = std::fs::metadata(path).map_or(0, |file| file.len());
    free(path).map_or(0, |free| from_free(size, free))
}

/// Half of the sum of the file size and the free space, at most 64 GiB. A file that is nearly that large already may
/// grow by a quarter of the free space, at most 16 GiB, so that an upgrade does not stop it.
fn from_free(size: u64, free: u64) -> u64 {
    let half = size.saturating_add(free) / 2;
    let grown = size.saturating_add((free / 4).min(GROWTH_MOST));
    half.min(DERIVED_MOST).max(grown)
}

/// Free space of the disk on which a file is or will be.
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
