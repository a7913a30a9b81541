//! Every metric's name and meaning, in one place. No guild, user or free text is ever a label.

use guildhall_actors::telemetry;
use guildhall_actors::telemetry::{Metric, MetricType, events};
use metrics::{Unit, gauge};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// Always 1; its label says which version runs.
pub const BUILD_INFO: &str = "guildhall_build_info";
/// Processes that a part has ended within the last hour, by part.
pub const PROCESS_ENDS: &str = "guildhall_process_ends";
/// 1 when a part is ready, else 0.
pub const READY: &str = "guildhall_ready";
/// Dispatches received, by type.
pub const GATEWAY_EVENTS: &str = "guildhall_gateway_events_total";
/// 1 while a shard has a session that receives events, else 0.
pub const GATEWAY_SHARD_CONNECTED: &str = "guildhall_gateway_shard_connected";
/// Sessions that began or went on, by how.
pub const GATEWAY_SESSIONS: &str = "guildhall_gateway_sessions_total";
/// Connections that ended or could not be made, by why.
pub const GATEWAY_DISCONNECTS: &str = "guildhall_gateway_disconnects_total";
/// Connections that ended or could not be made, and were made anew, by why.
pub const GATEWAY_RECONNECTS: &str = "guildhall_gateway_reconnects_total";
/// Frames that could not be read.
pub const GATEWAY_MALFORMED: &str = "guildhall_gateway_malformed_total";
/// How often a shard left because there was no room for its events.
pub const GATEWAY_PAUSED: &str = "guildhall_gateway_paused_total";
/// Shards that this process has claimed, lost or given back.
pub const GATEWAY_SHARD_CLAIMS: &str = "guildhall_gateway_shard_claims_total";
/// How many shards this process has.
pub const GATEWAY_SHARDS_HELD: &str = "guildhall_gateway_shards_held";
/// Events that were dropped for want of room, by class.
pub const GATEWAY_SHED: &str = "guildhall_gateway_shed_total";
/// Wishes to identify, by result.
pub const GATEWAY_IDENTIFIES: &str = "guildhall_gateway_identifies_total";
/// 1 while there is a connection to Redis, else 0.
pub const REDIS_UP: &str = "guildhall_redis_up";
/// Calls to Redis, by script and result.
pub const REDIS_CALLS: &str = "guildhall_redis_calls_total";
/// How long calls to Redis took.
pub const REDIS_CALL_SECONDS: &str = "guildhall_redis_call_seconds";
/// Idempotency keys that could not be put into Redis.
pub const IDEMPOTENCY_FORGOTTEN: &str = "guildhall_idempotency_forgotten_total";
/// Requests to the API, by route and status.
pub const API_REQUESTS: &str = "guildhall_api_requests_total";
/// How long requests to the API took, by route.
pub const API_REQUEST_SECONDS: &str = "guildhall_api_request_seconds";
/// Requests that were refused because their caller asked too much, by policy.
pub const API_LIMITED: &str = "guildhall_api_limited_total";
/// Requests whose operations are due later because their caller asked too much, by policy.
pub const API_DELAYED: &str = "guildhall_api_delayed_total";
/// Requests of callers that were counted together with others, by policy: there were too many callers.
pub const API_UNTRACKED: &str = "guildhall_api_untracked_total";
/// Keys that were looked up in the store, by result.
pub const API_KEY_LOOKUPS: &str = "guildhall_api_key_lookups_total";
/// 1 while requests are counted together with other processes, else 0.
pub const API_POLICIES_SHARED: &str = "guildhall_api_policies_shared";
/// Connections that are served.
pub const API_CONNECTIONS: &str = "guildhall_api_connections";
/// Connections that were not served, by why.
pub const API_CONNECTIONS_REFUSED: &str = "guildhall_api_connections_refused_total";
/// Connections that were cut, by why.
pub const API_CONNECTIONS_CUT: &str = "guildhall_api_connections_cut_total";
/// How often the API's certificate was read again, by result.
pub const API_CERTIFICATE_LOADS: &str = "guildhall_api_certificate_loads_total";
/// What people changed by hand that the daemon does by itself, by what they did.
pub const API_INTERVENTIONS: &str = "guildhall_api_interventions_total";
/// Streams of operations that are open.
pub const API_STREAMS: &str = "guildhall_api_streams";
/// Streams of operations that have ended, by why.
pub const API_STREAMS_ENDED: &str = "guildhall_api_streams_ended_total";
/// Callers that wanted to wait for what they submitted, by what came of it.
pub const API_WAITS: &str = "guildhall_api_waits_total";
/// What was posted as an interaction and not signed by Discord, by what is wrong with it.
pub const INTERACTIONS_REFUSED: &str = "guildhall_interactions_refused_total";
/// What waits: operations by their state, and events.
pub use guildhall_actors::telemetry::events::QUEUE_DEPTH;
/// Operations that were given up, are kept for a person, and are not done again.
pub const DEAD_LETTERS: &str = "guildhall_dead_letters";
/// Events that were given up for a handler, and are kept for a person.
pub const DEAD_EVENTS: &str = "guildhall_dead_events";
/// How far this machine's clock is ahead of another, in seconds, by whose.
pub const CLOCK_OFFSET: &str = "guildhall_clock_offset_seconds";
/// By how much expiry lags behind store time, because a clock was set.
pub const CLOCK_EXPIRY_LAG: &str = "guildhall_clock_expiry_lag_seconds";
/// Rows that were removed because they were kept long enough, by what they were.
pub const STORE_SWEPT: &str = "guildhall_store_swept_total";
/// Queues that this process took to look after.
pub const CLAIMS: &str = "guildhall_claims_total";
/// Writes that changed nothing because their queue belonged to another process.
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
/// How often others took this process for dead.
pub const DISOWNED: &str = "guildhall_disowned_total";
/// 1 while the store can be written to, else 0.
pub const STORE_UP: &str = "guildhall_store_up";
/// 1 if PostgreSQL itself keeps callers to the rows of their tenant, else 0.
pub const STORE_ROW_SECURITY: &str = "guildhall_store_row_security";
/// The largest part of a bound on what is stored that is used: by a key, a tenant, the operator, or the file.
pub const STORE_USAGE_RATIO: &str = "guildhall_store_usage_ratio";
/// How large the SQLite file may grow.
pub const STORE_FILE_BOUND: &str = "guildhall_store_file_bound_bytes";
/// Reloads of the settings.
pub const RELOADS: &str = "guildhall_reloads_total";
/// Submissions that were refused since they would pass a bound on what is stored.
pub const STORE_REFUSED: &str = "guildhall_store_refused_total";
/// Batches of writes that were committed.
pub const STORE_BATCHES: &str = "guildhall_store_batches_total";
/// How many requests a batch held.
pub const STORE_BATCH_REQUESTS: &str = "guildhall_store_batch_requests";
/// How long a batch took, from its first statement until it was committed.
pub const STORE_BATCH_SECONDS: &str = "guildhall_store_batch_seconds";
/// What failed, and why.
pub const STORE_ERRORS: &str = "guildhall_store_errors_total";
/// Spans that a collector took.
pub const SPANS_EXPORTED: &str = "guildhall_spans_exported_total";
/// Spans that were given up, by why.
pub const SPANS_DROPPED: &str = "guildhall_spans_dropped_total";
/// Events that a webhook was asked about, by handler and by what came of it.
pub const WEBHOOK_REQUESTS: &str = "guildhall_webhook_requests_total";
/// How long webhooks took to answer, by handler.
pub const WEBHOOK_REQUEST_SECONDS: &str = "guildhall_webhook_request_seconds";
/// When the process started, in seconds since 1970.
pub const PROCESS_START_TIME: &str = "process_start_time_seconds";
/// Time of processors that the process used.
pub const PROCESS_CPU: &str = "process_cpu_seconds_total";
/// Memory the process holds in RAM.
pub const PROCESS_RESIDENT_MEMORY: &str = "process_resident_memory_bytes";
/// Files and sockets the process has open.
pub const PROCESS_OPEN_FDS: &str = "process_open_fds";
/// How many of them it may have open.
pub const PROCESS_MAX_FDS: &str = "process_max_fds";

