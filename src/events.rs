//! Events of the daemon. Each event has one emission: the log line and the metric come from the same fields, so they
//! cannot disagree.

use std::{collections::BTreeMap, io, net::SocketAddr, time::Duration};

use guildhall_actors::ports::{StoreError, StoreUsage, SweepSummary};
use guildhall_actors::telemetry::events::QUEUE_DEPTH;
use guildhall_core::budget::{BudgetError, BudgetName};
use guildhall_core::failure_streak::FailureSummary;
use guildhall_core::time::{UnixMs, millis};
use tracing::{debug, error, info, warn};

use crate::api::{ReloadError, ReloadReport, ReloadedItem};
use crate::handlers::HandlerWarning;
use crate::metrics::{
    DEAD_EVENTS, DEAD_LETTERS, GATEWAY_SHARD_CLAIMS, GATEWAY_SHARDS_HELD, OLDEST_OPERATION, PROCESS_ENDS, READY,
    RELOADS, STORE_SWEPT, STORE_USAGE_RATIO,
};
use crate::store::{ProcessEnd, RestoredStore};

pub use guildhall_actors::telemetry::{FailureLog, InternalEvent, emit};
pub(crate) use guildhall_actors::telemetry::{counter, event, gauge, histogram};

event! {
    /// A thread panicked.
    pub(crate) struct ThreadPanicked<'a> { location: Option<&'a str>, message: &'a str }
    error!(place = location, message, "thread panicked");
}

event! {
    /// The limit of open files of the process.
    pub(crate) struct OpenFilesLimited { limit: u64 }
    debug!(limit, "limit of open files");
}

event! {
    /// The limit of open files could not be raised.
    pub(crate) struct OpenFilesNotRaised { error: io::Error }
    warn!(%error, "cannot raise the limit of open files");
}

event! {
    /// SIGHUP arrived during the shutdown.
    pub(crate) struct ReloadIgnored;
    info!("reload ignored: the process is stopping");
}

event! {
    /// A second signal ends the process without a shutdown.
    pub(crate) struct ExitedImmediately { signal: &'static str }
    error!(signal, "second signal received; exiting immediately");
}

event! {
    /// Another process of this machine died without saying goodbye.
    pub(crate) struct LocalProcessDied<'a> { member: &'a str }
    info!(member, "process of this machine died");
}

#[cfg(feature = "otel")]
event! {
    /// Only the first daemon of a process exports its spans.
    pub(crate) struct SpansExportedElsewhere;
    warn!("spans are already exported elsewhere: this process has started a daemon before");
}

event! {
    /// Discord did not return the gateway URL.
    pub(crate) struct GatewayDiscoveryFailed<'a> {
        reason: &'a str,
        retry_after: Duration,
        /// What to log, if a line is due.
        summary: Option<FailureSummary>,
    }
    if let Some(summary) = summary {
        let ((failures, failing_for_s), retry_after_ms) = (summary.repeated(), millis(retry_after));
        warn!(
            why = reason, retry_after_ms, failures, failing_for_s,
            "cannot get the gateway URL from Discord; retrying"
        );
    }
}

event! {
    /// The state of the clocks, for the next process, could not be stored.
    pub(crate) struct ClockSaveFailed<'a> {
        error: &'a StoreError,
        /// What to log, if a line is due.
        summary: Option<FailureSummary>,
    }
    if let Some(summary) = summary {
        let (failures, failing_for_s) = summary.repeated();
        warn!(%error, failures, failing_for_s, "cannot store the state of the clocks; retrying");
    }
}

event! {
    /// The store was restored from a backup: what was unfinished in it is prepared.
    pub(crate) struct StoreRestored { restored: RestoredStore }
    let RestoredStore { due, scheduled, events, sessions, .. } = restored;
    warn!(due, scheduled, events, sessions, "restored store prepared: unfinished operations are checked before anything is sent");
}

event! {
    /// Operations of a restored store are not checked yet.
    pub(crate) struct RestorePending {
        unchecked: u64,
        /// Operations that were scheduled for later at the restore.
        scheduled: u64,
    }
    warn!(unchecked, scheduled, "checking the outcomes of operations of the restored store");
}

event! {
    /// All operations that were due when the store was restored are finished.
    pub(crate) struct RestoreChecked { due: u64, not_sent: u64, needs_review: u64 }
    warn!(due, not_sent, needs_review, "operations of the restored store checked");
}

