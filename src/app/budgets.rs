//! Named budgets put together: in memory or shared over Redis, and what was spent of them kept in the store.

use std::{sync::Arc, time::Duration};

use guildhall_actors::{
    budgets::{NamedBudgets, SharedConfig, SpendKeeper, SpendStore, Treasury},
    failpoint,
    operations::WallClock,
    supervision::{self, Part},
};
use guildhall_core::{
    budget::{OnLoss, PartnerConfig},
    limit::shared,
};
use tokio::{task::JoinHandle, time::MissedTickBehavior};

use super::Rest;
use crate::{
    events::{BudgetUnfit, emit},
    settings::{NamedBudget, Settings},
};

/// How often what was spent is kept: so much of it is lost at most when the process dies.
const KEEP_EVERY: Duration = Duration::from_secs(5);

/// Whoever says more seldom that it is there does not count as one who shares.
const LOOKS_EVERY: Duration = Duration::from_secs(10);

/// Questions about shared budgets that may be under way.
const MOST_UNDER_WAY: usize = 10_000;

/// The budgets of this process.
#[derive(Debug)]
pub(super) struct BudgetsPart {
    treasury: Arc<Treasury>,
    spend: SpendKeeper,
    keeping: JoinHandle<()>,
}

impl BudgetsPart {
    /// Makes the budgets that the settings name, where the caller runs, which must be an actix `System` or a `LocalSet`.
    pub(super) async fn start(settings: &Settings, rest: &Rest, store: Arc<dyn SpendStore>, clock: WallClock) -> Self {
        let set = &settings.budgets;
        let budgets = match rest.budgets() {
            Some(shared) => NamedBudgets::start_shared(Arc::new(shared), config(settings)),
            None => NamedBudgets::start(set.most, set.longest_wait),
        };
        for NamedBudget { name, limits } in &set.named {
            // The settings have been checked: it fits.
            if let Err(error) = budgets.configure(name, *limits).await {
                emit(BudgetUnfit { name, error: &error });
            }
        }
        // No other life of any process has it.
        let process = format!("{:032x}", fastrand::u128(..));
        let spend = SpendKeeper::new(store, &process, clock);
        let treasury = Arc::new(Treasury::new(budgets, set.others, spend.clone()));
        let keeping = supervision::spawn(Part::BudgetSpend, keep(spend.clone()));
        Self { treasury, spend, keeping }
    }

    /// The way in.
    pub(super) fn treasury(&self) -> &Arc<Treasury> {
        &self.treasury
    }

    /// Keeps what is not kept yet.
    pub(super) async fn close(&self) {
        self.keeping.abort();
        self.spend.keep().await;
    }
}

impl Drop for BudgetsPart {
    fn drop(&mut self) {
        self.keeping.abort();
    }
}

fn config(settings: &Settings) -> SharedConfig {
    let set = &settings.budgets;
    let on_loss = match settings.redis.on_loss {
        shared::OnLoss::Share => OnLoss::Share,
        shared::OnLoss::Closed => OnLoss::Closed,
        shared::OnLoss::Open => OnLoss::Open,
    };
    let retry_after = settings.redis.heartbeat.min(LOOKS_EVERY);
    let partner = PartnerConfig { most: set.most, longest_wait: set.longest_wait, on_loss, retry_after };
    SharedConfig { partner, most_under_way: MOST_UNDER_WAY }
}

async fn keep(spend: SpendKeeper) {
    let mut tick = tokio::time::interval(KEEP_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        failpoint::message(Part::BudgetSpend);
        spend.keep().await;
    }
}
