//! Looking at a store without opening it: nothing is changed, locked or taken from whoever uses it.

use std::time::{Duration, Instant};

use guildhall_actors::access::GeneratedAdminKey;
use sea_orm::{ConnectionTrait as _, DbBackend};
use tokio::time::timeout;

use super::{
    OpenError, admin_key,
    connect::{self, Reader},
    migrate::{self, Step},
    read::totals,
    rows::query,
};
use crate::settings::{Store as Settings, StoreUrl};

/// What there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looked {
    /// The engine and its version, for people.
    pub engine: String,
    /// Every migration that this program knows or the store has.
    pub steps: Vec<Step>,
    /// How long it took to get a first answer.
    pub took: Duration,
    /// What is kept under the key that was asked for.
    pub kept: Option<String>,
    /// The generated admin key that processes of the store accept.
    pub admin_key: Option<GeneratedAdminKey>,
}

/// Looks at a store, and at what it keeps under a key. Nothing if its file is not there yet.
///
/// # Errors
///
/// When it cannot be read.
pub async fn look(settings: &Settings, key: &str) -> Result<Option<Looked>, OpenError> {
    if let StoreUrl::Sqlite(path) = &settings.url
        && !path.exists()
    {
        return Ok(None);
    }
    let within = settings.timeout;
    let reading = connect::reading(settings).map_err(OpenError::engine)?;
    let looked = timeout(within, read(&reading, key)).await;
    // It was only read from, and whoever is late now is not waited for.
    drop(timeout(within, reading.close()).await);
    looked.unwrap_or_else(|_| Err(OpenError::Lost(format!("no answer within {} ms", within.as_millis())))).map(Some)
}

async fn read(reading: &Reader, key: &str) -> Result<Looked, OpenError> {
    let started = Instant::now();
    let (name, version) = match reading.get_database_backend() {
        DbBackend::Postgres => ("PostgreSQL", "SELECT current_setting('server_version')"),
        _ => ("SQLite", "SELECT sqlite_version()"),
    };
    let rows = query(reading, version, Vec::new()).await.map_err(OpenError::engine)?;
    let took = started.elapsed();
    let version: String =
        rows.first().map_or(Ok(String::new()), |row| row.try_get_by_index(0)).map_err(OpenError::engine)?;
    let steps = migrate::steps(reading).await?;
    // A store that lacks the table has kept nothing.
    let kept = totals::state(reading, key).await.unwrap_or(None);
    let admin_key = admin_key::read(reading).await.unwrap_or(None);
    Ok(Looked { engine: format!("{name} {version}").trim_end().to_owned(), steps, took, kept, admin_key })
}
