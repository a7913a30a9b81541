//! Named budgets that processes share: implements `guildhall_actors::budgets` with one script.
//!
//! State, all under the application's prefix and all with a TTL:
//!
//! | key | value |
//! |---|---|
//! | `budget:<name>` | limits, balance, clock and the oldest booking, packed |
//! | `budget:<name>:bookings` | other recent and future bookings, as a list |
//! | `budget:<name>:spent:<member>` | the last report of what a process spent while disconnected |
//! | `budget-members` | the processes that were active within 30 s, as a sorted set |

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use ::redis::Value;
use guildhall_actors::ports::{SharedBudgets, SharedReply, SharedReplyFuture, Unreachable};
use guildhall_core::budget::{
    Budget, BudgetDecision, BudgetEpoch, BudgetError, BudgetLimits, BudgetName, BudgetReport, BudgetState, Observation,
    ObservedLimits, Points, SpendRequest,
};
use tokio::time::Instant;

use super::{RedisClient, RedisKeys, Script};

/// Maximum wait of a request, as in the script: 100 years, which it still counts to the microsecond.
const MAX_WAIT: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

/// Budgets in Redis.
#[derive(Debug)]
pub struct RedisBudgets {
    redis: RedisClient,
    keys: RedisKeys,
    member: String,
    script: Script,
    trips: Mutex<SlowestRoundTrip>,
}

impl RedisBudgets {
    /// Creates the budgets of one application. `member` identifies this process, and no other one, not even its
    /// successor.
    #[must_use]
    pub fn new(redis: RedisClient, keys: RedisKeys, member: &str) -> Self {
        let script = Script::new("budgets", include_str!("budgets.lua"));
        Self {
            redis,
            keys,
            member: member.to_owned(),
            script,
            trips: Mutex::new(SlowestRoundTrip::new(Instant::now())),
        }
    }

    async fn call(
        &self,
        op: &str,
        name: &BudgetName,
        report: &BudgetReport,
        rest: impl FnOnce(&mut BudgetArguments),
    ) -> Result<BudgetResponse, Unreachable> {
        let keys = [
            self.keys.of(&format!("budget:{name}")),
            self.keys.of(&format!("budget:{name}:bookings")),
            self.keys.of("budget-members"),
            self.keys.of(&format!("budget:{name}:spent:{}", self.member)),
        ];
        let started = Instant::now();
        let response = self
            .redis
            .run(&self.script, &keys, |run_id| {
                let mut arguments = BudgetArguments(Vec::new());
                arguments.text(op).text(run_id).text(&self.member).report(report);
                rest(&mut arguments);
                arguments.0
            })
            .await
            .map_err(|lost| Unreachable(lost.to_string()))?;
        self.trips.lock().unwrap_or_else(PoisonError::into_inner).add(started.elapsed(), Instant::now());
        BudgetResponse::read(response).ok_or_else(unexpected_response)
    }
}

impl SharedBudgets for RedisBudgets {
    fn acquire<'a>(
        &'a self,
        name: &'a BudgetName,
        report: &'a BudgetReport,
        requests: &'a [SpendRequest],
    ) -> SharedReplyFuture<'a, Vec<Result<BudgetDecision, BudgetError>>> {
        Box::pin(async move {
            let write_requests = |arguments: &mut BudgetArguments| {
                for request in requests {
                    arguments.points(request.cost).micros(request.max_wait.min(MAX_WAIT));
                }
            };
            let mut response = self.call("acquire", name, report, write_requests).await?;
            let maximum = response.state.limits.maximum;
            let outcomes: Option<Vec<_>> =
                requests.iter().map(|request| response.outcome(request.cost, maximum)).collect();
            Ok(SharedReply { result: outcomes.ok_or_else(unexpected_response)?, state: response.state })
        })
    }

    fn observe<'a>(
        &'a self,
        name: &'a BudgetName,
        report: &'a BudgetReport,
        observation: &'a Observation,
    ) -> SharedReplyFuture<'a, ()> {
        Box::pin(async move {
            // The script counts back from when it runs, which is later. Too far back is better than too little:
            // spending after the observed call must not count as known to the upstream.
            let round_trip = self.trips.lock().unwrap_or_else(PoisonError::into_inner).slowest();
            let age = observation.age.saturating_add(round_trip).min(Budget::MEMORY);
            let write_observation = |arguments: &mut BudgetArguments| {
                for points in [observation.available, observation.maximum, observation.restore_per_second] {
                    arguments.optional(points.map(Points::micros));
                }
                arguments.optional(observation.retry_after.map(|wait| micros(wait.min(MAX_WAIT)))).micros(age);
            };
            let response = self.call("observe", name, report, write_observation).await?;
            Ok(SharedReply { result: (), state: response.state })
        })
    }

    fn show<'a>(&'a self, name: &'a BudgetName, report: &'a BudgetReport) -> SharedReplyFuture<'a, Points> {
        Box::pin(async move {
            let response = self.call("show", name, report, |_| {}).await?;
            Ok(SharedReply { result: response.booked.ok_or_else(unexpected_response)?, state: response.state })
        })
    }
}

fn unexpected_response() -> Unreachable {
    Unreachable("unexpected response from Redis; check whether other programs write to its keys".to_owned())
}

