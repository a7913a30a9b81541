//! Port to the store of operations.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use guildhall_core::access::{Bounds, Owner, ScopeSet};
use guildhall_core::interaction::{ReceivedInteraction, TokenDigest};
use guildhall_core::lane::Lane;
use guildhall_core::operation::payload::Location;
use guildhall_core::operation::{
    Failure, FailureClass, ManagedKind, OperationId, OperationKind, OperationState, Progress, Queue, QueueKey,
};
use guildhall_core::time::UnixMs;
use guildhall_core::trace::TraceContext;
use guildhall_core::usage::{Usage, UsageBoundExceeded, UsageLimit, UsageScope};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{GuildFilter, GuildPage};
use crate::access::AuditRecord;
use crate::lease_guard::LeaseGuard;

/// Name of the number of dead letters among the depths of a store.
pub const DEAD_LETTERS: &str = "dead_letters";

/// Name of the number of dead events among the depths of a store.
pub const DEAD_EVENTS: &str = "dead_events";

/// Pending call to the store.
pub type StoreFuture<'a, T, E = StoreError> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>>;

/// Why a call to the store failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It is unreachable, full or busy. Nothing was changed, or that is unknown. A retry may help.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// Its data cannot be read. A retry does not help.
    #[error("the store contains data that cannot be read: {0}")]
    Corrupt(String),
}

/// Why operations were not accepted. None of the batch was stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The store failed. If the connection was lost, they may be stored nevertheless; a retry with the same idempotency
    /// key is safe.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A key of the batch was used before, for another payload.
    #[error("the idempotency key of operation {index} was used for another payload, by operation {id}")]
    KeyReused {
        /// Index in the batch, from 0.
        index: usize,
        /// The operation of the key.
        id: OperationId,
    },
    /// A queue is full.
    #[error("{queue:?} is full: it has {pending} unfinished operations, the maximum is {max}; retry later")]
    Full {
        /// The queue.
        queue: Queue,
        /// Number of unfinished operations.
        pending: u64,
        /// Maximum number.
        max: u64,
    },
    /// The share of the caller or its tenant is used up, or the store is full.
    #[error(transparent)]
    OverBound(#[from] UsageBoundExceeded),
    /// The guild belongs to another tenant.
    #[error("operation {index} is for a guild of another tenant")]
    ForeignGuild {
        /// Index in the batch, from 0.
        index: usize,
    },
    /// An operation that is referred to does not exist in this guild.
    #[error("operation {index} refers to operation {id}, which this guild does not have")]
    UnknownOperation {
        /// Index in the batch, from 0.
        index: usize,
        /// The operation that it refers to.
        id: OperationId,
    },
}

/// Makes a submission idempotent: a key within the scope of its caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdempotencyKey {
    /// Scope of the key.
    pub scope: Arc<str>,
    /// The key.
    pub key: String,
}

/// An operation to accept.
#[derive(Clone, Debug)]
pub struct NewOperation {
    /// Id of the operation.
    pub id: OperationId,
    /// Tenant of the operation. If it is empty, the tenant of its guild.
    pub tenant: Arc<str>,
    /// The queue that it joins, within its tenant.
    pub queue: QueueKey,
    /// Guild of the operation, if any.
    pub guild: Option<u64>,
    /// The id of the API key that submitted it; `admin` for the operator's, `handler:<name>` for a handler.
    pub caller: Arc<str>,
    /// Which channels it may use.
    pub bounds: Bounds,
    /// The scopes that it was accepted with.
    pub scopes: ScopeSet,
    /// Kind of the operation.
    pub kind: OperationKind,
    /// Its payload, as [`guildhall_core::operation::Payload`] writes it.
    pub payload: String,
    /// SHA-256 of kind, guild and payload.
    pub payload_hash: [u8; 32],
    /// How urgent it is.
    pub lane: Lane,
    /// Maximum number of attempts.
    pub max_attempts: u32,
    /// Earliest start. If this is later than `created_at`, the operation is scheduled, and joins its queue then.
    pub eligible_at: UnixMs,
    /// Why `eligible_at` is later than `created_at`, if it is.
    pub delayed_by: DelayedBy,
    /// Latest start.
    pub deadline_at: Option<UnixMs>,
    /// Deployment of the operation. Operations of one deployment never pass each other. `None` until deployments exist:
    /// they will set it, and the API does not show it before.
    pub deployment: Option<OperationId>,
    /// Its trace, and the span that submitted it.
    pub trace: Option<TraceContext>,
    /// For Discord's audit log.
    pub reason: Option<String>,
    /// Idempotency key of its caller, if any.
    pub idempotency: Option<IdempotencyKey>,
    /// Operations that its payload refers to. They are retained until it is finished.
    pub refers_to: Vec<OperationId>,
    /// The operation that this one redrives, if any.
    pub redrive_of: Option<OperationId>,
    /// Time of acceptance.
    pub created_at: UnixMs,
}

