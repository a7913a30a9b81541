//! Random schedules, compared with a model of the holders.

use std::sync::Arc;

use guildhall_actors::ports::{Lease, LeaseFence, LeaseName, LeaseStore};
use proptest::prelude::*;
use tokio::runtime::Runtime;

use super::backends::{Engine, LONG, LeasePair, SHORT, acquire_after_expiry};

const NAMES: usize = 3;

/// An action. `lease` selects one of the leases acquired so far, however long ago.
#[derive(Clone, Copy, Debug)]
enum LeaseAction {
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
    Expire {
        name: usize,
        by: usize,
    },
}

fn action() -> impl Strategy<Value = LeaseAction> {
    let by = 0..2_usize;
    prop_oneof![
        4 => (0..NAMES, by.clone()).prop_map(|(name, by)| LeaseAction::Acquire { name, by }),
        2 => (0..20_usize, by.clone()).prop_map(|(lease, by)| LeaseAction::Renew { lease, by }),
        3 => (0..20_usize, by.clone()).prop_map(|(lease, by)| LeaseAction::Release { lease, by }),
        1 => (0..NAMES, by).prop_map(|(name, by)| LeaseAction::Expire { name, by }),
    ]
}

/// The expected state: the holder of each name, as an index of the acquired leases, and its last fence.
struct LeaseModel {
    stores: [Arc<dyn LeaseStore>; 2],
    names: [LeaseName; NAMES],
    holders: [Option<usize>; NAMES],
    last_fences: [LeaseFence; NAMES],
    acquired: Vec<(usize, Lease)>,
}

impl LeaseModel {
    fn new(pair: &LeasePair) -> Self {
        // Unique names, so that one backend serves all schedules.
        let prefix = fastrand::u64(..);
        Self {
            stores: [Arc::clone(&pair.one), Arc::clone(&pair.two)],
            names: std::array::from_fn(|nth| LeaseName::new(format!("{prefix}-{nth}")).unwrap()),
            holders: [None; NAMES],
            last_fences: [LeaseFence(0); NAMES],
            acquired: Vec::new(),
        }
    }

    fn record_acquired(&mut self, name: usize, lease: Lease) {
        assert!(lease.fence > self.last_fences[name], "{lease:?} after {:?}", self.last_fences[name]);
        self.last_fences[name] = lease.fence;
        self.holders[name] = Some(self.acquired.len());
        self.acquired.push((name, lease));
    }

    /// One of the acquired leases, and whether it is held.
    fn pick(&self, lease: usize) -> Option<(usize, Lease, bool)> {
        let index = lease.checked_rem(self.acquired.len())?;
        let (name, lease) = self.acquired[index].clone();
        Some((name, lease, self.holders[name] == Some(index)))
    }

    async fn step(&mut self, action: LeaseAction) {
        match action {
            LeaseAction::Acquire { name, by } => {
                let acquired = self.stores[by].acquire(&self.names[name], "the model", LONG).await.unwrap();
                assert_eq!(acquired.is_some(), self.holders[name].is_none(), "{action:?}");
                if let Some(lease) = acquired {
                    self.record_acquired(name, lease);
                }
            }
            LeaseAction::Renew { lease, by } => {
                let Some((_, lease, held)) = self.pick(lease) else { return };
                let renewed = self.stores[by].renew(&lease, LONG).await.unwrap();
                assert_eq!(renewed.map(|lease| lease.fence), held.then_some(lease.fence), "{action:?}");
            }
            LeaseAction::Release { lease, by } => {
                let Some((name, lease, held)) = self.pick(lease) else { return };
                assert_eq!(self.stores[by].release(&lease).await, Ok(held), "{action:?}");
                if held {
                    self.holders[name] = None;
                }
            }
            LeaseAction::Expire { name, by } => {
                if let Some(index) = self.holders[name] {
                    let held = self.acquired[index].1.clone();
                    assert!(self.stores[by].renew(&held, SHORT).await.unwrap().is_some(), "{action:?}");
                }
                let next = acquire_after_expiry(&*self.stores[1 - by], self.names[name].as_str()).await;
                self.record_acquired(name, next);
            }
        }
    }
}

fn check_against_model(engine: Engine, cases: u32) {
    let runtime = Runtime::new().unwrap();
    let pair = runtime.block_on(LeasePair::new(engine));
    let config =
        ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::default() };
    proptest!(config, |(actions in proptest::collection::vec(action(), 1..30))| {
        runtime.block_on(async {
            let mut model = LeaseModel::new(&pair);
            for action in actions {
                model.step(action).await;
            }
        });
    });
}

#[test]
fn sqlite_matches_the_model() {
    check_against_model(Engine::Sqlite, 20);
}

#[test]
fn postgres_matches_the_model() {
    check_against_model(Engine::Postgres, 20);
}

#[test]
fn redis_matches_the_model() {
    check_against_model(Engine::Redis, 40);
}
