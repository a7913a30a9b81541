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

use crate::setup::{Engine, GUILD, at, change, fresh, operation, queue_of};

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
enum Action {
    /// `delay` is the time from acceptance to the due time; `refers` may be an operation of its guild.
    Submit {
        queue: usize,
        key: Option<u8>,
        hash: u8,
        delay: u64,
        refers: Option<usize>,
    },
    /// Advances the time.
    Pass(u64),
    Join(usize),
    Hasten(usize),
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

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (0..2_usize, proptest::option::of(0..3_u8), 0..2_u8, prop_oneof![2 => Just(0), 1 => 1..50_u64],
                proptest::option::weighted(0.3, 0..12_usize))
            .prop_map(|(queue, key, hash, delay, refers)| Action::Submit { queue, key, hash, delay, refers }),
        2 => (0..30_u64).prop_map(Action::Pass),
        2 => (0..2_usize).prop_map(Action::Join),
        1 => (0..12_usize).prop_map(Action::Hasten),
        2 => (0..2_usize).prop_map(Action::Claim),
        1 => (0..2_usize, proptest::bool::weighted(0.3)).prop_map(|(queue, stale)| Action::Release { queue, stale }),
        6 => (0..12_usize, 0..STATES.len(), 0..3_u32, proptest::bool::weighted(0.1))
            .prop_map(|(operation, state, attempts, stale)| Action::Record { operation, state, attempts, stale }),
        1 => (0..12_usize).prop_map(Action::Cancel),
    ]
}

struct Line {
    queue: Queue,
    /// The newest fence, and whether it is held.
    fence: Fence,
    held: bool,
    next_seq: u64,
}

struct Kept {
    operation: NewOperation,
    line: usize,
    state: OperationState,
    attempts: u32,
    /// Its sequence number, after it has joined.
    seq: u64,
    /// When it joins, while it is scheduled.
    joins_at: UnixMs,
}

struct Model {
    lines: [Line; 2],
    kept: Vec<Kept>,
    now: u64,
}

impl Model {
    fn new() -> Self {
        static GUILDS: AtomicU64 = AtomicU64::new(GUILD);
        let line = || Line {
            queue: Queue::Guild(GUILDS.fetch_add(1, Ordering::Relaxed)),
            fence: Fence(0),
            held: false,
            next_seq: 1,
        };
        Self { lines: [line(), line()], kept: Vec::new(), now: 0 }
    }

    async fn step(&mut self, store: &Store, action: Action) {
        match action {
            Action::Submit { queue, key, hash, delay, refers } => {
                let refers = refers.and_then(|n| self.kept.get(n)).filter(|kept| kept.line == queue);
                let refers_to = refers.map(|kept| kept.operation.id).into_iter().collect();
                self.submit(store, queue, key, hash, (delay, refers_to)).await;
            }
            Action::Pass(by) => self.now += by,
            Action::Join(line) => {
                let next = store.join(self.lines[line].queue, at(self.now), 1_000).await.unwrap();
                assert_eq!(next, self.join(line));
            }
            Action::Hasten(operation) => self.hasten(store, operation).await,
            Action::Claim(line) => {
                let line = &mut self.lines[line];
                let claims = store.claim(ClaimFrom::Queues(vec![line.queue])).await.unwrap();
                assert_eq!(claims.len(), usize::from(!line.held));
                if let [claim] = claims.as_slice() {
                    assert!(claim.fence > line.fence);
                    (line.fence, line.held) = (claim.fence, true);
                }
            }
            Action::Release { queue, stale } => {
                let line = &mut self.lines[queue];
                if line.fence == Fence(0) {
                    return;
                }
                let fence = if stale { Fence(line.fence.0 - 1) } else { line.fence };
                assert_eq!(store.release(line.queue, fence).await.unwrap(), !stale);
                line.held &= stale;
            }
            Action::Record { operation, state, attempts, stale } => {
                self.record(store, operation, STATES[state], attempts, stale).await;
            }
            Action::Cancel(operation) => {
                let now = self.now;
                let Some(kept) = self.kept.get_mut(operation) else { return };
                let id = kept.operation.id;
                if kept.state.may_cancel() && kept.attempts == 0 {
                    kept.state = OperationState::Cancelled;
                    self.release(id);
                }
                let kept = &self.kept[operation];
                let answer = store.cancel(id, at(now)).await.unwrap();
                assert_eq!(answer, Some((kept.state, queue_of(&kept.operation))));
            }
        }
    }

