//! Actor for the named budgets. A caller that has to wait gets the time at which it may spend; its cost is already
//! taken.
//!
//! ```text
//!  AcquireBudget, ObserveUpstream ──▶ BudgetActor ──▶ Budgets (core)                               local
//!                                          └────────▶ SharedBudgetClient ──▶ SharedBudgets (port)  shared by processes
//! ```

mod events;
mod handle;
mod shared_client;
mod spend;

mod service;
#[cfg(test)]
mod tests;

pub use handle::BudgetsHandle;
pub use service::BudgetService;
pub use spend::{HourlySpend, SpendRecorder, SpendStore};

use std::future::ready;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::ports::SharedBudgets;
use actix::dev::{MessageResponse, OneshotSender};
use actix::{Actor, Addr, AsyncContext as _, Context, Handler, Message, ResponseFuture};
use guildhall_core::budget::{
    BudgetDecision, BudgetError, BudgetLimits, BudgetMemberConfig, BudgetName, BudgetSnapshot, Budgets as Machine,
    Observation, Points,
};

use self::events::{BudgetAvailable, UpstreamObserved, report_results};
use self::shared_client::SharedBudgetClient;
use crate::clock::Clock;
use crate::failpoint;
use crate::supervision::{Part, PartGuard};
use crate::telemetry::emit;

/// Mailbox capacity for each sender.
const MAILBOX: usize = 4_096;

/// Configuration of budgets that are shared with other processes.
#[derive(Clone, Copy, Debug)]
pub struct SharedBudgetsConfig {
    /// Configuration of this process as a member. It checks every `retry_after` whether the shared budgets are
    /// reachable, and sends a heartbeat as often. The value must be well below half a minute, after which a silent
    /// member expires.
    pub member: BudgetMemberConfig,
    /// Maximum number of requests in flight. Further requests fail with [`BudgetError::Busy`].
    pub max_in_flight: usize,
}

/// Holds the named budgets.
#[derive(Debug)]
pub struct BudgetActor {
    /// The first field, so that its drop is noticed before that of anything that waits for this actor.
    _guard: PartGuard,
    clock: Clock,
    backend: Backend,
}

#[derive(Debug)]
enum Backend {
    Local(Machine),
    Shared { client: Rc<SharedBudgetClient>, heartbeat_interval: Duration },
}

impl BudgetActor {
    /// Creates an actor without budgets, local to this process. It accepts at most `max_budgets` budgets, and books no
    /// turn that is more than `max_wait` away.
    #[must_use]
    pub fn new(clock: Clock, max_budgets: usize, max_wait: Duration) -> Self {
        Self {
            _guard: PartGuard::new(Part::Budgets),
            clock,
            backend: Backend::Local(Machine::new(max_budgets, max_wait)),
        }
    }

    /// Creates an actor without budgets that shares its budgets with other processes.
    #[must_use]
    pub fn shared(clock: Clock, port: Arc<dyn SharedBudgets>, config: SharedBudgetsConfig) -> Self {
        let client = Rc::new(SharedBudgetClient::new(clock, port, config));
        let _guard = PartGuard::new(Part::Budgets);
        Self { _guard, clock, backend: Backend::Shared { client, heartbeat_interval: config.member.retry_after } }
    }

    /// Starts the actor on the current thread. The mailbox capacity is set before the first message.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the guard is a field of the actor")]
    pub fn run(self) -> Addr<Self> {
        Self::create(|ctx| {
            ctx.set_mailbox_capacity(MAILBOX);
            self
        })
    }
}

/// Creates a budget, or changes the defaults of an existing one.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), BudgetError>")]
pub struct ConfigureBudget {
    /// Name of the budget.
    pub name: BudgetName,
    /// Capacity and restore rate, until the upstream reports other values.
    pub limits: BudgetLimits,
}

/// Takes a cost from a budget.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<BudgetDecision, BudgetError>")]
pub struct AcquireBudget {
    /// Name of the budget.
    pub name: BudgetName,
    /// Cost to take.
    pub cost: Points,
    /// How long the caller is willing to wait.
    pub max_wait: Duration,
}

/// Applies what an upstream reported about its own limits.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), BudgetError>")]
pub struct ObserveUpstream {
    /// Name of the budget.
    pub name: BudgetName,
    /// The reported values.
    pub observation: Observation,
}

/// Returns the state of one budget.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<BudgetSnapshot, BudgetError>")]
pub struct ObserveBudget(
    /// Name of the budget.
    pub BudgetName,
);

/// Returns the state of all budgets.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Vec<BudgetSnapshot>, BudgetError>")]
pub struct ObserveBudgets;

impl Actor for BudgetActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if let Backend::Shared { client, heartbeat_interval } = &self.backend {
            let client = Rc::clone(client);
            ctx.run_interval(*heartbeat_interval, move |_, _| client.start_tasks());
        }
    }
}

