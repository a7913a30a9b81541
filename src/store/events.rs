//! Log messages and metrics of the store.

use std::time::Duration;

use guildhall_core::{limit::division::Allowance, usage::UsageBoundExceeded};
use metrics::{counter, gauge, histogram};
use tracing::{info, warn};

use super::FileBound;
use crate::{
    events::InternalEvent,
    metrics::{
        CLAIMS, DISOWNED, FENCED_WRITES, INSTANCES, LEASE_HELD, LIMIT_MEMBERS, STORE_BATCH_REQUESTS,
        STORE_BATCH_SECONDS, STORE_BATCHES, STORE_ERRORS, STORE_FILE_BOUND, STORE_REFUSED, STORE_ROW_SECURITY,
        STORE_UP, STORE_USAGE_RATIO, TAKE_OVERS, TAKEN_OVER,
    },
};

/// The store is open: this process may write.
pub(super) struct StoreAttached<'a> {
    pub(super) url: &'a str,
    /// Number of queues that an earlier process left behind.
    pub(super) freed: u64,
}

impl InternalEvent for StoreAttached<'_> {
    fn emit(self) {
        info!(store = self.url, freed = self.freed, "store opened");
    }
}

/// The store has migrations of a newer version, which declares them compatible with this version.
pub(super) struct NewerStoreAccepted<'a> {
    pub(super) migrations: &'a str,
}

impl InternalEvent for NewerStoreAccepted<'_> {
    fn emit(self) {
        info!(migrations = self.migrations, "store has compatible migrations of a newer version");
    }
}

/// Operations were copied from another server, and got new change sequence numbers.
pub(super) struct ChangeSeqsRepaired {
    pub(super) operations: u64,
}

impl InternalEvent for ChangeSeqsRepaired {
    fn emit(self) {
        if self.operations > 0 {
            warn!(
                operations = self.operations,
                "operations were copied from another server; change feeds that followed them there report a gap"
            );
        }
    }
}

/// Whether the store accepts writes.
pub(super) struct StoreHealthChanged {
    pub(super) up: bool,
}

impl InternalEvent for StoreHealthChanged {
    fn emit(self) {
        gauge!(STORE_UP).set(u8::from(self.up));
    }
}

/// Whether PostgreSQL row-level security isolates tenants.
pub(super) struct RowSecurityChecked<'a> {
    /// The role that isolates them, if any.
    pub(super) role: Option<&'a str>,
    /// Why row-level security is off.
    pub(super) reason: &'a str,
}

impl InternalEvent for RowSecurityChecked<'_> {
    fn emit(self) {
        match self.role {
            Some(role) => info!(role, "PostgreSQL row-level security is on; tenants are isolated by the database"),
            None => {
                warn!(why = self.reason, "PostgreSQL row-level security is off; tenants are isolated by queries only");
            }
        }
        gauge!(STORE_ROW_SECURITY).set(u8::from(self.role.is_some()));
    }
}

/// A submission was refused because it would exceed a storage limit.
pub(super) struct SubmissionOverLimit<'a> {
    pub(super) exceeded: &'a UsageBoundExceeded,
    pub(super) caller: &'a str,
    pub(super) tenant: &'a str,
}

impl InternalEvent for SubmissionOverLimit<'_> {
    fn emit(self) {
        let UsageBoundExceeded { bound, used, more, max } = self.exceeded;
        info!(
            bound = bound.name(),
            setting = bound.setting(),
            used,
            more,
            most = max,
            caller = self.caller,
            tenant = self.tenant,
            "submission refused: store bound reached"
        );
        counter!(STORE_REFUSED, "bound" => bound.name()).increment(1);
    }
}

/// Maximum size of the SQLite file.
pub(super) struct FileBoundSet {
    pub(super) bound: FileBound,
}

impl InternalEvent for FileBoundSet {
    fn emit(self) {
        let FileBound { bytes, derive_bound: derived } = self.bound;
        info!(max_bytes = bytes, derived_from_free_disk = derived, "SQLite file bound set");
        #[expect(clippy::cast_precision_loss, reason = "a size for display")]
        gauge!(STORE_FILE_BOUND).set(bytes as f64);
    }
}

/// The SQLite file was measured.
pub(super) struct FileMeasured {
    pub(super) used: u64,
    pub(super) max_bytes: u64,
}

