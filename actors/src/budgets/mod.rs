//! The actor that keeps the named budgets: whoever may go later is told when, and has paid already.
//!
//! ```text
//!  Acquire, ObserveUpstream ──▶ Budgets ──▶ the machine (core)                      alone, at once
//!                                  └──────▶ Desk ──▶ SharedBudgets (port) ──▶ …     together with other processes
//! ```

mod desk;
mod events;
mod handle;
mod port;
mod spend;

#[cfg(test)]
mod tests;
mod treasury;

pub(crate) use events::METRICS;
pub use events::{ACQUIRED, AVAILABLE, EXHAUSTED, SPEND_FORGOTTEN, WAITS};
pub use handle::NamedBudgets;
pub use port::{Answering, SharedBudgets, Told, Unreachable};
pub use spend::{HourSpent, SpendKeeper, SpendStore};
pub use treasury::Treasury;

use std::future::ready;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::dev::{MessageResponse, OneshotSender};
use actix::{Actor, Addr, AsyncContext as _, Context, Handler, Message, ResponseFuture};
use guildhall_core::budget::{
    Acquired, BudgetError, BudgetName, BudgetSnapshot, Budgets as Machine, Limits, Observation, PartnerConfig, Points,
};

use self::desk::Desk;
use self::events::{BudgetStands, UpstreamSpoke, tell};
use crate::clock::Clock;
use crate::failpoint;
use crate::supervision::{Part, PartGuard};
use crate::telemetry::emit;

/// Messages that wait for the actor at most, for each sender.
const MAILBOX: usize = 4_096;

/// How budgets are shared with other processes.
#[derive(Clone, Copy, Debug)]
pub struct SharedConfig {
    /// This process's side of them. It looks as often as `retry_after` whether they are within reach, and says as often
    /// that it is there; half a minute is too long for that.
    pub partner: PartnerConfig,
    /// How many questions may be under way; whoever asks more is told so.
    pub most_under_way: usize,
}

/// Keeps the named budgets.
#[derive(Debug)]
pub struct Budgets {
    /// First, so that its end is noticed before that of what waits for it.
    _guard: PartGuard,
    clock: Clock,
    keeper: Keeper,
}

#[derive(Debug)]
enum Keeper {
    Alone(Machine),
    Together { desk: Rc<Desk>, sign_of_life: Duration },
}

impl Budgets {
    /// No budgets yet, and they will be this process's own. There may be `most`, and nobody may book a turn further away
    /// than `longest_wait`.
    #[must_use]
    pub fn new(clock: Clock, most: usize, longest_wait: Duration) -> Self {
        Self { _guard: PartGuard::new(Part::Budgets), clock, keeper: Keeper::Alone(Machine::new(most, longest_wait)) }
    }

