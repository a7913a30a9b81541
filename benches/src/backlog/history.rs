//! A store with a past: operations that are done, and many more that are not, written straight into its tables.

use std::path::Path;

use anyhow::Context as _;
use guildhall::store::Store;
use sea_orm::{ConnectOptions, ConnectionTrait as _, Database};

use crate::operations::{FIRST_GUILD, settings};

/// What was done has been done within this time: shorter than the store keeps it.
const PAST_MS: u64 = 30 * 60 * 1_000;

/// How long each of them took.
const TOOK_MS: u64 = 40;

/// Where the pending operations of a queue begin. The numbers before belong to what is done.
const FIRST_PENDING: u64 = 1_000_000;

/// How much there is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Operations that are done.
    pub(super) finished: u64,
    /// Guilds; what is done is spread over all of them.
    pub(super) guilds: u64,
    /// Operations of each guild that are not done.
    pub(super) pending: u64,
}

/// The file of a store, and how to bring it back to where it began.
#[derive(Debug)]
pub(super) struct History {
    url: String,
    extent: Extent,
    /// What is done later than this is not of the past.
    written_at: u64,
}

impl History {
    /// Makes a store in a file.
    pub(super) async fn write(file: &Path, extent: Extent, now_ms: u64) -> anyhow::Result<Self> {
        let history = Self { url: format!("sqlite:{}", file.display()), extent, written_at: now_ms };
        // The store makes its tables itself.
        Store::open(&settings(&history.url, &[])?.store).await?.close().await;
        let before = ["PRAGMA synchronous = OFF", "PRAGMA cache_size = -500000"].map(str::to_owned);
        history.run(before.into_iter().chain(history.statements())).await?;
        Ok(history)
    }

    /// Where the store is.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Makes everything pending again that was done since, as if it had never been begun.
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

    /// Runs statements one after the other, and has all that they wrote in the file itself.
    async fn run(&self, statements: impl IntoIterator<Item = String>) -> anyhow::Result<()> {
        let mut options = ConnectOptions::new(&self.url);
        // What is set for a connection holds for the next statement, too.
        options.max_connections(1).sqlx_logging(false);
        let file = Database::connect(options).await?;
        for statement in statements {
            file.execute_unprepared(&statement).await.with_context(|| format!("cannot run {statement}"))?;
        }
        file.execute_unprepared("PRAGMA wal_checkpoint(TRUNCATE)").await?;
        Ok(file.close().await?)
    }

    /// What the tables are filled with, in this order.
    fn statements(&self) -> Vec<String> {
        let Self { extent: Extent { finished, guilds, pending }, written_at, .. } = self;
        let (began, waiting) = (written_at - PAST_MS - TOOK_MS, guilds * pending);
        // Operations come one after the other, each for the next guild.
        let counted = |count: u64| {
            format!(
                "WITH RECURSIVE c(i) AS (SELECT 0 WHERE {count} > 0 UNION ALL SELECT i + 1 FROM c WHERE i + 1 < {count})"
            )
        };
        // As the desk names them: the time first.
        let id = "unhex(printf('%012x7%03x8', at, i % 4096) || substr(hex(randomblob(8)), 1, 15))";
        let past = format!(
            "{}, o AS (SELECT i, {began} + i * {PAST_MS} / MAX({finished}, 1) AS at, {FIRST_GUILD} + i % {guilds} AS guild,
            1 + i / {guilds} AS nth FROM c)",
            counted(*finished)
        );
        let future = format!(
            "{}, o AS (SELECT i, {written_at} AS at, {FIRST_GUILD} + i % {guilds} AS guild, 1 + i / {guilds} AS nth FROM c)",
            counted(waiting)
        );
        let columns = "id, tenant, queue, guild_id, seq, kind, payload, payload_hash, lane, state, attempts, delays,
            max_attempts, eligible_at, parked, reason, result, created_at, updated_at, finished_at";
        let payload = "printf('{\"user_id\":\"%d\",\"role_id\":\"1300000000000000007\"}', nth)";
        let asked = |seq: &str| {
            format!("{id}, 'default', guild, guild, {seq}, 'assign_role', {payload}, randomblob(32), 'operation'")
        };
        vec![
            format!(
                "INSERT INTO operations ({columns}) {past} SELECT {}, 'succeeded', 1, 0, 3, at, 0, 'asked for by an admin',
                printf('{{\"role_id\":\"1300000000000000007\",\"user_id\":\"%d\"}}', nth), at, at + {TOOK_MS}, at + {TOOK_MS} FROM o",
                asked("nth")
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
                asked(&format!("{FIRST_PENDING} + nth"))
            ),
            "INSERT INTO idempotency (scope, key, payload_hash, operation_id)
            SELECT 'bench', lower(hex(id)), payload_hash, id FROM operations WHERE finished_at IS NULL"
                .to_owned(),
            format!(
                "INSERT INTO guild_queues (queue, tenant, next_seq, pending, paused, ready_at, fence)
                {} SELECT {FIRST_GUILD} + i, 'default', {FIRST_PENDING} + {pending} + 1, {pending}, 0, {written_at}, 1 FROM c",
                counted(*guilds)
            ),
        ]
    }
}
