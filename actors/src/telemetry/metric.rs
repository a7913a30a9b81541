//! What a metric is: its name, what it counts and which labels it has, once, for the recorder, the documentation and the
//! tests alike.

use metrics::{Key, Level, Metadata, Unit, with_recorder};

/// How a metric moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// It tells how observations are spread.
    Histogram,
}

impl MetricType {
    /// As Prometheus calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// What it is called.
    pub name: &'static str,
    /// How it moves.
    pub kind: MetricType,
    /// In what, if it is no bare number.
    pub unit: Option<Unit>,
    /// The labels that its series may have. The values of each are bounded.
    pub labels: &'static [&'static str],
    /// What it tells.
    pub help: &'static str,
}

impl Metric {
    /// One that only grows.
    #[must_use]
    pub const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: MetricType::Counter, unit: None, labels, help }
    }

    /// One that goes up and down.
    #[must_use]
    pub const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: MetricType::Gauge, unit: None, labels, help }
    }

    /// How observations are spread.
    #[must_use]
    pub const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: MetricType::Histogram, unit: None, labels, help }
    }

    /// The same, in this unit.
    #[must_use]
    pub const fn in_unit(self, unit: Unit) -> Self {
        Self { unit: Some(unit), ..self }
    }

    /// Describes it to the recorder. A counter that has no labels is there from now on, as 0: nobody could tell the first
    /// increase of one that appears with it.
    pub fn describe(&self) {
        let (name, help) = (self.name.into(), self.help.into());
        with_recorder(|recorder| match self.kind {
            MetricType::Counter => {
                recorder.describe_counter(name, self.unit, help);
                if self.labels.is_empty() {
                    let metadata = Metadata::new(module_path!(), Level::INFO, Some(module_path!()));
                    recorder.register_counter(&Key::from_static_name(self.name), &metadata).increment(0);
                }
            }
            MetricType::Gauge => recorder.describe_gauge(name, self.unit, help),
            MetricType::Histogram => recorder.describe_histogram(name, self.unit, help),
        });
    }
}
