//! Sessions of shards, what was done with which event, events that wait, and how often was identified.

use sea_orm_migration::prelude::*;

use crate::for_engine;

pub(crate) struct Migration;

impl MigrationName for Migration {
    fn name(&self) -> &'static str {
        "0005_events"
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
        for table in ["identifies", "inbox", "handled", "sessions"] {
            manager.get_connection().execute_unprepared(&format!("DROP TABLE {table}")).await?;
        }
        Ok(())
    }
}

const UP: &[&str] = &[
    // Every event of a session up to `confirmed` was handled.
    "CREATE TABLE sessions (
        shards BIGINT NOT NULL,
        shard BIGINT NOT NULL,
        session TEXT NOT NULL,
        resume_url TEXT,
        confirmed BIGINT NOT NULL,
        updated_at BIGINT NOT NULL,
        PRIMARY KEY (shards, shard)
    )",
    "CREATE INDEX sessions_session ON sessions (session)",
    // Which handlers are done with events that their session is not confirmed past.
    "CREATE TABLE handled (
        session TEXT NOT NULL,
        seq BIGINT NOT NULL,
        handler TEXT NOT NULL,
        at BIGINT NOT NULL,
        PRIMARY KEY (session, seq, handler)
    ) {by_key}",
    // Events that their session does not wait for any more. `dead` tells why one was given up, at `died_at`; `why`, what went
    // wrong the last time.
    "CREATE TABLE inbox (
        place {counted},
        session TEXT NOT NULL,
        seq BIGINT NOT NULL,
        handler TEXT NOT NULL,
        lane BIGINT NOT NULL,
        name TEXT NOT NULL,
        event TEXT NOT NULL,
        attempts BIGINT NOT NULL,
        eligible_at BIGINT NOT NULL,
        dead TEXT,
        why TEXT,
        created_at BIGINT NOT NULL,
        died_at BIGINT,
        UNIQUE (session, seq, handler)
    )",
    "CREATE INDEX inbox_waiting ON inbox (place) WHERE dead IS NULL",
    "CREATE INDEX inbox_dead ON inbox (place) WHERE dead IS NOT NULL",
    "CREATE INDEX inbox_died ON inbox (died_at) WHERE died_at IS NOT NULL",
    // One row each time that a shard was let identify, for two days.
    "CREATE TABLE identifies (
        id {counted},
        bucket BIGINT NOT NULL,
        at BIGINT NOT NULL
    )",
    "CREATE INDEX identifies_at ON identifies (at)",
    "CREATE INDEX identifies_bucket ON identifies (bucket, at)",
];
