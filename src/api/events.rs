//! Log messages and metrics of the API.

use std::{fmt::Display, net::SocketAddr, path::Path, time::Duration};

use actix_web::http::StatusCode;
use guildhall_actors::access::{AuditAction, Caller};
use guildhall_actors::ports::GeneratedAdminKey;
use guildhall_actors::telemetry::span;
use guildhall_actors::telemetry::span::{Span, SpanKind};
use guildhall_core::time::millis;
use guildhall_core::trace::{SpanId, TraceContext};
use tracing::{debug, info, trace, warn};

use crate::api::listener::certificates::CertificatesError;
use crate::{
    events::{counter, event, gauge, histogram},
    metrics::{
        API_CERTIFICATE_LOADS, API_CONNECTIONS, API_CONNECTIONS_CUT, API_CONNECTIONS_REFUSED, API_DELAYED,
        API_INTERVENTIONS, API_KEY_LOOKUPS, API_LIMITED, API_POLICIES_SHARED, API_REQUEST_SECONDS, API_REQUESTS,
        API_STREAMS, API_STREAMS_ENDED, API_UNTRACKED, API_WAITS, INTERACTIONS_REFUSED,
    },
};

event! {
    /// A request was answered.
    pub(crate) struct RequestCompleted<'a> {
        /// The path's pattern, out of a fixed set.
        route: &'static str,
        method: &'static str,
        status: StatusCode,
        elapsed: Duration,
        /// The request id.
        request: &'a str,
        /// The span of the request, and its parent.
        trace: TraceContext,
        parent: Option<SpanId>,
    }
    let (status, duration_ms, trace_id) = (status.as_u16(), millis(elapsed), trace.id);
    // A 503 is reported where its cause is; a flood of requests must not become a flood of warnings.
    if status >= 500 && status != StatusCode::SERVICE_UNAVAILABLE.as_u16() {
        warn!(route, method, status, duration_ms, request_id = request, %trace_id, "API request failed");
    } else {
        debug!(route, method, status, duration_ms, request_id = request, %trace_id, "API request answered");
    }
    span::record(Some(trace), |trace| {
        let span = Span::ended_now(trace, parent, format!("{method} {route}"), elapsed).kind(SpanKind::Server);
        let span = span.text("http.request.method", method).text("http.route", route);
        let span = span.number("http.response.status_code", status);
        span.text("guildhall.request_id", request.to_owned()).failed((status >= 500).then(|| status.to_string()))
    });
    histogram!(API_REQUEST_SECONDS, "route" => route).record(elapsed);
    counter!(API_REQUESTS, "route" => route, "method" => method, "status" => status.to_string()).increment(1);
}

event! {
    /// A request was rejected because its caller exceeds the rate limit.
    pub(crate) struct RequestLimited { policy: &'static str, retry_after: Duration }
    debug!(policy, retry_after_ms = millis(retry_after), "API request rejected: rate limit exceeded");
    counter!(API_LIMITED, "policy" => policy).increment(1);
}

event! {
    /// A submission above the rate limit was accepted, and is due later.
    pub(crate) struct RequestDelayed { policy: &'static str, delay: Duration }
    debug!(policy, delay_ms = millis(delay), "API rate limit exceeded: operations are due later");
    counter!(API_DELAYED, "policy" => policy).increment(1);
}

event! {
    /// A caller is counted together with others, because there are too many.
    pub(crate) struct UntrackedCaller { policy: &'static str }
    debug!(policy, "too many callers of the API to count each one");
    counter!(API_UNTRACKED, "policy" => policy).increment(1);
}

event! {
    /// Requests are counted together with other processes.
    pub(crate) struct PoliciesShared;
    info!("API requests are counted together with other processes");
    gauge!(API_POLICIES_SHARED).set(1);
}

event! {
    /// Requests cannot be counted together with other processes, although this is configured.
    pub(crate) struct PoliciesLocal;
    warn!("Redis is unavailable: each process counts API requests alone, so the limits in all are higher");
    gauge!(API_POLICIES_SHARED).set(0);
}

/// The outcome of a key look-up.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LookupResult {
    Found,
    Unknown,
    /// The store failed.
    Failed,
    /// The key was not looked up, because too many others are.
    Busy,
}

event! {
    /// A key was looked up in the store.
    pub(crate) struct KeyLookedUp { result: LookupResult }
    let result = match result {
        LookupResult::Found => "found",
        LookupResult::Unknown => "unknown",
        LookupResult::Failed => "failed",
        LookupResult::Busy => "busy",
    };
    trace!(result, "key looked up");
    counter!(API_KEY_LOOKUPS, "result" => result).increment(1);
}

event! {
    /// A connection was accepted.
    pub(crate) struct ConnectionAccepted;
    trace!("connection accepted");
    gauge!(API_CONNECTIONS).increment(1);
}

event! {
    /// An accepted connection was closed.
    pub(crate) struct ConnectionClosed;
    trace!("connection closed");
    gauge!(API_CONNECTIONS).decrement(1);
}

/// Why a connection was rejected.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ConnectionRejectReason {
    /// The connection limit is reached; a response says so.
    Full,
    /// So many connections are above the limit that the response is sent without waiting.
    Flood,
    /// The process is shutting down.
    ShuttingDown,
}

event! {
    /// A connection was rejected.
    pub(crate) struct ConnectionRejected { reason: ConnectionRejectReason }
    let why = match reason {
        ConnectionRejectReason::Full => "full",
        ConnectionRejectReason::Flood => "flood",
        ConnectionRejectReason::ShuttingDown => "ending",
    };
    debug!(why, "connection rejected");
    counter!(API_CONNECTIONS_REFUSED, "why" => why).increment(1);
}

/// Why a connection was aborted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ConnectionAbortReason {
    /// A request took too long to arrive.
    SlowHeader,
    /// The client did not read the response.
    Unread,
    /// The TLS handshake failed.
    Handshake,
    /// The TLS handshake took too long.
    SlowHandshake,
}

