//! In-memory store that keeps the guarantees of the port across restarts of processes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use guildhall_core::access::Owner;
use guildhall_core::interaction::{ReceivedInteraction, TokenDigest};
use guildhall_core::operation::payload::Location;
use guildhall_core::operation::{ManagedKind, OperationId, OperationState, Queue};
use guildhall_core::time::UnixMs;
use guildhall_core::usage::UsageScope;

use super::fault_injector::{Fault, FaultInjector};
use super::ownership::Ownership;
use super::tables::{Row, Tables};
use crate::access::{AuditRecord, DEFAULT_TENANT};
use crate::lease_guard::LeaseGuard;
use crate::ports::{
    Claim, ClaimFrom, DeadLetter, DeadLetterFilter, Fence, GuildFilter, GuildPage, Instance, NewOperation,
    OperationDetails, OperationFilter, OperationPage, OperationStore, OperationUpdate, PauseTarget, ResolvedReference,
    RestoredOperation, Retention, StoreError, StoreFuture, StoreUsage, StoredOperation, SubmitError, SubmitResult,
    SweepSummary, UnknownOutcome, UnreadableOperation, UnresolvedReference, UpdateResult,
};

/// A process's access to the store.
#[derive(Clone, Debug)]
pub(crate) struct MemoryStore {
    tables: Arc<Mutex<Tables>>,
    ownership: Ownership,
    faults: Arc<FaultInjector>,
    owner: u32,
}

impl MemoryStore {
    pub(crate) fn new(faults: Arc<FaultInjector>) -> Self {
        Self { tables: Arc::default(), ownership: Ownership::default(), faults, owner: 0 }
    }

    pub(crate) fn process(&self, owner: u32) -> Self {
        Self { owner, ..self.clone() }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap()
    }

    /// Simulates that all processes have ended, and their leases have expired.
    pub(crate) fn orphan(&self) {
        self.tables().queues.values_mut().for_each(|row| row.owner = None);
    }

    /// Moves a queue to another process, regardless of its owner.
    pub(crate) fn steal(&self, queue: Queue) {
        let mut tables = self.tables();
        let row = tables.queues.get_mut(&queue).unwrap();
        (row.owner, row.fence) = (Some(99), row.fence + 1);
    }

    /// Assigns a queue to this process, the first being 1, regardless of its owner.
    pub(crate) fn assign(&self, queue: Queue, process: u32) {
        self.ownership.assign(queue, process);
    }

    /// Ends the lease of a queue's owner, although the store still accepts its writes.
    pub(crate) fn end_lease(&self, queue: Queue) {
        let fence = self.tables().queues[&queue].fence;
        self.ownership.end_lease(queue, Fence(fence));
    }

    pub(crate) fn owner(&self, queue: Queue) -> Option<u32> {
        self.tables().queues.get(&queue).and_then(|row| row.owner)
    }

    pub(crate) fn row(&self, id: OperationId) -> Row {
        self.tables().rows[&id].clone()
    }

    pub(crate) fn state(&self, id: OperationId) -> OperationState {
        self.tables().rows[&id].stored.state
    }

    pub(crate) fn is_owned(&self, queue: Queue) -> bool {
        self.owner(queue).is_some()
    }

    pub(crate) fn unfinished(&self) -> usize {
        let tables = self.tables();
        let scheduled: usize = tables.queues.values().map(|row| row.scheduled.len()).sum();
        tables.orders.values().map(BTreeMap::len).sum::<usize>() + scheduled
    }

    /// Makes the row of an operation unreadable.
    pub(crate) fn damage(&self, id: OperationId, problem: &str) {
        self.tables().damaged.insert(id, problem.to_owned());
    }

    /// Turns an operation into one of a restored backup that was in this state.
    pub(crate) fn restore(&self, id: OperationId, state: OperationState, restored: RestoredOperation) {
        let mut tables = self.tables();
        let stored = &mut tables.rows.get_mut(&id).unwrap().stored;
        let unknown = UnknownOutcome::new(stored.operation.created_at);
        (stored.state, stored.unknown_outcome) = (state, Some(UnknownOutcome { restored: Some(restored), ..unknown }));
    }

