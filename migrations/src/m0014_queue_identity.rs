//! Queues of tenants, and scheduled operations.
//!
//! A queue of a user, an interaction or the application was shared by all tenants. It becomes one queue for each
//! tenant, with a class and a key in addition to its number. Operations that wait for a time become scheduled:
//! `joins_at` is the time when they take a position in their queue, and their `seq` is negative until then.

use std::{
    fmt::Write as _,
    time::{SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use sea_orm::{ConnectionTrait as _, DatabaseTransaction, DbBackend, DbErr, Statement, Value};
use sha2::{Digest as _, Sha256};

use crate::{Migration, run, statements};

/// The migration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueIdentity;

#[async_trait]
impl Migration for QueueIdentity {
    fn name(&self) -> &'static str {
        "0014_queue_identity"
    }

    async fn up(&self, on: &DatabaseTransaction) -> Result<(), DbErr> {
        run(on, COLUMNS).await?;
        fill_moves(on).await?;
        run(on, MOVE).await?;
        schedule(on).await?;
        run(on, INDEXES).await
    }

    async fn down(&self, on: &DatabaseTransaction) -> Result<(), DbErr> {
        run(on, DOWN).await
    }

    fn statements(&self, engine: DbBackend) -> Vec<String> {
        let in_code = [SHARED, FILL_MOVES, BY_TIME, BY_REFERENCE].map(str::to_owned);
        [COLUMNS, MOVE, INDEXES].into_iter().flat_map(|all| statements(all, engine)).chain(in_code).collect()
    }
}

const COLUMNS: &[&str] = &[
    // A guild's queue is found by its number alone, and has no key.
    "ALTER TABLE guild_queues ADD COLUMN class TEXT NOT NULL DEFAULT 'guild'",
    "ALTER TABLE guild_queues ADD COLUMN key TEXT",
    // Set on scheduled operations only.
    "ALTER TABLE operations ADD COLUMN joins_at BIGINT",
    // Whether a policy has postponed it.
    "ALTER TABLE operations ADD COLUMN put_off BIGINT NOT NULL DEFAULT 0",
    "CREATE TABLE queue_moves (
        moved_from BIGINT NOT NULL,
        tenant TEXT NOT NULL,
        moved_to BIGINT NOT NULL,
        class TEXT NOT NULL,
        key TEXT NOT NULL,
        PRIMARY KEY (moved_from, tenant)
    )",
];

/// Every shared queue becomes one for each tenant that has operations in it, with the same positions.
const MOVE: &[&str] = &[
    "INSERT INTO guild_queues (queue, tenant, class, key, next_seq, pending, paused, ready_at, fence)
        SELECT m.moved_to, m.tenant, m.class, m.key, MAX(o.seq) + 1, COUNT(*), 0, MIN(o.eligible_at), 1
        FROM queue_moves m JOIN operations o ON o.queue = m.moved_from AND o.tenant = m.tenant AND o.finished_at IS NULL
        GROUP BY m.moved_to, m.tenant, m.class, m.key",
    "UPDATE operations SET queue = m.moved_to FROM queue_moves m
        WHERE operations.queue = m.moved_from AND operations.tenant = m.tenant",
    "UPDATE dead_letters SET queue = m.moved_to FROM queue_moves m
        WHERE dead_letters.queue = m.moved_from AND dead_letters.tenant = m.tenant",
    "DELETE FROM guild_queues WHERE queue <= 0 AND key IS NULL",
    "DROP TABLE queue_moves",
];

const INDEXES: &[&str] = &[
    "CREATE UNIQUE INDEX guild_queues_identity ON guild_queues (tenant, class, key) WHERE key IS NOT NULL",
    "CREATE INDEX operations_scheduled ON operations (queue, joins_at, seq DESC) WHERE joins_at IS NOT NULL",
];

/// Finished operations keep the number of their queue: the queue's key may no longer exist.
const DOWN: &[&str] = &[
    "UPDATE operations SET state = 'queued', seq = r.place FROM (SELECT o.id AS op, q.next_seq - 1 + ROW_NUMBER()
        OVER (PARTITION BY o.queue ORDER BY o.joins_at, o.seq DESC) AS place
        FROM operations o JOIN guild_queues q ON q.queue = o.queue WHERE o.joins_at IS NOT NULL) r
        WHERE operations.id = r.op",
    "CREATE TABLE queue_moves (op {uuid} PRIMARY KEY, moved_to BIGINT NOT NULL, place BIGINT NOT NULL)",
    "INSERT INTO queue_moves (op, moved_to, place) SELECT p.id, p.moved_to,
        ROW_NUMBER() OVER (PARTITION BY p.moved_to ORDER BY p.seq, p.tenant) FROM (SELECT o.id, o.seq, o.tenant,
        CASE q.class WHEN 'application' THEN 0 WHEN 'user' THEN -CAST(q.key AS BIGINT)
        ELSE -CAST(q.key AS BIGINT) - 4611686018427387904 END AS moved_to
        FROM operations o JOIN guild_queues q ON q.queue = o.queue
        WHERE q.key IS NOT NULL AND o.finished_at IS NULL) p",
    "DELETE FROM guild_queues WHERE key IS NOT NULL",
    "DROP INDEX operations_scheduled",
    "DROP INDEX guild_queues_identity",
    "UPDATE operations SET queue = m.moved_to, seq = m.place FROM queue_moves m WHERE operations.id = m.op",
    "INSERT INTO guild_queues (queue, tenant, next_seq, pending, paused, ready_at, fence)
        SELECT o.queue, MIN(o.tenant), MAX(o.seq) + 1, COUNT(*), 0, MIN(o.eligible_at), 1
        FROM queue_moves m JOIN operations o ON o.id = m.op GROUP BY o.queue",
    "DROP TABLE queue_moves",
    "UPDATE guild_queues SET next_seq = (SELECT MAX(o.seq) + 1 FROM operations o
        WHERE o.queue = guild_queues.queue AND o.finished_at IS NULL)
        WHERE EXISTS (SELECT 1 FROM operations o WHERE o.queue = guild_queues.queue AND o.finished_at IS NULL
        AND o.seq >= guild_queues.next_seq)",
    "ALTER TABLE operations DROP COLUMN put_off",
    "ALTER TABLE operations DROP COLUMN joins_at",
    "ALTER TABLE guild_queues DROP COLUMN key",
    "ALTER TABLE guild_queues DROP COLUMN class",
];

