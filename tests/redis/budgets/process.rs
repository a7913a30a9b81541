//! A process with budgets, as its actor.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use guildhall::redis::{RedisBudgets, RedisClient, RedisConfig, RedisKeys};
use guildhall::settings::RedisUrl;
use guildhall_actors::budget::{BudgetsHandle, SharedBudgetsConfig};
use guildhall_core::budget::{BudgetFallback, BudgetMemberConfig};
use tokio::task::LocalSet;

/// Longer than any test waits.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(3_600);

/// Interval at which a process retries the connection to Redis.
pub(crate) const RETRY_DELAY: Duration = Duration::from_millis(20);

/// Maximum number of budgets.
pub(crate) const MAX_BUDGETS: usize = 3;

/// Budgets of a single process.
pub(crate) fn start_local() -> BudgetsHandle {
    BudgetsHandle::start(MAX_BUDGETS, MAX_WAIT)
}

/// Budgets that are shared over Redis.
pub(crate) fn start_shared(url: &RedisUrl, member: &str, on_loss: BudgetFallback) -> BudgetsHandle {
    let config = RedisConfig { url: url.clone(), ca_file: None, timeout: Duration::from_secs(2) };
    let redis = RedisClient::new(config).unwrap();
    let port = Arc::new(RedisBudgets::new(redis, RedisKeys::new(1), member));
    let partner =
        BudgetMemberConfig { max_budgets: MAX_BUDGETS, max_wait: MAX_WAIT, on_loss, retry_after: RETRY_DELAY };
    BudgetsHandle::start_shared(port, SharedBudgetsConfig { member: partner, max_in_flight: 1_000 })
}

/// Runs a test in a local task set, which actors need.
pub(crate) fn run_local(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}
