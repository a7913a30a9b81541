//! Where the API's key comes from: the settings, or a file beside the store.

use std::path::{Path, PathBuf};

use crate::{
    api::{self, AdminKeyError},
    settings::{Settings, StoreUrl},
};

/// What the file is called.
const FILE: &str = "admin.key";
/// Where it is if the store is no file.
const FOLDER: &str = "data";

/// Sees to it that there is a key, so that it is among the settings' secrets before the first line is logged. The file that
/// it is in, if it is in one, and whether it was made just now.
///
/// # Errors
///
/// When the file cannot be read or made.
pub fn settle_admin_key(settings: &mut Settings) -> Result<Option<(PathBuf, bool)>, AdminKeyError> {
    if settings.api.admin_key.is_some() {
        return Ok(None);
    }
    let file = match &settings.store.url {
        StoreUrl::Sqlite(store) => store.parent().unwrap_or(Path::new("")).join(FILE),
        StoreUrl::Postgres { .. } => Path::new(FOLDER).join(FILE),
    };
    let (key, made) = api::find_or_make(&file)?;
    settings.api.admin_key = Some(key);
    Ok(Some((file, made)))
}
