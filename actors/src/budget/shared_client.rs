//! Collects requests to shared budgets, sends them in batches, and returns the results.
//!
//! While a request for a budget is in flight, further ones are collected and sent as one batch: a budget in high demand
//! needs fewer round trips, not more. Budgets do not wait for each other.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use actix::dev::OneshotSender;
use futures_util::future::join_all;
use guildhall_core::budget::{
    BudgetDecision, BudgetError, BudgetLimits, BudgetMember, BudgetName, BudgetReport, BudgetSnapshot, BudgetTask,
    Observation, Reachability, SpendRequest,
};

use super::events::{BudgetAvailable, SharedBudgetsRecovered, SharedBudgetsUnreachable, UpstreamObserved, tell};
use super::{AcquireBudget, SharedBudgetsConfig};
use crate::clock::Clock;
use crate::ports::{SharedBudgets, SharedReply, Unreachable};
use crate::supervision::{Part, spawn_local_finite};
use crate::telemetry::emit;

/// Maximum number of requests in a batch: whatever stores the budgets does nothing else while it processes one.
const TOGETHER: usize = 128;

/// Reply channel of a caller.
type Reply = Option<OneshotSender<Result<BudgetDecision, BudgetError>>>;

/// Client of this process for shared budgets.
pub(super) struct SharedBudgetClient {
    clock: Clock,
    port: Arc<dyn SharedBudgets>,
    config: SharedBudgetsConfig,
    state: RefCell<ClientState>,
}

struct ClientState {
    partner: BudgetMember,
    /// Requests to send, by budget. A budget has an entry as long as a task serves it.
    waiting: BTreeMap<BudgetName, VecDeque<(SpendRequest, Reply)>>,
    under_way: usize,
    on_errands: bool,
}

impl SharedBudgetClient {
    pub(super) fn new(clock: Clock, port: Arc<dyn SharedBudgets>, config: SharedBudgetsConfig) -> Self {
        let partner = BudgetMember::new(config.partner);
        let state = ClientState { partner, waiting: BTreeMap::new(), under_way: 0, on_errands: false };
        Self { clock, port, config, state: RefCell::new(state) }
    }

    /// Adds a budget, and reports its defaults if the shared budgets are reachable; otherwise they are reported later.
    pub(super) async fn configure(self: Rc<Self>, name: &BudgetName, limits: BudgetLimits) -> Result<(), BudgetError> {
        self.state.borrow_mut().partner.configure(name, limits)?;
        // On failure the defaults are part of the next report.
        if !self.is_out_of_reach()
            && let Ok(_place) = self.step_in()
        {
            let _ = self.carry(name, &[]).await;
        }
        Ok(())
    }

    /// Takes a cost, in a batch with other requests if one is in flight.
    pub(super) fn acquire(self: Rc<Self>, AcquireBudget { name, cost, max_wait }: AcquireBudget, reply: Reply) {
        let mut state = self.state.borrow_mut();
        let ask = state.partner.ask(cost, max_wait);
        if state.partner.is_out_of_reach() {
            drop(state);
            return self.acquire_meanwhile(&name, ask, reply);
        }
        if !state.partner.knows(&name) {
            return answer(reply, Err(BudgetError::Unknown(name.to_string())));
        }
        if state.under_way >= self.config.most_under_way {
            let busy = Err(self.busy());
            tell(&name, [(cost, &busy)]);
            return answer(reply, busy);
        }
        state.under_way += 1;
        if let Some(waiting) = state.waiting.get_mut(&name) {
            waiting.push_back((ask, reply));
        } else {
            state.waiting.insert(name.clone(), VecDeque::from([(ask, reply)]));
            drop(state);
            // If this task panicked, every later request for the budget would wait forever.
            spawn_local_finite(Part::BudgetRequests, self.serve(name));
        }
    }