    /// The latest join time of the scheduled operations that this one refers to.
    fn held_by(&self, operation: &NewOperation) -> Option<UnixMs> {
        let scheduled = self.kept.iter().filter(|kept| kept.state == OperationState::Scheduled);
        scheduled.filter(|kept| operation.refers_to.contains(&kept.operation.id)).map(|kept| kept.joins_at).max()
    }

    /// Enqueues operations that are due, in order. Returns when the next one is due.
    fn join(&mut self, line: usize) -> Option<UnixMs> {
        loop {
            let scheduled = self.kept.iter().enumerate();
            let scheduled = scheduled.filter(|(_, kept)| kept.line == line && kept.state == OperationState::Scheduled);
            let (n, first) =
                scheduled.min_by_key(|(n, kept)| (kept.joins_at, *n)).map(|(n, kept)| (n, kept.joins_at))?;
            if first > at(self.now) {
                return Some(first);
            }
            self.place(n);
        }
    }

    fn place(&mut self, n: usize) {
        let (line, id) = (self.kept[n].line, self.kept[n].operation.id);
        (self.kept[n].state, self.kept[n].seq) = (OperationState::Queued, self.lines[line].next_seq);
        self.lines[line].next_seq += 1;
        self.release(id);
    }

    /// Reschedules the operations that refer to one that is no longer scheduled.
    fn release(&mut self, target: OperationId) {
        for n in 0..self.kept.len() {
            let operation = self.kept[n].operation.clone();
            if self.kept[n].state == OperationState::Scheduled && operation.refers_to.contains(&target) {
                let held = self.held_by(&operation).unwrap_or_default();
                let own = operation.eligible_at.max(at(self.now)).min(self.kept[n].joins_at);
                self.kept[n].joins_at = own.max(held);
            }
        }
    }

    async fn hasten(&mut self, store: &Store, n: usize) {
        let now = at(self.now);
        let Some(kept) = self.kept.get_mut(n) else { return };
        if kept.state == OperationState::Scheduled && kept.operation.eligible_at > now {
            kept.operation.eligible_at = now;
            let operation = kept.operation.clone();
            match self.held_by(&operation) {
                Some(held) => self.kept[n].joins_at = held,
                None => self.place(n),
            }
        }
        let kept = &self.kept[n];
        let answer = store.hasten(kept.operation.id, now).await.unwrap();
        assert_eq!(answer, Some((kept.state, queue_of(&kept.operation))));
    }