impl Handler<ConfigureBudget> for BudgetActor {
    type Result = ResponseFuture<Result<(), BudgetError>>;

    fn handle(&mut self, ConfigureBudget { name, limits }: ConfigureBudget, _: &mut Context<Self>) -> Self::Result {
        match &mut self.backend {
            Backend::Local(machine) => {
                let now = self.clock.now();
                let configured = machine.configure(&name, limits, now);
                if let Some(available) = machine.available(&name, now) {
                    emit(BudgetAvailable { name: &name, available });
                }
                Box::pin(ready(configured))
            }
            Backend::Shared { client, .. } => {
                let client = Rc::clone(client);
                Box::pin(async move { client.configure(&name, limits).await })
            }
        }
    }
}

/// Reply to [`AcquireBudget`]: a result, or a request in the queue of the shared client.
#[derive(Debug)]
pub struct AcquireResponse(ResponseState);

#[derive(Debug)]
enum ResponseState {
    Ready(Result<BudgetDecision, BudgetError>),
    Queued(Rc<SharedBudgetClient>, AcquireBudget),
}

impl MessageResponse<BudgetActor, AcquireBudget> for AcquireResponse {
    fn handle(self, _: &mut Context<BudgetActor>, reply: Option<OneshotSender<Result<BudgetDecision, BudgetError>>>) {
        match self.0 {
            ResponseState::Queued(client, request) => client.acquire(request, reply),
            ResponseState::Ready(result) => {
                if let Some(reply) = reply {
                    // The caller may have stopped waiting.
                    let _ = reply.send(result);
                }
            }
        }
    }
}

impl Handler<AcquireBudget> for BudgetActor {
    type Result = AcquireResponse;

    fn handle(&mut self, request: AcquireBudget, _: &mut Context<Self>) -> AcquireResponse {
        failpoint::message(Part::Budgets);
        let machine = match &mut self.backend {
            Backend::Local(machine) => machine,
            Backend::Shared { client, .. } => {
                return AcquireResponse(ResponseState::Queued(Rc::clone(client), request));
            }
        };
        let AcquireBudget { name, cost, max_wait } = request;
        let now = self.clock.now();
        let result = machine.acquire(&name, cost, max_wait, now);
        report_results(&name, [(cost, &result)]);
        if let Some(available) = machine.available(&name, now) {
            emit(BudgetAvailable { name: &name, available });
        }
        AcquireResponse(ResponseState::Ready(result))
    }
}

impl Handler<ObserveUpstream> for BudgetActor {
    type Result = ResponseFuture<Result<(), BudgetError>>;

    fn handle(
        &mut self,
        ObserveUpstream { name, observation }: ObserveUpstream,
        _: &mut Context<Self>,
    ) -> Self::Result {
        match &mut self.backend {
            Backend::Local(machine) => {
                let now = self.clock.now();
                let observed = machine.observe(&name, &observation, now);
                if observed.is_ok() {
                    emit(UpstreamObserved { name: &name, observation: &observation });
                }
                if let Some(available) = machine.available(&name, now) {
                    emit(BudgetAvailable { name: &name, available });
                }
                Box::pin(ready(observed))
            }
            Backend::Shared { client, .. } => {
                let client = Rc::clone(client);
                Box::pin(async move { client.observe(&name, &observation).await })
            }
        }
    }
}

impl Handler<ObserveBudgets> for BudgetActor {
    type Result = ResponseFuture<Result<Vec<BudgetSnapshot>, BudgetError>>;

    fn handle(&mut self, _: ObserveBudgets, _: &mut Context<Self>) -> Self::Result {
        match &self.backend {
            Backend::Local(machine) => {
                // Includes what was restored since the last request.
                let snapshots = machine.snapshot(self.clock.now());
                for budget in &snapshots {
                    emit(BudgetAvailable { name: &budget.name, available: budget.available });
                }
                Box::pin(ready(Ok(snapshots)))
            }
            Backend::Shared { client, .. } => {
                let client = Rc::clone(client);
                Box::pin(async move { client.show_all().await })
            }
        }
    }
}

impl Handler<ObserveBudget> for BudgetActor {
    type Result = ResponseFuture<Result<BudgetSnapshot, BudgetError>>;

    fn handle(&mut self, ObserveBudget(name): ObserveBudget, _: &mut Context<Self>) -> Self::Result {
        match &self.backend {
            Backend::Local(machine) => Box::pin(ready(machine.snapshot_of(&name, self.clock.now()))),
            Backend::Shared { client, .. } => {
                let client = Rc::clone(client);
                Box::pin(async move { client.show_one(&name).await })
            }
        }
    }
}
