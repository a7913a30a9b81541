//! Compares the script with its model: the same requests at the same times get the same replies.

use std::time::Duration;

use guildhall_core::budget::{
    Budget, BudgetDecision, BudgetError, BudgetLimits, BudgetMember, Observation, Points, SpendRequest,
};
use guildhall_core::time::Timestamp;
use guildhall_testkit::redis::RedisServer;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::script::{BudgetReply, ScriptCaller, SpendOutcome};

/// A time in 2026, as a server would report it.
const START: u64 = 1_780_000_000_123_456;

/// The longest wait that the script reports.
const MAX_WAIT: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

/// An action on a budget.
#[derive(Clone, Debug)]
enum Step {
    Acquire(Vec<SpendRequest>),
    Observe(Observation),
    Configure(BudgetLimits),
    Show,
    /// A process spent this amount while it could not reach Redis.
    Charge(Points),
    /// A process that knows the budget from an earlier epoch has bookings for this long.
    Inherit(Duration),
}

/// The model, with a value that only the script has to store: the initial points of a new budget, until a process or
/// the upstream corrects them.
#[derive(Clone)]
struct Model {
    budget: Budget,
    initial_points: Points,
}

impl Model {
    fn new(limits: BudgetLimits, now: Timestamp) -> Self {
        Self { budget: Budget::new(limits, now).unwrap(), initial_points: limits.maximum }
    }

    /// Applies every step except an acquire.
    fn step(&mut self, step: &Step, now: Timestamp) {
        match step {
            Step::Acquire(_) | Step::Show => {}
            Step::Configure(limits) => self.budget.configure(*limits, now).unwrap(),
            Step::Charge(points) => self.budget.charge(*points, now),
            Step::Inherit(booked_for) => {
                self.budget.inherit(std::mem::take(&mut self.initial_points), *booked_for, now);
            }
            Step::Observe(seen) => {
                self.budget.observe(seen, now).unwrap();
                if seen.available.is_some() || seen.retry_after.is_some() {
                    self.initial_points = Points::ZERO;
                }
            }
        }
    }

    fn acquire(&mut self, request: SpendRequest, now: Timestamp) -> SpendOutcome {
        match self.budget.acquire(request.cost, request.max_wait, now) {
            Ok(BudgetDecision::Allowed { delay, remaining }) => SpendOutcome::Allowed(delay, remaining),
            Ok(BudgetDecision::Refused { retry_after, remaining }) => {
                SpendOutcome::Refused(retry_after.map(|wait| wait.min(MAX_WAIT)), remaining)
            }
            Err(BudgetError::CostAboveMaximum { .. }) => SpendOutcome::AboveMaximum,
            Err(other) => panic!("{other}"),
        }
    }
}

/// Calls the script with the arguments that the step needs.
fn run_step(caller: &mut ScriptCaller, step: &Step) -> BudgetReply {
    caller.configure = None;
    caller.booked_for = Duration::ZERO;
    let epoch = caller.epoch.clone();
    match step {
        Step::Acquire(request) => caller.acquire(request),
        Step::Observe(seen) => caller.observe(seen),
        Step::Show => caller.show(),
        Step::Configure(limits) => {
            caller.configure = Some(*limits);
            caller.acquire(&[])
        }
        Step::Charge(points) => {
            caller.spent = Some((caller.spent.map_or(1, |(number, _)| number + 1), *points));
            caller.acquire(&[])
        }
        Step::Inherit(booked_for) => {
            caller.epoch = format!("not {epoch}");
            caller.booked_for = *booked_for;
            let reply = caller.acquire(&[]);
            caller.epoch = epoch;
            reply
        }
    }
}

/// Asserts that the budget has the state of the model.
fn assert_same_state(reply: &BudgetReply, budget: &Budget) -> Result<(), TestCaseError> {
    let now = reply.now;
    prop_assert_eq!(reply.limits, budget.limits());
    prop_assert_eq!(reply.observed, budget.observed());
    prop_assert_eq!(reply.available, budget.available(now));
    prop_assert_eq!(reply.booked_for, budget.booked_for(now));
    prop_assert_eq!(reply.blocked_for, budget.blocked_for(now));
    if let Some(booked) = reply.booked {
        prop_assert_eq!(booked, budget.booked(now));
    }
    Ok(())
}

