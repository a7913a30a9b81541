//! Logs and metrics of the gate's snapshot.

use std::time::Duration;

use guildhall_core::failure_streak::FailureSummary;
use guildhall_core::snapshot::ShutdownKind;
use tracing::{debug, info, warn};

use super::{counter, event, gauge, histogram, metrics};

/// A snapshot further in the future means that the clock was set back.
const MAX_SKEW: Duration = Duration::from_secs(60);

metrics! {
    Gate {
        /// Writes of the gate's snapshot.
        WRITES = counter "guildhall_gate_memory_writes_total" [result];
        /// Duration of writes of the gate's snapshot.
        WRITE_SECONDS = histogram "guildhall_gate_memory_write_seconds" in Seconds;
        /// Size of the gate's snapshot.
        BYTES = gauge "guildhall_gate_memory_bytes" in Bytes;
        /// Starts of the gate without its snapshot, because it could not be read.
        UNREAD = counter "guildhall_gate_memory_unread_total" [reason];
    }
}

event! {
    /// The snapshot of an earlier run is restored.
    pub(crate) struct SnapshotRestored {
        /// Age of the snapshot.
        age: Duration,
        /// How far it is in the future, if it is.
        ahead: Duration,
        ending: ShutdownKind,
        routes: usize,
        closed: usize,
        breakers: usize,
        invalid: u32,
    }
    let (age_s, ahead_s) = (age.as_secs(), ahead.as_secs());
    if ahead > MAX_SKEW {
        warn!(
            ahead_s,
            "snapshot of the gate is from the future: the clock of this machine was set back, and blocks may last \
             longer"
        );
    }
    let clean_shutdown = ending == ShutdownKind::Clean;
    info!(age_s, clean_shutdown, routes, closed, breakers, invalid, "snapshot of the gate restored");
}

event! {
    /// The snapshot cannot be read. The gate starts without it.
    pub(crate) struct SnapshotUnreadable<'a> { reason: &'static str, message: &'a str }
    warn!(reason, why = message, "snapshot of the gate unreadable; starting without the earlier limits and breakers");
    counter!(UNREAD, "reason" => reason).increment(1);
}

event! {
    /// The snapshot was saved.
    pub(crate) struct SnapshotSaved { bytes: usize, elapsed: Duration }
    debug!(bytes, duration_ms = elapsed.as_millis(), "snapshot of the gate saved");
    counter!(WRITES, "result" => "kept").increment(1);
    histogram!(WRITE_SECONDS).record(elapsed.as_secs_f64());
    gauge!(BYTES).set(bytes as f64);
}

event! {
    /// The snapshot could not be saved; it is retried.
    pub(crate) struct SnapshotSaveFailed<'a> {
        reason: &'a str,
        /// What to log, if a line is due.
        summary: Option<FailureSummary>,
    }
    if let Some(summary) = summary {
        let (failures, failing_for_s) = summary.repeated();
        warn!(
            why = reason, failures, failing_for_s,
            "saving the snapshot of the gate failed; a restart now would lose limits and breakers"
        );
    }
    counter!(WRITES, "result" => "lost").increment(1);
}
