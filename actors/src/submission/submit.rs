//! Accepts operations.

use std::collections::BTreeSet;

use guildhall_core::access::no_such;
use guildhall_core::operation::payload::Location;
use guildhall_core::operation::{OperationState, Queue, QueueKey};
use guildhall_core::time::UnixMs;
use guildhall_core::trace::TraceContext;

use super::validate::{TOLD_MOST, ValidatedSubmission};
use super::{AcceptedOperation, FieldError, OperationService, Submission};
use crate::access::{AuditAction, AuditRecord, Caller};
use crate::ports::{IdempotencyKey, IdempotencyRecord, NewOperation, StoreError, SubmitError, SubmitResult};
use crate::telemetry::emit;
use crate::telemetry::operations::OperationEnqueued;
use crate::telemetry::submission::{IdempotencyKeyHit, IdempotencyKeyMiss};

/// Why a submission was not accepted. Nothing of it was stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmissionError {
    /// It has no operations.
    #[error("the submission has no operations; at least one is required")]
    Empty,
    /// It has too many operations.
    #[error("{count} operations are too many for one submission; the maximum is {most}")]
    TooMany {
        /// Number of operations.
        count: usize,
        /// Maximum number.
        most: usize,
    },
    /// Operations are invalid: the index of each, and the error.
    #[error("{}", told(.0))]
    Invalid(Vec<(usize, FieldError)>),
    /// There is no such guild that the caller may see.
    #[error("guild {0} not found, or this key has no access to it")]
    NoGuild(u64),
    /// The caller's key does not permit them: the index of each, and what the key lacks.
    #[error("{}", told(.0))]
    Forbidden(Vec<(usize, FieldError)>),
    /// They name channels, webhooks or guilds that do not exist as far as the caller may see: the index of each, and
    /// the error.
    #[error("{}", told(.0))]
    Elsewhere(Vec<(usize, FieldError)>),
    /// The store rejected them.
    #[error(transparent)]
    Store(#[from] SubmitError),
}

fn told(wrong: &[(usize, FieldError)]) -> String {
    let lines = wrong.iter().map(|(index, wrong)| format!("operations[{index}].{}: {}", wrong.field, wrong.message));
    lines.collect::<Vec<_>>().join("; ")
}

impl From<StoreError> for SubmissionError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.into())
    }
}

/// What the service needs of an operation after the store has it.
struct PendingAck {
    accepted: AcceptedOperation,
    /// Its queue, if it is known without the store.
    queue: Option<Queue>,
    used: Option<(IdempotencyKey, IdempotencyRecord)>,
    trace: Option<TraceContext>,
}

impl PendingAck {
    fn of(operation: &NewOperation) -> Self {
        let &NewOperation { id, kind, guild, payload_hash, eligible_at, .. } = operation;
        let (state, eligible_at) = (OperationState::Queued, Some(eligible_at));
        let of_tenant = || (!operation.tenant.is_empty()).then(|| operation.queue.queue(&operation.tenant));
        Self {
            queue: operation.queue.fixed().or_else(of_tenant),
            accepted: AcceptedOperation { id, kind, guild, state, eligible_at, result: None, replayed: false },
            used: operation.idempotency.clone().map(|key| (key, IdempotencyRecord { payload_hash, id })),
            trace: operation.trace,
        }
    }
}

/// The audit record of a submission.
fn submit_note(caller: &Caller, guild: Option<u64>, drafts: &[NewOperation], now: UnixMs) -> AuditRecord {
    let note = caller.note(AuditAction::OperationsSubmit, now).in_guild(guild);
    match drafts {
        [only] => note.on(&only.id).saying(only.kind.name()),
        [first, ..] => {
            let kinds: BTreeSet<_> = drafts.iter().map(|operation| operation.kind.name()).collect();
            let kinds: Vec<_> = kinds.into_iter().collect();
            note.on(&first.id).saying(format!("{} operations: {}", drafts.len(), kinds.join(", ")))
        }
        [] => note,
    }
}

