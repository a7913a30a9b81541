//! Assembles the named budgets: in memory or shared over Redis, with their spend stored in the store.

use std::{sync::Arc, time::Duration};

use guildhall_actors::budget::{BudgetService, BudgetsHandle, SharedBudgetsConfig, SpendRecorder, SpendStore};
use guildhall_actors::supervision::Part;
use guildhall_actors::wall_clock::WallClock;
use guildhall_actors::{failpoint, supervision};
use guildhall_core::{
    budget::{BudgetFallback, BudgetMemberConfig},
    limit::shared,
};
use tokio::{task::JoinHandle, time::MissedTickBehavior};

use super::RestComponent;
use crate::{
    events::{BudgetRejected, emit},
    settings::{NamedBudget, Settings},
};

/// How often the spend is stored: at most this much of it is lost when the process dies.
const KEEP_EVERY: Duration = Duration::from_secs(5);

/// A process that reports less often does not count as one that shares.
const LOOKS_EVERY: Duration = Duration::from_secs(10);

/// Maximum number of requests about shared budgets that are in flight.
const MOST_UNDER_WAY: usize = 10_000;

/// The budgets of this process.
#[derive(Debug)]
pub(crate) struct BudgetsComponent {
    treasury: Arc<BudgetService>,
    spend: SpendRecorder,
    keeping: JoinHandle<()>,
}

impl BudgetsComponent {
    /// Creates the budgets of the settings in the caller's context, which must be an actix `System` or a `LocalSet`.
    pub(crate) async fn start(
        settings: &Settings,
        rest: &RestComponent,
        store: Arc<dyn SpendStore>,
        clock: WallClock,
    ) -> Self {
        let set = &settings.budgets;
        let budgets = match rest.budgets() {
            Some(shared) => BudgetsHandle::start_shared(Arc::new(shared), config(settings)),
            None => BudgetsHandle::start(set.most, set.longest_wait),
        };
        for NamedBudget { name, limits } in &set.named {
            // The settings were validated, so this succeeds.
            if let Err(error) = budgets.configure(name, *limits).await {
                emit(BudgetRejected { name, error: &error });
            }
        }
        // Unique to this start of this process.
        let process = format!("{:032x}", fastrand::u128(..));
        let spend = SpendRecorder::new(store, &process, clock);
        let treasury = Arc::new(BudgetService::new(budgets, set.others, spend.clone()));
        let keeping = supervision::spawn(Part::BudgetSpend, keep(spend.clone()));
        Self { treasury, spend, keeping }
    }

    /// The budget service.
    pub(crate) fn treasury(&self) -> &Arc<BudgetService> {
        &self.treasury
    }

    /// Stores the spend that is not stored yet.
    pub(crate) async fn close(&self) {
        self.keeping.abort();
        self.spend.keep().await;
    }
}

impl Drop for BudgetsComponent {
    fn drop(&mut self) {
        self.keeping.abort();
    }
}

fn config(settings: &Settings) -> SharedBudgetsConfig {
    let set = &settings.budgets;
    let on_loss = match settings.redis.on_loss {
        shared::LimitFallback::Share => BudgetFallback::Share,
        shared::LimitFallback::Closed => BudgetFallback::Closed,
        shared::LimitFallback::Open => BudgetFallback::Open,
    };
    let retry_after = settings.redis.heartbeat.min(LOOKS_EVERY);
    let partner = BudgetMemberConfig { most: set.most, longest_wait: set.longest_wait, on_loss, retry_after };
    SharedBudgetsConfig { partner, most_under_way: MOST_UNDER_WAY }
}

async fn keep(spend: SpendRecorder) {
    let mut tick = tokio::time::interval(KEEP_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        failpoint::message(Part::BudgetSpend);
        spend.keep().await;
    }
}
