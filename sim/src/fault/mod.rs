//! Injected REST faults: what they do, to which calls, how often, and at which stage of a call.

mod pattern;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use pattern::Pattern;

use crate::id::Snowflake;
use crate::limit::Scope;
use crate::rest::route::Route;

/// Faults that may be active at the same time.
const MAX_FAULTS: usize = 1_000;

/// A fault: the calls it applies to, what it does, and how often.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The matching calls: `POST /guilds/{guild.id}/roles`, `* /channels/*`, `GET /channels/123/messages`, `*`.
    #[serde(default = "anything")]
    pub route: String,
    /// What it does.
    #[serde(rename = "do")]
    pub action: FaultAction,
    /// The probability that it applies to a matching call; 1 by default.
    #[serde(default = "always")]
    pub probability: f64,
    /// How often it applies; without a number, it stays until it is removed.
    #[serde(default)]
    pub count: Option<u64>,
    /// Number of matching calls that pass first.
    #[serde(default)]
    pub skip: u64,
}

fn anything() -> String {
    "*".into()
}

fn always() -> f64 {
    1.0
}

/// What a fault does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum FaultAction {
    /// Responds with this status instead of serving the call; the call has no effect.
    Status {
        /// 400 to 599.
        status: u16,
        /// Discord's error code in the body; 0 by default.
        #[serde(default)]
        code: u32,
    },
    /// Responds with this status although the call had its effect.
    StatusAfter {
        /// 500 to 599.
        status: u16,
    },
    /// Delays the call.
    Latency {
        /// Minimum delay.
        #[serde(default)]
        fixed_ms: u64,
        /// Maximum additional delay, uniformly distributed.
        #[serde(default)]
        jitter_ms: u64,
        /// Stage of the call.
        #[serde(default)]
        at: Stage,
    },
    /// Cuts the connection; the call had no effect.
    DropBefore,
    /// Cuts the connection; the call had its effect, and the response is lost.
    DropAfter,
    /// Responds 429 with this scope.
    RateLimit {
        /// Scope of the limit.
        scope: Scope,
        /// Value of `Retry-After`.
        retry_after_ms: u64,
    },
    /// Responds as Cloudflare does to a banned address: no `Via`, no rate limit headers.
    Cloudflare {
        /// An HTML page, or the static JSON.
        #[serde(default)]
        form: CloudflareForm,
        /// Value of `Retry-After`; without it, no such header.
        #[serde(default)]
        retry_after_ms: Option<u64>,
    },
    /// Omits these channels from listings.
    HideChannels {
        /// Their ids.
        channels: Vec<Snowflake>,
    },
    /// Omits the entries about these objects from the audit log, as if it lagged behind.
    HideEntries {
        /// The ids of the objects.
        targets: Vec<Snowflake>,
    },
}

/// Stage of a call at which it is delayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Before it arrives: limits and score see it only afterwards.
    Arrival,
    /// After it was counted, before its effect.
    #[default]
    Effect,
    /// After its effect, before the response.
    Answer,
}

/// The two forms of Cloudflare's ban.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CloudflareForm {
    /// Error 1015 as an HTML page.
    #[default]
    Html,
    /// A static JSON body.
    Json,
}

/// Why a fault was rejected.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FaultError {
    /// No route matches its pattern.
    #[error("no route matches \"{0}\"; write METHOD /path as in GET /sim/routes, with * for any part, or * for all")]
    NoSuchRoute(String),
    /// A number is out of range.
    #[error("{0}")]
    OutOfRange(&'static str),
    /// Too many faults are active.
    #[error("{MAX_FAULTS} faults are active, which is the maximum; remove some with DELETE /sim/faults")]
    TooMany,
}

/// What the active faults do to one call.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FaultPlan {
    pub(crate) arrival_delay: Duration,
    pub(crate) effect_delay: Duration,
    pub(crate) response_delay: Duration,
    pub(crate) hidden: Vec<Snowflake>,
    /// The first fault that ends the call.
    pub(crate) final_action: Option<FaultAction>,
}

/// A fault that is active.
#[derive(Debug, Serialize)]
pub(crate) struct ActiveFault {
    pub(crate) id: u64,
    #[serde(flatten)]
    fault: Fault,
    /// How often it has applied.
    pub(crate) hits: u64,
    #[serde(skip)]
    pattern: Pattern,
    #[serde(skip)]
    seen: u64,
}