/// Why an operation is due later than it was accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DelayedBy {
    /// Its caller requested it.
    #[default]
    Caller,
    /// A policy, because its caller submits more than the policy allows at once.
    Policy,
}

/// Result for one operation of an accepted batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubmitResult {
    /// It is stored.
    Accepted {
        /// Its position in its queue; 0 if it is scheduled, because it has none yet.
        seq: u64,
        /// Its queue.
        queue: Queue,
        /// `Queued` or `Scheduled`.
        state: OperationState,
    },
    /// Its key was used before for the same payload: the first operation. It may be deleted already.
    Existing {
        /// Id of the first operation.
        id: OperationId,
        /// Its state.
        state: OperationState,
        /// Its result, as JSON.
        result: Option<String>,
    },
}

/// Increases with every owner of a queue. Writes with an older fence change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Fence(pub u64);

/// Which queues to claim.
#[derive(Clone, Debug)]
pub enum ClaimFrom {
    /// Due queues without an owner, the longest due first.
    Due {
        /// The current time.
        now: UnixMs,
        /// Maximum number.
        limit: usize,
    },
    /// These, due or not.
    Queues(Vec<Queue>),
}

/// A claimed queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The queue.
    pub queue: Queue,
    /// Fence for every write.
    pub fence: Fence,
    /// Whether it is paused. A paused queue is not claimed as due.
    pub paused: bool,
}

/// A page of unfinished operations of a queue.
#[derive(Clone, Debug, Default)]
pub struct OperationPage {
    /// The operations, in order, without scheduled ones.
    pub operations: Vec<StoredOperation>,
    /// Those that cannot be read, in order. They count towards the limit.
    pub unreadable: Vec<UnreadableOperation>,
    /// When the first scheduled operation of the queue is due.
    pub scheduled: Option<UnixMs>,
}

/// An unfinished operation whose row cannot be read: it is damaged, or a newer version wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableOperation {
    /// Id of the operation.
    pub id: OperationId,
    /// Its guild.
    pub guild: Option<u64>,
    /// Its position in its queue.
    pub seq: u64,
    /// Number of attempts, if that can be read.
    pub attempts: u32,
    /// Number of delays, if that can be read.
    pub delays: u32,
    /// `false` only if it is certain that no call was sent.
    pub may_have_been_sent: bool,
    /// What cannot be read.
    pub problem: String,
}

impl UnreadableOperation {
    /// Its final state and failure, so that the rest of its queue continues.
    #[must_use]
    pub fn final_state(&self) -> (OperationState, Failure) {
        let problem = &self.problem;
        let failure = |advice: &str| {
            let message = format!("its row in the store cannot be read, so it was set aside: {problem}. {advice}");
            Failure::new(FailureClass::Poison, message)
        };
        if self.may_have_been_sent {
            let advice =
                "Its call may have been sent: check in Discord whether it took effect, and submit it again if not";
            (OperationState::NeedsReview, failure(advice))
        } else {
            let advice =
                "If a newer version wrote it, redrive it with that version; else submit it again and discard this";
            (OperationState::Dead, failure(advice))
        }
    }
}

