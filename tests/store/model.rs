//! Random sequences of calls, against a model that is too simple to be wrong.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use guildhall::store::Store;
use guildhall_actors::operations::{
    ClaimFrom, Fence, IdempotencyKey, NewOperation, OperationStore as _, Recorded, SubmitError, Submitted,
};
use guildhall_core::operation::{Queue, QueueKey, State};
use proptest::prelude::*;

use crate::setup::{Engine, GUILD, at, change, fresh, operation, queue_of};

const STATES: [State; 8] = [
    State::Running,
    State::Delayed,
    State::Retrying,
    State::Reconciling,
    State::Queued,
    State::Succeeded,
    State::Dead,
    State::NeedsReview,
];

#[derive(Clone, Copy, Debug)]
enum Action {
    Submit { queue: usize, key: Option<u8>, hash: u8 },
    Claim(usize),
    Release { queue: usize, stale: bool },
    Record { operation: usize, state: usize, attempts: u32, stale: bool },
    Cancel(usize),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (0..2_usize, proptest::option::of(0..3_u8), 0..2_u8)
            .prop_map(|(queue, key, hash)| Action::Submit { queue, key, hash }),
        2 => (0..2_usize).prop_map(Action::Claim),
        1 => (0..2_usize, proptest::bool::weighted(0.3)).prop_map(|(queue, stale)| Action::Release { queue, stale }),
        6 => (0..12_usize, 0..STATES.len(), 0..3_u32, proptest::bool::weighted(0.1))
            .prop_map(|(operation, state, attempts, stale)| Action::Record { operation, state, attempts, stale }),
        1 => (0..12_usize).prop_map(Action::Cancel),
    ]
}

struct Line {
    queue: Queue,
    /// The newest fence, and whether somebody holds it.
    fence: Fence,
    held: bool,
    next_seq: u64,
}

struct Kept {
    operation: NewOperation,
    line: usize,
    state: State,
    attempts: u32,
}

struct Model {
    lines: [Line; 2],
    kept: Vec<Kept>,
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
        Self { lines: [line(), line()], kept: Vec::new() }
    }

    async fn step(&mut self, store: &Store, action: Action) {
        match action {
            Action::Submit { queue, key, hash } => self.submit(store, queue, key, hash).await,
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
                let Some(kept) = self.kept.get_mut(operation) else { return };
                if kept.state.may_cancel() && kept.attempts == 0 {
                    kept.state = State::Cancelled;
                }
                let answer = store.cancel(kept.operation.id, at(1)).await.unwrap();
                assert_eq!(answer, Some((kept.state, queue_of(&kept.operation))));
            }
        }
    }

    async fn submit(&mut self, store: &Store, line: usize, key: Option<u8>, hash: u8) {
        let queue = self.lines[line].queue;
        let scope: Arc<str> = Arc::from(format!("{:?}", self.lines[0].queue));
        let idempotency = key.map(|key| IdempotencyKey { scope, key: key.to_string() });
        let new = NewOperation {
            idempotency,
            payload_hash: [hash; 32],
            ..operation(QueueKey::Guild(queue.guild().unwrap()))
        };
        let same_key = |kept: &&Kept| key.is_some() && kept.operation.idempotency == new.idempotency;
        let expected = match self.kept.iter().find(same_key) {
            Some(kept) if kept.operation.payload_hash == new.payload_hash => {
                Ok(Submitted::Existing { id: kept.operation.id, state: kept.state, result: None })
            }
            Some(kept) => Err(SubmitError::KeyReused { index: 0, id: kept.operation.id }),
            None => {
                let seq = self.lines[line].next_seq;
                self.lines[line].next_seq += 1;
                self.kept.push(Kept { operation: new.clone(), line, state: State::Queued, attempts: 0 });
                Ok(Submitted::Accepted { seq, queue, state: State::Queued })
            }
        };
        assert_eq!(store.submit(vec![new]).await.map(|mut submitted| submitted.remove(0)), expected);
    }

    async fn record(&mut self, store: &Store, operation: usize, state: State, attempts: u32, stale: bool) {
        let Some(kept) = self.kept.get_mut(operation) else { return };
        let line = &self.lines[kept.line];
        let fence = if stale { Fence(line.fence.0.wrapping_sub(1) & (u64::MAX >> 1)) } else { line.fence };
        let mut told = change(&kept.operation, fence, state);
        told.attempts = attempts;
        let expected = if stale || !line.held {
            Recorded::Fenced
        } else if !kept.state.is_final() {
            (kept.state, kept.attempts) = (state, attempts);
            Recorded::Done
        } else if (kept.state, kept.attempts) == (state, attempts) {
            Recorded::Done
        } else {
            Recorded::Gone
        };
        assert_eq!(store.record(vec![told]).await.unwrap(), [expected]);
    }

    async fn is_what_is_stored(&self, store: &Store) {
        for line in &self.lines {
            let loaded = store.load(line.queue, 0, 100).await.unwrap().operations;
            let loaded: Vec<_> =
                loaded.iter().map(|stored| (stored.operation.id, stored.state, stored.attempts)).collect();
            let pending =
                self.kept.iter().filter(|kept| queue_of(&kept.operation) == line.queue && !kept.state.is_final());
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
