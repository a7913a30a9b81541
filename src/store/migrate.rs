//! The schema: which version a store has, and bringing it to another.

use guildhall_migrations::{Migrator, MigratorTrait};
use sea_orm::{ConnectionTrait, DatabaseConnection, DbBackend, DbErr};

use super::{
    OpenError,
    connect::{self, ADVISORY_LOCK},
    let_go, lock_file,
    row_security::{self, Mend},
    rows::query,
};
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
/// When it cannot be opened, another process uses its file, or it is newer than this program.
pub async fn up(settings: &Settings) -> Result<Vec<Step>, OpenError> {
    let _file = lock_file(settings)?;
    let on = alone(settings).await?;
    refuse_newer(&steps(&on).await?)?;
    Migrator::up(&on, None).await.map_err(OpenError::migration)?;
    row_security::prepare(settings, Mend::Yes).await?;
    let steps = steps(&on).await;
    let_go(on).await;
    steps
}

/// Takes back the newest migrations, with all that they hold. Gives those that are left.
///
/// # Errors
///
/// As [`up`].
pub async fn down(settings: &Settings, count: u32) -> Result<Vec<Step>, OpenError> {
    let _file = lock_file(settings)?;
    let on = alone(settings).await?;
    refuse_newer(&steps(&on).await?)?;
    refuse_living(&on).await?;
    Migrator::down(&on, Some(count)).await.map_err(OpenError::migration)?;
    let steps = steps(&on).await;
    let_go(on).await;
    steps
}

/// A connection of whoever migrates: nobody else does at the same time, and it may take as long as it takes. The lock ends
/// with the connection.
async fn alone(settings: &Settings) -> Result<DatabaseConnection, OpenError> {
    let on = connect::direct(settings).await.map_err(OpenError::engine)?;
    if on.get_database_backend() != DbBackend::Postgres {
        return Ok(on);
    }
    let wait = settings.lock_wait.as_millis().max(1);
    let set =
        format!("SET lock_timeout = {wait}; SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0");
    on.execute_unprepared(&set).await.map_err(OpenError::engine)?;
    match query(&on, "SELECT 1 FROM pg_advisory_lock($1)", vec![ADVISORY_LOCK.into()]).await {
        Ok(_) => Ok(on),
        Err(error) => {
            let_go(on).await;
            // 55P03: lock_not_available.
            let is_held = error.to_string().contains("lock timeout");
            Err(if is_held { OpenError::Migrating } else { OpenError::engine(error) })
        }
    }
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
    let reading = connect::reading(settings).map_err(OpenError::engine)?;
    let read = steps(&reading).await;
    reading.close().await;
    read
}

/// Makes sure that a store fits this program; migrates it if it should.
pub(super) async fn prepare(settings: &Settings) -> Result<(), OpenError> {
    let on = connect::direct(settings).await.map_err(OpenError::engine)?;
    let steps = steps(&on).await;
    let_go(on).await;
    let steps = steps?;
    refuse_newer(&steps)?;
    let missing: Vec<_> = steps.iter().filter(|step| !step.applied).map(|step| step.name.clone()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !settings.migrate {
        return Err(OpenError::Older { missing: missing.join(", ") });
    }
    // Another process may have done it by the time it is this one's turn.
    let on = alone(settings).await?;
    let migrated = Migrator::up(&on, None).await.map_err(OpenError::migration);
    let_go(on).await;
    migrated
}

/// What processes are at work with is not taken from under them.
async fn refuse_living(on: &DatabaseConnection) -> Result<(), OpenError> {
    const LIVING: &str = "SELECT COUNT(*) FROM instances
        WHERE lease_until > (EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::bigint";
    if on.get_database_backend() != DbBackend::Postgres || !has_instances(on).await.map_err(OpenError::engine)? {
        return Ok(());
    }
    let rows = query(on, LIVING, Vec::new()).await.map_err(OpenError::engine)?;
    let count: i64 = rows.first().map_or(Ok(0), |row| row.try_get_by_index(0)).map_err(OpenError::engine)?;
    if count > 0 { Err(OpenError::Alive { count: count.unsigned_abs() }) } else { Ok(()) }
}

/// Whether processes say in this schema that they live.
async fn has_instances(on: &DatabaseConnection) -> Result<bool, DbErr> {
    const COLUMN: &str = "SELECT 1 FROM information_schema.columns WHERE table_schema = current_schema()
        AND table_name = 'instances' AND column_name = 'lease_until'";
    Ok(!query(on, COLUMN, Vec::new()).await?.is_empty())
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

pub(super) async fn steps(connection: &impl ConnectionTrait) -> Result<Vec<Step>, OpenError> {
    let applied = applied(connection).await.map_err(OpenError::engine)?;
    let known = names();
    let unknown = applied.iter().filter(|name| !known.contains(name));
    let unknown = unknown.map(|name| Step { name: name.clone(), applied: true, known: false });
    let mut steps: Vec<_> = unknown.collect();
    steps.extend(known.into_iter().map(|name| Step { applied: applied.contains(&name), name, known: true }));
    steps.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(steps)
}

async fn applied(connection: &impl ConnectionTrait) -> Result<Vec<String>, DbErr> {
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
