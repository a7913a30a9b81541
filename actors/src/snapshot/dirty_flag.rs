//! What wakes the keeper.

use std::sync::atomic::{AtomicU8, Ordering};

use guildhall_core::snapshot::Urgency;
use tokio::sync::Notify;

const NOTHING: u8 = 0;
const LATER: u8 = 1;
const SOON: u8 = 2;

/// Wakes the keeper. However often it rings, it is heard once.
#[derive(Debug, Default)]
pub(crate) struct DirtyFlag {
    urgency: AtomicU8,
    rung: Notify,
}

impl DirtyFlag {
    /// Something has changed that should be kept.
    pub(crate) fn ring(&self, urgency: Urgency) {
        let urgency = match urgency {
            Urgency::Later => LATER,
            Urgency::Soon => SOON,
        };
        if self.urgency.fetch_max(urgency, Ordering::AcqRel) < urgency {
            self.rung.notify_one();
        }
    }

    /// Waits until it rings, or rings more urgently than it did.
    pub(super) async fn rung(&self) {
        self.rung.notified().await;
    }

    /// What it has rung for since it was last silenced.
    pub(super) fn urgency(&self) -> Option<Urgency> {
        match self.urgency.load(Ordering::Acquire) {
            NOTHING => None,
            LATER => Some(Urgency::Later),
            _ => Some(Urgency::Soon),
        }
    }

    /// What rings from now on is new.
    pub(super) fn silence(&self) {
        self.urgency.store(NOTHING, Ordering::Release);
    }
}