/// Runs the steps on both, and asserts that they do not differ.
fn assert_equivalent(
    caller: &mut ScriptCaller,
    limits: BudgetLimits,
    steps: &[(u64, Step)],
) -> Result<(), TestCaseError> {
    redis::cmd("FLUSHALL").exec(caller.connection()).unwrap();
    (caller.limits, caller.spent) = (limits, None);
    caller.epoch.clear();
    let first = caller.show();
    caller.epoch.clone_from(&first.epoch);
    let mut model = Model::new(limits, first.now);
    assert_same_state(&first, &model.budget)?;
    for (delay, step) in steps {
        if let Some(clock) = &mut caller.clock {
            *clock += delay;
        }
        let reply = run_step(caller, step);
        prop_assert!(reply.epoch == first.epoch);
        model.step(step, reply.now);
        if let Step::Acquire(requests) = step {
            let expected: Vec<_> = requests.iter().map(|request| model.acquire(*request, reply.now)).collect();
            prop_assert_eq!(&reply.outcomes, &expected);
        }
        assert_same_state(&reply, &model.budget)?;
    }
    Ok(())
}

fn micros(max: u64) -> impl Strategy<Value = Points> {
    prop_oneof![1 => Just(0), 3 => 0..=max, 2 => (0..=max / 1_000_000).prop_map(|points| points * 1_000_000), 1 => 0..=999u64]
        .prop_map(|micros| Points::from_micros(micros).unwrap())
}

fn duration(max: u64) -> impl Strategy<Value = Duration> {
    prop_oneof![1 => Just(0), 3 => 0..=max, 1 => 0..=999u64].prop_map(Duration::from_micros)
}

fn limits(max: u64) -> impl Strategy<Value = BudgetLimits> {
    (1..=max, micros(max)).prop_map(|(maximum, restore_per_second)| {
        let maximum = Points::from_micros(maximum).unwrap();
        BudgetLimits { maximum, restore_per_second }
    })
}

fn spend_requests(max: u64) -> impl Strategy<Value = Vec<SpendRequest>> {
    let request = (micros(max), prop_oneof![duration(5_000_000), duration(3_600_000_000_000)])
        .prop_map(|(cost, max_wait)| SpendRequest { cost, max_wait });
    proptest::collection::vec(request, 1..6)
}

fn observation(max: u64) -> impl Strategy<Value = Observation> {
    use proptest::option::weighted;
    let maximum = weighted(0.2, limits(max).prop_map(|limits| limits.maximum));
    let age = duration(60_000_000);
    (weighted(0.7, micros(max)), maximum, weighted(0.2, micros(max)), weighted(0.2, duration(90_000_000)), age)
        .prop_map(|(available, maximum, restore_per_second, retry_after, age)| Observation {
            available,
            maximum,
            restore_per_second,
            retry_after,
            age,
        })
}

/// Steps with amounts of up to `max` millionths, each with its delay after the step before.
fn steps(max: u64) -> impl Strategy<Value = Vec<(u64, Step)>> {
    let step = prop_oneof![
        12 => spend_requests(max).prop_map(Step::Acquire),
        4 => observation(max).prop_map(Step::Observe),
        1 => limits(max).prop_map(Step::Configure),
        1 => Just(Step::Show),
        1 => micros(max).prop_map(Step::Charge),
        1 => duration(5_000_000).prop_map(Step::Inherit),
    ];
    let delay = prop_oneof![0..1_000u64, 0..3_000_000u64, 0..90_000_000u64, 0..1_000_000_000_000u64];
    proptest::collection::vec((delay, step), 1..60)
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() })
}

#[test]
fn script_equals_model_to_the_millionth_and_microsecond() {
    let server = RedisServer::start();
    let scale = prop_oneof![Just(20_000_000), Just(1_000_000_000), Just(1_000_000_000_000u64)];
    let sequences = scale.prop_flat_map(|max| (limits(max), steps(max)));
    runner(400)
        .run(&sequences, |(limits, steps)| {
            assert_equivalent(&mut ScriptCaller::with_clock(&server, limits, START), limits, &steps)
        })
        .unwrap();
}

#[test]
fn script_equals_model_on_the_server_clock() {
    let server = RedisServer::start();
    // The refill is so fast that points come back between two requests.
    let sequences = (limits(1_000_000_000), steps(100_000_000)).prop_map(|(mut limits, steps)| {
        limits.restore_per_second = limits.restore_per_second.plus(Points::whole(1_000));
        (limits, steps)
    });
    runner(100)
        .run(&sequences, |(limits, steps)| assert_equivalent(&mut ScriptCaller::new(&server, limits), limits, &steps))
        .unwrap();
}

#[test]
fn waits_are_exact_to_the_microsecond_at_any_scale() {
    let server = RedisServer::start();
    let max = BudgetMember::MAX;
    // The refill of this many microseconds, and one millionth more or less.
    let sequences = (1..=1_000_000_000u64, 1..1_000_000u64, -1..=1i64);
    runner(300)
        .run(&sequences, |(per_second, micros, more)| {
            let limits = BudgetLimits { maximum: max, restore_per_second: Points::whole(per_second) };
            let cost = Points::from_micros((per_second * micros).saturating_add_signed(more)).unwrap();
            let step = |cost| (0, Step::Acquire(vec![SpendRequest { cost, max_wait: Duration::ZERO }]));
            assert_equivalent(&mut ScriptCaller::with_clock(&server, limits, START), limits, &[step(max), step(cost)])
        })
        .unwrap();
}

