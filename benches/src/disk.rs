//! A temporary directory on a disk: durable writes must reach real storage.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

/// File systems in memory. They lose everything on power failure, so a sync costs nothing.
const MEMORY_FILE_SYSTEMS: [&str; 2] = ["tmpfs", "ramfs"];

/// Creates a temporary directory, which must not be in memory.
pub(crate) fn temp_dir() -> anyhow::Result<TempDir> {
    let folder = tempfile::tempdir().context("cannot create a temporary directory")?;
    let mounts = fs::read_to_string("/proc/self/mounts").context(
        "cannot read /proc/self/mounts; this benchmark needs \
        Linux",
    )?;
    let system =
        file_system(&mounts, folder.path()).context("cannot find the file system of the temporary directory")?;
    ensure!(
        !MEMORY_FILE_SYSTEMS.contains(&system),
        "{} is in memory ({system}); set TMPDIR to a directory on a disk",
        folder.path().display()
    );
    Ok(folder)
}

/// Type of the file system that holds a path: of all mounts above it, the nearest; of several at the same point, the
/// last.
fn file_system<'m>(mounts: &'m str, path: &Path) -> Option<&'m str> {
    let mount = |line: &'m str| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    };
    let mounts_above = mounts.lines().filter_map(mount).filter(|(mount_point, _)| path.starts_with(mount_point));
    mounts_above.max_by_key(|(mount_point, _)| mount_point.len()).map(|(_, system)| system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_mount_holds_the_path() {
        let mounts =
            "/dev/a / ext4 rw 0 0\nproc /proc proc rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/b /tmp/disk xfs rw 0 0\n";
        let file_system_of = |path| file_system(mounts, Path::new(path));
        assert_eq!(file_system_of("/tmp/x"), Some("tmpfs"));
        assert_eq!(file_system_of("/tmp/disk/x"), Some("xfs"));
        assert_eq!(file_system_of("/tmpx"), Some("ext4"));
    }

    #[test]
    fn last_of_several_mounts_at_one_point_counts() {
        let mounts = "/dev/a / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/b /tmp ext4 rw 0 0\n";
        assert_eq!(file_system(mounts, Path::new("/tmp/x")), Some("ext4"));
    }
}
