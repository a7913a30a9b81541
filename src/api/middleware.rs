//! Checks that every request passes before its handler runs.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::{Duration, Instant},
};

use actix_web::{
    Error, HttpMessage as _, HttpRequest, HttpResponse,
    body::MessageBody,
    dev::{ServiceRequest, ServiceResponse},
    http::{
        ConnectionType, Method,
        header::{AUTHORIZATION, HeaderMap},
    },
    middleware::Next,
    web::{Bytes, Data},
};
use guildhall_actors::access::Caller;
use guildhall_core::{
    access::ParsedKey,
    policy::{MOST_COST, Policy},
    trace::TraceContext,
};
use tokio::sync::OwnedSemaphorePermit;

use super::routes::{Route, RouteMatch};
use crate::api::app_state::AppState;
use crate::{
    api::{
        body::{self, BufferedBody, announces_at_most, announces_more_than, hold, last_words, until},
        events::RequestCompleted,
        keyring,
        policies::PolicyDecision,
        problem::{ProblemResponse, ProblemType},
        request_id,
    },
    events::emit,
};

/// Header with the parent span of a request.
const TRACEPARENT: &str = "traceparent";

/// The complete body of a request.
struct HeldBody {
    read: BufferedBody,
    /// The number of larger bodies at once is limited.
    _large: Option<OwnedSemaphorePermit>,
}

/// A request that passed all checks.
struct AdmittedRequest {
    caller: Caller,
    body: Option<HeldBody>,
    /// When its operations are due, if the rate limit delays them. Counted from the decision, however long the body
    /// takes: so later requests of a caller are never due before its earlier ones.
    due: Instant,
    found: RouteMatch,
    /// The decision on the complete cost, if that is more than one token.
    ruling: Option<PolicyDecision>,
}

/// Lets requests pass that have a valid key with the scope and are within the rate limit, once the body has arrived.
pub(crate) async fn admit(
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let started = Instant::now();
    let mut unread = request.take_payload();
    let named = request_id::of(request.headers());
    let asked_by = trace_of(request.headers());
    let trace = match asked_by {
        Some(given) => given.child(fastrand::u64(..)),
        None => TraceContext::begin(fastrand::u128(..), fastrand::u64(..)),
    };
    let served = request.app_data::<Data<AppState>>().cloned();
    let found = RouteMatch::of(request.path(), request.method());
    let route = found.route();
    let mut ruling = None;
    let checked = match &served {
        Some(served) => check(served, &request, Arc::clone(&named), found, &mut unread, &mut ruling).await,
        None => Err(RejectedRequest::at_once(ProblemType::Internal)),
    };
    let mut response = match checked {
        Ok(mut admitted) => {
            admitted.caller.trace = Some(trace);
            request.extensions_mut().insert(admitted);
            next.call(request).await?.map_into_boxed_body()
        }
        Err(RejectedRequest { told, arrived: true }) => request.into_response(told.response()),
        Err(RejectedRequest { told, arrived: false }) => request.into_response(last_words(&told)),
    };
    request_id::tell(&named, response.headers_mut());
    let charged = response.request().extensions().get::<AdmittedRequest>().and_then(|admitted| admitted.ruling);
    if let Some(ruling) = charged.or(ruling) {
        ruling.tell(response.headers_mut());
    }
    emit(RequestCompleted {
        route,
        method: method_name(response.request().method()),
        status: response.status(),
        took: started.elapsed(),
        request: &named,
        trace,
        asked_by: asked_by.map(|given| given.span),
    });
    let Some(served) = served else { return Ok(hold(response, unread).map_into_boxed_body()) };
    if served.is_draining() {
        response.response_mut().head_mut().set_connection_type(ConnectionType::Close);
    }
    let response = until(response, served.drains());
    Ok(hold(response, unread).map_into_boxed_body())
}

struct RejectedRequest {
    told: ProblemResponse,
    /// Whether no relevant part of the body is still to arrive.
    arrived: bool,
}

