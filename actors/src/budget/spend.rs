//! Hourly spend. A process sums it up in memory and saves its totals to the store from time to time.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use guildhall_core::budget::{BudgetName, Hour, Points, SpendRecord, SpendTotals};

use super::events::{SpendDropped, SpendNotSaved};
use crate::ports::{StoreError, StoreFuture};
use crate::telemetry::{FailureLog, emit};
use crate::wall_clock::WallClock;

/// Maximum number of totals in memory: 10,000 budgets for one hour, or fewer for several. They accumulate only while
/// the store is unavailable.
const MAX_TOTALS: usize = 10_000;

/// Totals in one write.
const BATCH_SIZE: usize = 500;

/// Stored spend of an hour: of this process, and of all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HourlySpend {
    /// Spend of this process, in millionths of a point.
    pub own_micros: u64,
    /// Number of calls of this process.
    pub own_calls: u64,
    /// Spend of all others, in millionths of a point.
    pub other_micros: u64,
    /// Number of calls of all others.
    pub other_calls: u64,
}

/// Store for the spend.
pub trait SpendStore: Send + Sync {
    /// Saves totals of one process. Each replaces the previous one for its budget and hour; a smaller one changes
    /// nothing.
    fn save_spend(&self, process: Arc<str>, spend: Vec<SpendRecord>) -> StoreFuture<'_, ()>;

    /// Spend of a budget since an hour, by hour, from the point of view of a process.
    fn spend_since(
        &self,
        process: Arc<str>,
        name: BudgetName,
        since: Hour,
    ) -> StoreFuture<'_, BTreeMap<Hour, HourlySpend>>;

    /// Deletes a small batch of rows from before this hour, and returns their number.
    fn sweep_spend(&self, before: Hour) -> StoreFuture<'_, u64>;
}

/// Sums up the spend of this process and saves it. Cheap to clone.
#[derive(Clone)]
pub struct SpendRecorder {
    store: Arc<dyn SpendStore>,
    process: Arc<str>,
    clock: WallClock,
    totals: Arc<Mutex<SpendTotals>>,
    failures: Arc<FailureLog>,
}

impl fmt::Debug for SpendRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpendRecorder").field("process", &self.process).finish_non_exhaustive()
    }
}

impl SpendRecorder {
    /// Creates an empty recorder. `process` must be unique to this run of the process.
    #[must_use]
    pub fn new(store: Arc<dyn SpendStore>, process: &str, clock: WallClock) -> Self {
        Self {
            store,
            process: process.into(),
            clock,
            totals: Arc::new(Mutex::new(SpendTotals::new(MAX_TOTALS))),
            failures: Arc::new(FailureLog::new("saving of budget spend")),
        }
    }

    /// Records a cost that was spent.
    pub(super) fn record_spent(&self, name: &BudgetName, cost: Points) {
        let now = self.clock.now();
        let mut totals = self.totals();
        let before = totals.dropped();
        totals.on_spent(name, cost, now);
        let dropped = totals.dropped() - before;
        drop(totals);
        if dropped > 0 {
            emit(SpendDropped { sums: dropped });
        }
    }

    /// Saves the totals that have changed. On failure they stay in memory for the next save.
    pub async fn save(&self) {
        loop {
            let unsaved = self.totals().unsaved(BATCH_SIZE);
            if unsaved.is_empty() {
                return;
            }
            if let Err(error) = self.store.save_spend(Arc::clone(&self.process), unsaved.clone()).await {
                emit(SpendNotSaved { error: &error, summary: self.failures.on_failure() });
                return;
            }
            self.failures.on_success();
            self.totals().on_saved(&unsaved, self.clock.now());
        }
    }

    /// Spend of a budget by all processes in the last `hours` hours, including the current one: the newest first,
    /// without hours that have none.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    pub async fn last_hours(&self, name: &BudgetName, hours: u64) -> Result<Vec<SpendRecord>, StoreError> {
        let since = Hour::of(self.clock.now()).before(hours.saturating_sub(1));
        let stored = self.store.spend_since(Arc::clone(&self.process), name.clone(), since).await?;
        let mut all: BTreeMap<Hour, (u64, u64)> = BTreeMap::new();
        for (hour, spent) in &stored {
            all.insert(
                *hour,
                (
                    spent.own_micros.saturating_add(spent.other_micros),
                    spent.own_calls.saturating_add(spent.other_calls),
                ),
            );
        }
        // The totals of this process are newer in memory than in the store.
        for spend in self.totals().records_of(name).filter(|spend| spend.hour >= since) {
            let others = stored.get(&spend.hour).copied().unwrap_or_default();
            let calls = spend.calls.max(others.own_calls).saturating_add(others.other_calls);
            let micros = spend.micros.max(others.own_micros).saturating_add(others.other_micros);
            all.insert(spend.hour, (micros, calls));
        }
        let to_record = |(hour, (micros, calls))| SpendRecord { name: name.clone(), hour, micros, calls };
        Ok(all.into_iter().rev().map(to_record).collect())
    }

    fn totals(&self) -> MutexGuard<'_, SpendTotals> {
        // No code panics while it holds the lock.
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
