//! Limits concurrency and rate of operations over all guilds.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

/// Permission to run one operation. Dropping it lets another one start.
#[derive(Debug)]
#[must_use]
pub(crate) struct Admission {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Admission {
    /// For operations that no limit counts.
    pub(crate) const fn free() -> Self {
        Self { _permit: None }
    }
}

/// Limits how many operations run at the same time, and how many start per second.
#[derive(Debug)]
pub(crate) struct Throttle {
    running: Option<Arc<Semaphore>>,
    pacer: Option<Pacer>,
}

/// Spaces starts evenly, so that no second has too many.
#[derive(Debug)]
struct Pacer {
    interval: Duration,
    next: Mutex<Option<Instant>>,
}

impl Pacer {
    /// Reserves a start that need not wait, if there is one.
    fn try_reserve(&self) -> bool {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let free = next.is_none_or(|next| next <= now);
        if free {
            *next = Some(now + self.interval);
        }
        free
    }

    /// Reserves the next start, in order.
    fn reserve(&self) -> Instant {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let start = next.map_or_else(Instant::now, |next| next.max(Instant::now()));
        *next = Some(start + self.interval);
        start
    }
}

impl Throttle {
    /// 0 is no limit.
    pub(crate) fn new(max_running: usize, per_second: u32) -> Self {
        let running = (max_running > 0).then(|| Arc::new(Semaphore::new(max_running.min(Semaphore::MAX_PERMITS))));
        let pacer =
            (per_second > 0).then(|| Pacer { interval: Duration::from_secs(1) / per_second, next: Mutex::new(None) });
        Self { running, pacer }
    }

    /// Permission to start now, if no wait is needed.
    pub(crate) fn try_admit(&self) -> Option<Admission> {
        let admission = match &self.running {
            None => Admission::free(),
            // Waiting callers get permits first, so this takes none from them.
            Some(running) => Admission { _permit: Some(Arc::clone(running).try_acquire_owned().ok()?) },
        };
        self.pacer.as_ref().is_none_or(Pacer::try_reserve).then_some(admission)
    }

    /// Waits for permission to start.
    pub(crate) async fn admit(&self) -> Admission {
        let permit = match &self.running {
            None => None,
            // The semaphore is never closed.
            Some(running) => Arc::clone(running).acquire_owned().await.ok(),
        };
        if let Some(pacer) = &self.pacer {
            sleep_until(pacer.reserve()).await;
        }
        Admission { _permit: permit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn starts_per_second_are_limited() {
        let throttle = Throttle::new(0, 10);
        let started = Instant::now();
        for _ in 0..21 {
            let _admission = throttle.admit().await;
        }
        assert_eq!(started.elapsed(), Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn concurrency_is_limited_and_a_finished_operation_admits_the_next() {
        let throttle = Throttle::new(2, 0);
        let (first, _second) = (throttle.try_admit().unwrap(), throttle.try_admit().unwrap());
        assert!(throttle.try_admit().is_none());
        drop(first);
        let _third = throttle.admit().await;
        assert!(throttle.try_admit().is_none());
    }
}
