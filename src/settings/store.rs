//! Where everything is kept.

use std::time::Duration;

use super::{of, resolve::Effective, store_url::StoreUrl, take, value::Value};

/// Where everything is kept.
#[derive(Clone, Debug)]
pub struct Store {
    /// Where.
    pub url: StoreUrl,
    /// Whether an older store is brought up to date when it is opened.
    pub migrate: bool,
    /// How long a call may take as a whole.
    pub timeout: Duration,
    /// How long to wait for the process before this one to let go of PostgreSQL.
    pub lock_wait: Duration,
    /// How many connections read at once.
    pub read_connections: u32,
    /// How many writes may wait at once.
    pub max_waiting: usize,
    /// How many operations of one queue may be pending.
    pub max_queued: u64,
    /// How large a file of SQLite may grow; 0 means without a limit.
    pub max_bytes: u64,
    /// How long an idempotency key is kept once its operation is done.
    pub keep_keys: Duration,
}

pub(super) fn typed(effective: &[Effective]) -> Store {
    let narrow = "invariant: the schema's bounds fit the type";
    Store {
        url: take!(effective, "store.url", StoreUrl),
        migrate: take!(effective, "store.migrate", Bool),
        timeout: Duration::from_millis(take!(effective, "store.timeout_ms", Integer)),
        lock_wait: Duration::from_millis(take!(effective, "store.lock_wait_ms", Integer)),
        read_connections: take!(effective, "store.read_connections", Integer).try_into().expect(narrow),
        max_waiting: take!(effective, "store.max_waiting", Integer).try_into().expect(narrow),
        max_queued: take!(effective, "store.max_queued_per_guild", Integer),
        keep_keys: Duration::from_millis(take!(effective, "retention.idempotency_ms", Integer)),
        max_bytes: take!(effective, "store.max_bytes", Integer),
    }
}
