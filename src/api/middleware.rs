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
    policy::{MAX_COST, Policy},
    trace::TraceContext,
};
use tokio::sync::OwnedSemaphorePermit;

use super::routes::{Route, RouteMatch};
use crate::api::app_state::AppState;
use crate::{
    api::{
        body::{self, BufferedBody, announces_at_most, announces_more_than, closing_problem, hold_unread_body, until},
        dto::Time,
        events::RequestCompleted,
        keyring::KeyRejection,
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
    buffered: BufferedBody,
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
    route_match: RouteMatch,
    /// The decision on the complete cost, if that is more than one token.
    decision: Option<PolicyDecision>,
}

/// Lets requests pass that have a valid key with the scope and are within the rate limit, once the body has arrived.
pub(crate) async fn admit(
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let started = Instant::now();
    let mut unread = request.take_payload();
    let id = request_id::from_headers(request.headers());
    let parent = parent_span(request.headers());
    let trace = match parent {
        Some(given) => given.child(fastrand::u64(..)),
        None => TraceContext::start(fastrand::u128(..), fastrand::u64(..)),
    };
    let app = request.app_data::<Data<AppState>>().cloned();
    let found = RouteMatch::find(request.path(), request.method());
    let route = found.pattern();
    let mut decision = None;
    let checked = match &app {
        Some(app) => check(app, &request, Arc::clone(&id), found, &mut unread, &mut decision).await,
        None => Err(RejectedRequest::new(ProblemType::Internal)),
    };
    let mut response = match checked {
        Ok(mut admitted) => {
            admitted.caller.trace = Some(trace);
            request.extensions_mut().insert(admitted);
            next.call(request).await?.map_into_boxed_body()
        }
        Err(RejectedRequest { problem, arrived: true }) => request.into_response(problem.response()),
        Err(RejectedRequest { problem, arrived: false }) => request.into_response(closing_problem(&problem)),
    };
    request_id::set_header(&id, response.headers_mut());
    let charged = response.request().extensions().get::<AdmittedRequest>().and_then(|admitted| admitted.decision);
    if let Some(decision) = charged.or(decision) {
        decision.write_headers(response.headers_mut());
    }
    emit(RequestCompleted {
        route,
        method: method_name(response.request().method()),
        status: response.status(),
        elapsed: started.elapsed(),
        request: &id,
        trace,
        parent: parent.map(|given| given.span),
    });
    let Some(app) = app else { return Ok(hold_unread_body(response, unread).map_into_boxed_body()) };
    if app.is_draining() {
        response.response_mut().head_mut().set_connection_type(ConnectionType::Close);
    }
    let response = until(response, app.wait_for_drain());
    Ok(hold_unread_body(response, unread).map_into_boxed_body())
}

struct RejectedRequest {
    problem: ProblemResponse,
    /// Whether no relevant part of the body is still to arrive.
    arrived: bool,
}

impl RejectedRequest {
    fn new(problem: impl Into<ProblemResponse>) -> Self {
        Self { problem: problem.into(), arrived: true }
    }
}

async fn check(
    app: &AppState,
    request: &ServiceRequest,
    id: Arc<str>,
    found: RouteMatch,
    unread: &mut actix_web::dev::Payload,
    decision: &mut Option<PolicyDecision>,
) -> Result<AdmittedRequest, RejectedRequest> {
    let config = app.control.config;
    if app.is_draining() {
        return Err(RejectedRequest { problem: ProblemType::Draining.into(), arrived: false });
    }
    // First, so that a caller without a key cannot make the daemon read a body.
    let caller = identify(app, request, id, decision).await.map_err(RejectedRequest::new)?;
    let route = found.route();
    let policy = route.map_or(Policy::Light, |route| route.policy);
    *decision = app.control.policies.on_request(policy, &caller.key, &app.runtime).await;
    let delay = match decision {
        Some(decision) => decision.delay().map_err(RejectedRequest::new)?,
        None => Duration::ZERO,
    };
    let due = Instant::now() + delay;
    if let Some(needs) = route.map(|route| route.needs).filter(|needs| !caller.has_scope(*needs)) {
        app.audit_rejection(&caller, format!("{} {}", method_name(request.method()), needs.name()));
        let detail = format!("This request needs a key with the scope {}, which this key lacks.", needs.name());
        return Err(RejectedRequest::new(ProblemType::Forbidden.with_detail(detail).with("needs", needs.name())));
    }
    let takes_many = route.is_some_and(Route::accepts_batches);
    let mut max_body = if takes_many { config.max_submission.max(config.max_body) } else { config.max_body };
    if announces_more_than(max_body as u64, request.headers()) {
        let problem =
            ProblemType::BodyTooLarge.with_detail(format!("The request body is larger than {max_body} bytes."));
        return Err(RejectedRequest { problem, arrived: false });
    }
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(AdmittedRequest { caller, body: None, due, route_match: found, decision: None });
    }
    let mut large = None;
    if max_body > config.max_body && !announces_at_most(config.max_body as u64, request.headers()) {
        large = Arc::clone(&app.control.large).try_acquire_owned().ok();
        if large.is_none() && announces_more_than(config.max_body as u64, request.headers()) {
            let detail = format!(
                "Too many request bodies of more than {} bytes are being read. Retry in a moment.",
                config.max_body
            );
            return Err(RejectedRequest { problem: ProblemType::Busy.with_detail(detail), arrived: false });
        }
        if large.is_none() {
            // It may turn out to be small.
            max_body = config.max_body;
        }
    }
    match body::read(unread, max_body, config.body_timeout, &app.control.body_memory).await {
        Ok(read) => Ok(AdmittedRequest {
            caller,
            body: Some(HeldBody { buffered: read, _large: large }),
            due,
            route_match: found,
            decision: None,
        }),
        Err(problem) => Err(RejectedRequest { problem, arrived: false }),
    }
}