/// An unfinished operation, as its guild reads it.
#[derive(Clone, Debug)]
pub struct StoredOperation {
    /// What was accepted. `idempotency` and `refers_to` are left empty, and `queue` is the existing one.
    pub operation: NewOperation,
    /// Its position in its queue; 0 if it is scheduled, because it has none yet.
    pub seq: u64,
    /// Its state.
    pub state: OperationState,
    /// Number of attempts.
    pub attempts: u32,
    /// Number of delays.
    pub delays: u32,
    /// Whether others may pass it.
    pub parked: bool,
    /// When a call was first about to be sent, unless it is certain that none had an effect.
    pub intent: Option<UnixMs>,
    /// Completed steps of an operation with several calls.
    pub progress: Progress,
    /// Why it waits, or the last failure.
    pub error: Option<Failure>,
    /// Set if an attempt may have taken effect.
    pub unknown_outcome: Option<UnknownOutcome>,
}

/// An attempt at an operation may have taken effect. Stored until the operation ends, so that it never ends `dead` unchecked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnknownOutcome {
    /// When the first such attempt started.
    pub since: UnixMs,
    /// When the check of the outcome became due, while there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_since: Option<UnixMs>,
    /// Number of checks of the outcome that failed.
    #[serde(default)]
    pub failed_checks: u32,
    /// Set if it is not sent again: its failure if the check finds no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_with: Option<Failure>,
    /// Set if it was unfinished in a store that was restored from a backup: it may have been executed since that backup.
    /// Nothing of it is sent before its outcome has been checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored: Option<RestoredOperation>,
}

/// What becomes of an operation of a restored store if the check finds no effect of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestoredOperation {
    /// It was due before the restore: it is not sent, because its effect may have been undone since.
    Due,
    /// It was scheduled for a later time: it is sent.
    Scheduled,
}

impl UnknownOutcome {
    /// The outcome of an attempt that started at `since` is unknown.
    #[must_use]
    pub const fn new(since: UnixMs) -> Self {
        Self { since, checked_since: None, failed_checks: 0, ends_with: None, restored: None }
    }
}

/// Change of an intent. An intent says that a call may have been sent. It is stored until the operation is finished,
/// with the time of the first such call, unless it is certain that no call had an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntentUpdate {
    /// It does not change.
    Unchanged,
    /// A call is about to be sent for the first time. An existing intent stays as it is.
    Open(UnixMs),
    /// No call had an effect.
    Close,
}

/// The progress of an operation, which replaces the stored one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgressUpdate {
    /// As JSON.
    pub json: String,
    /// How many bytes longer it is than the stored one.
    pub added_bytes: usize,
}

/// One attempt, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Attempt {
    /// Its number, from 1. A delay is not an attempt, and has the number of the attempt before it.
    pub n: u32,
    /// Time of the start.
    pub started_at: UnixMs,
    /// Time of the end.
    pub ended_at: UnixMs,
    /// The status of Discord's response, if there was one.
    pub status: Option<u16>,
    /// Class of the outcome: `succeeded`, or the name of a [`guildhall_core::operation::FailureClass`].
    pub class: String,
    /// The message for people.
    pub detail: Option<String>,
}

/// A Discord object that is bound to a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Binding {
    /// Kind of the object.
    pub kind: ManagedKind,
    /// Its key in its guild.
    pub key: String,
    /// Discord id of the object.
    pub discord_id: u64,
    /// The channel of a message.
    pub channel: Option<u64>,
    /// How the key was bound: `created` or `adopted`.
    pub origin: &'static str,
}

