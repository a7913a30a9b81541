//! What is told of what the gate remembers.

use std::time::Duration;

use guildhall_core::snapshot::ShutdownKind;
use metrics::{Unit, counter, gauge, histogram};
use tracing::{debug, info, warn};

use super::{InternalEvent, Metric};

/// Writes of the gate's memory, by result.
pub const KEPT: &str = "guildhall_gate_memory_writes_total";
/// How long they took.
pub const KEPT_SECONDS: &str = "guildhall_gate_memory_write_seconds";
/// How large the last was.
pub const BYTES: &str = "guildhall_gate_memory_bytes";
/// Starts of the gate that could not read its memory, by why.
pub const UNREAD: &str = "guildhall_gate_memory_unread_total";

/// A clock that is behind by more was set back.
const SKEW: Duration = Duration::from_secs(60);

/// All of them.
pub(super) const METRICS: &[Metric] = &[
    Metric::counter(KEPT, &["result"], "Writes of what the gate must not forget."),
    Metric::histogram(KEPT_SECONDS, &[], "How long writes of the gate's memory took.").in_unit(Unit::Seconds),
    Metric::gauge(BYTES, &[], "Size of what the gate remembers.").in_unit(Unit::Bytes),
    Metric::counter(UNREAD, &["reason"], "Starts of the gate without its memory, because it could not be read."),
];

/// What an earlier life remembered is known again.
pub(crate) struct SnapshotRestored {
    /// How old it is.
    pub(crate) age: Duration,
    /// By how much it lies ahead, if it does.
    pub(crate) ahead: Duration,
    pub(crate) ending: ShutdownKind,
    pub(crate) routes: usize,
    pub(crate) closed: usize,
    pub(crate) breakers: usize,
    pub(crate) invalid: u32,
}

impl InternalEvent for SnapshotRestored {
    fn emit(self) {
        let Self { age, ahead, ending, routes, closed, breakers, invalid } = self;
        let (age_s, ahead_s) = (age.as_secs(), ahead.as_secs());
        if ahead > SKEW {
            warn!(
                ahead_s,
                "the gate's memory is from the future: this machine's clock was set back, and blocks may last longer"
            );
        }
        info!(age_s, ?ending, routes, closed, breakers, invalid, "the gate remembers");
    }
}

/// The memory cannot be read. The gate starts without it.
pub(crate) struct SnapshotUnreadable<'a> {
    pub(crate) reason: &'static str,
    pub(crate) why: &'a str,
}

impl InternalEvent for SnapshotUnreadable<'_> {
    fn emit(self) {
        let Self { reason, why } = self;
        warn!(reason, why, "the gate's memory cannot be read: it starts without knowing what was closed before");
        counter!(UNREAD, "reason" => reason).increment(1);
    }
}

/// What must not be forgotten is kept.
pub(crate) struct SnapshotSaved {
    pub(crate) bytes: usize,
    pub(crate) took: Duration,
}

impl InternalEvent for SnapshotSaved {
    fn emit(self) {
        let Self { bytes, took } = self;
        debug!(bytes, duration_ms = took.as_millis(), "the gate's memory is kept");
        counter!(KEPT, "result" => "kept").increment(1);
        histogram!(KEPT_SECONDS).record(took.as_secs_f64());
        gauge!(BYTES).set(bytes as f64);
    }
}

/// It could not be kept, and will be tried again.
pub(crate) struct SnapshotSaveFailed<'a> {
    pub(crate) why: &'a str,
}

impl InternalEvent for SnapshotSaveFailed<'_> {
    fn emit(self) {
        let why = self.why;
        warn!(why, "the gate's memory cannot be kept: a restart now would forget what is closed");
        counter!(KEPT, "result" => "lost").increment(1);
    }
}
