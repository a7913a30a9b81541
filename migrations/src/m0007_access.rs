//! Keys of the API, and who did what with them.

use sea_orm_migration::prelude::*;

use crate::for_engine;

pub(crate) struct Migration;

impl MigrationName for Migration {
    fn name(&self) -> &'static str {
        "0007_access"
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
        for table in ["audit", "api_keys"] {
            manager.get_connection().execute_unprepared(&format!("DROP TABLE {table}")).await?;
        }
        Ok(())
    }
}

const UP: &[&str] = &[
    // `scopes` are names, with a space between them.
    "CREATE TABLE api_keys (
        id TEXT PRIMARY KEY,
        tenant TEXT NOT NULL,
        name TEXT NOT NULL,
        digest {bytes} NOT NULL,
        scopes TEXT NOT NULL,
        created_at BIGINT NOT NULL,
        expires_at BIGINT,
        revoked_at BIGINT,
        rotated_to TEXT
    )",
    "CREATE INDEX api_keys_newest ON api_keys (created_at, id)",
    "CREATE TABLE audit (
        place {counted},
        at BIGINT NOT NULL,
        tenant TEXT NOT NULL,
        api_key TEXT NOT NULL,
        action TEXT NOT NULL,
        guild_id BIGINT,
        target TEXT NOT NULL,
        detail TEXT NOT NULL,
        request TEXT NOT NULL
    )",
    "CREATE INDEX audit_guild ON audit (guild_id, place)",
    "CREATE INDEX audit_key ON audit (api_key, place)",
    "CREATE INDEX audit_at ON audit (at)",
];
