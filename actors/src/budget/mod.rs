//! The actor that keeps the named budgets: whoever may go later is told when, and has paid already.
//!
//! ```text
//!  Acquire, ObserveUpstream ──▶ Budgets ──▶ the machine (core)                      alone, at once
//!                                  └──────▶ Desk ──▶ SharedBudgets (port) ──▶ …     together with other processes
//! ```

mod events;
mod handle;
mod shared_client;
mod spend;

mod service;
#[cfg(test)]
mod tests;

pub(crate) use events::METRICS;
pub use events::{ACQUIRED, AVAILABLE, EXHAUSTED, SPEND_FORGOTTEN, WAITS};
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

use self::events::{BudgetAvailable, UpstreamObserved, tell};
use self::shared_client::SharedBudgetClient;
use crate::clock::Clock;
use crate::failpoint;
use crate::supervision::{Part, PartGuard};
use crate::telemetry::emit;

/// Messages that wait for the actor at most, for each sender.
const MAILBOX: usize = 4_096;

/// How budgets are shared with other processes.
#[derive(Clone, Copy, Debug)]
pub struct SharedBudgetsConfig {
    /// This process's side of them. It looks as often as `retry_after` whether they are within reach, and says as often
    /// that it is there; half a minute is too long for that.
    pub partner: BudgetMemberConfig,
    /// How many questions may be under way; whoever asks more is told so.
    pub most_under_way: usize,
}

/// Keeps the named budgets.
#[derive(Debug)]
pub struct BudgetActor {
    /// First, so that its end is noticed before that of what waits for it.
    _guard: PartGuard,
    clock: Clock,
    keeper: Backend,
}

#[derive(Debug)]
enum Backend {
    Alone(Machine),
    Together { desk: Rc<SharedBudgetClient>, sign_of_life: Duration },
}

impl BudgetActor {
    /// No budgets yet, and they will be this process's own. There may be `most`, and nobody may book a turn further away
    /// than `longest_wait`.
    #[must_use]
    pub fn new(clock: Clock, most: usize, longest_wait: Duration) -> Self {
        Self { _guard: PartGuard::new(Part::Budgets), clock, keeper: Backend::Alone(Machine::new(most, longest_wait)) }
    }

    /// No budgets yet, and they will be shared.
    #[must_use]
    pub fn shared(clock: Clock, port: Arc<dyn SharedBudgets>, config: SharedBudgetsConfig) -> Self {
        let desk = Rc::new(SharedBudgetClient::new(clock, port, config));
        let _guard = PartGuard::new(Part::Budgets);
        Self { _guard, clock, keeper: Backend::Together { desk, sign_of_life: config.partner.retry_after } }
    }

    /// Starts it where the caller runs, with room in its mailbox from the first message on.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "its guard is a field of the actor")]
    pub fn run(self) -> Addr<Self> {
        Self::create(|ctx| {
            ctx.set_mailbox_capacity(MAILBOX);
            self
        })
    }
}

/// Make a budget, or give one other defaults.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), BudgetError>")]
pub struct ConfigureBudget {
    /// Its name.
    pub name: BudgetName,
    /// What it holds, and how fast it comes back, until the upstream says better.
    pub limits: BudgetLimits,
}

/// Take a cost from a budget.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<BudgetDecision, BudgetError>")]
pub struct AcquireBudget {
    /// Which one.
    pub name: BudgetName,
    /// How much.
    pub cost: Points,
    /// How long the asker would wait.
    pub max_wait: Duration,
}

/// Take over what an upstream said of itself.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), BudgetError>")]
pub struct ObserveUpstream {
    /// Whose budget.
    pub name: BudgetName,
    /// What it said.
    pub seen: Observation,
}

/// Show a budget as it stands.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<BudgetSnapshot, BudgetError>")]
pub struct ObserveBudget(
    /// Which.
    pub BudgetName,
);

/// Show all budgets as they stand.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Vec<BudgetSnapshot>, BudgetError>")]
pub struct ObserveBudgets;

impl Actor for BudgetActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if let Backend::Together { desk, sign_of_life } = &self.keeper {
            let desk = Rc::clone(desk);
            ctx.run_interval(*sign_of_life, move |_, _| desk.run_errands());
        }
    }
}

impl Handler<ConfigureBudget> for BudgetActor {
    type Result = ResponseFuture<Result<(), BudgetError>>;