/// Asserts that `less` is at most `more`, and that the difference is only due to rounding.
fn assert_just_below(less: u128, more: u128) -> Result<(), TestCaseError> {
    prop_assert!(less <= more, "{} is more than {}", less, more);
    // Each of the steps, and each of the bookings that a step recounts, rounds by 2^-51 at most.
    prop_assert!(more - less <= (more >> 35) + 60, "{} is far less than {}", less, more);
    Ok(())
}

#[test]
fn inexact_sums_are_rounded_against_the_caller() {
    let server = RedisServer::start();
    let max = BudgetMember::MAX.micros();
    let half = || (max / 2..=max).prop_map(|micros| Points::from_micros(micros).unwrap());
    let greedy = (half(), 1..=max).prop_map(|(maximum, restore)| BudgetLimits {
        maximum,
        restore_per_second: Points::from_micros(restore).unwrap(),
    });
    let charges = proptest::collection::vec(half(), 10..40);
    let sequences = (greedy, charges, proptest::collection::vec((0..3_000_000u64, half()), 1..20), any::<bool>());
    runner(200)
        .run(&sequences, |(limits, charges, requests, observed)| {
            let mut caller = ScriptCaller::with_clock(&server, limits, START);
            redis::cmd("FLUSHALL").exec(caller.connection()).unwrap();
            let mut model = Model::new(limits, caller.show().now);
            for points in charges {
                let step = Step::Charge(points);
                let now = run_step(&mut caller, &step).now;
                model.step(&step, now);
            }
            if observed {
                let step = Step::Observe(Observation {
                    available: Some(Points::ZERO),
                    age: Budget::MEMORY,
                    ..Observation::default()
                });
                let now = run_step(&mut caller, &step).now;
                model.step(&step, now);
            }
            for (later, cost) in requests {
                caller.clock = caller.clock.map(|clock| clock + later);
                let reply = caller.acquire(&[SpendRequest { cost, max_wait: Duration::from_secs(3_600) }]);
                let mut after = model.clone();
                let expected = after.acquire(SpendRequest { cost, max_wait: Duration::from_secs(3_600) }, reply.now);
                match (reply.outcomes[0], expected) {
                    (SpendOutcome::Allowed(later, remaining), SpendOutcome::Allowed(sooner, more))
                    | (SpendOutcome::Refused(Some(later), remaining), SpendOutcome::Refused(Some(sooner), more)) => {
                        assert_just_below(sooner.as_micros(), later.as_micros())?;
                        assert_just_below(remaining.micros().into(), more.micros().into())?;
                        model = after;
                    }
                    (SpendOutcome::Refused(Some(later), _), SpendOutcome::Allowed(sooner, _)) => {
                        assert_just_below(sooner.as_micros(), later.as_micros())?;
                    }
                    (SpendOutcome::AboveMaximum, SpendOutcome::AboveMaximum) => {}
                    (script, model) => prop_assert!(false, "{:?} is more than {:?}", script, model),
                }
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn busy_budget_keeps_the_bookings_of_the_model_and_their_sum() {
    let server = RedisServer::start();
    let limits = BudgetLimits { maximum: Points::whole(100_000), restore_per_second: Points::whole(1) };
    let hot = vec![SpendRequest { cost: Points::whole(1), max_wait: Duration::ZERO }; 128];
    let mut steps: Vec<_> = (0..25).map(|_| (40_000, Step::Acquire(hot.clone()))).collect();
    let report = |points, age| {
        Step::Observe(Observation {
            available: Some(Points::whole(points)),
            age: Duration::from_millis(age),
            ..Observation::default()
        })
    };
    // Ages before, among and after those of the bookings that are stored individually.
    steps.extend([(0, Step::Show), (0, report(50_000, 2_000)), (0, report(40_000, 200)), (0, report(9_000, 0))]);
    // Old bookings are dropped.
    steps.extend([(200_000_000, Step::Acquire(hot[..1].to_vec())), (0, report(70, 60_000)), (0, Step::Show)]);
    let mut caller = ScriptCaller::with_clock(&server, limits, START);
    for length in 0..steps.len() {
        assert_equivalent(&mut caller, limits, &steps[..length]).unwrap();
        let count: usize = redis::cmd("LLEN").arg(super::script::BOOKINGS).query(caller.connection()).unwrap();
        assert!(count < 1_024, "{count} bookings without the oldest");
        caller.clock = Some(START);
    }
}