impl RejectedRequest {
    fn at_once(told: impl Into<ProblemResponse>) -> Self {
        Self { told: told.into(), arrived: true }
    }
}

async fn check(
    served: &AppState,
    request: &ServiceRequest,
    named: Arc<str>,
    found: RouteMatch,
    unread: &mut actix_web::dev::Payload,
    ruling: &mut Option<PolicyDecision>,
) -> Result<AdmittedRequest, RejectedRequest> {
    let config = served.control.config;
    if served.is_draining() {
        return Err(RejectedRequest { told: ProblemType::Draining.into(), arrived: false });
    }
    // First, so that a caller without a key cannot make the daemon read a body.
    let caller = identify(served, request, named, ruling).await.map_err(RejectedRequest::at_once)?;
    let way = found.way();
    let policy = way.map_or(Policy::Light, |way| way.policy);
    *ruling = served.control.policies.on_request(policy, &caller.key, &served.runtime).await;
    let delay = match ruling {
        Some(ruling) => ruling.delay().map_err(RejectedRequest::at_once)?,
        None => Duration::ZERO,
    };
    let due = Instant::now() + delay;
    if let Some(needs) = way.map(|way| way.needs).filter(|needs| !caller.may(*needs)) {
        served.refused(&caller, format!("{} {}", method_name(request.method()), needs.name()));
        let says = format!("This request needs a key with the scope {}, which this key lacks.", needs.name());
        return Err(RejectedRequest::at_once(ProblemType::Forbidden.says(says).with("needs", needs.name())));
    }
    let takes_many = way.is_some_and(Route::takes_many);
    let mut most = if takes_many { config.submission_most.max(config.body_most) } else { config.body_most };
    if announces_more_than(most as u64, request.headers()) {
        let told = ProblemType::BodyTooLarge.says(format!("The request body is larger than {most} bytes."));
        return Err(RejectedRequest { told, arrived: false });
    }
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(AdmittedRequest { caller, body: None, due, found, ruling: None });
    }
    let mut large = None;
    if most > config.body_most && !announces_at_most(config.body_most as u64, request.headers()) {
        large = Arc::clone(&served.control.large).try_acquire_owned().ok();
        if large.is_none() && announces_more_than(config.body_most as u64, request.headers()) {
            let says = format!(
                "Too many request bodies of more than {} bytes are being read. Retry in a moment.",
                config.body_most
            );
            return Err(RejectedRequest { told: ProblemType::Busy.says(says), arrived: false });
        }
        if large.is_none() {
            // It may turn out to be small.
            most = config.body_most;
        }
    }
    match body::read(unread, most, config.body_within, &served.control.room).await {
        Ok(read) => {
            Ok(AdmittedRequest { caller, body: Some(HeldBody { read, _large: large }), due, found, ruling: None })
        }
        Err(told) => Err(RejectedRequest { told, arrived: false }),
    }
}

/// The caller with a valid key. Requests without one are counted by their address.
async fn identify(
    served: &AppState,
    request: &ServiceRequest,
    named: Arc<str>,
    ruling: &mut Option<PolicyDecision>,
) -> Result<Caller, ProblemResponse> {
    let peer = request.peer_addr().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip());
    let from = served.control.proxies.origin(peer, request.headers());
    if let Some(caller) = recognise(served, request.headers(), named, from).await? {
        return Ok(caller);
    }
    *ruling = served.control.policies.on_failed(from);
    if let Some(ruling) = ruling {
        ruling.delay()?;
    }
    Err(ProblemType::Unauthorized.into())
}

/// The caller with a valid key; `None` if the key is missing or invalid.
async fn recognise(
    served: &AppState,
    headers: &HeaderMap,
    named: Arc<str>,
    from: IpAddr,
) -> Result<Option<Caller>, ProblemResponse> {
    let shown = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown = shown.and_then(|shown| shown.split_once(' '));
    let shown = shown.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, key)| key.trim());
    let Some(shown) = shown else { return Ok(None) };
    if served.control.key.fits(shown, || served.key_source()).await {
        return Ok(Some(Caller { request: named, ..Caller::operator() }));
    }
    let Some(shown) = ParsedKey::read(shown) else { return Ok(None) };
    let Some(known) = served.look_up(shown.id, from).await? else { return Ok(None) };
    Ok(keyring::caller(&known, &shown, served.now(), named))
}

