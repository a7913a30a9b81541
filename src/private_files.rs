//! Files and folders that only their owner may read, independent of the umask of the process.
//!
//! A file or folder that exists keeps its mode: `guildhall doctor` reports one that is too permissive.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
/// The permission bits of a mode.
const PERMISSIONS: u32 = 0o777;
/// Only the owner of a file may replace it in a folder with this bit.
pub(crate) const STICKY: u32 = 0o1000;

/// Creates a file that must not exist.
pub(crate) fn create_new(path: &Path) -> io::Result<File> {
    let file = options().create_new(true).open(path)?;
    // A umask only removes bits. One that removes the owner's would leave a file that cannot be opened again.
    if file.metadata()?.permissions().mode() & PERMISSIONS != FILE_MODE {
        file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    }
    Ok(file)
}

/// Opens a file for reading and writing, and creates it if it does not exist.
pub(crate) fn open_or_create(path: &Path) -> io::Result<File> {
    match create_new(path) {
        // `create` again: the path may be a symbolic link to a file that does not exist.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options().create(true).truncate(false).open(path),
        created => created,
    }
}

/// Creates a folder and its missing parents.
pub(crate) fn create_folder(path: &Path) -> io::Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        create_folder(parent)?;
    }
    match DirBuilder::new().mode(FOLDER_MODE).create(path) {
        Ok(()) => {}
        // Another process created it first.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => return Ok(()),
        Err(error) => return Err(error),
    }
    if fs::metadata(path)?.permissions().mode() & PERMISSIONS != FOLDER_MODE {
        fs::set_permissions(path, Permissions::from_mode(FOLDER_MODE))?;
    }
    Ok(())
}

/// Creates a temporary folder, which is removed when it is dropped.
#[cfg(feature = "simulator")]
pub(crate) fn temporary_folder(prefix: &str) -> io::Result<tempfile::TempDir> {
    // By default its mode depends on the umask.
    tempfile::Builder::new().prefix(prefix).permissions(Permissions::from_mode(FOLDER_MODE)).tempdir()
}

/// Returns the mode of a file or folder; `None` if it does not exist.
pub(crate) fn mode(path: &Path) -> io::Result<Option<u32>> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata.permissions().mode() & (STICKY | PERMISSIONS))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn options() -> OpenOptions {
    let mut options = File::options();
    options.read(true).write(true).mode(FILE_MODE);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        super::mode(path).unwrap().unwrap()
    }

    #[test]
    fn missing_folders_and_files_are_private() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a/b");
        create_folder(&folder).unwrap();
        create_folder(&folder).unwrap();
        open_or_create(&folder.join("file")).unwrap();
        assert_eq!([&root.path().join("a"), &folder].map(|path| mode(path)), [0o700, 0o700]);
        assert_eq!(mode(&folder.join("file")), 0o600);
        assert!(create_new(&folder.join("file")).is_err());
        assert!(create_folder(&folder.join("file/below")).is_err());
    }

    #[test]
    fn existing_files_and_folders_keep_their_mode() {
        let root = tempfile::tempdir().unwrap();
        let (folder, file) = (root.path().join("a"), root.path().join("a/file"));
        fs::create_dir(&folder).unwrap();
        fs::write(&file, "text").unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        create_folder(&folder).unwrap();
        open_or_create(&file).unwrap();
        assert_eq!((mode(&folder), mode(&file)), (0o755, 0o644));
        assert_eq!(fs::read_to_string(&file).unwrap(), "text");
        assert_eq!(super::mode(&root.path().join("none")).unwrap(), None);
    }

    #[test]
    fn a_link_to_a_missing_file_creates_a_private_file() {
        let root = tempfile::tempdir().unwrap();
        let (link, file) = (root.path().join("link"), root.path().join("file"));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        open_or_create(&link).unwrap();
        assert_eq!(mode(&file), 0o600);
    }
}
