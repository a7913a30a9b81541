//! Random sequences of calls, compared with a simple model.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use guildhall::store::Store;
use guildhall_actors::ports::{
    ClaimFrom, Fence, IdempotencyKey, NewOperation, OperationStore as _, SubmitError, SubmitResult, UpdateResult,
};
use guildhall_core::{
    operation::{OperationId, OperationState, Queue},
    time::UnixMs,
};
use proptest::prelude::*;

use crate::setup::{Engine, GUILD, at, open_new_store, operation, operation_update, queue_of};

const STATES: [OperationState; 8] = [
    OperationState::Running,
    OperationState::Delayed,
    OperationState::Retrying,
    OperationState::Reconciling,
    OperationState::Queued,
    OperationState::Succeeded,
    OperationState::Dead,
    OperationState::NeedsReview,
];

#[derive(Clone, Copy, Debug)]
enum StoreAction {
    /// `delay` is the time from acceptance to the due time; `refers` may be an operation of its guild.
    Submit {
        queue: usize,
        key: Option<u8>,
        hash: u8,
        delay: u64,
        refers: Option<usize>,
    },
    /// Advances the time.
    AdvanceTime(u64),
    Join(usize),
    Expedite(usize),
    Claim(usize),
    Release {
        queue: usize,
        stale: bool,
    },
    Record {
        operation: usize,
        state: usize,
        attempts: u32,
        stale: bool,
    },
    Cancel(usize),
}

fn action() -> impl Strategy<Value = StoreAction> {
    prop_oneof![
        4 => (0..2_usize, proptest::option::of(0..3_u8), 0..2_u8, prop_oneof![2 => Just(0), 1 => 1..50_u64],
                proptest::option::weighted(0.3, 0..12_usize))
            .prop_map(|(queue, key, hash, delay, refers)| StoreAction::Submit { queue, key, hash, delay, refers }),
        2 => (0..30_u64).prop_map(StoreAction::AdvanceTime),
        2 => (0..2_usize).prop_map(StoreAction::Join),
        1 => (0..12_usize).prop_map(StoreAction::Expedite),
        2 => (0..2_usize).prop_map(StoreAction::Claim),
        1 => (0..2_usize, proptest::bool::weighted(0.3)).prop_map(|(queue, stale)| StoreAction::Release { queue, stale }),
        6 => (0..12_usize, 0..STATES.len(), 0..3_u32, proptest::bool::weighted(0.1))
            .prop_map(|(operation, state, attempts, stale)| StoreAction::Record { operation, state, attempts, stale }),
        1 => (0..12_usize).prop_map(StoreAction::Cancel),
    ]
}

struct ModelQueue {
    queue: Queue,
    /// The newest fence, and whether it is held.
    fence: Fence,
    held: bool,
    next_seq: u64,
}

struct ModelOperation {
    operation: NewOperation,
    queue: usize,
    state: OperationState,
    attempts: u32,
    /// Its sequence number, after it has joined.
    seq: u64,
    /// When it joins, while it is scheduled.
    joins_at: UnixMs,
}

struct StoreModel {
    queues: [ModelQueue; 2],
    operations: Vec<ModelOperation>,
    now: u64,
}

impl StoreModel {
    fn new() -> Self {
        static GUILDS: AtomicU64 = AtomicU64::new(GUILD);
        let new_queue = || ModelQueue {
            queue: Queue::Guild(GUILDS.fetch_add(1, Ordering::Relaxed)),
            fence: Fence(0),
            held: false,
            next_seq: 1,
        };
        Self { queues: [new_queue(), new_queue()], operations: Vec::new(), now: 0 }
    }

