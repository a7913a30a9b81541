//! The actor that keeps the named budgets. It answers at once: whoever may go later is told when, and has paid already.

use std::time::Duration;

use actix::{Actor, Context, Handler, Message, MessageResult};
use guildhall_core::budget::{
    Acquired, BudgetError, BudgetName, BudgetSnapshot, Budgets as Machine, Limits, Observation, Points,
};
use metrics::{counter, gauge};

use crate::clock::Clock;

/// Costs that were taken, by bucket.
pub const ACQUIRED: &str = "guildhall_token_bucket_acquired_total";
/// Of them, those that have to wait for their turn.
pub const WAITS: &str = "guildhall_token_bucket_waits_total";
/// Askers that were sent away.
pub const EXHAUSTED: &str = "guildhall_token_bucket_exhausted_total";
/// What is left.
pub const AVAILABLE: &str = "guildhall_token_bucket_available";

/// Keeps the named budgets.
#[derive(Debug)]
pub struct Budgets {
    machine: Machine,
    clock: Clock,
}

impl Budgets {
    /// No budgets yet. There may be `most`, and nobody may book a turn further away than `longest_wait`.
    #[must_use]
    pub const fn new(clock: Clock, most: usize, longest_wait: Duration) -> Self {
        Self { machine: Machine::new(most, longest_wait), clock }
    }

    fn show(&self, name: &BudgetName) {
        if let Some(available) = self.machine.available(name, self.clock.now()) {
            gauge!(AVAILABLE, "bucket" => name.to_string()).set(available.as_f64());
        }
    }
}

/// Make a budget, or give one other defaults.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), BudgetError>")]
pub struct Configure {
    /// Its name.
    pub name: BudgetName,
    /// What it holds, and how fast it comes back, until the upstream says better.
    pub limits: Limits,
}

/// Take a cost from a budget.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Acquired, BudgetError>")]
pub struct Acquire {
    /// Which one.
    pub name: BudgetName,
    /// How much.
    pub cost: Points,
    /// How long the asker would wait.
    pub max_wait: Duration,
}

/// Take over what an upstream said of itself.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), BudgetError>")]
pub struct ObserveUpstream {
    /// Whose budget.
    pub name: BudgetName,
    /// What it said.
    pub seen: Observation,
}

/// Show all budgets as they stand.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Vec<BudgetSnapshot>")]
pub struct Observe;

impl Actor for Budgets {
    type Context = Context<Self>;
}

impl Handler<Configure> for Budgets {
    type Result = Result<(), BudgetError>;

    fn handle(&mut self, Configure { name, limits }: Configure, _: &mut Context<Self>) -> Self::Result {
        self.machine.configure(&name, limits, self.clock.now())?;
        self.show(&name);
        Ok(())
    }
}

impl Handler<Acquire> for Budgets {
    type Result = Result<Acquired, BudgetError>;

    fn handle(&mut self, Acquire { name, cost, max_wait }: Acquire, _: &mut Context<Self>) -> Self::Result {
        let acquired = self.machine.acquire(&name, cost, max_wait, self.clock.now())?;
        match acquired {
            Acquired::Allowed { delay, .. } => {
                counter!(ACQUIRED, "bucket" => name.to_string()).increment(1);
                if !delay.is_zero() {
                    counter!(WAITS, "bucket" => name.to_string()).increment(1);
                    tracing::debug!(bucket = %name, %cost, ?delay, "a turn in a budget is booked");
                }
            }
            Acquired::Refused { retry_after, .. } => {
                counter!(EXHAUSTED, "bucket" => name.to_string()).increment(1);
                tracing::info!(bucket = %name, %cost, ?retry_after, "a budget is used up");
            }
        }
        self.show(&name);
        Ok(acquired)
    }
}

impl Handler<ObserveUpstream> for Budgets {
    type Result = Result<(), BudgetError>;

    fn handle(&mut self, ObserveUpstream { name, seen }: ObserveUpstream, _: &mut Context<Self>) -> Self::Result {
        self.machine.observe(&name, &seen, self.clock.now())?;
        tracing::debug!(bucket = %name, ?seen, "an upstream told its budget");
        self.show(&name);
        Ok(())
    }
}

impl Handler<Observe> for Budgets {
    type Result = MessageResult<Observe>;

