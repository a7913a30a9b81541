//! Metrics of the daemon. No guild, user or free text is ever a label.

use guildhall_actors::telemetry;
use guildhall_actors::telemetry::{Metric, MetricType, events, gauge, metrics};
use metrics::Unit;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

metrics! {
    Process {
        /// Always 1; the label is the running version.
        pub(crate) BUILD_INFO = gauge "guildhall_build_info" [version];
        /// 1 when a part is ready, else 0.
        pub(crate) READY = gauge "guildhall_ready" [part];
        /// Spans that an OpenTelemetry collector accepted.
        pub(crate) SPANS_EXPORTED = counter "guildhall_spans_exported_total";
        /// Spans dropped, by reason: full, refused, rejected or unreachable.
        pub(crate) SPANS_DROPPED = counter "guildhall_spans_dropped_total" [why];
        /// CPU time used by the process, in seconds.
        pub(crate) PROCESS_CPU = counter "process_cpu_seconds_total" in Seconds;
        /// Start time of the process, in seconds since 1970.
        pub(crate) PROCESS_START_TIME = gauge "process_start_time_seconds" in Seconds;
        /// Resident memory of the process.
        pub(crate) PROCESS_RESIDENT_MEMORY = gauge "process_resident_memory_bytes" in Bytes;
        /// Open files and sockets of the process.
        pub(crate) PROCESS_OPEN_FDS = gauge "process_open_fds";
        /// Maximum number of open files and sockets of the process.
        pub(crate) PROCESS_MAX_FDS = gauge "process_max_fds";
    }
    Gateway {
        /// Shards that this process has taken, lost or released.
        pub(crate) GATEWAY_SHARD_CLAIMS = counter "guildhall_gateway_shard_claims_total" [what];
        /// Shards that this process owns.
        pub(crate) GATEWAY_SHARDS_HELD = gauge "guildhall_gateway_shards_held";
        /// Requests for permission to identify, by result: granted, spent or uncounted.
        pub(crate) GATEWAY_IDENTIFIES = counter "guildhall_gateway_identifies_total" [result];
    }
    Events {
        /// Interaction requests without a valid signature of Discord, by reason.
        pub(crate) INTERACTIONS_REFUSED = counter "guildhall_interactions_refused_total" [why];
        /// Events that failed finally for a handler and are stored for review.
        pub(crate) DEAD_EVENTS = gauge "guildhall_dead_events";
        /// Events sent to a webhook, by handler and outcome.
        pub(crate) WEBHOOK_REQUESTS = counter "guildhall_webhook_requests_total" [handler, outcome];
        /// Response time of webhooks, by handler.
        pub(crate) WEBHOOK_REQUEST_SECONDS = histogram "guildhall_webhook_request_seconds" [handler] in Seconds;
    }
    Broker {
        /// 1 while RabbitMQ is connected and its exchanges and queues are declared, else 0.
        pub(crate) BROKER_UP = gauge "guildhall_broker_up";
        /// 1 while RabbitMQ blocks publishing because it is short of disk space or memory, else 0.
        pub(crate) BROKER_BLOCKED = gauge "guildhall_broker_blocked";
        /// Connections made to RabbitMQ. All but the first are reconnects.
        pub(crate) BROKER_CONNECTIONS = counter "guildhall_broker_connections_total";
        /// Events published to RabbitMQ, by result: confirmed, returned (no queue is bound), nacked (a queue is full),
        /// timeout or lost. Only confirmed ones are handled; the others are published again.
        pub(crate) BROKER_PUBLISHES = counter "guildhall_broker_publishes_total" [result];
        /// Time from publishing an event to its confirm, or to its failure.
        pub(crate) BROKER_PUBLISH_SECONDS = histogram "guildhall_broker_publish_seconds" in Seconds;
        /// Events that are published and not confirmed yet.
        pub(crate) BROKER_UNCONFIRMED = gauge "guildhall_broker_unconfirmed";
        /// Messages in a queue that no consumer has taken yet, by queue.
        pub(crate) BROKER_QUEUE_MESSAGES = gauge "guildhall_broker_queue_messages" [queue];
    }
    Operations {
        /// How long the operation has waited that waits longest in a state, in seconds; 0 if there is none. From its
        /// acceptance, or from when it was due if it was scheduled.
        pub(crate) OLDEST_OPERATION = gauge "guildhall_oldest_operation_seconds" [state] in Seconds;
        /// Processes of this store that were ended by a part within the last hour, by part.
        pub(crate) PROCESS_ENDS = gauge "guildhall_process_ends" [part];
        /// Idempotency keys that could not be written to Redis. They are still in the store.
        pub(crate) IDEMPOTENCY_FORGOTTEN = counter "guildhall_idempotency_forgotten_total";
        /// Operations that failed finally and are stored for review. They are not retried automatically.
        pub(crate) DEAD_LETTERS = gauge "guildhall_dead_letters";
    }
    Shared {
        /// 1 while the connection to Redis is up, else 0.
        pub(crate) REDIS_UP = gauge "guildhall_redis_up";
        /// Calls to Redis, by script and result (ok, or the reason of the failure).
        pub(crate) REDIS_CALLS = counter "guildhall_redis_calls_total" [script, result];
        /// Duration of calls to Redis, including failed ones.
        pub(crate) REDIS_CALL_SECONDS = histogram "guildhall_redis_call_seconds" in Seconds;
        /// Queues that this process has claimed.
        pub(crate) CLAIMS = counter "guildhall_claims_total";
        /// Writes that changed nothing because another process owns their queue.
        pub(crate) FENCED_WRITES = counter "guildhall_fenced_writes_total";
        /// Processes that share the store, including this one.
        pub(crate) INSTANCES = gauge "guildhall_instances";
        /// Processes of the store that divide the global limit, including this one.
        pub(crate) LIMIT_MEMBERS = gauge "guildhall_limit_members";
        /// 1 while this process may send for its queues, else 0.
        pub(crate) LEASE_HELD = gauge "guildhall_lease_held";
        /// Dead processes that this process took over from.
        pub(crate) TAKE_OVERS = counter "guildhall_take_overs_total";
        /// Queues that were taken over from dead processes.
        pub(crate) TAKEN_OVER = counter "guildhall_queues_taken_over_total";
        /// Times that another process declared this process dead.
        pub(crate) DISOWNED = counter "guildhall_disowned_total";
    }
    Store {
        /// Rows removed because they expired, by kind.
        pub(crate) STORE_SWEPT = counter "guildhall_store_swept_total" [what];
        /// How far this machine's clock is ahead of a reference clock (discord or database). Negative if it is behind.
        pub(crate) CLOCK_OFFSET = gauge "guildhall_clock_offset_seconds" [reference] in Seconds;
        /// How far expiry of stored data is delayed because a clock was set or is not confirmed.
        pub(crate) CLOCK_EXPIRY_LAG = gauge "guildhall_clock_expiry_lag_seconds" in Seconds;
        /// 1 while the store is writable, else 0.
        pub(crate) STORE_UP = gauge "guildhall_store_up";
        /// 1 if PostgreSQL row-level security restricts callers to the rows of their tenant, else 0.
        pub(crate) STORE_ROW_SECURITY = gauge "guildhall_store_row_security";
        /// Highest used share of a limit on stored data, by what the limit applies to: key, tenant, operator or file.
        pub(crate) STORE_USAGE_RATIO = gauge "guildhall_store_usage_ratio" [by];
        /// Maximum size of the SQLite file, in bytes.
        pub(crate) STORE_FILE_BOUND = gauge "guildhall_store_file_bound_bytes" in Bytes;
        /// Reloads of the settings, by result: applied or failed.
        pub(crate) RELOADS = counter "guildhall_reloads_total" [result];
        /// Submissions refused because they would exceed a limit on stored data, by limit.
        pub(crate) STORE_REFUSED = counter "guildhall_store_refused_total" [bound];
        /// Batches of writes committed to the store.
        pub(crate) STORE_BATCHES = counter "guildhall_store_batches_total";
        /// Requests per batch of writes.
        pub(crate) STORE_BATCH_REQUESTS = histogram "guildhall_store_batch_requests";
        /// Duration of a batch of writes, including its commit.
        pub(crate) STORE_BATCH_SECONDS = histogram "guildhall_store_batch_seconds" in Seconds;
        /// Store calls that failed, by call and reason.
        pub(crate) STORE_ERRORS = counter "guildhall_store_errors_total" [what, why];
    }
    Api {
        /// Requests to the API, by route, method and status.
        pub(crate) API_REQUESTS = counter "guildhall_api_requests_total" [route, method, status];
        /// Duration of API requests, by route.
        pub(crate) API_REQUEST_SECONDS = histogram "guildhall_api_request_seconds" [route] in Seconds;
        /// Requests rejected by a rate limit, by policy.
        pub(crate) API_LIMITED = counter "guildhall_api_limited_total" [policy];
        /// Requests whose operations were postponed by a rate limit, by policy.
        pub(crate) API_DELAYED = counter "guildhall_api_delayed_total" [policy];
        /// Requests counted together with those of other callers because too many callers are tracked, by policy.
        pub(crate) API_UNTRACKED = counter "guildhall_api_untracked_total" [policy];
        /// Keys looked up in the store, by result: found, unknown, failed (store error) or busy (too many other
        /// lookups).
        pub(crate) API_KEY_LOOKUPS = counter "guildhall_api_key_lookups_total" [result];
        /// 1 while API requests are counted together with other processes, else 0.
        pub(crate) API_POLICIES_SHARED = gauge "guildhall_api_policies_shared";
        /// Open connections to the API, including those for interactions.
        pub(crate) API_CONNECTIONS = gauge "guildhall_api_connections";
        /// Connections refused, by reason: full, flood (too many for a graceful close) or ending.
        pub(crate) API_CONNECTIONS_REFUSED = counter "guildhall_api_connections_refused_total" [why];
        /// Connections closed by the daemon, by reason: slow_header, unread, slow_handshake, or a failed handshake.
        pub(crate) API_CONNECTIONS_CUT = counter "guildhall_api_connections_cut_total" [why];
        /// Reloads of a changed certificate, of the API or of the REST proxy, by result: ok or error.
        pub(crate) API_CERTIFICATE_LOADS = counter "guildhall_api_certificate_loads_total" [result];
        /// Open operation streams.
        pub(crate) API_STREAMS = gauge "guildhall_api_streams";
        /// Operation streams that ended, by reason: gone, stalled (the client did not read), revoked or draining.
        pub(crate) API_STREAMS_ENDED = counter "guildhall_api_streams_ended_total" [why];
        /// Requests that waited for their operations, by result: ended, late, refused or draining.
        pub(crate) API_WAITS = counter "guildhall_api_waits_total" [result];
        /// Manual interventions, by action: breakers.force, breakers.reset, shards.restart.
        pub(crate) API_INTERVENTIONS = counter "guildhall_api_interventions_total" [action];
    }
    Egress {
        /// Calls through the REST proxy, by kind of caller (key, bot, token, anonymous, or none if it was not identified), by
        /// origin of the response (discord or guildhall) and by class of its status.
        pub(crate) EGRESS_REQUESTS = counter "guildhall_egress_requests_total" [caller, origin, status_class];
        /// Duration of calls through the REST proxy, including the wait for a permit, by kind of caller.
        pub(crate) EGRESS_REQUEST_SECONDS = histogram "guildhall_egress_request_seconds" [caller] in Seconds;
        /// Calls that the REST proxy answered itself, by reason.
        pub(crate) EGRESS_REFUSED = counter "guildhall_egress_refused_total" [why];
        /// Calls through the REST proxy whose client hung up before the response.
        pub(crate) EGRESS_ABANDONED = counter "guildhall_egress_abandoned_total";
        /// Calls through the REST proxy that got the response of an identical one in flight.
        pub(crate) EGRESS_COALESCED = counter "guildhall_egress_coalesced_total";
        /// Calls in progress in the REST proxy.
        pub(crate) EGRESS_CALLS = gauge "guildhall_egress_calls";
        /// Open connections to the REST proxy.
        pub(crate) EGRESS_CONNECTIONS = gauge "guildhall_egress_connections";
        /// Connections to the REST proxy that were refused or closed, by reason: full, unread, idle (to make room for
        /// another one) or handshake.
        pub(crate) EGRESS_CONNECTIONS_CUT = counter "guildhall_egress_connections_cut_total" [why];
        /// With `egress.compat = "nirn"`: response time of Discord for calls through the REST proxy, in seconds.
        pub(crate) NIRN_REQUESTS = histogram "nirn_proxy_requests" [method, status, route, clientId];
        /// With `egress.compat = "nirn"`: calls that the REST proxy answered with a status of 500 or more itself.
        pub(crate) NIRN_ERRORS = counter "nirn_proxy_error";
        /// With `egress.compat = "nirn"`: calls in progress in the REST proxy.
        pub(crate) NIRN_OPEN_CONNECTIONS = gauge "nirn_proxy_open_connections" [route, method];
        /// With `egress.compat = "twilight"`: response time of Discord for calls through the REST proxy, in seconds.
        pub(crate) TWILIGHT_REQUESTS = histogram "twilight_http_proxy" [method, route, status, scope];
    }
}