/// The active faults, and the random numbers for their probabilities.
#[derive(Debug)]
pub(crate) struct Faults {
    active: Vec<ActiveFault>,
    next_id: u64,
    rng: fastrand::Rng,
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        Self { active: Vec::new(), next_id: 1, rng: fastrand::Rng::with_seed(seed) }
    }

    /// Adds a fault; returns its id.
    pub(crate) fn add(&mut self, fault: Fault, routes: &[Route]) -> Result<u64, FaultError> {
        if self.active.len() >= MAX_FAULTS {
            return Err(FaultError::TooMany);
        }
        if !(0.0..=1.0).contains(&fault.probability) {
            return Err(FaultError::OutOfRange("`probability` must be from 0 to 1"));
        }
        match fault.action {
            FaultAction::Status { status, .. } if !(400..=599).contains(&status) => {
                return Err(FaultError::OutOfRange("`status` must be from 400 to 599"));
            }
            FaultAction::StatusAfter { status } if !(500..=599).contains(&status) => {
                return Err(FaultError::OutOfRange("`status` must be from 500 to 599"));
            }
            FaultAction::Latency { fixed_ms, jitter_ms, .. } if fixed_ms.max(jitter_ms) > 600_000 => {
                return Err(FaultError::OutOfRange("`fixed_ms` and `jitter_ms` must be at most 600000"));
            }
            _ => {}
        }
        let pattern = Pattern::parse(&fault.route);
        if !routes.is_empty() && !routes.iter().any(|route| pattern.could_match(route)) {
            return Err(FaultError::NoSuchRoute(fault.route));
        }
        let id = self.next_id;
        self.next_id += 1;
        self.active.push(ActiveFault { id, fault, hits: 0, pattern, seen: 0 });
        Ok(id)
    }

    /// Removes one fault, or all; returns the number removed.
    pub(crate) fn remove(&mut self, id: Option<u64>) -> usize {
        let before = self.active.len();
        self.active.retain(|active| id.is_some_and(|id| active.id != id));
        before - self.active.len()
    }

    pub(crate) fn active(&self) -> &[ActiveFault] {
        &self.active
    }

    /// Decides what happens to a call. Each matching fault draws its own random number, so that a run with the same
    /// seed and the same order of calls repeats.
    pub(crate) fn decide(&mut self, method: &str, template: &str, path: &str) -> FaultPlan {
        let mut plan = FaultPlan::default();
        for active in &mut self.active {
            let spent = active.fault.count.is_some_and(|count| active.hits >= count);
            if spent || !active.pattern.matches(method, template, path) {
                continue;
            }
            active.seen += 1;
            let probability = active.fault.probability;
            if active.seen <= active.fault.skip || (probability < 1.0 && self.rng.f64() >= probability) {
                continue;
            }
            match &active.fault.action {
                FaultAction::Latency { fixed_ms, jitter_ms, at } => {
                    let jitter_us = if *jitter_ms == 0 { 0 } else { self.rng.u64(0..=jitter_ms * 1_000) };
                    let delay = Duration::from_millis(*fixed_ms) + Duration::from_micros(jitter_us);
                    match at {
                        Stage::Arrival => plan.arrival_delay += delay,
                        Stage::Effect => plan.effect_delay += delay,
                        Stage::Answer => plan.response_delay += delay,
                    }
                }
                FaultAction::HideChannels { channels: hidden } | FaultAction::HideEntries { targets: hidden } => {
                    plan.hidden.extend(hidden);
                }
                action if plan.final_action.is_none() => plan.final_action = Some(action.clone()),
                _ => continue,
            }
            active.hits += 1;
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLES: &str = "/guilds/{guild.id}/roles";

    fn status(route: &str) -> Fault {
        serde_json::from_value(serde_json::json!({ "route": route, "do": { "kind": "status", "status": 503 } }))
            .unwrap()
    }

    #[test]
    fn fault_with_a_count_applies_that_many_times() {
        let mut faults = Faults::new(1);
        faults.add(Fault { count: Some(2), skip: 1, ..status("POST /guilds/*/roles") }, &[]).unwrap();
        let applied: Vec<_> =
            (0..5).map(|_| faults.decide("POST", ROLES, "/guilds/1/roles").final_action.is_some()).collect();
        assert_eq!(applied, [false, true, true, false, false]);
        assert_eq!(faults.decide("GET", ROLES, "/guilds/1/roles"), FaultPlan::default());
    }

    #[test]
    fn same_seed_repeats_the_run() {
        let run = |seed| {
            let mut faults = Faults::new(seed);
            faults.add(Fault { probability: 0.5, ..status("*") }, &[]).unwrap();
            (0..64).map(|_| faults.decide("GET", ROLES, "/guilds/1/roles").final_action.is_some()).collect::<Vec<_>>()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    fn unknown_fault_error_lists_the_known_ones() {
        let error = serde_json::from_str::<Fault>(r#"{"do":{"kind":"explode"}}"#).unwrap_err().to_string();
        assert!(error.contains("explode") && error.contains("drop_after"), "{error}");
    }

    #[test]
    fn latencies_add_up_and_the_first_final_action_applies() {
        let mut faults = Faults::new(1);
        for text in [
            r#"{"do":{"kind":"latency","fixed_ms":5}}"#,
            r#"{"do":{"kind":"latency","fixed_ms":7,"at":"arrival"}}"#,
            r#"{"do":{"kind":"latency","fixed_ms":2}}"#,
            r#"{"do":{"kind":"drop_after"}}"#,
            r#"{"do":{"kind":"drop_before"}}"#,
        ] {
            faults.add(serde_json::from_str(text).unwrap(), &[]).unwrap();
        }
        let plan = faults.decide("GET", ROLES, "/guilds/1/roles");
        assert_eq!((plan.arrival_delay.as_millis(), plan.effect_delay.as_millis()), (7, 7));
        assert_eq!(plan.final_action, Some(FaultAction::DropAfter));
        assert_eq!(faults.active()[4].hits, 0, "a fault that did not apply is not counted");
    }
}
