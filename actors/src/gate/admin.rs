//! Manual control of the gate, and queries. `None` means that the process is shutting down.

use std::time::Duration;

use guildhall_core::breaker::{BreakerKey, BreakerSnapshot, ForceError};
use guildhall_core::limit::BucketPage;
use guildhall_core::spending::Measure;
use tokio::sync::watch;

use super::Gate;
use crate::circuit_breaker::{
    CheckForceOpen, ClearWebhook, ForceOpen, ForceOpenFor, GetBreaker, GetTopSpenders, ResetBreaker, SendBlock,
    TopSpenders, WatchSendBlock,
};

impl Gate {
    /// Follows whether any call can be sent to Discord, and why not.
    pub async fn watch_send_block(&self) -> Option<watch::Receiver<Option<SendBlock>>> {
        self.breaker().send(WatchSendBlock).await.ok()
    }

    /// A page of buckets, starting at a position: 0, or the value from the previous page.
    pub async fn buckets(&self, from: u32, limit: usize) -> Option<BucketPage> {
        self.tokens().list(from, limit).await
    }

    /// Consumers with the most calls, or the most failed calls.
    pub async fn top(&self, by: Measure, limit: usize) -> Option<TopSpenders> {
        self.breaker().send(GetTopSpenders { by, limit }).await.ok()
    }

    /// Snapshot of a breaker. The inner value is `None` if it is closed and has no failures.
    pub async fn breaker_snapshot(&self, key: BreakerKey) -> Option<Option<BreakerSnapshot>> {
        self.breaker().send(GetBreaker(key)).await.ok()
    }

    /// Checks whether a breaker could be forced open, for a time or until it is reset.
    pub async fn check_force(&self, key: BreakerKey, duration: Option<Duration>) -> Option<Result<(), ForceError>> {
        self.breaker().send(CheckForceOpen { key, duration }).await.ok()
    }

    /// Opens a breaker: until it is reset, or for a time, after which it is probed.
    pub async fn force(&self, key: BreakerKey, duration: Option<Duration>) -> Option<Result<(), ForceError>> {
        let forced = match duration {
            Some(duration) => self.breaker().send(ForceOpenFor { key, duration }).await.ok(),
            None => self.breaker().send(ForceOpen(key)).await.ok().map(|forced| Ok(forced?)),
        }?;
        if forced.is_ok() {
            self.store_changes().await;
        }
        Some(forced)
    }

    /// Forgets that a webhook does not exist. Returns how many of its tokens were remembered.
    pub async fn clear_webhook(&self, id: u64) -> Option<usize> {
        self.breaker().send(ClearWebhook(id)).await.ok()
    }

    /// Closes a breaker, whatever opened it. `None` if the process is shutting down.
    pub async fn reset(&self, key: BreakerKey) -> Option<()> {
        self.breaker().send(ResetBreaker(key)).await.ok()?;
        self.store_changes().await;
        Some(())
    }
}
