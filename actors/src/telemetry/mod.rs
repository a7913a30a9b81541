//! Logs and metrics of the actors. Each event is emitted once: the log line and the metric come from the same fields,
//! so they cannot disagree. [`metrics!`] declares metrics, and [`event!`] declares events.

pub mod breaker;
pub mod crash;
mod event;
pub mod events;
pub mod failures;
pub mod limits;
mod metric;
pub mod operations;
pub mod shard;
pub mod shared_limits;
pub mod snapshot;
pub mod span;
pub mod submission;
pub mod supervision;

use guildhall_core::trace::{TraceContext, TraceId};
use tracing::field::{DisplayValue, display};

pub use crate::{counter, event, gauge, histogram, metrics};
pub use failures::FailureLog;
pub use metric::{Metric, MetricType, Section};

/// For the macros of this module.
#[doc(hidden)]
pub use ::metrics as recorder;

/// An event with a log line, a metric, or both.
pub trait InternalEvent {
    /// Writes the log line and updates the metric.
    fn emit(self);
}

/// A trace id as a field of log lines.
#[must_use]
pub fn trace_id(trace: Option<TraceContext>) -> Option<DisplayValue<TraceId>> {
    trace.map(|trace| display(trace.id))
}

/// Emits an event.
pub fn emit(event: impl InternalEvent) {
    event.emit();
}

/// All metrics of the actors.
pub fn all_metrics() -> impl Iterator<Item = &'static Metric> {
    [
        breaker::METRICS,
        crash::METRICS,
        submission::METRICS,
        events::METRICS,
        limits::METRICS,
        snapshot::METRICS,
        operations::METRICS,
        shard::METRICS,
        shared_limits::METRICS,
        supervision::METRICS,
    ]
    .into_iter()
    .flatten()
}
