//! Why no call can be sent to Discord: what an operator must know at once, and do.

use std::collections::BTreeMap;
use std::fmt;

use guildhall_core::breaker::{BreakerKey, BreakerReason, BreakerState};
use guildhall_core::response::Credential;
use guildhall_core::time::{Timestamp, UnixMs};

/// Why no call can be sent to Discord.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendBlock {
    /// A breaker that every call of the bot passes is not closed.
    Breaker {
        /// The breaker: of this address, or of the bot.
        key: BreakerKey,
        /// Why it opened.
        reason: BreakerReason,
        /// How long it is open.
        phase: BlockPhase,
    },
    /// The invalid requests of all processes have reached the limit at which nothing is sent.
    InvalidRequests,
}

/// How long a breaker is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockPhase {
    /// Until it is reset, or its cause is gone.
    Forced,
    /// Until this time.
    Until(UnixMs),
    /// Until its probes have succeeded.
    Probing,
}

impl SendBlock {
    /// What to do about it.
    #[must_use]
    pub fn advice(&self) -> String {
        match self {
            Self::Breaker { reason: BreakerReason::Unauthorized, .. } => {
                "set discord.token to the current token and reload the settings (SIGHUP, guildhall reload), or restart"
                    .to_owned()
            }
            Self::Breaker { reason: BreakerReason::Blocked, .. } => {
                "wait: calls during the ban are not sent, and it is probed when it ends; find and stop what spent the \
                 budget of invalid requests: guildhall limits top --by invalid; if nothing here did, another program \
                 uses this address"
                    .to_owned()
            }
            Self::Breaker { key, phase: BlockPhase::Forced, .. } => {
                format!("close it when it is no longer needed: guildhall breakers reset {key}")
            }
            Self::Breaker { .. } => "wait: it is probed, and closes when Discord responds again".to_owned(),
            Self::InvalidRequests => {
                "find and stop what spends the budget: guildhall limits top --by invalid; calls are sent again when \
                 enough invalid requests are ten minutes old"
                    .to_owned()
            }
        }
    }

    /// Name of the cause, out of a fixed set.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Breaker { reason, .. } => reason.name(),
            Self::InvalidRequests => "invalid_requests",
        }
    }

    /// Whether the budget of invalid requests explains it.
    pub(super) const fn is_about_invalid_requests(&self) -> bool {
        matches!(self, Self::Breaker { reason: BreakerReason::Blocked, .. } | Self::InvalidRequests)
    }
}

/// The reason in `/readyz`.
impl fmt::Display for SendBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, reason, phase) = match self {
            Self::Breaker { key, reason, phase } => (key, reason, phase),
            Self::InvalidRequests => {
                return f.write_str("nothing is sent: the budget of invalid requests is used up");
            }
        };
        match reason {
            BreakerReason::Unauthorized => {
                return f.write_str("nothing is sent: Discord rejected the token of the bot (401)");
            }
            BreakerReason::Blocked => f.write_str("nothing is sent: Cloudflare has banned this address")?,
            BreakerReason::Forced => write!(f, "nothing is sent: breaker {key} was opened manually")?,
            reason => write!(f, "nothing is sent: breaker {key} is open ({})", reason.name())?,
        }
        match phase {
            BlockPhase::Forced => Ok(()),
            BlockPhase::Until(until) => write!(f, ", until {until}"),
            BlockPhase::Probing => f.write_str("; probing"),
        }
    }
}

/// The breakers that every call of the bot passes, unless they are closed.
#[derive(Debug, Default)]
pub(super) struct OpenGates {
    open: BTreeMap<BreakerKey, (BreakerReason, BlockPhase)>,
}

