//! What a store records about its migrations: `seaql_migrations` has their names, `applied_migrations` the hash of the
//! SQL that was run and the compatible programs.
//!
//! Both tables belong to the migration tool, not to a migration: they must exist before the first one.

use guildhall_migrations::Migration;
use sea_orm::{ConnectionTrait, DatabaseConnection, DbBackend, DbErr, TransactionTrait as _};

use crate::{
    clock::{SystemTimeSource, TimeSource as _},
    store::{rows::query, write::signed},
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
    const APPLIED: &str = "INSERT INTO seaql_migrations (version, applied_at) VALUES ($1, $2)";
    let transaction = on.begin().await?;
    migration.up(&transaction).await?;
    query(&transaction, APPLIED, vec![migration.name().into(), (now() / 1_000).into()]).await?;
    write(&transaction, migration).await?;
    transaction.commit().await
}

/// Reverts a migration that has this name in the store, and removes its records, in one transaction.
pub(super) async fn revert(on: &DatabaseConnection, migration: &dyn Migration, stored: &str) -> Result<(), DbErr> {
    let transaction = on.begin().await?;
    migration.down(&transaction).await?;
    query(&transaction, "DELETE FROM seaql_migrations WHERE version = $1", vec![stored.into()]).await?;
    if has_table(&transaction, "applied_migrations").await? {
        let number = i64::from(migration.number());
        query(&transaction, "DELETE FROM applied_migrations WHERE number = $1", vec![number.into()]).await?;
    }
    transaction.commit().await
}

/// Records the hash of a migration that the store has.
pub(super) async fn write(on: &impl ConnectionTrait, migration: &dyn Migration) -> Result<(), DbErr> {
    // A program that knew no records may have reverted the migration and left its record.
    const RECORD: &str =
        "INSERT INTO applied_migrations (number, name, sql_hash, compatible_from, program, recorded_at)
        VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (number) DO UPDATE SET name = excluded.name,
        sql_hash = excluded.sql_hash, compatible_from = excluded.compatible_from, program = excluded.program,
        recorded_at = excluded.recorded_at";
    let values = vec![
        i64::from(migration.number()).into(),
        migration.name().into(),
        migration.hash(on.get_database_backend()).into(),
        i64::from(migration.compatible_from()).into(),
        env!("CARGO_PKG_VERSION").into(),
        now().into(),
    ];
    query(on, RECORD, values).await?;
    Ok(())
}

/// All migrations that the store has.
pub(super) async fn applied(on: &impl ConnectionTrait) -> Result<Vec<AppliedMigration>, DbErr> {
    const RECORDS: &str = "SELECT number, sql_hash, compatible_from FROM applied_migrations";
    if !has_table(on, "seaql_migrations").await? {
        return Ok(Vec::new());
    }
    let rows = query(on, "SELECT version FROM seaql_migrations ORDER BY version", Vec::new()).await?;
    let names = rows.iter().map(|row| row.try_get_by_index(0)).collect::<Result<Vec<String>, _>>()?;
    let recorded = has_table(on, "applied_migrations").await?;
    let rows = if recorded { query(on, RECORDS, Vec::new()).await? } else { Vec::new() };
    let mut records = Vec::with_capacity(rows.len());
    for row in rows {
        let (number, hash): (i64, String) = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
        records.push((number, hash, row.try_get_by_index::<i64>(2)?));
    }
    let stored = names.into_iter().map(|name| {
        let number = guildhall_migrations::number(&name);
        let record = records.iter().find(|(recorded, ..)| number.map(i64::from) == Some(*recorded));
        let (hash, compatible_from) = record.map(|(_, hash, from)| (hash.clone(), u32::try_from(*from).ok())).unzip();
        AppliedMigration { name, number, hash, compatible_from: compatible_from.flatten() }
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