/// Where the buckets of histograms end, in seconds: from a millisecond to Discord's longest waits.
const BUCKETS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0];

/// Where the buckets of what is done with events end: most of it is done within milliseconds.
const EVENT_BUCKETS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.003, 0.005, 0.007_5, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 10.0,
];

/// Where the buckets of numbers end that are no times.
const COUNT_BUCKETS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0];

/// Where the buckets of a histogram end.
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
/// When the process already has a recorder.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let mut builder = PrometheusBuilder::new().set_buckets(BUCKETS)?;
    for metric in all().filter(|metric| metric.kind == MetricType::Histogram) {
        builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), buckets(metric))?;
    }
    let handle = builder.install_recorder()?;
    // The exporter counts whole numbers only: processor time is written beside it.
    all().filter(|metric| metric.name != PROCESS_CPU).for_each(Metric::describe);
    gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1);
    Ok(handle)
}

/// All of them but the process's own.
const METRICS: &[Metric] = &[
    Metric::gauge(BUILD_INFO, &["version"], "Always 1; the label says which version runs."),
    Metric::gauge(
        PROCESS_ENDS,
        &["part"],
        "Processes of this store that the end of a part has ended within the last hour, by part.",
    ),
    Metric::gauge(READY, &["part"], "1 when a part is ready, else 0."),
    Metric::counter(GATEWAY_EVENTS, &["type"], "Gateway dispatches received, by type."),
    Metric::gauge(GATEWAY_SHARD_CONNECTED, &["shard"], "1 while a shard has a session that receives events, else 0."),
    Metric::counter(GATEWAY_SESSIONS, &["how"], "Gateway sessions that began (ready) or went on (resumed)."),
    Metric::counter(GATEWAY_DISCONNECTS, &["why"], "Gateway connections that ended or could not be made, by why."),
    Metric::counter(
        GATEWAY_RECONNECTS,
        &["why"],
        "Gateway connections that were made anew, by why the one before ended.",
    ),
    Metric::counter(GATEWAY_MALFORMED, &[], "Gateway frames that could not be read, and were skipped."),
    Metric::counter(GATEWAY_PAUSED, &[], "How often a shard left because there was no room for its events."),
    Metric::counter(GATEWAY_SHARD_CLAIMS, &["what"], "Shards that this process has taken, lost or given back."),
    Metric::gauge(GATEWAY_SHARDS_HELD, &[], "How many shards this process has."),
    Metric::counter(GATEWAY_SHED, &["class"], "Gateway events that were dropped because there was no room, by class."),
    Metric::counter(GATEWAY_IDENTIFIES, &["result"], "Wishes to identify: granted, or why not (spent, uncounted)."),
    Metric::gauge(REDIS_UP, &[], "1 while there is a connection to Redis, else 0."),
    Metric::counter(
        REDIS_CALLS,
        &["script", "result"],
        "Calls to Redis, by script and result (ok, or why it was lost).",
    ),
    Metric::histogram(REDIS_CALL_SECONDS, &[], "How long calls to Redis took, lost ones included.")
        .in_unit(Unit::Seconds),
    Metric::counter(
        IDEMPOTENCY_FORGOTTEN,
        &[],
        "Idempotency keys that could not be put into Redis; the store has them.",
    ),
    Metric::counter(API_REQUESTS, &["route", "method", "status"], "Requests to the API, by route and status."),
    Metric::histogram(API_REQUEST_SECONDS, &["route"], "How long requests to the API took, by route.")
        .in_unit(Unit::Seconds),
    Metric::counter(API_LIMITED, &["policy"], "Requests refused because their caller asked too much, by policy."),
    Metric::counter(
        API_DELAYED,
        &["policy"],
        "Requests whose operations are due later because their caller asked too much, by policy.",
    ),
    Metric::counter(
        API_UNTRACKED,
        &["policy"],
        "Requests counted together with those of others, since there were too many callers, by policy.",
    ),
    Metric::counter(
        API_KEY_LOOKUPS,
        &["result"],
        "Keys that were looked up in the store: found, unknown, failed (the store), or busy (too many others).",
    ),
    Metric::gauge(
        API_POLICIES_SHARED,
        &[],
        "1 while requests to the API are counted together with other processes, else 0.",
    ),
    Metric::gauge(API_CONNECTIONS, &[], "Connections to the API that are served, and those for interactions."),
    Metric::counter(
        API_CONNECTIONS_REFUSED,
        &["why"],
        "Connections that were not served: full, flood (so many that they were hardly told), or ending.",
    ),
    Metric::counter(
        API_CONNECTIONS_CUT,
        &["why"],
        "Connections that were cut: slow_header, unread, slow_handshake, or a handshake that failed.",
    ),
    Metric::counter(
        API_CERTIFICATE_LOADS,
        &["result"],
        "How often the API's certificate had changed, and was read again (ok) or could not be (error).",
    ),
    Metric::gauge(API_STREAMS, &[], "Streams of operations that are open."),
    Metric::counter(
        API_STREAMS_ENDED,
        &["why"],
        "Streams that have ended: gone, stalled (dropped, since nobody read), revoked or draining.",
    ),
    Metric::counter(
        API_WAITS,
        &["result"],
        "Callers that wanted to wait for what they submitted: ended, late, refused or draining.",
    ),
    Metric::counter(
        API_INTERVENTIONS,
        &["action"],
        "What people changed by hand that the daemon does by itself: breakers.force, breakers.reset, shards.restart.",
    ),
    Metric::counter(
        INTERACTIONS_REFUSED,
        &["why"],
        "What was posted as an interaction and not signed by Discord, by why.",
    ),
    Metric::gauge(DEAD_LETTERS, &[], "Operations that were given up, are kept for a person, and are not done again."),
    Metric::gauge(DEAD_EVENTS, &[], "Events that were given up for a handler, and are kept for a person."),
    Metric::counter(STORE_SWEPT, &["what"], "Rows removed because they were kept long enough, by what they were."),
    Metric::gauge(
        CLOCK_OFFSET,
        &["reference"],
        "How far this machine's clock is ahead of another, by whose: discord or database. Negative if it is behind.",
    )
    .in_unit(Unit::Seconds),
    Metric::gauge(
        CLOCK_EXPIRY_LAG,
        &[],
        "By how much expiry of stored data is delayed, because a clock was set or is not confirmed.",
    )
    .in_unit(Unit::Seconds),
    Metric::counter(CLAIMS, &[], "Queues that this process took to look after."),
    Metric::counter(FENCED_WRITES, &[], "Writes that changed nothing because their queue belonged to another process."),
    Metric::gauge(INSTANCES, &[], "Processes that share the store, this one included."),
    Metric::gauge(LIMIT_MEMBERS, &[], "Processes of the store that divide the global limit, this one included."),
    Metric::gauge(LEASE_HELD, &[], "1 while this process may send for its queues, else 0."),
    Metric::counter(TAKE_OVERS, &[], "Processes that this one took for dead, and took over from."),
    Metric::counter(TAKEN_OVER, &[], "Queues that were taken over from processes that were gone."),
    Metric::counter(DISOWNED, &[], "How often others took this process for dead."),
    Metric::gauge(STORE_UP, &[], "1 while the store can be written to, else 0."),
    Metric::gauge(STORE_ROW_SECURITY, &[], "1 if PostgreSQL itself keeps callers to their tenant's rows, else 0."),
    Metric::gauge(
        STORE_USAGE_RATIO,
        &["by"],
        "The largest part of a bound on stored data that is used, by what has the bound: key, tenant, operator or file.",
    ),
    Metric::gauge(STORE_FILE_BOUND, &[], "How large the SQLite file may grow, in bytes.").in_unit(Unit::Bytes),
    Metric::counter(RELOADS, &["result"], "Reloads of the settings, by result: applied or failed."),
    Metric::counter(
        STORE_REFUSED,
        &["bound"],
        "Submissions refused because they would pass a bound on stored data, by bound.",
    ),
    Metric::counter(STORE_BATCHES, &[], "Batches of writes that were committed to the store."),
    Metric::histogram(STORE_BATCH_REQUESTS, &[], "How many requests a batch of writes held."),
    Metric::histogram(STORE_BATCH_SECONDS, &[], "How long a batch of writes took, its commit included.")
        .in_unit(Unit::Seconds),
    Metric::counter(STORE_ERRORS, &["what", "why"], "Calls to the store that failed, by what was tried and why."),
    Metric::counter(SPANS_EXPORTED, &[], "Spans that an OpenTelemetry collector took."),
    Metric::counter(
        SPANS_DROPPED,
        &["why"],
        "Spans that no collector was told of: full, refused, rejected or unreachable.",
    ),
    Metric::counter(
        WEBHOOK_REQUESTS,
        &["handler", "outcome"],
        "Events that a webhook was asked about, by handler and outcome.",
    ),
    Metric::histogram(WEBHOOK_REQUEST_SECONDS, &["handler"], "How long webhooks took to answer, by handler.")
        .in_unit(Unit::Seconds),
];

