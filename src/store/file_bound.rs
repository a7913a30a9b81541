//! Maximum size of an SQLite file, if the settings do not set one.

use std::path::Path;

use crate::settings::{StoreSettings as Settings, StoreUrl};

/// Maximum bound that is derived for a new file.
const MAX_DERIVED: u64 = 64 << 30;
/// Maximum growth beyond the present size of a file that is already large.
const MAX_GROWTH: u64 = 16 << 30;

/// Maximum size of an SQLite file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileBound {
    /// In bytes; 0 if the free space is unknown.
    pub bytes: u64,
    /// Whether it was derived from the free space of the disk.
    pub derive_bound: bool,
}

/// Bound of the store's file. `None` if the store is not a file.
#[must_use]
pub fn file_bound(settings: &Settings) -> Option<FileBound> {
    let StoreUrl::Sqlite(path) = &settings.url else { return None };
    Some(match settings.max_bytes {
        0 => FileBound { bytes: derive_bound(path), derive_bound: true },
        bytes => FileBound { bytes, derive_bound: false },
    })
}

/// Returns 0, no bound, if the free space is unknown: that alone is no reason to refuse a file.
fn derive_bound(path: &Path) -> u64 {
    let size = std::fs::metadata(path).map_or(0, |file| file.len());
    free_space(path).map_or(0, |free| bound_from_free_space(size, free))
}

/// Half of the sum of the file size and the free space, at most 64 GiB. A file that is nearly that large already may
/// grow by a quarter of the free space, at most 16 GiB, so that an upgrade does not stop it.
fn bound_from_free_space(size: u64, free: u64) -> u64 {
    let half = size.saturating_add(free) / 2;
    let grown = size.saturating_add((free / 4).min(MAX_GROWTH));
    half.min(MAX_DERIVED).max(grown)
}

/// Free space of the disk on which a file is or will be.
fn free_space(path: &Path) -> Option<u64> {
    let absolute = std::path::absolute(path).ok()?;
    let existing = absolute.ancestors().find(|ancestor| ancestor.exists())?;
    let stat = rustix::fs::statvfs(existing).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn bound_is_half_of_the_space_and_never_below_the_file() {
        assert_eq!(bound_from_free_space(0, 20 * GIB), 10 * GIB);
        assert_eq!(bound_from_free_space(2 * GIB, 18 * GIB), 10 * GIB);
        assert_eq!(bound_from_free_space(0, 1_000 * GIB), 64 * GIB);
        assert_eq!(bound_from_free_space(60 * GIB, 1_000 * GIB), 76 * GIB);
        assert_eq!(bound_from_free_space(19 * GIB, 4 * GIB), 20 * GIB);
        assert_eq!(bound_from_free_space(0, 0), 0);
    }

    #[test]
    fn free_space_is_found_for_a_missing_file() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free_space(&folder.path().join("data").join("guildhall.db")).unwrap() > 0);
    }
}