/// An update of an operation. It is stored completely, or not at all.
#[derive(Clone, Debug)]
pub struct OperationUpdate {
    /// Its queue.
    pub queue: Queue,
    /// Fence of the queue.
    pub fence: Fence,
    /// Id of the operation. A finished operation is not changed.
    pub id: OperationId,
    /// Its guild, for the bindings.
    pub guild: Option<u64>,
    /// New state. `Dead` also creates a dead letter; a final state starts the retention of its idempotency key.
    pub state: OperationState,
    /// Number of attempts.
    pub attempts: u32,
    /// Number of delays.
    pub delays: u32,
    /// Time of the next start.
    pub eligible_at: UnixMs,
    /// Whether others may pass it.
    pub parked: bool,
    /// Why it waits, or the failure.
    pub error: Option<Failure>,
    /// Its result, as JSON.
    pub result: Option<String>,
    /// The object that it created, for operations that refer to this one.
    pub created: Option<u64>,
    /// Change of the intent.
    pub intent: IntentUpdate,
    /// Completed steps, if they changed.
    pub progress: Option<ProgressUpdate>,
    /// An attempt that ended.
    pub attempt: Option<Attempt>,
    /// State of the unknown outcome, if it changed.
    pub unknown_outcome: Option<UnknownOutcome>,
    /// Keys to bind to objects. An existing key is bound to the new object.
    pub bind: Vec<Binding>,
    /// Objects that no longer exist.
    pub unbind: Vec<(ManagedKind, u64)>,
    /// The current time.
    pub at: UnixMs,
}

/// Result of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateResult {
    /// It is stored.
    Done,
    /// The queue belongs to another process. Stop.
    Fenced,
    /// The operation is finished: it was cancelled.
    Finished,
}

/// A reference to resolve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnresolvedReference {
    /// A managed object.
    Key(ManagedKind, String),
    /// The object that this operation created.
    Operation(OperationId),
}

/// Result for an [`UnresolvedReference`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolvedReference {
    /// An existing object.
    Object {
        /// Its id.
        id: u64,
        /// The channel of a message.
        channel: Option<u64>,
    },
    /// The operation is not finished.
    Pending,
    /// There is no such key or operation, or it created nothing. The state of the operation, if it exists.
    Missing(Option<OperationState>),
}

/// What to pause or resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseTarget {
    /// Every queue.
    All,
    /// One queue.
    Queue(Queue),
}

/// What a scheduled or queued operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// The time that its caller requested.
    Delay,
    /// The time that a policy set.
    Policy,
    /// This scheduled operation, which it refers to.
    Scheduled(OperationId),
    /// This operation, which is before it in its queue.
    Behind(OperationId),
    /// Its guild is paused.
    Paused,
    /// All queues are paused.
    AllPaused,
    /// A process to claim its queue.
    Owner,
    /// Nothing: it is next in its queue.
    NextInQueue,
}

/// All data of one operation, for people.
#[derive(Clone, Debug)]
pub struct OperationDetails {
    /// As its guild reads it, with `idempotency` filled in.
    pub stored: StoredOperation,
    /// Its result, as JSON.
    pub result: Option<String>,
    /// Time of the last change.
    pub updated_at: UnixMs,
    /// Time at which it finished.
    pub finished_at: Option<UnixMs>,
    /// Its attempts, in order. Empty in lists.
    pub attempts: Vec<Attempt>,
    /// What it waits for, if it is scheduled or queued. Unknown in streams.
    pub waits_for: Option<WaitReason>,
}

/// Selects operations. The newest come first.
#[derive(Clone, Debug, Default)]
pub struct OperationFilter {
    /// Tenant of the operations.
    pub tenant: Option<Arc<str>>,
    /// Only of these guilds.
    pub guilds: Option<Vec<u64>>,
    /// In this state.
    pub state: Option<OperationState>,
    /// Of this kind.
    pub kind: Option<OperationKind>,
    /// Only parked ones, or only others.
    pub parked: Option<bool>,
    /// Accepted at this time or later.
    pub created_after: Option<UnixMs>,
    /// Accepted before this time.
    pub created_before: Option<UnixMs>,
    /// Only operations accepted before this one.
    pub before: Option<OperationId>,
    /// Maximum number.
    pub limit: usize,
}

