//! Logs and metrics of the gate's snapshot.

use std::time::Duration;

use guildhall_core::snapshot::ShutdownKind;
use metrics::{Unit, counter, gauge, histogram};
use tracing::{debug, info, warn};

use super::{InternalEvent, Metric};

/// Writes of the snapshot, by result.
pub const WRITES: &str = "guildhall_gate_memory_writes_total";
/// Duration of writes.
pub const WRITE_SECONDS: &str = "guildhall_gate_memory_write_seconds";
/// Size of the last snapshot.
pub const BYTES: &str = "guildhall_gate_memory_bytes";
/// Starts of the gate without a readable snapshot, by reason.
pub const UNREAD: &str = "guildhall_gate_memory_unread_total";

/// A snapshot further in the future means that the clock was set back.
const MAX_SKEW: Duration = Duration::from_secs(60);

/// All metrics of this module.
pub(super) const METRICS: &[Metric] = &[
    Metric::counter(WRITES, &["result"], "Writes of the gate's snapshot."),
    Metric::histogram(WRITE_SECONDS, &[], "Duration of writes of the gate's snapshot.").in_unit(Unit::Seconds),
    Metric::gauge(BYTES, &[], "Size of the gate's snapshot.").in_unit(Unit::Bytes),
    Metric::counter(UNREAD, &["reason"], "Starts of the gate without its snapshot, because it could not be read."),
];

/// The snapshot of an earlier run is restored.
pub(crate) struct SnapshotRestored {
    /// Age of the snapshot.
    pub(crate) age: Duration,
    /// How far it is in the future, if it is.
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
        if ahead > MAX_SKEW {
            warn!(
                ahead_s,
                "snapshot of the gate is from the future: the clock of this machine was set back, and blocks may last \
                 longer"
            );
        }
        info!(age_s, ?ending, routes, closed, breakers, invalid, "snapshot of the gate restored");
    }
}

/// The snapshot cannot be read. The gate starts without it.
pub(crate) struct SnapshotUnreadable<'a> {
    pub(crate) reason: &'static str,
    pub(crate) message: &'a str,
}

impl InternalEvent for SnapshotUnreadable<'_> {
    fn emit(self) {
        let Self { reason, message: why } = self;
        warn!(reason, why, "snapshot of the gate unreadable; starting without the earlier limits and breakers");
        counter!(UNREAD, "reason" => reason).increment(1);
    }
}

/// The snapshot was saved.
pub(crate) struct SnapshotSaved {
    pub(crate) bytes: usize,
    pub(crate) elapsed: Duration,
}

impl InternalEvent for SnapshotSaved {
    fn emit(self) {
        let Self { bytes, elapsed } = self;
        debug!(bytes, duration_ms = elapsed.as_millis(), "snapshot of the gate saved");
        counter!(WRITES, "result" => "kept").increment(1);
        histogram!(WRITE_SECONDS).record(elapsed.as_secs_f64());
        gauge!(BYTES).set(bytes as f64);
    }
}

/// The snapshot could not be saved; it is retried.
pub(crate) struct SnapshotSaveFailed<'a> {
    pub(crate) reason: &'a str,
}

impl InternalEvent for SnapshotSaveFailed<'_> {
    fn emit(self) {
        let why = self.reason;
        warn!(why, "saving the snapshot of the gate failed; a restart now would lose limits and breakers");
        counter!(WRITES, "result" => "lost").increment(1);
    }
}
