//! The port to where operations are kept.

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

use crate::access::AuditRecord;
use crate::lease_guard::LeaseGuard;

/// A call to the store under way.
pub type StoreFuture<'a, T, E = StoreError> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>>;

/// Why the store did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It cannot be reached, is full or is busy: nothing was changed, or nobody knows. Trying again may help.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// What it holds cannot be read. Trying again does not help.
    #[error("the store holds something that cannot be read: {0}")]
    Corrupt(String),
}

/// Why operations were not accepted. Nothing of the batch was kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The store could not keep them. If the connection broke in the middle they may have been kept all the same; the same
    /// idempotency key finds that out.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A key of the batch was used before, for something else.
    #[error("the idempotency key of operation {index} was used for another payload, by operation {id}")]
    KeyReused {
        /// Which of the batch, from 0.
        index: usize,
        /// Which operation the key belongs to.
        id: OperationId,
    },
    /// There is no room in a queue.
    #[error("{queue:?} holds {pending} operations that are not done, and takes no more than {most}")]
    Full {
        /// Which.
        queue: Queue,
        /// How many it holds.
        pending: u64,
        /// How many it may hold.
        most: u64,
    },
    /// The share of the caller or its tenant is full, or the store is.
    #[error(transparent)]
    OverBound(#[from] UsageBoundExceeded),
    /// The guild belongs to another tenant than the caller.
    #[error("operation {index} is about a guild that belongs to somebody else")]
    NotYours {
        /// Which of the batch, from 0.
        index: usize,
    },
    /// An operation that is referred to does not exist in this guild.
    #[error("operation {index} refers to operation {id}, which this guild does not have")]
    NoSuchOperation {
        /// Which of the batch, from 0.
        index: usize,
        /// What it refers to.
        id: OperationId,
    },
}

/// Says once what was accepted: a caller's key, within the caller's own scope.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdempotencyKey {
    /// Whose key.
    pub scope: Arc<str>,
    /// The key.
    pub key: String,
}

/// An operation that is about to be accepted.
#[derive(Clone, Debug)]
pub struct NewOperation {
    /// What it is called.
    pub id: OperationId,
    /// Whose it is. If that is nobody, it is whose its guild is.
    pub tenant: Arc<str>,
    /// The queue that it joins, within its tenant.
    pub queue: QueueKey,
    /// Which guild it is about, if any.
    pub guild: Option<u64>,
    /// The id of the API key that submitted it; `admin` for the operator's, `handler:<name>` for a handler.
    pub caller: Arc<str>,
    /// Whose channels it may name.
    pub bounds: Bounds,
    /// The scopes that it was accepted with.
    pub scopes: ScopeSet,
    /// What it does.
    pub kind: OperationKind,
    /// Its payload, as [`guildhall_core::operation::Payload`] writes it.
    pub payload: String,
    /// Of kind, guild and payload: SHA-256.
    pub payload_hash: [u8; 32],
    /// How urgent it is.
    pub lane: Lane,
    /// How often it may be tried.
    pub max_attempts: u32,
    /// Not before. If this is later than `created_at` it is scheduled, and joins its queue then.
    pub eligible_at: UnixMs,
    /// Why `eligible_at` is later than `created_at`, if it is.
    pub delayed_by: DelayedBy,
    /// Not after.
    pub deadline_at: Option<UnixMs>,
    /// Which deployment it belongs to; those of one never pass each other.
    pub deployment: Option<OperationId>,
    /// The trace it belongs to, and the part of it that asked for it.
    pub trace: Option<TraceContext>,
    /// For Discord's audit log.
    pub reason: Option<String>,
    /// Its caller's key, if it has one.
    pub idempotency: Option<IdempotencyKey>,
    /// The operations that its payload refers to. They are kept for as long as it is not done.
    pub refers_to: Vec<OperationId>,
    /// The operation that this one does again, if it does.
    pub redrive_of: Option<OperationId>,
    /// When it was accepted.
    pub created_at: UnixMs,
}

/// Who made an operation due later than it was accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DelayedBy {
    /// Its caller.
    #[default]
    Caller,
    /// A policy, because its caller submits more than the policy allows at once.
    Policy,
}

