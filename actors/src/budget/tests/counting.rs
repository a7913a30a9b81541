//! A metrics recorder that stores the last value of each series.

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
