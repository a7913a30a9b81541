//! An in-memory store behind the port, with fault injection.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future::pending,
    sync::{Arc, Mutex, MutexGuard},
};

use guildhall_actors::access::{AuditRecord, DEFAULT_TENANT};
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_actors::ports::{
    Claim, ClaimFrom, DeadLetter, DeadLetterFilter, Fence, GuildFilter, GuildPage, IdempotencyKey, Instance,
    KnownGuild, NewOperation, OperationDetails, OperationFilter, OperationPage, OperationStore, OperationUpdate,
    PauseTarget, ResolvedReference, Retention, StoreError, StoreFuture, StoreUsage, StoredOperation, SubmitError,
    SubmitResult, SweepSummary, UnresolvedReference, UpdateResult, WaitReason,
};
use guildhall_core::{
    access::Owner,
    interaction::{ReceivedInteraction, TokenDigest},
    operation::{Failure, FailureClass, ManagedKind, OperationId, OperationState, Progress, Queue, payload::Location},
    time::UnixMs,
    usage::UsageScope,
};
use tokio::sync::Notify;

/// Injected fault of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Unavailable,
    Corrupt,
    /// It never responds.
    Silent,
    /// It returns too few results.
    Short,
    Panics,
}

#[derive(Default)]
struct Inner {
    rows: Vec<OperationDetails>,
    keys: HashMap<IdempotencyKey, ([u8; 32], OperationId)>,
    dead_letters: Vec<DeadLetter>,
    everything_paused: bool,
    paused: BTreeSet<Queue>,
    fault: Option<Fault>,
    submits: u64,
}

/// Operations in memory.
pub(crate) struct MemoryStore {
    inner: Mutex<Inner>,
    max_operations: u64,
    stuck_call: Notify,
}

impl MemoryStore {
    pub(crate) fn new(max_operations: u64) -> Arc<Self> {
        Arc::new(Self { inner: Mutex::default(), max_operations, stuck_call: Notify::new() })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn fail(&self, fault: Option<Fault>) {
        self.inner().fault = fault;
    }

    /// Number of operations in the store.
    pub(crate) fn count(&self) -> usize {
        self.inner().rows.len()
    }

    /// Waits until a call arrives that never gets a response.
    pub(crate) async fn wait_for_stuck_call(&self) {
        self.stuck_call.notified().await;
    }

    /// Number of calls to `submit`.
    pub(crate) fn submits(&self) -> u64 {
        self.inner().submits
    }

    /// The operation, as it was stored.
    pub(crate) fn stored(&self, id: &str) -> NewOperation {
        let id: OperationId = id.parse().unwrap();
        self.inner().find(id).unwrap().stored.operation.clone()
    }

    /// Sets the state of an operation.
    pub(crate) fn set_state(&self, id: &str, state: OperationState) {
        let id: OperationId = id.parse().unwrap();
        let mut inner = self.inner();
        let row = inner.find(id).unwrap();
        row.stored.state = state;
        if state == OperationState::Succeeded {
            row.result = Some("{\"role_id\":\"77\"}".to_owned());
        }
        let row = row.clone();
        if state == OperationState::Dead {
            let operation = row.stored.operation;
            let queue = queue_of(&operation);
            inner.dead_letters.push(DeadLetter {
                id,
                tenant: operation.tenant,
                queue,
                guild: operation.guild,
                caller: operation.caller,
                bounds: operation.bounds,
                scopes: operation.scopes,
                kind: operation.kind,
                payload: operation.payload,
                error: Failure::new(FailureClass::Forbidden, "Missing Permissions"),
                attempts: 1,
                reason: operation.reason,
                created_at: operation.created_at,
                died_at: UnixMs::new(operation.created_at.millis() + 5),
                redrive_of: operation.redrive_of,
                redriven_as: None,
            });
        }
    }

    /// Deletes an operation, as a sweep does, but neither its key nor its dead letter.
    pub(crate) fn delete_row(&self, id: &str) {
        let id: OperationId = id.parse().unwrap();
        self.inner().rows.retain(|row| row.stored.operation.id != id);
    }

    fn respond<'a, T: Send + 'a, E: From<StoreError> + Send + 'a>(
        &'a self,
        act: impl FnOnce(&mut Inner) -> Result<T, E> + Send + 'a,
    ) -> StoreFuture<'a, T, E> {
        Box::pin(async move {
            let fault = self.inner().fault;
            match fault {
                None | Some(Fault::Short) => act(&mut self.inner()),
                Some(Fault::Unavailable) => Err(StoreError::Unavailable("the disk is full".to_owned()).into()),
                Some(Fault::Corrupt) => Err(StoreError::Corrupt("row 7".to_owned()).into()),
                Some(Fault::Silent) => {
                    self.stuck_call.notify_one();
                    pending().await
                }
                Some(Fault::Panics) => panic!("panic injected by the test"),
            }
        })
    }
}

