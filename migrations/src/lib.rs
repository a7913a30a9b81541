//! The frozen history of Guildhall's schema.
//!
//! ```text
//!   store (guildhall) ──opens──▶ migrations, oldest first ──▶ SQLite | PostgreSQL
//! ```
//!
//! A migration that has been released is never edited: what it got wrong, a later one mends. Each is written in SQL, since
//! that is what both engines will still understand when the code around it has changed; what SQL cannot say is code in the
//! migration's own file, which depends on nothing of Guildhall.

mod m0001_operations;
mod m0003_instances;
mod m0004_leases;
mod m0005_events;
mod m0006_shards;
mod m0007_access;
mod m0008_operation_changes;
mod m0009_tenants;
mod m0010_budget_spend;
mod m0011_guilds_apart;
mod m0012_callers;
mod m0013_received_interactions;
mod m0014_queue_identity;
mod m0015_usage;
mod m0016_admin_key;

pub use sea_orm_migration::MigratorTrait;
use sea_orm_migration::{
    MigrationName, MigrationTrait, SchemaManager,
    sea_orm::{ConnectionTrait as _, DbBackend, DbErr},
};

/// Every migration, the oldest first.
#[derive(Debug)]
pub struct Migrator;

#[sea_orm_migration::async_trait::async_trait]
impl MigratorTrait for Migrator {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        vec![
            Box::new(m0001_operations::STEP),
            Box::new(m0003_instances::STEP),
            Box::new(m0004_leases::STEP),
            Box::new(m0005_events::STEP),
            Box::new(m0006_shards::STEP),
            Box::new(m0007_access::STEP),
            Box::new(m0008_operation_changes::STEP),
            Box::new(m0009_tenants::STEP),
            Box::new(m0010_budget_spend::STEP),
            Box::new(m0011_guilds_apart::STEP),
            Box::new(m0012_callers::STEP),
            Box::new(m0013_received_interactions::STEP),
            Box::new(m0014_queue_identity::QueueIdentity),
            Box::new(m0015_usage::STEP),
            Box::new(m0016_admin_key::STEP),
        ]
    }
}

/// One migration: its name, and what is said to an engine to make it, and to undo it. All of it is done, or nothing.
#[derive(Clone, Copy, Debug)]
struct Step {
    name: &'static str,
    up: &'static [&'static str],
    down: &'static [&'static str],
}

impl MigrationName for Step {
    fn name(&self) -> &'static str {
        self.name
    }
}

#[sea_orm_migration::async_trait::async_trait]
impl MigrationTrait for Step {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, self.up).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, self.down).await
    }
}

/// What a statement begins with that is for one engine alone.
const FOR_ONE: [(&str, DbBackend); 2] = [("{postgres}", DbBackend::Postgres), ("{sqlite}", DbBackend::Sqlite)];

async fn run(manager: &SchemaManager<'_>, statements: &[&str]) -> Result<(), DbErr> {
    let engine = manager.get_database_backend();
    for statement in statements {
        let mut marks = FOR_ONE.iter();
        let marked = marks.find_map(|(mark, its_own)| Some((statement.strip_prefix(mark)?, *its_own)));
        let (statement, meant) = marked.unwrap_or((statement, engine));
        if meant == engine {
            manager.get_connection().execute_unprepared(&for_engine(statement, engine)).await?;
        }
    }
    Ok(())
}

/// Writes a statement in the words of an engine: `{uuid}` and `{bytes}` stand for what it calls these types, `{counted}` for a
/// primary key that the engine counts up and never gives twice, `{by_key}` for rows that lie in the order of their key,
/// `{no_uuid}` for a UUID of zeros.
fn for_engine(sql: &str, engine: DbBackend) -> String {
    let (uuid, bytes, counted, by_key) = match engine {
        DbBackend::Postgres => ("UUID", "BYTEA", "BIGSERIAL PRIMARY KEY", ""),
        _ => ("BLOB", "BLOB", "INTEGER PRIMARY KEY AUTOINCREMENT", "WITHOUT ROWID"),
    };
    let no_uuid = match engine {
        DbBackend::Postgres => "CAST('00000000-0000-0000-0000-000000000000' AS UUID)",
        _ => "X'00000000000000000000000000000000'",
    };
    let sql = sql.replace("{no_uuid}", no_uuid);
    sql.replace("{uuid}", uuid).replace("{bytes}", bytes).replace("{counted}", counted).replace("{by_key}", by_key)
}