impl OpenGates {
    /// Records a transition. `wall` is the present time of the wall clock.
    pub(super) fn on_transition(
        &mut self,
        key: &BreakerKey,
        to: BreakerState,
        reason: BreakerReason,
        now: Timestamp,
        wall: UnixMs,
    ) {
        if !matches!(key, BreakerKey::Address | BreakerKey::Discord(Credential::Application(_))) {
            return;
        }
        let opened_for = self.open.get(key).map_or(reason, |(opened_for, _)| *opened_for);
        let (reason, phase) = match to {
            BreakerState::Closed => {
                self.open.remove(key);
                return;
            }
            // A failed probe and the end of a cooldown do not change the cause.
            BreakerState::HalfOpen => (opened_for, BlockPhase::Probing),
            BreakerState::Open { until } => {
                let is_probe = matches!(reason, BreakerReason::ProbeFailed | BreakerReason::ProbeTimedOut);
                (if is_probe { opened_for } else { reason }, BlockPhase::Until(wall + until.since(now)))
            }
            BreakerState::ForcedOpen { why } => (why, BlockPhase::Forced),
        };
        self.open.insert(key.clone(), (reason, phase));
    }

    /// The reason why nothing can be sent that lasts longest.
    pub(super) fn block(&self) -> Option<SendBlock> {
        let duration = |phase: &BlockPhase| match phase {
            BlockPhase::Forced => UnixMs::new(u64::MAX),
            BlockPhase::Until(until) => *until,
            BlockPhase::Probing => UnixMs::new(0),
        };
        let (key, (reason, phase)) = self.open.iter().max_by_key(|(_, (_, phase))| duration(phase))?;
        Some(SendBlock::Breaker { key: key.clone(), reason: *reason, phase: *phase })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(5_000);
    const WALL: UnixMs = UnixMs::new(1_700_000_000_000);
    const BOT: BreakerKey = BreakerKey::Discord(Credential::Application(42));

    fn after(transitions: &[(BreakerKey, BreakerState, BreakerReason)]) -> Option<String> {
        let mut gates = OpenGates::default();
        for (key, to, reason) in transitions {
            gates.on_transition(key, *to, *reason, NOW, WALL);
        }
        gates.block().map(|block| block.to_string())
    }

    fn open() -> BreakerState {
        BreakerState::Open { until: NOW + Duration::from_secs(3_600) }
    }

    #[test]
    fn refused_token_outranks_a_ban_and_names_the_fix() {
        let unauthorized = BreakerState::ForcedOpen { why: BreakerReason::Unauthorized };
        let ban = (BreakerKey::Address, open(), BreakerReason::Blocked);
        let ban_text = "nothing is sent: Cloudflare has banned this address, until 2023-11-14T23:13:20.000Z";
        assert_eq!(after(std::slice::from_ref(&ban)).as_deref(), Some(ban_text));
        let both = [ban, (BOT, unauthorized, BreakerReason::Unauthorized)];
        assert_eq!(after(&both).unwrap(), "nothing is sent: Discord rejected the token of the bot (401)");
        let block = SendBlock::Breaker { key: BOT, reason: BreakerReason::Unauthorized, phase: BlockPhase::Forced };
        assert!(block.advice().contains("discord.token"));
    }

    #[test]
    fn cause_stays_while_a_breaker_is_probed() {
        let ban = (BreakerKey::Address, open(), BreakerReason::Blocked);
        let cooled = (BreakerKey::Address, BreakerState::HalfOpen, BreakerReason::CooledDown);
        let failed = (BreakerKey::Address, open(), BreakerReason::ProbeFailed);
        let probing = after(&[ban.clone(), cooled.clone(), failed, cooled.clone()]);
        assert_eq!(probing.unwrap(), "nothing is sent: Cloudflare has banned this address; probing");
        let closed = (BreakerKey::Address, BreakerState::Closed, BreakerReason::ProbesSucceeded);
        assert_eq!(after(&[ban, cooled, closed]), None);
    }

    #[test]
    fn breakers_of_routes_and_webhooks_block_nothing_else() {
        let keys = [BreakerKey::Target("crm".to_owned()), BreakerKey::Discord(Credential::Anonymous)];
        for key in keys {
            assert_eq!(after(&[(key, open(), BreakerReason::FailuresInRow)]), None);
        }
        let manual = BreakerState::ForcedOpen { why: BreakerReason::Forced };
        let text = after(&[(BOT, manual, BreakerReason::Forced)]);
        assert_eq!(text.unwrap(), "nothing is sent: breaker discord:42 was opened manually");
    }
}