/// Number of rows in one statement.
const CHUNK: usize = 200;

const SHARED: &str = "SELECT queue, tenant FROM operations WHERE queue <= 0
    UNION SELECT queue, tenant FROM dead_letters WHERE queue <= 0";

const FILL_MOVES: &str = "INSERT INTO queue_moves (moved_from, tenant, moved_to, class, key) VALUES ";

/// Computes a number for each tenant's part of a shared queue.
async fn fill_moves(on: &DatabaseTransaction) -> Result<(), DbErr> {
    let engine = on.get_database_backend();
    let rows = on.query_all_raw(Statement::from_string(engine, SHARED)).await?;
    for chunk in rows.chunks(CHUNK) {
        let mut sql = FILL_MOVES.to_owned();
        let mut values: Vec<Value> = Vec::new();
        for row in chunk {
            let (queue, tenant): (i64, String) = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
            let (class, key) = identity(queue);
            let comma = if values.is_empty() { "" } else { ", " };
            let n = values.len();
            let row = format!("{comma}(${}, ${}, ${}, ${}, ${})", n + 1, n + 2, n + 3, n + 4, n + 5);
            sql.write_str(&row).map_err(|error| DbErr::Custom(error.to_string()))?;
            let to = number(&tenant, class, &key);
            values.extend([queue.into(), tenant.into(), to.into(), class.name().into(), key.into()]);
        }
        on.execute_raw(Statement::from_sql_and_values(engine, sql, values)).await?;
    }
    Ok(())
}

const BY_TIME: &str = "UPDATE operations SET state = 'scheduled', joins_at = eligible_at, seq = -seq
    WHERE finished_at IS NULL AND state = 'queued' AND attempts = 0 AND delays = 0 AND eligible_at > $1
    AND NOT EXISTS (SELECT 1 FROM intents i WHERE i.operation_id = operations.id)";

const BY_REFERENCE: &str = "UPDATE operations SET state = 'scheduled', seq = -seq, joins_at =
    (SELECT MAX(t.joins_at) FROM operation_refs r JOIN operations t ON t.id = r.target WHERE r.operation_id = operations.id)
    WHERE finished_at IS NULL AND state = 'queued' AND attempts = 0 AND delays = 0
    AND EXISTS (SELECT 1 FROM operation_refs r JOIN operations t ON t.id = r.target
    WHERE r.operation_id = operations.id AND t.joins_at IS NOT NULL)
    AND NOT EXISTS (SELECT 1 FROM intents i WHERE i.operation_id = operations.id)";

/// Operations that were never tried and wait for a time become scheduled, and so do those that refer to them.
async fn schedule(on: &DatabaseTransaction) -> Result<(), DbErr> {
    let engine = on.get_database_backend();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    on.execute_raw(Statement::from_sql_and_values(engine, BY_TIME, [now.into()])).await?;
    while on.execute_raw(Statement::from_string(engine, BY_REFERENCE)).await?.rows_affected() > 0 {}
    Ok(())
}

#[derive(Clone, Copy)]
enum Class {
    User,
    Application,
    Interaction,
}

impl Class {
    const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Application => "application",
            Self::Interaction => "interaction",
        }
    }
}

/// Class and key of a shared queue: users were below zero, interactions far below.
fn identity(queue: i64) -> (Class, String) {
    const INTERACTION: i64 = 1 << 62;
    match queue {
        0 => (Class::Application, String::new()),
        _ if queue <= -INTERACTION => (Class::Interaction, (queue + INTERACTION).unsigned_abs().to_string()),
        _ => (Class::User, queue.unsigned_abs().to_string()),
    }
}

/// Number of a tenant's queue: the class, and 60 bits of a hash.
fn number(tenant: &str, class: Class, key: &str) -> i64 {
    let mut hash = Sha256::new();
    for part in [tenant, class.name(), key] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let digest: [u8; 32] = hash.finalize().into();
    let first = digest.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    let code = match class {
        Class::User => 0,
        Class::Application => 1,
        Class::Interaction => 2,
    };
    i64::MIN | (code << 60) | (first >> 4).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: [i64; 3] = [-9_217_175_647_913_053_008, -7_313_593_991_160_018_692, -6_556_854_201_460_191_966];

    #[test]
    fn numbers_are_those_of_the_store() {
        assert_eq!(number("default", Class::User, "5"), EXPECTED[0]);
        assert_eq!(number("acme", Class::Application, ""), EXPECTED[1]);
        assert_eq!(number("acme", Class::Interaction, "5"), EXPECTED[2]);
    }
}
