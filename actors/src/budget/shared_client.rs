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

use super::events::{
    BudgetAvailable, SharedBudgetsRecovered, SharedBudgetsUnreachable, UpstreamObserved, report_results,
};
use super::{AcquireBudget, SharedBudgetsConfig};
use crate::clock::Clock;
use crate::ports::{SharedBudgets, SharedReply, Unreachable};
use crate::supervision::{Part, spawn_local_finite};
use crate::telemetry::emit;

/// Maximum number of requests in a batch: whatever stores the budgets does nothing else while it processes one.
const BATCH_SIZE: usize = 128;

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
    member: BudgetMember,
    /// Requests to send, by budget. A budget has an entry as long as a task serves it.
    waiting: BTreeMap<BudgetName, VecDeque<(SpendRequest, Reply)>>,
    in_flight: usize,
    tasks_running: bool,
}

impl SharedBudgetClient {
    pub(super) fn new(clock: Clock, port: Arc<dyn SharedBudgets>, config: SharedBudgetsConfig) -> Self {
        let member = BudgetMember::new(config.member);
        let state = ClientState { member, waiting: BTreeMap::new(), in_flight: 0, tasks_running: false };
        Self { clock, port, config, state: RefCell::new(state) }
    }

    /// Adds a budget, and reports its defaults if the shared budgets are reachable; otherwise they are reported later.
    pub(super) async fn configure(self: Rc<Self>, name: &BudgetName, limits: BudgetLimits) -> Result<(), BudgetError> {
        self.state.borrow_mut().member.configure(name, limits)?;
        // On failure the defaults are part of the next report.
        if !self.is_out_of_reach()
            && let Ok(_slot) = self.reserve_slot()
        {
            let _ = self.send_batch(name, &[]).await;
        }
        Ok(())
    }

    /// Takes a cost, in a batch with other requests if one is in flight.
    pub(super) fn acquire(self: Rc<Self>, AcquireBudget { name, cost, max_wait }: AcquireBudget, reply: Reply) {
        let mut state = self.state.borrow_mut();
        let request = state.member.request(cost, max_wait);
        if state.member.is_unreachable() {
            drop(state);
            return self.acquire_offline(&name, request, reply);
        }
        if !state.member.contains(&name) {
            return send_reply(reply, Err(BudgetError::Unknown(name.to_string())));
        }
        if state.in_flight >= self.config.max_in_flight {
            let busy = Err(self.busy_error());
            report_results(&name, [(cost, &busy)]);
            return send_reply(reply, busy);
        }
        state.in_flight += 1;
        if let Some(waiting) = state.waiting.get_mut(&name) {
            waiting.push_back((request, reply));
        } else {
            state.waiting.insert(name.clone(), VecDeque::from([(request, reply)]));
            drop(state);
            // If this task panicked, every later request for the budget would wait forever.
            spawn_local_finite(Part::BudgetRequests, self.serve(name));
        }
    }

    /// Sends the requests for one budget until none is left.
    async fn serve(self: Rc<Self>, name: BudgetName) {
        while let Some((requests, replies)) = self.next_batch(&name) {
            // Another request may have found the shared budgets unreachable in the meantime; then these are decided
            // locally.
            let results = if self.is_out_of_reach() { None } else { self.send_batch(&name, &requests).await };
            match results {
                Some(results) => {
                    report_results(&name, requests.iter().map(|request| request.cost).zip(&results));
                    for (reply, result) in replies.into_iter().zip(results) {
                        send_reply(reply, result);
                    }
                }
                None => {
                    for (request, reply) in requests.iter().zip(replies) {
                        self.acquire_offline(&name, *request, reply);
                    }
                }
            }
            self.state.borrow_mut().in_flight -= requests.len();
        }
    }

    /// Sends the requests as one batch. `None` means that the shared budgets are unreachable.
    async fn send_batch(
        self: &Rc<Self>,
        name: &BudgetName,
        requests: &[SpendRequest],
    ) -> Option<Vec<Result<BudgetDecision, BudgetError>>> {
        let report = self.report(name);
        let reply = self.port.acquire(name, &report, requests).await;
        self.apply_reply(name, &report, reply)
    }

    /// Takes the next batch. Skips requests whose caller no longer waits.
    fn next_batch(&self, name: &BudgetName) -> Option<(Vec<SpendRequest>, Vec<Reply>)> {
        let state = &mut *self.state.borrow_mut();
        let waiting = state.waiting.get_mut(name)?;
        let (mut requests, mut replies) = (Vec::new(), Vec::new());
        while requests.len() < BATCH_SIZE
            && let Some((request, reply)) = waiting.pop_front()
        {
            if reply.as_ref().is_some_and(OneshotSender::is_closed) {
                state.in_flight -= 1;
            } else {
                requests.push(request);
                replies.push(reply);
            }
        }
        if requests.is_empty() {
            state.waiting.remove(name);
            return None;
        }
        Some((requests, replies))
    }

    fn acquire_offline(&self, name: &BudgetName, request: SpendRequest, reply: Reply) {
        let result = self.state.borrow_mut().member.acquire(name, request, self.clock.now());
        report_results(name, [(request.cost, &result)]);
        send_reply(reply, result);
    }

