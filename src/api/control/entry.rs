//! What every request passes before anything is done for it.

use std::{sync::Arc, time::Instant};

use actix_web::{
    Error, HttpMessage as _, HttpRequest,
    body::MessageBody,
    dev::{ServiceRequest, ServiceResponse},
    http::{
        Method,
        header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue},
    },
    middleware::Next,
    web::{Bytes, Data},
};
use guildhall_actors::access::Caller;
use guildhall_core::{access::KeyText, trace::Trace};
use tokio::sync::OwnedSemaphorePermit;

use super::{Served, routes};
use crate::{
    api::{
        body::{self, announces_at_most, announces_more_than, hold, last_words},
        events::ApiAnswered,
        keyring,
        problem::{Problem, Told},
    },
    events::emit,
};

/// What names a request.
const REQUEST_ID: &str = "x-request-id";
/// What says which trace a request is a part of.
const TRACEPARENT: &str = "traceparent";
/// The longest name that a caller may give one.
const NAME_MOST: usize = 128;

/// A request's body, all of it.
struct Body {
    bytes: Bytes,
    /// Larger ones are kept by few at once.
    _large: Option<OwnedSemaphorePermit>,
}

/// Lets through who has a key that is good for it, once the body is there.
pub(super) async fn admit(
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let started = Instant::now();
    let mut unread = request.take_payload();
    let named = name_of(request.headers());
    let asked_by = trace_of(request.headers());
    let trace = match asked_by {
        Some(given) => given.child(fastrand::u64(..)),
        None => Trace::begin(fastrand::u128(..), fastrand::u64(..)),
    };
    let mut response = match check(&request, Arc::clone(&named), &mut unread).await {
        Ok((caller, body)) => {
            request.extensions_mut().insert(body);
            request.extensions_mut().insert(Caller { trace: Some(trace), ..caller });
            next.call(request).await?.map_into_boxed_body()
        }
        Err(Refused { told, arrived: true }) => request.into_response(told.response()),
        Err(Refused { told, arrived: false }) => request.into_response(last_words(&told)),
    };
    if let Ok(name) = HeaderValue::from_str(&named) {
        response.headers_mut().insert(HeaderName::from_static(REQUEST_ID), name);
    }
    emit(ApiAnswered {
        route: response.request().match_pattern().unwrap_or_else(|| "none".to_owned()),
        method: method_name(response.request().method()),
        status: response.status(),
        took: started.elapsed(),
        request: &named,
        trace,
        asked_by: asked_by.map(|given| given.span),
    });
    Ok(hold(response, unread))
}

struct Refused {
    told: Told,
    /// Whether nothing of the body is still on its way that matters.
    arrived: bool,
}

impl Refused {
    fn at_once(told: impl Into<Told>) -> Self {
        Self { told: told.into(), arrived: true }
    }
}

async fn check(
    request: &ServiceRequest,
    named: Arc<str>,
    unread: &mut actix_web::dev::Payload,
) -> Result<(Caller, Body), Refused> {
    let Some(served) = request.app_data::<Data<Served>>() else {
        return Err(Refused::at_once(Problem::Internal));
    };
    let config = served.control.config;
    // First, so that nobody without a key can make us read anything.
    let caller = identify(served, request.headers(), named).await.map_err(Refused::at_once)?;
    let needs = request.match_pattern().and_then(|pattern| routes::needs(&pattern, request.method()));
    if let Some(needs) = needs.filter(|needs| !caller.may(*needs)) {
        served.refused(&caller, format!("{} {}", method_name(request.method()), needs.name()));
        let says = format!("This needs a key with the scope {}; this one has not.", needs.name());
        return Err(Refused::at_once(Problem::Forbidden.says(says).with("needs", needs.name())));
    }
    let pattern = request.match_pattern().unwrap_or_default();
    let takes_many = routes::takes_many(&pattern, request.method());
    let mut most = if takes_many { config.submission_most.max(config.body_most) } else { config.body_most };
    if announces_more_than(most as u64, request.headers()) {
        let told = Problem::BodyTooLarge.says(format!("The body is larger than {most} bytes."));
        return Err(Refused { told, arrived: false });
    }
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok((caller, Body { bytes: Bytes::new(), _large: None }));
    }
    let mut large = None;
    if most > config.body_most && !announces_at_most(config.body_most as u64, request.headers()) {
        large = Arc::clone(&served.control.large).try_acquire_owned().ok();
        if large.is_none() && announces_more_than(config.body_most as u64, request.headers()) {
            let says = format!("Too many bodies of more than {} bytes are being read.", config.body_most);
            return Err(Refused { told: Problem::Busy.says(says), arrived: false });
        }
        if large.is_none() {
            // It may turn out to be small.
            most = config.body_most;
        }
    }
    match body::read(unread, most, config.body_within).await {
        Ok(bytes) => Ok((caller, Body { bytes, _large: large })),
        Err(told) => Err(Refused { told, arrived: false }),
    }
}

/// Whoever shows a key that is good.
async fn identify(served: &Served, headers: &HeaderMap, named: Arc<str>) -> Result<Caller, Told> {
    let shown = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown = shown.and_then(|shown| shown.split_once(' '));
    let shown = shown.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, key)| key.trim());
    let shown = shown.ok_or(Problem::Unauthorized)?;
    if served.control.key.fits(shown) {
        return Ok(Caller { request: named, ..Caller::operator() });
    }
    let shown = KeyText::read(shown).ok_or(Problem::Unauthorized)?;
    let known = served.look_up(shown.id).await?.ok_or(Problem::Unauthorized)?;
    let caller = keyring::caller(&known, &shown, served.now(), named);
    caller.ok_or_else(|| Problem::Unauthorized.into())
}

/// What a request is called: as its caller says, or by chance.
fn name_of(headers: &HeaderMap) -> Arc<str> {
    let plain = |text: &&str| {
        (1..=NAME_MOST).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    };
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()).filter(plain);
    given.map_or_else(|| Arc::from(format!("{:032x}", fastrand::u128(..))), Arc::from)
}

/// The part of a trace that makes a request. What is no `traceparent`, or is there twice, is not there, as its specification
/// has it.
fn trace_of(headers: &HeaderMap) -> Option<Trace> {
    let mut given = headers.get_all(TRACEPARENT);
    let (first, second) = (given.next()?, given.next());
    first.to_str().ok().filter(|_| second.is_none()).and_then(Trace::read)
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

/// The body that came with a request.
pub(super) fn body_of(request: &HttpRequest) -> Bytes {
    request.extensions().get::<Body>().map(|body| body.bytes.clone()).unwrap_or_default()
}

/// Lets go of a body that was read, for whoever still has to wait.
pub(super) fn let_go_of_body(request: &HttpRequest) {
    drop(request.extensions_mut().remove::<Body>());
}

/// Whoever sent a request. Nobody comes here without a key.
pub(super) fn caller_of(request: &HttpRequest) -> Caller {
    request.extensions().get::<Caller>().cloned().expect("invariant: every request has been admitted")
}
