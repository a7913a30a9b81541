//! What there is to say about the store.

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
    pub(super) place: &'a str,
    /// How many queues an earlier process had left behind.
    pub(super) freed: u64,
}

impl InternalEvent for StoreAttached<'_> {
    fn emit(self) {
        info!(store = self.place, freed = self.freed, "the store is open");
    }
}

/// The store has migrations of a newer version, which declares that this one can work with them.
pub(super) struct NewerStoreAccepted<'a> {
    pub(super) migrations: &'a str,
}

impl InternalEvent for NewerStoreAccepted<'_> {
    fn emit(self) {
        info!(migrations = self.migrations, "the store has compatible migrations of a newer version");
    }
}

/// Operations came from another server, and have new numbers for whoever follows them.
pub(super) struct ChangeSeqsRepaired {
    pub(super) operations: u64,
}

impl InternalEvent for ChangeSeqsRepaired {
    fn emit(self) {
        if self.operations > 0 {
            warn!(
                operations = self.operations,
                "operations were copied from another server; whoever followed them there is told of a gap"
            );
        }
    }
}

/// Whether the store can be written to.
pub(super) struct StoreHealthChanged {
    pub(super) up: bool,
}

impl InternalEvent for StoreHealthChanged {
    fn emit(self) {
        gauge!(STORE_UP).set(u8::from(self.up));
    }
}

/// Whether PostgreSQL itself keeps tenants apart.
pub(super) struct RowSecurityChecked<'a> {
    /// The role that does it, if it does.
    pub(super) role: Option<&'a str>,
    /// Why it does not.
    pub(super) why: &'a str,
}

impl InternalEvent for RowSecurityChecked<'_> {
    fn emit(self) {
        match self.role {
            Some(role) => info!(role, "PostgreSQL keeps callers to the rows of their tenant"),
            None => warn!(why = self.why, "queries alone keep callers to the rows of their tenant, not PostgreSQL"),
        }
        gauge!(STORE_ROW_SECURITY).set(u8::from(self.role.is_some()));
    }
}

/// A submission was refused, since it would pass a bound on what is stored.
pub(super) struct SubmissionOverLimit<'a> {
    pub(super) exceeded: &'a UsageBoundExceeded,
    pub(super) caller: &'a str,
    pub(super) tenant: &'a str,
}

impl InternalEvent for SubmissionOverLimit<'_> {
    fn emit(self) {
        let UsageBoundExceeded { bound, used, more, most } = self.exceeded;
        info!(
            bound = bound.name(),
            setting = bound.setting(),
            used,
            more,
            most,
            caller = self.caller,
            tenant = self.tenant,
            "submission refused: store bound reached"
        );
        counter!(STORE_REFUSED, "bound" => bound.name()).increment(1);
    }
}

/// How large the SQLite file may grow.
pub(super) struct FileBoundSet {
    pub(super) bound: FileBound,
}

impl InternalEvent for FileBoundSet {
    fn emit(self) {
        let FileBound { bytes, derived } = self.bound;
        info!(max_bytes = bytes, derived_from_free_disk = derived, "SQLite file bound set");
        #[expect(clippy::cast_precision_loss, reason = "a size for people")]
        gauge!(STORE_FILE_BOUND).set(bytes as f64);
    }
}

/// The SQLite file was measured.
pub(super) struct FileMeasured {
    pub(super) used: u64,
    pub(super) most: u64,
}

impl InternalEvent for FileMeasured {
    fn emit(self) {
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        gauge!(STORE_USAGE_RATIO, "by" => "file").set(self.used as f64 / self.most.max(1) as f64);
    }
}

/// A batch of writes was committed.
pub(super) struct BatchCommitted {
    pub(super) requests: usize,
    pub(super) took: Duration,
}

impl InternalEvent for BatchCommitted {
    fn emit(self) {
        counter!(STORE_BATCHES).increment(1);
        #[expect(clippy::cast_precision_loss, reason = "a batch is small")]
        histogram!(STORE_BATCH_REQUESTS).record(self.requests as f64);
        histogram!(STORE_BATCH_SECONDS).record(self.took);
    }
}

/// A batch of writes, a read or a connection failed.
pub(super) struct StoreFailed<'a> {
    /// What was tried.
    pub(super) what: &'static str,
    /// A short word for why.
    pub(super) why: &'static str,
    /// Why, for people.
    pub(super) says: &'a str,
}

impl InternalEvent for StoreFailed<'_> {
    fn emit(self) {
        warn!(what = self.what, why = self.why, error = self.says, "the store failed");
        counter!(STORE_ERRORS, "what" => self.what, "why" => self.why).increment(1);
    }
}

/// Queues are this process's own from now on.
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

/// Writes for queues that belong to another process changed nothing.
pub(super) struct WritesFenced {
    pub(super) writes: usize,
}

impl InternalEvent for WritesFenced {
    fn emit(self) {
        if self.writes > 0 {
            warn!(writes = self.writes, "writes changed nothing: their queues belong to another process now");
            counter!(FENCED_WRITES).increment(self.writes as u64);
        }
    }
}

/// So many processes share the store.
pub(super) struct InstancesCounted {
    pub(super) live: usize,
}

impl InternalEvent for InstancesCounted {
    fn emit(self) {
        info!(processes = self.live, "the processes that share the store have changed");
        #[expect(clippy::cast_precision_loss, reason = "there are few")]
        gauge!(INSTANCES).set(self.live as f64);
    }
}

/// The limit is divided differently than before.
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

/// Whether this process may send for its queues.
pub(super) struct LeaseHeld {
    pub(super) held: bool,
}

impl InternalEvent for LeaseHeld {
    fn emit(self) {
        gauge!(LEASE_HELD).set(u8::from(self.held));
    }
}

/// A process has not said for too long that it lives: its queues are anybody's.
pub(super) struct QueuesTakenOver<'a> {
    pub(super) from: &'a str,
    pub(super) queues: u64,
}

impl InternalEvent for QueuesTakenOver<'_> {
    fn emit(self) {
        warn!(from = self.from, queues = self.queues, "a process is gone; its queues are taken over");
        counter!(TAKE_OVERS).increment(1);
        counter!(TAKEN_OVER).increment(self.queues);
    }
}

/// Others have taken this process for dead.
pub(super) struct ProcessLeaseLost;

impl InternalEvent for ProcessLeaseLost {
    fn emit(self) {
        warn!("others took this process for dead and have its queues; it begins anew");
        counter!(DISOWNED).increment(1);
    }
}

/// What the other processes say is heard.
pub(super) struct ListenerConnected;

impl InternalEvent for ListenerConnected {
    fn emit(self) {
        info!("listening to the other processes of this store");
    }
}

/// What the other processes say is not heard.
pub(super) struct ListenerDisconnected<'a> {
    pub(super) error: &'a str,
}

impl InternalEvent for ListenerDisconnected<'_> {
    fn emit(self) {
        warn!(
            error = self.error,
            "cannot listen to the other processes of this store; what they did is found by polling"
        );
        counter!(STORE_ERRORS, "what" => "listen", "why" => "lost").increment(1);
    }
}