/// The caller with a valid key. Requests without one are counted by their address.
async fn identify(
    app: &AppState,
    request: &ServiceRequest,
    id: Arc<str>,
    decision: &mut Option<PolicyDecision>,
) -> Result<Caller, ProblemResponse> {
    let peer = request.peer_addr().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip());
    let from = app.control.proxies.client_address(peer, request.headers());
    let rejection = match authenticate(app, request.headers(), id, from).await? {
        Ok(caller) => return Ok(caller),
        Err(rejection) => rejection,
    };
    *decision = app.control.policies.on_failed(from);
    if let Some(decision) = decision {
        decision.delay()?;
    }
    Err(rejected_key(rejection))
}

fn rejected_key(rejection: KeyRejection) -> ProblemResponse {
    match rejection {
        KeyRejection::Missing => ProblemType::Unauthorized.into(),
        KeyRejection::Invalid => ProblemType::KeyInvalid.into(),
        KeyRejection::Expired(at) => ProblemType::KeyExpired.with_detail(format!(
            "The key has expired at {}. Create another one with `POST /v1/keys`.",
            Time::from(at)
        )),
        KeyRejection::Revoked(at, None) => ProblemType::KeyRevoked.with_detail(format!(
            "The key was revoked at {}. Create another one with `POST /v1/keys`.",
            Time::from(at)
        )),
        KeyRejection::Revoked(at, Some(new)) => ProblemType::KeyRevoked.with_detail(format!(
            "The key was rotated: it is no longer valid since {}. Use the key {} that replaces it.",
            Time::from(at),
            new.as_str()
        )),
    }
}

/// The caller with a valid key, or why the key is not accepted.
async fn authenticate(
    app: &AppState,
    headers: &HeaderMap,
    id: Arc<str>,
    from: IpAddr,
) -> Result<Result<Caller, KeyRejection>, ProblemResponse> {
    let credential = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let credential = credential.and_then(|credential| credential.split_once(' '));
    let credential = credential.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, key)| key.trim());
    let Some(credential) = credential else { return Ok(Err(KeyRejection::Missing)) };
    app.authenticate(credential, id, from).await
}

/// The parent span of a request. An invalid or repeated `traceparent` is ignored, as its specification says.
fn parent_span(headers: &HeaderMap) -> Option<TraceContext> {
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
pub(crate) async fn dispatch(request: HttpRequest) -> Result<HttpResponse, ProblemResponse> {
    let found = with_admitted(&request, |admitted| admitted.route_match.clone());
    found.dispatch(request).await
}

/// Takes the rest of the cost of a request, of which the checks took one token.
///
/// # Errors
///
/// When the rate limit is exceeded.
pub(crate) async fn charge(request: &HttpRequest, app: &AppState, cost: u32) -> Result<(), ProblemResponse> {
    let policy =
        with_admitted(request, |admitted| admitted.route_match.route().map_or(Policy::Light, |route| route.policy));
    let key = caller_of(request).key;
    if cost <= 1 {
        return Ok(());
    }
    let Some(decision) = app.control.policies.take(policy, &key, cost - 1, &app.runtime).await else {
        return Ok(());
    };
    if let Some(admitted) = request.extensions_mut().get_mut::<AdmittedRequest>() {
        admitted.decision = Some(decision);
    }
    let delay = decision.delay()?;
    if let Some(admitted) = request.extensions_mut().get_mut::<AdmittedRequest>() {
        admitted.due = admitted.due.max(Instant::now() + delay);
    }
    Ok(())
}

/// Takes the rest of the cost of a request that is done already, of which the checks took one token.
pub(crate) async fn charge_after(request: &HttpRequest, app: &AppState, cost: usize) {
    let policy =
        with_admitted(request, |admitted| admitted.route_match.route().map_or(Policy::Light, |route| route.policy));
    let key = caller_of(request).key;
    let rest = u32::try_from(cost.saturating_sub(1)).unwrap_or(MAX_COST).min(MAX_COST);
    if rest == 0 {
        return;
    }
    let decision = app.control.policies.charge(policy, &key, rest, &app.runtime).await;
    if let Some(admitted) = request.extensions_mut().get_mut::<AdmittedRequest>() {
        admitted.decision = decision;
    }
}

/// The body of a request.
pub(crate) fn body_of(request: &HttpRequest) -> Bytes {
    with_admitted(request, |admitted| {
        admitted.body.as_ref().map(|body| body.buffered.bytes.clone()).unwrap_or_default()
    })
}

/// Frees the memory of a body that was read, for requests that wait.
pub(crate) fn release_body(request: &HttpRequest) {
    if let Some(admitted) = request.extensions_mut().get_mut::<AdmittedRequest>() {
        admitted.body = None;
    }
}

/// How long the operations of a request are delayed by the rate limit.
pub(crate) fn delay_of(request: &HttpRequest) -> Duration {
    with_admitted(request, |admitted| admitted.due.saturating_duration_since(Instant::now()))
}

/// The caller of a request.
pub(crate) fn caller_of(request: &HttpRequest) -> Caller {
    with_admitted(request, |admitted| admitted.caller.clone())
}

/// The variable segment of a request's path, still percent-encoded.
pub(crate) fn path_parameter(request: &HttpRequest) -> String {
    with_admitted(request, |admitted| admitted.route_match.parameter.clone())
}

fn with_admitted<T>(request: &HttpRequest, read: impl FnOnce(&AdmittedRequest) -> T) -> T {
    read(request.extensions().get::<AdmittedRequest>().expect("invariant: every request has been admitted"))
}