    pub(crate) fn commits(&self) -> u64 {
        self.tables().commits
    }

    pub(crate) fn accept(&self, operation: NewOperation) {
        self.tables().accept(operation);
    }

    /// Executes a call with its planned fault.
    async fn call<T>(&self, act: impl FnOnce(&mut Tables) -> T) -> Result<T, StoreError> {
        let fault = self.faults.before().await;
        if fault == Some(Fault::Refuse) {
            return Err(StoreError::Unavailable("planned fault".to_owned()));
        }
        let result = act(&mut self.tables());
        self.faults.after(fault).await;
        if fault == Some(Fault::LoseResponse) {
            return Err(StoreError::Unavailable("connection lost".to_owned()));
        }
        Ok(result)
    }
}

fn queue_of(stored: &StoredOperation) -> Queue {
    stored.operation.queue.queue(&stored.operation.tenant)
}

impl OperationStore for MemoryStore {
    fn with_audit(self: Arc<Self>, _: AuditRecord) -> Arc<dyn OperationStore> {
        self
    }

    fn for_tenant(self: Arc<Self>, _: Arc<str>) -> Arc<dyn OperationStore> {
        self
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

    fn guilds(&self, _: GuildFilter) -> StoreFuture<'_, GuildPage> {
        Box::pin(async { Ok(GuildPage::default()) })
    }

