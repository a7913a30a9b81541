//! The processes, their shards, their settings, and what is used of their store.

use std::collections::BTreeMap;
use std::time::Duration;

use guildhall_actors::ports::{self, ShardView, StoredSession};
use guildhall_actors::submission::OperationBacklog;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ShardState, Time, UsageOwner};

/// All processes.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Instances {
    pub(crate) instances: Vec<Instance>,
}

/// A process that shares the store.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Instance {
    #[schema(format = "uuid")]
    pub(crate) id: String,
    /// `store.instance` of the settings.
    pub(crate) name: String,
    /// Whether it is the process that responds.
    pub(crate) is_self: bool,
    pub(crate) started_at: Time,
    /// Time since its last heartbeat.
    pub(crate) lag_ms: u64,
    /// Time until its lease expires without renewal; `null` for the only process of an SQLite file.
    pub(crate) lease_left_ms: Option<u64>,
    /// Whether it has just started, and takes no queues until it can send.
    pub(crate) arriving: bool,
    /// Whether it is shutting down.
    pub(crate) leaving: bool,
    /// Number of queues that it owns.
    pub(crate) queues: u64,
    /// The highest fence of those queues.
    pub(crate) highest_fence: Option<u64>,
    /// The shards that it owns.
    pub(crate) shards: Vec<u32>,
}

impl From<&ports::Instance> for Instance {
    fn from(instance: &ports::Instance) -> Self {
        Self {
            id: instance.id.to_string(),
            name: instance.name.clone(),
            is_self: instance.is_self,
            started_at: instance.started_at.into(),
            lag_ms: millis(instance.heartbeat_age),
            lease_left_ms: instance.lease_remaining.map(millis),
            arriving: instance.starting,
            leaving: instance.stopping,
            queues: instance.queues,
            highest_fence: instance.highest_fence,
            shards: instance.shards.clone(),
        }
    }
}

/// Work that is pending or needs attention.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Queues {
    /// Number of operations in each state that is not final.
    pub(crate) pending: BTreeMap<String, u64>,
    /// Number of dead letters that were not redriven.
    pub(crate) dead_letters: u64,
    /// Number of dead events.
    pub(crate) dead_events: u64,
    /// Whether everything is paused.
    pub(crate) all_paused: bool,
    /// Number of guilds that are paused individually.
    pub(crate) paused_guilds: usize,
}

impl From<OperationBacklog> for Queues {
    fn from(backlog: OperationBacklog) -> Self {
        let OperationBacklog { pending, dead_letters, dead_events, all_paused, paused_guilds } = backlog;
        let pending = pending.into_iter().map(|(state, count)| (state.to_owned(), count)).collect();
        Self { pending, dead_letters, dead_events, all_paused, paused_guilds }
    }
}

/// A page of shards.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Shards {
    pub(crate) shards: Vec<Shard>,
    /// Number of shards in all processes.
    pub(crate) total: u32,
    /// Value of `cursor` for the next page; `null` on the last page.
    pub(crate) next: Option<String>,
}

/// A shard of the gateway.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub(crate) struct Shard {
    pub(crate) id: u32,
    /// The state of its connection.
    pub(crate) state: ShardState,
    /// The session that it would resume.
    pub(crate) session: Option<String>,
    /// Sequence number of the last received event.
    pub(crate) sequence: Option<u64>,
    /// Sequence number up to which all events are handled.
    pub(crate) confirmed: Option<u64>,
    /// The difference between the two.
    pub(crate) lag: Option<u64>,
    /// Time until a heartbeat is acknowledged.
    pub(crate) latency_ms: Option<u64>,
    /// The process that owns it.
    pub(crate) instance: Option<String>,
    pub(crate) resumes: Option<u64>,
    pub(crate) identifies: Option<u64>,
}

impl Shard {
    /// A shard of this process.
    pub(crate) fn own(view: &ShardView, instance: Option<&str>) -> Self {
        Self {
            id: view.shard,
            state: view.state.name().into(),
            session: view.session.as_deref().map(str::to_owned),
            sequence: Some(view.sequence),
            confirmed: view.confirmed,
            lag: view.confirmed.map(|confirmed| view.sequence.saturating_sub(confirmed)),
            latency_ms: view.latency.map(millis),
            instance: instance.map(str::to_owned),
            resumes: Some(view.resumes),
            identifies: Some(view.identifies),
        }
    }

    /// A shard of another process, as far as the store knows it.
    pub(crate) fn of_other(id: u32, instance: Option<&str>, session: Option<&StoredSession>) -> Self {
        Self {
            id,
            state: if instance.is_some() { "elsewhere" } else { "unclaimed" }.into(),
            session: session.map(|session| session.session.to_string()),
            confirmed: session.map(|session| session.confirmed),
            instance: instance.map(str::to_owned),
            ..Self::default()
        }
    }
}

/// The response to the restart of a shard.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ShardRestarting {
    pub(crate) id: u32,
    pub(crate) restarting: bool,
}

/// What is used of the store.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct StoreUsage {
    pub(crate) usage: Vec<ScopeUsage>,
    /// The SQLite file, for the operator.
    pub(crate) file: Option<FileUsage>,
}

/// What a caller uses of the store.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ScopeUsage {
    /// The owner of this share of the store.
    pub(crate) by: UsageOwner,
    /// The id of the key, the tenant, `admin`, or `handler:` and the name of a handler.
    pub(crate) name: String,
    /// Number of unfinished operations.
    #[schema(minimum = 0)]
    pub(crate) operations: i64,
    /// The maximum; `null`: no limit.
    pub(crate) max_operations: Option<u64>,
    /// Stored bytes: operations until they are swept, dead letters, idempotency keys.
    #[schema(minimum = 0)]
    pub(crate) bytes: i64,
    /// The maximum; `null`: no limit.
    pub(crate) max_bytes: Option<u64>,
    /// The larger of the two used fractions; 1 is at the bound.
    #[schema(minimum = 0)]
    pub(crate) ratio: f64,
}

impl From<&ports::ScopeUsage> for ScopeUsage {
    fn from(ports::ScopeUsage { scope, used, limit }: &ports::ScopeUsage) -> Self {
        // 0 means no limit.
        let limit_or_null = |limit: u64| (limit > 0).then_some(limit);
        Self {
            by: scope.kind().into(),
            name: scope.name().to_owned(),
            operations: used.operations.max(0),
            max_operations: limit_or_null(limit.operations),
            bytes: used.bytes.max(0),
            max_bytes: limit_or_null(limit.bytes),
            ratio: limit.ratio(*used),
        }
    }
}

/// What is used of the SQLite file.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct FileUsage {
    /// Bytes in use.
    pub(crate) bytes: u64,
    /// Above this, new operations are rejected.
    pub(crate) accepts_until_bytes: u64,
    /// Maximum size of the file.
    pub(crate) max_bytes: u64,
}

impl From<ports::FileUsage> for FileUsage {
    fn from(file: ports::FileUsage) -> Self {
        Self { bytes: file.used, accepts_until_bytes: file.accepts_until, max_bytes: file.max_bytes }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
