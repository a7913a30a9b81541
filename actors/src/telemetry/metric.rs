//! Declaration of metrics: name, type, labels and help text, in one place for the recorder, the documentation and the
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

/// Section of `docs/observability.md` that lists a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// The process.
    Process,
    /// The gateway.
    Gateway,
    /// Events and handlers.
    Events,
    /// The message broker.
    Broker,
    /// Operations.
    Operations,
    /// The REST gate.
    Gate,
    /// Shared state.
    Shared,
    /// The store.
    Store,
    /// The API.
    Api,
    /// The REST proxy.
    Egress,
}

impl Section {
    /// Title of the section.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Process => "The process",
            Self::Gateway => "The gateway",
            Self::Events => "Events and handlers",
            Self::Broker => "The message broker",
            Self::Operations => "Operations",
            Self::Gate => "The REST gate",
            Self::Shared => "Shared state",
            Self::Store => "The store",
            Self::Api => "The API",
            Self::Egress => "The REST proxy",
        }
    }
}

/// A metric, as [`metrics!`](crate::metrics!) declares it.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Name of the metric.
    pub name: &'static str,
    /// Type of the metric.
    pub kind: MetricType,
    /// Unit, if any.
    pub unit: Option<Unit>,
    /// The sets of labels that its series have. None if it has one series, without labels.
    pub label_sets: &'static [&'static [&'static str]],
    /// Help text.
    pub help: &'static str,
    /// Section of the documentation.
    pub section: Section,
}

impl Metric {
    /// All labels of its series, each once.
    #[must_use]
    pub fn labels(&self) -> Vec<&'static str> {
        let mut labels = Vec::new();
        for label in self.label_sets.iter().copied().flatten() {
            if !labels.contains(label) {
                labels.push(*label);
            }
        }
        labels
    }

    /// Whether a series of this type with these labels, in this order, is declared.
    #[must_use]
    pub const fn accepts(&self, kind: MetricType, labels: &[&str]) -> bool {
        let mut found = labels.is_empty() && self.label_sets.is_empty();
        let mut set = 0;
        while set < self.label_sets.len() {
            found |= is_same_list(self.label_sets[set], labels);
            set += 1;
        }
        found && kind as u8 == self.kind as u8
    }

    /// Describes the metric to the recorder. A counter without labels starts at 0: otherwise its first increment could
    /// not be seen as an increase.
    pub fn describe(&self) {
        let (name, help) = (self.name.into(), self.help.into());
        with_recorder(|recorder| match self.kind {
            MetricType::Counter => {
                recorder.describe_counter(name, self.unit, help);
                if self.label_sets.is_empty() {
                    let metadata = Metadata::new(module_path!(), Level::INFO, Some(module_path!()));
                    recorder.register_counter(&Key::from_static_name(self.name), &metadata).increment(0);
                }
            }
            MetricType::Gauge => recorder.describe_gauge(name, self.unit, help),
            MetricType::Histogram => recorder.describe_histogram(name, self.unit, help),
        });
    }
}

const fn is_same_list(one: &[&str], other: &[&str]) -> bool {
    let mut is_same = one.len() == other.len();
    let mut index = 0;
    while is_same && index < one.len() {
        is_same = is_same_text(one[index].as_bytes(), other[index].as_bytes());
        index += 1;
    }
    is_same
}

const fn is_same_text(one: &[u8], other: &[u8]) -> bool {
    match (one, other) {
        ([], []) => true,
        ([first, one @ ..], [second, other @ ..]) => *first == *second && is_same_text(one, other),
        _ => false,
    }
}

