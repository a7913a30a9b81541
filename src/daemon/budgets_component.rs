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
use tokio::{
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, timeout_at},
};

use super::RestComponent;
use crate::{
    events::{BudgetRejected, emit},
    settings::{NamedBudget, Settings},
};

/// How often the spend is stored: at most this much of it is lost when the process dies.
const STORE_INTERVAL: Duration = Duration::from_secs(5);

/// A process that reports less often does not count as one that shares.
const MAX_REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum number of requests about shared budgets that are in flight.
const MAX_IN_FLIGHT: usize = 10_000;

/// The budgets of this process.
#[derive(Debug)]
pub(crate) struct BudgetsComponent {
    service: Arc<BudgetService>,
    spend: SpendRecorder,
    spend_task: JoinHandle<()>,
}

impl BudgetsComponent {
    /// Creates the budgets of the settings in the caller's context, which must be an actix `System` or a `LocalSet`.
    pub(crate) async fn start(
        settings: &Settings,
        rest: &RestComponent,
        store: Arc<dyn SpendStore>,
        clock: WallClock,
    ) -> Self {
        let budget_settings = &settings.budgets;
        let budgets = match rest.budgets() {
            Some(shared) => BudgetsHandle::start_shared(Arc::new(shared), config(settings)),
            None => BudgetsHandle::start(budget_settings.max_budgets, budget_settings.max_wait),
        };
        for NamedBudget { name, limits } in &budget_settings.named {
            // The settings were validated, so this succeeds.
            if let Err(error) = budgets.configure(name, *limits).await {
                emit(BudgetRejected { name, error: &error });
            }
        }
        // Unique to this start of this process.
        let process = format!("{:032x}", fastrand::u128(..));
        let spend = SpendRecorder::new(store, &process, clock);
        let service = Arc::new(BudgetService::new(budgets, budget_settings.others, spend.clone()));
        let spend_task = supervision::spawn(Part::BudgetSpend, store_spend(spend.clone()));
        Self { service, spend, spend_task }
    }

    /// The budget service.
    pub(crate) fn service(&self) -> &Arc<BudgetService> {
        &self.service
    }

    /// Stores the spend that is not stored yet.
    pub(crate) async fn stop(self, deadline: Instant) {
        self.spend_task.abort();
        let _ = timeout_at(deadline, self.spend.save()).await;
    }
}

impl Drop for BudgetsComponent {
    fn drop(&mut self) {
        self.spend_task.abort();
    }
}

fn config(settings: &Settings) -> SharedBudgetsConfig {
    let budget_settings = &settings.budgets;
    let on_loss = match settings.redis.on_loss {
        shared::LimitFallback::Share => BudgetFallback::Share,
        shared::LimitFallback::Closed => BudgetFallback::Closed,
        shared::LimitFallback::Open => BudgetFallback::Open,
    };
    let retry_after = settings.redis.heartbeat.min(MAX_REPORT_INTERVAL);
    let member = BudgetMemberConfig {
        max_budgets: budget_settings.max_budgets,
        max_wait: budget_settings.max_wait,
        on_loss,
        retry_after,
    };
    SharedBudgetsConfig { member, max_in_flight: MAX_IN_FLIGHT }
}

async fn store_spend(spend: SpendRecorder) {
    let mut tick = tokio::time::interval(STORE_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        failpoint::message(Part::BudgetSpend);
        spend.save().await;
    }
}
