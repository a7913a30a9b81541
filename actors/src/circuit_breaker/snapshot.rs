//! State of breakers and ledger that survives a restart.

use std::sync::Arc;

use actix::{Handler, Message, MessageResult};
use guildhall_core::breaker::SavedBreakers;
use guildhall_core::invalid::{SavedHolders, SavedInvalidLedger};
use guildhall_core::response::Credential;
use guildhall_core::snapshot::{SnapshotAge, Urgency};

use super::CircuitBreaker;
use crate::snapshot::DirtyFlag;

/// Restores the state of an earlier run. Must be sent before any call is admitted.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct RestoreBreakers {
    pub(crate) breakers: SavedBreakers,
    pub(crate) invalid: SavedInvalidLedger,
    pub(crate) invalid_holders: SavedHolders,
    /// Number of invalid requests that may be missing in the snapshot.
    pub(crate) unsaved: u32,
    /// Fingerprints of the current tokens.
    pub(crate) tokens: Vec<(Credential, String)>,
    pub(crate) age: SnapshotAge,
}

/// Requests the state to save.
#[derive(Message)]
#[rtype(result = "(SavedBreakers, (SavedInvalidLedger, SavedHolders))")]
pub(crate) struct SnapshotBreakers;

impl CircuitBreaker {
    /// Sets this flag whenever state changes that must be saved.
    #[must_use]
    pub(crate) fn with_dirty_flag(mut self, dirty_flag: Arc<DirtyFlag>) -> Self {
        self.dirty_flag = Some(dirty_flag);
        self
    }

    /// Marks the state as changed.
    pub(super) fn mark_dirty(&self) {
        if let Some(dirty_flag) = &self.dirty_flag {
            dirty_flag.set(Urgency::Soon);
        }
    }
}

impl Handler<RestoreBreakers> for CircuitBreaker {
    type Result = ();

    fn handle(&mut self, restore: RestoreBreakers, ctx: &mut Self::Context) {
        let RestoreBreakers { breakers, invalid, invalid_holders, unsaved, tokens, age } = restore;
        self.step(ctx, |this, now| {
            this.ledger.restore(&invalid, unsaved, age, now);
            this.ledger.restore_holders(&invalid_holders, unsaved, age, now);
            let tokens = tokens.iter().map(|(credential, token)| (*credential, token.as_str()));
            ((), this.breakers.restore(&breakers, tokens, age, now))
        });
    }
}

impl Handler<SnapshotBreakers> for CircuitBreaker {
    type Result = MessageResult<SnapshotBreakers>;

    fn handle(&mut self, SnapshotBreakers: SnapshotBreakers, ctx: &mut Self::Context) -> Self::Result {
        MessageResult(self.step(ctx, |this, now| {
            let invalid = (this.ledger.save(now), this.ledger.save_holders(now));
            ((this.breakers.save(now), invalid), Vec::new())
        }))
    }
}
