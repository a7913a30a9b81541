//! The schema: which version a store has, and bringing it to another.

use guildhall_migrations::{Migrator, MigratorTrait};
use sea_orm::{ConnectionTrait as _, DatabaseConnection, DbBackend, DbErr};

use super::{Holder, OpenError, rows::query};
use crate::settings::{Store as Settings, StoreUrl};

/// One migration, and whether the store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its name. They sort by age.
    pub name: String,
    /// Whether the store has it.
    pub applied: bool,
    /// Whether this program knows it.
    pub known: bool,
}

/// Brings a store up to date. Gives the migrations it now has.
///
/// # Errors
///
/// When it cannot be opened, another process uses it, or it is newer than this program.
pub async fn up(settings: &Settings) -> Result<Vec<Step>, OpenError> {
    let holder = Holder::take(settings).await?;
    let connection = &holder.writing.connection;
    refuse_newer(&steps(connection).await?)?;
    take_your_time(connection, async { Migrator::up(connection, None).await }).await?;
    steps(connection).await
}

/// Takes back the newest migrations, with all that they hold. Gives those that are left.
///
/// # Errors
///
/// As [`up`].
pub async fn down(settings: &Settings, count: u32) -> Result<Vec<Step>, OpenError> {
    let holder = Holder::take(settings).await?;
    let connection = &holder.writing.connection;
    refuse_newer(&steps(connection).await?)?;
    take_your_time(connection, async { Migrator::down(connection, Some(count)).await }).await?;
    steps(connection).await
}

/// Every migration that this program knows or the store has. Changes nothing, and disturbs nobody who uses the store.
///
/// # Errors
///
/// When it cannot be opened.
pub async fn status(settings: &Settings) -> Result<Vec<Step>, OpenError> {
    if let StoreUrl::Sqlite(path) = &settings.url
        && !path.exists()
    {
        return Ok(names().into_iter().map(|name| Step { name, applied: false, known: true }).collect());
    }
    let reading = super::connect::reading(settings).map_err(OpenError::engine)?;
    let read = steps(&reading).await;
    // It was for this one look.
    let _ = reading.close().await;
    read
}

/// Makes sure that a store fits this program; migrates it if it should.
pub(super) async fn prepare(connection: &DatabaseConnection, migrate: bool) -> Result<(), OpenError> {
    let steps = steps(connection).await?;
    refuse_newer(&steps)?;
    let missing: Vec<_> = steps.iter().filter(|step| !step.applied).map(|step| step.name.clone()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !migrate {
        return Err(OpenError::Older { missing: missing.join(", ") });
    }
    take_your_time(connection, async { Migrator::up(connection, None).await }).await
}

/// A migration may take longer than any call.
async fn take_your_time(
    connection: &DatabaseConnection,
    migrating: impl Future<Output = Result<(), DbErr>>,
) -> Result<(), OpenError> {
    let limited = connection.get_database_backend() == DbBackend::Postgres;
    if limited {
        connection.execute_unprepared("SET statement_timeout = 0").await.map_err(OpenError::engine)?;
    }
    migrating.await.map_err(OpenError::migration)?;
    if limited {
        connection.execute_unprepared("RESET statement_timeout").await.map_err(OpenError::engine)?;
    }
    Ok(())
}

fn refuse_newer(steps: &[Step]) -> Result<(), OpenError> {
    match steps.iter().find(|step| !step.known) {
        Some(step) => Err(OpenError::Newer { unknown: step.name.clone() }),
        None => Ok(()),
    }
}

/// The names of all migrations that this program knows.
fn names() -> Vec<String> {
    Migrator::migrations().iter().map(|migration| migration.name().to_owned()).collect()
}

async fn steps(connection: &DatabaseConnection) -> Result<Vec<Step>, OpenError> {
    let applied = applied(connection).await.map_err(OpenError::engine)?;
    let known = names();
    let unknown = applied.iter().filter(|name| !known.contains(name));
    let unknown = unknown.map(|name| Step { name: name.clone(), applied: true, known: false });
    let mut steps: Vec<_> = unknown.collect();
    steps.extend(known.into_iter().map(|name| Step { applied: applied.contains(&name), name, known: true }));
    steps.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(steps)
}

async fn applied(connection: &DatabaseConnection) -> Result<Vec<String>, DbErr> {
    let table = match connection.get_database_backend() {
        DbBackend::Postgres => "SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = $1",
        _ => "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = $1",
    };
    if query(connection, table, vec!["seaql_migrations".into()]).await?.is_empty() {
        return Ok(Vec::new());
    }
    let rows = query(connection, "SELECT version FROM seaql_migrations ORDER BY version", Vec::new()).await?;
    rows.iter().map(|row| row.try_get_by_index(0)).collect()
}
