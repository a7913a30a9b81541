//! What the daemon has to say. One event, one emission: the log line and the metric come from the same fields, so they
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

/// Discord has not said where the gateway is.
pub struct GatewayDiscoveryFailed<'a> {
    /// Why.
    pub why: &'a str,
    /// How long until it is asked again.
    pub retry_after: Duration,
}

impl InternalEvent for GatewayDiscoveryFailed<'_> {
    fn emit(self) {
        let retry_after_ms = u64::try_from(self.retry_after.as_millis()).unwrap_or(u64::MAX);
        warn!(why = self.why, retry_after_ms, "Discord has not said where the gateway is");
    }
}

/// What the next process needs to know of the clocks could not be stored.
pub struct ClockSaveFailed<'a> {
    /// Why.
    pub error: &'a StoreError,
}

impl InternalEvent for ClockSaveFailed<'_> {
    fn emit(self) {
        warn!(error = %self.error, "the state of the clocks was not stored; it is tried again");
    }
}

/// A handler can be used, but deserves a warning.
pub struct HandlerWarned<'a> {
    /// What the operator should know.
    pub warning: &'a HandlerWarning,
}

impl InternalEvent for HandlerWarned<'_> {
    fn emit(self) {
        warn!(warning = %self.warning, "handler warning");
    }
}

/// Commands are not where they should be yet, and somebody waits for it.
pub struct CommandSyncDelayed<'a> {
    /// Why.
    pub why: &'a str,
    /// How long until it is tried again.
    pub pause: Duration,
}

impl InternalEvent for CommandSyncDelayed<'_> {
    fn emit(self) {
        let again_in_ms = u64::try_from(self.pause.as_millis()).unwrap_or(u64::MAX);
        warn!(why = self.why, again_in_ms, "the commands are not there yet; waiting for the next try");
    }
}

/// What became of shards that this process has, or had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardOwnershipChange {
    /// They are its own.
    Taken,
    /// They may be another process's.
    Lost,
    /// It gave them back.
    Released,
}

/// Shards have come or gone.
pub struct ShardsChanged<'a> {
    /// How.
    pub became: ShardOwnershipChange,
    /// Which.
    pub shards: &'a [u32],
    /// How many this process has now.
    pub held: usize,
}

impl InternalEvent for ShardsChanged<'_> {
    fn emit(self) {
        let (shards, held, moved) = (format!("{:?}", self.shards), self.held, self.shards.len() as u64);
        let what = match self.became {
            ShardOwnershipChange::Taken => {
                info!(shards, held, "shards are this process's own");
                "taken"
            }
            ShardOwnershipChange::Lost => {
                warn!(
                    shards,
                    held, "shards were lost: this process was not seen alive in time, and another may have them"
                );
                "lost"
            }
            ShardOwnershipChange::Released => {
                info!(shards, held, "shards were given back, for others to go on with");
                "released"
            }
        };
        counter!(GATEWAY_SHARD_CLAIMS, "what" => what).increment(moved);
        #[expect(clippy::cast_precision_loss, reason = "there are few")]
        gauge!(GATEWAY_SHARDS_HELD).set(held as f64);
    }
}

/// It cannot be found out which shards this process may have.
pub struct ShardClaimFailed<'a> {
    /// Why.
    pub why: &'a str,
}

impl InternalEvent for ShardClaimFailed<'_> {
    fn emit(self) {
        warn!(why = self.why, "cannot claim shards; it is tried again");
    }
}

/// A budget of the settings cannot be had.
pub struct BudgetRejected<'a> {
    /// Which.
    pub name: &'a BudgetName,
    /// Why not.
    pub error: &'a BudgetError,
}

impl InternalEvent for BudgetRejected<'_> {
    fn emit(self) {
        warn!(bucket = %self.name, error = %self.error, "a budget of the settings cannot be had");
    }
}

/// The listener accepts connections.
pub struct ListenerStarted {
    /// Where, with the real port.
    pub address: SocketAddr,
    /// Whether it speaks TLS.
    pub tls: bool,
}

