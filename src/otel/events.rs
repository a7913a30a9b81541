//! Log lines and metrics of the span export.

use std::time::Duration;

use guildhall_actors::telemetry::InternalEvent;
use metrics::counter;
use tracing::{debug, warn};

use crate::metrics::{SPANS_DROPPED, SPANS_EXPORTED};

/// A collector accepted spans.
pub(super) struct SpansExported {
    pub(super) count: u64,
    pub(super) elapsed: Duration,
}

impl InternalEvent for SpansExported {
    fn emit(self) {
        let duration_ms = u64::try_from(self.elapsed.as_millis()).unwrap_or(u64::MAX);
        debug!(count = self.count, duration_ms, "spans exported");
        counter!(SPANS_EXPORTED).increment(self.count);
    }
}

/// Spans were dropped. The sender logs many drops in one line.
pub(super) struct SpansDropped {
    pub(super) count: u64,
    /// Reason, from a fixed set: `full`, `refused`, `rejected`, `unreachable`.
    pub(super) reason: &'static str,
}

impl InternalEvent for SpansDropped {
    fn emit(self) {
        counter!(SPANS_DROPPED, "why" => self.reason).increment(self.count);
    }
}

/// Spans were dropped since the last report because the queue was full.
pub(super) struct SpanQueueOverflowed {
    pub(super) count: u64,
}

impl InternalEvent for SpanQueueOverflowed {
    fn emit(self) {
        let count = self.count;
        warn!(
            count,
            "spans dropped because the queue is full: the collector is slow, or telemetry.otlp_queue is too \
            small"
        );
    }
}

/// The export of spans failed, and they were dropped.
pub(super) struct ExportFailed<'a> {
    pub(super) count: u64,
    pub(super) reason: &'static str,
    pub(super) message: &'a str,
}

impl InternalEvent for ExportFailed<'_> {
    fn emit(self) {
        let Self { count, reason: why, message: says } = self;
        warn!(count, why, says, "span export failed; check telemetry.otlp_endpoint");
        SpansDropped { count, reason: why }.emit();
    }
}

/// An export failed and will be retried.
pub(super) struct ExportRetried<'a> {
    pub(super) message: &'a str,
    pub(super) wait: Duration,
}

impl InternalEvent for ExportRetried<'_> {
    fn emit(self) {
        debug!(says = self.message, wait = ?self.wait, "span export failed; retrying");
    }
}
