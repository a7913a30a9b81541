//! Log messages and metrics of the API.

use std::{fmt::Display, net::SocketAddr, path::Path, time::Duration};

use actix_web::http::StatusCode;
use guildhall_actors::access::{AuditAction, Caller};
use guildhall_actors::ports::GeneratedAdminKey;
use guildhall_actors::telemetry::span;
use guildhall_actors::telemetry::span::{Span, SpanKind};
use guildhall_core::trace::{SpanId, TraceContext};
use metrics::{counter, gauge, histogram};
use tracing::{debug, info, trace, warn};

use crate::api::listener::certificates::CertificatesError;
use crate::{
    events::InternalEvent,
    metrics::{
        API_CERTIFICATE_LOADS, API_CONNECTIONS, API_CONNECTIONS_CUT, API_CONNECTIONS_REFUSED, API_DELAYED,
        API_INTERVENTIONS, API_KEY_LOOKUPS, API_LIMITED, API_POLICIES_SHARED, API_REQUEST_SECONDS, API_REQUESTS,
        API_STREAMS, API_STREAMS_ENDED, API_UNTRACKED, API_WAITS, INTERACTIONS_REFUSED,
    },
};

/// A request was answered.
pub(crate) struct RequestCompleted<'a> {
    /// The path's pattern, out of a fixed set.
    pub(crate) route: &'static str,
    pub(crate) method: &'static str,
    pub(crate) status: StatusCode,
    pub(crate) elapsed: Duration,
    /// The request id.
    pub(crate) request: &'a str,
    /// The span of the request, and its parent.
    pub(crate) trace: TraceContext,
    pub(crate) parent: Option<SpanId>,
}

impl InternalEvent for RequestCompleted<'_> {
    fn emit(self) {
        let Self { route, method, status, elapsed, request, trace, parent: asked_by } = self;
        let (status, duration_ms) = (status.as_u16(), u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
        let trace_id = trace.id;
        // A 503 is reported where its cause is; a flood of requests must not become a flood of warnings.
        if status >= 500 && status != StatusCode::SERVICE_UNAVAILABLE.as_u16() {
            warn!(route, method, status, duration_ms, request_id = request, %trace_id, "API request failed");
        } else {
            debug!(route, method, status, duration_ms, request_id = request, %trace_id, "API request answered");
        }
        span::record(Some(trace), |trace| {
            let span = Span::ended_now(trace, asked_by, format!("{method} {route}"), elapsed).kind(SpanKind::Server);
            let span = span.text("http.request.method", method).text("http.route", route);
            let span = span.number("http.response.status_code", status);
            span.text("guildhall.request_id", request.to_owned()).failed((status >= 500).then(|| status.to_string()))
        });
        histogram!(API_REQUEST_SECONDS, "route" => route).record(elapsed);
        counter!(API_REQUESTS, "route" => route, "method" => method, "status" => status.to_string()).increment(1);
    }
}

/// A request was rejected because its caller exceeds the rate limit.
pub(crate) struct RequestLimited {
    pub(crate) policy: &'static str,
    pub(crate) retry_after: Duration,
}

impl InternalEvent for RequestLimited {
    fn emit(self) {
        let retry_after_ms = u64::try_from(self.retry_after.as_millis()).unwrap_or(u64::MAX);
        debug!(policy = self.policy, retry_after_ms, "API request rejected: rate limit exceeded");
        counter!(API_LIMITED, "policy" => self.policy).increment(1);
    }
}

/// A submission above the rate limit was accepted, and is due later.
pub(crate) struct RequestDelayed {
    pub(crate) policy: &'static str,
    pub(crate) delay: Duration,
}

impl InternalEvent for RequestDelayed {
    fn emit(self) {
        let delay_ms = u64::try_from(self.delay.as_millis()).unwrap_or(u64::MAX);
        debug!(policy = self.policy, delay_ms, "API rate limit exceeded: operations are due later");
        counter!(API_DELAYED, "policy" => self.policy).increment(1);
    }
}