impl Inner {
    fn find(&mut self, id: OperationId) -> Option<&mut OperationDetails> {
        self.rows.iter_mut().find(|row| row.stored.operation.id == id)
    }

    fn insert(&mut self, mut operation: NewOperation) -> u64 {
        if operation.tenant.is_empty() {
            operation.tenant = Arc::from(DEFAULT_TENANT);
        }
        let queue = queue_of(&operation);
        let position = self.rows.iter().filter(|row| queue_of(&row.stored.operation) == queue).count() as u64 + 1;
        let updated_at = operation.created_at;
        let (state, seq, waits_for) = match state_of(&operation) {
            OperationState::Scheduled => (OperationState::Scheduled, 0, Some(WaitReason::Delay)),
            state => (state, position, None),
        };
        let stored = StoredOperation {
            operation,
            seq,
            state,
            attempts: 0,
            delays: 0,
            parked: false,
            intent: None,
            progress: Progress::default(),
            error: None,
            unknown_outcome: None,
        };
        self.rows.push(OperationDetails {
            stored,
            result: None,
            updated_at,
            finished_at: None,
            attempts: Vec::new(),
            waits_for,
        });
        seq
    }

    fn dead_letters(&self, filter: &DeadLetterFilter) -> Vec<DeadLetter> {
        let matches = |dead_letter: &&DeadLetter| {
            filter.id.is_none_or(|id| dead_letter.id == id)
                && is_among(filter.guilds.as_deref(), dead_letter.guild)
                && filter.kind.is_none_or(|kind| dead_letter.kind == kind)
                && filter.class.as_ref().is_none_or(|class| dead_letter.error.class.name() == class)
                && filter
                    .message_contains
                    .as_ref()
                    .is_none_or(|reason| dead_letter.error.message.to_lowercase().contains(&reason.to_lowercase()))
                && filter.died_after.is_none_or(|after| dead_letter.died_at >= after)
                && filter.died_before.is_none_or(|before| dead_letter.died_at < before)
                && filter.redriven.is_none_or(|redriven| dead_letter.redriven_as.is_some() == redriven)
                && filter.before.is_none_or(|before| dead_letter.id < before)
        };
        let mut found: Vec<_> = self.dead_letters.iter().filter(matches).cloned().collect();
        found.sort_by_key(|dead_letter| std::cmp::Reverse(dead_letter.id));
        found.truncate(filter.limit);
        found
    }
}

fn queue_of(operation: &NewOperation) -> Queue {
    let tenant = if operation.tenant.is_empty() { DEFAULT_TENANT } else { &operation.tenant };
    operation.queue.queue(tenant)
}

fn state_of(operation: &NewOperation) -> OperationState {
    if operation.eligible_at > operation.created_at { OperationState::Scheduled } else { OperationState::Queued }
}

fn not_supported<T>() -> Result<T, StoreError> {
    Err(StoreError::Unavailable("not used by these tests".to_owned()))
}

impl OperationStore for MemoryStore {
    fn with_audit(self: Arc<Self>, _: AuditRecord) -> Arc<dyn OperationStore> {
        self
    }

    fn for_tenant(self: Arc<Self>, _: Arc<str>) -> Arc<dyn OperationStore> {
        self
    }

