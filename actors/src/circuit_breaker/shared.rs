//! Other processes: what they are told, and what is heard of them.
//!
//! ```text
//!   actor ──Courier::turned──▶ adapter ──TakeTurns──▶ actor … told … ──TurnTold──▶ actor
//!   actor ──Courier::turned──▶ adapter ──TakeProbeClaims──▶ actor … requested … ──ProbeClaimed──▶ actor
//!   actor ──Courier::counted─▶ adapter ──AskLedger──▶ actor … asked … ──LedgerSynced──▶ actor
//!   adapter ──Heard, StateRead──▶ actor
//! ```
//!
//! The port only wakes. What there is to tell stays with the machines until it was told, the newest of each breaker, so that
//! no queue can overflow and nothing is lost while nobody can be told.

use std::collections::HashSet;
use std::sync::Arc;

use actix::{Handler, Message, MessageResult};
use guildhall_core::breaker::{
    BreakerEffect, ClaimResponse, LocalChange, ProbeClaim, RemoteChange, SharedBreaker, SharedBreakerKey,
};
use guildhall_core::invalid::{LedgerFallback, LenderReply, LenderRequest};
use guildhall_core::response::Credential;

use super::CircuitBreaker;
use crate::telemetry::breaker::ProbeClaimAnswered;
use crate::telemetry::emit;

/// Whoever carries what this process decided to the others. Called by the actor: must not block.
pub trait BreakerReplicator: Send + Sync + 'static {
    /// A breaker has changed: [`TakeBreakerChanges`] or [`TakeProbeClaims`] may have something.
    fn turned(&self);

    /// Invalid answers were counted, or what was lent runs short: [`TakeLedgerRequest`] has news.
    fn counted(&self);
}

/// From now on there are other processes. Until the ledger has heard of them it lets nothing out, unless `when_lost` says
/// otherwise; so this comes before any call, and [`LedgerSynced`] soon after.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ShareBreakers {
    /// Who carries the news.
    pub courier: Arc<dyn BreakerReplicator>,
    /// The fingerprints of the tokens that this process has.
    pub tokens: Vec<(Credential, String)>,
    /// What the ledger does without the others.
    pub when_lost: LedgerFallback,
}

/// A credential has a new token; others with the same fingerprint have the same.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ReplaceToken {
    /// Whose.
    pub credential: Credential,
    /// Its fingerprint.
    pub fingerprint: String,
}

/// Another process has said something of a breaker.
#[derive(Message)]
#[rtype(result = "()")]
pub struct RemoteBreakerChanged(
    /// What.
    pub RemoteChange,
);

/// The state that all share was read as a whole. Answered with what stands open here and is not in it.
#[derive(Message)]
#[rtype(result = "Vec<SharedBreaker>")]
pub struct SharedStateRead(
    /// What is in it.
    pub Vec<RemoteChange>,
);

/// A breaker that is forced open here ended elsewhere, and not even how is known any more.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ForcedBreakerEnded {
    /// Which.
    pub matter: SharedBreakerKey,
    /// The version of its end, or a later one.
    pub version: u64,
}

/// Asks for changes that the others do not know of. To be followed by a [`BreakerChangeReplicated`] for each that they do then.
#[derive(Message)]
#[rtype(result = "Vec<LocalChange>")]
pub struct TakeBreakerChanges;

/// The others know of a change, or hold something against it.
#[derive(Message)]
#[rtype(result = "()")]
pub struct BreakerChangeReplicated {
    /// The change.
    pub turn: LocalChange,
    /// Its version.
    pub version: u64,
    /// What stands instead, of that version, because it is the stronger.
    pub instead: Option<RemoteChange>,
}

/// Asks for claims to probe half-open breakers that have to be requested. To be followed by a [`ProbeClaimed`] for each.
#[derive(Message)]
#[rtype(result = "Vec<ProbeClaim>")]
pub struct TakeProbeClaims;

/// A claim to probe a half-open breaker was answered.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ProbeClaimed {
    /// The claim.
    pub claim: ProbeClaim,
    /// The answer; nothing if the others cannot be reached. Then this process probes by itself.
    pub answer: Option<ClaimResponse>,
}

/// Asks for what is to be told to the keeper of the common count; nothing if there is none.
#[derive(Message)]
#[rtype(result = "Option<LenderRequest>")]
pub struct TakeLedgerRequest;

/// The keeper of the common count has answered.
#[derive(Message)]
#[rtype(result = "()")]
pub struct LedgerSynced(
    /// What.
    pub LenderReply,
);

/// The process ends: gives back what was lent, and says what the keeper is to be told last.
#[derive(Message)]
#[rtype(result = "Option<LenderRequest>")]
pub struct LeaveLedger;

impl CircuitBreaker {
    /// There may be something for the others.
    pub(super) fn tell_others(&self) {
        if let Some(courier) = &self.courier {
            courier.turned();
        }
    }

    /// The ledger has something to tell or to ask.
    pub(super) fn ask_ledger(&self) {
        if let Some(courier) = &self.courier {
            courier.counted();
        }
    }

    pub(super) fn ask_if_short(&self) {
        if self.ledger.is_short() {
            self.ask_ledger();
        }
    }
}

