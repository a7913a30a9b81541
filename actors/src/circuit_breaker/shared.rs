//! Exchange of breaker and ledger state with other processes.
//!
//! ```text
//!   actor ──BreakerReplicator──▶ adapter ──TakeBreakerChanges──▶ actor … sent … ──BreakerChangeReplicated──▶ actor
//!   actor ──BreakerReplicator──▶ adapter ──TakeProbeClaims─────▶ actor … sent … ──ProbeClaimed─────────────▶ actor
//!   actor ──BreakerReplicator──▶ adapter ──TakeLedgerRequest───▶ actor … sent … ──LedgerSynced─────────────▶ actor
//!   adapter ──RemoteBreakerChanged, SharedStateRead──▶ actor
//! ```
//!
//! The port only wakes the adapter. Pending changes stay in the breakers and the ledger until they are delivered, only
//! the latest for each breaker, so that no queue can overflow and nothing is lost while the other processes are
//! unreachable.

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

/// Sends changes of this process to the others. Called by the actor: must not block.
pub trait BreakerReplicator: Send + Sync + 'static {
    /// A breaker has changed: [`TakeBreakerChanges`] or [`TakeProbeClaims`] may return something.
    fn on_breaker_changed(&self);

    /// Invalid responses were counted, or the lent part runs low: [`TakeLedgerRequest`] has an update.
    fn on_ledger_changed(&self);
}

/// Starts to share state with other processes. Until the first [`LedgerSynced`] the ledger admits nothing, unless
/// `fallback` allows it. So this must be sent before any call, and [`LedgerSynced`] soon after.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ShareBreakers {
    /// Sends changes to the other processes.
    pub replicator: Arc<dyn BreakerReplicator>,
    /// Fingerprints of the tokens of this process.
    pub tokens: Vec<(Credential, String)>,
    /// Behaviour of the ledger while the other processes are unreachable.
    pub fallback: LedgerFallback,
}

/// A credential has a new token. Processes with the same fingerprint have the same token.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ReplaceToken {
    /// The credential.
    pub credential: Credential,
    /// Fingerprint of the new token.
    pub fingerprint: String,
}

/// Another process changed a breaker.
#[derive(Message)]
#[rtype(result = "()")]
pub struct RemoteBreakerChanged(
    /// The change.
    pub RemoteChange,
);

/// The shared state was read completely. Returns the breakers that are open here and missing there.
#[derive(Message)]
#[rtype(result = "Vec<SharedBreaker>")]
pub struct SharedStateRead(
    /// Content of the shared state.
    pub Vec<RemoteChange>,
);

/// A breaker that is forced open here was closed elsewhere, and the record of how is gone.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ForcedBreakerEnded {
    /// The breaker.
    pub key: SharedBreakerKey,
    /// The version of the end, or a later one.
    pub version: u64,
}

/// Requests changes that the other processes do not know. Send a [`BreakerChangeReplicated`] for each that was
/// delivered.
#[derive(Message)]
#[rtype(result = "Vec<LocalChange>")]
pub struct TakeBreakerChanges;

/// A change was delivered, or lost against a stronger one.
#[derive(Message)]
#[rtype(result = "()")]
pub struct BreakerChangeReplicated {
    /// The change.
    pub change: LocalChange,
    /// Its version.
    pub version: u64,
    /// The stronger change of that version that applies instead.
    pub winner: Option<RemoteChange>,
}

/// Requests the claims to probe half-open breakers that have to be made. Send a [`ProbeClaimed`] for each.
#[derive(Message)]
#[rtype(result = "Vec<ProbeClaim>")]
pub struct TakeProbeClaims;

/// A claim to probe a half-open breaker was answered.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ProbeClaimed {
    /// The claim.
    pub claim: ProbeClaim,
    /// The response. `None` if the others cannot be reached; then this process probes without a claim.
    pub response: Option<ClaimResponse>,
}

/// Requests the message for the lender of the shared ledger. `None` if the ledger is not shared.
#[derive(Message)]
#[rtype(result = "Option<LenderRequest>")]
pub struct TakeLedgerRequest;

/// The lender of the shared ledger has replied.
#[derive(Message)]
#[rtype(result = "()")]
pub struct LedgerSynced(
    /// The reply.
    pub LenderReply,
);

/// The process ends: returns the lent part, and gives the last message for the lender.
#[derive(Message)]
#[rtype(result = "Option<LenderRequest>")]
pub struct LeaveLedger;

impl CircuitBreaker {
    /// Wakes the adapter: there may be changes to replicate.
    pub(super) fn notify_replicator(&self) {
        if let Some(replicator) = &self.replicator {
            replicator.on_breaker_changed();
        }
    }

