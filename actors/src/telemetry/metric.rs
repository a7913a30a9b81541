//! Definition of a metric: name, type, labels and help text, in one place for the recorder, the documentation and the
//! tests.

use metrics::{Key, Level, Metadata, Unit, with_recorder};

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// Only increases.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Distribution of observations.
    Histogram,
}

impl MetricType {
    /// Name of the type in Prometheus.
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
    /// Name of the metric.
    pub name: &'static str,
    /// Type of the metric.
    pub kind: MetricType,
    /// Unit, if any.
    pub unit: Option<Unit>,
    /// Labels that its series may have. The values of each are bounded.
    pub labels: &'static [&'static str],
    /// Help text.
    pub help: &'static str,
}

impl Metric {
    /// Defines a counter.
    #[must_use]
    pub const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: MetricType::Counter, unit: None, labels, help }
    }

    /// Defines a gauge.
    #[must_use]
    pub const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: MetricType::Gauge, unit: None, labels, help }
    }

    /// Defines a histogram.
    #[must_use]
    pub const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: MetricType::Histogram, unit: None, labels, help }
    }

    /// Sets the unit.
    #[must_use]
    pub const fn in_unit(self, unit: Unit) -> Self {
        Self { unit: Some(unit), ..self }
    }

    /// Describes the metric to the recorder. A counter without labels starts at 0: otherwise its first increment could
    /// not be seen as an increase.
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
