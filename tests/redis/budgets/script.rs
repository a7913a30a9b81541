//! Direct calls of the script, without the adapter.

use std::time::Duration;

use guildhall_core::budget::{BudgetLimits, Observation, ObservedLimits, Points, SpendRequest};
use guildhall_core::time::Timestamp;
use guildhall_testkit::redis::RedisServer;
use redis::{Connection, Value};

/// Source of the script.
pub(crate) const SOURCE: &str = include_str!("../../../src/redis/budgets.lua");

/// The expression with which the script reads the time.
const TIME_EXPRESSION: &str = "redis.call('TIME')";

pub(crate) const BUDGET: &str = "guildhall:{1}:budget:shop";
pub(crate) const BOOKINGS: &str = "guildhall:{1}:budget:shop:bookings";
pub(crate) const MEMBERS: &str = "guildhall:{1}:budget-members";
pub(crate) const SPENT: &str = "guildhall:{1}:budget:shop:spent:a";

/// A caller of the script, and the arguments that it sends with every call.
pub(crate) struct ScriptCaller {
    connection: Connection,
    script: redis::Script,
    /// The time that the script uses. `None` for the server's time.
    pub(crate) clock: Option<u64>,
    pub(crate) run_id: String,
    pub(crate) member: String,
    pub(crate) epoch: String,
    pub(crate) limits: BudgetLimits,
    pub(crate) booked_for: Duration,
    pub(crate) configure: Option<BudgetLimits>,
    pub(crate) spent: Option<(u64, Points)>,
}

/// Reply of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BudgetReply {
    pub(crate) epoch: String,
    pub(crate) now: Timestamp,
    pub(crate) members: i64,
    pub(crate) limits: BudgetLimits,
    pub(crate) observed: ObservedLimits,
    pub(crate) available: Points,
    /// `None` except for `show`.
    pub(crate) booked: Option<Points>,
    pub(crate) booked_for: Duration,
    pub(crate) blocked_for: Duration,
    pub(crate) outcomes: Vec<SpendOutcome>,
}

/// Outcome of a spend request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpendOutcome {
    Refused(Option<Duration>, Points),
    Allowed(Duration, Points),
    AboveMaximum,
}

impl ScriptCaller {
    /// A caller that uses the server's clock.
    pub(crate) fn new(server: &RedisServer, limits: BudgetLimits) -> Self {
        Self {
            connection: server.client().get_connection().unwrap(),
            script: redis::Script::new(SOURCE),
            clock: None,
            run_id: "run".to_owned(),
            member: "a".to_owned(),
            epoch: String::new(),
            limits,
            booked_for: Duration::ZERO,
            configure: None,
            spent: None,
        }
    }

    /// A caller of the same script with a clock that the test controls.
    pub(crate) fn with_clock(server: &RedisServer, limits: BudgetLimits, start: u64) -> Self {
        assert_eq!(SOURCE.matches(TIME_EXPRESSION).count(), 1);
        let script = redis::Script::new(&SOURCE.replace(TIME_EXPRESSION, "{ KEYS[5], KEYS[6] }"));
        Self { script, clock: Some(start), ..Self::new(server, limits) }
    }

    pub(crate) fn acquire(&mut self, requests: &[SpendRequest]) -> BudgetReply {
        let args: Vec<_> =
            requests.iter().flat_map(|request| [request.cost.micros(), micros(request.max_wait)]).map(text).collect();
        self.call("acquire", &args)
    }

    pub(crate) fn observe(&mut self, seen: &Observation) -> BudgetReply {
        let field = |points: Option<Points>| points.map(|points| text(points.micros())).unwrap_or_default();
        let retry_after = seen.retry_after.map(|wait| text(micros(wait))).unwrap_or_default();
        let args = [
            field(seen.available),
            field(seen.maximum),
            field(seen.restore_per_second),
            retry_after,
            text(micros(seen.age)),
        ];
        self.call("observe", &args)
    }

    pub(crate) fn show(&mut self) -> BudgetReply {
        self.call("show", &[])
    }

    fn call(&mut self, op: &str, args: &[String]) -> BudgetReply {
        self.try_call(op, args).unwrap()
    }

    pub(crate) fn try_call(&mut self, op: &str, args: &[String]) -> redis::RedisResult<BudgetReply> {
        let mut call = self.script.prepare_invoke();
        call.key(BUDGET).key(BOOKINGS).key(MEMBERS).key(SPENT);
        if let Some(clock) = self.clock {
            call.key(clock / 1_000_000).key(clock % 1_000_000);
        }
        call.arg(op).arg(&self.run_id).arg(&self.member).arg(&self.epoch);
        call.arg(self.limits.maximum.micros()).arg(self.limits.restore_per_second.micros()).arg(0);
        call.arg(micros(self.booked_for));
        match self.configure {
            Some(limits) => call.arg(limits.maximum.micros()).arg(limits.restore_per_second.micros()),
            None => call.arg("").arg(""),
        };
        let (number, points) = self.spent.unwrap_or_default();
        call.arg(number).arg(points.micros()).arg(args);
        let reply: Vec<Value> = call.invoke(&mut self.connection)?;
        Ok(BudgetReply::read(&reply))
    }

    pub(crate) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

impl BudgetReply {
    fn read(values: &[Value]) -> Self {
        let Value::BulkString(epoch) = &values[0] else { panic!("{values:?}") };
        let numbers: Vec<i64> = values[1..]
            .iter()
            .map(|value| if let Value::Int(number) = value { *number } else { panic!("{value:?}") })
            .collect();
        let points = |number: i64| Points::from_micros(u64::try_from(number).unwrap()).unwrap();
        let wait = |number: i64| u64::try_from(number).ok().map(Duration::from_micros);
        let outcome = |outcome: &[i64]| match outcome[0] {
            0 => SpendOutcome::Refused(wait(outcome[1]), points(outcome[2])),
            1 => SpendOutcome::Allowed(wait(outcome[1]).unwrap(), points(outcome[2])),
            2 => SpendOutcome::AboveMaximum,
            other => panic!("{other}"),
        };
        Self {
            epoch: String::from_utf8(epoch.clone()).unwrap(),
            now: Timestamp::from_micros(u64::try_from(numbers[0]).unwrap()),
            members: numbers[1],
            limits: BudgetLimits { maximum: points(numbers[2]), restore_per_second: points(numbers[3]) },
            observed: ObservedLimits { maximum: numbers[4] & 1 != 0, restore: numbers[4] & 2 != 0 },
            available: points(numbers[5]),
            booked: (numbers[6] >= 0).then(|| points(numbers[6])),
            booked_for: wait(numbers[7]).unwrap(),
            blocked_for: wait(numbers[8]).unwrap(),
            outcomes: numbers[9..].chunks(3).map(outcome).collect(),
        }
    }
}

fn text(number: u64) -> String {
    number.to_string()
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap()
}
