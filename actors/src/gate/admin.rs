//! What people see of the gate, and what they do with it. Whoever is not answered asks a process that is ending.

use std::time::Duration;

use guildhall_core::breaker::{BreakerKey, BreakerSnapshot, ForceError};
use guildhall_core::limit::BucketPage;
use guildhall_core::spending::Measure;

use super::Gate;
use crate::circuit_breaker::{
    CheckForceOpen, ForceOpen, ForceOpenFor, GetBreaker, GetTopSpenders, ResetBreaker, TopSpenders,
};

impl Gate {
    /// A page of buckets, from a place on: 0, or what the page before said.
    pub async fn buckets(&self, from: u32, most: usize) -> Option<BucketPage> {
        self.tokens().list(from, most).await
    }

    /// Who has the most calls made, or the most that go wrong.
    pub async fn top(&self, by: Measure, most: usize) -> Option<TopSpenders> {
        self.breaker().send(GetTopSpenders { by, most }).await.ok()
    }

    /// What is to be seen of a breaker; nothing within if it is closed and has no trouble.
    pub async fn look(&self, key: BreakerKey) -> Option<Option<BreakerSnapshot>> {
        self.breaker().send(GetBreaker(key)).await.ok()
    }

    /// Whether a breaker could be opened, until it is reset or for a time.
    pub async fn may_force(&self, key: BreakerKey, lasting: Option<Duration>) -> Option<Result<(), ForceError>> {
        self.breaker().send(CheckForceOpen { key, lasting }).await.ok()
    }

    /// Opens a breaker: until it is reset, or for a time, after which it is probed.
    pub async fn force(&self, key: BreakerKey, lasting: Option<Duration>) -> Option<Result<(), ForceError>> {
        let forced = match lasting {
            Some(lasting) => self.breaker().send(ForceOpenFor { key, lasting }).await.ok(),
            None => self.breaker().send(ForceOpen(key)).await.ok().map(|forced| Ok(forced?)),
        }?;
        if forced.is_ok() {
            self.store_changes().await;
        }
        Some(forced)
    }

    /// Closes a breaker, whatever opened it; `None` if the process is ending.
    pub async fn reset(&self, key: BreakerKey) -> Option<()> {
        self.breaker().send(ResetBreaker(key)).await.ok()?;
        self.store_changes().await;
        Some(())
    }
}