/// An operation that failed permanently.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// Id of the operation, and of its dead letter.
    pub id: OperationId,
    /// Tenant of the operation.
    pub tenant: Arc<str>,
    /// Queue of the operation.
    pub queue: Queue,
    /// Guild of the operation.
    pub guild: Option<u64>,
    /// The id of the API key that submitted it.
    pub caller: Arc<str>,
    /// Which channels it may use.
    pub bounds: Bounds,
    /// The scopes that it was accepted with.
    pub scopes: ScopeSet,
    /// Kind of the operation.
    pub kind: OperationKind,
    /// Its payload.
    pub payload: String,
    /// Why it failed.
    pub error: Failure,
    /// Number of attempts.
    pub attempts: u32,
    /// For Discord's audit log.
    pub reason: Option<String>,
    /// Time of acceptance.
    pub created_at: UnixMs,
    /// Time of the failure.
    pub died_at: UnixMs,
    /// The operation that it redrove, if any.
    pub redrive_of: Option<OperationId>,
    /// The operation that redrives it, if any.
    pub redriven_as: Option<OperationId>,
}

/// Selects dead letters. The newest come first.
#[derive(Clone, Debug, Default)]
pub struct DeadLetterFilter {
    /// Tenant of the dead letters.
    pub tenant: Option<Arc<str>>,
    /// Only this one.
    pub id: Option<OperationId>,
    /// Only of these guilds.
    pub guilds: Option<Vec<u64>>,
    /// Of this kind.
    pub kind: Option<OperationKind>,
    /// Of this class of failure, by its name.
    pub class: Option<String>,
    /// With a failure message that contains this text, ignoring case.
    pub message_contains: Option<String>,
    /// Failed at this time or later.
    pub died_after: Option<UnixMs>,
    /// Failed before this time.
    pub died_before: Option<UnixMs>,
    /// Only those that are redriven, or only others.
    pub redriven: Option<bool>,
    /// Only those before this one.
    pub before: Option<OperationId>,
    /// Maximum number.
    pub limit: usize,
}

/// A process that shares the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Id of the instance.
    pub id: Uuid,
    /// Name of the instance, for people.
    pub name: String,
    /// Whether it is this process.
    pub is_self: bool,
    /// Time of the start.
    pub started_at: UnixMs,
    /// Time since its last heartbeat.
    pub heartbeat_age: Duration,
    /// Remaining time of its lease without another heartbeat; `None` if it is the only process and needs no lease.
    pub lease_remaining: Option<Duration>,
    /// Whether it has just started, and claims no queues until it can send.
    pub starting: bool,
    /// Whether it is shutting down.
    pub stopping: bool,
    /// Number of its queues.
    pub queues: u64,
    /// The highest fence of its queues.
    pub highest_fence: Option<u64>,
    /// Its shards, in order.
    pub shards: Vec<u32>,
}

/// Retention of finished data.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Operations that succeeded or were cancelled.
    pub completed: Duration,
    /// Operations that are dead.
    pub failed: Duration,
    /// Dead letters, and operations that need review.
    pub dead_letters: Duration,
    /// Idempotency keys, from the end of their operation.
    pub idempotency: Duration,
}

/// Number of rows that one sweep deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepSummary {
    /// Operations.
    pub operations: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Idempotency keys.
    pub keys: u64,
    /// Expired state entries.
    pub state: u64,
    /// Recorded interactions whose token had expired.
    pub interactions: u64,
    /// Recorded interactions that were deleted before they expired, because there were too many.
    pub interactions_dropped: u64,
}

/// Usage of a scope, and its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeUsage {
    /// The scope.
    pub scope: UsageScope,
    /// Its usage.
    pub used: Usage,
    /// Its limit.
    pub limit: UsageLimit,
}

/// Usage of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Usage by scope, in order of their names.
    pub scopes: Vec<ScopeUsage>,
    /// Usage of the database file, if its size is limited.
    pub file: Option<FileUsage>,
}

