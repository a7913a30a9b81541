//! Names and help texts of all metrics. No guild, user or free text is ever a label.

use guildhall_actors::telemetry;
use guildhall_actors::telemetry::{Metric, MetricType, events};
use metrics::{Unit, gauge};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// Always 1; the label is the running version.
pub const BUILD_INFO: &str = "guildhall_build_info";
/// Processes of this store that were ended by a part within the last hour, by part.
pub const PROCESS_ENDS: &str = "guildhall_process_ends";
/// 1 when a part is ready, else 0.
pub const READY: &str = "guildhall_ready";
/// Shards that this process has claimed, lost or released.
pub const GATEWAY_SHARD_CLAIMS: &str = "guildhall_gateway_shard_claims_total";
/// Shards that this process owns.
pub const GATEWAY_SHARDS_HELD: &str = "guildhall_gateway_shards_held";
/// Requests for permission to identify, by result.
pub const GATEWAY_IDENTIFIES: &str = "guildhall_gateway_identifies_total";
/// 1 while the connection to Redis is up, else 0.
pub const REDIS_UP: &str = "guildhall_redis_up";
/// Calls to Redis, by script and result.
pub const REDIS_CALLS: &str = "guildhall_redis_calls_total";
/// Duration of calls to Redis.
pub const REDIS_CALL_SECONDS: &str = "guildhall_redis_call_seconds";
/// Idempotency keys that could not be written to Redis.
pub const IDEMPOTENCY_FORGOTTEN: &str = "guildhall_idempotency_forgotten_total";
/// Requests to the API, by route and status.
pub const API_REQUESTS: &str = "guildhall_api_requests_total";
/// Duration of API requests, by route.
pub const API_REQUEST_SECONDS: &str = "guildhall_api_request_seconds";
/// Requests that were rejected by a rate limit, by policy.
pub const API_LIMITED: &str = "guildhall_api_limited_total";
/// Requests whose operations were postponed by a rate limit, by policy.
pub const API_DELAYED: &str = "guildhall_api_delayed_total";
/// Requests that were counted together with those of other callers because too many callers are tracked, by policy.
pub const API_UNTRACKED: &str = "guildhall_api_untracked_total";
/// Keys that were looked up in the store, by result.
pub const API_KEY_LOOKUPS: &str = "guildhall_api_key_lookups_total";
/// 1 while requests are counted together with other processes, else 0.
pub const API_POLICIES_SHARED: &str = "guildhall_api_policies_shared";
/// Open connections.
pub const API_CONNECTIONS: &str = "guildhall_api_connections";
/// Connections that were refused, by reason.
pub const API_CONNECTIONS_REFUSED: &str = "guildhall_api_connections_refused_total";
/// Connections that were closed by the daemon, by reason.
pub const API_CONNECTIONS_CUT: &str = "guildhall_api_connections_cut_total";
/// Reloads of the API certificate, by result.
pub const API_CERTIFICATE_LOADS: &str = "guildhall_api_certificate_loads_total";
/// Manual interventions in what the daemon does by itself, by action.
pub const API_INTERVENTIONS: &str = "guildhall_api_interventions_total";
/// Open operation streams.
pub const API_STREAMS: &str = "guildhall_api_streams";
/// Operation streams that ended, by reason.
pub const API_STREAMS_ENDED: &str = "guildhall_api_streams_ended_total";
/// Requests that waited for the operations that they submitted, by result.
pub const API_WAITS: &str = "guildhall_api_waits_total";
/// Interaction requests without a valid signature of Discord, by reason.
pub const INTERACTIONS_REFUSED: &str = "guildhall_interactions_refused_total";
/// Queue depth: operations by state, and events.
pub use guildhall_actors::telemetry::events::QUEUE_DEPTH;
/// Operations that failed finally and are stored for review. They are not retried automatically.
pub const DEAD_LETTERS: &str = "guildhall_dead_letters";
/// Events that failed finally for a handler and are stored for review.
pub const DEAD_EVENTS: &str = "guildhall_dead_events";
/// How far this machine's clock is ahead of a reference clock, in seconds, by reference.
pub const CLOCK_OFFSET: &str = "guildhall_clock_offset_seconds";
/// How far expiry lags behind store time because a clock was set.
pub const CLOCK_EXPIRY_LAG: &str = "guildhall_clock_expiry_lag_seconds";
/// Rows that were removed because they expired, by kind.
pub const STORE_SWEPT: &str = "guildhall_store_swept_total";
/// Queues that this process has claimed.
pub const CLAIMS: &str = "guildhall_claims_total";
/// Writes that changed nothing because another process owns their queue.
pub const FENCED_WRITES: &str = "guildhall_fenced_writes_total";
/// Processes that share the store.
pub const INSTANCES: &str = "guildhall_instances";
/// Processes of the store that divide the global limit.
pub const LIMIT_MEMBERS: &str = "guildhall_limit_members";
/// Whether this process may send for its queues.
pub const LEASE_HELD: &str = "guildhall_lease_held";
/// Processes that this one took over from.
pub const TAKE_OVERS: &str = "guildhall_take_overs_total";
/// Queues that were taken over.
pub const TAKEN_OVER: &str = "guildhall_queues_taken_over_total";
/// Times that another process declared this process dead.
pub const DISOWNED: &str = "guildhall_disowned_total";
/// 1 while the store is writable, else 0.
pub const STORE_UP: &str = "guildhall_store_up";
/// 1 if PostgreSQL row-level security restricts callers to the rows of their tenant, else 0.
pub const STORE_ROW_SECURITY: &str = "guildhall_store_row_security";
/// Highest used share of a limit on stored data: of a key, a tenant, the operator, or the file.
pub const STORE_USAGE_RATIO: &str = "guildhall_store_usage_ratio";
/// Maximum size of the SQLite file.
pub const STORE_FILE_BOUND: &str = "guildhall_store_file_bound_bytes";
/// Reloads of the settings.
pub const RELOADS: &str = "guildhall_reloads_total";
/// Submissions that were refused because they would exceed a limit on stored data.
pub const STORE_REFUSED: &str = "guildhall_store_refused_total";
/// Batches of writes that were committed.
pub const STORE_BATCHES: &str = "guildhall_store_batches_total";
/// Requests per batch.
pub const STORE_BATCH_REQUESTS: &str = "guildhall_store_batch_requests";
/// Duration of a batch, from its first statement to its commit.
pub const STORE_BATCH_SECONDS: &str = "guildhall_store_batch_seconds";
/// Store calls that failed, by call and reason.
pub const STORE_ERRORS: &str = "guildhall_store_errors_total";
/// Spans that a collector accepted.
pub const SPANS_EXPORTED: &str = "guildhall_spans_exported_total";
/// Spans that were dropped, by reason.
pub const SPANS_DROPPED: &str = "guildhall_spans_dropped_total";
/// Events that were sent to a webhook, by handler and outcome.
pub const WEBHOOK_REQUESTS: &str = "guildhall_webhook_requests_total";
/// Response time of webhooks, by handler.
pub const WEBHOOK_REQUEST_SECONDS: &str = "guildhall_webhook_request_seconds";
/// Start time of the process, in seconds since 1970.
pub const PROCESS_START_TIME: &str = "process_start_time_seconds";
/// CPU time that the process used.
pub const PROCESS_CPU: &str = "process_cpu_seconds_total";
/// Resident memory of the process.
pub const PROCESS_RESIDENT_MEMORY: &str = "process_resident_memory_bytes";
/// Open files and sockets of the process.
pub const PROCESS_OPEN_FDS: &str = "process_open_fds";
/// Maximum number of open files and sockets of the process.
pub const PROCESS_MAX_FDS: &str = "process_max_fds";

