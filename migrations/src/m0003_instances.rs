//! Processes that share a store: each says again and again that it lives.

use sea_orm_migration::prelude::*;

use crate::for_engine;

pub(crate) struct Migration;

impl MigrationName for Migration {
    fn name(&self) -> &'static str {
        "0003_instances"
    }
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, UP).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, DOWN).await
    }
}

async fn run(manager: &SchemaManager<'_>, statements: &[&str]) -> Result<(), DbErr> {
    let engine = manager.get_database_backend();
    for statement in statements {
        manager.get_connection().execute_unprepared(&for_engine(statement, engine)).await?;
    }
    Ok(())
}

/// Who was alive is of no use to whoever migrates: nobody is.
const UP: &[&str] = &[
    "DROP TABLE instances",
    // `lease_until` and `seen_at` are by the clock of the database.
    "CREATE TABLE instances (
        id {uuid} PRIMARY KEY,
        name TEXT NOT NULL,
        started_at BIGINT NOT NULL,
        seen_at BIGINT NOT NULL,
        lease_until BIGINT NOT NULL,
        leaving BIGINT NOT NULL
    )",
];

const DOWN: &[&str] = &[
    "DROP TABLE instances",
    "CREATE TABLE instances (
        id {uuid} PRIMARY KEY,
        epoch BIGINT NOT NULL UNIQUE,
        started_at BIGINT NOT NULL
    )",
];