/// Usage of a file with limited size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileUsage {
    /// Bytes in use.
    pub used: u64,
    /// Above this, no new operations are accepted.
    pub accepts_until: u64,
    /// Maximum size in bytes.
    pub max_bytes: u64,
}

/// Stores operations. What it has stored survives a `kill -9` of this process, and a power failure if the disks keep
/// their guarantees.
pub trait OperationStore: Send + Sync {
    /// The same store for one request: the first change through it also stores this audit record, in the same commit.
    fn with_audit(self: Arc<Self>, record: AuditRecord) -> Arc<dyn OperationStore>;

    /// The same store restricted to a tenant.
    fn for_tenant(self: Arc<Self>, tenant: Arc<str>) -> Arc<dyn OperationStore>;

    /// Stores a batch, completely or not at all. Operations whose key was used before for the same payload are not
    /// stored again.
    fn submit(&self, batch: Vec<NewOperation>) -> StoreFuture<'_, Vec<SubmitResult>, SubmitError>;

    /// Claims queues without an owner that are not assigned to another process. Others are not in the result. Claims of
    /// a lost response are released automatically.
    fn claim(&self, from: ClaimFrom) -> StoreFuture<'_, Vec<Claim>>;

    /// Lease of this process. It ends when the process loses its membership.
    fn lease(&self) -> LeaseGuard;

    /// Lease of a queue that was claimed with this fence. It ends with the lease of the process, and when another
    /// process owns the queue. In a store with a single process it never ends.
    fn queue_lease(&self, queue: Queue, fence: Fence) -> LeaseGuard;

    /// Those of these queues that are assigned to another process.
    fn assigned_elsewhere(&self, queues: &[Queue]) -> Vec<Queue>;

    /// Releases a queue: it is due again when its next operation is. `false` if another process owned it already.
    fn release(&self, queue: Queue, fence: Fence) -> StoreFuture<'_, bool>;

    /// Unfinished operations of a queue in order, without scheduled ones, after a position.
    fn load(&self, queue: Queue, after: u64, limit: usize) -> StoreFuture<'_, OperationPage>;

    /// Moves at most `limit` due scheduled operations into their queue: by due time, then in order of acceptance, and
    /// none before an operation that it refers to. Returns when the next one is due.
    ///
    /// Any process may call this at any time. Scheduled operations are not in the memory of a guild, so it needs no
    /// fence.
    fn join_due(&self, queue: Queue, now: UnixMs, limit: usize) -> StoreFuture<'_, Option<UnixMs>>;

    /// Number of scheduled operations of a queue. Counts up to `limit`.
    fn count_scheduled(&self, queue: Queue, limit: usize) -> StoreFuture<'_, u64>;

    /// Stores updates, all or none. Returns one result each. An update with a stale fence or of a finished operation is
    /// not stored.
    fn record(&self, changes: Vec<OperationUpdate>) -> StoreFuture<'_, Vec<UpdateResult>>;

    /// Resolves references. Returns one result each.
    fn resolve(
        &self,
        guild: Option<u64>,
        references: Vec<UnresolvedReference>,
    ) -> StoreFuture<'_, Vec<ResolvedReference>>;

    /// Which of these objects are bound to a key or were created by an operation of any guild or user: to tell our own
    /// objects from others.
    fn find_bound(&self, kind: ManagedKind, ids: Vec<u64>) -> StoreFuture<'_, Vec<u64>>;

    /// When the next queue without an owner is due.
    fn next_due(&self) -> StoreFuture<'_, Option<UnixMs>>;

    /// Makes at most `limit` queues due that have no owner and in which an operation waits for the gate
    /// ([`Failure::held_by`]). Returns their number.
    fn release_held(&self, now: UnixMs, limit: usize) -> StoreFuture<'_, usize>;

