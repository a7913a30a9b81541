//! Every metric's name and meaning, in one place. No guild, user or free text is ever a label.

use guildhall_actors::telemetry::events;
use metrics::{Unit, describe_counter, describe_gauge, describe_histogram, gauge};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// Always 1; its label says which version runs.
pub const BUILD_INFO: &str = "guildhall_build_info";
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
/// What was posted as an interaction and not signed by Discord, by what is wrong with it.
pub const INTERACTIONS_REFUSED: &str = "guildhall_interactions_refused_total";
/// Operations that are not done, by their state.
pub const QUEUE_DEPTH: &str = "guildhall_queue_depth";
/// Operations that were given up, and are kept for a person.
pub const DEAD_LETTERS: &str = "guildhall_dead_letters";
/// Rows that were removed because they were kept long enough, by what they were.
pub const STORE_SWEPT: &str = "guildhall_store_swept_total";
/// Queues that this process took to look after.
pub const CLAIMS: &str = "guildhall_claims_total";
/// Writes that changed nothing because their queue belonged to another process.
pub const FENCED_WRITES: &str = "guildhall_fenced_writes_total";
/// Processes that share the store.
pub const INSTANCES: &str = "guildhall_instances";
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
/// Batches of writes that were committed.
pub const STORE_BATCHES: &str = "guildhall_store_batches_total";
/// How many requests a batch held.
pub const STORE_BATCH_REQUESTS: &str = "guildhall_store_batch_requests";
/// How long a batch took, from its first statement until it was committed.
pub const STORE_BATCH_SECONDS: &str = "guildhall_store_batch_seconds";
/// What failed, and why.
pub const STORE_ERRORS: &str = "guildhall_store_errors_total";
/// Events that a webhook was asked about, by handler and by what came of it.
pub const WEBHOOK_REQUESTS: &str = "guildhall_webhook_requests_total";
/// How long webhooks took to answer, by handler.
pub const WEBHOOK_REQUEST_SECONDS: &str = "guildhall_webhook_request_seconds";
/// When the process started, in seconds since 1970.
pub const PROCESS_START_TIME: &str = "process_start_time_seconds";
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

/// Installs the recorder for this process, and describes every metric to it.
///
/// # Errors
///
/// When the process already has a recorder.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let mut builder = PrometheusBuilder::new().set_buckets(BUCKETS)?;
    for name in [events::LATENCY, events::HANDLING, events::HANDLER_SECONDS] {
        builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), EVENT_BUCKETS)?;
    }
    let handle = builder.install_recorder()?;
    describe();
    guildhall_actors::telemetry::describe();
    gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1);
    Ok(handle)
}

fn describe() {
    describe_gauge!(BUILD_INFO, "Always 1; the label says which version runs.");
    describe_gauge!(READY, "1 when a part is ready, else 0.");
    describe_counter!(GATEWAY_EVENTS, "Gateway dispatches received, by type.");
    describe_gauge!(GATEWAY_SHARD_CONNECTED, "1 while a shard has a session that receives events, else 0.");
    describe_counter!(GATEWAY_SESSIONS, "Gateway sessions that began (ready) or went on (resumed).");
    describe_counter!(GATEWAY_DISCONNECTS, "Gateway connections that ended or could not be made, by why.");
    describe_counter!(GATEWAY_RECONNECTS, "Gateway connections that were made anew, by why the one before ended.");
    describe_counter!(GATEWAY_MALFORMED, "Gateway frames that could not be read, and were skipped.");
    describe_counter!(GATEWAY_PAUSED, "How often a shard left because there was no room for its events.");
    describe_counter!(GATEWAY_SHED, "Gateway events that were dropped because there was no room, by class.");
    describe_counter!(GATEWAY_IDENTIFIES, "Wishes to identify: granted, or why not (spent, uncounted).");
    describe_gauge!(REDIS_UP, "1 while there is a connection to Redis, else 0.");
    describe_counter!(REDIS_CALLS, "Calls to Redis, by script and result (ok, or why it was lost).");
    describe_histogram!(REDIS_CALL_SECONDS, Unit::Seconds, "How long calls to Redis took, lost ones included.");
    describe_counter!(IDEMPOTENCY_FORGOTTEN, "Idempotency keys that could not be put into Redis; the store has them.");
    describe_counter!(API_REQUESTS, "Requests to the API, by route and status.");
    describe_histogram!(API_REQUEST_SECONDS, Unit::Seconds, "How long requests to the API took, by route.");
    describe_counter!(INTERACTIONS_REFUSED, "What was posted as an interaction and not signed by Discord, by why.");
    describe_gauge!(QUEUE_DEPTH, "Operations that are not done, by their state.");
    describe_gauge!(DEAD_LETTERS, "Operations that were given up, and are kept for a person.");
    describe_counter!(STORE_SWEPT, "Rows removed because they were kept long enough, by what they were.");
    describe_counter!(CLAIMS, "Queues that this process took to look after.");
    describe_counter!(FENCED_WRITES, "Writes that changed nothing because their queue belonged to another process.");
    describe_gauge!(INSTANCES, "Processes that share the store, this one included.");
    describe_gauge!(LEASE_HELD, "1 while this process may send for its queues, else 0.");
    describe_counter!(TAKE_OVERS, "Processes that this one took for dead, and took over from.");
    describe_counter!(TAKEN_OVER, "Queues that were taken over from processes that were gone.");
    describe_counter!(DISOWNED, "How often others took this process for dead.");
    describe_gauge!(STORE_UP, "1 while the store can be written to, else 0.");
    describe_counter!(STORE_BATCHES, "Batches of writes that were committed to the store.");
    describe_histogram!(STORE_BATCH_REQUESTS, "How many requests a batch of writes held.");
    describe_histogram!(STORE_BATCH_SECONDS, Unit::Seconds, "How long a batch of writes took, its commit included.");
    describe_counter!(STORE_ERRORS, "Calls to the store that failed, by what was tried and why.");
    describe_counter!(WEBHOOK_REQUESTS, "Events that a webhook was asked about, by handler and outcome.");
    describe_histogram!(WEBHOOK_REQUEST_SECONDS, Unit::Seconds, "How long webhooks took to answer, by handler.");
    describe_gauge!(PROCESS_START_TIME, Unit::Seconds, "When the process started, in seconds since 1970.");
    describe_gauge!(PROCESS_RESIDENT_MEMORY, Unit::Bytes, "Memory the process holds in RAM.");
    describe_gauge!(PROCESS_OPEN_FDS, "Files and sockets the process has open.");
    describe_gauge!(PROCESS_MAX_FDS, "How many files and sockets the process may have open.");
}
