//! Passes: returned by a report, or by a drop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix::Addr;
use guildhall_core::breaker::{self, Attempt, CallResult};
use guildhall_core::invalid::Reservation;
use tokio::sync::oneshot;

use super::{AbandonCall, CircuitBreaker, ReportCall};
use crate::crash;

/// Counts the transitions of all breakers. Shared with every pass, so that a pass can be checked without a message.
#[derive(Clone, Debug, Default)]
pub(super) struct Generations(Arc<AtomicU64>);

impl Generations {
    /// Called when a breaker has changed its state.
    pub(super) fn advance(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn current(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// What the actor gets back from a pass.
#[derive(Debug)]
pub(super) struct AdmittedCall {
    pub(super) pass: breaker::CallPermit,
    /// `None` for calls to other upstreams: Discord does not count them.
    pub(super) reservation: Option<Reservation>,
}

/// Permission to make one call. If dropped without a report, it counts as a call that was never made.
#[derive(Debug)]
#[must_use = "a pass that is dropped is returned unused"]
pub struct Pass {
    admitted: Option<AdmittedCall>,
    is_probe: bool,
    generation: u64,
    breaker: Addr<CircuitBreaker>,
    generations: Generations,
}

impl Pass {
    pub(super) fn new(admitted: AdmittedCall, breaker: Addr<CircuitBreaker>, generations: Generations) -> Self {
        let is_probe = admitted.pass.is_probe();
        Self { admitted: Some(admitted), is_probe, generation: generations.current(), breaker, generations }
    }

    /// Whether no breaker has changed its state since the pass was issued. If one has, a call that was not sent
    /// immediately must be admitted again.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.generation == self.generations.current()
    }

    /// Whether the call probes a half-open breaker. If it fails, it uses no attempt.
    #[must_use]
    pub const fn is_probe(&self) -> bool {
        self.is_probe
    }

    /// Reports the result of the call. `elapsed` is the time that the upstream needed, without any wait before the
    /// call. Takes effect even if the receipt is dropped.
    pub fn report(mut self, result: CallResult, elapsed: Duration) -> ReportReceipt {
        let (reply, receiver) = oneshot::channel();
        if let Some(admitted) = self.admitted.take() {
            // Ignores the mailbox capacity, but is sent at most once for each admitted call: a lost report would occupy
            // its place in the ledger forever.
            self.breaker.do_send(ReportCall { admitted, result, elapsed, reply, input: crash::current() });
        }
        ReportReceipt { receiver, is_probe: self.is_probe }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if let Some(admitted) = self.admitted.take() {
            self.breaker.do_send(AbandonCall { admitted, input: crash::current() });
        }
    }
}

/// Reply of the breaker to a report.
#[derive(Debug)]
pub struct ReportReceipt {
    receiver: oneshot::Receiver<Attempt>,
    is_probe: bool,
}

impl ReportReceipt {
    /// Whether the call, if it did not succeed, used one of its caller's attempts.
    pub async fn attempt(self) -> Attempt {
        let fallback = if self.is_probe { Attempt::Free } else { Attempt::Used };
        // The breaker stops only when the process ends.
        self.receiver.await.unwrap_or(fallback)
    }
}