/// The parent span of a request. An invalid or repeated `traceparent` is ignored, as its specification says.
fn trace_of(headers: &HeaderMap) -> Option<TraceContext> {
    let mut given = headers.get_all(TRACEPARENT);
    let (first, second) = (given.next()?, given.next());
    first.to_str().ok().filter(|_| second.is_none()).and_then(TraceContext::read)
}

/// A method's name, out of a fixed set: it becomes a label.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

/// Answers a request that passed all checks. Other requests do not reach it.
pub(crate) async fn answer(request: HttpRequest, served: Data<AppState>) -> Result<HttpResponse, ProblemResponse> {
    let found = of(&request, |admitted| admitted.found.clone());
    found.answer(request, served).await
}

/// Takes the rest of the cost of a request, of which the checks took one token.
///
/// # Errors
///
/// When the rate limit is exceeded.
pub(crate) async fn charge(request: &HttpRequest, served: &AppState, cost: u32) -> Result<(), ProblemResponse> {
    let policy = of(request, |admitted| admitted.found.way().map_or(Policy::Light, |way| way.policy));
    let key = caller_of(request).key;
    if cost <= 1 {
        return Ok(());
    }
    let Some(ruling) = served.control.policies.take(policy, &key, cost - 1, &served.runtime).await else {
        return Ok(());
    };
    if let Some(admitted) = request.extensions_mut().get_mut::<AdmittedRequest>() {
        admitted.ruling = Some(ruling);
    }
    let delay = ruling.delay()?;
    if let Some(admitted) = request.extensions_mut().get_mut::<AdmittedRequest>() {
        admitted.due = admitted.due.max(Instant::now() + delay);
    }
    Ok(())
}

/// Takes the rest of the cost of a request that is done already, of which the checks took one token.
pub(crate) async fn owe(request: &HttpRequest, served: &AppState, cost: usize) {
    let policy = of(request, |admitted| admitted.found.way().map_or(Policy::Light, |way| way.policy));
    let key = caller_of(request).key;
    let rest = u32::try_from(cost.saturating_sub(1)).unwrap_or(MOST_COST).min(MOST_COST);
    if rest == 0 {
        return;
    }
    let ruling = served.control.policies.owe(policy, &key, rest, &served.runtime).await;
    if let Some(admitted) = request.extensions_mut().get_mut::<AdmittedRequest>() {
        admitted.ruling = ruling;
    }
}

/// The body of a request.
pub(crate) fn body_of(request: &HttpRequest) -> Bytes {
    of(request, |admitted| admitted.body.as_ref().map(|body| body.read.bytes.clone()).unwrap_or_default())
}

/// Frees the memory of a body that was read, for requests that wait.
pub(crate) fn let_go_of_body(request: &HttpRequest) {
    if let Some(admitted) = request.extensions_mut().get_mut::<AdmittedRequest>() {
        admitted.body = None;
    }
}

/// How long the operations of a request are delayed by the rate limit.
pub(crate) fn delay_of(request: &HttpRequest) -> Duration {
    of(request, |admitted| admitted.due.saturating_duration_since(Instant::now()))
}

/// The caller of a request.
pub(crate) fn caller_of(request: &HttpRequest) -> Caller {
    of(request, |admitted| admitted.caller.clone())
}

/// The variable segment of a request's path, still percent-encoded.
pub(crate) fn named_in(request: &HttpRequest) -> String {
    of(request, |admitted| admitted.found.named.clone())
}

fn of<T>(request: &HttpRequest, look: impl FnOnce(&AdmittedRequest) -> T) -> T {
    look(request.extensions().get::<AdmittedRequest>().expect("invariant: every request has been admitted"))
}
