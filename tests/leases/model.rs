//! Random schedules, compared with a model of the holders.

use std::sync::Arc;

use guildhall_actors::ports::{Lease, LeaseFence, LeaseName, LeaseStore};
use proptest::prelude::*;
use tokio::runtime::Runtime;

use crate::keepers::{Engine, LONG, Pair, SHORT, take_at_last};

const NAMES: usize = 3;

/// An action. `lease` selects one of the leases acquired so far, however long ago.
#[derive(Clone, Copy, Debug)]
enum Action {
    Acquire {
        name: usize,
        by: usize,
    },
    Renew {
        lease: usize,
        by: usize,
    },
    Release {
        lease: usize,
        by: usize,
    },
    /// The lease of the holder expires, and the other process acquires it.
    Outlast {
        name: usize,
        by: usize,
    },
}

fn action() -> impl Strategy<Value = Action> {
    let by = 0..2_usize;
    prop_oneof![
        4 => (0..NAMES, by.clone()).prop_map(|(name, by)| Action::Acquire { name, by }),
        2 => (0..20_usize, by.clone()).prop_map(|(lease, by)| Action::Renew { lease, by }),
        3 => (0..20_usize, by.clone()).prop_map(|(lease, by)| Action::Release { lease, by }),
        1 => (0..NAMES, by).prop_map(|(name, by)| Action::Outlast { name, by }),
    ]
}

/// The expected state: the holder of each name, as an index of the acquired leases, and its last fence.
struct Model {
    ways: [Arc<dyn LeaseStore>; 2],
    names: [LeaseName; NAMES],
    holders: [Option<usize>; NAMES],
    last: [LeaseFence; NAMES],
    given: Vec<(usize, Lease)>,
}

impl Model {
    fn new(pair: &Pair) -> Self {
        // Unique names, so that one backend serves all schedules.
        let own = fastrand::u64(..);
        Self {
            ways: [Arc::clone(&pair.one), Arc::clone(&pair.two)],
            names: std::array::from_fn(|nth| LeaseName::new(format!("{own}-{nth}")).unwrap()),
            holders: [None; NAMES],
            last: [LeaseFence(0); NAMES],
            given: Vec::new(),
        }
    }

    fn give(&mut self, name: usize, lease: Lease) {
        assert!(lease.fence > self.last[name], "{lease:?} after {:?}", self.last[name]);
        self.last[name] = lease.fence;
        self.holders[name] = Some(self.given.len());
        self.given.push((name, lease));
    }

    /// One of the acquired leases, and whether it is held.
    fn pick(&self, lease: usize) -> Option<(usize, Lease, bool)> {
        let place = lease.checked_rem(self.given.len())?;
        let (name, lease) = self.given[place].clone();
        Some((name, lease, self.holders[name] == Some(place)))
    }

    async fn step(&mut self, action: Action) {
        match action {
            Action::Acquire { name, by } => {
                let got = self.ways[by].acquire(&self.names[name], "the model", LONG).await.unwrap();
                assert_eq!(got.is_some(), self.holders[name].is_none(), "{action:?}");
                if let Some(lease) = got {
                    self.give(name, lease);
                }
            }
            Action::Renew { lease, by } => {
                let Some((_, lease, held)) = self.pick(lease) else { return };
                let renewed = self.ways[by].renew(&lease, LONG).await.unwrap();
                assert_eq!(renewed.map(|lease| lease.fence), held.then_some(lease.fence), "{action:?}");
            }
            Action::Release { lease, by } => {
                let Some((name, lease, held)) = self.pick(lease) else { return };
                assert_eq!(self.ways[by].release(&lease).await, Ok(held), "{action:?}");
                if held {
                    self.holders[name] = None;
                }
            }
            Action::Outlast { name, by } => {
                if let Some(place) = self.holders[name] {
                    let held = self.given[place].1.clone();
                    assert!(self.ways[by].renew(&held, SHORT).await.unwrap().is_some(), "{action:?}");
                }
                let next = take_at_last(&*self.ways[1 - by], self.names[name].as_str()).await;
                self.give(name, next);
            }
        }
    }
}

fn holds(engine: Engine, cases: u32) {
    let runtime = Runtime::new().unwrap();
    let pair = runtime.block_on(Pair::new(engine));
    let config =
        ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::default() };
    proptest!(config, |(actions in proptest::collection::vec(action(), 1..30))| {
        runtime.block_on(async {
            let mut model = Model::new(&pair);
            for action in actions {
                model.step(action).await;
            }
        });
    });
}

#[test]
fn sqlite_does_what_the_model_does() {
    holds(Engine::Sqlite, 20);
}

#[test]
fn postgres_does_what_the_model_does() {
    holds(Engine::Postgres, 20);
}

#[test]
fn redis_does_what_the_model_does() {
    holds(Engine::Redis, 40);
}
