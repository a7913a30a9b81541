//! What was spent, kept hour by hour: a process adds up in memory, and tells the store its sums now and then.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use guildhall_core::budget::{BudgetName, Hour, Points, SpendRecord, SpendTotals};

use super::events::{SpendDropped, SpendNotSaved};
use crate::ports::{StoreError, StoreFuture};
use crate::telemetry::emit;
use crate::wall_clock::WallClock;

/// How many sums are in mind at once: so many budgets for some hours. More pile up only while the store is away.
const SUMS: usize = 10_000;

/// How many go into one write.
const AT_ONCE: usize = 500;

/// What the store has of an hour: what this process said, and what all others did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HourlySpend {
    /// In millionths of a point, of this process.
    pub own_micros: u64,
    /// In how many calls.
    pub own_calls: u64,
    /// In millionths of a point, of all others.
    pub other_micros: u64,
    /// In how many calls.
    pub other_calls: u64,
}

/// Where it is kept what was spent.
pub trait SpendStore: Send + Sync {
    /// Keeps sums of one process, each in the place of its last one for that budget and hour. A smaller one changes nothing.
    fn keep_spend(&self, process: Arc<str>, spend: Vec<SpendRecord>) -> StoreFuture<'_, ()>;

    /// What was spent of a budget from an hour on, by hour, as seen by a process.
    fn spend_since(
        &self,
        process: Arc<str>,
        name: BudgetName,
        since: Hour,
    ) -> StoreFuture<'_, BTreeMap<Hour, HourlySpend>>;

    /// Forgets hours before this one; a small batch, and how many rows.
    fn sweep_spend(&self, before: Hour) -> StoreFuture<'_, u64>;
}

/// Adds up what this process lets be spent, and keeps it. Cheap to clone.
#[derive(Clone)]
pub struct SpendRecorder {
    store: Arc<dyn SpendStore>,
    process: Arc<str>,
    clock: WallClock,
    book: Arc<Mutex<SpendTotals>>,
}

impl fmt::Debug for SpendRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpendRecorder").field("process", &self.process).finish_non_exhaustive()
    }
}

impl SpendRecorder {
    /// Nothing yet. `process` names this life of this process, and no other.
    #[must_use]
    pub fn new(store: Arc<dyn SpendStore>, process: &str, clock: WallClock) -> Self {
        Self { store, process: process.into(), clock, book: Arc::new(Mutex::new(SpendTotals::new(SUMS))) }
    }

    /// So much is spent.
    pub(super) fn spent(&self, name: &BudgetName, cost: Points) {
        let now = self.clock.now();
        let mut book = self.book();
        let before = book.forgotten();
        book.on_spent(name, cost, now);
        let forgotten = book.forgotten() - before;
        drop(book);
        if forgotten > 0 {
            emit(SpendDropped { sums: forgotten });
        }
    }

    /// Keeps what is not kept yet. What cannot be stays in mind, and goes with the next.
    pub async fn keep(&self) {
        loop {
            let unkept = self.book().unkept(AT_ONCE);
            if unkept.is_empty() {
                return;
            }
            if let Err(error) = self.store.keep_spend(Arc::clone(&self.process), unkept.clone()).await {
                emit(SpendNotSaved { error: &error });
                return;
            }
            self.book().on_kept(&unkept, self.clock.now());
        }
    }

    /// What was spent of a budget in the last so many hours, this one included, by all processes: the newest first, and
    /// only hours in which something was.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    pub async fn last_hours(&self, name: &BudgetName, hours: u64) -> Result<Vec<SpendRecord>, StoreError> {
        let since = Hour::of(self.clock.now()).before(hours.saturating_sub(1));
        let kept = self.store.spend_since(Arc::clone(&self.process), name.clone(), since).await?;
        let mut all: BTreeMap<Hour, (u64, u64)> = BTreeMap::new();
        for (hour, spent) in &kept {
            all.insert(
                *hour,
                (
                    spent.own_micros.saturating_add(spent.other_micros),
                    spent.own_calls.saturating_add(spent.other_calls),
                ),
            );
        }
        // Its own sums are newer here than there.
        for spend in self.book().of(name).filter(|spend| spend.hour >= since) {
            let others = kept.get(&spend.hour).copied().unwrap_or_default();
            let calls = spend.calls.max(others.own_calls).saturating_add(others.other_calls);
            let micros = spend.micros.max(others.own_micros).saturating_add(others.other_micros);
            all.insert(spend.hour, (micros, calls));
        }
        let shown = |(hour, (micros, calls))| SpendRecord { name: name.clone(), hour, micros, calls };
        Ok(all.into_iter().rev().map(shown).collect())
    }

    fn book(&self) -> MutexGuard<'_, SpendTotals> {
        // Nobody panics while holding it.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
