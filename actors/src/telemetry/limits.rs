//! Logs and metrics of the token bucket and of Discord's limits.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use guildhall_core::lane::Lane;
use guildhall_core::limit::DelayReason;
use guildhall_core::response::RateLimitScope;
use guildhall_core::route::RouteKey;
use guildhall_core::time::millis;
use guildhall_core::trace::{SpanId, TraceContext};
use metrics::SharedString;
use tracing::{debug, warn};

use super::span::{self, Span, SpanKind};
use super::{FailureLog, counter, event, gauge, histogram, metrics, trace_id};

/// Number of routes with a label of their own; the others share one.
const ROUTE_LABELS: usize = 200;

metrics! {
    Gate {
        /// Permits granted; with `bucket`, costs taken from that named budget.
        pub(crate) ACQUIRED = counter "guildhall_token_bucket_acquired_total" [lane] [bucket];
        /// Permits granted after a wait.
        pub(crate) WAITS = counter "guildhall_token_bucket_waits_total" [lane] [bucket];
        /// Calls without a permit.
        pub(crate) EXHAUSTED = counter "guildhall_token_bucket_exhausted_total" [lane, reason] [bucket, reason];
        /// Calls that the global limit permits now, of all processes if they share it over Redis; with `bucket`, points available in that named budget.
        pub(crate) AVAILABLE = gauge "guildhall_token_bucket_available" [] [bucket];
        /// Hourly spend totals of budgets that were dropped before they were saved.
        pub(crate) SPEND_FORGOTTEN = counter "guildhall_budget_spend_forgotten_total";
        /// Callers that wait for a permit.
        WAITING = gauge "guildhall_token_bucket_waiting";
        /// Wait time for permits.
        WAIT_SECONDS = histogram "guildhall_token_bucket_wait_seconds" [lane] in Seconds;
        /// 429 responses, by route and scope.
        LIMITED = counter "guildhall_discord_429_total" [route, scope];
        /// 429 responses for the global limit. There should be none.
        LIMITED_GLOBALLY = counter "guildhall_discord_429_global_total";
        /// Retry-After values of 429 responses.
        RETRY_AFTER = histogram "guildhall_discord_429_retry_after_seconds" [scope] in Seconds;
        /// Calls that were not sent because the lease of their caller was lost.
        DENIED = counter "guildhall_rest_denied_total";
        /// Calls to Discord without a response: unreachable, timed_out, broken, or aborted (a client of the REST proxy
        /// ended its upload).
        LOST = counter "guildhall_rest_lost_total" [why];
        /// Response time of Discord.
        REQUEST_SECONDS = histogram "guildhall_rest_request_seconds" [route, status_class] in Seconds;
    }
}

/// Calls that were not sent. While the store is out of reach, each of them is.
static DENIED_CALLS: LazyLock<FailureLog> = LazyLock::new(|| FailureLog::new("the lease of calls"));

/// Class of a status, as a label.
#[must_use]
pub const fn status_class(status: u16) -> &'static str {
    match status / 100 {
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        5 => "5xx",
        _ => "other",
    }
}

event! {
    /// A call was not sent, because its caller has lost its lease.
    pub(crate) struct SendDenied { guild: Option<u64>, trace: Option<TraceContext> }
    if let Some(summary) = DENIED_CALLS.on_isolated_failure() {
        let ((failures, failing_for_s), trace_id) = (summary.repeated(), trace_id(trace));
        warn!(
            guild_id = guild, failures, failing_for_s, trace_id,
            "call not sent: the lease has expired, or another process owns the guild"
        );
    }
    counter!(DENIED).increment(1);
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

event! {
    /// A permit was granted.
    pub(crate) struct PermitGranted {
        lane: Lane,
        /// Wait time. `None` if there was no wait.
        waited: Option<Duration>,
    }
    let lane = lane.name();
    counter!(ACQUIRED, "lane" => lane).increment(1);
    if waited.is_some() {
        counter!(WAITS, "lane" => lane).increment(1);
    }
    histogram!(WAIT_SECONDS, "lane" => lane).record(waited.unwrap_or_default().as_secs_f64());
}

event! {
    /// A permit was not available in time.
    pub(crate) struct PermitRefused { lane: Lane, reason: DelayReason }
    let (lane, reason) = (lane.name(), reason.name());
    debug!(lane, reason, "no permit in time");
    counter!(EXHAUSTED, "lane" => lane, "reason" => reason).increment(1);
}

event! {
    /// Discord responded with 429.
    pub(crate) struct RateLimitHit { route: SharedString, scope: RateLimitScope, retry_after: Duration }
    let (name, seconds) = (scope.name(), retry_after.as_secs_f64());
    warn!(%route, scope = name, retry_after_s = seconds, "Discord responded with 429");
    counter!(LIMITED, "route" => route, "scope" => name).increment(1);
    histogram!(RETRY_AFTER, "scope" => name).record(seconds);
    if scope == RateLimitScope::Global {
        counter!(LIMITED_GLOBALLY).increment(1);
    }
}

event! {
    /// The number of free tokens or of waiting callers has changed.
    pub(crate) struct TokensCounted { waiting: usize, available: u32 }
    gauge!(WAITING).set(waiting as f64);
    gauge!(AVAILABLE).set(f64::from(available));
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
    fn record(&self, finish: impl FnOnce(Span) -> Span) {
        span::record(self.trace, |trace| {
            let route = self.route.to_string();
            let span = Span::ended_now(trace, self.parent, route.clone(), self.elapsed).kind(SpanKind::Client);
            finish(span.text("http.route", route).text("server.address", "discord").guild(self.guild))
        });
    }
}

event! {
    /// A call was answered.
    pub(crate) struct CallAnswered { of: CallRecord, status: u16, class: &'static str }
    let (duration_ms, trace_id) = (millis(of.elapsed), trace_id(of.trace));
    debug!(route = %of.route, status, result = class, guild_id = of.guild, duration_ms, trace_id, "call answered");
    of.record(|span| {
        let failed = (status >= 400).then(|| class.to_owned());
        span.number("http.response.status_code", status).text("guildhall.result", class).failed(failed)
    });
    let status_class = status_class(status);
    histogram!(REQUEST_SECONDS, "route" => of.route, "status_class" => status_class).record(of.elapsed.as_secs_f64());
}

event! {
    /// A call had no response.
    pub(crate) struct CallLost<'a> {
        of: CallRecord,
        /// Result, out of a fixed set.
        result: &'static str,
        reason: &'a str,
    }
    let (duration_ms, trace_id) = (millis(of.elapsed), trace_id(of.trace));
    debug!(route = %of.route, result, why = reason, guild_id = of.guild, duration_ms, trace_id, "call had no response");
    of.record(|span| span.text("guildhall.result", result).failed(Some(reason.to_owned())));
    counter!(LOST, "why" => result).increment(1);
}
