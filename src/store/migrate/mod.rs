//! The schema: which migrations a store has, whether they match those of this program, and migration to another
//! version.

mod record;
#[cfg(test)]
mod tests;

use guildhall_migrations::{Migration, Migrator};
use sea_orm::{ConnectionTrait, DatabaseConnection, DbBackend, DbErr};

use super::{
    OpenError, close_connection,
    connect::{self, ADVISORY_LOCK},
    events::NewerStoreAccepted,
    lock_file,
    read::instances,
    row_security::{self, RepairMode},
    rows::query,
};
use crate::{
    events::emit,
    settings::{StoreSettings as Settings, StoreUrl},
};

/// Migrations of a program, oldest first.
type KnownMigrations = [Box<dyn Migration>];

/// A migration, and whether the store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationStatus {
    /// Its name. Names sort by age.
    pub name: String,
    /// Whether the store has it.
    pub applied: bool,
    /// Hash of its SQL for the store's engine in this program; `None` if this program does not have it.
    pub known_hash: Option<String>,
    /// Hash of the SQL that was run; `None` until it is recorded.
    pub stored_hash: Option<String>,
    /// A program can use the store if it has this migration or a newer one; `None` until it is recorded.
    pub compatible_from: Option<u32>,
    /// The newest migration of this program.
    pub newest_known: u32,
}

/// Whether this program can use a store that has, or lacks, a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compatibility<'a> {
    /// The store lacks it.
    Pending,
    /// The store has it.
    Applied,
    /// The store has it, but other SQL was run.
    Changed {
        /// Hash of the SQL that was run.
        stored: &'a str,
        /// Hash of the SQL of this program.
        expected: &'a str,
    },
    /// A newer program applied it, and declares it compatible with this one.
    Newer,
    /// A newer program applied it, and this one is incompatible with it, or no compatibility is recorded.
    Incompatible {
        /// The migration that a program must have.
        needs: Option<u32>,
    },
}

impl MigrationStatus {
    /// Whether this program can use the store with it.
    #[must_use]
    pub fn compatibility(&self) -> Compatibility<'_> {
        match (self.applied, &self.known_hash, &self.stored_hash) {
            (false, _, _) => Compatibility::Pending,
            (true, Some(expected), Some(stored)) if expected != stored => Compatibility::Changed { stored, expected },
            (true, Some(_), _) => Compatibility::Applied,
            (true, None, _) => match self.compatible_from {
                Some(needs) if needs <= self.newest_known => Compatibility::Newer,
                needs => Compatibility::Incompatible { needs },
            },
        }
    }

    /// Whether this program has it.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.known_hash.is_some()
    }

    /// Whether it was applied before hashes were recorded.
    const fn is_unrecorded(&self) -> bool {
        self.applied && self.is_known() && self.stored_hash.is_none()
    }

    /// Why this program cannot use a store that has it.
    pub(super) fn to_open_error(&self) -> Option<OpenError> {
        match self.compatibility() {
            Compatibility::Pending | Compatibility::Applied | Compatibility::Newer => None,
            Compatibility::Changed { stored, expected: known } => Some(OpenError::Changed {
                name: self.name.clone(),
                stored: stored.to_owned(),
                expected: known.to_owned(),
            }),
            Compatibility::Incompatible { needs } => Some(OpenError::Newer { unknown: self.name.clone(), needs }),
        }
    }
}

/// Applies all missing migrations. Returns the migrations that the store now has.
///
/// # Errors
///
/// When the store cannot be opened, another process uses its file, its migrations are not those of this program, or it
/// is too new for this program.
pub async fn up(settings: &Settings) -> Result<Vec<MigrationStatus>, OpenError> {
    up_with(settings, &Migrator::migrations()).await
}

async fn up_with(settings: &Settings, history: &KnownMigrations) -> Result<Vec<MigrationStatus>, OpenError> {
    let _file = lock_file(settings)?;
    let on = migration_connection(settings).await?;
    let applied = apply_missing(&on, history).await;
    let applied = match applied {
        Ok(()) => row_security::prepare(settings, RepairMode::Yes).await.map(|_| ()),
        Err(error) => Err(error),
    };
    let steps = read_status_of(&on, history).await;
    close_connection(on).await;
    applied.and(steps)
}

