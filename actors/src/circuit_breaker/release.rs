//! Notifies a listener when rejected calls may retry before their retry time.

use std::time::Duration;

use actix::{Context, Handler, Message};
use guildhall_core::breaker::{BreakerKey, BreakerState};
use guildhall_core::invalid::{Holder, InvalidBudgetExceeded, InvalidLedger};
use guildhall_core::lane::Lane;
use guildhall_core::operation::GateCondition;
use guildhall_core::time::Timestamp;

use super::CircuitBreaker;
use crate::gate::ReleaseListener;

/// Maximum number of remembered refusals by the budget of invalid requests. Further ones wait for their full time.
const MAX_REFUSALS: usize = 256;

/// Shorter waits are not worth ending early.
const MIN_WAIT: Duration = Duration::from_secs(2);

/// Sets the listener for releases. Before that, none are reported.
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

/// The listener, and the refusals that may have to be released.
#[derive(Default)]
pub(super) struct ReleaseTracker {
    listener: Option<ReleaseListener>,
    refused: Vec<RefusedByBudget>,
}

impl ReleaseTracker {
    /// Called when a breaker changed its state. A closed or half-open one lets calls or probes pass.
    pub(super) fn on_transition(&self, key: &BreakerKey, to: BreakerState) {
        let Some(listener) = &self.listener else { return };
        match to {
            BreakerState::Closed | BreakerState::HalfOpen => {
                GateCondition::released_by(key).into_iter().for_each(|condition| listener(condition));
            }
            BreakerState::Open { .. } | BreakerState::ForcedOpen { .. } => {}
        }
    }

    /// Called when the budget of invalid requests refused a call.
    pub(super) fn record_refusal(&mut self, lane: Lane, spent: &InvalidBudgetExceeded, now: Timestamp) {
        if self.listener.is_none() || spent.until.since(now) <= MIN_WAIT {
            return;
        }
        let holder = spent.share.as_ref().map(|exceeded| exceeded.holder.clone());
        let has_room = self.refused.len() < MAX_REFUSALS;
        let existing = self.refused.iter_mut().find(|existing| existing.lane == lane && existing.holder == holder);
        if let Some(existing) = existing {
            existing.until = existing.until.max(spent.until);
        } else if has_room {
            self.refused.push(RefusedByBudget { lane, holder, until: spent.until });
        }
    }

    /// Releases the refusals for which the budget has room earlier than announced.
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
