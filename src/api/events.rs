//! What there is to say about the API.

use std::{fmt::Display, net::SocketAddr, path::Path, time::Duration};

use actix_web::http::StatusCode;
use guildhall_actors::access::{AuditAction, Caller};
use guildhall_actors::ports::GeneratedAdminKey;
use guildhall_actors::telemetry::span;
use guildhall_actors::telemetry::span::{Span, SpanKind};
use guildhall_core::trace::{SpanId, TraceContext};
use metrics::{counter, gauge, histogram};
use tracing::{debug, info, trace, warn};

use super::edge::CertificatesError;
use crate::{
    events::InternalEvent,
    metrics::{
        API_CERTIFICATE_LOADS, API_CONNECTIONS, API_CONNECTIONS_CUT, API_CONNECTIONS_REFUSED, API_DELAYED,
        API_INTERVENTIONS, API_KEY_LOOKUPS, API_LIMITED, API_POLICIES_SHARED, API_REQUEST_SECONDS, API_REQUESTS,
        API_STREAMS, API_STREAMS_ENDED, API_UNTRACKED, API_WAITS, INTERACTIONS_REFUSED,
    },
};

/// A request was answered.
pub(super) struct RequestCompleted<'a> {
    /// The path's pattern, out of a fixed set.
    pub(super) route: &'static str,
    pub(super) method: &'static str,
    pub(super) status: StatusCode,
    pub(super) took: Duration,
    /// What it is called.
    pub(super) request: &'a str,
    /// The part of a trace that it is, and the one that it was asked by.
    pub(super) trace: TraceContext,
    pub(super) asked_by: Option<SpanId>,
}

impl InternalEvent for RequestCompleted<'_> {
    fn emit(self) {
        let Self { route, method, status, took, request, trace, asked_by } = self;
        let (status, duration_ms) = (status.as_u16(), u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        let trace_id = trace.id;
        // What answers 503 is reported where it fails; a flood of requests must not become a flood of warnings.
        if status >= 500 && status != StatusCode::SERVICE_UNAVAILABLE.as_u16() {
            warn!(route, method, status, duration_ms, request_id = request, %trace_id, "the API failed");
        } else {
            debug!(route, method, status, duration_ms, request_id = request, %trace_id, "the API answered");
        }
        span::record(Some(trace), |trace| {
            let span = Span::just_now(trace, asked_by, format!("{method} {route}"), took).kind(SpanKind::Server);
            let span = span.text("http.request.method", method).text("http.route", route);
            let span = span.number("http.response.status_code", status);
            span.text("guildhall.request_id", request.to_owned()).failed((status >= 500).then(|| status.to_string()))
        });
        histogram!(API_REQUEST_SECONDS, "route" => route).record(took);
        counter!(API_REQUESTS, "route" => route, "method" => method, "status" => status.to_string()).increment(1);
    }
}

/// A caller asked too much, and was refused.
pub(super) struct RequestLimited {
    pub(super) policy: &'static str,
    pub(super) retry_after: Duration,
}

impl InternalEvent for RequestLimited {
    fn emit(self) {
        let retry_after_ms = u64::try_from(self.retry_after.as_millis()).unwrap_or(u64::MAX);
        debug!(policy = self.policy, retry_after_ms, "a caller of the API asks too much");
        counter!(API_LIMITED, "policy" => self.policy).increment(1);
    }
}

/// A caller asked too much, and what it asked for is due later.
pub(super) struct RequestDelayed {
    pub(super) policy: &'static str,
    pub(super) delay: Duration,
}

impl InternalEvent for RequestDelayed {
    fn emit(self) {
        let delay_ms = u64::try_from(self.delay.as_millis()).unwrap_or(u64::MAX);
        debug!(policy = self.policy, delay_ms, "a caller of the API asks much: its operations are due later");
        counter!(API_DELAYED, "policy" => self.policy).increment(1);
    }
}

/// There are so many callers that one was counted together with others.
pub(super) struct UntrackedCaller {
    pub(super) policy: &'static str,
}

impl InternalEvent for UntrackedCaller {
    fn emit(self) {
        debug!(policy = self.policy, "more callers of the API than are counted one by one");
        counter!(API_UNTRACKED, "policy" => self.policy).increment(1);
    }
}

/// Requests are counted together with other processes.
pub(super) struct PoliciesShared;

impl InternalEvent for PoliciesShared {
    fn emit(self) {
        info!("requests to the API are counted together with other processes");
        gauge!(API_POLICIES_SHARED).set(1);
    }
}

/// Requests were to be counted together with other processes, and cannot be.
pub(super) struct PoliciesLocal;

impl InternalEvent for PoliciesLocal {
    fn emit(self) {
        warn!("Redis is lost: each process counts requests to the API alone, so that callers may ask more in all");
        gauge!(API_POLICIES_SHARED).set(0);
    }
}

/// The outcome of a key look-up.
#[derive(Clone, Copy, Debug)]
pub(super) enum LookupResult {
    Found,
    Unknown,
    /// The store failed.
    Failed,
    /// It was not looked up: too many others are.
    Busy,
}

