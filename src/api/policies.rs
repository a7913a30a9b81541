//! Rate limits for callers, and the headers that report them.
//!
//! ```text
//!  key ──▶ last known shared level ──▶ shared count (Redis) ──▶ PolicyDecision ──▶ headers, 429, or a delay
//!               └─ over the limit ───┐        └─ lost ─▶ own count ─▲
//!  no valid key ─▶ own count, by address ──────────────────────────┘
//! ```

use std::{
    fmt,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use guildhall_actors::policies::SharedPolicies;
use guildhall_actors::supervision::spawn_work_on;
use guildhall_core::{
    policy::{Meter, Policy, Rate, RateDecision, RateOutcome},
    time::Timestamp,
};
use tokio::runtime::Handle;

use super::{
    events::{PoliciesLocal, PoliciesShared, RequestDelayed, RequestLimited, UntrackedCaller},
    problem::{ProblemResponse, ProblemType},
};
use crate::{events::emit, settings::IpNetwork};

/// Rate limits for each caller; without a rate there is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoliciesConfig {
    /// Submitting operations, and bulk requests.
    pub heavy: Option<Rate>,
    /// Maximum delay of an operation above the limit.
    pub heavy_max_wait: Duration,
    /// Everything else.
    pub light: Option<Rate>,
    /// Requests without a key, or with an invalid one.
    pub failed: Option<Rate>,
    /// How many callers are counted separately.
    pub max_tracked: usize,
}

impl Default for PoliciesConfig {
    /// No limits.
    fn default() -> Self {
        Self { heavy: None, heavy_max_wait: Duration::from_secs(60), light: None, failed: None, max_tracked: 10_000 }
    }
}

/// The name of the policy for requests without a valid key.
const FAILED: &str = "failed";
/// The owner of an IPv6 address has many others; a prefix of this length identifies the owner.
const OWNER_BITS: u8 = 64;

/// Longer than any debt.
const UNLIMITED_WAIT: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

/// Counts by key.
type KeyMeter = Mutex<Meter<Arc<str>>>;

/// The meters of this process, and their configuration.
#[derive(Clone)]
struct Meters {
    config: PoliciesConfig,
    heavy: Option<Arc<KeyMeter>>,
    light: Option<Arc<KeyMeter>>,
    failed: Option<Arc<Mutex<Meter<IpNetwork>>>>,
}

impl Meters {
    fn new(config: PoliciesConfig) -> Self {
        let keys = |rate: Option<Rate>| rate.map(|rate| Arc::new(Mutex::new(Meter::new(rate, config.max_tracked))));
        let failed = config.failed.map(|rate| Arc::new(Mutex::new(Meter::new(rate, config.max_tracked))));
        Self { config, heavy: keys(config.heavy), light: keys(config.light), failed }
    }

    /// Meters for another configuration. Where a policy has not changed, callers keep their level.
    fn reconfigured(&self, config: PoliciesConfig) -> Self {
        let (old, mut new) = (self.config, Self::new(config));
        if old.max_tracked != config.max_tracked {
            return new;
        }
        if old.heavy == config.heavy {
            new.heavy.clone_from(&self.heavy);
        }
        if old.light == config.light {
            new.light.clone_from(&self.light);
        }
        if old.failed == config.failed {
            new.failed.clone_from(&self.failed);
        }
        new
    }
}

/// The policies of this process.
pub(crate) struct PolicyLimiter {
    meters: RwLock<Arc<Meters>>,
    shared: OnceLock<Arc<dyn SharedPolicies>>,
    /// Whether the shared count was available at the last request.
    sharing: AtomicU8,
    started_at: Instant,
}

const UNKNOWN: u8 = 0;
const SHARED: u8 = 1;
const LOCAL: u8 = 2;

impl fmt::Debug for PolicyLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyLimiter").finish_non_exhaustive()
    }
}

impl PolicyLimiter {
    pub(crate) fn new(config: PoliciesConfig) -> Self {
        Self {
            meters: RwLock::new(Arc::new(Meters::new(config))),
            shared: OnceLock::new(),
            sharing: AtomicU8::new(UNKNOWN),
            started_at: Instant::now(),
        }
    }

    /// Applies other rates from now on. Where a policy has not changed, callers keep their level.
    pub(crate) fn reconfigure(&self, config: PoliciesConfig) {
        let mut meters = self.meters.write().unwrap_or_else(PoisonError::into_inner);
        *meters = Arc::new(meters.reconfigured(config));
    }