/// What became of one operation of an accepted batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubmitResult {
    /// It was kept.
    Accepted {
        /// Its place in its queue; 0 for a scheduled one, which has none yet.
        seq: u64,
        /// Its queue.
        queue: Queue,
        /// `Queued` or `Scheduled`.
        state: OperationState,
    },
    /// Its key was used before, for the same: this is what that became. The operation itself may be long forgotten.
    Existing {
        /// The first operation.
        id: OperationId,
        /// What became of it.
        state: OperationState,
        /// What came of it, as JSON.
        result: Option<String>,
    },
}

/// Grows each time a queue changes hands. Writes with an old one change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Fence(pub u64);

/// Which queues to take.
#[derive(Clone, Debug)]
pub enum ClaimFrom {
    /// Those that have something due and nobody looks after, the ones that wait longest first.
    Due {
        /// The present time.
        now: UnixMs,
        /// How many at most.
        limit: usize,
    },
    /// These, whether something is due or not.
    Queues(Vec<Queue>),
}

/// A queue that is this process's own from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Which.
    pub queue: Queue,
    /// What every write has to carry.
    pub fence: Fence,
    /// Whether a person has paused it. It is not claimed as due while it is.
    pub paused: bool,
}

/// A page of a queue's operations that are not done.
#[derive(Clone, Debug, Default)]
pub struct OperationPage {
    /// The operations, in order. Scheduled ones are not among them.
    pub operations: Vec<StoredOperation>,
    /// Those among them that cannot be read, in order. They count towards the limit.
    pub unreadable: Vec<UnreadableOperation>,
    /// When the first scheduled operation of the queue is due.
    pub scheduled: Option<UnixMs>,
}

/// An operation that is not done and whose row cannot be read: it was damaged, or a newer version wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableOperation {
    /// Which.
    pub id: OperationId,
    /// Its guild.
    pub guild: Option<u64>,
    /// Its place in its queue.
    pub seq: u64,
    /// How many attempts were used, as far as that can be read.
    pub attempts: u32,
    /// How often it was delayed, as far as that can be read.
    pub delays: u32,
    /// Unless it is certain that no call of it has left.
    pub may_have_been_sent: bool,
    /// What cannot be read.
    pub problem: String,
}

impl UnreadableOperation {
    /// What it ends with, so that the rest of its queue continues.
    #[must_use]
    pub fn verdict(&self) -> (OperationState, Failure) {
        let problem = &self.problem;
        let failure = |advice: &str| {
            let message = format!("its row in the store cannot be read, so it was set aside: {problem}. {advice}");
            Failure::new(FailureClass::Poison, message)
        };
        if self.may_have_been_sent {
            let advice =
                "Its call may have been sent: check in Discord whether it happened, and submit it again if not";
            (OperationState::NeedsReview, failure(advice))
        } else {
            let advice =
                "If a newer version wrote it, redrive it with that version; else submit it again and discard this";
            (OperationState::Dead, failure(advice))
        }
    }
}

/// An operation that is not done, as its guild reads it.
#[derive(Clone, Debug)]
pub struct StoredOperation {
    /// What was accepted. `idempotency` and `refers_to` are left empty, and `queue` is the existing one.
    pub operation: NewOperation,
    /// Its place in its queue; 0 for a scheduled one, which has none yet.
    pub seq: u64,
    /// What has become of it.
    pub state: OperationState,
    /// How many attempts were used.
    pub attempts: u32,
    /// How often it was delayed.
    pub delays: u32,
    /// Whether others may pass it.
    pub parked: bool,
    /// When a call of it was first about to be sent, unless it is certain that none had an effect.
    pub intent: Option<UnixMs>,
    /// What it has done so far, if it takes several calls.
    pub progress: Progress,
    /// Why it waits, or why it failed before.
    pub error: Option<Failure>,
    /// Set if an attempt may have taken effect.
    pub unknown_outcome: Option<UnknownOutcome>,
}

/// An attempt at an operation may have taken effect. Stored until the operation ends, so that it never ends `dead` unchecked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnknownOutcome {
    /// When the first such attempt began.
    pub since: UnixMs,
    /// When the check of the outcome became due, while there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_since: Option<UnixMs>,
    /// How many times Discord was asked for the outcome without an answer.
    #[serde(default)]
    pub failed_checks: u32,
    /// Set if it is not sent again: what it ends with if the check finds no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_with: Option<Failure>,
}

impl UnknownOutcome {
    /// The outcome of an attempt that began then is unknown.
    #[must_use]
    pub const fn new(since: UnixMs) -> Self {
        Self { since, checked_since: None, failed_checks: 0, ends_with: None }
    }
}