/// A caller is counted together with others, because there are too many.
pub(crate) struct UntrackedCaller {
    pub(crate) policy: &'static str,
}

impl InternalEvent for UntrackedCaller {
    fn emit(self) {
        debug!(policy = self.policy, "too many callers of the API to count each one");
        counter!(API_UNTRACKED, "policy" => self.policy).increment(1);
    }
}

/// Requests are counted together with other processes.
pub(crate) struct PoliciesShared;

impl InternalEvent for PoliciesShared {
    fn emit(self) {
        info!("API requests are counted together with other processes");
        gauge!(API_POLICIES_SHARED).set(1);
    }
}

/// Requests cannot be counted together with other processes, although this is configured.
pub(crate) struct PoliciesLocal;

impl InternalEvent for PoliciesLocal {
    fn emit(self) {
        warn!("Redis is unavailable: each process counts API requests alone, so the limits in all are higher");
        gauge!(API_POLICIES_SHARED).set(0);
    }
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

/// A key was looked up in the store.
pub(crate) struct KeyLookedUp {
    pub(crate) result: LookupResult,
}

impl InternalEvent for KeyLookedUp {
    fn emit(self) {
        let result = match self.result {
            LookupResult::Found => "found",
            LookupResult::Unknown => "unknown",
            LookupResult::Failed => "failed",
            LookupResult::Busy => "busy",
        };
        trace!(result, "key looked up");
        counter!(API_KEY_LOOKUPS, "result" => result).increment(1);
    }
}

/// A connection was accepted.
pub(crate) struct ConnectionAccepted;

impl InternalEvent for ConnectionAccepted {
    fn emit(self) {
        trace!("connection accepted");
        gauge!(API_CONNECTIONS).increment(1);
    }
}

/// An accepted connection was closed.
pub(crate) struct ConnectionClosed;

impl InternalEvent for ConnectionClosed {
    fn emit(self) {
        trace!("connection closed");
        gauge!(API_CONNECTIONS).decrement(1);
    }
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

/// A connection was rejected.
pub(crate) struct ConnectionRejected {
    pub(crate) reason: ConnectionRejectReason,
}

impl InternalEvent for ConnectionRejected {
    fn emit(self) {
        let why = match self.reason {
            ConnectionRejectReason::Full => "full",
            ConnectionRejectReason::Flood => "flood",
            ConnectionRejectReason::ShuttingDown => "ending",
        };
        debug!(why, "connection rejected");
        counter!(API_CONNECTIONS_REFUSED, "why" => why).increment(1);
    }
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

/// A connection was aborted.
pub(crate) struct ConnectionAborted {
    pub(crate) reason: ConnectionAbortReason,
}

impl InternalEvent for ConnectionAborted {
    fn emit(self) {
        let why = match self.reason {
            ConnectionAbortReason::SlowHeader => "slow_header",
            ConnectionAbortReason::Unread => "unread",
            ConnectionAbortReason::Handshake => "handshake",
            ConnectionAbortReason::SlowHandshake => "slow_handshake",
        };
        debug!(why, "connection aborted");
        counter!(API_CONNECTIONS_CUT, "why" => why).increment(1);
    }
}

/// A new certificate is in use.
pub(crate) struct CertificateReloaded<'a> {
    pub(crate) file: &'a Path,
}

impl InternalEvent for CertificateReloaded<'_> {
    fn emit(self) {
        info!(file = %self.file.display(), "API certificate reloaded");
        counter!(API_CERTIFICATE_LOADS, "result" => "ok").increment(1);
    }
}

/// A certificate's files have changed, and are invalid.
pub(crate) struct CertificateReloadFailed<'a> {
    pub(crate) error: &'a CertificatesError,
}