    fn handle(&mut self, _: Observe, _: &mut Context<Self>) -> Self::Result {
        // What has come back meanwhile shows as well.
        let standing = self.machine.snapshot(self.clock.now());
        for budget in &standing {
            gauge!(AVAILABLE, "bucket" => budget.name.to_string()).set(budget.available.as_f64());
        }
        MessageResult(standing)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::future::Future;

    use actix::Addr;
    use tokio::task::LocalSet;

    use super::*;

    const LIMITS: Limits = Limits { maximum: Points::whole(10), restore_per_second: Points::whole(2) };

    /// Runs a test with one budget, under time that stands still.
    fn with_budget<F: Future<Output = ()>>(test: impl FnOnce(Addr<Budgets>, BudgetName) -> F) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let budgets = Budgets::new(Clock::start(), 1, Duration::from_secs(60)).start();
            let name = BudgetName::new("shop").unwrap();
            budgets.send(Configure { name: name.clone(), limits: LIMITS }).await.unwrap().unwrap();
            test(budgets, name).await;
        });
    }

    async fn acquire(budgets: &Addr<Budgets>, name: &BudgetName, cost: u64, wait: u64) -> Acquired {
        let ask = Acquire { name: name.clone(), cost: Points::whole(cost), max_wait: Duration::from_secs(wait) };
        budgets.send(ask).await.unwrap().unwrap()
    }

    #[test]
    fn whoever_waits_as_told_finds_what_was_booked_and_nobody_else_takes_it() {
        with_budget(|budgets, name| async move {
            assert!(matches!(acquire(&budgets, &name, 10, 0).await, Acquired::Allowed { delay: Duration::ZERO, .. }));
            let Acquired::Allowed { delay, .. } = acquire(&budgets, &name, 4, 5).await else { panic!("refused") };
            assert_eq!(delay, Duration::from_secs(2));
            assert!(matches!(acquire(&budgets, &name, 1, 2).await, Acquired::Refused { .. }));
            tokio::time::sleep(delay).await;
            let standing = budgets.send(Observe).await.unwrap();
            assert_eq!((standing[0].available, standing[0].booked), (Points::ZERO, Points::ZERO));
        });
    }

    #[test]
    fn an_upstreams_word_counts_and_a_budget_that_nobody_named_does_not_exist() {
        with_budget(|budgets, name| async move {
            let seen = Observation { available: Some(Points::whole(3)), ..Observation::default() };
            budgets.send(ObserveUpstream { name: name.clone(), seen }).await.unwrap().unwrap();
            assert!(matches!(acquire(&budgets, &name, 4, 0).await, Acquired::Refused { .. }));
            let other = BudgetName::new("other").unwrap();
            let unknown = budgets.send(ObserveUpstream { name: other.clone(), seen }).await.unwrap();
            assert_eq!(unknown, Err(BudgetError::Unknown("other".to_owned())));
            let more = budgets.send(Configure { name: other, limits: LIMITS }).await.unwrap();
            assert_eq!(more, Err(BudgetError::TooMany(1)));
        });
    }

    #[test]
    fn every_taking_waiting_and_refusal_is_counted_under_the_budgets_name() {
        let recorder = counting::Recorder::default();
        metrics::with_local_recorder(&recorder, || {
            with_budget(|budgets, name| async move {
                let _ = acquire(&budgets, &name, 7, 0).await;
                let _ = acquire(&budgets, &name, 5, 5).await;
                let _ = acquire(&budgets, &name, 5, 0).await;
                tokio::time::sleep(Duration::from_secs(2)).await;
                let _ = budgets.send(Observe).await.unwrap();
            });
        });
        let expected = [(ACQUIRED, 2.0), (WAITS, 1.0), (EXHAUSTED, 1.0), (AVAILABLE, 2.0)];
        let expected: BTreeMap<_, _> = expected.map(|(name, value)| (format!("{name} shop"), value)).into();
        assert_eq!(recorder.values(), expected);
    }

    /// A recorder that keeps the last value of everything.
    mod counting {
        use std::collections::BTreeMap;
        use std::sync::{Arc, Mutex};

        use metrics::{Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, SharedString, Unit};

        type Values = Arc<Mutex<BTreeMap<String, f64>>>;

        #[derive(Debug, Default)]
        pub(super) struct Recorder(Values);

        struct Cell(Values, String);

        impl Recorder {
            pub(super) fn values(&self) -> BTreeMap<String, f64> {
                self.0.lock().unwrap().clone()
            }

            fn cell(&self, key: &Key) -> Arc<Cell> {
                let labels: Vec<&str> = key.labels().map(metrics::Label::value).collect();
                Arc::new(Cell(Arc::clone(&self.0), format!("{} {}", key.name(), labels.join(","))))
            }
        }

        impl Cell {
            fn change(&self, change: impl FnOnce(f64) -> f64) {
                let mut values = self.0.lock().unwrap();
                let value = values.entry(self.1.clone()).or_default();
                *value = change(*value);
            }
        }

        impl CounterFn for Cell {
            fn increment(&self, by: u64) {
                self.change(|value| value + f64::from(u32::try_from(by).unwrap()));
            }

            fn absolute(&self, to: u64) {
                self.change(|_| f64::from(u32::try_from(to).unwrap()));
            }
        }

        impl GaugeFn for Cell {
            fn increment(&self, by: f64) {
                self.change(|value| value + by);
            }

            fn decrement(&self, by: f64) {
                self.change(|value| value - by);
            }

            fn set(&self, to: f64) {
                self.change(|_| to);
            }
        }

        impl metrics::Recorder for Recorder {
            fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
            fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
            fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

            fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
                Counter::from_arc(self.cell(key))
            }

            fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
                Gauge::from_arc(self.cell(key))
            }

            fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
                Histogram::noop()
            }
        }
    }
}
