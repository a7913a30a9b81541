//! Jobs of the writer, and their results.

use std::sync::Arc;

use guildhall_actors::access::{AuditRecord, DataSubject, ErasureCursor, ErasureStep};
use guildhall_actors::crash::Input;
use guildhall_actors::ports::{
    AddKeyResult, Claim, ClaimFrom, CommitResult, DeadLetterFilter, Fence, HandlerCommit, IdentifyDecision,
    IdentifyRequest, InboxDisposition, InboxKey, NewApiKey, NewOperation, OperationUpdate, PauseTarget, Retention,
    RevokeResult, RotateResult, StateWrite, StoreError, StoredSession, SubmitError, SubmitResult, SweepSummary,
    UpdateResult,
};
use guildhall_actors::shard::{ClaimedShards, DesiredShards, ShardClaim};
use guildhall_core::{
    access::KeyId,
    budget::{Hour, SpendRecord},
    interaction::ReceivedInteraction,
    operation::{OperationId, OperationState, Queue, payload::Location},
    time::UnixMs,
};
use tokio::sync::oneshot;

use super::schedule::EnqueueResult;

/// A change to write.
#[derive(Debug)]
pub(in crate::store) enum Job {
    Submit(Vec<NewOperation>),
    Redrive(Vec<NewOperation>),
    Claim(ClaimFrom),
    Release(Queue, Fence),
    /// Lets due scheduled operations of a queue join it, up to a limit.
    Join(Queue, UnixMs, usize),
    /// Makes queues without an owner due in which operations wait for the gate, up to a limit.
    ReleaseHeld(UnixMs, usize),
    Record(Vec<OperationUpdate>),
    Cancel(OperationId, UnixMs),
    Expedite(OperationId, UnixMs),
    Discard(DeadLetterFilter),
    Pause(PauseTarget, bool),
    Sweep(Retention, UnixMs),
    SetState(StateWrite),
    Commit(Vec<HandlerCommit>),
    StoreSessions(Vec<StoredSession>),
    Postpone(InboxKey, InboxDisposition, UnixMs),
    Revive(i64, UnixMs),
    SweepEvents(UnixMs),
    RecordInteractions(Vec<ReceivedInteraction>),
    Identify(IdentifyRequest),
    ClaimShards(DesiredShards),
    ReleaseShards(Vec<ShardClaim>),
    AddKey(NewApiKey),
    RevokeKey(KeyId, UnixMs),
    RotateKey {
        old: KeyId,
        new: NewApiKey,
        until: UnixMs,
    },
    /// Stores the guild of a channel or a webhook.
    StoreLocation(Location, Option<u64>),
    /// Only writes the audit record of the request.
    AuditOnly,
    SweepAccess(UnixMs),
    StoreSpend(Arc<str>, Vec<SpendRecord>),
    SweepSpend(Hour),
    Erase(DataSubject, ErasureCursor),
    /// Removes the crash counts of inputs that were set aside.
    ForgetCrashes(Vec<Input>),
}

/// Result of a [`Job`].
#[derive(Debug)]
pub(in crate::store) enum JobResult {
    Submitted(Result<Vec<SubmitResult>, SubmitError>),
    Redriven(Result<Vec<OperationId>, SubmitError>),
    Claimed(Vec<Claim>),
    Released(bool),
    Joined(EnqueueResult),
    MadeDue(usize),
    Recorded(Vec<UpdateResult>),
    Moved(Option<(OperationState, Queue)>),
    Discarded(u64),
    Swept(SweepSummary),
    Committed(Vec<CommitResult>),
    Identified(IdentifyDecision),
    Shards(ClaimedShards),
    /// Whether the row to change exists.
    Found(bool),
    SweptEvents(u64),
    KeyAdded(AddKeyResult),
    KeyRevoked(RevokeResult),
    KeyRotated(RotateResult),
    Erased(ErasureStep),
    Stored,
}

/// A job, and the channel for its result.
#[derive(Debug)]
pub(in crate::store) struct JobRequest {
    pub(in crate::store) job: Job,
    /// Audit record to store if the job changes something.
    pub(in crate::store) audit_record: Option<AuditRecord>,
    /// Tenant of the caller, if any.
    pub(in crate::store) tenant: Option<Arc<str>>,
    pub(in crate::store) reply: oneshot::Sender<Result<JobResult, StoreError>>,
}

