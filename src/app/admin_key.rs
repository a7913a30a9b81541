//! The key of the API: as it is set, or one that is kept in a file beside the store.

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

/// A key, and where it came from.
#[derive(Debug)]
pub struct LocalAdminKey {
    /// The key.
    pub key: SecretValue,
    /// The file that it is kept in, and whether it was made just now; nothing if the settings have it.
    pub file: Option<(PathBuf, bool)>,
}

impl LocalAdminKey {
    /// Decides which key the process accepts, once its store is open. Processes that share a store accept one generated key: the
    /// first one that is stored.
    ///
    /// # Errors
    ///
    /// When the store cannot be reached.
    pub async fn settle(&self, settings: &StoreSettings) -> Result<AcceptedAdminKey<'_>, OpenError> {
        let own = AdminKey::new(&self.key);
        let (Some((file, made)), StoreUrl::Postgres { .. }) = (&self.file, &settings.url) else {
            return Ok(AcceptedAdminKey { found: self, key: own, stored: None });
        };
        let stored = store::claim_admin_key(settings, own.digest(), &absolute(file), AdminKeyClaim::First).await?;
        if *made && stored.digest != own.digest() {
            // It was created a moment ago, for nothing. If it stays, it is reported as unused.
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
    /// The key as the store has it, if it is shared over the store.
    pub stored: Option<GeneratedAdminKey>,
}

impl AcceptedAdminKey<'_> {
    /// Logs where the key is, if it was generated.
    pub fn tell(&self) {
        let Some((file, made)) = &self.found.file else { return };
        match &self.stored {
            Some(stored) if stored.digest != AdminKey::new(&self.found.key).digest() => {
                emit(AdminKeyFromOtherProcess { key: stored, unused: (!made).then_some(file.as_path()) });
            }
            Some(_) | None => emit(AdminKeyFile { file, made: *made }),
        }
    }
}

/// Finds the key, or makes one. Whoever calls this before the log starts can keep the key out of it.
///
/// # Errors
///
/// When there is no key to be had.
pub fn find(settings: &Settings) -> Result<LocalAdminKey, AdminKeyError> {
    if let Some(key) = &settings.api.admin_key {
        return Ok(LocalAdminKey { key: key.clone(), file: None });
    }
    let file = file(&settings.store.url);
    let (key, made) = api::admin_key::find_or_make(&file)?;
    Ok(LocalAdminKey { key, file: Some((file, made)) })
}

/// Why the generated admin key was not replaced.
#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    /// The key was not generated.
    #[error("api.admin_key is set: change it there, and restart the daemon")]
    Set,
    /// The store serves one process, which has the key in a file.
    #[error("the store is a file: stop the daemon, delete {}, and start it again; it generates a new key", .0.display())]
    OneProcess(PathBuf),
    /// No key can be generated.
    #[error(transparent)]
    Key(#[from] AdminKeyError),
    /// The store cannot be reached.
    #[error(transparent)]
    Store(#[from] OpenError),
}

/// Replaces the generated admin key of a PostgreSQL, wherever it came from. Returns the file that has the new one.
///
/// # Errors
///
/// When there is no generated key that processes share, the store cannot be reached, or the file cannot be written.
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
    // If this fails, the new key is lost, and the next try makes another.
    api::admin_key::write(&file, &new)?;
    Ok(file)
}

fn absolute(file: &Path) -> String {
    std::path::absolute(file).unwrap_or_else(|_| file.to_owned()).to_string_lossy().into_owned()
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
