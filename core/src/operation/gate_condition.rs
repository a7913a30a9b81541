//! Gate conditions that hold operations back. A change of the condition can release them early.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::breaker::{BreakerKey, BreakerKind};

/// A condition of the gate that holds operations back until it changes. The due time of such an operation is an
/// estimate. A `Retry-After` of a route is not a condition: it belongs to the operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GateCondition {
    /// The breaker with this key, as text, is not closed.
    Breaker(String),
    /// Discord rejected the token.
    Token,
    /// The budget of invalid requests, or a share of it, is spent.
    InvalidRequests,
    /// The global limit: a global 429, or a shared window that is unreachable.
    GlobalLimit,
}

impl GateCondition {
    /// The condition behind a rejection by the gate or by Discord, from its reason and its text; `None` if the wait
    /// belongs to the operation itself. The text of a breaker's rejection is `{key}: {reason}`.
    #[must_use]
    pub fn from_rejection(reason: &str, text: &str) -> Option<Self> {
        match reason {
            "breaker_open" | "breaker_half_open" | "breaker_forced_open" => {
                Some(Self::Breaker(text.strip_suffix(reason)?.strip_suffix(": ")?.to_owned()))
            }
            "blocked" => Some(Self::Breaker(BreakerKey::Address.to_string())),
            "unauthorized" => Some(Self::Token),
            "invalid_requests"
            | "invalid_requests_lent"
            | "invalid_requests_unheard"
            | "invalid_requests_key_share"
            | "invalid_requests_tenant_share"
            | "invalid_requests_guild_share" => Some(Self::InvalidRequests),
            "global_limit" | "rate_limited_global" => Some(Self::GlobalLimit),
            _ => None,
        }
    }

    /// The same from the text alone, which ends with the reason.
    #[must_use]
    pub fn from_message(text: &str) -> Option<Self> {
        let reason = text.rsplit(' ').next()?;
        Self::from_rejection(reason, text)
    }

    /// Conditions that a change of this breaker releases: its own and, for a credential's breaker, a rejected token.
    #[must_use]
    pub fn released_by(key: &BreakerKey) -> Vec<Self> {
        let token = (key.kind() == BreakerKind::Discord).then_some(Self::Token);
        std::iter::once(Self::Breaker(key.to_string())).chain(token).collect()
    }
}

impl fmt::Display for GateCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Breaker(key) => write!(f, "breaker {key}"),
            Self::Token => f.write_str("token"),
            Self::InvalidRequests => f.write_str("invalid_requests"),
            Self::GlobalLimit => f.write_str("global_limit"),
        }
    }
}

/// Text that is not a gate condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown gate condition")]
pub struct UnknownCondition;

impl FromStr for GateCondition {
    type Err = UnknownCondition;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "token" => Ok(Self::Token),
            "invalid_requests" => Ok(Self::InvalidRequests),
            "global_limit" => Ok(Self::GlobalLimit),
            _ => text.strip_prefix("breaker ").map(|key| Self::Breaker(key.to_owned())).ok_or(UnknownCondition),
        }
    }
}

impl Serialize for GateCondition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reads a stored condition. A condition written by a later version is ignored.
pub(super) fn stored<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<GateCondition>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.and_then(|text| text.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::breaker::CallRejection;
    use crate::operation::{Failure, FailureClass};
    use crate::response::Credential;
    use crate::route::{RouteKey, TopLevelId};

    #[test]
    fn breaker_rejections_are_released_by_its_change() {
        let bot = Credential::Application(42);
        let keys = [
            BreakerKey::Discord(bot),
            BreakerKey::Route(bot, RouteKey::new("POST /guilds/{id}/roles")),
            BreakerKey::Pair(bot, RouteKey::new("POST /webhooks/{id}/{token}"), TopLevelId::with_token(7, "secret")),
        ];
        for key in keys {
            for reason in ["breaker_open", "breaker_half_open", "breaker_forced_open"] {
                let text = CallRejection { until: None, reason, key: key.to_string() }.to_string();
                let held = GateCondition::from_rejection(reason, &text).unwrap();
                assert!(GateCondition::released_by(&key).contains(&held), "{text}");
                assert_eq!(GateCondition::from_message(&text), Some(held), "{text}");
            }
        }
        let ban = CallRejection { until: None, reason: "blocked", key: BreakerKey::Address.to_string() }.to_string();
        let held = GateCondition::from_message(&ban).unwrap();
        assert_eq!(GateCondition::released_by(&BreakerKey::Address), [held]);
        let token = GateCondition::from_rejection("unauthorized", "Discord answered 401").unwrap();
        assert!(GateCondition::released_by(&BreakerKey::Discord(bot)).contains(&token));
    }

    #[test]
    fn waits_of_the_operation_itself_are_not_conditions() {
        for reason in ["route_limit", "rate_limited", "rate_limited_shared", "reference", "queue_full", "unreachable"] {
            assert_eq!(GateCondition::from_rejection(reason, reason), None);
            assert_eq!(GateCondition::from_message(&format!("no permit: {reason}")), None);
        }
        assert_eq!(GateCondition::from_message("no permit: global_limit"), Some(GateCondition::GlobalLimit));
    }

    #[test]
    fn stored_failures_keep_their_condition() {
        let conditions = [
            GateCondition::Breaker("discord:42/POST /guilds/{id}/roles#7".to_owned()),
            GateCondition::Token,
            GateCondition::InvalidRequests,
            GateCondition::GlobalLimit,
        ];
        for condition in conditions {
            let held_by = Some(condition);
            let failure = Failure { held_by, ..Failure::new(FailureClass::RateLimited, "held") };
            let text = serde_json::to_string(&failure).unwrap();
            assert!(text.contains("\"held_by\":"), "the store searches for it: {text}");
            assert_eq!(serde_json::from_str::<Failure>(&text).unwrap(), failure);
        }
        for other in
            [r#"{"class":"rate_limited","message":"m"}"#, r#"{"class":"rate_limited","message":"m","held_by":"moon"}"#]
        {
            assert_eq!(serde_json::from_str::<Failure>(other).unwrap().held_by, None);
        }
    }
}
