//! Logs and metrics of the token bucket and of Discord's limits.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use guildhall_core::lane::Lane;
use guildhall_core::limit::DelayReason;
use guildhall_core::response::RateLimitScope;
use guildhall_core::route::RouteKey;
use guildhall_core::trace::{SpanId, TraceContext};
use metrics::{SharedString, Unit, counter, gauge, histogram};
use tracing::{debug, warn};

use super::span::{self, Span, SpanKind};
use super::{InternalEvent, Metric, trace_id};

/// Permits granted, by lane.
pub const ACQUIRED: &str = "guildhall_token_bucket_acquired_total";
/// Permits granted after a wait, by lane.
pub const WAITS: &str = "guildhall_token_bucket_waits_total";
/// Calls without a permit, by lane and reason.
pub const EXHAUSTED: &str = "guildhall_token_bucket_exhausted_total";
/// Free tokens of the global limit.
pub const AVAILABLE: &str = "guildhall_token_bucket_available";
/// Callers that wait for a permit.
pub const WAITING: &str = "guildhall_token_bucket_waiting";
/// Wait time for permits, by lane.
pub const WAIT_SECONDS: &str = "guildhall_token_bucket_wait_seconds";
/// 429 responses of Discord, by route and scope.
pub const LIMITED: &str = "guildhall_discord_429_total";
/// 429 responses of Discord's global limit.
pub const LIMITED_GLOBALLY: &str = "guildhall_discord_429_global_total";
/// Retry-After values of 429 responses.
pub const RETRY_AFTER: &str = "guildhall_discord_429_retry_after_seconds";
/// Duration of calls to Discord that were answered, by route and status class.
pub const REQUEST_SECONDS: &str = "guildhall_rest_request_seconds";
/// Calls that were not sent because their caller had lost its lease.
pub const DENIED: &str = "guildhall_rest_denied_total";
/// Calls to Discord without a response, by reason.
pub const LOST: &str = "guildhall_rest_lost_total";

/// Number of routes with a label of their own; the others share one.
const ROUTE_LABELS: usize = 200;

/// All metrics of this module.
pub(super) const METRICS: &[Metric] = &[
    Metric::counter(
        ACQUIRED,
        &["lane", "bucket"],
        "Permits granted; with `bucket`, costs taken from that named budget.",
    ),
    Metric::counter(WAITS, &["lane", "bucket"], "Permits granted after a wait."),
    Metric::counter(EXHAUSTED, &["lane", "bucket", "reason"], "Calls without a permit."),
    Metric::gauge(
        AVAILABLE,
        &["bucket"],
        "Free tokens of the global limit; with `bucket`, points available in that named budget.",
    ),
    Metric::gauge(WAITING, &[], "Callers that wait for a permit."),
    Metric::histogram(WAIT_SECONDS, &["lane"], "Wait time for permits.").in_unit(Unit::Seconds),
    Metric::counter(LIMITED, &["route", "scope"], "429 responses, by route and scope."),
    Metric::counter(LIMITED_GLOBALLY, &[], "429 responses for the global limit. There should be none."),
    Metric::histogram(RETRY_AFTER, &["scope"], "Retry-After values of 429 responses.").in_unit(Unit::Seconds),
    Metric::counter(DENIED, &[], "Calls that were not sent because the lease of their caller was lost."),
    Metric::counter(LOST, &["why"], "Calls to Discord without a response: unreachable, timed_out or broken."),
    Metric::histogram(REQUEST_SECONDS, &["route", "status_class"], "Response time of Discord.").in_unit(Unit::Seconds),
];

/// A call was not sent, because its caller has lost its lease.
pub(crate) struct SendDenied {
    pub(crate) guild: Option<u64>,
    pub(crate) trace: Option<TraceContext>,
}

impl InternalEvent for SendDenied {
    fn emit(self) {
        let trace_id = trace_id(self.trace);
        warn!(
            guild_id = self.guild,
            trace_id, "call not sent: the lease has expired, or another process owns the guild"
        );
        counter!(DENIED).increment(1);
    }
}

/// Routes as labels, out of a bounded set.
#[derive(Debug, Default)]
pub(crate) struct RouteLabels {
    labels: HashMap<RouteKey, Arc<str>>,
}

impl RouteLabels {
    pub(crate) fn of(&mut self, route: &RouteKey) -> SharedString {
        if let Some(label) = self.labels.get(route) {
            return SharedString::from(Arc::clone(label));
        }
        if self.labels.len() >= ROUTE_LABELS {
            return SharedString::const_str("other");
        }
        let label: Arc<str> = route.as_str().into();
        self.labels.insert(route.clone(), Arc::clone(&label));
        SharedString::from(label)
    }
}