/// A job in a batch, with its audit record and tenant.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchJob<'a> {
    pub(super) job: &'a Job,
    pub(super) audit_record: Option<&'a AuditRecord>,
    pub(super) tenant: Option<&'a str>,
}

impl<'a> BatchJob<'a> {
    pub(super) fn of(request: &'a JobRequest) -> Self {
        Self { job: &request.job, audit_record: request.audit_record.as_ref(), tenant: request.tenant.as_deref() }
    }
}

impl Job {
    /// The input that this job is for, if it is exactly one. Requests of callers, who can repeat them, have none.
    pub(super) fn input(&self) -> Option<Input> {
        match self {
            Self::Record(changes) => match changes.as_slice() {
                [change] => Some(Input::Operation(change.id)),
                _ => None,
            },
            Self::Commit(done) => match done.as_slice() {
                [done] => Some(input_of(done)),
                _ => None,
            },
            Self::Postpone(key, ..) => Some(Input::InboxEntry(key.clone())),
            Self::Submit(_)
            | Self::Redrive(_)
            | Self::Claim(_)
            | Self::Release(..)
            | Self::Join(..)
            | Self::ReleaseHeld(..)
            | Self::Cancel(..)
            | Self::Expedite(..)
            | Self::Discard(_)
            | Self::Pause(..)
            | Self::Sweep(..)
            | Self::SetState(_)
            | Self::StoreSessions(_)
            | Self::Revive(..)
            | Self::SweepEvents(_)
            | Self::RecordInteractions(_)
            | Self::Identify(_)
            | Self::ClaimShards(_)
            | Self::ReleaseShards(_)
            | Self::AddKey(_)
            | Self::RevokeKey(..)
            | Self::RotateKey { .. }
            | Self::StoreLocation(..)
            | Self::AuditOnly
            | Self::SweepAccess(_)
            | Self::StoreSpend(..)
            | Self::SweepSpend(_)
            | Self::Erase(..)
            | Self::ForgetCrashes(_) => None,
        }
    }
}

/// The event that a handler has finished with, as the next process would receive it.
pub(super) fn input_of(done: &HandlerCommit) -> Input {
    if done.from_inbox {
        Input::InboxEntry(done.key.clone())
    } else {
        Input::Event { session: Arc::clone(&done.key.session), seq: done.key.seq }
    }
}

impl JobResult {
    /// Whether the job changed something for the caller.
    pub(in crate::store) fn is_change(&self) -> bool {
        match self {
            Self::Submitted(Ok(submitted)) => submitted.iter().any(|one| matches!(one, SubmitResult::Accepted { .. })),
            Self::Redriven(Ok(redriven)) => !redriven.is_empty(),
            Self::Submitted(Err(_)) | Self::Redriven(Err(_)) => false,
            Self::Moved(moved) => {
                moved.is_some_and(|(state, _)| state == OperationState::Cancelled || state.is_waiting())
            }
            Self::Discarded(count) => *count > 0,
            Self::Found(found) => *found,
            Self::KeyAdded(added) => *added == AddKeyResult::Done,
            Self::KeyRevoked(revoked) => *revoked == RevokeResult::Revoked,
            Self::KeyRotated(rotated) => *rotated == RotateResult::Done,
            Self::Stored | Self::Erased(_) => true,
            Self::Claimed(_)
            | Self::Released(_)
            | Self::Joined(_)
            | Self::MadeDue(_)
            | Self::Recorded(_)
            | Self::Swept(_)
            | Self::Committed(_)
            | Self::Identified(_)
            | Self::Shards(_)
            | Self::SweptEvents(_) => false,
        }
    }
}

