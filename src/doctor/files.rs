//! Checks who can read the files that Guildhall writes.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::Finding;
use crate::daemon::admin_key;
use crate::private_files::{STICKY, mode};
use crate::settings::{Settings, StoreUrl};

const CHECK: &str = "files";
/// Suffixes of the files that SQLite and the daemon write beside the database file.
const SIDE_FILE_SUFFIXES: [&str; 4] = ["-wal", "-shm", "-journal", ".lock"];
/// Write permission of the group and of all others.
const WRITE: u32 = 0o022;
/// All permissions of others, and the write permission of the group.
const OTHERS: u32 = 0o007;
const GROUP_WRITE: u32 = 0o020;

/// Reports files that other users can read, and folders that they can write to. `secret_files` are files with secrets
/// that the operator wrote: tokens, keys, settings.
pub(crate) fn permissions(settings: &Settings, secret_files: &[PathBuf], report: &mut impl FnMut(Finding)) {
    let key_file = settings.api.admin_key.is_none().then(|| admin_key::file(&settings.store.url));
    let mut files = Vec::new();
    if let StoreUrl::Sqlite(path) = &settings.store.url {
        files.push(path.clone());
        files.extend(SIDE_FILE_SUFFIXES.map(|suffix| with_suffix(path, suffix)));
    }
    let mut folders: Vec<&Path> = files.first().into_iter().chain(&key_file).filter_map(|file| file.parent()).collect();
    folders.dedup();
    let mut findings = Vec::new();
    for file in &files {
        findings.extend(check_mode(file, 0o077, "600", "other users can read it"));
    }
    // Their group may be the one that shares them with the daemon.
    for file in secret_files.iter().filter(|file| !is_container_mount(file)) {
        let wide = check_mode(
            file,
            OTHERS | GROUP_WRITE,
            "640",
            "it contains a secret, and other users can read or replace it",
        );
        findings.extend(wide.map(|finding| Finding {
            advice: finding.advice.map(|advice| advice + "; a container mounts such a file with the mode 0400 or 0440"),
            ..finding
        }));
    }
    for folder in folders {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        findings.extend(check_mode(folder, WRITE, "700", "other users can replace the files in it"));
    }
    // `serve` does not start with such a key file.
    if let Some(file) = &key_file
        && let Some(finding) =
            check_mode(file, 0o077, "600", "other users can read the admin key, so `guildhall serve` refuses it")
    {
        findings.push(Finding { status: super::CheckStatus::Fail, ..finding });
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            CHECK,
            "only their owner can read the store's file, the admin key file and files with secrets",
        ));
    }
    findings.into_iter().for_each(report);
}

/// Whether a file is where containers have their secrets: it is not visible outside of this container, and its mode
/// is that of the file on the host.
fn is_container_mount(file: &Path) -> bool {
    ["/run/secrets", "/var/run/secrets"].iter().any(|folder| file.starts_with(folder))
}

/// Checks the permissions of a file or folder; returns a warning if they are too wide.
fn check_mode(path: &Path, forbidden: u32, suggested_mode: &str, effect: &str) -> Option<Finding> {
    match mode(path) {
        Ok(mode) if mode.is_none_or(|mode| mode & forbidden == 0) => None,
        Ok(Some(mode)) if forbidden == WRITE && mode & STICKY != 0 => None,
        Ok(_) => {
            let advice = format!("run: chmod {suggested_mode} {}", shell_quoted(path));
            Some(Finding::warn(CHECK, format!("{}: {effect}", path.display()), advice))
        }
        // The check of the store reports paths that cannot be reached.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
        Err(error) => {
            Some(Finding::warn(CHECK, format!("{}: cannot read its mode: {error}", path.display()), "check the path"))
        }
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Quotes a path for a shell.
fn shell_quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_quoted_for_a_shell() {
        assert_eq!(shell_quoted(Path::new("data/guildhall.db-wal")), "data/guildhall.db-wal");
        assert_eq!(shell_quoted(Path::new("it's here")), r"'it'\''s here'");
    }
}