/// The word that a call of an operation is about to be sent. It is stored until the operation is done, with the time of the first
/// such call, unless it is certain that no call had an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntentUpdate {
    /// Nothing changes.
    Keep,
    /// A call is about to be sent for the first time. One that is stored already stays as it is.
    Open(UnixMs),
    /// No call had an effect.
    Close,
}

/// The progress of an operation, to be stored in place of what is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgressUpdate {
    /// As JSON.
    pub json: String,
    /// By how many bytes it is longer than what is stored.
    pub grown: usize,
}

/// One try, for people who want to know what happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Attempt {
    /// Which, from 1. A delay is no try, and has the number of the one before it.
    pub n: u32,
    /// When it began.
    pub started_at: UnixMs,
    /// When it ended.
    pub ended_at: UnixMs,
    /// The status of Discord's answer, if there was one.
    pub status: Option<u16>,
    /// What kind of outcome: `succeeded`, or the name of a [`guildhall_core::operation::FailureClass`].
    pub class: String,
    /// What happened, for people.
    pub detail: Option<String>,
}

/// An object of Discord that is known by a key, or was made by an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Binding {
    /// What it is.
    pub kind: ManagedKind,
    /// Its key in its guild.
    pub key: String,
    /// Its id.
    pub discord_id: u64,
    /// The channel that a message is in.
    pub channel: Option<u64>,
    /// How it came to be known: `created` or `adopted`.
    pub origin: &'static str,
}

/// What is to be kept of an operation. All of it is kept at once, or nothing.
#[derive(Clone, Debug)]
pub struct OperationUpdate {
    /// Its queue.
    pub queue: Queue,
    /// The right to write there.
    pub fence: Fence,
    /// Which operation. One that is done is not changed any more.
    pub id: OperationId,
    /// Its guild, for the bindings.
    pub guild: Option<u64>,
    /// What has become of it. `Dead` also makes a dead letter; a final state ends its idempotency key's wait.
    pub state: OperationState,
    /// Attempts used so far.
    pub attempts: u32,
    /// Delays so far.
    pub delays: u32,
    /// When it may go on.
    pub eligible_at: UnixMs,
    /// Whether others may pass it.
    pub parked: bool,
    /// Why it waits or failed.
    pub error: Option<Failure>,
    /// What came of it, as JSON.
    pub result: Option<String>,
    /// The object that it made, for those that refer to the operation.
    pub made: Option<u64>,
    /// Whether it is about to be sent.
    pub intent: IntentUpdate,
    /// What it has done so far, if that has changed.
    pub progress: Option<ProgressUpdate>,
    /// A try that ended.
    pub attempt: Option<Attempt>,
    /// What is known of attempts that may have taken effect, if that changes.
    pub unknown_outcome: Option<UnknownOutcome>,
    /// Objects that are known from now on. A key that was known is known for this object now.
    pub bind: Vec<Binding>,
    /// Objects that are gone.
    pub unbind: Vec<(ManagedKind, u64)>,
    /// The present time.
    pub at: UnixMs,
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateResult {
    /// It is kept.
    Done,
    /// The queue belongs to somebody else. Stop.
    Fenced,
    /// The operation is done, by somebody else's word: it was cancelled.
    Gone,
}

/// What a reference stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnresolvedReference {
    /// A managed object.
    Key(ManagedKind, String),
    /// What this operation made.
    Operation(OperationId),
}

/// What there is for a [`UnresolvedReference`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolvedReference {
    /// This object; and for a message the channel that it is in.
    Object {
        /// Its id.
        id: u64,
        /// The channel that a message is in.
        channel: Option<u64>,
    },
    /// Nothing yet: the operation is not done.
    Pending,
    /// Nothing, ever: there is no such key or operation, or it made nothing. Its state, if it has one.
    Nothing(Option<OperationState>),
}

/// What is paused or goes on.
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
    /// The time that its caller gave.
    Delay,
    /// The time that a policy gave.
    Policy,
    /// This operation, which it refers to and which is scheduled itself.
    Scheduled(OperationId),
    /// This operation of its queue, which is before it.
    Behind(OperationId),
    /// Its guild is paused.
    Paused,
    /// Everything is paused.
    AllPaused,
    /// A process that takes its queue.
    Owner,
    /// Nothing: it is the next of its queue.
    Turn,
}

