//! Circuit breakers.

use std::time::Duration;

use guildhall_core::{
    breaker::{BreakerKey, BreakerSnapshot},
    time::UnixMs,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{BreakerState, Time};

/// All breakers.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Breakers {
    pub(crate) breakers: Vec<Breaker>,
    /// Number of tracked breakers, including those that are not listed.
    pub(crate) watched: usize,
}

/// A circuit breaker.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Breaker {
    /// What the breaker protects.
    pub(crate) key: String,
    /// The kind of the breaker.
    pub(crate) kind: String,
    pub(crate) state: BreakerState,
    /// Why it is in this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) since: Option<Time>,
    /// When it is probed again; `null` if it does not close by itself.
    pub(crate) until: Option<Time>,
    /// Calls in the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) calls: Option<u32>,
    /// Failed calls in the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) failures: Option<u32>,
    /// Slow calls in the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) slow: Option<u32>,
}

impl Breaker {
    pub(crate) fn new(breaker: &BreakerSnapshot, now: UnixMs) -> Self {
        Self {
            key: breaker.key.to_string(),
            kind: breaker.kind.name().to_owned(),
            state: breaker.state.into(),
            why: Some(breaker.why.name().to_owned()),
            since: Some(now.before(Duration::from_millis(breaker.for_ms)).into()),
            until: breaker.retry_after_ms.map(|wait| (now + Duration::from_millis(wait)).into()),
            calls: Some(breaker.calls),
            failures: Some(breaker.failures),
            slow: Some(breaker.slow),
        }
    }

    /// A closed breaker without failures, which is not tracked.
    pub(crate) fn untracked(key: &BreakerKey) -> Self {
        Self {
            key: key.to_string(),
            kind: key.kind().name().to_owned(),
            state: "closed".into(),
            why: None,
            since: None,
            until: None,
            calls: None,
            failures: None,
            slow: None,
        }
    }
}