    /// No budgets yet, and they will be shared.
    #[must_use]
    pub fn shared(clock: Clock, port: Arc<dyn SharedBudgets>, config: SharedConfig) -> Self {
        let desk = Rc::new(Desk::new(clock, port, config));
        let _guard = PartGuard::new(Part::Budgets);
        Self { _guard, clock, keeper: Keeper::Together { desk, sign_of_life: config.partner.retry_after } }
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
pub struct Configure {
    /// Its name.
    pub name: BudgetName,
    /// What it holds, and how fast it comes back, until the upstream says better.
    pub limits: Limits,
}

/// Take a cost from a budget.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Acquired, BudgetError>")]
pub struct Acquire {
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
pub struct ObserveOne(
    /// Which.
    pub BudgetName,
);

/// Show all budgets as they stand.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Vec<BudgetSnapshot>, BudgetError>")]
pub struct Observe;

impl Actor for Budgets {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if let Keeper::Together { desk, sign_of_life } = &self.keeper {
            let desk = Rc::clone(desk);
            ctx.run_interval(*sign_of_life, move |_, _| desk.run_errands());
        }
    }
}

impl Handler<Configure> for Budgets {
    type Result = ResponseFuture<Result<(), BudgetError>>;

    fn handle(&mut self, Configure { name, limits }: Configure, _: &mut Context<Self>) -> Self::Result {
        match &mut self.keeper {
            Keeper::Alone(machine) => {
                let now = self.clock.now();
                let configured = machine.configure(&name, limits, now);
                if let Some(available) = machine.available(&name, now) {
                    emit(BudgetStands { name: &name, available });
                }
                Box::pin(ready(configured))
            }
            Keeper::Together { desk, .. } => {
                let desk = Rc::clone(desk);
                Box::pin(async move { desk.configure(&name, limits).await })
            }
        }
    }
}

/// What an asker gets: an answer, or a place in a queue.
#[derive(Debug)]
pub struct Asked(Place);

#[derive(Debug)]
enum Place {
    Answered(Result<Acquired, BudgetError>),
    Queued(Rc<Desk>, Acquire),
}

impl MessageResponse<Budgets, Acquire> for Asked {
    fn handle(self, _: &mut Context<Budgets>, reply: Option<OneshotSender<Result<Acquired, BudgetError>>>) {
        match self.0 {
            Place::Queued(desk, ask) => desk.acquire(ask, reply),
            Place::Answered(answer) => {
                if let Some(reply) = reply {
                    // Whoever no longer listens does not want it either.
                    let _ = reply.send(answer);
                }
            }
        }
    }
}

impl Handler<Acquire> for Budgets {
    type Result = Asked;

    fn handle(&mut self, ask: Acquire, _: &mut Context<Self>) -> Asked {
        failpoint::message(Part::Budgets);
        let machine = match &mut self.keeper {
            Keeper::Alone(machine) => machine,
            Keeper::Together { desk, .. } => return Asked(Place::Queued(Rc::clone(desk), ask)),
        };
        let Acquire { name, cost, max_wait } = ask;
        let now = self.clock.now();
        let asked = machine.acquire(&name, cost, max_wait, now);
        tell(&name, [(cost, &asked)]);
        if let Some(available) = machine.available(&name, now) {
            emit(BudgetStands { name: &name, available });
        }
        Asked(Place::Answered(asked))
    }
}

impl Handler<ObserveUpstream> for Budgets {
    type Result = ResponseFuture<Result<(), BudgetError>>;

    fn handle(&mut self, ObserveUpstream { name, seen }: ObserveUpstream, _: &mut Context<Self>) -> Self::Result {
        match &mut self.keeper {
            Keeper::Alone(machine) => {
                let now = self.clock.now();
                let observed = machine.observe(&name, &seen, now);
                if observed.is_ok() {
                    emit(UpstreamSpoke { name: &name, seen: &seen });
                }
                if let Some(available) = machine.available(&name, now) {
                    emit(BudgetStands { name: &name, available });
                }
                Box::pin(ready(observed))
            }
            Keeper::Together { desk, .. } => {
                let desk = Rc::clone(desk);
                Box::pin(async move { desk.observe(&name, &seen).await })
            }
        }
    }
}

impl Handler<Observe> for Budgets {
    type Result = ResponseFuture<Result<Vec<BudgetSnapshot>, BudgetError>>;

    fn handle(&mut self, _: Observe, _: &mut Context<Self>) -> Self::Result {
        match &self.keeper {
            Keeper::Alone(machine) => {
                // What has come back meanwhile shows as well.
                let standing = machine.snapshot(self.clock.now());
                for budget in &standing {
                    emit(BudgetStands { name: &budget.name, available: budget.available });
                }
                Box::pin(ready(Ok(standing)))
            }
            Keeper::Together { desk, .. } => {
                let desk = Rc::clone(desk);
                Box::pin(async move { desk.show_all().await })
            }
        }
    }
}

impl Handler<ObserveOne> for Budgets {
    type Result = ResponseFuture<Result<BudgetSnapshot, BudgetError>>;

    fn handle(&mut self, ObserveOne(name): ObserveOne, _: &mut Context<Self>) -> Self::Result {
        match &self.keeper {
            Keeper::Alone(machine) => Box::pin(ready(machine.show(&name, self.clock.now()))),
            Keeper::Together { desk, .. } => {
                let desk = Rc::clone(desk);
                Box::pin(async move { desk.show_one(&name).await })
            }
        }
    }
}