impl InternalEvent for FileMeasured {
    fn emit(self) {
        #[expect(clippy::cast_precision_loss, reason = "a ratio for display")]
        gauge!(STORE_USAGE_RATIO, "by" => "file").set(self.used as f64 / self.max_bytes.max(1) as f64);
    }
}

/// A batch of writes was committed.
pub(super) struct BatchCommitted {
    pub(super) requests: usize,
    pub(super) elapsed: Duration,
}

impl InternalEvent for BatchCommitted {
    fn emit(self) {
        counter!(STORE_BATCHES).increment(1);
        #[expect(clippy::cast_precision_loss, reason = "a batch is small")]
        histogram!(STORE_BATCH_REQUESTS).record(self.requests as f64);
        histogram!(STORE_BATCH_SECONDS).record(self.elapsed);
    }
}

/// A batch of writes, a read or a connection failed.
pub(super) struct StoreFailed<'a> {
    /// The action that failed.
    pub(super) action: &'static str,
    /// Error class, for metrics.
    pub(super) class: &'static str,
    /// Error message.
    pub(super) message: &'a str,
}

impl InternalEvent for StoreFailed<'_> {
    fn emit(self) {
        warn!(what = self.action, why = self.class, error = self.message, "store access failed");
        counter!(STORE_ERRORS, "what" => self.action, "why" => self.class).increment(1);
    }
}

/// This process claimed queues.
pub(super) struct QueuesClaimed {
    pub(super) queues: usize,
}

impl InternalEvent for QueuesClaimed {
    fn emit(self) {
        if self.queues > 0 {
            counter!(CLAIMS).increment(self.queues as u64);
        }
    }
}

/// Writes were rejected because their queues belong to another process.
pub(super) struct WritesFenced {
    pub(super) writes: usize,
}

impl InternalEvent for WritesFenced {
    fn emit(self) {
        if self.writes > 0 {
            warn!(writes = self.writes, "writes rejected: another process owns their queues");
            counter!(FENCED_WRITES).increment(self.writes as u64);
        }
    }
}

/// The number of processes that share the store.
pub(super) struct InstancesCounted {
    pub(super) live: usize,
}

impl InternalEvent for InstancesCounted {
    fn emit(self) {
        info!(processes = self.live, "number of processes that share the store changed");
        #[expect(clippy::cast_precision_loss, reason = "there are few")]
        gauge!(INSTANCES).set(self.live as f64);
    }
}

/// The rate limit was divided differently than before.
pub(super) struct LimitDivided {
    pub(super) allowance: Allowance,
}

impl InternalEvent for LimitDivided {
    fn emit(self) {
        let Allowance { members, share, .. } = self.allowance;
        info!(members, share, "rate limit divided among the processes of the store");
        gauge!(LIMIT_MEMBERS).set(f64::from(members));
    }
}

/// Whether this process may send operations of its queues.
pub(super) struct LeaseHeld {
    pub(super) held: bool,
}

impl InternalEvent for LeaseHeld {
    fn emit(self) {
        gauge!(LEASE_HELD).set(u8::from(self.held));
    }
}

/// The lease of another process has expired: its queues can be claimed.
pub(super) struct QueuesTakenOver<'a> {
    pub(super) from: &'a str,
    pub(super) queues: u64,
}

impl InternalEvent for QueuesTakenOver<'_> {
    fn emit(self) {
        warn!(from = self.from, queues = self.queues, "lease of another process expired; its queues are taken over");
        counter!(TAKE_OVERS).increment(1);
        counter!(TAKEN_OVER).increment(self.queues);
    }
}

/// Other processes considered this one dead and took its queues.
pub(super) struct ProcessLeaseLost;

impl InternalEvent for ProcessLeaseLost {
    fn emit(self) {
        warn!("lease lost; restarting ownership");
        counter!(DISOWNED).increment(1);
    }
}

/// The connection for notifications of the other processes is up.
pub(super) struct ListenerConnected;

impl InternalEvent for ListenerConnected {
    fn emit(self) {
        info!("listening for notifications of the other processes");
    }
}

/// The connection for notifications of the other processes is down.
pub(super) struct ListenerDisconnected<'a> {
    pub(super) error: &'a str,
}

impl InternalEvent for ListenerDisconnected<'_> {
    fn emit(self) {
        warn!(
            error = self.error,
            "cannot listen for notifications of the other processes; changes are found by polling"
        );
        counter!(STORE_ERRORS, "what" => "listen", "why" => "lost").increment(1);
    }
}