/// Upper bounds of histogram buckets, in seconds: from a millisecond to Discord's longest waits.
const BUCKETS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0];

/// Upper bounds of histogram buckets for events: most are handled within milliseconds.
const EVENT_BUCKETS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.003, 0.005, 0.007_5, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 10.0,
];

/// Upper bounds of histogram buckets for counts.
const COUNT_BUCKETS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0];

/// Returns the upper bounds of the buckets of a histogram.
fn buckets(metric: &Metric) -> &'static [f64] {
    match metric.name {
        events::LATENCY | events::HANDLING | events::HANDLER_SECONDS => EVENT_BUCKETS,
        _ if metric.unit == Some(Unit::Seconds) => BUCKETS,
        _ => COUNT_BUCKETS,
    }
}

/// Installs the recorder for this process, and describes every metric to it.
///
/// # Errors
///
/// If the process already has a recorder.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let mut builder = PrometheusBuilder::new().set_buckets(BUCKETS)?;
    for metric in all().filter(|metric| metric.kind == MetricType::Histogram) {
        builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), buckets(metric))?;
    }
    let handle = builder.install_recorder()?;
    // The exporter has only integer counters, so processor time is written separately.
    all().filter(|metric| metric.name != PROCESS_CPU).for_each(Metric::describe);
    gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1);
    Ok(handle)
}

