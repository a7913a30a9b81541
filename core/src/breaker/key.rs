//! Keys of breakers.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::response::Credential;
use crate::route::{RouteKey, TopLevelId};

/// What a breaker protects. Its text (`discord`, `discord:42`, `discord:42/POST /guilds/{id}/roles#7`, `target:crm`)
/// can be parsed again, except for a webhook's token, which is not part of the text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BreakerKey {
    /// Discord as reached from this address, with any credential.
    Address,
    /// Discord as seen by one credential.
    Discord(Credential),
    /// A route, over all ids.
    Route(Credential, RouteKey),
    /// A route and a top-level id.
    Pair(Credential, RouteKey, TopLevelId),
    /// Another upstream, by name.
    Target(String),
}

/// Kind of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerKind {
    /// See [`BreakerKey::Address`].
    Address,
    /// See [`BreakerKey::Discord`].
    Discord,
    /// See [`BreakerKey::Route`].
    Route,
    /// See [`BreakerKey::Pair`].
    Pair,
    /// See [`BreakerKey::Target`].
    Target,
}

impl BreakerKind {
    /// Name in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Discord => "discord",
            Self::Route => "route",
            Self::Pair => "pair",
            Self::Target => "target",
        }
    }
}

impl BreakerKey {
    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> BreakerKind {
        match self {
            Self::Address => BreakerKind::Address,
            Self::Discord(_) => BreakerKind::Discord,
            Self::Route(..) => BreakerKind::Route,
            Self::Pair(..) => BreakerKind::Pair,
            Self::Target(_) => BreakerKind::Target,
        }
    }

    /// Whether its breaker always exists. There are as many of these as there are bots, so they need no bound; tokens of
    /// callers do.
    pub(super) const fn is_permanent(&self) -> bool {
        matches!(self, Self::Address | Self::Discord(Credential::Application(_) | Credential::Anonymous))
    }

    /// Number of parts from which failures must come before they count for it.
    pub(super) const fn sources_needed(&self) -> u32 {
        match self.kind() {
            BreakerKind::Discord | BreakerKind::Route => 2,
            BreakerKind::Pair | BreakerKind::Target => 1,
            // Only a ban opens it.
            BreakerKind::Address => u32::MAX,
        }
    }
}

impl fmt::Display for BreakerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address => f.write_str("discord"),
            Self::Discord(owner) => write!(f, "discord:{owner}"),
            Self::Route(owner, route) => write!(f, "discord:{owner}/{route}"),
            Self::Pair(owner, route, major) => write!(f, "discord:{owner}/{route}#{major}"),
            Self::Target(name) => write!(f, "target:{name}"),
        }
    }
}

impl Serialize for BreakerKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Text that is not a breaker key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown breaker: expected `discord`, `discord:<application>[/<route>[#<id>]]` or `target:<name>`")]
pub struct ParseBreakerKeyError;

impl FromStr for BreakerKey {
    type Err = ParseBreakerKeyError;

    fn from_str(text: &str) -> Result<Self, ParseBreakerKeyError> {
        if text == "discord" {
            return Ok(Self::Address);
        }
        if let Some(name) = text.strip_prefix("target:").filter(|name| !name.is_empty()) {
            return Ok(Self::Target(name.to_owned()));
        }
        let rest = text.strip_prefix("discord:").ok_or(ParseBreakerKeyError)?;
        let (credential, route) =
            rest.split_once('/').map_or((rest, None), |(credential, route)| (credential, Some(route)));
        let credential: Credential = credential.parse().map_err(|_| ParseBreakerKeyError)?;
        Ok(match route.map(|route| route.rsplit_once('#').map_or((route, None), |(route, id)| (route, Some(id)))) {
            None => Self::Discord(credential),
            Some(("", _)) => return Err(ParseBreakerKeyError),
            Some((route, None)) => Self::Route(credential, RouteKey::new(route)),
            Some((route, Some(id))) => {
                let id = id.parse().map_err(|_| ParseBreakerKeyError)?;
                Self::Pair(credential, RouteKey::new(route), TopLevelId::of(id))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_can_be_read_back_from_its_text() {
        let application = Credential::Application(42);
        let route = RouteKey::new("POST /guilds/{id}/roles");
        for key in [
            BreakerKey::Address,
            BreakerKey::Discord(application),
            BreakerKey::Discord(Credential::Anonymous),
            BreakerKey::Discord(Credential::Token(0xab)),
            BreakerKey::Route(Credential::Token(u64::MAX), route.clone()),
            BreakerKey::Route(application, route.clone()),
            BreakerKey::Pair(application, route.clone(), TopLevelId::of(7)),
            BreakerKey::Pair(application, route, TopLevelId::NONE),
            BreakerKey::Target("crm/eu#1".to_owned()),
        ] {
            assert_eq!(key.to_string().parse(), Ok(key));
        }
    }

    #[test]
    fn text_that_is_not_a_breaker_key_is_rejected() {
        for text in [
            "",
            "discords",
            "discord:",
            "discord:bot",
            "discord:token-1",
            "discord:1/",
            "discord:1/GET /x#y",
            "target:",
        ] {
            assert_eq!(text.parse::<BreakerKey>(), Err(ParseBreakerKeyError), "{text}");
        }
    }
}
