//! What breakers and the ledger remember over a restart.

use std::sync::Arc;

use actix::{Handler, Message, MessageResult};
use guildhall_core::answer::Credential;
use guildhall_core::breaker::BreakersMemory;
use guildhall_core::invalid::{HoldersMemory, LedgerMemory};
use guildhall_core::memory::{Age, Urgency};

use super::CircuitBreaker;
use crate::memory::Bell;

/// What an earlier life remembered. To be sent before any call is admitted.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct RecallBreakers {
    pub(crate) breakers: BreakersMemory,
    pub(crate) invalid: LedgerMemory,
    pub(crate) invalid_holders: HoldersMemory,
    /// How many invalid requests it may not have come to remember.
    pub(crate) unkept: u32,
    /// The fingerprints of the tokens that there are now.
    pub(crate) tokens: Vec<(Credential, String)>,
    pub(crate) age: Age,
}

/// Asks for what must not be forgotten.
#[derive(Message)]
#[rtype(result = "(BreakersMemory, (LedgerMemory, HoldersMemory))")]
pub(crate) struct RememberBreakers;

impl CircuitBreaker {
    /// Rings this bell whenever something changes that must not be forgotten.
    #[must_use]
    pub(crate) fn remembering(mut self, bell: Arc<Bell>) -> Self {
        self.bell = Some(bell);
        self
    }

    /// Something has changed that must not be forgotten.
    pub(super) fn keep(&self) {
        if let Some(bell) = &self.bell {
            bell.ring(Urgency::Soon);
        }
    }
}

impl Handler<RecallBreakers> for CircuitBreaker {
    type Result = ();

    fn handle(&mut self, recall: RecallBreakers, ctx: &mut Self::Context) {
        let RecallBreakers { breakers, invalid, invalid_holders, unkept, tokens, age } = recall;
        self.step(ctx, |this, now| {
            this.ledger.recall(&invalid, unkept, age, now);
            this.ledger.recall_holders(&invalid_holders, unkept, age, now);
            let tokens = tokens.iter().map(|(credential, token)| (*credential, token.as_str()));
            ((), this.breakers.recall(&breakers, tokens, age, now))
        });
    }
}

impl Handler<RememberBreakers> for CircuitBreaker {
    type Result = MessageResult<RememberBreakers>;

    fn handle(&mut self, RememberBreakers: RememberBreakers, ctx: &mut Self::Context) -> Self::Result {
        MessageResult(self.step(ctx, |this, now| {
            let invalid = (this.ledger.remember(now), this.ledger.remember_holders(now));
            ((this.breakers.remember(now), invalid), Vec::new())
        }))
    }
}
