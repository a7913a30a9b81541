//! Compares the script with its model: the same requests at the same times get the same replies.

use std::time::Duration;

use guildhall_core::budget::{
    Budget, BudgetDecision, BudgetError, BudgetLimits, BudgetMember, Observation, Points, SpendRequest,
};
use guildhall_core::time::Timestamp;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use crate::script::{Answer, Caller, Outcome};
use crate::support::RedisServer;

/// A time in 2026, as a server would report it.
const START: u64 = 1_780_000_000_123_456;

/// The longest wait that the script reports.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

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
    gift: Points,
}

impl Model {
    fn new(limits: BudgetLimits, now: Timestamp) -> Self {
        Self { budget: Budget::new(limits, now).unwrap(), gift: limits.maximum }
    }

    /// Applies every step except an acquire.
    fn step(&mut self, step: &Step, now: Timestamp) {
        match step {
            Step::Acquire(_) | Step::Show => {}
            Step::Configure(limits) => self.budget.configure(*limits, now).unwrap(),
            Step::Charge(points) => self.budget.charge(*points, now),
            Step::Inherit(booked_for) => self.budget.inherit(std::mem::take(&mut self.gift), *booked_for, now),
            Step::Observe(seen) => {
                self.budget.observe(seen, now).unwrap();
                if seen.available.is_some() || seen.retry_after.is_some() {
                    self.gift = Points::ZERO;
                }
            }
        }
    }

    fn acquire(&mut self, ask: SpendRequest, now: Timestamp) -> Outcome {
        match self.budget.acquire(ask.cost, ask.max_wait, now) {
            Ok(BudgetDecision::Allowed { delay, remaining }) => Outcome::Allowed(delay, remaining),
            Ok(BudgetDecision::Refused { retry_after, remaining }) => {
                Outcome::Refused(retry_after.map(|wait| wait.min(LONGEST)), remaining)
            }
            Err(BudgetError::CostAboveMaximum { .. }) => Outcome::AboveMaximum,
            Err(other) => panic!("{other}"),
        }
    }
}

/// Calls the script with the arguments that the step needs.
fn ask(caller: &mut Caller, step: &Step) -> Answer {
    caller.configure = None;
    caller.booked_for = Duration::ZERO;
    let known = caller.epoch.clone();
    match step {
        Step::Acquire(asks) => caller.acquire(asks),
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
            caller.epoch = format!("not {known}");
            caller.booked_for = *booked_for;
            let answer = caller.acquire(&[]);
            caller.epoch = known;
            answer
        }
    }
}

/// Asserts that the budget has the state of the model.
fn same_standing(answer: &Answer, budget: &Budget) -> Result<(), TestCaseError> {
    let now = answer.now;
    prop_assert_eq!(answer.limits, budget.limits());
    prop_assert_eq!(answer.observed, budget.observed());
    prop_assert_eq!(answer.available, budget.available(now));
    prop_assert_eq!(answer.booked_for, budget.booked_for(now));
    prop_assert_eq!(answer.blocked_for, budget.blocked_for(now));
    if let Some(booked) = answer.booked {
        prop_assert_eq!(booked, budget.booked(now));
    }
    Ok(())
}

/// Runs the steps on both, and asserts that they do not differ.
fn both(caller: &mut Caller, limits: BudgetLimits, steps: &[(u64, Step)]) -> Result<(), TestCaseError> {
    redis::cmd("FLUSHALL").exec(caller.connection()).unwrap();
    (caller.limits, caller.spent) = (limits, None);
    caller.epoch.clear();
    let first = caller.show();
    caller.epoch.clone_from(&first.epoch);
    let mut model = Model::new(limits, first.now);
    same_standing(&first, &model.budget)?;
    for (later, step) in steps {
        if let Some(clock) = &mut caller.clock {
            *clock += later;
        }
        let answer = ask(caller, step);
        prop_assert!(answer.epoch == first.epoch);
        model.step(step, answer.now);
        if let Step::Acquire(asks) = step {
            let expected: Vec<_> = asks.iter().map(|ask| model.acquire(*ask, answer.now)).collect();
            prop_assert_eq!(&answer.outcomes, &expected);
        }
        same_standing(&answer, &model.budget)?;
    }
    Ok(())
}