impl InternalEvent for ListenerStarted {
    fn emit(self) {
        info!(address = %self.address, tls = self.tls, "listening");
    }
}

/// How the global limit is shared with other processes of the bot.
pub struct LimitSharingChosen {
    /// `alone`, `store` or `redis`.
    pub sharing: &'static str,
    /// Calls in any window, over all of them.
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

/// A part became ready.
pub struct ComponentReady {
    /// Its name.
    pub part: &'static str,
}

impl InternalEvent for ComponentReady {
    fn emit(self) {
        info!(part = self.part, "part is ready");
        gauge!(READY, "part" => self.part).set(1);
    }
}

/// A part is not ready (any more).
pub struct ComponentNotReady<'a> {
    /// Its name.
    pub part: &'static str,
    /// Why.
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
    /// Which process, by which part, and why.
    pub end: &'a ProcessEnd,
    /// How long ago.
    pub ago: Duration,
}

impl InternalEvent for PreviousProcessEnd<'_> {
    fn emit(self) {
        let Self { end: ProcessEnd { instance, part, cause, .. }, ago } = self;
        warn!(instance, part, cause, ago_s = ago.as_secs(), "previous process was ended by a part");
    }
}

/// How many processes each part has ended lately.
pub struct ProcessEndsCounted {
    /// Every part that has ended one since this process started, also if that is long ago now.
    pub ends: BTreeMap<&'static str, u32>,
}

impl InternalEvent for ProcessEndsCounted {
    fn emit(self) {
        for (part, ends) in self.ends {
            gauge!(PROCESS_ENDS, "part" => part).set(ends);
        }
    }
}

/// The process was asked to end, or has to.
pub struct ShutdownStarted<'a> {
    /// Why.
    pub reason: &'a str,
}

impl InternalEvent for ShutdownStarted<'_> {
    fn emit(self) {
        info!(reason = self.reason, "shutting down");
    }
}

/// Everything has ended as it should.
pub struct ShutdownFinished;

impl InternalEvent for ShutdownFinished {
    fn emit(self) {
        info!("shut down");
    }
}

/// What was kept long enough is gone.
pub struct SweepCompleted {
    /// How much of it.
    pub swept: guildhall_actors::ports::SweepSummary,
}

impl InternalEvent for SweepCompleted {
    fn emit(self) {
        let guildhall_actors::ports::SweepSummary {
            operations,
            letters,
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
            "swept what was kept long enough"
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

/// What was kept long enough could not be removed.
pub struct SweepFailed<'a> {
    /// Why.
    pub error: &'a StoreError,
}

impl InternalEvent for SweepFailed<'_> {
    fn emit(self) {
        warn!(error = %self.error, "cannot sweep what was kept long enough; it is tried again");
    }
}

/// What callers use of the store was counted.
pub struct UsageCounted<'a> {
    /// What each of them uses, and may use.
    pub usage: &'a StoreUsage,
}

impl InternalEvent for UsageCounted<'_> {
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    fn emit(self) {
        let mut largest = BTreeMap::from([("key", 0.0_f64), ("tenant", 0.0), ("operator", 0.0)]);
        for scope in &self.usage.scopes {
            let known = largest.entry(scope.scope.kind()).or_default();
            *known = known.max(scope.limit.ratio(scope.used));
        }
        if let Some(file) = self.usage.file {
            largest.insert("file", file.used as f64 / file.most.max(1) as f64);
        }
        for (by, ratio) in largest {
            gauge!(STORE_USAGE_RATIO, "by" => by).set(ratio);
        }
    }
}

/// What waits was counted.
pub struct DepthsCounted<'a> {
    /// How many operations are in each state that is not final, and how many dead letters and dead events there are.
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
    /// What has changed.
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

/// The settings were not reloaded, and nothing has changed.
pub struct ReloadFailed<'a> {
    /// Why.
    pub error: &'a ReloadError,
}

impl InternalEvent for ReloadFailed<'_> {
    fn emit(self) {
        error!(errors = %self.error, "reload failed: nothing was applied");
        counter!(RELOADS, "result" => "failed").increment(1);
    }
}