/// All metrics except those of the process.
const METRICS: &[Metric] = &[
    Metric::gauge(BUILD_INFO, &["version"], "Always 1; the label is the running version."),
    Metric::gauge(
        PROCESS_ENDS,
        &["part"],
        "Processes of this store that were ended by a part within the last hour, by part.",
    ),
    Metric::gauge(READY, &["part"], "1 when a part is ready, else 0."),
    Metric::counter(GATEWAY_SHARD_CLAIMS, &["what"], "Shards that this process has taken, lost or released."),
    Metric::gauge(GATEWAY_SHARDS_HELD, &[], "Shards that this process owns."),
    Metric::counter(
        GATEWAY_IDENTIFIES,
        &["result"],
        "Requests for permission to identify, by result: granted, spent \
        or uncounted.",
    ),
    Metric::gauge(REDIS_UP, &[], "1 while the connection to Redis is up, else 0."),
    Metric::counter(
        REDIS_CALLS,
        &["script", "result"],
        "Calls to Redis, by script and result (ok, or the reason of the failure).",
    ),
    Metric::histogram(REDIS_CALL_SECONDS, &[], "Duration of calls to Redis, including failed ones.")
        .in_unit(Unit::Seconds),
    Metric::counter(
        IDEMPOTENCY_FORGOTTEN,
        &[],
        "Idempotency keys that could not be written to Redis. They are still in the store.",
    ),
    Metric::counter(API_REQUESTS, &["route", "method", "status"], "Requests to the API, by route, method and status."),
    Metric::histogram(API_REQUEST_SECONDS, &["route"], "Duration of API requests, by route.").in_unit(Unit::Seconds),
    Metric::counter(API_LIMITED, &["policy"], "Requests rejected by a rate limit, by policy."),
    Metric::counter(API_DELAYED, &["policy"], "Requests whose operations were postponed by a rate limit, by policy."),
    Metric::counter(
        API_UNTRACKED,
        &["policy"],
        "Requests counted together with those of other callers because too many callers are tracked, by policy.",
    ),
    Metric::counter(
        API_KEY_LOOKUPS,
        &["result"],
        "Keys looked up in the store, by result: found, unknown, failed (store error) or busy (too many other \
         lookups).",
    ),
    Metric::gauge(API_POLICIES_SHARED, &[], "1 while API requests are counted together with other processes, else 0."),
    Metric::gauge(API_CONNECTIONS, &[], "Open connections to the API, including those for interactions."),
    Metric::counter(
        API_CONNECTIONS_REFUSED,
        &["why"],
        "Connections refused, by reason: full, flood (too many for a graceful close) or ending.",
    ),
    Metric::counter(
        API_CONNECTIONS_CUT,
        &["why"],
        "Connections closed by the daemon, by reason: slow_header, unread, slow_handshake, or a failed handshake.",
    ),
    Metric::counter(
        API_CERTIFICATE_LOADS,
        &["result"],
        "Reloads of a changed API certificate, by result: ok or error.",
    ),
    Metric::gauge(API_STREAMS, &[], "Open operation streams."),
    Metric::counter(
        API_STREAMS_ENDED,
        &["why"],
        "Operation streams that ended, by reason: gone, stalled (the client did not read), revoked or draining.",
    ),
    Metric::counter(
        API_WAITS,
        &["result"],
        "Requests that waited for their operations, by result: ended, late, refused or draining.",
    ),
    Metric::counter(
        API_INTERVENTIONS,
        &["action"],
        "Manual interventions, by action: breakers.force, breakers.reset, shards.restart.",
    ),
    Metric::counter(
        INTERACTIONS_REFUSED,
        &["why"],
        "Interaction requests without a valid signature of Discord, by reason.",
    ),
    Metric::gauge(
        DEAD_LETTERS,
        &[],
        "Operations that failed finally and are stored for review. They are not retried \
        automatically.",
    ),
    Metric::gauge(DEAD_EVENTS, &[], "Events that failed finally for a handler and are stored for review."),
    Metric::counter(STORE_SWEPT, &["what"], "Rows removed because they expired, by kind."),
    Metric::gauge(
        CLOCK_OFFSET,
        &["reference"],
        "How far this machine's clock is ahead of a reference clock (discord or database). Negative if it is behind.",
    )
    .in_unit(Unit::Seconds),
    Metric::gauge(
        CLOCK_EXPIRY_LAG,
        &[],
        "How far expiry of stored data is delayed because a clock was set or is not confirmed.",
    )
    .in_unit(Unit::Seconds),
    Metric::counter(CLAIMS, &[], "Queues that this process has claimed."),
    Metric::counter(FENCED_WRITES, &[], "Writes that changed nothing because another process owns their queue."),
    Metric::gauge(INSTANCES, &[], "Processes that share the store, including this one."),
    Metric::gauge(LIMIT_MEMBERS, &[], "Processes of the store that divide the global limit, including this one."),
    Metric::gauge(LEASE_HELD, &[], "1 while this process may send for its queues, else 0."),
    Metric::counter(TAKE_OVERS, &[], "Dead processes that this process took over from."),
    Metric::counter(TAKEN_OVER, &[], "Queues that were taken over from dead processes."),
    Metric::counter(DISOWNED, &[], "Times that another process declared this process dead."),
    Metric::gauge(STORE_UP, &[], "1 while the store is writable, else 0."),
    Metric::gauge(
        STORE_ROW_SECURITY,
        &[],
        "1 if PostgreSQL row-level security restricts callers to the rows of their \
        tenant, else 0.",
    ),
    Metric::gauge(
        STORE_USAGE_RATIO,
        &["by"],
        "Highest used share of a limit on stored data, by what the limit applies to: key, tenant, operator or file.",
    ),
    Metric::gauge(STORE_FILE_BOUND, &[], "Maximum size of the SQLite file, in bytes.").in_unit(Unit::Bytes),
    Metric::counter(RELOADS, &["result"], "Reloads of the settings, by result: applied or failed."),
    Metric::counter(
        STORE_REFUSED,
        &["bound"],
        "Submissions refused because they would exceed a limit on stored data, by limit.",
    ),
    Metric::counter(STORE_BATCHES, &[], "Batches of writes committed to the store."),
    Metric::histogram(STORE_BATCH_REQUESTS, &[], "Requests per batch of writes."),
    Metric::histogram(STORE_BATCH_SECONDS, &[], "Duration of a batch of writes, including its commit.")
        .in_unit(Unit::Seconds),
    Metric::counter(STORE_ERRORS, &["what", "why"], "Store calls that failed, by call and reason."),
    Metric::counter(SPANS_EXPORTED, &[], "Spans that an OpenTelemetry collector accepted."),
    Metric::counter(SPANS_DROPPED, &["why"], "Spans dropped, by reason: full, refused, rejected or unreachable."),
    Metric::counter(WEBHOOK_REQUESTS, &["handler", "outcome"], "Events sent to a webhook, by handler and outcome."),
    Metric::histogram(WEBHOOK_REQUEST_SECONDS, &["handler"], "Response time of webhooks, by handler.")
        .in_unit(Unit::Seconds),
];

