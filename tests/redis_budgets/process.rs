//! A process that keeps budgets, as its actor.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use guildhall::redis::{RedisBudgets, RedisClient, RedisConfig, RedisKeys};
use guildhall::settings::RedisUrl;
use guildhall_actors::budget::{BudgetsHandle, SharedBudgetsConfig};
use guildhall_core::budget::{BudgetFallback, BudgetMemberConfig};
use tokio::task::LocalSet;

/// Longer than any test waits.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(3_600);

/// How often a process looks whether Redis is there.
pub(crate) const RETRY: Duration = Duration::from_millis(20);

/// How many budgets there may be.
pub(crate) const MOST: usize = 3;

/// Budgets of one process.
pub(crate) fn alone() -> BudgetsHandle {
    BudgetsHandle::start(MOST, LONGEST_WAIT)
}

/// Budgets that are shared over Redis.
pub(crate) fn shared(url: &RedisUrl, member: &str, on_loss: BudgetFallback) -> BudgetsHandle {
    let config = RedisConfig { url: url.clone(), ca_file: None, timeout: Duration::from_secs(2) };
    let redis = RedisClient::new(config).unwrap();
    let port = Arc::new(RedisBudgets::new(redis, RedisKeys::new(1), member));
    let partner = BudgetMemberConfig { most: MOST, longest_wait: LONGEST_WAIT, on_loss, retry_after: RETRY };
    BudgetsHandle::start_shared(port, SharedBudgetsConfig { partner, most_under_way: 1_000 })
}

/// Runs a test where actors can live.
pub(crate) fn on_a_system(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}