    async fn step(&mut self, store: &Store, action: StoreAction) {
        match action {
            StoreAction::Submit { queue, key, hash, delay, refers } => {
                let refers = refers.and_then(|n| self.operations.get(n)).filter(|entry| entry.queue == queue);
                let refers_to = refers.map(|entry| entry.operation.id).into_iter().collect();
                self.submit(store, queue, key, hash, (delay, refers_to)).await;
            }
            StoreAction::AdvanceTime(by) => self.now += by,
            StoreAction::Join(model_queue) => {
                let next = store.join_due(self.queues[model_queue].queue, at(self.now), 1_000).await.unwrap();
                assert_eq!(next, self.join(model_queue));
            }
            StoreAction::Expedite(operation) => self.expedite(store, operation).await,
            StoreAction::Claim(model_queue) => {
                let model_queue = &mut self.queues[model_queue];
                let claims = store.claim(ClaimFrom::Queues(vec![model_queue.queue])).await.unwrap();
                assert_eq!(claims.len(), usize::from(!model_queue.held));
                if let [claim] = claims.as_slice() {
                    assert!(claim.fence > model_queue.fence);
                    (model_queue.fence, model_queue.held) = (claim.fence, true);
                }
            }
            StoreAction::Release { queue, stale } => {
                let model_queue = &mut self.queues[queue];
                if model_queue.fence == Fence(0) {
                    return;
                }
                let fence = if stale { Fence(model_queue.fence.0 - 1) } else { model_queue.fence };
                assert_eq!(store.release(model_queue.queue, fence).await.unwrap(), !stale);
                model_queue.held &= stale;
            }
            StoreAction::Record { operation, state, attempts, stale } => {
                self.record(store, operation, STATES[state], attempts, stale).await;
            }
            StoreAction::Cancel(operation) => {
                let now = self.now;
                let Some(entry) = self.operations.get_mut(operation) else { return };
                let id = entry.operation.id;
                if entry.state.may_cancel() && entry.attempts == 0 {
                    entry.state = OperationState::Cancelled;
                    self.release(id);
                }
                let entry = &self.operations[operation];
                let result = store.cancel(id, at(now)).await.unwrap();
                assert_eq!(result, Some((entry.state, queue_of(&entry.operation))));
            }
        }
    }

    /// The latest join time of the scheduled operations that this one refers to.
    fn references_join_at(&self, operation: &NewOperation) -> Option<UnixMs> {
        let scheduled = self.operations.iter().filter(|entry| entry.state == OperationState::Scheduled);
        scheduled.filter(|entry| operation.refers_to.contains(&entry.operation.id)).map(|entry| entry.joins_at).max()
    }

    /// Enqueues operations that are due, in order. Returns when the next one is due.
    fn join(&mut self, queue: usize) -> Option<UnixMs> {
        loop {
            let scheduled = self.operations.iter().enumerate();
            let scheduled =
                scheduled.filter(|(_, entry)| entry.queue == queue && entry.state == OperationState::Scheduled);
            let (n, first) =
                scheduled.min_by_key(|(n, entry)| (entry.joins_at, *n)).map(|(n, entry)| (n, entry.joins_at))?;
            if first > at(self.now) {
                return Some(first);
            }
            self.enqueue(n);
        }
    }

    fn enqueue(&mut self, n: usize) {
        let (queue, id) = (self.operations[n].queue, self.operations[n].operation.id);
        (self.operations[n].state, self.operations[n].seq) = (OperationState::Queued, self.queues[queue].next_seq);
        self.queues[queue].next_seq += 1;
        self.release(id);
    }

    /// Reschedules the operations that refer to one that is no longer scheduled.
    fn release(&mut self, target: OperationId) {
        for n in 0..self.operations.len() {
            let operation = self.operations[n].operation.clone();
            if self.operations[n].state == OperationState::Scheduled && operation.refers_to.contains(&target) {
                let references_join_at = self.references_join_at(&operation).unwrap_or_default();
                let own = operation.eligible_at.max(at(self.now)).min(self.operations[n].joins_at);
                self.operations[n].joins_at = own.max(references_join_at);
            }
        }
    }

    async fn expedite(&mut self, store: &Store, n: usize) {
        let now = at(self.now);
        let Some(entry) = self.operations.get_mut(n) else { return };
        if entry.state == OperationState::Scheduled && entry.operation.eligible_at > now {
            entry.operation.eligible_at = now;
            let operation = entry.operation.clone();
            match self.references_join_at(&operation) {
                Some(joins_at) => self.operations[n].joins_at = joins_at,
                None => self.enqueue(n),
            }
        }
        let entry = &self.operations[n];
        let result = store.expedite(entry.operation.id, now).await.unwrap();
        assert_eq!(result, Some((entry.state, queue_of(&entry.operation))));
    }