/// Everything about one operation, for people.
#[derive(Clone, Debug)]
pub struct OperationDetails {
    /// As its guild reads it, with `idempotency` filled in.
    pub stored: StoredOperation,
    /// What came of it, as JSON.
    pub result: Option<String>,
    /// When it last changed.
    pub updated_at: UnixMs,
    /// When it was done.
    pub finished_at: Option<UnixMs>,
    /// Its tries, the first first. Empty in lists.
    pub attempts: Vec<Attempt>,
    /// What it waits for, if it is scheduled or queued. Not known in streams.
    pub waits_for: Option<WaitReason>,
}

/// Which operations to list. The newest come first.
#[derive(Clone, Debug, Default)]
pub struct OperationFilter {
    /// Whose.
    pub tenant: Option<Arc<str>>,
    /// Of these guilds alone.
    pub among: Option<Vec<u64>>,
    /// In this state.
    pub state: Option<OperationState>,
    /// Of this kind.
    pub kind: Option<OperationKind>,
    /// Only parked ones, or only others.
    pub parked: Option<bool>,
    /// Of this deployment.
    pub deployment: Option<OperationId>,
    /// Accepted then or later.
    pub created_after: Option<UnixMs>,
    /// Accepted before then.
    pub created_before: Option<UnixMs>,
    /// Only those accepted before this one.
    pub before: Option<OperationId>,
    /// How many at most.
    pub limit: usize,
}

/// An operation that was given up.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// The operation. Its letter goes by the same name.
    pub id: OperationId,
    /// Whose guild it is.
    pub tenant: Arc<str>,
    /// Where it stood in line.
    pub queue: Queue,
    /// Which guild it was about.
    pub guild: Option<u64>,
    /// The id of the API key that submitted it.
    pub caller: Arc<str>,
    /// Whose channels it might name.
    pub bounds: Bounds,
    /// The scopes that it was accepted with.
    pub scopes: ScopeSet,
    /// What it should have done.
    pub kind: OperationKind,
    /// Its payload.
    pub payload: String,
    /// Why it was given up.
    pub error: Failure,
    /// How many attempts were used.
    pub attempts: u32,
    /// For Discord's audit log.
    pub reason: Option<String>,
    /// When it was accepted.
    pub created_at: UnixMs,
    /// When it was given up.
    pub died_at: UnixMs,
    /// The operation that it did again, if it did.
    pub redrive_of: Option<OperationId>,
    /// The operation that does it again, if one does.
    pub redriven_as: Option<OperationId>,
}

/// Which dead letters. The newest come first.
#[derive(Clone, Debug, Default)]
pub struct DeadLetterFilter {
    /// Whose.
    pub tenant: Option<Arc<str>>,
    /// This one alone.
    pub id: Option<OperationId>,
    /// Of these guilds alone.
    pub among: Option<Vec<u64>>,
    /// Of this kind.
    pub kind: Option<OperationKind>,
    /// Given up for this class of failure, by its name.
    pub class: Option<String>,
    /// Given up with words that hold this, whether in capitals or not.
    pub says: Option<String>,
    /// Given up then or later.
    pub died_after: Option<UnixMs>,
    /// Given up before then.
    pub died_before: Option<UnixMs>,
    /// Only those that nothing does again yet, or only others.
    pub redriven: Option<bool>,
    /// Only those before this one.
    pub before: Option<OperationId>,
    /// How many at most.
    pub limit: usize,
}

/// A process that shares the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// What it goes by in the store.
    pub id: Uuid,
    /// What people call it.
    pub name: String,
    /// Whether it is the one that was asked.
    pub is_self: bool,
    /// When it came.
    pub started_at: UnixMs,
    /// How long ago it last said that it lives.
    pub lag: Duration,
    /// How long it counts as alive without saying so again; nothing if it is alone, and needs no lease.
    pub lease_left: Option<Duration>,
    /// Whether it has just started, and takes no queues before it can send.
    pub arriving: bool,
    /// Whether it is about to end.
    pub leaving: bool,
    /// How many queues it looks after.
    pub queues: u64,
    /// The highest fence of those.
    pub highest_fence: Option<u64>,
    /// The shards that it has, in order.
    pub shards: Vec<u32>,
}