/// The arguments of the script, in order.
struct BudgetArguments(Vec<Vec<u8>>);

impl BudgetArguments {
    fn text(&mut self, text: &str) -> &mut Self {
        self.0.push(text.into());
        self
    }

    fn number(&mut self, number: u64) -> &mut Self {
        self.text(&number.to_string())
    }

    fn optional(&mut self, number: Option<u64>) -> &mut Self {
        match number {
            Some(number) => self.number(number),
            None => self.text(""),
        }
    }

    fn points(&mut self, points: Points) -> &mut Self {
        self.number(points.micros())
    }

    fn micros(&mut self, duration: Duration) -> &mut Self {
        self.number(micros(duration))
    }

    fn report(&mut self, report: &BudgetReport) -> &mut Self {
        let BudgetReport { epoch, limits, observed, booked_for, configure, spent } = report;
        self.text(epoch.as_ref().map_or("", BudgetEpoch::as_str));
        self.points(limits.maximum).points(limits.restore_per_second);
        self.number(u64::from(observed.maximum) + 2 * u64::from(observed.restore));
        self.micros((*booked_for).min(MAX_WAIT));
        self.optional(configure.map(|limits| limits.maximum.micros()));
        self.optional(configure.map(|limits| limits.restore_per_second.micros()));
        self.number(spent.map_or(0, |spent| spent.number)).number(spent.map_or(0, |spent| spent.points.micros()))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The response of the script, read from the front.
struct BudgetResponse {
    state: BudgetState,
    booked: Option<Points>,
    outcomes: std::vec::IntoIter<Value>,
}

impl BudgetResponse {
    fn read(response: Value) -> Option<Self> {
        let Value::Array(values) = response else { return None };
        let mut values = values.into_iter();
        let epoch = match values.next()? {
            Value::BulkString(epoch) => BudgetEpoch::new(std::str::from_utf8(&epoch).ok()?),
            _ => return None,
        };
        let _now = int(&mut values)?;
        let members = u32::try_from(int(&mut values)?).ok();
        let limits = BudgetLimits { maximum: points(&mut values)?, restore_per_second: points(&mut values)? };
        let bits = int(&mut values)?;
        let observed = ObservedLimits { maximum: bits & 1 != 0, restore: bits & 2 != 0 };
        let available = points(&mut values)?;
        let booked = u64::try_from(int(&mut values)?).ok().and_then(Points::from_micros);
        let booked_for = optional_wait(int(&mut values)?)?;
        let blocked_for = optional_wait(int(&mut values)?)?;
        let state = BudgetState { epoch, limits, observed, available, booked_for, blocked_for, members };
        Some(Self { state, booked, outcomes: values })
    }

    /// The result of the next request.
    fn outcome(&mut self, cost: Points, maximum: Points) -> Option<Result<BudgetDecision, BudgetError>> {
        let outcome = int(&mut self.outcomes)?;
        let until = optional_wait(int(&mut self.outcomes)?);
        let remaining = points(&mut self.outcomes)?;
        match outcome {
            0 => Some(Ok(BudgetDecision::Refused { retry_after: until, remaining })),
            1 => Some(Ok(BudgetDecision::Allowed { delay: until?, remaining })),
            2 => Some(Err(BudgetError::CostAboveMaximum { cost, maximum })),
            _ => None,
        }
    }
}

fn int(values: &mut impl Iterator<Item = Value>) -> Option<i64> {
    match values.next()? {
        Value::Int(number) => Some(number),
        _ => None,
    }
}

fn points(values: &mut impl Iterator<Item = Value>) -> Option<Points> {
    Points::from_micros(u64::try_from(int(values)?).ok()?)
}

/// `None` means forever.
fn optional_wait(micros: i64) -> Option<Duration> {
    u64::try_from(micros).ok().map(Duration::from_micros)
}

/// The slowest round trip of the last 30 to 60 seconds.
#[derive(Debug)]
struct SlowestRoundTrip {
    since: Instant,
    current: Duration,
    previous: Duration,
}

impl SlowestRoundTrip {
    const HALF: Duration = Duration::from_secs(30);

    fn new(since: Instant) -> Self {
        Self { since, current: Duration::ZERO, previous: Duration::ZERO }
    }

    fn add(&mut self, trip: Duration, now: Instant) {
        if now - self.since > Self::HALF {
            self.previous = std::mem::take(&mut self.current);
            self.since = now;
        }
        self.current = self.current.max(trip);
    }

    fn slowest(&self) -> Duration {
        self.current.max(self.previous)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowest_trip_is_stored_for_at_least_half_a_minute() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut trips = SlowestRoundTrip::new(start);
        trips.add(Duration::from_millis(9), start + 29 * second);
        trips.add(Duration::from_millis(2), start + 59 * second);
        assert_eq!(trips.slowest(), Duration::from_millis(9));
        trips.add(Duration::from_millis(3), start + 90 * second);
        assert_eq!(trips.slowest(), Duration::from_millis(3));
    }

    #[test]
    fn malformed_responses_are_rejected() {
        for strange in [Value::Nil, Value::Int(1), Value::Array(vec![Value::Int(1)])] {
            assert!(BudgetResponse::read(strange).is_none());
        }
    }
}