    async fn submit(
        &mut self,
        store: &Store,
        queue_index: usize,
        key: Option<u8>,
        hash: u8,
        (delay, refers_to): (u64, Vec<OperationId>),
    ) {
        let queue = self.queues[queue_index].queue;
        let scope: Arc<str> = Arc::from(format!("{:?}", self.queues[0].queue));
        let idempotency = key.map(|key| IdempotencyKey { scope, key: key.to_string() });
        let (created_at, eligible_at) = (at(self.now), at(self.now + delay));
        let payload_hash = [hash; 32];
        let new = NewOperation { idempotency, payload_hash, created_at, eligible_at, refers_to, ..operation(queue) };
        self.join(queue_index);
        let same_key = |entry: &&ModelOperation| key.is_some() && entry.operation.idempotency == new.idempotency;
        let expected = match self.operations.iter().find(same_key) {
            Some(entry) if entry.operation.payload_hash == new.payload_hash => {
                Ok(SubmitResult::Existing { id: entry.operation.id, state: entry.state, result: None })
            }
            Some(entry) => Err(SubmitError::KeyReused { index: 0, id: entry.operation.id }),
            None => {
                let own = Some(eligible_at).filter(|due| *due > created_at);
                let joins_at = own.max(self.references_join_at(&new));
                let seq_if_queued = self.queues[queue_index].next_seq;
                self.queues[queue_index].next_seq += 1;
                let (seq, state) =
                    joins_at.map_or((seq_if_queued, OperationState::Queued), |_| (0, OperationState::Scheduled));
                let joins_at = joins_at.unwrap_or_default();
                self.operations.push(ModelOperation {
                    operation: new.clone(),
                    queue: queue_index,
                    state,
                    attempts: 0,
                    seq,
                    joins_at,
                });
                Ok(SubmitResult::Accepted { seq, queue, state })
            }
        };
        assert_eq!(store.submit(vec![new]).await.map(|mut submitted| submitted.remove(0)), expected);
    }

    async fn record(&mut self, store: &Store, operation: usize, state: OperationState, attempts: u32, stale: bool) {
        // Scheduled operations are not in execution.
        let entry = self.operations.get_mut(operation).filter(|entry| entry.state != OperationState::Scheduled);
        let Some(entry) = entry else { return };
        let queue = &self.queues[entry.queue];
        let fence = if stale { Fence(queue.fence.0.wrapping_sub(1) & (u64::MAX >> 1)) } else { queue.fence };
        let mut update = operation_update(&entry.operation, fence, state);
        update.attempts = attempts;
        let expected = if stale || !queue.held {
            UpdateResult::Fenced
        } else if !entry.state.is_final() {
            (entry.state, entry.attempts) = (state, attempts);
            UpdateResult::Done
        } else if (entry.state, entry.attempts) == (state, attempts) {
            UpdateResult::Done
        } else {
            UpdateResult::Finished
        };
        assert_eq!(store.record(vec![update]).await.unwrap(), [expected]);
    }

    async fn assert_matches_store(&self, store: &Store) {
        for queue in &self.queues {
            let page = store.load(queue.queue, 0, 100).await.unwrap();
            let loaded = page.operations;
            let loaded: Vec<_> =
                loaded.iter().map(|stored| (stored.operation.id, stored.state, stored.attempts)).collect();
            let in_queue =
                |entry: &&ModelOperation| queue_of(&entry.operation) == queue.queue && !entry.state.is_final();
            let scheduled = |entry: &&ModelOperation| entry.state == OperationState::Scheduled;
            let first = self.operations.iter().filter(in_queue).filter(scheduled).map(|entry| entry.joins_at).min();
            assert_eq!(page.scheduled, first);
            let mut pending: Vec<&ModelOperation> =
                self.operations.iter().filter(in_queue).filter(|entry| !scheduled(entry)).collect();
            pending.sort_by_key(|entry| entry.seq);
            let pending = pending.into_iter();
            let pending: Vec<_> = pending.map(|entry| (entry.operation.id, entry.state, entry.attempts)).collect();
            assert_eq!(loaded, pending);
        }
        for entry in &self.operations {
            let details = store.get(entry.operation.id).await.unwrap().unwrap();
            assert_eq!((details.stored.state, details.finished_at.is_some()), (entry.state, entry.state.is_final()));
        }
    }
}

fn check_against_model(engine: Engine, cases: u32) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (store, _location) = runtime.block_on(open_new_store(engine));
    let config =
        ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::default() };
    proptest!(config, |(actions in proptest::collection::vec(action(), 1..40))| {
        runtime.block_on(async {
            let mut model = StoreModel::new();
            for action in actions {
                model.step(&store, action).await;
            }
            model.assert_matches_store(&store).await;
        });
    });
}

#[test]
fn sqlite_matches_the_model() {
    check_against_model(Engine::Sqlite, 60);
}

#[test]
fn postgres_matches_the_model() {
    check_against_model(Engine::Postgres, 20);
}
