//! Wakes the snapshot task.

use std::sync::atomic::{AtomicU8, Ordering};

use guildhall_core::snapshot::Urgency;
use tokio::sync::Notify;

const NOTHING: u8 = 0;
const LATER: u8 = 1;
const SOON: u8 = 2;

/// Coalescing wakeup for the snapshot task: several changes cause one wakeup.
#[derive(Debug, Default)]
pub(crate) struct DirtyFlag {
    urgency: AtomicU8,
    notified: Notify,
}

impl DirtyFlag {
    /// Marks that something has changed that must be saved.
    pub(crate) fn set(&self, urgency: Urgency) {
        let urgency = match urgency {
            Urgency::Later => LATER,
            Urgency::Soon => SOON,
        };
        if self.urgency.fetch_max(urgency, Ordering::AcqRel) < urgency {
            self.notified.notify_one();
        }
    }

    /// Waits until it is set, or set with a higher urgency.
    pub(super) async fn notified(&self) {
        self.notified.notified().await;
    }

    /// Highest urgency since the last reset.
    pub(super) fn urgency(&self) -> Option<Urgency> {
        match self.urgency.load(Ordering::Acquire) {
            NOTHING => None,
            LATER => Some(Urgency::Later),
            _ => Some(Urgency::Soon),
        }
    }

    /// Resets the flag: later changes count as new.
    pub(super) fn reset(&self) {
        self.urgency.store(NOTHING, Ordering::Release);
    }
}