/// Reverts the newest migrations, with all their data. Returns those that remain.
///
/// # Errors
///
/// As [`up`]; also when the store has a migration that this program does not have.
pub async fn down(settings: &Settings, count: u32) -> Result<Vec<MigrationStatus>, OpenError> {
    let history = Migrator::migrations();
    let _file = lock_file(settings)?;
    let on = migration_connection(settings).await?;
    let reverted = revert(&on, &history, count).await;
    let steps = read_status_of(&on, &history).await;
    close_connection(on).await;
    reverted.and(steps)
}

async fn revert(on: &DatabaseConnection, history: &KnownMigrations, count: u32) -> Result<(), OpenError> {
    let steps = read_status_of(on, history).await?;
    check_compatible(&steps)?;
    if let Some(step) = steps.iter().find(|step| !step.is_known()) {
        return Err(OpenError::Newer { unknown: step.name.clone(), needs: None });
    }
    refuse_if_in_use(on).await?;
    let applied = record::applied(on).await.map_err(OpenError::engine)?;
    let newest = history.iter().rev().filter_map(|migration| {
        let stored = applied.iter().find(|one| one.number == Some(migration.number()))?;
        Some((migration, stored))
    });
    for (migration, stored) in newest.take(usize::try_from(count).unwrap_or(usize::MAX)) {
        record::revert(on, &**migration, &stored.name).await.map_err(OpenError::migration)?;
    }
    Ok(())
}

/// Applies missing migrations, and records those that were applied before hashes were recorded. Requires the migration
/// lock.
async fn apply_missing(on: &DatabaseConnection, history: &KnownMigrations) -> Result<(), OpenError> {
    record::create_tables(on).await.map_err(OpenError::migration)?;
    let steps = read_status_of(on, history).await?;
    check_compatible(&steps)?;
    let of_store = |migration: &dyn Migration| {
        steps.iter().find(|step| guildhall_migrations::number(&step.name) == Some(migration.number()))
    };
    let all = || history.iter().map(|migration| &**migration);
    let missing: Vec<_> = all().filter(|one| of_store(*one).is_some_and(|step| !step.applied)).collect();
    let newest_applied = steps.iter().filter(|step| step.applied && step.is_known());
    let newest_applied = newest_applied.filter_map(|step| guildhall_migrations::number(&step.name)).max();
    // Running processes know the migrations that the store has now, and perhaps no others.
    if missing.iter().any(|migration| Some(migration.compatible_from()) > newest_applied) {
        refuse_if_in_use(on).await?;
    }
    for migration in missing {
        record::apply(on, migration).await.map_err(OpenError::migration)?;
    }
    for migration in all().filter(|one| of_store(*one).is_some_and(MigrationStatus::is_unrecorded)) {
        record::write(on, migration).await.map_err(OpenError::migration)?;
    }
    Ok(())
}

/// A connection with the migration lock: no other process migrates at the same time. It has no statement timeout. The
/// lock ends with the connection.
pub(super) async fn migration_connection(settings: &Settings) -> Result<DatabaseConnection, OpenError> {
    let on = connect::open_direct(settings).await.map_err(OpenError::engine)?;
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
            close_connection(on).await;
            // 55P03: lock_not_available.
            let is_held = error.to_string().contains("lock timeout");
            Err(if is_held { OpenError::Migrating } else { OpenError::engine(error) })
        }
    }
}

/// All migrations that this program or the store has. Changes nothing, and does not disturb users of the store.
///
/// # Errors
///
/// When the store cannot be opened.
pub async fn status(settings: &Settings) -> Result<Vec<MigrationStatus>, OpenError> {
    if let StoreUrl::Sqlite(path) = &settings.url
        && !path.exists()
    {
        return Ok(compare(&Migrator::migrations(), DbBackend::Sqlite, Vec::new()));
    }
    let reading = connect::open_reader(settings).map_err(OpenError::engine)?;
    let read = read_status(&reading).await;
    reading.close().await;
    read
}