impl InternalEvent for CertificateReloadFailed<'_> {
    fn emit(self) {
        warn!(error = %self.error, "API certificate reload failed: the previous certificate stays in use");
        counter!(API_CERTIFICATE_LOADS, "result" => "error").increment(1);
    }
}

/// A caller manually changed what the daemon does by itself.
pub(crate) struct ManualIntervention<'a> {
    pub(crate) action: AuditAction,
    /// The object of the action.
    pub(crate) target: &'a dyn Display,
    pub(crate) caller: &'a Caller,
}

impl InternalEvent for ManualIntervention<'_> {
    fn emit(self) {
        let (action, on) = (self.action.name(), self.target);
        let (api_key, request_id) = (&*self.caller.key, &*self.caller.request);
        info!(action, %on, api_key, request_id, "manual intervention");
        counter!(API_INTERVENTIONS, "action" => action).increment(1);
    }
}

/// The number of open streams has changed.
pub(crate) struct StreamsCounted {
    pub(crate) count: usize,
}

impl InternalEvent for StreamsCounted {
    fn emit(self) {
        #[expect(clippy::cast_precision_loss, reason = "there are few")]
        gauge!(API_STREAMS).set(self.count as f64);
    }
}

/// A stream has ended.
pub(crate) struct StreamEnded<'a> {
    /// Id of the key that opened it.
    pub(crate) key: &'a str,
    /// The reason, out of a fixed set.
    pub(crate) reason: &'static str,
}

impl InternalEvent for StreamEnded<'_> {
    fn emit(self) {
        let Self { key, reason: why } = self;
        if why == "stalled" {
            warn!(key, why, "stream aborted: its client does not read");
        } else {
            debug!(key, why, "stream ended");
        }
        counter!(API_STREAMS_ENDED, "why" => why).increment(1);
    }
}

/// A caller has waited for its submission, or was not permitted to.
pub(crate) struct WaitEnded {
    /// The outcome, out of a fixed set.
    pub(crate) result: &'static str,
}

impl InternalEvent for WaitEnded {
    fn emit(self) {
        counter!(API_WAITS, "result" => self.result).increment(1);
    }
}

/// The listener for interactions has started.
pub(crate) struct InteractionsListening {
    /// Its address, with the actual port.
    pub(crate) address: SocketAddr,
}

impl InternalEvent for InteractionsListening {
    fn emit(self) {
        info!(address = %self.address, "listening for interactions over HTTP");
    }
}

/// A request to the interactions endpoint was not signed by Discord. Discord itself sends such requests now and then,
/// on purpose.
pub(crate) struct InteractionRejected {
    /// The reason, out of a fixed set.
    pub(crate) reason: &'static str,
}

impl InternalEvent for InteractionRejected {
    fn emit(self) {
        debug!(why = self.reason, "interaction rejected");
        counter!(INTERACTIONS_REFUSED, "why" => self.reason).increment(1);
    }
}

/// The admin key of the store was generated by another process.
pub struct AdminKeyFromOtherProcess<'a> {
    /// The key, and the file that holds it.
    pub key: &'a GeneratedAdminKey,
    /// A file of this process that holds another key, which is not accepted.
    pub unused: Option<&'a Path>,
}

impl InternalEvent for AdminKeyFromOtherProcess<'_> {
    fn emit(self) {
        const ADVICE: &str = "copy that file, or set api.admin_key_file in all processes";
        let GeneratedAdminKey { host, file, instance, .. } = self.key;
        match self.unused.map(Path::display) {
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
}

/// The admin key is in a file.
pub struct AdminKeyFile<'a> {
    /// The file.
    pub file: &'a Path,
    /// Whether the key is new.
    pub is_new: bool,
}

impl InternalEvent for AdminKeyFile<'_> {
    fn emit(self) {
        let file = self.file.display();
        if self.is_new {
            info!(%file, "api.admin_key is not set: a key was generated and written to a file");
        } else {
            info!(%file, "api.admin_key is not set: the key in a file is used");
        }
    }
}
