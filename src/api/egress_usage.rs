//! Usage of the REST proxy, as the proxy records it and the API shows it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use guildhall_actors::clock::Clock;
use guildhall_core::egress_usage::{EgressMeasure, EgressTop, EgressUsage, EndedCall};

/// Counts calls through the REST proxy. Clones share the counts.
#[derive(Clone, Debug)]
pub struct EgressUsageService {
    usage: Arc<Mutex<EgressUsage>>,
    clock: Clock,
}

impl EgressUsageService {
    /// Starts to count.
    #[must_use]
    pub fn start() -> Self {
        let clock = Clock::start();
        Self { usage: Arc::new(Mutex::new(EgressUsage::new(clock.now()))), clock }
    }

    /// Records a call that has ended.
    pub fn on_call(&self, call: &EndedCall<'_>) {
        let now = self.clock.now();
        self.lock().on_call(call, now);
    }

    /// The routes and callers with the highest usage.
    #[must_use]
    pub fn top(&self, by: EgressMeasure, limit: usize) -> EgressTop {
        let now = self.clock.now();
        self.lock().top(by, limit, now)
    }

    fn lock(&self) -> MutexGuard<'_, EgressUsage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