    /// One operation, with its attempts. The result of a deleted operation is available only through
    /// [`OperationStore::submit`] with its key.
    fn get(&self, id: OperationId) -> StoreFuture<'_, Option<OperationDetails>>;

    /// Operations, the newest first.
    fn list(&self, filter: OperationFilter) -> StoreFuture<'_, Vec<OperationDetails>>;

    /// Cancels an operation, if no call of it can be in flight. Returns its state, and the queue to notify.
    fn cancel(&self, id: OperationId, now: UnixMs) -> StoreFuture<'_, Option<(OperationState, Queue)>>;

    /// Makes a waiting operation due now. Returns its state, and the queue to notify. A scheduled one joins its queue,
    /// unless an operation that it refers to is scheduled.
    fn expedite(&self, id: OperationId, now: UnixMs) -> StoreFuture<'_, Option<(OperationState, Queue)>>;

    /// Dead letters, the newest first.
    fn dead_letters(&self, filter: DeadLetterFilter) -> StoreFuture<'_, Vec<DeadLetter>>;

    /// Accepts operations that redrive dead letters or operations that need review, and records them there. Skips those
    /// that are already redriven. Returns the accepted operations.
    fn redrive(&self, batch: Vec<NewOperation>) -> StoreFuture<'_, Vec<OperationId>, SubmitError>;

    /// Deletes dead letters, the oldest first. Returns their number.
    fn discard(&self, filter: DeadLetterFilter) -> StoreFuture<'_, u64>;

    /// Pauses or resumes queues. A paused queue is not claimed as due.
    fn pause(&self, target: PauseTarget, paused: bool) -> StoreFuture<'_, ()>;

    /// Guilds that have a name, or that an operation or a pause has named. Rows of all tenants are read, so the filter must
    /// name the tenant of the caller.
    fn guilds(&self, filter: GuildFilter) -> StoreFuture<'_, GuildPage>;

    /// Tenant of a guild, if it is known.
    fn tenant(&self, guild: u64) -> StoreFuture<'_, Option<Arc<str>>>;

    /// Owners of these locations, as far as they are known. Returns one result each. For an unknown channel or webhook,
    /// ask Discord; an unknown guild belongs to the default tenant.
    fn owners(&self, locations: Vec<Location>) -> StoreFuture<'_, Vec<Option<Owner>>>;

    /// Stores the guild of a channel or webhook, or that it has none, and returns its owner. Discord never moves one to
    /// another guild.
    fn record_location(&self, location: Location, guild: Option<u64>) -> StoreFuture<'_, Owner>;

    /// The recorded interactions with these tokens. Expired ones may be among them.
    fn received_interactions(&self, tokens: Vec<TokenDigest>) -> StoreFuture<'_, Vec<ReceivedInteraction>>;

    /// Which queues are paused: all, and which ones individually.
    fn paused(&self) -> StoreFuture<'_, (bool, Vec<Queue>)>;

    /// The processes that share the store, the oldest first.
    fn instances(&self) -> StoreFuture<'_, Vec<Instance>>;

    /// Number of operations in each state that is not final, of [dead letters](DEAD_LETTERS) that were not redriven, and of
    /// [dead events](DEAD_EVENTS), by name.
    fn depths(&self) -> StoreFuture<'_, BTreeMap<&'static str, u64>>;

    /// Usage of these scopes, in their order; without a list, of all scopes with usage, up to a limit.
    fn usage(&self, scopes: Option<Vec<UsageScope>>) -> StoreFuture<'_, StoreUsage>;

    /// Deletes expired data, a small batch of each kind. Call it again while it deletes something.
    fn sweep(&self, retention: Retention, now: UnixMs) -> StoreFuture<'_, SweepSummary>;

    /// A value that survives the process.
    fn state(&self, key: &str) -> StoreFuture<'_, Option<String>>;

    /// Stores a value; `None` deletes it.
    fn set_state(&self, key: &str, value: Option<String>, expires_at: Option<UnixMs>) -> StoreFuture<'_, ()>;
}
