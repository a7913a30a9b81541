//! Injects faults into calls.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// A fault at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The store does nothing and returns an error. Does not concern Discord.
    Refuse,
    /// The store executes the call, and its response is lost.
    LoseResponse,
    /// The process ends before the call.
    KillBefore,
    /// The process ends after the call.
    KillAfter,
}

/// Counts external calls, and injects the planned faults.
#[derive(Debug, Default)]
pub(crate) struct FaultInjector {
    calls: AtomicUsize,
    faults: Mutex<BTreeMap<usize, Fault>>,
    killed: Notify,
    stalls: AtomicBool,
    stalls_claim: AtomicBool,
    stalled: Notify,
    resume: Notify,
}

impl FaultInjector {
    pub(crate) fn plan(&self, faults: impl IntoIterator<Item = (usize, Fault)>) {
        self.faults.lock().unwrap().extend(faults);
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// Waits until the process should end.
    pub(crate) async fn killed(&self) {
        self.killed.notified().await;
    }

    /// Makes the next release of a queue wait for `resume`.
    pub(crate) fn stall_release(&self) {
        self.stalls.store(true, Ordering::SeqCst);
    }

    /// Makes the next claim of queues wait for `resume`.
    pub(crate) fn stall_claim(&self) {
        self.stalls_claim.store(true, Ordering::SeqCst);
    }

    /// Waits until a call is stalled.
    pub(crate) async fn stalled(&self) {
        self.stalled.notified().await;
    }

    pub(crate) fn resume(&self) {
        self.resume.notify_one();
    }

    pub(crate) async fn at_release(&self) {
        self.stall(&self.stalls).await;
    }

    pub(crate) async fn at_claim(&self) {
        self.stall(&self.stalls_claim).await;
    }

    async fn stall(&self, stalls: &AtomicBool) {
        if stalls.swap(false, Ordering::SeqCst) {
            self.stalled.notify_one();
            self.resume.notified().await;
        }
    }

    pub(crate) async fn before(&self) -> Option<Fault> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        let fault = self.faults.lock().unwrap().remove(&call);
        if fault == Some(Fault::KillBefore) {
            self.kill().await;
        }
        fault
    }

    pub(crate) async fn after(&self, fault: Option<Fault>) {
        if fault == Some(Fault::KillAfter) {
            self.kill().await;
        }
    }

    async fn kill(&self) {
        self.killed.notify_one();
        pending::<()>().await;
    }
}