    /// Sends the requests for one budget until none is left.
    async fn serve(self: Rc<Self>, name: BudgetName) {
        while let Some((asks, replies)) = self.next_asks(&name) {
            // Another request may have found the shared budgets unreachable in the meantime; then these are decided
            // locally.
            let answers = if self.is_out_of_reach() { None } else { self.carry(&name, &asks).await };
            match answers {
                Some(answers) => {
                    tell(&name, asks.iter().map(|ask| ask.cost).zip(&answers));
                    for (reply, asked) in replies.into_iter().zip(answers) {
                        answer(reply, asked);
                    }
                }
                None => {
                    for (ask, reply) in asks.iter().zip(replies) {
                        self.acquire_meanwhile(&name, *ask, reply);
                    }
                }
            }
            self.state.borrow_mut().under_way -= asks.len();
        }
    }

    /// Sends the requests as one batch. `None` means that the shared budgets are unreachable.
    async fn carry(
        self: &Rc<Self>,
        name: &BudgetName,
        asks: &[SpendRequest],
    ) -> Option<Vec<Result<BudgetDecision, BudgetError>>> {
        let tidings = self.tidings(name);
        let told = self.port.acquire(name, &tidings, asks).await;
        self.settle(name, &tidings, told)
    }

    /// Takes the next batch. Skips requests whose caller no longer waits.
    fn next_asks(&self, name: &BudgetName) -> Option<(Vec<SpendRequest>, Vec<Reply>)> {
        let state = &mut *self.state.borrow_mut();
        let waiting = state.waiting.get_mut(name)?;
        let (mut asks, mut replies) = (Vec::new(), Vec::new());
        while asks.len() < TOGETHER
            && let Some((ask, reply)) = waiting.pop_front()
        {
            if reply.as_ref().is_some_and(OneshotSender::is_closed) {
                state.under_way -= 1;
            } else {
                asks.push(ask);
                replies.push(reply);
            }
        }
        if asks.is_empty() {
            state.waiting.remove(name);
            return None;
        }
        Some((asks, replies))
    }

    fn acquire_meanwhile(&self, name: &BudgetName, ask: SpendRequest, reply: Reply) {
        let asked = self.state.borrow_mut().partner.acquire(name, ask, self.clock.now());
        tell(name, [(ask.cost, &asked)]);
        answer(reply, asked);
    }

    pub(super) async fn observe(self: Rc<Self>, name: &BudgetName, seen: &Observation) -> Result<(), BudgetError> {
        let seen = self.state.borrow().partner.check(name, seen)?;
        emit(UpstreamObserved { name, seen: &seen });
        if !self.is_out_of_reach() {
            let _place = self.step_in()?;
            if self.tell_observation(name, &seen).await {
                return Ok(());
            }
        }
        self.state.borrow_mut().partner.observe(name, &seen, self.clock.now())
    }

    /// Sends what an upstream reported. Returns whether it arrived.
    async fn tell_observation(self: &Rc<Self>, name: &BudgetName, seen: &Observation) -> bool {
        let tidings = self.tidings(name);
        let told = self.port.observe(name, &tidings, seen).await;
        self.settle(name, &tidings, told).is_some()
    }

    /// State of all budgets.
    pub(super) async fn show_all(self: Rc<Self>) -> Result<Vec<BudgetSnapshot>, BudgetError> {
        let _place = self.step_in()?;
        let names: Vec<_> = self.state.borrow().partner.names().cloned().collect();
        let standing: Result<Vec<_>, _> =
            join_all(names.iter().map(|name| self.show(name))).await.into_iter().collect();
        for budget in standing.iter().flatten() {
            emit(BudgetAvailable { name: &budget.name, available: budget.available });
        }
        standing
    }

    /// State of one budget.
    pub(super) async fn show_one(self: Rc<Self>, name: &BudgetName) -> Result<BudgetSnapshot, BudgetError> {
        if !self.state.borrow().partner.knows(name) {
            return Err(BudgetError::Unknown(name.to_string()));
        }
        let _place = self.step_in()?;
        self.show(name).await
    }