impl Handler<ShareBreakers> for CircuitBreaker {
    type Result = ();

    fn handle(&mut self, ShareBreakers { courier, tokens, when_lost }: ShareBreakers, ctx: &mut Self::Context) {
        self.courier = Some(courier);
        self.step(ctx, |this, now| {
            this.breakers.share(tokens.iter().map(|(credential, token)| (*credential, token.as_str())), now);
            this.ledger.share(when_lost, now);
            ((), Vec::new())
        });
        self.tell_others();
        self.ask_ledger();
    }
}

impl Handler<ReplaceToken> for CircuitBreaker {
    type Result = ();

    fn handle(&mut self, ReplaceToken { credential, fingerprint }: ReplaceToken, ctx: &mut Self::Context) {
        self.step(ctx, |this, now| ((), this.breakers.token_changed(credential, Some(&fingerprint), now)));
        // Perhaps others know that it is wrong.
        self.tell_others();
    }
}

impl Handler<RemoteBreakerChanged> for CircuitBreaker {
    type Result = ();

    fn handle(&mut self, RemoteBreakerChanged(news): RemoteBreakerChanged, ctx: &mut Self::Context) {
        self.step(ctx, |this, now| ((), this.breakers.adopt(&news, now)));
    }
}

impl Handler<SharedStateRead> for CircuitBreaker {
    type Result = MessageResult<SharedStateRead>;

    fn handle(&mut self, SharedStateRead(all): SharedStateRead, ctx: &mut Self::Context) -> Self::Result {
        let missing = self.step(ctx, |this, now| {
            let effects: Vec<BreakerEffect> = all.iter().flat_map(|news| this.breakers.adopt(news, now)).collect();
            let there: HashSet<&SharedBreakerKey> = all.iter().map(|news| &news.word.matter).collect();
            let mut standing = this.breakers.standing(now);
            standing.retain(|standing| !there.contains(&standing.word.matter));
            (standing, effects)
        });
        MessageResult(missing)
    }
}

impl Handler<ForcedBreakerEnded> for CircuitBreaker {
    type Result = ();

    fn handle(&mut self, ForcedBreakerEnded { matter, version }: ForcedBreakerEnded, ctx: &mut Self::Context) {
        self.step(ctx, |this, now| ((), this.breakers.ended_elsewhere(&matter, version, now)));
    }
}

impl Handler<TakeBreakerChanges> for CircuitBreaker {
    type Result = MessageResult<TakeBreakerChanges>;

    fn handle(&mut self, TakeBreakerChanges: TakeBreakerChanges, ctx: &mut Self::Context) -> Self::Result {
        MessageResult(self.step(ctx, |this, now| (this.breakers.turns(now), Vec::new())))
    }
}

impl Handler<BreakerChangeReplicated> for CircuitBreaker {
    type Result = ();

    fn handle(
        &mut self,
        BreakerChangeReplicated { turn, version, instead }: BreakerChangeReplicated,
        ctx: &mut Self::Context,
    ) {
        self.step(ctx, |this, now| {
            this.breakers.told(&turn, version);
            ((), instead.map_or_else(Vec::new, |news| this.breakers.adopt(&news, now)))
        });
    }
}

impl Handler<TakeProbeClaims> for CircuitBreaker {
    type Result = MessageResult<TakeProbeClaims>;

    fn handle(&mut self, TakeProbeClaims: TakeProbeClaims, ctx: &mut Self::Context) -> Self::Result {
        MessageResult(self.step(ctx, |this, now| (this.breakers.probe_claims(now), Vec::new())))
    }
}

impl Handler<ProbeClaimed> for CircuitBreaker {
    type Result = ();

    fn handle(&mut self, ProbeClaimed { claim, answer }: ProbeClaimed, ctx: &mut Self::Context) {
        emit(ProbeClaimAnswered { key: &claim.matter.key, answer });
        self.step(ctx, |this, now| {
            this.breakers.probe_claimed(&claim, answer.unwrap_or(ClaimResponse::Granted), now);
            ((), Vec::new())
        });
    }
}

impl Handler<TakeLedgerRequest> for CircuitBreaker {
    type Result = MessageResult<TakeLedgerRequest>;

    fn handle(&mut self, TakeLedgerRequest: TakeLedgerRequest, ctx: &mut Self::Context) -> Self::Result {
        MessageResult(self.step(ctx, |this, now| (this.ledger.ask(now), Vec::new())))
    }
}

impl Handler<LedgerSynced> for CircuitBreaker {
    type Result = ();

    fn handle(&mut self, LedgerSynced(synced): LedgerSynced, ctx: &mut Self::Context) {
        self.step(ctx, |this, now| {
            this.ledger.synced(&synced, now);
            this.releases.check(&mut this.ledger, now);
            ((), Vec::new())
        });
    }
}

impl Handler<LeaveLedger> for CircuitBreaker {
    type Result = MessageResult<LeaveLedger>;

    fn handle(&mut self, LeaveLedger: LeaveLedger, ctx: &mut Self::Context) -> Self::Result {
        MessageResult(self.step(ctx, |this, now| (this.ledger.leave(now), Vec::new())))
    }
}