/// How long things are kept once they are done.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Operations that succeeded or were cancelled.
    pub completed: Duration,
    /// Operations that are dead.
    pub failed: Duration,
    /// Dead letters, and operations that need a person.
    pub dead_letters: Duration,
    /// Idempotency keys, from when their operation was done.
    pub idempotency: Duration,
}

/// How much one sweep removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepSummary {
    /// Operations.
    pub operations: u64,
    /// Dead letters.
    pub letters: u64,
    /// Idempotency keys.
    pub keys: u64,
    /// State entries that had run out.
    pub state: u64,
    /// Recorded interactions whose token had expired.
    pub interactions: u64,
    /// Recorded interactions that were removed before they expired, since there were too many.
    pub interactions_dropped: u64,
}

/// What a scope uses of its share of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeUsage {
    /// Which.
    pub scope: UsageScope,
    /// What it uses.
    pub used: Usage,
    /// What it may use.
    pub limit: UsageLimit,
}

/// What is used of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// By scope, in order of their names.
    pub scopes: Vec<ScopeUsage>,
    /// Bytes in use of a file of bounded size, what new operations may fill, and how large it may grow.
    pub file: Option<FileUsage>,
}

/// What is used of a file of bounded size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileUsage {
    /// Bytes in use.
    pub used: u64,
    /// Past this, no new operations are accepted.
    pub accepts_until: u64,
    /// How large it may grow.
    pub most: u64,
}

/// Where operations are kept. What it says it has kept survives a `kill -9` of this process, and the machine's loss of
/// power as far as the machine keeps its promises.
pub trait OperationStore: Send + Sync {
    /// The same store for one errand: the first change that is made through it leaves this note, in the same commit.
    fn noting(self: Arc<Self>, note: AuditRecord) -> Arc<dyn OperationStore>;

    /// The same store as a tenant sees it: whatever is asked through it, or changed, is that tenant's.
    fn within(self: Arc<Self>, tenant: Arc<str>) -> Arc<dyn OperationStore>;

    /// Keeps a batch, all of it or nothing. Those with a key that was used before for the same are not kept again.
    fn submit(&self, batch: Vec<NewOperation>) -> StoreFuture<'_, Vec<SubmitResult>, SubmitError>;

    /// Takes queues that nobody looks after, and that no other process should rather have. Those are not among the answer,
    /// nor those that somebody else looks after. What was taken for an answer that got lost is given back by itself.
    fn claim(&self, from: ClaimFrom) -> StoreFuture<'_, Vec<Claim>>;

    /// The right of this process to act for any queue at all: it ends with its lease.
    fn lease(&self) -> LeaseGuard;

    /// The right to act for a queue that was claimed with this fence. It ends with the process's lease, and when the queue is
    /// somebody else's. A store that serves one process alone never takes it away.
    fn right(&self, queue: Queue, fence: Fence) -> LeaseGuard;

    /// Those of these queues that another process should look after, since there is one that they belong to more.
    fn elsewhere(&self, queues: &[Queue]) -> Vec<Queue>;

    /// Gives a queue back: it is due again when its next operation is. `false` if it was somebody else's already.
    fn release(&self, queue: Queue, fence: Fence) -> StoreFuture<'_, bool>;

    /// The operations of a queue that are not done and not scheduled, in order, those after a place in it.
    fn load(&self, queue: Queue, after: u64, limit: usize) -> StoreFuture<'_, OperationPage>;

    /// Gives scheduled operations of a queue that are due their places in it, at most so many: by when they are due, those of
    /// one time in the order of acceptance, and none before an operation that it refers to. When the next one is due.
    ///
    /// Any process may call this at any time. Nobody holds a scheduled operation in memory, so it needs no fence.
    fn join(&self, queue: Queue, now: UnixMs, limit: usize) -> StoreFuture<'_, Option<UnixMs>>;

    /// How many operations of a queue are scheduled. Counts up to `limit`.
    fn scheduled(&self, queue: Queue, limit: usize) -> StoreFuture<'_, u64>;

    /// Keeps changes, all of them or none; one answer each. One with a stale fence is not kept, and neither is one of an
    /// operation that is done.
    fn record(&self, changes: Vec<OperationUpdate>) -> StoreFuture<'_, Vec<UpdateResult>>;

    /// What references stand for, one answer each.
    fn resolve(&self, guild: Option<u64>, wanted: Vec<UnresolvedReference>) -> StoreFuture<'_, Vec<ResolvedReference>>;

