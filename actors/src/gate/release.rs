//! Notifies the holder of delayed operations that the gate has changed.
//!
//! A refusal comes with an estimate of when to come again. A breaker that is reset, a new token or a budget with room
//! makes that estimate too long; the gate says so once, and decides again about each call.

use std::sync::Arc;
use std::time::Duration;

use guildhall_core::operation::GateCondition;
use guildhall_core::response::Credential;
use tokio::time::timeout;

use super::Gate;
use crate::circuit_breaker::{ReplaceToken, SetReleaseListener};

/// Is told what of the gate has changed. Must not block: it is called by the gate's actors.
pub type ReleaseListener = Arc<dyn Fn(GateCondition) + Send + Sync>;

/// How long a person waits for a change to be stored.
const STORED_WITHIN: Duration = Duration::from_secs(2);

impl Gate {
    /// From now on `listener` is told of every condition that no longer holds calls back as long as they were told.
    pub fn on_release(&self, listener: ReleaseListener) {
        // Once, at the start: there is room in the mailboxes.
        self.breaker().do_send(SetReleaseListener(Arc::clone(&listener)));
        self.tokens().on_release(listener);
    }

    /// A credential has a new token: what the old one was refused for holds nothing back any more. `fingerprint` tells the
    /// new token from others; processes with the same one share what Discord says of it. `None` if the process is ending.
    pub async fn token_changed(&self, credential: Credential, fingerprint: String) -> Option<()> {
        self.breaker().send(ReplaceToken { credential, fingerprint }).await.ok()?;
        self.store_changes().await;
        Some(())
    }

    /// Waits until what a person has just changed would survive a crash, if the gate remembers anything.
    pub(super) async fn store_changes(&self) {
        if let Some(keeper) = self.keeper() {
            // If the store takes longer, it is written as soon as it can be.
            let _ = timeout(STORED_WITHIN, keeper.keep_now()).await;
        }
    }
}
