//! Log messages and metrics of the store.

use std::time::Duration;

use guildhall_actors::ports::SubmitError;
use guildhall_core::failure_streak::{FailureSummary, Recovery};
use guildhall_core::{limit::division::Allowance, usage::UsageBoundExceeded};
use tracing::{debug, info, warn};

use super::FileBound;
use crate::{
    events::{counter, event, gauge, histogram},
    metrics::{
        CLAIMS, DISOWNED, FENCED_WRITES, INSTANCES, LEASE_HELD, LIMIT_MEMBERS, STORE_BATCH_REQUESTS,
        STORE_BATCH_SECONDS, STORE_BATCHES, STORE_ERRORS, STORE_FILE_BOUND, STORE_REFUSED, STORE_ROW_SECURITY,
        STORE_UP, STORE_USAGE_RATIO, TAKE_OVERS, TAKEN_OVER,
    },
};

event! {
    /// The store is open: this process may write.
    pub(super) struct StoreAttached<'a> {
        url: &'a str,
        /// Number of queues that an earlier process left behind.
        freed: u64,
    }
    info!(store = url, freed, "store opened");
}

event! {
    /// The store has migrations of a newer version, which declares them compatible with this version.
    pub(super) struct NewerStoreAccepted<'a> { migrations: &'a str }
    info!(migrations, "store has compatible migrations of a newer version");
}

event! {
    /// Operations were copied from another server, and got new change sequence numbers.
    pub(super) struct ChangeSeqsRepaired { operations: u64 }
    if operations > 0 {
        warn!(
            operations,
            "operations were copied from another server; change feeds that followed them there report a gap"
        );
    }
}

event! {
    /// The fallback text of a deferred interaction was not accepted.
    pub(super) struct FallbackRefused<'a> { error: &'a SubmitError }
    // The same failure again: the text of a setting has changed since.
    if !matches!(error, SubmitError::KeyReused { .. }) {
        warn!(%error, "fallback of a deferred interaction not accepted; its user waits until the token expires");
    }
}

event! {
    /// Whether the store accepts writes.
    pub(super) struct StoreHealthChanged { up: bool }
    gauge!(STORE_UP).set(u8::from(up));
}

event! {
    /// Whether PostgreSQL row-level security isolates tenants.
    pub(super) struct RowSecurityChecked<'a> {
        /// The role that isolates them, if any.
        role: Option<&'a str>,
        /// Why row-level security is off.
        reason: &'a str,
    }
    match role {
        Some(role) => info!(role, "PostgreSQL row-level security is on; tenants are isolated by the database"),
        None => warn!(why = reason, "PostgreSQL row-level security is off; tenants are isolated by queries only"),
    }
    gauge!(STORE_ROW_SECURITY).set(u8::from(role.is_some()));
}

event! {
    /// A submission was refused because it would exceed a storage limit.
    pub(super) struct SubmissionOverLimit<'a> { exceeded: &'a UsageBoundExceeded, caller: &'a str, tenant: &'a str }
    let UsageBoundExceeded { bound, used, more, max } = exceeded;
    info!(
        bound = bound.name(), setting = bound.setting(), used, more, most = max, caller, tenant,
        "submission refused: store bound reached"
    );
    counter!(STORE_REFUSED, "bound" => bound.name()).increment(1);
}

event! {
    /// Maximum size of the SQLite file.
    pub(super) struct FileBoundSet { bound: FileBound }
    let FileBound { bytes, derive_bound } = bound;
    info!(max_bytes = bytes, derived_from_free_disk = derive_bound, "SQLite file bound set");
    gauge!(STORE_FILE_BOUND).set(bytes as f64);
}

event! {
    /// The SQLite file was measured.
    pub(super) struct FileMeasured { used: u64, max_bytes: u64 }
    gauge!(STORE_USAGE_RATIO, "by" => "file").set(used as f64 / max_bytes.max(1) as f64);
}

event! {
    /// A batch of writes was committed.
    pub(super) struct BatchCommitted { requests: usize, elapsed: Duration }
    counter!(STORE_BATCHES).increment(1);
    histogram!(STORE_BATCH_REQUESTS).record(requests as f64);
    histogram!(STORE_BATCH_SECONDS).record(elapsed);
}

event! {
    /// A batch of writes, a read or a connection failed.
    pub(super) struct StoreFailed<'a> {
        /// The action that failed.
        action: &'static str,
        /// Error class, for metrics.
        class: &'static str,
        /// Error message.
        message: &'a str,
        /// What to log, if a line is due.
        summary: Option<FailureSummary>,
    }
    match summary {
        Some(summary) => {
            let (failures, failing_for_s) = summary.repeated();
            warn!(what = action, why = class, error = message, failures, failing_for_s, "store access failed");
        }
        None => debug!(what = action, why = class, error = message, "store access failed"),
    }
    counter!(STORE_ERRORS, "what" => action, "why" => class).increment(1);
}

event! {
    /// Everything that could not access the store can again.
    pub(super) struct StoreRecovered { recovery: Recovery }
    let Recovery { failures, failed_for } = recovery;
    info!(failures, failed_for_s = failed_for.as_secs(), "store accessible again");
}

event! {
    /// This process claimed queues.
    pub(super) struct QueuesClaimed { queues: usize }
    if queues > 0 {
        counter!(CLAIMS).increment(queues as u64);
    }
}

event! {
    /// Writes were rejected because their queues belong to another process.
    pub(super) struct WritesFenced { writes: usize }
    if writes > 0 {
        warn!(writes, "writes rejected: another process owns their queues");
        counter!(FENCED_WRITES).increment(writes as u64);
    }
}

event! {
    /// The number of processes that share the store.
    pub(super) struct InstancesCounted { live: usize }
    info!(processes = live, "number of processes that share the store changed");
    gauge!(INSTANCES).set(live as f64);
}

event! {
    /// The rate limit was divided differently than before.
    pub(super) struct LimitDivided { allowance: Allowance }
    let Allowance { members, share, .. } = allowance;
    info!(members, share, "rate limit divided among the processes of the store");
    gauge!(LIMIT_MEMBERS).set(f64::from(members));
}

event! {
    /// Whether this process may send operations of its queues.
    pub(super) struct LeaseHeld { held: bool }
    gauge!(LEASE_HELD).set(u8::from(held));
}

event! {
    /// The lease of another process has expired: its queues can be claimed.
    pub(super) struct QueuesTakenOver<'a> { from: &'a str, queues: u64 }
    warn!(from, queues, "lease of another process expired; its queues are taken over");
    counter!(TAKE_OVERS).increment(1);
    counter!(TAKEN_OVER).increment(queues);
}

event! {
    /// Other processes considered this one dead and took its queues.
    pub(super) struct ProcessLeaseLost;
    warn!("lease lost; restarting ownership");
    counter!(DISOWNED).increment(1);
}

event! {
    /// The connection for notifications of the other processes is up.
    pub(super) struct ListenerConnected;
    info!("listening for notifications of the other processes");
}
