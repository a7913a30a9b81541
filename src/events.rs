//! Events of the daemon. Each event has one emission: the log line and the metric come from the same fields, so they
//! cannot disagree.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use guildhall_actors::ports::{StoreError, StoreUsage};
use guildhall_core::budget::{BudgetError, BudgetName};
use metrics::{counter, gauge};
use tracing::{debug, error, info, warn};

use crate::api::{ReloadError, ReloadReport, ReloadedItem};
use crate::handlers::HandlerWarning;
use crate::metrics::{
    DEAD_EVENTS, DEAD_LETTERS, GATEWAY_SHARD_CLAIMS, GATEWAY_SHARDS_HELD, PROCESS_ENDS, QUEUE_DEPTH, READY, RELOADS,
    STORE_SWEPT, STORE_USAGE_RATIO,
};
use crate::store::ProcessEnd;

pub use guildhall_actors::telemetry::{InternalEvent, emit};

/// Discord did not return the gateway URL.
pub struct GatewayDiscoveryFailed<'a> {
    /// Cause of the failure.
    pub reason: &'a str,
    /// Time until the next attempt.
    pub retry_after: Duration,
}

impl InternalEvent for GatewayDiscoveryFailed<'_> {
    fn emit(self) {
        let retry_after_ms = u64::try_from(self.retry_after.as_millis()).unwrap_or(u64::MAX);
        warn!(why = self.reason, retry_after_ms, "cannot get the gateway URL from Discord; retrying");
    }
}

/// The state of the clocks, for the next process, could not be stored.
pub struct ClockSaveFailed<'a> {
    /// Cause of the failure.
    pub error: &'a StoreError,
}

impl InternalEvent for ClockSaveFailed<'_> {
    fn emit(self) {
        warn!(error = %self.error, "cannot store the state of the clocks; retrying");
    }
}

/// A handler is usable, but has a warning.
pub struct HandlerWarned<'a> {
    /// Message for the operator.
    pub warning: &'a HandlerWarning,
}

impl InternalEvent for HandlerWarned<'_> {
    fn emit(self) {
        warn!(warning = %self.warning, "handler warning");
    }
}

/// A command sync that a caller waits for failed for now.
pub struct CommandSyncDelayed<'a> {
    /// Cause of the failure.
    pub reason: &'a str,
    /// Time until the next attempt.
    pub retry_after: Duration,
}

impl InternalEvent for CommandSyncDelayed<'_> {
    fn emit(self) {
        let again_in_ms = u64::try_from(self.retry_after.as_millis()).unwrap_or(u64::MAX);
        warn!(why = self.reason, again_in_ms, "command sync failed; waiting for the next attempt");
    }
}

/// How this process's ownership of shards changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardOwnershipChange {
    /// This process claimed them.
    Taken,
    /// Their lease was lost; another process may own them.
    Lost,
    /// This process released them.
    Released,
}

/// The set of shards that this process owns changed.
pub struct ShardsChanged<'a> {
    /// Kind of change.
    pub change: ShardOwnershipChange,
    /// Ids of the shards that changed.
    pub shards: &'a [u32],
    /// Number of shards that this process owns now.
    pub held: usize,
}

impl InternalEvent for ShardsChanged<'_> {
    fn emit(self) {
        let (shards, held, moved) = (format!("{:?}", self.shards), self.held, self.shards.len() as u64);
        let what = match self.change {
            ShardOwnershipChange::Taken => {
                info!(shards, held, "shards claimed");
                "taken"
            }
            ShardOwnershipChange::Lost => {
                warn!(
                    shards,
                    held,
                    "shards lost: this process did not renew its lease in time, and another process may own \
                        them"
                );
                "lost"
            }
            ShardOwnershipChange::Released => {
                info!(shards, held, "shards released for other processes");
                "released"
            }
        };
        counter!(GATEWAY_SHARD_CLAIMS, "what" => what).increment(moved);
        #[expect(clippy::cast_precision_loss, reason = "the count is small")]
        gauge!(GATEWAY_SHARDS_HELD).set(held as f64);
    }
}

