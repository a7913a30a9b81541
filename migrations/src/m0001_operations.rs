//! Operations, their queues, and related tables.
//!
//! Times are milliseconds since 1970; numbers and switches are `BIGINT` on both engines, so that the same queries read
//! both.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0001_operations", up: UP, down: DOWN };

const UP: &[&str] = &[
    // Processes that have opened the store. The epoch increases with each, and fences start with it.
    "CREATE TABLE instances (
        id {uuid} PRIMARY KEY,
        epoch BIGINT NOT NULL UNIQUE,
        started_at BIGINT NOT NULL
    )",
    // `ready_at` is NULL while nothing is pending, `owner` while no process owns the queue.
    "CREATE TABLE guild_queues (
        queue BIGINT PRIMARY KEY,
        tenant TEXT NOT NULL,
        next_seq BIGINT NOT NULL,
        pending BIGINT NOT NULL,
        paused BIGINT NOT NULL,
        ready_at BIGINT,
        owner {uuid},
        fence BIGINT NOT NULL
    )",
    "CREATE INDEX guild_queues_due ON guild_queues (ready_at)
        WHERE owner IS NULL AND paused = 0 AND ready_at IS NOT NULL",
    "CREATE INDEX guild_queues_owned ON guild_queues (owner) WHERE owner IS NOT NULL",
    "CREATE INDEX guild_queues_paused ON guild_queues (queue) WHERE paused = 1",
    "CREATE TABLE operations (
        id {uuid} PRIMARY KEY,
        tenant TEXT NOT NULL,
        queue BIGINT NOT NULL,
        guild_id BIGINT,
        seq BIGINT NOT NULL,
        kind TEXT NOT NULL,
        payload TEXT NOT NULL,
        payload_hash {bytes} NOT NULL,
        lane TEXT NOT NULL,
        state TEXT NOT NULL,
        attempts BIGINT NOT NULL,
        delays BIGINT NOT NULL,
        max_attempts BIGINT NOT NULL,
        eligible_at BIGINT NOT NULL,
        deadline_at BIGINT,
        parked BIGINT NOT NULL,
        deployment_id {uuid},
        trace TEXT,
        reason TEXT,
        error TEXT,
        result TEXT,
        made BIGINT,
        redrive_of {uuid},
        redriven_as {uuid},
        created_at BIGINT NOT NULL,
        updated_at BIGINT NOT NULL,
        finished_at BIGINT
    )",
    "CREATE UNIQUE INDEX operations_pending ON operations (queue, seq) WHERE finished_at IS NULL",
    "CREATE INDEX operations_finished ON operations (state, finished_at) WHERE finished_at IS NOT NULL",
    "CREATE INDEX operations_guild ON operations (guild_id, id)",
    "CREATE INDEX operations_state ON operations (state, id)",
    "CREATE INDEX operations_kind ON operations (kind, id)",
    "CREATE INDEX operations_made ON operations (made) WHERE made IS NOT NULL",
    "CREATE TABLE operation_attempts (
        operation_id {uuid} NOT NULL,
        n BIGINT NOT NULL,
        started_at BIGINT NOT NULL,
        ended_at BIGINT NOT NULL,
        status BIGINT,
        class TEXT NOT NULL,
        detail TEXT,
        PRIMARY KEY (operation_id, n, started_at)
    )",
    "CREATE TABLE intents (
        operation_id {uuid} PRIMARY KEY,
        marker TEXT NOT NULL UNIQUE,
        at BIGINT NOT NULL
    )",
    "CREATE TABLE operation_refs (
        operation_id {uuid} NOT NULL,
        target {uuid} NOT NULL,
        PRIMARY KEY (operation_id, target)
    )",
    "CREATE INDEX operation_refs_target ON operation_refs (target)",
    // `state`, `result` and `expires_at` are NULL until the operation is finished.
    "CREATE TABLE idempotency (
        scope TEXT NOT NULL,
        key TEXT NOT NULL,
        payload_hash {bytes} NOT NULL,
        operation_id {uuid} NOT NULL,
        state TEXT,
        result TEXT,
        expires_at BIGINT,
        PRIMARY KEY (scope, key)
    )",
    "CREATE INDEX idempotency_operation ON idempotency (operation_id)",
    "CREATE INDEX idempotency_expired ON idempotency (expires_at) WHERE expires_at IS NOT NULL",
    // Guild 0 means no guild.
    "CREATE TABLE managed_objects (
        guild_id BIGINT NOT NULL,
        kind TEXT NOT NULL,
        key TEXT NOT NULL,
        discord_id BIGINT NOT NULL,
        channel_id BIGINT,
        origin TEXT NOT NULL,
        updated_at BIGINT NOT NULL,
        PRIMARY KEY (guild_id, kind, key),
        UNIQUE (kind, discord_id)
    )",
    "CREATE TABLE dead_letters (
        id {uuid} PRIMARY KEY,
        tenant TEXT NOT NULL,
        queue BIGINT NOT NULL,
        guild_id BIGINT,
        kind TEXT NOT NULL,
        payload TEXT NOT NULL,
        class TEXT NOT NULL,
        error TEXT NOT NULL,
        attempts BIGINT NOT NULL,
        reason TEXT,
        created_at BIGINT NOT NULL,
        died_at BIGINT NOT NULL,
        redrive_of {uuid},
        redriven_as {uuid}
    )",
    "CREATE INDEX dead_letters_died ON dead_letters (died_at)",
    "CREATE INDEX dead_letters_guild ON dead_letters (guild_id, id)",
    // Switches of the whole store, such as a pause of everything.
    "CREATE TABLE switches (
        name TEXT PRIMARY KEY,
        is_on BIGINT NOT NULL
    )",
    "CREATE TABLE state (
        key TEXT PRIMARY KEY,
        value TEXT NOT NULL,
        expires_at BIGINT
    )",
    "CREATE INDEX state_expired ON state (expires_at) WHERE expires_at IS NOT NULL",
];

const DOWN: &[&str] = &[
    "DROP TABLE state",
    "DROP TABLE switches",
    "DROP TABLE dead_letters",
    "DROP TABLE managed_objects",
    "DROP TABLE idempotency",
    "DROP TABLE operation_refs",
    "DROP TABLE intents",
    "DROP TABLE operation_attempts",
    "DROP TABLE operations",
    "DROP TABLE guild_queues",
    "DROP TABLE instances",
];