/// Declares the metrics of a module, by section of the documentation. Each is a constant; its doc comment is the help
/// text.
///
/// ```
/// use guildhall_actors::telemetry::{counter, metrics};
///
/// metrics! {
///     Gate {
///         /// Calls that were refused.
///         REFUSED = counter "doc_refused_total" [reason];
///         /// Duration of calls.
///         pub SECONDS = histogram "doc_call_seconds" in Seconds;
///         /// Calls waiting for a permit; with `bucket`, calls waiting for that budget.
///         pub WAITING = gauge "doc_waiting" [] [bucket];
///     }
/// }
///
/// counter!(REFUSED, "reason" => "full").increment(1);
/// assert_eq!(METRICS.len(), 3);
/// ```
///
/// A metric whose series differ in their labels has a list of labels for each of them. `METRICS` has all metrics of the
/// module. The compiler warns of a metric that is neither public nor recorded.
#[macro_export]
macro_rules! metrics {
    ($($section:ident {
        $(
            $(#[doc = $help:literal])+
            $vis:vis $name:ident = $kind:ident $series:literal $([$($label:ident),*])* $(in $unit:ident)?;
        )+
    })+) => {
        $($(
            $(#[doc = $help])+
            $vis const $name: $crate::telemetry::Metric =
                $crate::metrics!(@one $section ($($help)+) $kind $series [$([$($label)*])*] $($unit)?);
        )+)+

        /// All metrics of this module. Does not use their constants: one that nothing records must stay unused.
        pub(crate) const METRICS: &[$crate::telemetry::Metric] = &[$($(
            $crate::metrics!(@one $section ($($help)+) $kind $series [$([$($label)*])*] $($unit)?)
        ),+),+];
    };
    (@one $section:ident ($($help:literal)+) $kind:ident $series:literal [$([$($label:ident)*])*] $($unit:ident)?) => {
        $crate::telemetry::Metric {
            name: $series,
            kind: $crate::metrics!(@kind $kind),
            unit: $crate::metrics!(@unit $($unit)?),
            label_sets: &[$(&[$(stringify!($label)),*]),*],
            help: concat!($($help),+).trim_ascii(),
            section: $crate::telemetry::Section::$section,
        }
    };
    (@kind counter) => { $crate::telemetry::MetricType::Counter };
    (@kind gauge) => { $crate::telemetry::MetricType::Gauge };
    (@kind histogram) => { $crate::telemetry::MetricType::Histogram };
    (@unit) => { None };
    (@unit $unit:ident) => { Some($crate::telemetry::recorder::Unit::$unit) };
}

/// Returns a counter of a declared metric. Does not compile with another type of metric or with other labels:
///
/// ```compile_fail
/// use guildhall_actors::telemetry::{counter, metrics};
///
/// metrics! {
///     Gate {
///         /// Calls that were refused.
///         REFUSED = counter "doc_refused_total" [reason];
///     }
/// }
///
/// counter!(REFUSED, "why" => "full").increment(1);
/// ```
#[macro_export]
macro_rules! counter {
    ($metric:path $(, $($labels:tt)*)?) => {{
        $crate::check_labels!(Counter, $metric $(, $($labels)*)?);
        $crate::telemetry::recorder::counter!($metric.name $(, $($labels)*)?)
    }};
}

/// Returns a gauge of a declared metric, as [`counter!`](crate::counter!) does.
#[macro_export]
macro_rules! gauge {
    ($metric:path $(, $($labels:tt)*)?) => {{
        $crate::check_labels!(Gauge, $metric $(, $($labels)*)?);
        $crate::telemetry::recorder::gauge!($metric.name $(, $($labels)*)?)
    }};
}

/// Returns a histogram of a declared metric, as [`counter!`](crate::counter!) does.
#[macro_export]
macro_rules! histogram {
    ($metric:path $(, $($labels:tt)*)?) => {{
        $crate::check_labels!(Histogram, $metric $(, $($labels)*)?);
        $crate::telemetry::recorder::histogram!($metric.name $(, $($labels)*)?)
    }};
}

/// Checks at compile time that the labels of a series are declared.
#[doc(hidden)]
#[macro_export]
macro_rules! check_labels {
    ($kind:ident, $metric:path $(, $label:literal => $value:expr)* $(,)?) => {
        const _: () = assert!(
            $metric.accepts($crate::telemetry::MetricType::$kind, &[$($label),*]),
            "the metric is declared with another type or with other labels"
        );
    };
}
