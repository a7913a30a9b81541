//! The key of the API: as it is set, or one that is kept in a file beside the store.

use std::path::{Path, PathBuf};

use crate::{
    api::{self, AdminKeyError, AdminKeyInFile},
    events::emit,
    settings::{Settings, StoreUrl, Token},
};

/// A key, and where it came from.
#[derive(Debug)]
pub struct FoundKey {
    /// The key.
    pub key: Token,
    /// The file that it is kept in, and whether it was made just now; nothing if the settings have it.
    pub file: Option<(PathBuf, bool)>,
}

impl FoundKey {
    /// Says where the key is, if nobody chose it.
    pub fn tell(&self) {
        if let Some((file, made)) = &self.file {
            emit(AdminKeyInFile { file, made: *made });
        }
    }
}

/// Finds the key, or makes one. Whoever calls this before the log starts can keep the key out of it.
///
/// # Errors
///
/// When there is no key to be had.
pub fn find(settings: &Settings) -> Result<FoundKey, AdminKeyError> {
    if let Some(key) = &settings.api.admin_key {
        return Ok(FoundKey { key: key.clone(), file: None });
    }
    let file = file(&settings.store.url);
    let (key, made) = api::find_or_make(&file)?;
    Ok(FoundKey { key, file: Some((file, made)) })
}

/// Where the key is kept if nobody chose one.
#[must_use]
pub fn file(store: &StoreUrl) -> PathBuf {
    let folder = match store {
        StoreUrl::Sqlite(path) => path.parent().filter(|folder| !folder.as_os_str().is_empty()),
        StoreUrl::Postgres { .. } => Some(Path::new("data")),
    };
    folder.unwrap_or(Path::new(".")).join("admin.key")
}