impl OperationService {
    /// Accepts operations, all or none, in order. For a repeated idempotency key with the same payload it returns the
    /// first operation.
    ///
    /// # Errors
    ///
    /// When any of them is invalid, or the store rejects them.
    pub async fn submit(&self, submission: Submission) -> Result<Vec<AcceptedOperation>, SubmissionError> {
        let (caller, guild) = (submission.caller.clone(), submission.guild);
        if let Some(guild) = guild.filter(|_| !caller.grant.reaches(guild)) {
            return Err(SubmissionError::NoGuild(guild));
        }
        let ValidatedSubmission { operations: mut drafts, names, interactions } = self.draft(submission)?;
        self.check_tenant(&caller, guild, &drafts).await?;
        self.check_names(&caller, guild, names).await?;
        // A batch is one write, whatever the cache has; for a single operation a cache hit saves the write.
        if let [only] = drafts.as_slice()
            && let Some(known) = self.recall(&caller, only).await
        {
            return Ok(vec![known]);
        }
        self.check_interactions(&mut drafts, interactions).await?;
        let slips: Vec<PendingAck> = drafts.iter().map(PendingAck::of).collect();
        let store = self.store.noting(&caller, submit_note(&caller, guild, &drafts, self.now()));
        let submitted = match (self.ask(store.submit(drafts)).await, guild) {
            (Err(SubmitError::NotYours { .. }), Some(guild)) => return Err(SubmissionError::NoGuild(guild)),
            (submitted, _) => submitted?,
        };
        if submitted.len() != slips.len() {
            let counts = format!("{} results for {} operations", submitted.len(), slips.len());
            return Err(StoreError::Corrupt(counts).into());
        }
        let queue_of = |(slip, submitted): (&PendingAck, &SubmitResult)| match submitted {
            SubmitResult::Accepted { queue, .. } => Some(*queue),
            SubmitResult::Existing { .. } => slip.queue,
        };
        let queues: BTreeSet<_> = slips.iter().zip(&submitted).filter_map(queue_of).collect();
        self.wake(queues);
        Ok(self.file(slips, submitted))
    }

    /// Checks that the guild belongs to the caller's tenant. The store checks it for operations in the guild's own
    /// queue; those in queues of users and interactions do not touch that one.
    async fn check_tenant(
        &self,
        caller: &Caller,
        guild: Option<u64>,
        drafts: &[NewOperation],
    ) -> Result<(), SubmissionError> {
        let Some(guild) = guild.filter(|_| caller.tenant.is_some()) else { return Ok(()) };
        let is_checked = drafts.iter().all(|operation| operation.queue == QueueKey::Guild(guild));
        if is_checked || self.sees_guild(caller, guild).await? {
            return Ok(());
        }
        Err(SubmissionError::NoGuild(guild))
    }

    /// Checks that the caller may use the locations that operations name. A channel that was not looked up yet is
    /// checked before the operation is sent.
    async fn check_names(
        &self,
        caller: &Caller,
        guild: Option<u64>,
        names: Vec<(usize, Location)>,
    ) -> Result<(), SubmissionError> {
        let elsewhere = self.elsewhere(caller, names, |_| guild).await?;
        let wrong: Vec<_> = elsewhere
            .into_iter()
            .map(|(index, location)| (index, FieldError::new("payload", no_such(&location, guild))))
            .take(TOLD_MOST)
            .collect();
        if wrong.is_empty() { Ok(()) } else { Err(SubmissionError::Elsewhere(wrong)) }
    }

    /// Notifies the supervisor that these queues have new operations.
    pub fn wake(&self, queues: impl IntoIterator<Item = Queue>) {
        queues.into_iter().for_each(|queue| self.hears.wake(queue));
    }

    /// Combines the results of the store for the caller, the cache and telemetry.
    fn file(&self, slips: Vec<PendingAck>, submitted: Vec<SubmitResult>) -> Vec<AcceptedOperation> {
        let mut used = Vec::new();
        let mut all = Vec::with_capacity(slips.len());
        for (PendingAck { mut accepted, used: mut key, trace, .. }, submitted) in slips.into_iter().zip(submitted) {
            match submitted {
                SubmitResult::Accepted { state, .. } => {
                    accepted.state = state;
                    let AcceptedOperation { id, kind, guild, .. } = accepted;
                    emit(OperationEnqueued { id, kind, guild, trace });
                    if key.is_some() {
                        emit(IdempotencyKeyMiss);
                    }
                }
                SubmitResult::Existing { id, state, result } => {
                    emit(IdempotencyKeyHit { by: "store" });
                    if let Some((_, remembered)) = &mut key {
                        remembered.id = id;
                    }
                    accepted = AcceptedOperation { id, state, result, eligible_at: None, replayed: true, ..accepted };
                }
            }
            used.extend(key);
            all.push(accepted);
        }
        if let Some(cache) = &self.cache
            && !used.is_empty()
        {
            cache.put(used);
        }
        all
    }

    /// The cached result for an operation's key, if the store still has that operation.
    async fn recall(&self, caller: &Caller, operation: &NewOperation) -> Option<AcceptedOperation> {
        let (cache, key) = (self.cache.as_ref()?, operation.idempotency.as_ref()?);
        let known = cache.get(key).await?;
        // Used for another payload, or deleted since: only the store can decide.
        if known.payload_hash != operation.payload_hash {
            return None;
        }
        let shown = self.ask::<_, StoreError>(self.store.of(caller).show(known.id)).await.ok()??;
        if shown.stored.operation.payload_hash != operation.payload_hash {
            return None;
        }
        emit(IdempotencyKeyHit { by: "cache" });
        let &NewOperation { kind, guild, .. } = operation;
        let (state, result) = (shown.stored.state, shown.result);
        Some(AcceptedOperation { id: known.id, kind, guild, state, eligible_at: None, result, replayed: true })
    }
}
