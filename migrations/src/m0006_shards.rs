//! Which process has which shard.

use sea_orm_migration::prelude::*;

use crate::for_engine;

pub(crate) struct Migration;

impl MigrationName for Migration {
    fn name(&self) -> &'static str {
        "0006_shards"
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
        for statement in ["ALTER TABLE instances DROP COLUMN seeks", "DROP TABLE shard_owners"] {
            manager.get_connection().execute_unprepared(statement).await?;
        }
        Ok(())
    }
}

const UP: &[&str] = &[
    // `owner` is an instance, or NULL since `freed_at`, which is by the clock of the database. `fence` grows with every owner.
    "CREATE TABLE shard_owners (
        shards BIGINT NOT NULL,
        shard BIGINT NOT NULL,
        owner {uuid},
        fence BIGINT NOT NULL,
        freed_at BIGINT NOT NULL,
        PRIMARY KEY (shards, shard)
    )",
    "CREATE INDEX shard_owners_owner ON shard_owners (owner)",
    // How many more shards a process would have, to have its part of them.
    "ALTER TABLE instances ADD COLUMN seeks BIGINT NOT NULL DEFAULT 0",
];