/// A permit was granted.
pub(crate) struct PermitGranted {
    pub(crate) lane: Lane,
    /// Wait time. `None` if there was no wait.
    pub(crate) waited: Option<Duration>,
}

impl InternalEvent for PermitGranted {
    fn emit(self) {
        let lane = self.lane.name();
        counter!(ACQUIRED, "lane" => lane).increment(1);
        if self.waited.is_some() {
            counter!(WAITS, "lane" => lane).increment(1);
        }
        histogram!(WAIT_SECONDS, "lane" => lane).record(self.waited.unwrap_or_default().as_secs_f64());
    }
}

/// A permit was not available in time.
pub(crate) struct PermitRefused {
    pub(crate) lane: Lane,
    pub(crate) reason: DelayReason,
}

impl InternalEvent for PermitRefused {
    fn emit(self) {
        let (lane, reason) = (self.lane.name(), self.reason.name());
        debug!(lane, reason, "no permit in time");
        counter!(EXHAUSTED, "lane" => lane, "reason" => reason).increment(1);
    }
}

/// Discord responded with 429.
pub(crate) struct RateLimitHit {
    pub(crate) route: SharedString,
    pub(crate) scope: RateLimitScope,
    pub(crate) retry_after: Duration,
}

impl InternalEvent for RateLimitHit {
    fn emit(self) {
        let (scope, seconds) = (self.scope.name(), self.retry_after.as_secs_f64());
        warn!(route = %self.route, scope, retry_after_s = seconds, "Discord responded with 429");
        counter!(LIMITED, "route" => self.route, "scope" => scope).increment(1);
        histogram!(RETRY_AFTER, "scope" => scope).record(seconds);
        if self.scope == RateLimitScope::Global {
            counter!(LIMITED_GLOBALLY).increment(1);
        }
    }
}

/// The number of free tokens or of waiting callers has changed.
pub(crate) struct TokensCounted {
    pub(crate) waiting: usize,
    pub(crate) available: u32,
}

impl InternalEvent for TokensCounted {
    fn emit(self) {
        gauge!(WAITING).set(self.waiting as f64);
        gauge!(AVAILABLE).set(f64::from(self.available));
    }
}

/// Identifies a call.
pub(crate) struct CallRecord {
    pub(crate) route: SharedString,
    pub(crate) guild: Option<u64>,
    pub(crate) elapsed: Duration,
    pub(crate) trace: Option<TraceContext>,
    /// Span of the caller.
    pub(crate) parent: Option<SpanId>,
}

impl CallRecord {
    fn duration_ms(&self) -> u64 {
        u64::try_from(self.elapsed.as_millis()).unwrap_or(u64::MAX)
    }

    fn record(&self, finish: impl FnOnce(Span) -> Span) {
        span::record(self.trace, |trace| {
            let route = self.route.to_string();
            let span = Span::ended_now(trace, self.parent, route.clone(), self.elapsed).kind(SpanKind::Client);
            finish(span.text("http.route", route).text("server.address", "discord").guild(self.guild))
        });
    }
}

/// A call was answered.
pub(crate) struct CallAnswered {
    pub(crate) of: CallRecord,
    pub(crate) status: u16,
    pub(crate) class: &'static str,
}

impl InternalEvent for CallAnswered {
    fn emit(self) {
        let Self { of, status, class } = self;
        let (duration_ms, trace_id) = (of.duration_ms(), trace_id(of.trace));
        debug!(route = %of.route, status, result = class, guild_id = of.guild, duration_ms, trace_id, "call answered");
        of.record(|span| {
            let failed = (status >= 400).then(|| class.to_owned());
            span.number("http.response.status_code", status).text("guildhall.result", class).failed(failed)
        });
        let status_class = match status / 100 {
            2 => "2xx",
            3 => "3xx",
            4 => "4xx",
            5 => "5xx",
            _ => "other",
        };
        histogram!(REQUEST_SECONDS, "route" => of.route, "status_class" => status_class)
            .record(of.elapsed.as_secs_f64());
    }
}

/// A call had no response.
pub(crate) struct CallLost<'a> {
    pub(crate) of: CallRecord,
    /// Result, out of a fixed set.
    pub(crate) result: &'static str,
    pub(crate) reason: &'a str,
}

impl InternalEvent for CallLost<'_> {
    fn emit(self) {
        let Self { of, result, reason: why } = self;
        let (duration_ms, trace_id) = (of.duration_ms(), trace_id(of.trace));
        debug!(route = %of.route, result, why, guild_id = of.guild, duration_ms, trace_id, "call had no response");
        of.record(|span| span.text("guildhall.result", result).failed(Some(why.to_owned())));
        counter!(LOST, "why" => result).increment(1);
    }
}
