//! The admin key of the API: from the settings, or generated and stored in a file beside the store.

use std::{
    fs,
    path::{Path, PathBuf},
};

use guildhall_actors::ports::GeneratedAdminKey;

use crate::{
    api::{self, AdminKey, AdminKeyError, AdminKeyFile, AdminKeyFromOtherProcess},
    events::emit,
    settings::{SecretValue, Settings, StoreSettings, StoreUrl},
    store::{self, AdminKeyClaim, OpenError},
};

/// An admin key, and its source.
#[derive(Debug)]
pub struct LocalAdminKey {
    /// The key.
    pub key: SecretValue,
    /// The file that contains the key, and whether it was created by this process; `None` if the key is in the
    /// settings.
    pub file: Option<(PathBuf, bool)>,
}

impl LocalAdminKey {
    /// Decides which key the process accepts, once its store is open. Processes that share a store accept one generated key: the
    /// first one that is stored.
    ///
    /// # Errors
    ///
    /// When the store cannot be reached.
    pub async fn resolve(&self, settings: &StoreSettings) -> Result<AcceptedAdminKey<'_>, OpenError> {
        let own = AdminKey::new(&self.key);
        let (Some((file, made)), StoreUrl::Postgres { .. }) = (&self.file, &settings.url) else {
            return Ok(AcceptedAdminKey { found: self, key: own, stored: None });
        };
        let stored = store::claim_admin_key(settings, own.digest(), &absolute(file), AdminKeyClaim::First).await?;
        if *made && stored.digest != own.digest() {
            // It was created a moment ago and is not needed. If it cannot be removed, it is reported as unused.
            drop(fs::remove_file(file));
        }
        Ok(AcceptedAdminKey { found: self, key: AdminKey::from_digest(stored.digest), stored: Some(stored) })
    }
}

/// The admin key that a process accepts.
#[derive(Debug)]
pub struct AcceptedAdminKey<'a> {
    found: &'a LocalAdminKey,
    /// The key.
    pub key: AdminKey,
    /// The key as it is in the store, if processes share it.
    pub stored: Option<GeneratedAdminKey>,
}

impl AcceptedAdminKey<'_> {
    /// Logs the location of the key, if it was generated.
    pub fn log_location(&self) {
        let Some((file, made)) = &self.found.file else { return };
        match &self.stored {
            Some(stored) if stored.digest != AdminKey::new(&self.found.key).digest() => {
                emit(AdminKeyFromOtherProcess { key: stored, unused: (!made).then_some(file.as_path()) });
            }
            Some(_) | None => emit(AdminKeyFile { file, is_new: *made }),
        }
    }
}

/// Finds the key, or generates one. Call this before logging starts, so that the key can be redacted from the log.
///
/// # Errors
///
/// When no key can be read or generated.
pub fn find(settings: &Settings) -> Result<LocalAdminKey, AdminKeyError> {
    if let Some(key) = &settings.api.admin_key {
        return Ok(LocalAdminKey { key: key.clone(), file: None });
    }
    let file = file(&settings.store.url);
    let (key, made) = api::admin_key::find_or_generate(&file)?;
    Ok(LocalAdminKey { key, file: Some((file, made)) })
}

/// Why the generated admin key was not replaced.
#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    /// The key was not generated.
    #[error("api.admin_key is set, so the key is not generated; change that setting, and restart the daemon")]
    Set,
    /// The store is used by one process, which has the key in a file.
    #[error("the store is a SQLite file, so its key is only in a file; stop the daemon, delete {}, and start the \
        daemon again; it generates a new key", .0.display())]
    OneProcess(PathBuf),
    /// No key can be generated.
    #[error(transparent)]
    Key(#[from] AdminKeyError),
    /// The store cannot be reached.
    #[error(transparent)]
    Store(#[from] OpenError),
}

/// Replaces the generated admin key of a PostgreSQL store, whichever process generated it. Returns the file that
/// contains the new key.
///
/// # Errors
///
/// When no generated key is shared by processes, the store cannot be reached, or the file cannot be written.
pub async fn rotate(settings: &Settings) -> Result<PathBuf, RotateError> {
    let file = file(&settings.store.url);
    if settings.api.admin_key.is_some() {
        return Err(RotateError::Set);
    }
    if matches!(settings.store.url, StoreUrl::Sqlite(_)) {
        return Err(RotateError::OneProcess(file));
    }
    let new = api::admin_key::generate()?;
    store::claim_admin_key(&settings.store, AdminKey::new(&new).digest(), &absolute(&file), AdminKeyClaim::Replace)
        .await?;
    // If this fails, the new key is lost, and the next attempt generates another.
    api::admin_key::write(&file, &new)?;
    Ok(file)
}

fn absolute(file: &Path) -> String {
    std::path::absolute(file).unwrap_or_else(|_| file.to_owned()).to_string_lossy().into_owned()
}

/// The file of the generated key.
#[must_use]
pub fn file(store: &StoreUrl) -> PathBuf {
    let folder = match store {
        StoreUrl::Sqlite(path) => path.parent().filter(|folder| !folder.as_os_str().is_empty()),
        StoreUrl::Postgres { .. } => Some(Path::new("data")),
    };
    folder.unwrap_or(Path::new(".")).join("admin.key")
}
