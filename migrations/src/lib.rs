//! The frozen history of Guildhall's schema.
//!
//! ```text
//!   store (guildhall) ──opens──▶ migrations, oldest first ──▶ SQLite | PostgreSQL
//! ```
//!
//! A released migration is never edited: a later one corrects its mistakes. Migrations are written in SQL, since both
//! engines still understand it when the code around it has changed. What SQL cannot express is code in the migration's
//! own file, which does not depend on Guildhall.
//!
//! A migration is identified by its number. The store records the [hash](Migration::hash) of the SQL that was run, and
//! which programs can [use it](Migration::compatible_from).

#[cfg(test)]
mod expand;
mod hash;
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
mod m0017_process_ends;
mod m0018_crashed_inputs;
mod m0019_operation_progress;
mod m0020_unknown_outcomes;
mod m0021_limit_shares;
mod m0022_operation_joined;
mod m0023_guild_names;

use async_trait::async_trait;
use sea_orm::{ConnectionTrait as _, DatabaseTransaction, DbBackend, DbErr};

/// Programs whose newest migration is this one or an older one refuse every migration that they do not have.
const FIRST_CHECKED: u32 = 16;

/// A migration, and what a store records about it.
#[async_trait]
pub trait Migration: Send + Sync {
    /// Its number with four digits, and its subject.
    fn name(&self) -> &'static str;

    /// Applies it.
    async fn up(&self, on: &DatabaseTransaction) -> Result<(), DbErr>;

    /// Reverts it.
    async fn down(&self, on: &DatabaseTransaction) -> Result<(), DbErr>;

    /// All SQL texts that [`up`](Self::up) runs on this engine, in order. Texts that depend on rows are returned once, in
    /// one form.
    fn statements(&self, engine: DbBackend) -> Vec<String>;

    /// [`Self::compatible_from`] of a migration that does more than expand the schema; a test determines which do.
    fn declared_compatible_from(&self) -> Option<u32> {
        None
    }

    /// A program can use a store with this migration if it has the migration with this number or a newer one.
    ///
    /// A migration that only expands the schema is compatible with every program that reads this number.
    fn compatible_from(&self) -> u32 {
        self.declared_compatible_from().unwrap_or_else(|| self.number().min(FIRST_CHECKED))
    }

    /// The number at the start of its name.
    fn number(&self) -> u32 {
        number(self.name()).expect("invariant: the name of a migration starts with its number")
    }

    /// SHA-256 of its SQL on this engine, in hexadecimal. Comments, white space and its name are not included.
    fn hash(&self, engine: DbBackend) -> String {
        hash::of(&self.statements(engine))
    }
}

/// The number at the start of a migration's name: `0016_admin_key` has 16.
#[must_use]
pub fn number(name: &str) -> Option<u32> {
    name.split_once('_')?.0.parse().ok()
}

/// All migrations, oldest first.
#[derive(Debug)]
pub struct Migrator;

impl Migrator {
    /// All migrations, oldest first.
    #[must_use]
    pub fn migrations() -> Vec<Box<dyn Migration>> {
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
            Box::new(m0017_process_ends::STEP),
            Box::new(m0018_crashed_inputs::STEP),
            Box::new(m0019_operation_progress::STEP),
            Box::new(m0020_unknown_outcomes::STEP),
            Box::new(m0021_limit_shares::STEP),
            Box::new(m0022_operation_joined::STEP),
            Box::new(m0023_guild_names::STEP),
        ]
    }
}

/// A migration in SQL only: its name, the statements that apply it, and those that revert it.
///
/// A statement that starts with `{postgres}` or `{sqlite}` runs on that engine only.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Its number with four digits, and its subject.
    pub name: &'static str,
    /// Statements that apply it.
    pub up: &'static [&'static str],
    /// Statements that revert it.
    pub down: &'static [&'static str],
}

#[async_trait]
impl Migration for Step {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn up(&self, on: &DatabaseTransaction) -> Result<(), DbErr> {
        run(on, self.up).await
    }

    async fn down(&self, on: &DatabaseTransaction) -> Result<(), DbErr> {
        run(on, self.down).await
    }

    fn statements(&self, engine: DbBackend) -> Vec<String> {
        statements(self.up, engine)
    }
}

/// A migration that does more than expand the schema, and declares which programs are compatible.
#[derive(Clone, Copy, Debug)]
pub struct Declared {
    /// The migration.
    pub step: Step,
    /// See [`Migration::compatible_from`]. If something is removed: the number of the migration whose program no longer
    /// uses it ("expand, then contract").
    pub compatible_from: u32,
}

#[async_trait]
impl Migration for Declared {
    fn name(&self) -> &'static str {
        self.step.name
    }

    async fn up(&self, on: &DatabaseTransaction) -> Result<(), DbErr> {
        self.step.up(on).await
    }

    async fn down(&self, on: &DatabaseTransaction) -> Result<(), DbErr> {
        self.step.down(on).await
    }

    fn statements(&self, engine: DbBackend) -> Vec<String> {
        self.step.statements(engine)
    }

    fn declared_compatible_from(&self) -> Option<u32> {
        Some(self.compatible_from)
    }
}

/// Prefixes of statements that run on one engine only.
const ENGINE_PREFIXES: [(&str, DbBackend); 2] = [("{postgres}", DbBackend::Postgres), ("{sqlite}", DbBackend::Sqlite)];

/// The statements for this engine, in its dialect.
fn statements(all: &[&str], engine: DbBackend) -> Vec<String> {
    let selected = all.iter().filter_map(|statement| {
        let mut marks = ENGINE_PREFIXES.iter();
        let marked = marks.find_map(|(mark, selected)| Some((statement.strip_prefix(mark)?, *selected)));
        let (statement, meant) = marked.unwrap_or((statement, engine));
        (meant == engine).then(|| for_engine(statement, engine))
    });
    selected.collect()
}

async fn run(on: &DatabaseTransaction, all: &[&str]) -> Result<(), DbErr> {
    for statement in statements(all, on.get_database_backend()) {
        on.execute_unprepared(&statement).await?;
    }
    Ok(())
}

/// Adapts a statement to an engine. `{uuid}` and `{bytes}` stand for its names of these types, `{counted}` for a
/// primary key that the engine increments and never reuses, `{by_key}` for a table stored in key order, `{no_uuid}` for
/// a UUID of zeros.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_in_the_order_of_their_numbers() {
        let numbers: Vec<_> = Migrator::migrations().iter().map(|migration| migration.number()).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    }

    #[test]
    fn each_engine_has_a_hash_of_its_own_sql() {
        let step = |up| Step { name: "0042_test", up, down: &[] };
        let (both, one) = (&["CREATE TABLE a (b {uuid})"], &["CREATE TABLE a (b {uuid})", "{sqlite}DROP TABLE c"]);
        let hashes =
            |up: &'static [&'static str]| [DbBackend::Postgres, DbBackend::Sqlite].map(|engine| step(up).hash(engine));
        let [postgres, sqlite] = hashes(both);
        assert_ne!(postgres, sqlite);
        let [same, changed] = hashes(one);
        assert_eq!(postgres, same);
        assert_ne!(sqlite, changed);
        assert_eq!(step(both).number(), 42);
    }
}