    /// Which of these objects have a key or were made by an operation, whichever guild or user it was for: for telling
    /// strangers from our own.
    fn bound(&self, kind: ManagedKind, ids: Vec<u64>) -> StoreFuture<'_, Vec<u64>>;

    /// When the next queue that nobody looks after has something due.
    fn next_due(&self) -> StoreFuture<'_, Option<UnixMs>>;

    /// Makes queues due that nobody looks after and in which an operation waits for the gate
    /// ([`Failure::held_by`]), so many at most; how many.
    fn release_held(&self, now: UnixMs, limit: usize) -> StoreFuture<'_, usize>;

    /// One operation, with its tries. What a key's operation left behind is found by [`OperationStore::submit`] alone.
    fn show(&self, id: OperationId) -> StoreFuture<'_, Option<OperationDetails>>;

    /// Operations, the newest first.
    fn list(&self, filter: OperationFilter) -> StoreFuture<'_, Vec<OperationDetails>>;

    /// Takes an operation back, if nothing of it is under way: the state that it is in now, and the queue that should hear of
    /// it.
    fn cancel(&self, id: OperationId, now: UnixMs) -> StoreFuture<'_, Option<(OperationState, Queue)>>;

    /// Makes an operation that waits due now; its state, and the queue that should hear of it. A scheduled one joins its queue,
    /// unless an operation that it refers to is scheduled.
    fn hasten(&self, id: OperationId, now: UnixMs) -> StoreFuture<'_, Option<(OperationState, Queue)>>;

    /// Dead letters, the newest first.
    fn letters(&self, filter: DeadLetterFilter) -> StoreFuture<'_, Vec<DeadLetter>>;

    /// Accepts operations that do dead letters (or operations that need a person) again, and notes on each letter which one
    /// does: those of the batch whose letter nothing does again yet. The operations that were kept.
    fn redrive(&self, batch: Vec<NewOperation>) -> StoreFuture<'_, Vec<OperationId>, SubmitError>;

    /// Throws dead letters away, the oldest first; how many.
    fn discard(&self, filter: DeadLetterFilter) -> StoreFuture<'_, u64>;

    /// Pauses queues or lets them go on; a paused one is not claimed as due.
    fn pause(&self, what: PauseTarget, paused: bool) -> StoreFuture<'_, ()>;

    /// Whose a guild is, if anybody has had to do with it.
    fn tenant(&self, guild: u64) -> StoreFuture<'_, Option<Arc<str>>>;

    /// Whose these are, as far as it is known; one answer each. What is not known of a channel or a webhook, Discord knows; a
    /// guild that nobody has is the default tenant's.
    fn whose(&self, locations: Vec<Location>) -> StoreFuture<'_, Vec<Option<Owner>>>;

    /// Keeps which guild a channel or a webhook belongs to, or that it belongs to none, and tells whose it is. Discord never
    /// moves one to another guild.
    fn learn(&self, location: Location, guild: Option<u64>) -> StoreFuture<'_, Owner>;

    /// The recorded interactions with these tokens. Expired ones may be among them.
    fn received_interactions(&self, tokens: Vec<TokenDigest>) -> StoreFuture<'_, Vec<ReceivedInteraction>>;

    /// What is paused: everything, and which queues by themselves.
    fn paused(&self) -> StoreFuture<'_, (bool, Vec<Queue>)>;

    /// The processes that share the store, the oldest first.
    fn instances(&self) -> StoreFuture<'_, Vec<Instance>>;

    /// How many operations are in each state that is not final, and how many dead letters there are, by name.
    fn depths(&self) -> StoreFuture<'_, BTreeMap<&'static str, u64>>;

    /// What these scopes use, in their order; without a list, all that use something, as far as there are not too many.
    fn usage(&self, scopes: Option<Vec<UsageScope>>) -> StoreFuture<'_, StoreUsage>;

    /// Removes what was kept long enough, a small batch of each at most; call again while it removes something.
    fn sweep(&self, retention: Retention, now: UnixMs) -> StoreFuture<'_, SweepSummary>;

    /// A value that outlives the process.
    fn state(&self, key: &str) -> StoreFuture<'_, Option<String>>;

    /// Keeps a value; `None` removes it.
    fn set_state(&self, key: &str, value: Option<String>, expires_at: Option<UnixMs>) -> StoreFuture<'_, ()>;
}