/// Upper bounds of histogram buckets, in seconds: from a millisecond to Discord's longest waits.
const BUCKETS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0];

/// Upper bounds of histogram buckets for events: most are handled within milliseconds.
const EVENT_BUCKETS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.003, 0.005, 0.007_5, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 10.0,
];

/// Upper bounds of histogram buckets for counts.
const COUNT_BUCKETS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0];

/// Upper bounds of the histogram buckets of nirn-proxy, which its dashboards have.
const NIRN_BUCKETS: &[f64] = &[0.1, 0.25, 1.0, 2.5, 5.0, 20.0];

/// Metrics with the names of another program, which exist only if a setting asks for them.
const COMPAT_METRICS: [&Metric; 4] = [&NIRN_REQUESTS, &NIRN_ERRORS, &NIRN_OPEN_CONNECTIONS, &TWILIGHT_REQUESTS];

fn is_of_another_program(metric: &Metric) -> bool {
    COMPAT_METRICS.iter().any(|one| one.name == metric.name)
}

/// Describes the metrics of nirn-proxy to the recorder.
pub(crate) fn describe_nirn() {
    [NIRN_REQUESTS, NIRN_ERRORS, NIRN_OPEN_CONNECTIONS].iter().for_each(Metric::describe);
}

/// Describes the metric of twilight's http-proxy to the recorder.
pub(crate) fn describe_twilight() {
    TWILIGHT_REQUESTS.describe();
}

