//! What there is to say about telling a collector.

use std::time::Duration;

use guildhall_actors::telemetry::InternalEvent;
use metrics::counter;
use tracing::{debug, warn};

use crate::metrics::{SPANS_DROPPED, SPANS_EXPORTED};

/// A collector took spans.
pub(super) struct SpansExported {
    pub(super) count: u64,
    pub(super) took: Duration,
}

impl InternalEvent for SpansExported {
    fn emit(self) {
        let duration_ms = u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX);
        debug!(count = self.count, duration_ms, "the collector took spans");
        counter!(SPANS_EXPORTED).increment(self.count);
    }
}

/// Spans were given up. Who drops them says so in the log once for many.
pub(super) struct SpansDropped {
    pub(super) count: u64,
    /// Why, out of a fixed set: `full`, `refused`, `rejected`, `unreachable`.
    pub(super) why: &'static str,
}

impl InternalEvent for SpansDropped {
    fn emit(self) {
        counter!(SPANS_DROPPED, "why" => self.why).increment(self.count);
    }
}

/// Spans found no room since this was last said.
pub(super) struct SpanQueueOverflowed {
    pub(super) count: u64,
}

impl InternalEvent for SpanQueueOverflowed {
    fn emit(self) {
        let count = self.count;
        warn!(count, "spans found no room and are gone: the collector is slow, or telemetry.otlp_queue small");
    }
}

/// The collector did not take spans, and they are gone.
pub(super) struct ExportFailed<'a> {
    pub(super) count: u64,
    pub(super) why: &'static str,
    pub(super) says: &'a str,
}

impl InternalEvent for ExportFailed<'_> {
    fn emit(self) {
        let Self { count, why, says } = self;
        warn!(count, why, says, "the collector did not take spans; see telemetry.otlp_endpoint");
        SpansDropped { count, why }.emit();
    }
}

/// The collector did not answer as it should; it is tried again.
pub(super) struct ExportRetried<'a> {
    pub(super) says: &'a str,
    pub(super) wait: Duration,
}

impl InternalEvent for ExportRetried<'_> {
    fn emit(self) {
        debug!(says = self.says, wait = ?self.wait, "the collector did not take spans; it is tried again");
    }
}
