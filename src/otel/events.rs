//! Log lines and metrics of the span export.

use std::time::Duration;

use guildhall_core::failure_streak::FailureSummary;
use guildhall_core::time::millis;
use tracing::{debug, warn};

use crate::events::{counter, event};
use crate::metrics::{SPANS_DROPPED, SPANS_EXPORTED};

event! {
    /// A collector accepted spans.
    pub(super) struct SpansExported { count: u64, elapsed: Duration }
    debug!(count, duration_ms = millis(elapsed), "spans exported");
    counter!(SPANS_EXPORTED).increment(count);
}

event! {
    /// Spans were dropped. The sender logs many drops in one line.
    pub(super) struct SpansDropped {
        count: u64,
        /// Reason, from a fixed set: `full`, `refused`, `rejected`, `unreachable`.
        reason: &'static str,
    }
    counter!(SPANS_DROPPED, "why" => reason).increment(count);
}

event! {
    /// Spans were dropped since the last report because the queue was full.
    pub(super) struct SpanQueueOverflowed { count: u64 }
    warn!(
        count,
        "spans dropped because the queue is full: the collector is slow, or telemetry.otlp_queue is too small"
    );
}

event! {
    /// The export of spans failed, and they were dropped.
    pub(super) struct ExportFailed<'a> {
        count: u64,
        reason: &'static str,
        message: &'a str,
        /// What to log, if a line is due.
        summary: Option<FailureSummary>,
    }
    if let Some(summary) = summary {
        let (failures, failing_for_s) = summary.repeated();
        warn!(
            count, why = reason, says = message, failures, failing_for_s,
            "span export failed; check telemetry.otlp_endpoint"
        );
    }
    SpansDropped { count, reason }.emit();
}

event! {
    /// An export failed and will be retried.
    pub(super) struct ExportRetried<'a> { message: &'a str, wait: Duration }
    debug!(says = message, wait_ms = millis(wait), "span export failed; retrying");
}