/// Metrics that the operating system provides about the process.
const PROCESS: &[Metric] = &[
    Metric::counter(PROCESS_CPU, &[], "CPU time used by the process, in seconds.").in_unit(Unit::Seconds),
    Metric::gauge(PROCESS_START_TIME, &[], "Start time of the process, in seconds since 1970.").in_unit(Unit::Seconds),
    Metric::gauge(PROCESS_RESIDENT_MEMORY, &[], "Resident memory of the process.").in_unit(Unit::Bytes),
    Metric::gauge(PROCESS_OPEN_FDS, &[], "Open files and sockets of the process."),
    Metric::gauge(PROCESS_MAX_FDS, &[], "Maximum number of open files and sockets of the process."),
];

/// All metrics.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    METRICS.iter().chain(PROCESS).chain(telemetry::metrics())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_buckets_match_the_unit() {
        for metric in all().filter(|metric| metric.kind == MetricType::Histogram) {
            let (name, ends) = (metric.name, buckets(metric));
            assert!(ends.is_sorted(), "{name}");
            let measures_time = ends[0] < 1.0;
            assert_eq!(measures_time, metric.unit == Some(Unit::Seconds), "{name}");
            assert_eq!(measures_time, name.ends_with("_seconds"), "{name} ends in its unit");
        }
    }
}
