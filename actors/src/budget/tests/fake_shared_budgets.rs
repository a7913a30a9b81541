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
pub(super) struct Place {
    clock: Clock,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    budgets: HashMap<BudgetName, Life>,
    lives: u32,
    members: BTreeSet<&'static str>,
    reports: HashMap<(&'static str, BudgetName), u64>,
    asks: Vec<usize>,
}

#[derive(Debug)]
struct Life {
    epoch: BudgetEpoch,
    budget: Budget,
    /// What it started with, until a member with an older epoch reports.
    gift: Points,
}

impl Place {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { clock: Clock::start(), kept: Mutex::default() })
    }

    pub(super) fn forget(&self) {
        self.kept.lock().unwrap().budgets.clear();
    }

    /// Number of requests in each call that had any.
    pub(super) fn asks_by_call(&self) -> Vec<usize> {
        self.kept.lock().unwrap().asks.iter().copied().filter(|asks| *asks > 0).collect()
    }

    fn call<T>(
        &self,
        member: &'static str,
        name: &BudgetName,
        tidings: &BudgetReport,
        act: impl FnOnce(&mut Budget, guildhall_core::time::Timestamp) -> T,
    ) -> SharedReply<T> {
        let now = self.clock.now();
        let kept = &mut *self.kept.lock().unwrap();
        kept.members.insert(member);
        if !kept.budgets.contains_key(name) {
            kept.lives += 1;
            let epoch = BudgetEpoch::new(&kept.lives.to_string());
            let budget = Budget::new(tidings.limits, now).unwrap();
            kept.budgets.insert(name.clone(), Life { epoch, budget, gift: tidings.limits.maximum });
        }
        let Life { epoch, budget, gift } = kept.budgets.get_mut(name).unwrap();
        if tidings.epoch.as_ref().is_some_and(|known| known != epoch) {
            budget.inherit(std::mem::take(gift), tidings.booked_for, now);
        }
        if let Some(spent) = tidings.spent {
            let last = kept.reports.entry((member, name.clone())).or_default();
            if *last < spent.number {
                *last = spent.number;
                budget.charge(spent.points, now);
            }
        }
        if let Some(limits) = tidings.configure {
            budget.configure(limits, now).unwrap();
        }
        let answer = act(budget, now);
        let standing = BudgetState {
            epoch: epoch.clone(),
            limits: budget.limits(),
            observed: budget.observed(),
            available: budget.available(now),
            booked_for: budget.booked_for(now),
            blocked_for: budget.blocked_for(now),
            members: Some(u32::try_from(kept.members.len()).unwrap()),
        };
        SharedReply { answer, standing }
    }
}

/// Connection of a process to the shared budgets.
#[derive(Debug)]
pub(super) struct Line {
    place: Arc<Place>,
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

impl Line {
    pub(super) fn to(place: &Arc<Place>, member: &'static str) -> Arc<Self> {
        Arc::new(Self {
            place: Arc::clone(place),
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

    pub(super) fn lose_one(&self) {
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
        tidings: &'a BudgetReport,
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
            let told = self.place.call(self.member, name, tidings, act);
            if matches!(state, State::LosesOne) {
                self.restore();
                return Err(Unreachable("reply lost".to_owned()));
            }
            Ok(told)
        })
    }
}

impl SharedBudgets for Line {
    fn acquire<'a>(
        &'a self,
        name: &'a BudgetName,
        tidings: &'a BudgetReport,
        asks: &'a [SpendRequest],
    ) -> SharedReplyFuture<'a, Vec<Result<BudgetDecision, BudgetError>>> {
        self.place.kept.lock().unwrap().asks.push(asks.len());
        self.call(name, tidings, |budget, now| {
            asks.iter().map(|ask| budget.acquire(ask.cost, ask.max_wait, now)).collect()
        })
    }

    fn observe<'a>(
        &'a self,
        name: &'a BudgetName,
        tidings: &'a BudgetReport,
        seen: &'a Observation,
    ) -> SharedReplyFuture<'a, ()> {
        self.call(name, tidings, |budget, now| budget.observe(seen, now).unwrap())
    }

    fn show<'a>(&'a self, name: &'a BudgetName, tidings: &'a BudgetReport) -> SharedReplyFuture<'a, Points> {
        self.call(name, tidings, |budget, now| budget.booked(now))
    }
}
