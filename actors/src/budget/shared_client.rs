//! Where questions about shared budgets are collected, carried to where these are kept, and answered.
//!
//! While one question about a budget is on its way, others gather, and go together in the next: a budget that everybody
//! wants needs fewer round trips, not more. Budgets do not wait for each other.

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

/// How many wishes go together at most: what keeps the budgets does nothing else meanwhile.
const TOGETHER: usize = 128;

/// Where an asker waits.
type Reply = Option<OneshotSender<Result<BudgetDecision, BudgetError>>>;

/// This process's way to shared budgets.
pub(super) struct SharedBudgetClient {
    clock: Clock,
    port: Arc<dyn SharedBudgets>,
    config: SharedBudgetsConfig,
    state: RefCell<ClientState>,
}

struct ClientState {
    partner: BudgetMember,
    /// Who is to be asked for, by budget. A budget is here as long as somebody is on the way for it.
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

    /// Takes on a budget, and tells its defaults if it is within reach; else they are told later.
    pub(super) async fn configure(self: Rc<Self>, name: &BudgetName, limits: BudgetLimits) -> Result<(), BudgetError> {
        self.state.borrow_mut().partner.configure(name, limits)?;
        // What is not told now is told later.
        if !self.is_out_of_reach()
            && let Ok(_place) = self.step_in()
        {
            let _ = self.carry(name, &[]).await;
        }
        Ok(())
    }

    /// Takes a cost, with others if need be.
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
            // If it broke, everything that is asked of this budget would wait behind it.
            spawn_local_finite(Part::BudgetRequests, self.serve(name));
        }
    }

    /// Carries the wishes for one budget, until there are none.
    async fn serve(self: Rc<Self>, name: BudgetName) {
        while let Some((asks, replies)) = self.next_asks(&name) {
            // It may have been lost by another question, and then nobody waits for an answer to this one.
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

    /// Asks for all of it in one go. No answer means that the budget is out of reach.
    async fn carry(
        self: &Rc<Self>,
        name: &BudgetName,
        asks: &[SpendRequest],
    ) -> Option<Vec<Result<BudgetDecision, BudgetError>>> {
        let tidings = self.tidings(name);
        let told = self.port.acquire(name, &tidings, asks).await;
        self.settle(name, &tidings, told)
    }

    /// The next wishes to be carried. Whoever no longer waits wants nothing.
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

    /// Tells what an upstream said. Says whether it was heard.
    async fn tell_observation(self: &Rc<Self>, name: &BudgetName, seen: &Observation) -> bool {
        let tidings = self.tidings(name);
        let told = self.port.observe(name, &tidings, seen).await;
        self.settle(name, &tidings, told).is_some()
    }

    /// All budgets as they stand.
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

    /// One budget as it stands.
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

    /// Tells what nobody has asked for: that this process is there, and what happened out of reach.
    pub(super) fn run_errands(self: &Rc<Self>) {
        let is_running = std::mem::replace(&mut self.state.borrow_mut().on_errands, true);
        if !is_running {
            let desk = Rc::clone(self);
            spawn_local_finite(Part::BudgetRequests, async move {
                // What could not be told out of reach is told as soon as that ends.
                while desk.errands().await {}
                desk.state.borrow_mut().on_errands = false;
            });
        }
    }

    /// One round. Says whether the budgets have just come within reach.
    async fn errands(self: &Rc<Self>) -> bool {
        let was_out_of_reach = self.is_out_of_reach();
        let errands = self.state.borrow_mut().partner.errands(self.clock.now());
        for (name, errand) in errands {
            match errand {
                BudgetTask::Tell => drop(self.carry(&name, &[]).await),
                BudgetTask::Observe(seen) => {
                    if !self.tell_observation(&name, &seen).await {
                        // So that it is told the next time.
                        let _ = self.state.borrow_mut().partner.observe(&name, &seen, self.clock.now());
                    }
                }
            }
        }
        was_out_of_reach && !self.is_out_of_reach()
    }

    /// Takes an answer in, or that there is none.
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
                    // It may have been this one question alone.
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
        tidings.expect("invariant: only known budgets are asked for, and none is taken away")
    }

    /// A place among those who are under way.
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

/// A place among those who are under way, given back by its drop.
struct InFlightGuard(Rc<SharedBudgetClient>);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.state.borrow_mut().under_way -= 1;
    }
}

fn answer(reply: Reply, asked: Result<BudgetDecision, BudgetError>) {
    if let Some(reply) = reply {
        // Whoever no longer listens does not want it either.
        let _ = reply.send(asked);
    }
}