fn micros(most: u64) -> impl Strategy<Value = Points> {
    prop_oneof![1 => Just(0), 3 => 0..=most, 2 => (0..=most / 1_000_000).prop_map(|points| points * 1_000_000), 1 => 0..=999u64]
        .prop_map(|micros| Points::from_micros(micros).unwrap())
}

fn duration(most: u64) -> impl Strategy<Value = Duration> {
    prop_oneof![1 => Just(0), 3 => 0..=most, 1 => 0..=999u64].prop_map(Duration::from_micros)
}

fn limits(most: u64) -> impl Strategy<Value = BudgetLimits> {
    (1..=most, micros(most)).prop_map(|(maximum, restore_per_second)| {
        let maximum = Points::from_micros(maximum).unwrap();
        BudgetLimits { maximum, restore_per_second }
    })
}

fn asks(most: u64) -> impl Strategy<Value = Vec<SpendRequest>> {
    let ask = (micros(most), prop_oneof![duration(5_000_000), duration(3_600_000_000_000)])
        .prop_map(|(cost, max_wait)| SpendRequest { cost, max_wait });
    proptest::collection::vec(ask, 1..6)
}

fn observation(most: u64) -> impl Strategy<Value = Observation> {
    use proptest::option::weighted;
    let maximum = weighted(0.2, limits(most).prop_map(|limits| limits.maximum));
    let age = duration(60_000_000);
    (weighted(0.7, micros(most)), maximum, weighted(0.2, micros(most)), weighted(0.2, duration(90_000_000)), age)
        .prop_map(|(available, maximum, restore_per_second, retry_after, age)| Observation {
            available,
            maximum,
            restore_per_second,
            retry_after,
            age,
        })
}

/// Steps with amounts of up to `max` millionths, each with its delay after the step before.
fn steps(most: u64) -> impl Strategy<Value = Vec<(u64, Step)>> {
    let step = prop_oneof![
        12 => asks(most).prop_map(Step::Acquire),
        4 => observation(most).prop_map(Step::Observe),
        1 => limits(most).prop_map(Step::Configure),
        1 => Just(Step::Show),
        1 => micros(most).prop_map(Step::Charge),
        1 => duration(5_000_000).prop_map(Step::Inherit),
    ];
    let later = prop_oneof![0..1_000u64, 0..3_000_000u64, 0..90_000_000u64, 0..1_000_000_000_000u64];
    proptest::collection::vec((later, step), 1..60)
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() })
}

#[test]
fn the_script_is_its_model_to_the_last_millionth_and_microsecond() {
    let server = RedisServer::start();
    let scale = prop_oneof![Just(20_000_000), Just(1_000_000_000), Just(1_000_000_000_000u64)];
    let sequences = scale.prop_flat_map(|most| (limits(most), steps(most)));
    runner(400)
        .run(&sequences, |(limits, steps)| both(&mut Caller::with_clock(&server, limits, START), limits, &steps))
        .unwrap();
}

#[test]
fn the_script_is_its_model_by_the_servers_own_clock() {
    let server = RedisServer::start();
    // The refill is so fast that points come back between two requests.
    let sequences = (limits(1_000_000_000), steps(100_000_000)).prop_map(|(mut limits, steps)| {
        limits.restore_per_second = limits.restore_per_second.plus(Points::whole(1_000));
        (limits, steps)
    });
    runner(100).run(&sequences, |(limits, steps)| both(&mut Caller::new(&server, limits), limits, &steps)).unwrap();
}