    async fn show(self: &Rc<Self>, name: &BudgetName) -> Result<BudgetSnapshot, BudgetError> {
        if !self.is_out_of_reach() {
            let tidings = self.tidings(name);
            let told = self.port.show(name, &tidings).await;
            let standing = told.as_ref().ok().map(|told| told.standing.clone());
            if let (Some(booked), Some(standing)) = (self.settle(name, &tidings, told), standing) {
                return Ok(BudgetMember::shown(name, &standing, booked));
            }
        }
        self.state.borrow_mut().partner.snapshot(name, self.clock.now())
    }

    /// Sends what no caller has requested: a heartbeat, and what happened while the shared budgets were unreachable.
    pub(super) fn run_errands(self: &Rc<Self>) {
        let is_running = std::mem::replace(&mut self.state.borrow_mut().on_errands, true);
        if !is_running {
            let desk = Rc::clone(self);
            spawn_local_finite(Part::BudgetRequests, async move {
                // What could not be sent while they were unreachable is sent as soon as they are reachable.
                while desk.errands().await {}
                desk.state.borrow_mut().on_errands = false;
            });
        }
    }

    /// Runs one round. Returns whether the shared budgets became reachable in it.
    async fn errands(self: &Rc<Self>) -> bool {
        let was_out_of_reach = self.is_out_of_reach();
        let errands = self.state.borrow_mut().partner.errands(self.clock.now());
        for (name, errand) in errands {
            match errand {
                BudgetTask::Tell => drop(self.carry(&name, &[]).await),
                BudgetTask::Observe(seen) => {
                    if !self.tell_observation(&name, &seen).await {
                        // Stores it for the next round.
                        let _ = self.state.borrow_mut().partner.observe(&name, &seen, self.clock.now());
                    }
                }
            }
        }
        was_out_of_reach && !self.is_out_of_reach()
    }

    /// Applies a reply, or its absence.
    fn settle<T>(
        self: &Rc<Self>,
        name: &BudgetName,
        told: &BudgetReport,
        heard: Result<SharedReply<T>, Unreachable>,
    ) -> Option<T> {
        let now = self.clock.now();
        match heard {
            Ok(SharedReply { answer, standing }) => {
                emit(BudgetAvailable { name, available: standing.available });
                if let Reachability::Again(after) = self.state.borrow_mut().partner.heard(name, told, &standing, now) {
                    emit(SharedBudgetsRecovered { after });
                }
                Some(answer)
            }
            Err(why) => {
                let is_new = self.state.borrow_mut().partner.lost(now);
                if is_new {
                    emit(SharedBudgetsUnreachable { name, why: &why });
                    // Perhaps only this request failed: probe at once.
                    self.run_errands();
                }
                None
            }
        }
    }

    fn is_out_of_reach(&self) -> bool {
        self.state.borrow().partner.is_out_of_reach()
    }

    fn tidings(&self, name: &BudgetName) -> BudgetReport {
        let tidings = self.state.borrow_mut().partner.tidings(name, self.clock.now());
        tidings.expect("invariant: only known budgets are requested, and none is removed")
    }

    /// Reserves a slot for a request in flight.
    fn step_in(self: &Rc<Self>) -> Result<InFlightGuard, BudgetError> {
        let mut state = self.state.borrow_mut();
        if state.under_way >= self.config.most_under_way {
            return Err(self.busy());
        }
        state.under_way += 1;
        Ok(InFlightGuard(Rc::clone(self)))
    }

    fn busy(&self) -> BudgetError {
        BudgetError::Busy { most: self.config.most_under_way, retry_after: self.config.partner.retry_after }
    }
}

impl fmt::Debug for SharedBudgetClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBudgetClient").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Slot of a request in flight. Released on drop.
struct InFlightGuard(Rc<SharedBudgetClient>);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.state.borrow_mut().under_way -= 1;
    }
}

fn answer(reply: Reply, asked: Result<BudgetDecision, BudgetError>) {
    if let Some(reply) = reply {
        // The caller may have stopped waiting.
        let _ = reply.send(asked);
    }
}