/// A key was looked up in the store.
pub(super) struct KeyLookedUp {
    pub(super) result: LookupResult,
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

/// A connection is served.
pub(super) struct ConnectionAccepted;

impl InternalEvent for ConnectionAccepted {
    fn emit(self) {
        trace!("a connection is served");
        gauge!(API_CONNECTIONS).increment(1);
    }
}

/// A connection that was served has ended.
pub(super) struct ConnectionClosed;

impl InternalEvent for ConnectionClosed {
    fn emit(self) {
        trace!("a connection has ended");
        gauge!(API_CONNECTIONS).decrement(1);
    }
}

/// Why a connection is not served.
#[derive(Clone, Copy, Debug)]
pub(super) enum ConnectionRejectReason {
    /// There is no room, and it was told so.
    Full,
    /// There are so many without room that it was said to them in passing.
    Flood,
    /// The process is ending.
    Ending,
}

/// A connection is not served.
pub(super) struct ConnectionRejected {
    pub(super) why: ConnectionRejectReason,
}

impl InternalEvent for ConnectionRejected {
    fn emit(self) {
        let why = match self.why {
            ConnectionRejectReason::Full => "full",
            ConnectionRejectReason::Flood => "flood",
            ConnectionRejectReason::Ending => "ending",
        };
        debug!(why, "a connection is not served");
        counter!(API_CONNECTIONS_REFUSED, "why" => why).increment(1);
    }
}

/// Why a connection was cut.
#[derive(Clone, Copy, Debug)]
pub(super) enum ConnectionAbortReason {
    /// A request took too long to arrive.
    SlowHeader,
    /// Nobody read the answer.
    Unread,
    /// TLS could not be agreed on.
    Handshake,
    /// The same took too long.
    SlowHandshake,
}

/// A connection was cut.
pub(super) struct ConnectionAborted {
    pub(super) why: ConnectionAbortReason,
}

impl InternalEvent for ConnectionAborted {
    fn emit(self) {
        let why = match self.why {
            ConnectionAbortReason::SlowHeader => "slow_header",
            ConnectionAbortReason::Unread => "unread",
            ConnectionAbortReason::Handshake => "handshake",
            ConnectionAbortReason::SlowHandshake => "slow_handshake",
        };
        debug!(why, "a connection was cut");
        counter!(API_CONNECTIONS_CUT, "why" => why).increment(1);
    }
}

/// A new certificate is shown.
pub(super) struct CertificateReloaded<'a> {
    pub(super) file: &'a Path,
}

impl InternalEvent for CertificateReloaded<'_> {
    fn emit(self) {
        info!(file = %self.file.display(), "the API's certificate has changed, and the new one is shown");
        counter!(API_CERTIFICATE_LOADS, "result" => "ok").increment(1);
    }
}

/// A certificate's files have changed, and cannot be used.
pub(super) struct CertificateReloadFailed<'a> {
    pub(super) error: &'a CertificatesError,
}

impl InternalEvent for CertificateReloadFailed<'_> {
    fn emit(self) {
        warn!(error = %self.error, "the API's certificate has changed and cannot be used; the old one is still shown");
        counter!(API_CERTIFICATE_LOADS, "result" => "error").increment(1);
    }
}

/// Somebody changed by hand what the daemon does by itself.
pub(super) struct ManualIntervention<'a> {
    pub(super) action: AuditAction,
    /// What it was done to.
    pub(super) target: &'a dyn Display,
    pub(super) caller: &'a Caller,
}

impl InternalEvent for ManualIntervention<'_> {
    fn emit(self) {
        let (action, on) = (self.action.name(), self.target);
        let (api_key, request_id) = (&*self.caller.key, &*self.caller.request);
        info!(action, %on, api_key, request_id, "somebody stepped in");
        counter!(API_INTERVENTIONS, "action" => action).increment(1);
    }
}

/// So many streams are open.
pub(super) struct StreamsCounted {
    pub(super) count: usize,
}

impl InternalEvent for StreamsCounted {
    fn emit(self) {
        #[expect(clippy::cast_precision_loss, reason = "there are few")]
        gauge!(API_STREAMS).set(self.count as f64);
    }
}

/// A stream has ended.
pub(super) struct StreamEnded<'a> {
    /// Whose it was, by the id of the key.
    pub(super) key: &'a str,
    /// Why, out of a fixed set.
    pub(super) why: &'static str,
}

impl InternalEvent for StreamEnded<'_> {
    fn emit(self) {
        let Self { key, why } = self;
        if why == "stalled" {
            warn!(key, why, "a stream was cut: its client does not read");
        } else {
            debug!(key, why, "a stream has ended");
        }
        counter!(API_STREAMS_ENDED, "why" => why).increment(1);
    }
}

/// A caller has waited for what it submitted, or was not let.
pub(super) struct WaitEnded {
    /// What came of it, out of a fixed set.
    pub(super) result: &'static str,
}

impl InternalEvent for WaitEnded {
    fn emit(self) {
        counter!(API_WAITS, "result" => self.result).increment(1);
    }
}

/// Interactions are taken over HTTP.
pub(super) struct InteractionsListening {
    /// Where, with the real port.
    pub(super) address: SocketAddr,
}

impl InternalEvent for InteractionsListening {
    fn emit(self) {
        info!(address = %self.address, "interactions are taken over HTTP");
    }
}

/// Something was posted as an interaction that Discord did not sign. Discord itself does so now and then, on purpose.
pub(super) struct InteractionRejected {
    /// What is wrong with it, out of a fixed set.
    pub(super) why: &'static str,
}

impl InternalEvent for InteractionRejected {
    fn emit(self) {
        debug!(why = self.why, "an interaction was refused");
        counter!(INTERACTIONS_REFUSED, "why" => self.why).increment(1);
    }
}

/// The admin key of the store was generated by another process.
pub struct AdminKeyFromOtherProcess<'a> {
    /// Where it is.
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

/// The API's key is in a file.
pub struct AdminKeyFile<'a> {
    /// Which.
    pub file: &'a Path,
    /// Whether the key is new.
    pub made: bool,
}

impl InternalEvent for AdminKeyFile<'_> {
    fn emit(self) {
        let file = self.file.display();
        if self.made {
            info!(%file, "api.admin_key is not set: a key was made and put into a file");
        } else {
            info!(%file, "api.admin_key is not set: the key is the one in a file");
        }
    }
}