#[test]
fn waits_that_end_on_a_microsecond_end_there_at_any_scale() {
    let server = RedisServer::start();
    let most = BudgetMember::MOST;
    // The refill of this many microseconds, and one millionth more or less.
    let sequences = (1..=1_000_000_000u64, 1..1_000_000u64, -1..=1i64);
    runner(300)
        .run(&sequences, |(per_second, micros, more)| {
            let limits = BudgetLimits { maximum: most, restore_per_second: Points::whole(per_second) };
            let cost = Points::from_micros((per_second * micros).saturating_add_signed(more)).unwrap();
            let step = |cost| (0, Step::Acquire(vec![SpendRequest { cost, max_wait: Duration::ZERO }]));
            both(&mut Caller::with_clock(&server, limits, START), limits, &[step(most), step(cost)])
        })
        .unwrap();
}

/// Asserts that `less` is at most `more`, and that the difference is only due to rounding.
fn close_below(less: u128, more: u128) -> Result<(), TestCaseError> {
    prop_assert!(less <= more, "{} is more than {}", less, more);
    // Each of the steps, and each of the bookings that a step recounts, rounds by 2^-51 at most.
    prop_assert!(more - less <= (more >> 35) + 60, "{} is far less than {}", less, more);
    Ok(())
}

#[test]
fn amounts_whose_sums_are_no_longer_exact_are_rounded_against_the_asker_alone() {
    let server = RedisServer::start();
    let most = BudgetMember::MOST.micros();
    let half = || (most / 2..=most).prop_map(|micros| Points::from_micros(micros).unwrap());
    let greedy = (half(), 1..=most).prop_map(|(maximum, restore)| BudgetLimits {
        maximum,
        restore_per_second: Points::from_micros(restore).unwrap(),
    });
    let charges = proptest::collection::vec(half(), 10..40);
    let sequences = (greedy, charges, proptest::collection::vec((0..3_000_000u64, half()), 1..20), any::<bool>());
    runner(200)
        .run(&sequences, |(limits, charges, asks, observed)| {
            let mut caller = Caller::with_clock(&server, limits, START);
            redis::cmd("FLUSHALL").exec(caller.connection()).unwrap();
            let mut model = Model::new(limits, caller.show().now);
            for points in charges {
                let step = Step::Charge(points);
                let now = ask(&mut caller, &step).now;
                model.step(&step, now);
            }
            if observed {
                let step = Step::Observe(Observation {
                    available: Some(Points::ZERO),
                    age: Budget::MEMORY,
                    ..Observation::default()
                });
                let now = ask(&mut caller, &step).now;
                model.step(&step, now);
            }
            for (later, cost) in asks {
                caller.clock = caller.clock.map(|clock| clock + later);
                let answer = caller.acquire(&[SpendRequest { cost, max_wait: Duration::from_secs(3_600) }]);
                let mut after = model.clone();
                let expected = after.acquire(SpendRequest { cost, max_wait: Duration::from_secs(3_600) }, answer.now);
                match (answer.outcomes[0], expected) {
                    (Outcome::Allowed(later, remaining), Outcome::Allowed(sooner, more))
                    | (Outcome::Refused(Some(later), remaining), Outcome::Refused(Some(sooner), more)) => {
                        close_below(sooner.as_micros(), later.as_micros())?;
                        close_below(remaining.micros().into(), more.micros().into())?;
                        model = after;
                    }
                    (Outcome::Refused(Some(later), _), Outcome::Allowed(sooner, _)) => {
                        close_below(sooner.as_micros(), later.as_micros())?;
                    }
                    (Outcome::AboveMaximum, Outcome::AboveMaximum) => {}
                    (script, model) => prop_assert!(false, "{:?} is more than {:?}", script, model),
                }
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_hot_budget_remembers_as_many_bookings_as_the_model_and_forgets_none_of_their_sum() {
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
    let mut caller = Caller::with_clock(&server, limits, START);
    for length in 0..steps.len() {
        both(&mut caller, limits, &steps[..length]).unwrap();
        let kept: usize = redis::cmd("LLEN").arg(crate::script::BOOKINGS).query(caller.connection()).unwrap();
        assert!(kept < 1_024, "{kept} bookings without the oldest");
        caller.clock = Some(START);
    }
}
