//! Applies all windows to a request, and reports the state of its bucket. A refused request changes nothing.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};

use super::table::{Case, LimitConfig, RouteLimit};
use super::window::{Window, WindowDecision, WindowState};
use crate::id::Snowflake;
use crate::time::At;

/// Above this number of windows, the idle ones are removed.
const SWEEP_AT: usize = 8_192;

/// The caller that a limit applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Credential {
    /// A bot, by its application.
    Application(Snowflake),
    /// An address that sent no token.
    Address(IpAddr),
}

/// Which limit refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The bucket of the caller is exhausted.
    User,
    /// The resource is limited for all callers; the request is not invalid.
    Shared,
    /// The caller's global limit is reached.
    Global,
}

/// A request to check against the limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitRequest<'a> {
    pub(crate) credential: Credential,
    pub(crate) method: &'a str,
    pub(crate) template: &'a str,
    /// The top-level id, with its token if it has one.
    pub(crate) major: &'a str,
    pub(crate) case: Case,
    /// Whether it is exempt from the global limit.
    pub(crate) exempt: bool,
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LimitDecision {
    pub(crate) refusal: Option<(Scope, Duration)>,
    pub(crate) bucket: Option<BucketState>,
}

/// State of a bucket, for the headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BucketState {
    hash: String,
    window: WindowState,
}

/// All windows.
#[derive(Debug)]
pub(crate) struct Gate {
    config: LimitConfig,
    global: HashMap<Credential, Window>,
    buckets: HashMap<BucketKey, Window>,
    sweep_at: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct BucketKey {
    credential: Credential,
    name: String,
    major: String,
}

impl Gate {
    pub(crate) fn new(config: LimitConfig) -> Self {
        Self { config, global: HashMap::new(), buckets: HashMap::new(), sweep_at: SWEEP_AT }
    }

    pub(crate) fn config(&self) -> &LimitConfig {
        &self.config
    }

    /// Replaces the table; every window is reset.
    pub(crate) fn set(&mut self, config: LimitConfig) {
        *self = Self::new(config);
    }

    /// Sets the limit of one route; windows of other routes continue.
    pub(crate) fn set_route(&mut self, limit: RouteLimit) {
        let name = bucket_name(&limit);
        self.buckets.retain(|key, _| key.name != name);
        let same =
            |other: &RouteLimit| other.method == limit.method && other.path == limit.path && other.case == limit.case;
        self.config.routes.retain(|other| !same(other));
        self.config.routes.push(limit);
    }

    /// Checks a request, and counts it if no limit refuses it.
    pub(crate) fn check(&mut self, request: &LimitRequest<'_>, now: At) -> LimitDecision {
        if !self.config.enabled {
            return LimitDecision { refusal: None, bucket: None };
        }
        self.sweep(now);
        if !request.exempt {
            let window = self.global.entry(request.credential).or_insert_with(|| Window::new(self.config.global));
            if let WindowDecision::Refused(wait) = window.check(now) {
                return LimitDecision { refusal: Some((Scope::Global, wait)), bucket: None };
            }
        }

        let own = self.bucket(request, if request.case == Case::NameOrTopic { Case::Any } else { request.case });
        let sub = (request.case == Case::NameOrTopic).then(|| self.bucket(request, Case::NameOrTopic)).flatten();
        let wait = [&own, &sub]
            .into_iter()
            .flatten()
            .filter_map(|key| match self.buckets[key].check(now) {
                WindowDecision::Refused(wait) => Some(wait),
                WindowDecision::Allowed => None,
            })
            .max();
        if wait.is_none() {
            for key in [&own, &sub].into_iter().flatten() {
                if let Some(window) = self.buckets.get_mut(key) {
                    window.take(now);
                }
            }
            if let (false, Some(window)) = (request.exempt, self.global.get_mut(&request.credential)) {
                window.take(now);
            }
        }
        // A sublimit is not visible: its refusal has the headers of the route's own bucket.
        let bucket = own.map(|key| BucketState { hash: hash(&key.name), window: self.buckets[&key].state(now) });
        LimitDecision { refusal: wait.map(|wait| (Scope::User, wait)), bucket }
    }

    /// The window of a call, created if it is new; `None` if the route has no limit.
    fn bucket(&mut self, request: &LimitRequest<'_>, case: Case) -> Option<BucketKey> {
        let matches = |limit: &&RouteLimit, case: Case| {
            limit.path == request.template
                && limit.case == case
                && (limit.method == "*" || limit.method == request.method)
        };
        let routes = self.config.routes.iter();
        let limit = match case {
            Case::NameOrTopic | Case::Any => routes.clone().find(|limit| matches(limit, case)),
            Case::OldMessage | Case::Message => routes
                .clone()
                .find(|limit| matches(limit, case))
                .or_else(|| routes.clone().find(|limit| matches(limit, Case::Any))),
        }?;
        let key =
            BucketKey { credential: request.credential, name: bucket_name(limit), major: request.major.to_owned() };
        let rate = limit.rate();
        self.buckets.entry(key.clone()).or_insert_with(|| Window::new(rate));
        Some(key)
    }

    fn sweep(&mut self, now: At) {
        if self.buckets.len() + self.global.len() >= self.sweep_at {
            self.buckets.retain(|_, window| !window.is_idle(now));
            self.global.retain(|_, window| !window.is_idle(now));
            self.sweep_at = SWEEP_AT.max((self.buckets.len() + self.global.len()) * 2);
        }
    }
}

fn bucket_name(limit: &RouteLimit) -> String {
    match (&limit.bucket, limit.case) {
        (Some(bucket), _) => bucket.clone(),
        (None, case) => format!("{} {} {case:?}", limit.method, limit.path),
    }
}

/// Hash of a bucket: 32 hexadecimal digits that contain no id.
fn hash(name: &str) -> String {
    sha1_smol::Sha1::from(name).digest().bytes()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

impl BucketState {
    /// Writes the five rate limit headers. Times are rounded up to the millisecond, so that a client that waits that
    /// long is not refused.
    pub(crate) fn write_headers(&self, headers: &mut HeaderMap, now: At) {
        let reset_after = ceil_millis(self.window.reset_after);
        let reset = (now.micros() + reset_after * 1_000).div_ceil(1_000);
        let mut set_header = |name: &'static str, value: String| {
            let value = HeaderValue::try_from(value).expect("invariant: digits and letters are valid");
            headers.insert(HeaderName::from_static(name), value);
        };
        set_header("x-ratelimit-limit", self.window.limit.to_string());
        set_header("x-ratelimit-remaining", self.window.remaining.to_string());
        set_header("x-ratelimit-reset", seconds(reset));
        set_header("x-ratelimit-reset-after", seconds(reset_after));
        set_header("x-ratelimit-bucket", self.hash.clone());
    }
}

/// Whole milliseconds, rounded up.
pub(crate) fn ceil_millis(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// Milliseconds as seconds with three digits: `1.250`.
fn seconds(millis: u64) -> String {
    format!("{}.{:03}", millis / 1_000, millis % 1_000)
}

#[cfg(test)]
mod tests;