    /// Wakes the adapter: the ledger has a message for the lender.
    pub(super) fn request_ledger_sync(&self) {
        if let Some(replicator) = &self.replicator {
            replicator.on_ledger_changed();
        }
    }

    pub(super) fn request_ledger_if_short(&self) {
        if self.ledger.is_short() {
            self.request_ledger_sync();
        }
    }
}

impl Handler<ShareBreakers> for CircuitBreaker {
    type Result = ();

    fn handle(&mut self, ShareBreakers { replicator, tokens, fallback }: ShareBreakers, ctx: &mut Self::Context) {
        self.replicator = Some(replicator);
        self.step(ctx, |this, now| {
            this.breakers.share(tokens.iter().map(|(credential, token)| (*credential, token.as_str())), now);
            this.ledger.share(fallback, now);
            ((), Vec::new())
        });
        self.notify_replicator();
        self.request_ledger_sync();
    }
}

impl Handler<ReplaceToken> for CircuitBreaker {
    type Result = ();

    fn handle(&mut self, ReplaceToken { credential, fingerprint }: ReplaceToken, ctx: &mut Self::Context) {
        self.step(ctx, |this, now| ((), this.breakers.token_changed(credential, Some(&fingerprint), now)));
        // Other processes may know that this token is invalid.
        self.notify_replicator();
    }
}

impl Handler<RemoteBreakerChanged> for CircuitBreaker {
    type Result = ();

    fn handle(&mut self, RemoteBreakerChanged(change): RemoteBreakerChanged, ctx: &mut Self::Context) {
        self.step(ctx, |this, now| ((), this.breakers.apply_remote(&change, now)));
    }
}

impl Handler<SharedStateRead> for CircuitBreaker {
    type Result = MessageResult<SharedStateRead>;

    fn handle(&mut self, SharedStateRead(all): SharedStateRead, ctx: &mut Self::Context) -> Self::Result {
        let missing = self.step(ctx, |this, now| {
            let effects: Vec<BreakerEffect> =
                all.iter().flat_map(|change| this.breakers.apply_remote(change, now)).collect();
            let known_keys: HashSet<&SharedBreakerKey> = all.iter().map(|change| &change.status.shared_key).collect();
            let mut open_breakers = this.breakers.open_breakers(now);
            open_breakers.retain(|open_breakers| !known_keys.contains(&open_breakers.status.shared_key));
            (open_breakers, effects)
        });
        MessageResult(missing)
    }
}

impl Handler<ForcedBreakerEnded> for CircuitBreaker {
    type Result = ();

    fn handle(&mut self, ForcedBreakerEnded { key, version }: ForcedBreakerEnded, ctx: &mut Self::Context) {
        self.step(ctx, |this, now| ((), this.breakers.on_closed_elsewhere(&key, version, now)));
    }
}

impl Handler<TakeBreakerChanges> for CircuitBreaker {
    type Result = MessageResult<TakeBreakerChanges>;

    fn handle(&mut self, TakeBreakerChanges: TakeBreakerChanges, ctx: &mut Self::Context) -> Self::Result {
        MessageResult(self.step(ctx, |this, now| (this.breakers.pending_changes(now), Vec::new())))
    }
}

impl Handler<BreakerChangeReplicated> for CircuitBreaker {
    type Result = ();

    fn handle(
        &mut self,
        BreakerChangeReplicated { change, version, winner }: BreakerChangeReplicated,
        ctx: &mut Self::Context,
    ) {
        self.step(ctx, |this, now| {
            this.breakers.on_sent(&change, version);
            ((), winner.map_or_else(Vec::new, |change| this.breakers.apply_remote(&change, now)))
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

    fn handle(&mut self, ProbeClaimed { claim, response }: ProbeClaimed, ctx: &mut Self::Context) {
        emit(ProbeClaimAnswered { key: &claim.shared_key.key, response });
        self.step(ctx, |this, now| {
            this.breakers.on_claim_response(&claim, response.unwrap_or(ClaimResponse::Granted), now);
            ((), Vec::new())
        });
    }
}

impl Handler<TakeLedgerRequest> for CircuitBreaker {
    type Result = MessageResult<TakeLedgerRequest>;

    fn handle(&mut self, TakeLedgerRequest: TakeLedgerRequest, ctx: &mut Self::Context) -> Self::Result {
        MessageResult(self.step(ctx, |this, now| (this.ledger.request(now), Vec::new())))
    }
}

impl Handler<LedgerSynced> for CircuitBreaker {
    type Result = ();

    fn handle(&mut self, LedgerSynced(synced): LedgerSynced, ctx: &mut Self::Context) {
        self.step(ctx, |this, now| {
            this.ledger.on_reply(&synced, now);
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