event! {
    /// A connection was aborted.
    pub(crate) struct ConnectionAborted { reason: ConnectionAbortReason }
    let why = match reason {
        ConnectionAbortReason::SlowHeader => "slow_header",
        ConnectionAbortReason::Unread => "unread",
        ConnectionAbortReason::Handshake => "handshake",
        ConnectionAbortReason::SlowHandshake => "slow_handshake",
    };
    debug!(why, "connection aborted");
    counter!(API_CONNECTIONS_CUT, "why" => why).increment(1);
}

event! {
    /// A new certificate is in use.
    pub(crate) struct CertificateReloaded<'a> { file: &'a Path }
    info!(file = %file.display(), "certificate reloaded");
    counter!(API_CERTIFICATE_LOADS, "result" => "ok").increment(1);
}

event! {
    /// A certificate's files have changed, and are invalid.
    pub(crate) struct CertificateReloadFailed<'a> { error: &'a CertificatesError }
    warn!(%error, "certificate reload failed: the previous certificate stays in use");
    counter!(API_CERTIFICATE_LOADS, "result" => "error").increment(1);
}

event! {
    /// A caller manually changed what the daemon does by itself.
    pub(crate) struct ManualIntervention<'a> {
        action: AuditAction,
        /// The object of the action.
        target: &'a dyn Display,
        caller: &'a Caller,
    }
    let (action, api_key, request_id) = (action.name(), &*caller.key, &*caller.request);
    info!(action, on = %target, api_key, request_id, "manual intervention");
    counter!(API_INTERVENTIONS, "action" => action).increment(1);
}

event! {
    /// The number of open streams has changed.
    pub(crate) struct StreamsCounted { count: usize }
    gauge!(API_STREAMS).set(count as f64);
}

event! {
    /// A stream has ended.
    pub(crate) struct StreamEnded<'a> {
        /// Id of the key that opened it.
        key: &'a str,
        /// The reason, out of a fixed set.
        reason: &'static str,
    }
    if reason == "stalled" {
        warn!(key, why = reason, "stream aborted: its client does not read");
    } else {
        debug!(key, why = reason, "stream ended");
    }
    counter!(API_STREAMS_ENDED, "why" => reason).increment(1);
}

event! {
    /// A caller has waited for its submission, or was not permitted to.
    pub(crate) struct WaitEnded {
        /// The outcome, out of a fixed set.
        result: &'static str,
    }
    counter!(API_WAITS, "result" => result).increment(1);
}

event! {
    /// The listener for interactions has started.
    pub(crate) struct InteractionsListening {
        /// Its address, with the actual port.
        address: SocketAddr,
    }
    info!(%address, "listening for interactions over HTTP");
}

event! {
    /// A request to the interactions endpoint was not signed by Discord. Discord itself sends such requests now and
    /// then, on purpose.
    pub(crate) struct InteractionRejected {
        /// The reason, out of a fixed set.
        reason: &'static str,
    }
    debug!(why = reason, "interaction rejected");
    counter!(INTERACTIONS_REFUSED, "why" => reason).increment(1);
}

event! {
    /// The admin key of the store was generated by another process.
    pub struct AdminKeyFromOtherProcess<'a> {
        /// The key, and the file that holds it.
        key: &'a GeneratedAdminKey,
        /// A file of this process that holds another key, which is not accepted.
        unused: Option<&'a Path>,
    }
    const ADVICE: &str = "copy that file, or set api.admin_key_file in all processes";
    let GeneratedAdminKey { host, file, instance, .. } = key;
    match unused.map(Path::display) {
        None => info!(
            %host, %file, %instance, advice = ADVICE,
            "api.admin_key is not set: the admin key was generated by another process of this store"
        ),
        Some(unused) => warn!(
            %unused, %host, %file, %instance, advice = ADVICE,
            "admin key file ignored: the key of this store was generated by another process"
        ),
    }
}

event! {
    /// The admin key is in a file.
    pub struct AdminKeyFile<'a> {
        /// The file.
        file: &'a Path,
        /// Whether the key is new.
        is_new: bool,
    }
    let file = file.display();
    if is_new {
        info!(%file, "api.admin_key is not set: a key was generated and written to a file");
    } else {
        info!(%file, "api.admin_key is not set: the key in a file is used");
    }
}