    fn tenant(&self, _: u64) -> StoreFuture<'_, Option<Arc<str>>> {
        Box::pin(async { Ok(None) })
    }

    fn submit(&self, batch: Vec<NewOperation>) -> StoreFuture<'_, Vec<SubmitResult>, SubmitError> {
        batch.into_iter().for_each(|operation| self.accept(operation));
        Box::pin(async { Ok(Vec::new()) })
    }

    fn claim(&self, from: ClaimFrom) -> StoreFuture<'_, Vec<Claim>> {
        let owner = self.owner;
        let ownership = self.ownership.clone();
        let is_ours = move |queue: &Queue| !ownership.is_owned_elsewhere(*queue, owner);
        let claimed = self.call(move |tables| match from {
            ClaimFrom::Queues(queues) => {
                queues.into_iter().filter(is_ours).filter_map(|queue| tables.claim(queue, owner)).collect()
            }
            ClaimFrom::Due { .. } if tables.all_paused => Vec::new(),
            ClaimFrom::Due { now, limit } => {
                let mut due: Vec<(UnixMs, Queue)> = tables
                    .queues
                    .keys()
                    .filter(|queue| tables.is_free(**queue) && is_ours(queue))
                    .filter_map(|queue| Some((tables.due(*queue).filter(|due| *due <= now)?, *queue)))
                    .collect();
                due.sort_unstable();
                due.into_iter().take(limit).filter_map(|(_, queue)| tables.claim(queue, owner)).collect()
            }
        });
        Box::pin(async move {
            self.faults.at_claim().await;
            let claimed: Result<Vec<Claim>, StoreError> = claimed.await;
            let mut tables = self.tables();
            match &claimed {
                Ok(claims) => tables.delivered.extend(claims.iter().map(|claim| (claim.queue, claim.fence.0))),
                Err(_) => tables.release_unreceived(owner),
            }
            drop(tables);
            claimed
        })
    }

    fn lease(&self) -> LeaseGuard {
        LeaseGuard::always()
    }

    fn queue_lease(&self, queue: Queue, fence: Fence) -> LeaseGuard {
        self.ownership.lease(queue, fence)
    }

    fn assigned_elsewhere(&self, queues: &[Queue]) -> Vec<Queue> {
        queues.iter().copied().filter(|queue| self.ownership.is_owned_elsewhere(*queue, self.owner)).collect()
    }

    fn release(&self, queue: Queue, fence: Fence) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            self.faults.at_release().await;
            let clear_owner = |tables: &mut Tables| match tables.queues.get_mut(&queue) {
                Some(row) if row.fence == fence.0 => {
                    row.owner = None;
                    true
                }
                Some(_) | None => false,
            };
            self.call(clear_owner).await
        })
    }

    fn load(&self, queue: Queue, after: u64, limit: usize) -> StoreFuture<'_, OperationPage> {
        Box::pin(self.call(move |tables| {
            let order = tables.orders.get(&queue).into_iter().flat_map(|order| order.range(after + 1..));
            let mut page = OperationPage { scheduled: tables.first_scheduled(queue), ..OperationPage::default() };
            for stored in order.take(limit).map(|(_, id)| &tables.rows[id].stored) {
                match tables.damaged.get(&stored.operation.id) {
                    None => page.operations.push(stored.clone()),
                    Some(problem) => page.unreadable.push(UnreadableOperation {
                        id: stored.operation.id,
                        guild: stored.operation.guild,
                        seq: stored.seq,
                        attempts: stored.attempts,
                        delays: stored.delays,
                        may_have_been_sent: stored.intent.is_some(),
                        problem: problem.clone(),
                    }),
                }
            }
            page
        }))
    }

    fn join_due(&self, queue: Queue, now: UnixMs, limit: usize) -> StoreFuture<'_, Option<UnixMs>> {
        Box::pin(self.call(move |tables| tables.join(queue, now, limit)))
    }

    fn count_scheduled(&self, queue: Queue, limit: usize) -> StoreFuture<'_, u64> {
        let tables = self.tables();
        let count = tables.queues.get(&queue).map_or(0, |row| row.scheduled.len().min(limit));
        Box::pin(async move { Ok(count as u64) })
    }

    fn record(&self, updates: Vec<OperationUpdate>) -> StoreFuture<'_, Vec<UpdateResult>> {
        Box::pin(self.call(move |tables| {
            for (index, update) in updates.iter().enumerate() {
                let twice = updates[..index].iter().any(|earlier| earlier.id == update.id);
                assert!(!twice, "an operation is changed twice in one call");
            }
            tables.commits += 1;
            updates.iter().map(|update| tables.record(update)).collect()
        }))
    }

    fn resolve(
        &self,
        guild: Option<u64>,
        references: Vec<UnresolvedReference>,
    ) -> StoreFuture<'_, Vec<ResolvedReference>> {
        Box::pin(self.call(move |tables| {
            let resolved = references.into_iter().map(|references| match references {
                UnresolvedReference::Key(kind, key) => match tables.bindings.get(&(guild, kind, key)) {
                    Some(&(id, channel)) => ResolvedReference::Object { id, channel },
                    None => ResolvedReference::Missing(None),
                },
                UnresolvedReference::Operation(id) => match tables.rows.get(&id) {
                    Some(Row { created: Some(id), .. }) => ResolvedReference::Object { id: *id, channel: None },
                    Some(row) if row.stored.state.is_final() => ResolvedReference::Missing(Some(row.stored.state)),
                    Some(_) => ResolvedReference::Pending,
                    None => ResolvedReference::Missing(None),
                },
            });
            resolved.collect()
        }))
    }

    fn find_bound(&self, _: ManagedKind, _: Vec<u64>) -> StoreFuture<'_, Vec<u64>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn release_held(&self, now: UnixMs, limit: usize) -> StoreFuture<'_, usize> {
        let count = self.tables().release_held(now, limit);
        Box::pin(async move { Ok(count) })
    }

    fn next_due(&self) -> StoreFuture<'_, Option<UnixMs>> {
        Box::pin(self.call(|tables| {
            let free = tables.queues.keys().filter(|queue| tables.is_free(**queue));
            free.filter_map(|queue| tables.due(*queue)).min()
        }))
    }

    fn get(&self, id: OperationId) -> StoreFuture<'_, Option<OperationDetails>> {
        let details = self.tables().rows.get(&id).cloned().map(|row| OperationDetails {
            stored: row.stored,
            result: row.result,
            updated_at: UnixMs::default(),
            finished_at: None,
            attempts: row.attempts,
            waits_for: None,
        });
        Box::pin(async { Ok(details) })
    }

    fn list(&self, _: OperationFilter) -> StoreFuture<'_, Vec<OperationDetails>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn cancel(&self, id: OperationId, now: UnixMs) -> StoreFuture<'_, Option<(OperationState, Queue)>> {
        let mut tables = self.tables();
        if tables.rows.get(&id).is_some_and(|row| row.stored.state == OperationState::Scheduled) {
            tables.unschedule(id, now, OperationState::Cancelled);
        }
        let cancelled = tables.rows.get_mut(&id).map(|row| {
            let untried = row.stored.attempts == 0 && row.stored.intent.is_none() && row.stored.progress.is_empty();
            if row.stored.state.may_cancel() && untried {
                row.stored.state = OperationState::Cancelled;
            }
            (row.stored.state, queue_of(&row.stored), row.stored.seq)
        });
        let result = cancelled.map(|(state, queue, seq)| {
            if state == OperationState::Cancelled {
                tables.orders.entry(queue).or_default().remove(&seq);
            }
            (state, queue)
        });
        Box::pin(async move { Ok(result) })
    }

    fn expedite(&self, id: OperationId, now: UnixMs) -> StoreFuture<'_, Option<(OperationState, Queue)>> {
        let mut tables = self.tables();
        if tables.rows.get(&id).is_some_and(|row| row.stored.state == OperationState::Scheduled) {
            tables.unschedule(id, now, OperationState::Queued);
        }
        let expedited = tables.rows.get_mut(&id).map(|row| {
            row.stored.operation.eligible_at = now;
            (row.stored.state, queue_of(&row.stored))
        });
        Box::pin(async move { Ok(expedited) })
    }

    fn dead_letters(&self, _: DeadLetterFilter) -> StoreFuture<'_, Vec<DeadLetter>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn redrive(&self, _: Vec<NewOperation>) -> StoreFuture<'_, Vec<OperationId>, SubmitError> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn discard(&self, _: DeadLetterFilter) -> StoreFuture<'_, u64> {
        Box::pin(async { Ok(0) })
    }

    fn pause(&self, target: PauseTarget, paused: bool) -> StoreFuture<'_, ()> {
        let mut tables = self.tables();
        match target {
            PauseTarget::All => tables.all_paused = paused,
            PauseTarget::Queue(queue) => tables.queues.entry(queue).or_default().paused = paused,
        }
        Box::pin(async { Ok(()) })
    }

    fn paused(&self) -> StoreFuture<'_, (bool, Vec<Queue>)> {
        let tables = self.tables();
        let queues = tables.queues.iter().filter(|(_, row)| row.paused).map(|(queue, _)| *queue);
        let paused = (tables.all_paused, queues.collect());
        Box::pin(async move { Ok(paused) })
    }

    fn received_interactions(&self, _: Vec<TokenDigest>) -> StoreFuture<'_, Vec<ReceivedInteraction>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn instances(&self) -> StoreFuture<'_, Vec<Instance>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn depths(&self) -> StoreFuture<'_, BTreeMap<&'static str, u64>> {
        Box::pin(async { Ok(BTreeMap::new()) })
    }

    fn usage(&self, _: Option<Vec<UsageScope>>) -> StoreFuture<'_, StoreUsage> {
        Box::pin(async { Ok(StoreUsage::default()) })
    }

    fn sweep(&self, _: Retention, _: UnixMs) -> StoreFuture<'_, SweepSummary> {
        Box::pin(async { Ok(SweepSummary::default()) })
    }

    fn state(&self, _: &str) -> StoreFuture<'_, Option<String>> {
        Box::pin(async { Ok(None) })
    }

    fn set_state(&self, _: &str, _: Option<String>, _: Option<UnixMs>) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}