/// The shards that this process may own could not be determined.
pub struct ShardClaimFailed<'a> {
    /// Cause of the failure.
    pub reason: &'a str,
}

impl InternalEvent for ShardClaimFailed<'_> {
    fn emit(self) {
        warn!(why = self.reason, "cannot claim shards; retrying");
    }
}

/// A budget in the settings is invalid.
pub struct BudgetRejected<'a> {
    /// Name of the budget.
    pub name: &'a BudgetName,
    /// Reason for the rejection.
    pub error: &'a BudgetError,
}

impl InternalEvent for BudgetRejected<'_> {
    fn emit(self) {
        warn!(bucket = %self.name, error = %self.error, "rejected a budget from the settings");
    }
}

/// The listener accepts connections.
pub struct ListenerStarted {
    /// Listening address, with the actual port.
    pub address: SocketAddr,
    /// Whether it uses TLS.
    pub tls: bool,
}

impl InternalEvent for ListenerStarted {
    fn emit(self) {
        info!(address = %self.address, tls = self.tls, "listening");
    }
}

/// How the global limit is shared with other processes of the bot was determined.
pub struct LimitSharingChosen {
    /// `alone`, `store` or `redis`.
    pub sharing: &'static str,
    /// Calls per window, for all processes together.
    pub limit: u32,
}

impl InternalEvent for LimitSharingChosen {
    fn emit(self) {
        let Self { sharing, limit } = self;
        match sharing {
            "redis" => info!(sharing, limit, "global limit shared over Redis"),
            "store" => info!(sharing, limit, "global limit divided among the processes of the store"),
            _ => info!(sharing, limit, "global limit used by this process alone"),
        }
    }
}

/// A component became ready.
pub struct ComponentReady {
    /// Name of the component.
    pub part: &'static str,
}

impl InternalEvent for ComponentReady {
    fn emit(self) {
        info!(part = self.part, "part is ready");
        gauge!(READY, "part" => self.part).set(1);
    }
}

/// A component is not ready, or no longer ready.
pub struct ComponentNotReady<'a> {
    /// Name of the component.
    pub part: &'static str,
    /// Reason.
    pub reason: &'a str,
}

impl InternalEvent for ComponentNotReady<'_> {
    fn emit(self) {
        info!(part = self.part, reason = self.reason, "part is not ready");
        gauge!(READY, "part" => self.part).set(0);
    }
}

/// An earlier process of this store was ended by one of its parts.
pub struct PreviousProcessEnd<'a> {
    /// The process, the part that ended it, and the cause.
    pub end: &'a ProcessEnd,
    /// Time since then.
    pub ago: Duration,
}

impl InternalEvent for PreviousProcessEnd<'_> {
    fn emit(self) {
        let Self { end: ProcessEnd { instance, part, cause, .. }, ago } = self;
        warn!(instance, part, cause, ago_s = ago.as_secs(), "previous process was ended by a part");
    }
}

/// The number of processes that each part ended recently was counted.
pub struct ProcessEndsCounted {
    /// Counts by part. Has every part that ended a process since this process started, even if its count is 0 by now.
    pub ends: BTreeMap<&'static str, u32>,
}

impl InternalEvent for ProcessEndsCounted {
    fn emit(self) {
        for (part, ends) in self.ends {
            gauge!(PROCESS_ENDS, "part" => part).set(ends);
        }
    }
}

/// The process is shutting down, on request or because of an error.
pub struct ShutdownStarted<'a> {
    /// Reason for the shutdown.
    pub reason: &'a str,
}

impl InternalEvent for ShutdownStarted<'_> {
    fn emit(self) {
        info!(reason = self.reason, "shutting down");
    }
}

/// All parts of the process have stopped.
pub struct ShutdownFinished;

impl InternalEvent for ShutdownFinished {
    fn emit(self) {
        info!("shut down");
    }
}