/// Returns the upper bounds of the buckets of a histogram.
fn buckets(metric: &Metric) -> &'static [f64] {
    let of_events = [events::LATENCY, events::HANDLING, events::HANDLER_SECONDS];
    match metric.unit {
        _ if metric.name == NIRN_REQUESTS.name => NIRN_BUCKETS,
        _ if metric.name == TWILIGHT_REQUESTS.name => BUCKETS,
        Some(Unit::Seconds) if of_events.iter().any(|one| one.name == metric.name) => EVENT_BUCKETS,
        Some(Unit::Seconds) => BUCKETS,
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
    let is_described = |metric: &&Metric| metric.name != PROCESS_CPU.name && !is_of_another_program(metric);
    all().filter(is_described).for_each(Metric::describe);
    gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1);
    Ok(handle)
}

/// All metrics.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    METRICS.iter().chain(telemetry::all_metrics())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_buckets_match_the_unit() {
        for metric in all().filter(|metric| metric.kind == MetricType::Histogram) {
            let (name, ends) = (metric.name, buckets(metric));
            assert!(ends.is_sorted(), "{name}");
            if is_of_another_program(metric) {
                continue;
            }
            let measures_time = ends[0] < 1.0;
            assert_eq!(measures_time, metric.unit == Some(Unit::Seconds), "{name}");
            assert_eq!(measures_time, name.ends_with("_seconds"), "{name} ends in its unit");
        }
    }
}