    fn handle(&mut self, ConfigureBudget { name, limits }: ConfigureBudget, _: &mut Context<Self>) -> Self::Result {
        match &mut self.keeper {
            Backend::Alone(machine) => {
                let now = self.clock.now();
                let configured = machine.configure(&name, limits, now);
                if let Some(available) = machine.available(&name, now) {
                    emit(BudgetAvailable { name: &name, available });
                }
                Box::pin(ready(configured))
            }
            Backend::Together { desk, .. } => {
                let desk = Rc::clone(desk);
                Box::pin(async move { desk.configure(&name, limits).await })
            }
        }
    }
}

/// What an asker gets: an answer, or a place in a queue.
#[derive(Debug)]
pub struct AcquireResponse(ResponseState);

#[derive(Debug)]
enum ResponseState {
    Answered(Result<BudgetDecision, BudgetError>),
    Queued(Rc<SharedBudgetClient>, AcquireBudget),
}

impl MessageResponse<BudgetActor, AcquireBudget> for AcquireResponse {
    fn handle(self, _: &mut Context<BudgetActor>, reply: Option<OneshotSender<Result<BudgetDecision, BudgetError>>>) {
        match self.0 {
            ResponseState::Queued(desk, ask) => desk.acquire(ask, reply),
            ResponseState::Answered(answer) => {
                if let Some(reply) = reply {
                    // Whoever no longer listens does not want it either.
                    let _ = reply.send(answer);
                }
            }
        }
    }
}

impl Handler<AcquireBudget> for BudgetActor {
    type Result = AcquireResponse;

    fn handle(&mut self, ask: AcquireBudget, _: &mut Context<Self>) -> AcquireResponse {
        failpoint::message(Part::Budgets);
        let machine = match &mut self.keeper {
            Backend::Alone(machine) => machine,
            Backend::Together { desk, .. } => return AcquireResponse(ResponseState::Queued(Rc::clone(desk), ask)),
        };
        let AcquireBudget { name, cost, max_wait } = ask;
        let now = self.clock.now();
        let asked = machine.acquire(&name, cost, max_wait, now);
        tell(&name, [(cost, &asked)]);
        if let Some(available) = machine.available(&name, now) {
            emit(BudgetAvailable { name: &name, available });
        }
        AcquireResponse(ResponseState::Answered(asked))
    }
}

impl Handler<ObserveUpstream> for BudgetActor {
    type Result = ResponseFuture<Result<(), BudgetError>>;

    fn handle(&mut self, ObserveUpstream { name, seen }: ObserveUpstream, _: &mut Context<Self>) -> Self::Result {
        match &mut self.keeper {
            Backend::Alone(machine) => {
                let now = self.clock.now();
                let observed = machine.observe(&name, &seen, now);
                if observed.is_ok() {
                    emit(UpstreamObserved { name: &name, seen: &seen });
                }
                if let Some(available) = machine.available(&name, now) {
                    emit(BudgetAvailable { name: &name, available });
                }
                Box::pin(ready(observed))
            }
            Backend::Together { desk, .. } => {
                let desk = Rc::clone(desk);
                Box::pin(async move { desk.observe(&name, &seen).await })
            }
        }
    }
}

impl Handler<ObserveBudgets> for BudgetActor {
    type Result = ResponseFuture<Result<Vec<BudgetSnapshot>, BudgetError>>;

    fn handle(&mut self, _: ObserveBudgets, _: &mut Context<Self>) -> Self::Result {
        match &self.keeper {
            Backend::Alone(machine) => {
                // What has come back meanwhile shows as well.
                let standing = machine.snapshot(self.clock.now());
                for budget in &standing {
                    emit(BudgetAvailable { name: &budget.name, available: budget.available });
                }
                Box::pin(ready(Ok(standing)))
            }
            Backend::Together { desk, .. } => {
                let desk = Rc::clone(desk);
                Box::pin(async move { desk.show_all().await })
            }
        }
    }
}

impl Handler<ObserveBudget> for BudgetActor {
    type Result = ResponseFuture<Result<BudgetSnapshot, BudgetError>>;

    fn handle(&mut self, ObserveBudget(name): ObserveBudget, _: &mut Context<Self>) -> Self::Result {
        match &self.keeper {
            Backend::Alone(machine) => Box::pin(ready(machine.show(&name, self.clock.now()))),
            Backend::Together { desk, .. } => {
                let desk = Rc::clone(desk);
                Box::pin(async move { desk.show_one(&name).await })
            }
        }
    }
}
