//! Calls to the store: each with a timeout, repeated with backoff until one succeeds.

use std::time::Duration;

use guildhall_core::backoff::Backoff;
use guildhall_core::operation::Queue;
use tokio::time::{sleep, timeout};

use crate::ports::{StoreError, StoreFuture};
use crate::telemetry::emit;
use crate::telemetry::operations::StoreRetried;

/// How calls to the store are timed out and repeated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreRetry {
    pub(crate) timeout: Duration,
    pub(crate) backoff: Backoff,
}

impl StoreRetry {
    /// Makes one call.
    pub(crate) async fn attempt<T>(&self, call: StoreFuture<'_, T>) -> Result<T, StoreError> {
        let expired = || Err(StoreError::Unavailable("it did not respond in time".to_owned()));
        timeout(self.timeout, call).await.unwrap_or_else(|_| expired())
    }

    /// Reports that the call `what` failed for the `tried`-th time. Returns how long to wait before the next attempt.
    pub(crate) fn delay(&self, queue: Option<Queue>, what: &'static str, error: &StoreError, tried: u32) -> Duration {
        let wait = self.backoff.delay(tried, fastrand::f64());
        emit(StoreRetried { queue, what, error, tried, wait });
        wait
    }

    /// Waits before the next attempt.
    pub(crate) async fn back_off(&self, queue: Option<Queue>, what: &'static str, error: &StoreError, tried: u32) {
        sleep(self.delay(queue, what, error, tried)).await;
    }

    /// Repeats a call until it succeeds.
    pub(crate) async fn until_ok<'a, T>(&self, what: &'static str, call: impl Fn() -> StoreFuture<'a, T>) -> T {
        let mut tried = 0;
        loop {
            match self.attempt(call()).await {
                Ok(value) => return value,
                Err(error) => {
                    tried += 1;
                    self.back_off(None, what, &error, tried).await;
                }
            }
        }
    }
}