    fn lease(&self) -> LeaseGuard {
        LeaseGuard::always()
    }

    fn queue_lease(&self, _: Queue, _: Fence) -> LeaseGuard {
        LeaseGuard::always()
    }

    fn assigned_elsewhere(&self, _: &[Queue]) -> Vec<Queue> {
        Vec::new()
    }

    fn owners(&self, locations: Vec<Location>) -> StoreFuture<'_, Vec<Option<Owner>>> {
        let unclaimed = |location: &Location| match location {
            Location::Guild(id) => Some(Owner { guild: Some(*id), tenant: DEFAULT_TENANT.to_owned() }),
            Location::Channel(_) | Location::Webhook(..) => None,
        };
        let owners = locations.iter().map(unclaimed).collect();
        Box::pin(async move { Ok(owners) })
    }

    fn record_location(&self, _: Location, guild: Option<u64>) -> StoreFuture<'_, Owner> {
        Box::pin(async move { Ok(Owner { guild, tenant: DEFAULT_TENANT.to_owned() }) })
    }

    fn guilds(&self, filter: GuildFilter) -> StoreFuture<'_, GuildPage> {
        self.respond(move |inner| {
            let named = inner.rows.iter().filter_map(|row| row.stored.operation.guild);
            let known: BTreeSet<u64> = named.chain(inner.paused.iter().filter_map(|queue| queue.guild())).collect();
            let is_wanted = |id: &u64| *id > filter.after && filter.guilds.as_ref().is_none_or(|ids| ids.contains(id));
            let guild = |id| KnownGuild { id, name: None, tenant: Arc::from(DEFAULT_TENANT) };
            let guilds = known.into_iter().filter(is_wanted).take(filter.limit).map(guild).collect();
            Ok(GuildPage { guilds, next: None })
        })
    }

    fn tenant(&self, _: u64) -> StoreFuture<'_, Option<Arc<str>>> {
        self.respond(|_| Ok(None))
    }

    fn submit(&self, batch: Vec<NewOperation>) -> StoreFuture<'_, Vec<SubmitResult>, SubmitError> {
        let max = self.max_operations;
        self.respond(move |inner| {
            inner.submits += 1;
            let mut outcomes = Vec::new();
            for (index, operation) in batch.iter().enumerate() {
                let existing = operation.idempotency.as_ref().and_then(|key| inner.keys.get(key)).copied();
                if let Some((hash, id)) = existing {
                    if hash != operation.payload_hash {
                        return Err(SubmitError::KeyReused { index, id });
                    }
                    let (state, result) = inner
                        .find(id)
                        .map_or((OperationState::Succeeded, None), |row| (row.stored.state, row.result.clone()));
                    outcomes.push(SubmitResult::Existing { id, state, result });
                    continue;
                }
                for id in &operation.refers_to {
                    if inner.find(*id).is_none() {
                        return Err(SubmitError::UnknownOperation { index, id: *id });
                    }
                }
                outcomes.push(SubmitResult::Accepted {
                    seq: 0,
                    queue: queue_of(operation),
                    state: state_of(operation),
                });
            }
            let new = outcomes.iter().filter(|outcome| matches!(outcome, SubmitResult::Accepted { .. })).count() as u64;
            let pending = inner.rows.len() as u64;
            if pending + new > max {
                return Err(SubmitError::Full { queue: queue_of(&batch[0]), pending, max });
            }
            for (operation, outcome) in batch.into_iter().zip(&mut outcomes) {
                if let SubmitResult::Accepted { seq, .. } = outcome {
                    if let Some(key) = operation.idempotency.clone() {
                        inner.keys.insert(key, (operation.payload_hash, operation.id));
                    }
                    *seq = inner.insert(operation);
                }
            }
            if inner.fault == Some(Fault::Short) {
                outcomes.pop();
            }
            Ok(outcomes)
        })
    }

    fn received_interactions(&self, _: Vec<TokenDigest>) -> StoreFuture<'_, Vec<ReceivedInteraction>> {
        self.respond(|_| Ok(Vec::new()))
    }

    fn claim(&self, _: ClaimFrom) -> StoreFuture<'_, Vec<Claim>> {
        self.respond(|_| not_supported())
    }

    fn release(&self, _: Queue, _: Fence) -> StoreFuture<'_, bool> {
        self.respond(|_| not_supported())
    }

    fn load(&self, queue: Queue, after: u64, limit: usize) -> StoreFuture<'_, OperationPage> {
        self.respond(move |inner| {
            let rows = inner.rows.iter().map(|row| &row.stored);
            let pending =
                rows.filter(|row| queue_of(&row.operation) == queue && row.seq > after && !row.state.is_final());
            let scheduled = |row: &&OperationDetails| {
                row.stored.state == OperationState::Scheduled && queue_of(&row.stored.operation) == queue
            };
            let due = inner.rows.iter().filter(scheduled).map(|row| row.stored.operation.eligible_at).min();
            Ok(OperationPage {
                operations: pending.take(limit).cloned().collect(),
                scheduled: due,
                ..OperationPage::default()
            })
        })
    }

    fn join_due(&self, _: Queue, _: UnixMs, _: usize) -> StoreFuture<'_, Option<UnixMs>> {
        self.respond(|_| not_supported())
    }

    fn count_scheduled(&self, queue: Queue, limit: usize) -> StoreFuture<'_, u64> {
        self.respond(move |inner| {
            let scheduled = |row: &&OperationDetails| {
                row.stored.state == OperationState::Scheduled && queue_of(&row.stored.operation) == queue
            };
            Ok(inner.rows.iter().filter(scheduled).take(limit).count() as u64)
        })
    }

    fn record(&self, _: Vec<OperationUpdate>) -> StoreFuture<'_, Vec<UpdateResult>> {
        self.respond(|_| not_supported())
    }

    fn resolve(&self, _: Option<u64>, _: Vec<UnresolvedReference>) -> StoreFuture<'_, Vec<ResolvedReference>> {
        self.respond(|_| not_supported())
    }

    fn find_bound(&self, _: ManagedKind, _: Vec<u64>) -> StoreFuture<'_, Vec<u64>> {
        self.respond(|_| not_supported())
    }

    fn release_held(&self, _: UnixMs, _: usize) -> StoreFuture<'_, usize> {
        self.respond(|_| not_supported())
    }

    fn next_due(&self) -> StoreFuture<'_, Option<UnixMs>> {
        self.respond(|_| not_supported())
    }

    fn get(&self, id: OperationId) -> StoreFuture<'_, Option<OperationDetails>> {
        self.respond(move |inner| Ok(inner.find(id).cloned()))
    }

    fn list(&self, filter: OperationFilter) -> StoreFuture<'_, Vec<OperationDetails>> {
        self.respond(move |inner| {
            let matches = |row: &&OperationDetails| {
                let operation = &row.stored.operation;
                is_among(filter.guilds.as_deref(), operation.guild)
                    && filter.state.is_none_or(|state| row.stored.state == state)
                    && filter.kind.is_none_or(|kind| operation.kind == kind)
                    && filter.parked.is_none_or(|parked| row.stored.parked == parked)
                    && filter.created_after.is_none_or(|after| operation.created_at >= after)
                    && filter.created_before.is_none_or(|before| operation.created_at < before)
                    && filter.before.is_none_or(|before| operation.id < before)
            };
            let mut rows: Vec<_> = inner.rows.iter().filter(matches).cloned().collect();
            rows.sort_by_key(|row| std::cmp::Reverse(row.stored.operation.id));
            rows.truncate(filter.limit);
            Ok(rows)
        })
    }

    fn cancel(&self, id: OperationId, _: UnixMs) -> StoreFuture<'_, Option<(OperationState, Queue)>> {
        self.respond(move |inner| {
            Ok(inner.find(id).map(|row| {
                let not_attempted =
                    row.stored.attempts == 0 && row.stored.intent.is_none() && row.stored.progress.is_empty();
                if row.stored.state.may_cancel() && not_attempted {
                    row.stored.state = OperationState::Cancelled;
                }
                (row.stored.state, queue_of(&row.stored.operation))
            }))
        })
    }

    fn expedite(&self, id: OperationId, now: UnixMs) -> StoreFuture<'_, Option<(OperationState, Queue)>> {
        self.respond(move |inner| {
            Ok(inner.find(id).map(|row| {
                row.stored.operation.eligible_at = now;
                if row.stored.state == OperationState::Scheduled {
                    (row.stored.state, row.stored.seq, row.waits_for) = (OperationState::Queued, u64::MAX, None);
                }
                (row.stored.state, queue_of(&row.stored.operation))
            }))
        })
    }

    fn dead_letters(&self, filter: DeadLetterFilter) -> StoreFuture<'_, Vec<DeadLetter>> {
        self.respond(move |inner| Ok(inner.dead_letters(&filter)))
    }

    fn redrive(&self, batch: Vec<NewOperation>) -> StoreFuture<'_, Vec<OperationId>, SubmitError> {
        self.respond(move |inner| {
            for (index, redriven) in batch.iter().enumerate() {
                for id in &redriven.refers_to {
                    if inner.find(*id).is_none() {
                        return Err(SubmitError::UnknownOperation { index, id: *id });
                    }
                }
            }
            let mut accepted = Vec::new();
            for redriven in batch {
                let dead_id = redriven.redrive_of.unwrap();
                let dead_letter = inner.dead_letters.iter_mut().find(|dead_letter| dead_letter.id == dead_id);
                let free = match dead_letter {
                    Some(dead_letter) if dead_letter.redriven_as.is_some() => false,
                    Some(dead_letter) => {
                        dead_letter.redriven_as = Some(redriven.id);
                        true
                    }
                    None => !inner.rows.iter().any(|row| row.stored.operation.redrive_of == Some(dead_id)),
                };
                if free {
                    accepted.push(redriven.id);
                    inner.insert(redriven);
                }
            }
            Ok(accepted)
        })
    }

    fn discard(&self, filter: DeadLetterFilter) -> StoreFuture<'_, u64> {
        self.respond(move |inner| {
            let found: BTreeSet<_> =
                inner.dead_letters(&filter).into_iter().map(|dead_letter| dead_letter.id).collect();
            inner.dead_letters.retain(|dead_letter| !found.contains(&dead_letter.id));
            Ok(found.len() as u64)
        })
    }

    fn pause(&self, target: PauseTarget, paused: bool) -> StoreFuture<'_, ()> {
        self.respond(move |inner| {
            match (target, paused) {
                (PauseTarget::All, _) => inner.everything_paused = paused,
                (PauseTarget::Queue(queue), true) => drop(inner.paused.insert(queue)),
                (PauseTarget::Queue(queue), false) => drop(inner.paused.remove(&queue)),
            }
            Ok(())
        })
    }

    fn paused(&self) -> StoreFuture<'_, (bool, Vec<Queue>)> {
        self.respond(|inner| Ok((inner.everything_paused, inner.paused.iter().copied().collect())))
    }

    fn instances(&self) -> StoreFuture<'_, Vec<Instance>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn depths(&self) -> StoreFuture<'_, BTreeMap<&'static str, u64>> {
        self.respond(|_| not_supported())
    }

    fn usage(&self, _: Option<Vec<UsageScope>>) -> StoreFuture<'_, StoreUsage> {
        Box::pin(async { Ok(StoreUsage::default()) })
    }

    fn sweep(&self, _: Retention, _: UnixMs) -> StoreFuture<'_, SweepSummary> {
        self.respond(|_| not_supported())
    }

    fn state(&self, _: &str) -> StoreFuture<'_, Option<String>> {
        self.respond(|_| not_supported())
    }

    fn set_state(&self, _: &str, _: Option<String>, _: Option<UnixMs>) -> StoreFuture<'_, ()> {
        self.respond(|_| not_supported())
    }
}

fn is_among(guilds: Option<&[u64]>, guild: Option<u64>) -> bool {
    guilds.is_none_or(|guilds| guild.is_some_and(|guild| guilds.contains(&guild)))
}
