//! Saying that calls which were refused may come again before the time that they were told.

use std::time::Duration;

use actix::{Context, Handler, Message};
use guildhall_core::breaker::{BreakerKey, BreakerState};
use guildhall_core::invalid::{Holder, InvalidBudgetExceeded, InvalidLedger};
use guildhall_core::lane::Lane;
use guildhall_core::operation::GateCondition;
use guildhall_core::time::Timestamp;

use super::CircuitBreaker;
use crate::gate::ReleaseListener;

/// Refusals by the budget of invalid requests that are remembered at most. Further ones wait for the time they were told.
const MOST_REFUSED: usize = 256;

/// Shorter waits are not worth ending early.
const WORTHWHILE: Duration = Duration::from_secs(2);

/// Says who is told of releases. Until then none is.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct SetReleaseListener(pub(crate) ReleaseListener);

/// A lane or a holder that the budget of invalid requests refused.
#[derive(Debug)]
struct RefusedByBudget {
    lane: Lane,
    holder: Option<Holder>,
    until: Timestamp,
}

/// Who is told of releases, and what may have to be released.
#[derive(Default)]
pub(super) struct ReleaseTracker {
    listener: Option<ReleaseListener>,
    refused: Vec<RefusedByBudget>,
}

impl ReleaseTracker {
    /// A breaker changed its state: calls may go, or probe it.
    pub(super) fn turned(&self, key: &BreakerKey, to: BreakerState) {
        let Some(listener) = &self.listener else { return };
        match to {
            BreakerState::Closed | BreakerState::HalfOpen => {
                GateCondition::of_breaker(key).into_iter().for_each(|one| listener(one));
            }
            BreakerState::Open { .. } | BreakerState::ForcedOpen { .. } => {}
        }
    }

    /// The budget of invalid requests refused a call.
    pub(super) fn note(&mut self, lane: Lane, spent: &InvalidBudgetExceeded, now: Timestamp) {
        if self.listener.is_none() || spent.until.since(now) <= WORTHWHILE {
            return;
        }
        let holder = spent.share.as_ref().map(|over| over.holder.clone());
        let has_place = self.refused.len() < MOST_REFUSED;
        let known = self.refused.iter_mut().find(|known| known.lane == lane && known.holder == holder);
        if let Some(known) = known {
            known.until = known.until.max(spent.until);
        } else if has_place {
            self.refused.push(RefusedByBudget { lane, holder, until: spent.until });
        }
    }

    /// The budget may have room earlier than those that it refused were told.
    pub(super) fn check(&mut self, ledger: &mut InvalidLedger, now: Timestamp) {
        if self.refused.is_empty() {
            return;
        }
        self.refused.retain(|refused| refused.until > now);
        let before = self.refused.len();
        self.refused.retain(|refused| !ledger.has_room(refused.lane, refused.holder.as_ref(), now));
        if self.refused.len() < before
            && let Some(listener) = &self.listener
        {
            listener(GateCondition::InvalidRequests);
        }
    }
}

impl Handler<SetReleaseListener> for CircuitBreaker {
    type Result = ();

    fn handle(&mut self, SetReleaseListener(listener): SetReleaseListener, _: &mut Context<Self>) {
        self.releases.listener = Some(listener);
    }
}
