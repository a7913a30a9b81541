//! What a store records about its migrations: `seaql_migrations` has their names, `applied_migrations` the hash of the
//! SQL that was run and the compatible programs.
//!
//! Both tables belong to the migration tool, not to a migration: they must exist before the first one.

use guildhall_migrations::Migration;
use sea_orm::{
    ActiveValue::Set, ConnectionTrait, DatabaseConnection, DbBackend, DbErr, EntityTrait as _, QueryOrder as _,
    TransactionTrait as _, sea_query::OnConflict,
};

use crate::{
    clock::{SystemTimeSource, TimeSource as _},
    store::{
        entities::{applied_migrations, seaql_migrations},
        rows::query,
        write::signed,
    },
};

const TABLES: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS seaql_migrations (
        version VARCHAR NOT NULL PRIMARY KEY,
        applied_at BIGINT NOT NULL
    )",
    // `program` is the version of guildhall that recorded it.
    "CREATE TABLE IF NOT EXISTS applied_migrations (
        number BIGINT PRIMARY KEY,
        name TEXT NOT NULL,
        sql_hash TEXT NOT NULL,
        compatible_from BIGINT NOT NULL,
        program TEXT NOT NULL,
        recorded_at BIGINT NOT NULL
    )",
];

/// A migration that a store has.
#[derive(Clone, Debug)]
pub(super) struct AppliedMigration {
    /// Its name when it was applied.
    pub(super) name: String,
    pub(super) number: Option<u32>,
    /// Hash of its SQL, once recorded.
    pub(super) hash: Option<String>,
    pub(super) compatible_from: Option<u32>,
}

/// Creates the tables for the records.
pub(super) async fn create_tables(on: &DatabaseConnection) -> Result<(), DbErr> {
    for table in TABLES {
        on.execute_unprepared(table).await?;
    }
    Ok(())
}

/// The wall clock of this machine: store time does not exist before the store.
fn now() -> i64 {
    signed(SystemTimeSource.wall().millis())
}

/// Applies a migration and records it, in one transaction.
pub(super) async fn apply(on: &DatabaseConnection, migration: &dyn Migration) -> Result<(), DbErr> {
    let transaction = on.begin().await?;
    migration.up(&transaction).await?;
    let applied =
        seaql_migrations::ActiveModel { version: Set(migration.name().to_owned()), applied_at: Set(now() / 1_000) };
    seaql_migrations::Entity::insert(applied).exec_without_returning(&transaction).await?;
    write(&transaction, migration).await?;
    transaction.commit().await
}

/// Reverts a migration that has this name in the store, and removes its records, in one transaction.
pub(super) async fn revert(on: &DatabaseConnection, migration: &dyn Migration, stored: &str) -> Result<(), DbErr> {
    let transaction = on.begin().await?;
    migration.down(&transaction).await?;
    seaql_migrations::Entity::delete_by_id(stored).exec(&transaction).await?;
    if has_table(&transaction, "applied_migrations").await? {
        applied_migrations::Entity::delete_by_id(i64::from(migration.number())).exec(&transaction).await?;
    }
    transaction.commit().await
}

/// Records the hash of a migration that the store has.
pub(super) async fn write(on: &impl ConnectionTrait, migration: &dyn Migration) -> Result<(), DbErr> {
    use applied_migrations::Column::{CompatibleFrom, Name, Number, Program, RecordedAt, SqlHash};
    let record = applied_migrations::ActiveModel {
        number: Set(migration.number().into()),
        name: Set(migration.name().to_owned()),
        sql_hash: Set(migration.hash(on.get_database_backend())),
        compatible_from: Set(migration.compatible_from().into()),
        program: Set(env!("CARGO_PKG_VERSION").to_owned()),
        recorded_at: Set(now()),
    };
    // A program that knew no records may have reverted the migration and left its record.
    let mut replace = OnConflict::column(Number);
    replace.update_columns([Name, SqlHash, CompatibleFrom, Program, RecordedAt]);
    applied_migrations::Entity::insert(record).on_conflict(replace).exec_without_returning(on).await?;
    Ok(())
}

/// All migrations that the store has.
pub(super) async fn applied(on: &impl ConnectionTrait) -> Result<Vec<AppliedMigration>, DbErr> {
    if !has_table(on, "seaql_migrations").await? {
        return Ok(Vec::new());
    }
    let applied = seaql_migrations::Entity::find().order_by_asc(seaql_migrations::Column::Version).all(on).await?;
    let recorded = has_table(on, "applied_migrations").await?;
    let records = if recorded { applied_migrations::Entity::find().all(on).await? } else { Vec::new() };
    let stored = applied.into_iter().map(|seaql_migrations::Model { version: name, .. }| {
        let number = guildhall_migrations::number(&name);
        let record = records.iter().find(|record| number.map(i64::from) == Some(record.number));
        let hash = record.map(|record| record.sql_hash.clone());
        let compatible_from = record.and_then(|record| u32::try_from(record.compatible_from).ok());
        AppliedMigration { name, number, hash, compatible_from }
    });
    Ok(stored.collect())
}

async fn has_table(on: &impl ConnectionTrait, table: &str) -> Result<bool, DbErr> {
    let find = match on.get_database_backend() {
        DbBackend::Postgres => "SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = $1",
        _ => "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = $1",
    };
    Ok(!query(on, find, vec![table.into()]).await?.is_empty())
}