/// Expired rows were removed.
pub struct SweepCompleted {
    /// Number of removed rows, by kind.
    pub swept: guildhall_actors::ports::SweepSummary,
}

impl InternalEvent for SweepCompleted {
    fn emit(self) {
        let guildhall_actors::ports::SweepSummary {
            operations,
            dead_letters: letters,
            keys,
            state,
            interactions,
            interactions_dropped,
        } = self.swept;
        debug!(
            operations,
            dead_letters = letters,
            idempotency_keys = keys,
            state,
            interactions,
            "removed expired rows"
        );
        if interactions_dropped > 0 {
            warn!(
                count = interactions_dropped,
                "too many received interactions recorded; removed the oldest before they expired"
            );
        }
        for (what, count) in [
            ("operations", operations),
            ("dead_letters", letters),
            ("idempotency_keys", keys),
            ("state", state),
            ("interactions", interactions),
            ("interactions_dropped", interactions_dropped),
        ] {
            counter!(STORE_SWEPT, "what" => what).increment(count);
        }
    }
}

/// Expired rows could not be removed.
pub struct SweepFailed<'a> {
    /// Cause of the failure.
    pub error: &'a StoreError,
}

impl InternalEvent for SweepFailed<'_> {
    fn emit(self) {
        warn!(error = %self.error, "cannot remove expired rows; retrying");
    }
}

/// The store usage of callers was counted.
pub struct UsageCounted<'a> {
    /// Usage and limits of each caller.
    pub usage: &'a StoreUsage,
}

impl InternalEvent for UsageCounted<'_> {
    #[expect(clippy::cast_precision_loss, reason = "a ratio for display")]
    fn emit(self) {
        let mut largest = BTreeMap::from([("key", 0.0_f64), ("tenant", 0.0), ("operator", 0.0)]);
        for scope in &self.usage.scopes {
            let max = largest.entry(scope.scope.kind()).or_default();
            *max = max.max(scope.limit.ratio(scope.used));
        }
        if let Some(file) = self.usage.file {
            largest.insert("file", file.used as f64 / file.max_bytes.max(1) as f64);
        }
        for (by, ratio) in largest {
            gauge!(STORE_USAGE_RATIO, "by" => by).set(ratio);
        }
    }
}

/// Queue depths were counted.
pub struct DepthsCounted<'a> {
    /// Number of operations in each state that is not final, of dead letters, and of dead events.
    pub depths: &'a BTreeMap<&'static str, u64>,
}

impl InternalEvent for DepthsCounted<'_> {
    #[expect(clippy::cast_precision_loss, reason = "a gauge")]
    fn emit(self) {
        for (&name, &count) in self.depths {
            match name {
                "dead_letters" => gauge!(DEAD_LETTERS).set(count as f64),
                "dead_events" => gauge!(DEAD_EVENTS).set(count as f64),
                state => gauge!(QUEUE_DEPTH, "queue" => state).set(count as f64),
            }
        }
    }
}

/// The settings were reloaded.
pub struct Reloaded<'a> {
    /// The changes.
    pub report: &'a ReloadReport,
}

impl InternalEvent for Reloaded<'_> {
    fn emit(self) {
        let names = |items: &[ReloadedItem]| items.iter().map(|item| item.what.as_str()).collect::<Vec<_>>().join(", ");
        let (changed, needs_restart) = (names(&self.report.changed), names(&self.report.needs_restart));
        info!(changed, needs_restart, "settings reloaded");
        counter!(RELOADS, "result" => "applied").increment(1);
    }
}

/// A reload of the settings failed, and nothing has changed.
pub struct ReloadFailed<'a> {
    /// Cause of the failure.
    pub error: &'a ReloadError,
}

impl InternalEvent for ReloadFailed<'_> {
    fn emit(self) {
        error!(errors = %self.error, "reload failed: nothing was applied");
        counter!(RELOADS, "result" => "failed").increment(1);
    }
}
