//! Log messages and metrics of the REST proxy.

use std::{net::SocketAddr, time::Duration};

use guildhall_actors::telemetry::limits::status_class;
use guildhall_actors::telemetry::span;
use guildhall_actors::telemetry::span::{Span, SpanKind};
use guildhall_core::time::millis;
use guildhall_core::trace::{SpanId, TraceContext};
use tracing::{debug, info, trace, warn};

use metrics::SharedString;

use crate::events::{counter, event, gauge, histogram};
use crate::metrics::{
    EGRESS_ABANDONED, EGRESS_CALLS, EGRESS_COALESCED, EGRESS_CONNECTIONS, EGRESS_CONNECTIONS_CUT, EGRESS_REFUSED,
    EGRESS_REQUEST_SECONDS, EGRESS_REQUESTS, NIRN_ERRORS, NIRN_OPEN_CONNECTIONS, NIRN_REQUESTS, TWILIGHT_REQUESTS,
};

event! {
    /// The proxy accepts connections.
    pub(super) struct EgressStarted<'a> {
        /// Listening address, with the actual port.
        address: SocketAddr,
        tls: bool,
        /// Path of the Unix socket, or empty.
        socket: &'a str,
    }
    info!(%address, tls, socket, "egress listening");
}

event! {
    /// A call was answered.
    pub(super) struct CallAnswered<'a> {
        /// Kind of the caller, out of a fixed set.
        caller: &'static str,
        method: &'static str,
        status: u16,
        /// Why Guildhall answered it itself, if it did.
        why: Option<&'static str>,
        elapsed: Duration,
        request: &'a str,
        /// The span of the call, and its parent.
        trace: TraceContext,
        parent: Option<SpanId>,
    }
    let (duration_ms, trace_id) = (millis(elapsed), trace.id);
    let origin = if why.is_some() { "guildhall" } else { "discord" };
    debug!(caller, method, status, origin, why, duration_ms, request_id = request, %trace_id, "egress call answered");
    span::record(Some(trace), |trace| {
        let span = Span::ended_now(trace, parent, format!("{method} /api"), elapsed).kind(SpanKind::Server);
        let span = span.text("http.request.method", method).number("http.response.status_code", status);
        span.text("guildhall.request_id", request.to_owned()).failed((status >= 500).then(|| status.to_string()))
    });
    histogram!(EGRESS_REQUEST_SECONDS, "caller" => caller).record(elapsed);
    let class = status_class(status);
    counter!(EGRESS_REQUESTS, "caller" => caller, "origin" => origin, "status_class" => class).increment(1);
    if let Some(why) = why {
        counter!(EGRESS_REFUSED, "why" => why).increment(1);
    }
}

event! {
    /// A client hung up before its call was answered.
    pub(super) struct CallAbandoned;
    debug!("egress client hung up before the response");
    counter!(EGRESS_ABANDONED).increment(1);
}

event! {
    /// A call gets the response of an identical one that is in flight.
    pub(super) struct CallCoalesced;
    trace!("egress call coalesced");
    counter!(EGRESS_COALESCED).increment(1);
}

event! {
    /// Discord answered a call, as nirn-proxy counts it.
    pub(super) struct NirnCallAnswered {
        method: &'static str,
        status: SharedString,
        route: SharedString,
        client: SharedString,
        elapsed: Duration,
    }
    trace!(method, %status, %route, %client, "call counted for nirn-proxy's dashboards");
    histogram!(NIRN_REQUESTS, "method" => method, "status" => status, "route" => route, "clientId" => client)
        .record(elapsed);
}

event! {
    /// A call failed, as nirn-proxy counts it.
    pub(super) struct NirnCallFailed;
    trace!("failure counted for nirn-proxy's dashboards");
    counter!(NIRN_ERRORS).increment(1);
}

event! {
    /// A call is in progress (1) or has ended (-1), as nirn-proxy counts it.
    pub(super) struct NirnCallsChanged { method: &'static str, route: SharedString, change: f64 }
    trace!(method, %route, change, "call counted for nirn-proxy's dashboards");
    gauge!(NIRN_OPEN_CONNECTIONS, "route" => route, "method" => method).increment(change);
}

event! {
    /// Discord answered a call, as twilight's http-proxy counts it.
    pub(super) struct TwilightCallAnswered {
        method: &'static str,
        route: &'static str,
        status: SharedString,
        scope: &'static str,
        elapsed: Duration,
    }
    trace!(method, route, %status, scope, "call counted for the dashboards of twilight's http-proxy");
    histogram!(TWILIGHT_REQUESTS, "method" => method, "route" => route, "status" => status, "scope" => scope)
        .record(elapsed);
}

event! {
    /// The number of calls in progress changed.
    pub(super) struct CallsCounted { calls: usize }
    gauge!(EGRESS_CALLS).set(calls as f64);
}

event! {
    /// A connection was accepted.
    pub(super) struct ConnectionOpened;
    trace!("egress connection accepted");
    gauge!(EGRESS_CONNECTIONS).increment(1);
}

event! {
    /// A connection has ended.
    pub(super) struct ConnectionEnded;
    trace!("egress connection closed");
    gauge!(EGRESS_CONNECTIONS).decrement(1);
}

/// Why a connection was refused or closed.
#[derive(Clone, Copy, Debug)]
pub(super) enum CutReason {
    /// The limit of connections is reached.
    Full,
    /// The client does not read its response, or too slowly.
    Unread,
    /// It was idle, and made room for another one.
    Idle,
    /// TLS could not be set up in time.
    Handshake,
}

event! {
    /// A connection was refused or closed.
    pub(super) struct ConnectionCut { reason: CutReason }
    let why = match reason {
        CutReason::Full => "full",
        CutReason::Unread => "unread",
        CutReason::Idle => "idle",
        CutReason::Handshake => "handshake",
    };
    debug!(why, "egress connection closed");
    counter!(EGRESS_CONNECTIONS_CUT, "why" => why).increment(1);
}

event! {
    /// A connection could not be accepted.
    pub(super) struct AcceptFailed<'a> { reason: &'a str }
    warn!(reason, "cannot accept a connection; raise the limit of open files if this continues");
}
