//! Accepts operations.

use std::collections::BTreeSet;

use guildhall_core::access::not_found_message;
use guildhall_core::operation::payload::Location;
use guildhall_core::operation::{OperationState, Queue, QueueKey};
use guildhall_core::time::UnixMs;
use guildhall_core::trace::TraceContext;

use super::parse::{MAX_ERRORS, ValidatedSubmission};
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
    #[error("{count} operations are too many for one submission; the maximum is {max}")]
    TooMany {
        /// Number of operations.
        count: usize,
        /// Maximum number.
        max: usize,
    },
    /// Operations are invalid: the index of each, and the error.
    #[error("{}", describe_errors(.0))]
    Invalid(Vec<(usize, FieldError)>),
    /// There is no such guild that the caller may see.
    #[error("guild {0} not found, or this key has no access to it")]
    GuildNotFound(u64),
    /// The caller's key does not permit them: the index of each, and what the key lacks.
    #[error("{}", describe_errors(.0))]
    Forbidden(Vec<(usize, FieldError)>),
    /// They name channels, webhooks or guilds that do not exist as far as the caller may see: the index of each, and
    /// the error.
    #[error("{}", describe_errors(.0))]
    ForeignTarget(Vec<(usize, FieldError)>),
    /// The store rejected them.
    #[error(transparent)]
    Store(#[from] SubmitError),
}

fn describe_errors(error: &[(usize, FieldError)]) -> String {
    let lines = error.iter().map(|(index, error)| format!("operations[{index}].{}: {}", error.field, error.message));
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
    idempotency: Option<(IdempotencyKey, IdempotencyRecord)>,
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
            idempotency: operation.idempotency.clone().map(|key| (key, IdempotencyRecord { payload_hash, id })),
            trace: operation.trace,
        }
    }
}

/// The audit record of a submission.
fn submission_record(caller: &Caller, guild: Option<u64>, operations: &[NewOperation], now: UnixMs) -> AuditRecord {
    let record = caller.audit_record(AuditAction::OperationsSubmit, now).in_guild(guild);
    match operations {
        [only] => record.with_target(&only.id).with_detail(only.kind.name()),
        [first, ..] => {
            let kinds: BTreeSet<_> = operations.iter().map(|operation| operation.kind.name()).collect();
            let kinds: Vec<_> = kinds.into_iter().collect();
            record.with_target(&first.id).with_detail(format!("{} operations: {}", operations.len(), kinds.join(", ")))
        }
        [] => record,
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
        if let Some(guild) = guild.filter(|_| !caller.grant.includes_guild(guild)) {
            return Err(SubmissionError::GuildNotFound(guild));
        }
        let ValidatedSubmission { operations: mut validated, locations, interactions } = self.validate(submission)?;
        self.check_tenant(&caller, guild, &validated).await?;
        self.check_locations(&caller, guild, locations).await?;
        // A batch is one write, whatever the cache has; for a single operation a cache hit saves the write.
        if let [only] = validated.as_slice()
            && let Some(cached) = self.find_cached(&caller, only).await
        {
            return Ok(vec![cached]);
        }
        self.check_interactions(&mut validated, interactions).await?;
        let acks: Vec<PendingAck> = validated.iter().map(PendingAck::of).collect();
        let store = self.store.with_audit(&caller, submission_record(&caller, guild, &validated, self.now()));
        let submitted = match (self.call_store(store.submit(validated)).await, guild) {
            (Err(SubmitError::ForeignGuild { .. }), Some(guild)) => return Err(SubmissionError::GuildNotFound(guild)),
            (submitted, _) => submitted?,
        };
        if submitted.len() != acks.len() {
            let counts = format!("{} results for {} operations", submitted.len(), acks.len());
            return Err(StoreError::Corrupt(counts).into());
        }
        let queue_of = |(ack, submitted): (&PendingAck, &SubmitResult)| match submitted {
            SubmitResult::Accepted { queue, .. } => Some(*queue),
            SubmitResult::Existing { .. } => ack.queue,
        };
        let queues: BTreeSet<_> = acks.iter().zip(&submitted).filter_map(queue_of).collect();
        self.wake(queues);
        Ok(self.record_results(acks, submitted))
    }

    /// Checks that the guild belongs to the caller's tenant. The store checks it for operations in the guild's own
    /// queue; those in queues of users and interactions do not touch that one.
    async fn check_tenant(
        &self,
        caller: &Caller,
        guild: Option<u64>,
        operations: &[NewOperation],
    ) -> Result<(), SubmissionError> {
        let Some(guild) = guild.filter(|_| caller.tenant.is_some()) else { return Ok(()) };
        let is_checked = operations.iter().all(|operation| operation.queue == QueueKey::Guild(guild));
        if is_checked || self.can_see_guild(caller, guild).await? {
            return Ok(());
        }
        Err(SubmissionError::GuildNotFound(guild))
    }

    /// Checks that the caller may use the locations that operations name. A channel that was not looked up yet is
    /// checked before the operation is sent.
    async fn check_locations(
        &self,
        caller: &Caller,
        guild: Option<u64>,
        locations: Vec<(usize, Location)>,
    ) -> Result<(), SubmissionError> {
        let foreign = self.foreign_locations(caller, locations, |_| guild).await?;
        let errors: Vec<_> = foreign
            .into_iter()
            .map(|(index, location)| (index, FieldError::new("payload", not_found_message(&location, guild))))
            .take(MAX_ERRORS)
            .collect();
        if errors.is_empty() { Ok(()) } else { Err(SubmissionError::ForeignTarget(errors)) }
    }

    /// Notifies the supervisor that these queues have new operations.
    pub fn wake(&self, queues: impl IntoIterator<Item = Queue>) {
        queues.into_iter().for_each(|queue| self.notifier.wake(queue));
    }

    /// Combines the results of the store for the caller, the cache and telemetry.
    fn record_results(&self, acks: Vec<PendingAck>, submitted: Vec<SubmitResult>) -> Vec<AcceptedOperation> {
        let mut cache_entries = Vec::new();
        let mut all = Vec::with_capacity(acks.len());
        for (PendingAck { mut accepted, idempotency: mut key, trace, .. }, submitted) in acks.into_iter().zip(submitted)
        {
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
                    if let Some((_, record)) = &mut key {
                        record.id = id;
                    }
                    accepted = AcceptedOperation { id, state, result, eligible_at: None, replayed: true, ..accepted };
                }
            }
            cache_entries.extend(key);
            all.push(accepted);
        }
        if let Some(cache) = &self.cache
            && !cache_entries.is_empty()
        {
            cache.put(cache_entries);
        }
        all
    }

    /// The cached result for an operation's key, if the store still has that operation.
    async fn find_cached(&self, caller: &Caller, operation: &NewOperation) -> Option<AcceptedOperation> {
        let (cache, key) = (self.cache.as_ref()?, operation.idempotency.as_ref()?);
        let cached = cache.get(key).await?;
        // Used for another payload, or deleted since: only the store can decide.
        if cached.payload_hash != operation.payload_hash {
            return None;
        }
        let details = self.call_store::<_, StoreError>(self.store.for_caller(caller).get(cached.id)).await.ok()??;
        if details.stored.operation.payload_hash != operation.payload_hash {
            return None;
        }
        emit(IdempotencyKeyHit { by: "cache" });
        let &NewOperation { kind, guild, .. } = operation;
        let (state, result) = (details.stored.state, details.result);
        Some(AcceptedOperation { id: cached.id, kind, guild, state, eligible_at: None, result, replayed: true })
    }
}
