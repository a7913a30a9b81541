//! Sessions of shards, handled events, the inbox, and identifies.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0005_events", up: UP, down: DOWN };

const UP: &[&str] = &[
    // All events of a session up to `confirmed` were handled.
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
    // Handlers that are done with events after the confirmed position of their session.
    "CREATE TABLE handled (
        session TEXT NOT NULL,
        seq BIGINT NOT NULL,
        handler TEXT NOT NULL,
        at BIGINT NOT NULL,
        PRIMARY KEY (session, seq, handler)
    ) {by_key}",
    // Events for which their session no longer waits. `dead` is the reason why an event was given up, at `died_at`;
    // `why` is the last error.
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
    // One row for each permitted identify of a shard, for two days.
    "CREATE TABLE identifies (
        id {counted},
        bucket BIGINT NOT NULL,
        at BIGINT NOT NULL
    )",
    "CREATE INDEX identifies_at ON identifies (at)",
    "CREATE INDEX identifies_bucket ON identifies (bucket, at)",
];

const DOWN: &[&str] = &["DROP TABLE identifies", "DROP TABLE inbox", "DROP TABLE handled", "DROP TABLE sessions"];