event! {
    /// A handler is usable, but has a warning.
    pub(crate) struct HandlerWarned<'a> { warning: &'a HandlerWarning }
    warn!(%warning, "handler warning");
}

event! {
    /// A command sync that a caller waits for failed for now.
    pub(crate) struct CommandSyncDelayed<'a> { reason: &'a str, retry_after: Duration }
    warn!(why = reason, again_in_ms = millis(retry_after), "command sync failed; waiting for the next attempt");
}

/// How this process's ownership of shards changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShardOwnershipChange {
    /// This process claimed them.
    Taken,
    /// Their lease was lost; another process may own them.
    Lost,
    /// This process released them.
    Released,
}

event! {
    /// The set of shards that this process owns changed.
    pub(crate) struct ShardsChanged<'a> {
        change: ShardOwnershipChange,
        shards: &'a [u32],
        /// Number of shards that this process owns now.
        held: usize,
    }
    let moved = shards.len() as u64;
    let shards = shards.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let what = match change {
        ShardOwnershipChange::Taken => {
            info!(shards, held, "shards claimed");
            "taken"
        }
        ShardOwnershipChange::Lost => {
            warn!(
                shards, held,
                "shards lost: this process did not renew its lease in time, and another process may own them"
            );
            "lost"
        }
        ShardOwnershipChange::Released => {
            info!(shards, held, "shards released for other processes");
            "released"
        }
    };
    counter!(GATEWAY_SHARD_CLAIMS, "what" => what).increment(moved);
    gauge!(GATEWAY_SHARDS_HELD).set(held as f64);
}

event! {
    /// The shards that this process may own could not be determined.
    pub(crate) struct ShardClaimFailed<'a> {
        reason: &'a str,
        /// What to log, if a line is due.
        summary: Option<FailureSummary>,
    }
    if let Some(summary) = summary {
        let (failures, failing_for_s) = summary.repeated();
        warn!(why = reason, failures, failing_for_s, "cannot claim shards; retrying");
    }
}

event! {
    /// A budget in the settings is invalid.
    pub(crate) struct BudgetRejected<'a> { name: &'a BudgetName, error: &'a BudgetError }
    warn!(bucket = %name, %error, "rejected a budget from the settings");
}

event! {
    /// The listener accepts connections.
    pub(crate) struct ListenerStarted {
        /// Listening address, with the actual port.
        address: SocketAddr,
        tls: bool,
    }
    info!(%address, tls, "listening");
}

event! {
    /// All components of the daemon have started; the gateway connects.
    pub(crate) struct DaemonStarted<'a> {
        version: &'a str,
        /// The components, separated by commas.
        parts: &'a str,
        /// `sqlite` or `postgresql`.
        store: &'a str,
        handlers: usize,
        /// The shards that this process may run, such as `0-3 of 16`.
        shards: &'a str,
    }
    info!(version, parts, store, handlers, shards, "guildhall started");
}

event! {
    /// How the global limit is shared with other processes of the bot was determined.
    pub(crate) struct LimitSharingChosen {
        /// `alone`, `store` or `redis`.
        sharing: &'static str,
        /// Calls per window, for all processes together.
        limit: u32,
    }
    match sharing {
        "redis" => info!(sharing, limit, "global limit shared over Redis"),
        "store" => info!(sharing, limit, "global limit divided among the processes of the store"),
        _ => info!(sharing, limit, "global limit used by this process alone"),
    }
}

event! {
    /// A component became ready.
    pub(crate) struct ComponentReady { part: &'static str }
    info!(part, "part is ready");
    gauge!(READY, "part" => part).set(1);
}

event! {
    /// A component is not ready, or no longer ready.
    pub(crate) struct ComponentNotReady<'a> { part: &'static str, reason: &'a str }
    info!(part, reason, "part is not ready");
    gauge!(READY, "part" => part).set(0);
}

event! {
    /// An earlier process of this store was ended by one of its parts.
    pub(crate) struct PreviousProcessEnd<'a> { end: &'a ProcessEnd, ago: Duration }
    let ProcessEnd { instance, part, cause, .. } = end;
    warn!(instance, part, cause, ago_s = ago.as_secs(), "previous process was ended by a part");
}

