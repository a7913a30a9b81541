//! In-memory shared budgets with the guarantees of the port, and connections to them that can be interrupted.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use guildhall_core::budget::{
    Budget, BudgetDecision, BudgetEpoch, BudgetError, BudgetName, BudgetReport, BudgetState, Observation, Points,
    SpendRequest,
};
use tokio::sync::watch;

use crate::clock::Clock;
use crate::ports::{SharedBudgets, SharedReply, SharedReplyFuture, Unreachable};

#[derive(Debug)]
pub(super) struct FakeBudgetStore {
    clock: Clock,
    state: Mutex<BudgetStoreState>,
}

#[derive(Debug, Default)]
struct BudgetStoreState {
    budgets: HashMap<BudgetName, StoredBudget>,
    epochs: u32,
    members: BTreeSet<&'static str>,
    reports: HashMap<(&'static str, BudgetName), u64>,
    batch_sizes: Vec<usize>,
}

#[derive(Debug)]
struct StoredBudget {
    epoch: BudgetEpoch,
    budget: Budget,
    /// What it started with, until a member with an older epoch reports.
    initial: Points,
}

impl FakeBudgetStore {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { clock: Clock::start(), state: Mutex::default() })
    }

    pub(super) fn forget(&self) {
        self.state.lock().unwrap().budgets.clear();
    }

    /// Number of requests in each call that had any.
    pub(super) fn batch_sizes(&self) -> Vec<usize> {
        self.state.lock().unwrap().batch_sizes.iter().copied().filter(|size| *size > 0).collect()
    }

    fn call<T>(
        &self,
        member: &'static str,
        name: &BudgetName,
        report: &BudgetReport,
        act: impl FnOnce(&mut Budget, guildhall_core::time::Timestamp) -> T,
    ) -> SharedReply<T> {
        let now = self.clock.now();
        let state = &mut *self.state.lock().unwrap();
        state.members.insert(member);
        if !state.budgets.contains_key(name) {
            state.epochs += 1;
            let epoch = BudgetEpoch::new(&state.epochs.to_string());
            let budget = Budget::new(report.limits, now).unwrap();
            state.budgets.insert(name.clone(), StoredBudget { epoch, budget, initial: report.limits.maximum });
        }
        let StoredBudget { epoch, budget, initial } = state.budgets.get_mut(name).unwrap();
        if report.epoch.as_ref().is_some_and(|cached| cached != epoch) {
            budget.inherit(std::mem::take(initial), report.booked_for, now);
        }
        if let Some(spent) = report.spent {
            let last = state.reports.entry((member, name.clone())).or_default();
            if *last < spent.number {
                *last = spent.number;
                budget.charge(spent.points, now);
            }
        }
        if let Some(limits) = report.configure {
            budget.configure(limits, now).unwrap();
        }
        let result = act(budget, now);
        let state_after = BudgetState {
            epoch: epoch.clone(),
            limits: budget.limits(),
            observed: budget.observed(),
            available: budget.available(now),
            booked_for: budget.booked_for(now),
            blocked_for: budget.blocked_for(now),
            members: Some(u32::try_from(state.members.len()).unwrap()),
        };
        SharedReply { result, state: state_after }
    }
}

/// Connection of a process to the shared budgets.
#[derive(Debug)]
pub(super) struct FakeConnection {
    store: Arc<FakeBudgetStore>,
    member: &'static str,
    state: watch::Sender<State>,
    tries: Mutex<usize>,
}

#[derive(Clone, Debug)]
enum State {
    Up,
    Cut,
    /// Calls wait, for one budget or for all, until the state changes.
    Held(Option<BudgetName>),
    /// The next reply is lost.
    LosesOne,
}

impl FakeConnection {
    pub(super) fn to(store: &Arc<FakeBudgetStore>, member: &'static str) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::clone(store),
            member,
            state: watch::Sender::new(State::Up),
            tries: Mutex::default(),
        })
    }

    pub(super) fn cut(&self) {
        self.state.send_replace(State::Cut);
    }

    pub(super) fn hold(&self) {
        self.state.send_replace(State::Held(None));
    }

    pub(super) fn hold_only(&self, name: &BudgetName) {
        self.state.send_replace(State::Held(Some(name.clone())));
    }

    pub(super) fn lose_next_reply(&self) {
        self.state.send_replace(State::LosesOne);
    }

    pub(super) fn restore(&self) {
        self.state.send_replace(State::Up);
    }

    pub(super) fn tries(&self) -> usize {
        *self.tries.lock().unwrap()
    }

    fn call<'a, T: Send + 'a>(
        &'a self,
        name: &'a BudgetName,
        report: &'a BudgetReport,
        act: impl FnOnce(&mut Budget, guildhall_core::time::Timestamp) -> T + Send + 'a,
    ) -> SharedReplyFuture<'a, T> {
        *self.tries.lock().unwrap() += 1;
        Box::pin(async move {
            let mut state = self.state.subscribe();
            let passes =
                |state: &State| !matches!(state, State::Held(held) if held.as_ref().is_none_or(|held| held == name));
            let state = state.wait_for(passes).await.unwrap().clone();
            if matches!(state, State::Cut) {
                return Err(Unreachable("connection lost".to_owned()));
            }
            let reply = self.store.call(self.member, name, report, act);
            if matches!(state, State::LosesOne) {
                self.restore();
                return Err(Unreachable("reply lost".to_owned()));
            }
            Ok(reply)
        })
    }
}

impl SharedBudgets for FakeConnection {
    fn acquire<'a>(
        &'a self,
        name: &'a BudgetName,
        report: &'a BudgetReport,
        requests: &'a [SpendRequest],
    ) -> SharedReplyFuture<'a, Vec<Result<BudgetDecision, BudgetError>>> {
        self.store.state.lock().unwrap().batch_sizes.push(requests.len());
        self.call(name, report, |budget, now| {
            requests.iter().map(|request| budget.acquire(request.cost, request.max_wait, now)).collect()
        })
    }

    fn observe<'a>(
        &'a self,
        name: &'a BudgetName,
        report: &'a BudgetReport,
        observation: &'a Observation,
    ) -> SharedReplyFuture<'a, ()> {
        self.call(name, report, |budget, now| budget.observe(observation, now).unwrap())
    }

    fn show<'a>(&'a self, name: &'a BudgetName, report: &'a BudgetReport) -> SharedReplyFuture<'a, Points> {
        self.call(name, report, |budget, now| budget.booked(now))
    }
}