    async fn submit(
        &mut self,
        store: &Store,
        line: usize,
        key: Option<u8>,
        hash: u8,
        (delay, refers_to): (u64, Vec<OperationId>),
    ) {
        let queue = self.lines[line].queue;
        let scope: Arc<str> = Arc::from(format!("{:?}", self.lines[0].queue));
        let idempotency = key.map(|key| IdempotencyKey { scope, key: key.to_string() });
        let (created_at, eligible_at) = (at(self.now), at(self.now + delay));
        let payload_hash = [hash; 32];
        let new = NewOperation { idempotency, payload_hash, created_at, eligible_at, refers_to, ..operation(queue) };
        self.join(line);
        let same_key = |kept: &&Kept| key.is_some() && kept.operation.idempotency == new.idempotency;
        let expected = match self.kept.iter().find(same_key) {
            Some(kept) if kept.operation.payload_hash == new.payload_hash => {
                Ok(SubmitResult::Existing { id: kept.operation.id, state: kept.state, result: None })
            }
            Some(kept) => Err(SubmitError::KeyReused { index: 0, id: kept.operation.id }),
            None => {
                let own = Some(eligible_at).filter(|due| *due > created_at);
                let joins_at = own.max(self.held_by(&new));
                let place = self.lines[line].next_seq;
                self.lines[line].next_seq += 1;
                let (seq, state) = joins_at.map_or((place, OperationState::Queued), |_| (0, OperationState::Scheduled));
                let joins_at = joins_at.unwrap_or_default();
                self.kept.push(Kept { operation: new.clone(), line, state, attempts: 0, seq, joins_at });
                Ok(SubmitResult::Accepted { seq, queue, state })
            }
        };
        assert_eq!(store.submit(vec![new]).await.map(|mut submitted| submitted.remove(0)), expected);
    }

    async fn record(&mut self, store: &Store, operation: usize, state: OperationState, attempts: u32, stale: bool) {
        // Scheduled operations are not in execution.
        let kept = self.kept.get_mut(operation).filter(|kept| kept.state != OperationState::Scheduled);
        let Some(kept) = kept else { return };
        let line = &self.lines[kept.line];
        let fence = if stale { Fence(line.fence.0.wrapping_sub(1) & (u64::MAX >> 1)) } else { line.fence };
        let mut told = change(&kept.operation, fence, state);
        told.attempts = attempts;
        let expected = if stale || !line.held {
            UpdateResult::Fenced
        } else if !kept.state.is_final() {
            (kept.state, kept.attempts) = (state, attempts);
            UpdateResult::Done
        } else if (kept.state, kept.attempts) == (state, attempts) {
            UpdateResult::Done
        } else {
            UpdateResult::Gone
        };
        assert_eq!(store.record(vec![told]).await.unwrap(), [expected]);
    }

    async fn is_what_is_stored(&self, store: &Store) {
        for line in &self.lines {
            let page = store.load(line.queue, 0, 100).await.unwrap();
            let loaded = page.operations;
            let loaded: Vec<_> =
                loaded.iter().map(|stored| (stored.operation.id, stored.state, stored.attempts)).collect();
            let of_line = |kept: &&Kept| queue_of(&kept.operation) == line.queue && !kept.state.is_final();
            let scheduled = |kept: &&Kept| kept.state == OperationState::Scheduled;
            let first = self.kept.iter().filter(of_line).filter(scheduled).map(|kept| kept.joins_at).min();
            assert_eq!(page.scheduled, first);
            let mut pending: Vec<&Kept> = self.kept.iter().filter(of_line).filter(|kept| !scheduled(kept)).collect();
            pending.sort_by_key(|kept| kept.seq);
            let pending = pending.into_iter();
            let pending: Vec<_> = pending.map(|kept| (kept.operation.id, kept.state, kept.attempts)).collect();
            assert_eq!(loaded, pending);
        }
        for kept in &self.kept {
            let shown = store.show(kept.operation.id).await.unwrap().unwrap();
            assert_eq!((shown.stored.state, shown.finished_at.is_some()), (kept.state, kept.state.is_final()));
        }
    }
}

fn holds(engine: Engine, cases: u32) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (store, _place) = runtime.block_on(fresh(engine));
    let config =
        ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::default() };
    proptest!(config, |(actions in proptest::collection::vec(action(), 1..40))| {
        runtime.block_on(async {
            let mut model = Model::new();
            for action in actions {
                model.step(&store, action).await;
            }
            model.is_what_is_stored(&store).await;
        });
    });
}

#[test]
fn sqlite_does_what_the_model_does() {
    holds(Engine::Sqlite, 60);
}

#[test]
fn postgres_does_what_the_model_does() {
    holds(Engine::Postgres, 20);
}