impl JobResult {
    /// Whether operations may have changed, for change feeds.
    pub(super) fn touches_operations(&self) -> bool {
        match self {
            Self::Recorded(recorded) => recorded.contains(&UpdateResult::Done),
            Self::Committed(committed) => committed.iter().any(|one| matches!(one, CommitResult::Done(_))),
            Self::Joined(joined) => joined.count > 0,
            Self::Submitted(_) | Self::Redriven(_) | Self::Moved(_) => self.is_change(),
            Self::Claimed(_)
            | Self::Released(_)
            | Self::MadeDue(_)
            | Self::Discarded(_)
            | Self::Swept(_)
            | Self::Identified(_)
            | Self::Shards(_)
            | Self::Found(_)
            | Self::SweptEvents(_)
            | Self::KeyAdded(_)
            | Self::KeyRevoked(_)
            | Self::KeyRotated(_)
            | Self::Erased(_)
            | Self::Stored => false,
        }
    }
}

impl Job {
    /// The operations that this job submits.
    pub(super) fn operations(&self) -> Box<dyn Iterator<Item = &NewOperation> + '_> {
        match self {
            Self::Submit(batch) | Self::Redrive(batch) => Box::new(batch.iter()),
            Self::Commit(done) => Box::new(done.iter().flat_map(|done| &done.operations)),
            Self::Claim(_)
            | Self::Release(..)
            | Self::Join(..)
            | Self::ReleaseHeld(..)
            | Self::Record(_)
            | Self::Cancel(..)
            | Self::Expedite(..)
            | Self::Discard(_)
            | Self::Pause(..)
            | Self::Sweep(..)
            | Self::SetState(_)
            | Self::StoreSessions(_)
            | Self::Postpone(..)
            | Self::Revive(..)
            | Self::SweepEvents(_)
            | Self::Identify(_)
            | Self::ClaimShards(_)
            | Self::ReleaseShards(_)
            | Self::AddKey(_)
            | Self::RevokeKey(..)
            | Self::RotateKey { .. }
            | Self::StoreLocation(..)
            | Self::AuditOnly
            | Self::SweepAccess(_)
            | Self::StoreSpend(..)
            | Self::SweepSpend(_)
            | Self::RecordInteractions(_)
            | Self::Erase(..)
            | Self::ForgetCrashes(_) => Box::new(std::iter::empty()),
        }
    }

    /// Approximate number of rows and of text bytes that this job writes.
    pub(super) fn size(&self) -> (usize, usize) {
        match self {
            Self::Submit(batch) | Self::Redrive(batch) => (batch.len(), payload_bytes(batch)),
            Self::Record(changes) => {
                let text = |change: &OperationUpdate| change.result.as_ref().map_or(0, String::len);
                (changes.len(), changes.iter().map(text).sum())
            }
            Self::SetState(set) => (1, set.value.as_ref().map_or(0, String::len)),
            Self::Commit(done) => {
                let sizes = done.iter().map(commit_size);
                sizes.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
            }
            Self::StoreSessions(sessions) => (sessions.len(), 0),
            Self::RecordInteractions(received) => (received.len(), 0),
            Self::ReleaseShards(claims) => (claims.len(), 0),
            Self::StoreSpend(_, spend) => (spend.len(), 0),
            Self::ForgetCrashes(inputs) => (inputs.len(), 0),
            Self::Claim(_)
            | Self::Release(..)
            | Self::Join(..)
            | Self::ReleaseHeld(..)
            | Self::Cancel(..)
            | Self::Expedite(..)
            | Self::Discard(_)
            | Self::Pause(..)
            | Self::Sweep(..)
            | Self::Postpone(..)
            | Self::Revive(..)
            | Self::SweepEvents(_)
            | Self::Identify(_)
            | Self::ClaimShards(_)
            | Self::AddKey(_)
            | Self::RevokeKey(..)
            | Self::RotateKey { .. }
            | Self::StoreLocation(..)
            | Self::AuditOnly
            | Self::SweepAccess(_)
            | Self::SweepSpend(_)
            | Self::Erase(..) => (1, 0),
        }
    }
}

fn commit_size(done: &HandlerCommit) -> (usize, usize) {
    let values: usize = done.set.iter().map(|set| set.value.as_ref().map_or(0, String::len)).sum();
    let event = done.inbox.as_ref().map_or(0, |entry| entry.event.len());
    (1 + done.operations.len() + done.set.len(), payload_bytes(&done.operations) + values + event)
}

fn payload_bytes(batch: &[NewOperation]) -> usize {
    batch.iter().map(|operation| operation.payload.len()).sum()
}