    pub(super) async fn observe(
        self: Rc<Self>,
        name: &BudgetName,
        observation: &Observation,
    ) -> Result<(), BudgetError> {
        let observation = self.state.borrow().member.check(name, observation)?;
        emit(UpstreamObserved { name, observation: &observation });
        if !self.is_out_of_reach() {
            let _slot = self.reserve_slot()?;
            if self.send_observation(name, &observation).await {
                return Ok(());
            }
        }
        self.state.borrow_mut().member.observe(name, &observation, self.clock.now())
    }

    /// Sends what an upstream reported. Returns whether it arrived.
    async fn send_observation(self: &Rc<Self>, name: &BudgetName, observation: &Observation) -> bool {
        let report = self.report(name);
        let reply = self.port.observe(name, &report, observation).await;
        self.apply_reply(name, &report, reply).is_some()
    }

    /// State of all budgets.
    pub(super) async fn show_all(self: Rc<Self>) -> Result<Vec<BudgetSnapshot>, BudgetError> {
        let _slot = self.reserve_slot()?;
        let names: Vec<_> = self.state.borrow().member.names().cloned().collect();
        let snapshots: Result<Vec<_>, _> =
            join_all(names.iter().map(|name| self.show(name))).await.into_iter().collect();
        for budget in snapshots.iter().flatten() {
            emit(BudgetAvailable { name: &budget.name, available: budget.available });
        }
        snapshots
    }

    /// State of one budget.
    pub(super) async fn show_one(self: Rc<Self>, name: &BudgetName) -> Result<BudgetSnapshot, BudgetError> {
        if !self.state.borrow().member.contains(name) {
            return Err(BudgetError::Unknown(name.to_string()));
        }
        let _slot = self.reserve_slot()?;
        self.show(name).await
    }

    async fn show(self: &Rc<Self>, name: &BudgetName) -> Result<BudgetSnapshot, BudgetError> {
        if !self.is_out_of_reach() {
            let report = self.report(name);
            let reply = self.port.show(name, &report).await;
            let state = reply.as_ref().ok().map(|reply| reply.state.clone());
            if let (Some(booked), Some(state)) = (self.apply_reply(name, &report, reply), state) {
                return Ok(BudgetMember::snapshot_of_state(name, &state, booked));
            }
        }
        self.state.borrow_mut().member.snapshot(name, self.clock.now())
    }

    /// Sends what no caller has requested: a heartbeat, and what happened while the shared budgets were unreachable.
    pub(super) fn start_tasks(self: &Rc<Self>) {
        let is_running = std::mem::replace(&mut self.state.borrow_mut().tasks_running, true);
        if !is_running {
            let client = Rc::clone(self);
            spawn_local_finite(Part::BudgetRequests, async move {
                // What could not be sent while they were unreachable is sent as soon as they are reachable.
                while client.run_tasks().await {}
                client.state.borrow_mut().tasks_running = false;
            });
        }
    }

    /// Runs one round. Returns whether the shared budgets became reachable in it.
    async fn run_tasks(self: &Rc<Self>) -> bool {
        let was_out_of_reach = self.is_out_of_reach();
        let tasks = self.state.borrow_mut().member.tasks(self.clock.now());
        for (name, task) in tasks {
            match task {
                BudgetTask::Report => drop(self.send_batch(&name, &[]).await),
                BudgetTask::Observe(observation) => {
                    if !self.send_observation(&name, &observation).await {
                        // Stores it for the next round.
                        let _ = self.state.borrow_mut().member.observe(&name, &observation, self.clock.now());
                    }
                }
            }
        }
        was_out_of_reach && !self.is_out_of_reach()
    }

    /// Applies a reply, or its absence.
    fn apply_reply<T>(
        self: &Rc<Self>,
        name: &BudgetName,
        report: &BudgetReport,
        reply: Result<SharedReply<T>, Unreachable>,
    ) -> Option<T> {
        let now = self.clock.now();
        match reply {
            Ok(SharedReply { result, state }) => {
                emit(BudgetAvailable { name, available: state.available });
                if let Reachability::Restored(after) =
                    self.state.borrow_mut().member.on_reply(name, report, &state, now)
                {
                    emit(SharedBudgetsRecovered { after });
                }
                Some(result)
            }
            Err(error) => {
                let is_new = self.state.borrow_mut().member.on_lost(now);
                if is_new {
                    emit(SharedBudgetsUnreachable { name, error: &error });
                    // Perhaps only this request failed: probe at once.
                    self.start_tasks();
                }
                None
            }
        }
    }

    fn is_out_of_reach(&self) -> bool {
        self.state.borrow().member.is_unreachable()
    }

    fn report(&self, name: &BudgetName) -> BudgetReport {
        let report = self.state.borrow_mut().member.create_report(name, self.clock.now());
        report.expect("invariant: only known budgets are requested, and none is removed")
    }

    /// Reserves a slot for a request in flight.
    fn reserve_slot(self: &Rc<Self>) -> Result<InFlightGuard, BudgetError> {
        let mut state = self.state.borrow_mut();
        if state.in_flight >= self.config.max_in_flight {
            return Err(self.busy_error());
        }
        state.in_flight += 1;
        Ok(InFlightGuard(Rc::clone(self)))
    }

    fn busy_error(&self) -> BudgetError {
        BudgetError::Busy { max: self.config.max_in_flight, retry_after: self.config.member.retry_after }
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
        self.0.state.borrow_mut().in_flight -= 1;
    }
}

fn send_reply(reply: Reply, result: Result<BudgetDecision, BudgetError>) {
    if let Some(reply) = reply {
        // The caller may have stopped waiting.
        let _ = reply.send(result);
    }
}