/// Ensures that this program can use a store; migrates it if the settings permit that.
pub(super) async fn prepare(settings: &Settings) -> Result<(), OpenError> {
    prepare_with(settings, &Migrator::migrations()).await
}

async fn prepare_with(settings: &Settings, history: &KnownMigrations) -> Result<(), OpenError> {
    let on = connect::open_direct(settings).await.map_err(OpenError::engine)?;
    let steps = read_status_of(&on, history).await;
    close_connection(on).await;
    let steps = steps?;
    check_compatible(&steps)?;
    let newer: Vec<_> = steps
        .iter()
        .filter(|step| step.compatibility() == Compatibility::Newer)
        .map(|step| step.name.as_str())
        .collect();
    if !newer.is_empty() {
        emit(NewerStoreAccepted { migrations: &newer.join(", ") });
    }
    let missing: Vec<_> = steps.iter().filter(|step| !step.applied).map(|step| step.name.clone()).collect();
    if !settings.migrate {
        let older = OpenError::Older { missing: missing.join(", ") };
        return if missing.is_empty() { Ok(()) } else { Err(older) };
    }
    if missing.is_empty() && !steps.iter().any(MigrationStatus::is_unrecorded) {
        return Ok(());
    }
    // Another process may have migrated it by the time this one gets the lock.
    let on = migration_connection(settings).await?;
    let migrated = apply_missing(&on, history).await;
    close_connection(on).await;
    migrated
}

/// Returns an error if other processes use the store.
pub(super) async fn refuse_if_in_use(on: &DatabaseConnection) -> Result<(), OpenError> {
    if on.get_database_backend() != DbBackend::Postgres || !has_instances(on).await.map_err(OpenError::engine)? {
        return Ok(());
    }
    let count = instances::count_live(on).await.map_err(OpenError::engine)?;
    if count > 0 { Err(OpenError::Alive { count }) } else { Ok(()) }
}

/// Whether processes have leases in this schema.
async fn has_instances(on: &DatabaseConnection) -> Result<bool, DbErr> {
    const COLUMN: &str = "SELECT 1 FROM information_schema.columns WHERE table_schema = current_schema()
        AND table_name = 'instances' AND column_name = 'lease_until'";
    Ok(!query(on, COLUMN, Vec::new()).await?.is_empty())
}

fn check_compatible(steps: &[MigrationStatus]) -> Result<(), OpenError> {
    steps.iter().find_map(MigrationStatus::to_open_error).map_or(Ok(()), Err)
}

pub(super) async fn read_status(connection: &impl ConnectionTrait) -> Result<Vec<MigrationStatus>, OpenError> {
    read_status_of(connection, &Migrator::migrations()).await
}

async fn read_status_of(
    connection: &impl ConnectionTrait,
    history: &KnownMigrations,
) -> Result<Vec<MigrationStatus>, OpenError> {
    let applied = record::applied(connection).await.map_err(OpenError::engine)?;
    Ok(compare(history, connection.get_database_backend(), applied))
}

/// All migrations that the program or the store has, by age. Migrations with the same number are the same, even if
/// their names differ.
fn compare(
    history: &KnownMigrations,
    engine: DbBackend,
    mut applied: Vec<record::AppliedMigration>,
) -> Vec<MigrationStatus> {
    let newest_known = history.iter().map(|migration| migration.number()).max().unwrap_or(0);
    let own = history.iter().map(|migration| {
        let stored = applied.iter().position(|one| one.number == Some(migration.number()));
        let stored = stored.map(|at| applied.swap_remove(at));
        MigrationStatus {
            name: migration.name().to_owned(),
            applied: stored.is_some(),
            known_hash: Some(migration.hash(engine)),
            compatible_from: stored.as_ref().and_then(|stored| stored.compatible_from),
            stored_hash: stored.and_then(|stored| stored.hash),
            newest_known,
        }
    });
    let mut steps: Vec<_> = own.collect();
    steps.extend(applied.into_iter().map(|stored| MigrationStatus {
        name: stored.name,
        applied: true,
        known_hash: None,
        stored_hash: stored.hash,
        compatible_from: stored.compatible_from,
        newest_known,
    }));
    steps.sort_by(|a, b| a.name.cmp(&b.name));
    steps
}