/// What the operating system knows about the process.
const PROCESS: &[Metric] = &[
    Metric::counter(PROCESS_CPU, &[], "Time of processors that the process used, in seconds.").in_unit(Unit::Seconds),
    Metric::gauge(PROCESS_START_TIME, &[], "When the process started, in seconds since 1970.").in_unit(Unit::Seconds),
    Metric::gauge(PROCESS_RESIDENT_MEMORY, &[], "Memory the process holds in RAM.").in_unit(Unit::Bytes),
    Metric::gauge(PROCESS_OPEN_FDS, &[], "Files and sockets the process has open."),
    Metric::gauge(PROCESS_MAX_FDS, &[], "How many files and sockets the process may have open."),
];

/// Every metric that there is.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    METRICS.iter().chain(PROCESS).chain(telemetry::metrics())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_have_buckets_of_what_they_measure() {
        for metric in all().filter(|metric| metric.kind == MetricType::Histogram) {
            let (name, ends) = (metric.name, buckets(metric));
            assert!(ends.is_sorted(), "{name}");
            let is_of_times = ends[0] < 1.0;
            assert_eq!(is_of_times, metric.unit == Some(Unit::Seconds), "{name}");
            assert_eq!(is_of_times, name.ends_with("_seconds"), "{name} says what it measures");
        }
    }
}