    fn meters(&self) -> Arc<Meters> {
        Arc::clone(&self.meters.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// From now on requests are counted together with other processes. A second call has no effect.
    pub(crate) fn share(&self, shared: Arc<dyn SharedPolicies>) {
        drop(self.shared.set(shared));
    }

    /// Counts a request of a key; `None` if it has no limit. `runtime` is that of the shared count.
    pub(crate) async fn on_request(&self, policy: Policy, key: &Arc<str>, runtime: &Handle) -> Option<PolicyDecision> {
        self.take(policy, key, 1, runtime).await
    }

    /// Takes as many tokens for a request of a key as it costs.
    pub(crate) async fn take(
        &self,
        policy: Policy,
        key: &Arc<str>,
        cost: u32,
        runtime: &Handle,
    ) -> Option<PolicyDecision> {
        let max_wait = match policy {
            Policy::HeavyWaits => self.meters().config.heavy_max_wait,
            Policy::Heavy | Policy::Light | Policy::Internal => Duration::ZERO,
        };
        self.take_within(policy, key, cost, max_wait, runtime).await
    }

    /// Takes tokens for work that is done already: it is never rejected, and later requests are delayed or rejected
    /// instead.
    pub(crate) async fn charge(
        &self,
        policy: Policy,
        key: &Arc<str>,
        cost: u32,
        runtime: &Handle,
    ) -> Option<PolicyDecision> {
        self.take_within(policy, key, cost, UNLIMITED_WAIT, runtime).await
    }

    async fn take_within(
        &self,
        policy: Policy,
        key: &Arc<str>,
        cost: u32,
        max_wait: Duration,
        runtime: &Handle,
    ) -> Option<PolicyDecision> {
        let meters = self.meters();
        let meter = match policy {
            Policy::HeavyWaits | Policy::Heavy => meters.heavy.as_ref()?,
            Policy::Light => meters.light.as_ref()?,
            Policy::Internal => return None,
        };
        let name = policy.name();
        let (rate, cached) = {
            let meter = lock(meter);
            (meter.rate(), meter.peek(key, cost, max_wait, self.now()))
        };
        let decision = match (self.shared.get(), cached.outcome) {
            // What other processes have taken since can only raise the level.
            (Some(_), RateOutcome::Refused { .. }) => cached,
            (Some(shared), RateOutcome::Taken { .. }) => {
                let (shared, caller) = (Arc::clone(shared), Arc::clone(key));
                let take = async move { shared.take(name, &caller, rate, cost, max_wait).await };
                let counted = spawn_work_on(runtime, take).await;
                let debt = counted.ok().flatten();
                self.report_sharing(debt.is_some());
                match debt {
                    Some(debt) => {
                        let decision = rate.decide(debt, cost, max_wait);
                        lock(meter).on_shared_state(Arc::clone(key), decision.full_in, self.now());
                        decision
                    }
                    None => self.count(meter, key, cost, max_wait, name),
                }
            }
            (None, _) => self.count(meter, key, cost, max_wait, name),
        };
        Some(PolicyDecision::new(name, rate, decision))
    }

    fn count(
        &self,
        meter: &KeyMeter,
        key: &Arc<str>,
        cost: u32,
        max_wait: Duration,
        policy: &'static str,
    ) -> RateDecision {
        let decision = lock(meter).on_request(Arc::clone(key), cost, max_wait, self.now());
        if !decision.has_own_bucket {
            emit(UntrackedCaller { policy });
        }
        decision.decision
    }

    /// Counts a request without a valid key; `None` if it has no limit.
    pub(crate) fn on_failed(&self, from: IpAddr) -> Option<PolicyDecision> {
        let meters = self.meters();
        let mut meter = lock(meters.failed.as_ref()?);
        let decision = meter.on_request(owner(from), 1, Duration::ZERO, self.now());
        let rate = meter.rate();
        drop(meter);
        if !decision.has_own_bucket {
            emit(UntrackedCaller { policy: FAILED });
        }
        Some(PolicyDecision::new(FAILED, rate, decision.decision))
    }

    fn report_sharing(&self, together: bool) {
        let now = if together { SHARED } else { LOCAL };
        if self.sharing.swap(now, Ordering::Relaxed) != now {
            if together { emit(PoliciesShared) } else { emit(PoliciesLocal) }
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(u64::try_from(self.started_at.elapsed().as_micros()).unwrap_or(u64::MAX))
    }
}

/// The network of one caller: its address, or the /64 of an IPv6 address.
pub(crate) fn owner(address: IpAddr) -> IpNetwork {
    match address.to_canonical() {
        IpAddr::V4(address) => IpNetwork::of(address.into(), 32),
        IpAddr::V6(address) => IpNetwork::of(address.into(), OWNER_BITS),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while it is locked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The decision on a request, and the state of its limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PolicyDecision {
    policy: &'static str,
    rate: Rate,
    decision: RateDecision,
}

impl PolicyDecision {
    fn new(policy: &'static str, rate: Rate, decision: RateDecision) -> Self {
        match decision.outcome {
            RateOutcome::Taken { delay: Duration::ZERO } => {}
            RateOutcome::Taken { delay } => emit(RequestDelayed { policy, delay }),
            RateOutcome::Refused { retry_after } => emit(RequestLimited { policy, retry_after }),
        }
        Self { policy, rate, decision }
    }

    /// How long the request is delayed, unless it is rejected.
    pub(crate) fn delay(&self) -> Result<Duration, ProblemResponse> {
        match self.decision.outcome {
            RateOutcome::Taken { delay } => Ok(delay),
            RateOutcome::Refused { retry_after } => Err(self.too_many(retry_after)),
        }
    }

    /// The problem for a request above the limit.
    pub(crate) fn too_many(&self, retry_after: Duration) -> ProblemResponse {
        let (at_once, every) = (self.rate.burst(), self.rate.interval());
        let subject = if self.policy == FAILED { "this address, without a valid key," } else { "this key" };
        let counted = if self.policy == Policy::Heavy.name() { "operations" } else { "requests" };
        let detail = format!(
            "Too many {counted} from {subject} under the policy `{}`: at most {at_once} at once, and one more every \
             {every:?}. The request had no effect. Retry in {} s.",
            self.policy,
            whole_seconds(retry_after)
        );
        let retry_after_ms = u64::try_from(retry_after.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX);
        let problem = ProblemType::TooManyRequests
            .with_detail(detail)
            .with("policy", self.policy)
            .with("retry_after_ms", retry_after_ms);
        problem.retry_after(whole_seconds(retry_after))
    }

    /// Adds the `RateLimit` fields of the IETF draft to the headers of a response.
    pub(crate) fn write_headers(&self, headers: &mut HeaderMap) {
        let Self { policy, rate, decision } = self;
        let quota = format!("\"{policy}\";q={};w={}", rate.burst(), whole_seconds(rate.window()));
        let left = format!("\"{policy}\";r={};t={}", decision.remaining, decision.full_in.as_secs_f64().ceil());
        for (name, value) in [("ratelimit-policy", quota), ("ratelimit", left)] {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
        if let (RateOutcome::Refused { retry_after }, false) = (decision.outcome, headers.contains_key(RETRY_AFTER)) {
            headers.insert(RETRY_AFTER, whole_seconds(retry_after).into());
        }
    }
}

/// Rounded up, and at least 1.
fn whole_seconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_report_limit_remaining_and_retry_time() {
        let rate = Rate::new(10, 30).unwrap();
        let mut headers = HeaderMap::new();
        PolicyDecision::new("heavy", rate, rate.decide(Duration::from_millis(400), 1, Duration::ZERO))
            .write_headers(&mut headers);
        let of = |headers: &HeaderMap, name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(of(&headers, "ratelimit-policy").as_deref(), Some("\"heavy\";q=30;w=3"));
        assert_eq!(of(&headers, "ratelimit").as_deref(), Some("\"heavy\";r=25;t=1"));
        assert_eq!(of(&headers, "retry-after"), None);

        let refused = PolicyDecision::new("heavy", rate, rate.decide(rate.window(), 1, Duration::ZERO));
        refused.write_headers(&mut headers);
        assert_eq!(of(&headers, "ratelimit").as_deref(), Some("\"heavy\";r=0;t=3"));
        assert_eq!(of(&headers, "retry-after").as_deref(), Some("1"));
        assert!(refused.delay().is_err());
    }

    #[test]
    fn reconfiguring_keeps_levels_of_unchanged_policies() {
        let rate = |burst| Rate::new(1, burst);
        let config = PoliciesConfig { light: rate(2), failed: rate(1), ..PoliciesConfig::default() };
        let policies = PolicyLimiter::new(config);
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        let allowed =
            |policies: &PolicyLimiter| policies.on_failed(address).is_none_or(|ruling| ruling.delay().is_ok());
        assert!(allowed(&policies) && !allowed(&policies));
        policies.reconfigure(PoliciesConfig { light: rate(9), ..config });
        assert!(!allowed(&policies), "it is used up as before");
        policies.reconfigure(PoliciesConfig { failed: rate(2), ..config });
        assert!(allowed(&policies) && allowed(&policies) && !allowed(&policies));
        policies.reconfigure(PoliciesConfig { failed: None, ..config });
        assert!(allowed(&policies));
    }

    #[test]
    fn ipv6_addresses_of_one_prefix_are_one_caller() {
        let [one, other, another] =
            ["2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1"].map(|text| owner(text.parse().unwrap()));
        assert!(one == other && one != another);
        let [one, mapped, other] =
            ["192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"].map(|text| owner(text.parse().unwrap()));
        assert!(one == mapped && one != other);
    }
}