event! {
    /// The number of processes that each part ended recently was counted.
    pub(crate) struct ProcessEndsCounted {
        /// Counts by part. Has every part that ended a process since this process started, even if its count is 0 by now.
        ends: BTreeMap<&'static str, u32>,
    }
    for (part, ends) in ends {
        gauge!(PROCESS_ENDS, "part" => part).set(ends);
    }
}

event! {
    /// The process is shutting down, on request or because of an error.
    pub(crate) struct ShutdownStarted<'a> { reason: &'a str }
    info!(reason, "shutting down");
}

event! {
    /// All parts of the process have stopped.
    pub(crate) struct ShutdownFinished;
    info!("shut down");
}

event! {
    /// Expired rows were removed.
    pub(crate) struct SweepCompleted { swept: SweepSummary }
    let SweepSummary { operations, dead_letters, keys, state, interactions, interactions_dropped } = swept;
    debug!(operations, dead_letters, idempotency_keys = keys, state, interactions, "removed expired rows");
    if interactions_dropped > 0 {
        warn!(
            count = interactions_dropped,
            "too many received interactions recorded; removed the oldest before they expired"
        );
    }
    for (what, count) in [
        ("operations", operations),
        ("dead_letters", dead_letters),
        ("idempotency_keys", keys),
        ("state", state),
        ("interactions", interactions),
        ("interactions_dropped", interactions_dropped),
    ] {
        counter!(STORE_SWEPT, "what" => what).increment(count);
    }
}

event! {
    /// Expired rows could not be removed.
    pub(crate) struct SweepFailed<'a> {
        error: &'a StoreError,
        /// What to log, if a line is due.
        summary: Option<FailureSummary>,
    }
    if let Some(summary) = summary {
        let (failures, failing_for_s) = summary.repeated();
        warn!(%error, failures, failing_for_s, "cannot remove expired rows; retrying");
    }
}

event! {
    /// The store usage of callers was counted.
    pub(crate) struct UsageCounted<'a> { usage: &'a StoreUsage }
    let mut largest = BTreeMap::from([("key", 0.0_f64), ("tenant", 0.0), ("operator", 0.0)]);
    for scope in &usage.scopes {
        let max = largest.entry(scope.scope.kind()).or_default();
        *max = max.max(scope.limit.ratio(scope.used));
    }
    if let Some(file) = usage.file {
        largest.insert("file", file.used as f64 / file.max_bytes.max(1) as f64);
    }
    for (by, ratio) in largest {
        gauge!(STORE_USAGE_RATIO, "by" => by).set(ratio);
    }
}

event! {
    /// Queue depths were counted.
    pub(crate) struct DepthsCounted<'a> {
        /// Number of operations in each state that is not final, of dead letters, and of dead events.
        depths: &'a BTreeMap<&'static str, u64>,
    }
    for (&name, &count) in depths {
        match name {
            "dead_letters" => gauge!(DEAD_LETTERS).set(count as f64),
            "dead_events" => gauge!(DEAD_EVENTS).set(count as f64),
            state => gauge!(QUEUE_DEPTH, "queue" => state).set(count as f64),
        }
    }
}

event! {
    /// The operations that wait longest were found.
    pub(crate) struct OldestWaitingFound<'a> {
        /// Since when they wait, by state.
        since: &'a BTreeMap<&'static str, Option<UnixMs>>,
        now: UnixMs,
    }
    for (&state, since) in since {
        let age = since.map_or(Duration::ZERO, |since| now.since(since));
        gauge!(OLDEST_OPERATION, "state" => state).set(age.as_secs_f64());
    }
}

event! {
    /// The settings were reloaded.
    pub(crate) struct Reloaded<'a> { report: &'a ReloadReport }
    let names = |items: &[ReloadedItem]| items.iter().map(|item| item.what.as_str()).collect::<Vec<_>>().join(", ");
    let (changed, needs_restart) = (names(&report.changed), names(&report.needs_restart));
    info!(changed, needs_restart, "settings reloaded");
    counter!(RELOADS, "result" => "applied").increment(1);
}

event! {
    /// A reload of the settings failed, and nothing has changed.
    pub(crate) struct ReloadFailed<'a> { error: &'a ReloadError }
    error!(errors = %error, "reload failed: nothing was applied");
    counter!(RELOADS, "result" => "failed").increment(1);
}
