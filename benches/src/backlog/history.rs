//! A store with a history: finished operations, and many more pending ones, written directly to its tables.

use std::path::Path;

use anyhow::Context as _;
use guildhall::store::Store;
use sea_orm::{ConnectOptions, ConnectionTrait as _, Database};

use crate::operations::{FIRST_GUILD, settings};

/// All finished operations finished within this time, which is shorter than the retention of the store.
const PAST_MS: u64 = 30 * 60 * 1_000;

/// Duration of each finished operation.
const DURATION_MS: u64 = 40;

/// First sequence number of the pending operations of a queue. Lower numbers belong to finished operations.
const FIRST_PENDING: u64 = 1_000_000;

/// Number of rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Finished operations.
    pub(super) finished: u64,
    /// Guilds. Finished operations are spread over all of them.
    pub(super) guilds: u64,
    /// Pending operations of each guild.
    pub(super) pending: u64,
}

/// The file of a store, and how to restore its initial state.
#[derive(Debug)]
pub(super) struct History {
    url: String,
    extent: Extent,
    /// Operations that finished after this time are not part of the history.
    written_at: u64,
}

impl History {
    /// Creates a store in a file.
    pub(super) async fn write(file: &Path, extent: Extent, now_ms: u64) -> anyhow::Result<Self> {
        let history = Self { url: format!("sqlite:{}", file.display()), extent, written_at: now_ms };
        // The store creates its tables itself.
        Store::open(&settings(&history.url, &[])?.store).await?.close().await;
        let before = ["PRAGMA synchronous = OFF", "PRAGMA cache_size = -500000"].map(str::to_owned);
        history.run(before.into_iter().chain(history.statements())).await?;
        Ok(history)
    }

    /// URL of the store.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Makes all operations that finished since then pending again, as if they had never started.
    pub(super) async fn restore(&self) -> anyhow::Result<()> {
        let Self { extent: Extent { pending, .. }, written_at, .. } = self;
        let since = format!("state = 'succeeded' AND finished_at > {written_at}");
        let done = format!("SELECT id FROM operations WHERE {since}");
        self.run([
            format!("DELETE FROM operation_attempts WHERE operation_id IN ({done})"),
            format!(
                "UPDATE idempotency SET state = NULL, result = NULL, expires_at = NULL WHERE operation_id IN ({done})"
            ),
            format!(
                "UPDATE operations SET state = 'queued', attempts = 0, result = NULL, finished_at = NULL,
                eligible_at = created_at, updated_at = created_at WHERE {since}"
            ),
            format!("UPDATE guild_queues SET pending = {pending}, ready_at = {written_at} WHERE pending < {pending}"),
        ])
        .await
    }

    /// Runs statements in order, then moves everything that they wrote from the write-ahead log to the database file.
    async fn run(&self, statements: impl IntoIterator<Item = String>) -> anyhow::Result<()> {
        let mut options = ConnectOptions::new(&self.url);
        // A PRAGMA applies to one connection, so all statements use the same one.
        options.max_connections(1).sqlx_logging(false);
        let file = Database::connect(options).await?;
        for statement in statements {
            file.execute_unprepared(&statement).await.with_context(|| format!("cannot run {statement}"))?;
        }
        file.execute_unprepared("PRAGMA wal_checkpoint(TRUNCATE)").await?;
        Ok(file.close().await?)
    }

    /// Statements that fill the tables, in order.
    fn statements(&self) -> Vec<String> {
        let Self { extent: Extent { finished, guilds, pending }, written_at, .. } = self;
        let (started_at, waiting) = (written_at - PAST_MS - DURATION_MS, guilds * pending);
        // Consecutive operations belong to consecutive guilds.
        let counter = |count: u64| {
            format!(
                "WITH RECURSIVE c(i) AS (SELECT 0 WHERE {count} > 0 UNION ALL SELECT i + 1 FROM c WHERE i + 1 < {count})"
            )
        };
        // Like the ids that the operation service generates: the time comes first.
        let id = "unhex(printf('%012x7%03x8', at, i % 4096) || substr(hex(randomblob(8)), 1, 15))";
        let past = format!(
            "{}, o AS (SELECT i, {started_at} + i * {PAST_MS} / MAX({finished}, 1) AS at, {FIRST_GUILD} + i % {guilds} AS guild,
            1 + i / {guilds} AS nth FROM c)",
            counter(*finished)
        );
        let future = format!(
            "{}, o AS (SELECT i, {written_at} AS at, {FIRST_GUILD} + i % {guilds} AS guild, 1 + i / {guilds} AS nth FROM c)",
            counter(waiting)
        );
        let columns = "id, tenant, queue, guild_id, seq, kind, payload, payload_hash, lane, state, attempts, delays,
            max_attempts, eligible_at, parked, reason, result, created_at, updated_at, finished_at";
        let payload = "printf('{\"user_id\":\"%d\",\"role_id\":\"1300000000000000007\"}', nth)";
        let values = |seq: &str| {
            format!("{id}, 'default', guild, guild, {seq}, 'assign_role', {payload}, randomblob(32), 'operation'")
        };
        vec![
            format!(
                "INSERT INTO operations ({columns}) {past} SELECT {}, 'succeeded', 1, 0, 3, at, 0, 'asked for by an admin',
                printf('{{\"role_id\":\"1300000000000000007\",\"user_id\":\"%d\"}}', nth), at, at + {DURATION_MS}, at + {DURATION_MS} FROM o",
                values("nth")
            ),
            "INSERT INTO operation_attempts (operation_id, n, started_at, ended_at, status, class)
            SELECT id, 1, created_at, finished_at, 204, 'succeeded' FROM operations"
                .to_owned(),
            "INSERT INTO idempotency (scope, key, payload_hash, operation_id, state, result, expires_at)
            SELECT 'bench', lower(hex(id)), payload_hash, id, state, result, finished_at + 86400000 FROM operations"
                .to_owned(),
            format!(
                "INSERT INTO operations ({columns}) {future} SELECT {}, 'queued', 0, 0, 3, at, 0, 'asked for by an admin',
                NULL, at, at, NULL FROM o",
                values(&format!("{FIRST_PENDING} + nth"))
            ),
            "INSERT INTO idempotency (scope, key, payload_hash, operation_id)
            SELECT 'bench', lower(hex(id)), payload_hash, id FROM operations WHERE finished_at IS NULL"
                .to_owned(),
            format!(
                "INSERT INTO guild_queues (queue, tenant, next_seq, pending, paused, ready_at, fence)
                {} SELECT {FIRST_GUILD} + i, 'default', {FIRST_PENDING} + {pending} + 1, {pending}, 0, {written_at}, 1 FROM c",
                counter(*guilds)
            ),
        ]
    }
}
