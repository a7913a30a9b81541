//! Leases: named locks with an end.

use sea_orm_migration::prelude::*;

use crate::for_engine;

pub(crate) struct Migration;

impl MigrationName for Migration {
    fn name(&self) -> &'static str {
        "0004_leases"
    }
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let engine = manager.get_database_backend();
        for statement in UP {
            manager.get_connection().execute_unprepared(&for_engine(statement, engine)).await?;
        }
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager.get_connection().execute_unprepared("DROP TABLE leases").await?;
        Ok(())
    }
}

const UP: &[&str] = &[
    // `token` and `holder` are NULL once it was given back. A row stays for a while after that, for its fence.
    "CREATE TABLE leases (
        name TEXT PRIMARY KEY,
        token {bytes},
        fence BIGINT NOT NULL,
        holder TEXT,
        expires_at BIGINT NOT NULL
    )",
    "CREATE INDEX leases_ended ON leases (expires_at)",
];
