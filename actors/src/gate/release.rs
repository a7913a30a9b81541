//! Notifies the holder of delayed operations that the gate has changed.
//!
//! A refusal contains an estimate of when to retry. A breaker that is reset, a new token or a budget with room makes
//! that estimate too long. The gate reports this once, and decides again about each call.

use std::sync::Arc;
use std::time::Duration;

use guildhall_core::operation::GateCondition;
use guildhall_core::response::Credential;
use tokio::time::timeout;

use super::Gate;
use crate::circuit_breaker::{ReplaceToken, SetReleaseListener};

/// Receives the condition of the gate that has changed. Called by the actors of the gate: must not block.
pub type ReleaseListener = Arc<dyn Fn(GateCondition) + Send + Sync>;

/// How long an admin request waits for a change to be stored.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);

impl Gate {
    /// Sets the listener for conditions that no longer delay calls as long as announced.
    pub fn on_release(&self, listener: ReleaseListener) {
        // Once, at the start: the mailboxes have room.
        self.breaker().do_send(SetReleaseListener(Arc::clone(&listener)));
        self.tokens().on_release(listener);
    }

    /// A credential has a new token: rejections of the old one no longer delay calls. `fingerprint` identifies the
    /// token; processes with the same one share what Discord says about it. `None` if the process is shutting down.
    pub async fn token_changed(&self, credential: Credential, fingerprint: String) -> Option<()> {
        self.breaker().send(ReplaceToken { credential, fingerprint }).await.ok()?;
        self.store_changes().await;
        Some(())
    }

    /// Waits until a manual change would survive a crash, if the gate saves snapshots.
    pub(super) async fn store_changes(&self) {
        if let Some(snapshot) = self.snapshot_handle() {
            // If the store takes longer, the change is written as soon as possible.
            let _ = timeout(STORE_TIMEOUT, snapshot.save_now()).await;
        }
    }
}
