//! A call from request to response.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use guildhall_actors::access::Caller;
use guildhall_actors::gate::{CallOutcome, Gate, RequestBody, ResponseMode, Rest as _, RestRequest};
use guildhall_core::egress_usage::EndedCall;
use guildhall_core::route::{Route, RouteKey};
use guildhall_core::{access::Bounds, lane::Lane, response::Credential, trace::TraceContext};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::runtime::Handle;

use super::answer::{self, DiscordTime, OwnAnswer, ResponseBody};
use super::authorize::{self, CheckedCall, check_effect, check_scope};
use super::body::{BodyReader, LongBodies, ReadBody, failed_upload, is_chunked};
use super::bucket_memory::BucketMemory;
use super::call_slots::CallSlots;
use super::compat::{Compat, CompatCall, OpenCall};
use super::credentials::{Credentials, Identity};
use super::events::{CallAbandoned, CallAnswered};
use super::gateway_url;
use super::headers::{Wishes, prepare_for_discord};
use super::target::Target;
use crate::api::app_state::AppState;
use crate::api::{Control, EgressUsageService, request_id};
use crate::discord::executor::DiscordExecutor;
use crate::discord::rest::{Authorization, RawRequestError, raw};
use crate::events::emit;
use crate::settings::EgressSettings;

/// What the proxy needs of the daemon.
pub(crate) struct EgressConfig<'a> {
    pub(crate) settings: &'a EgressSettings,
    pub(crate) address: SocketAddr,
    /// Keys, and the audit log.
    pub(crate) control: Control,
    pub(crate) gate: Arc<Gate>,
    /// Checks the calls of keys.
    pub(crate) executor: DiscordExecutor,
    /// The bot token, and the credential of calls with it.
    pub(crate) authorization: Authorization,
    pub(crate) credential: Credential,
}

/// The REST proxy.
pub(crate) struct Egress {
    credentials: Credentials,
    gate: Arc<Gate>,
    executor: DiscordExecutor,
    slots: Arc<CallSlots>,
    bodies: BodyReader,
    buckets: BucketMemory,
    usage: EgressUsageService,
    compat: Compat,
    max_wait: Duration,
    /// What bots are told to connect to instead of Discord's gateway.
    gateway_url: Option<String>,
}

impl std::fmt::Debug for Egress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Egress").field("credentials", &self.credentials).finish_non_exhaustive()
    }
}

/// What is known of a call, for its log line and its metrics.
struct CallLog {
    caller: &'static str,
    method: &'static str,
    started: Instant,
    request: Arc<str>,
    trace: TraceContext,
    parent: Option<TraceContext>,
    is_answered: bool,
    /// What is known of the call so far, for the usage of routes and callers.
    route: Option<RouteKey>,
    name: Option<Arc<str>>,
    credential: Option<Credential>,
    open: Option<OpenCall>,
}

impl CallLog {
    fn answered(mut self, status: StatusCode, why: Option<&'static str>) {
        self.is_answered = true;
        emit(CallAnswered {
            caller: self.caller,
            method: self.method,
            status: status.as_u16(),
            why,
            elapsed: self.started.elapsed(),
            request: &self.request,
            trace: self.trace,
            parent: self.parent.map(|parent| parent.span),
        });
    }
}

impl Drop for CallLog {
    fn drop(&mut self) {
        if !self.is_answered {
            emit(CallAbandoned);
        }
    }
}

impl Egress {
    /// Creates the proxy. Must be called on the runtime that the store belongs to.
    pub(crate) fn new(config: EgressConfig<'_>) -> Self {
        let EgressConfig { settings, address, control, gate, executor, authorization, credential } = config;
        let usage = EgressUsageService::start();
        control.publish_egress(usage.clone());
        let credentials = Credentials {
            app: AppState::new(control, Handle::current()),
            authorization,
            bot: credential,
            allow_anonymous: settings.allow_anonymous || address.ip().to_canonical().is_loopback(),
        };
        Self {
            credentials,
            gate,
            executor,
            slots: CallSlots::new(settings.max_calls, settings.max_calls_per_caller),
            bodies: BodyReader::new(settings),
            buckets: BucketMemory::default(),
            usage,
            compat: Compat::new(settings.compat),
            max_wait: settings.max_wait,
            gateway_url: settings.gateway_url.clone(),
        }
    }

    /// Answers a request. Dropping the future gives up a call that was not sent yet.
    pub(super) async fn handle(
        &self,
        request: Request<Incoming>,
        peer: IpAddr,
        is_stopping: bool,
    ) -> Response<ResponseBody> {
        let (head, body) = request.into_parts();
        if self.compat.is_health_check(head.uri.path()) && !is_stopping {
            return answer::healthy();
        }
        let id = request_id::from_text(head.headers.get(request_id::REQUEST_ID).and_then(|id| id.to_str().ok()));
        let parent = Wishes::read(&head.headers).ok().and_then(|wishes| wishes.trace);
        let trace = match parent {
            Some(parent) => parent.child(fastrand::u64(..)),
            None => TraceContext::start(fastrand::u128(..), fastrand::u64(..)),
        };
        let method = method_name(&head.method);
        let mut log = CallLog {
            caller: "none",
            method,
            started: Instant::now(),
            request: Arc::clone(&id),
            trace,
            parent,
            is_answered: false,
            route: None,
            name: None,
            credential: None,
            open: None,
        };
        let closes = is_chunked(&head.headers);
        let answered = if is_stopping {
            let message = "the process is shutting down; send the call again";
            Err(OwnAnswer::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", message).closing())
        } else {
            self.call(head, body, peer, &mut log).await
        };
        let (mut response, why) = match answered {
            Ok(response) => (response, None),
            Err(own) => {
                let why = own.why;
                (own.into_response(&id), Some(why))
            }
        };
        if closes {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        self.count(&response, &log);
        log.answered(response.status(), why);
        response
    }

    /// Counts an answered call for its route and its caller.
    fn count(&self, response: &Response<ResponseBody>, log: &CallLog) {
        let (status, discord) = (response.status(), response.extensions().get::<DiscordTime>());
        let waited = log.started.elapsed().saturating_sub(discord.map_or(Duration::ZERO, |time| time.0));
        let (route, caller) = (log.route.as_ref(), log.name.as_ref());
        self.usage.on_call(&EndedCall { route, caller, waited, status: discord.map(|_| status.as_u16()) });
        match (discord, route, log.credential) {
            (Some(DiscordTime(elapsed)), Some(route), Some(credential)) => self.compat.on_answer(&CompatCall {
                method: log.method,
                route,
                credential,
                status,
                headers: response.headers(),
                elapsed: *elapsed,
            }),
            _ => self.compat.on_own_answer(status),
        }
    }

    async fn call(
        &self,
        head: Parts,
        body: Incoming,
        peer: IpAddr,
        log: &mut CallLog,
    ) -> Result<Response<ResponseBody>, OwnAnswer> {
        let Parts { method, uri, mut headers, .. } = head;
        let unread = OwnAnswer::closing;
        let target =
            Target::read(&method, &uri).map_err(|error| unread(OwnAnswer::bad_request("target", error.to_string())))?;
        let wishes =
            Wishes::read(&headers).map_err(|error| unread(OwnAnswer::bad_request("headers", error.to_string())))?;
        // Checked before the credential, so that a path has one meaning for everything that follows.
        let credential = Credential::Anonymous;
        let checked = raw(method.clone(), &target.path, HeaderMap::new(), RequestBody::Empty, credential)
            .map_err(|error| unread(invalid_path(error)))?;
        let route = checked.route(unix_ms()).key;
        log.open = self.compat.on_call(log.method, &route);
        log.route = Some(route);
        let identity = self.credentials.identify(&headers, &target.path, peer, &log.request).await.map_err(unread)?;
        log.caller = identity.kind.name();
        let Identity { restricted, credential, submitter, name, kind: _ } = identity;
        (log.name, log.credential) = (Some(Arc::clone(&name)), Some(credential));
        if let Some(caller) = &restricted {
            check_scope(caller, &method, wishes.lane)
                .inspect_err(|refused| self.audit(caller, &method, &target.path, refused))
                .map_err(unread)?;
        }
        let _slot = self.slots.take(&name).map_err(|full| {
            let message = format!("You are being rate limited. (Guildhall: {full})");
            unread(OwnAnswer::rate_limited("calls_full", message, Duration::from_secs(1)))
        })?;
        prepare_for_discord(&mut headers);
        let is_checked = restricted.as_ref().is_some_and(|caller| caller.bounds() != Bounds::Anywhere);
        let long = if is_checked { LongBodies::Refused } else { LongBodies::Accepted };
        // Before a permit is requested: nobody else waits for the body of a slow client.
        let (whole, rest, upload, _memory) = match self.bodies.read(body, long).await? {
            ReadBody::Whole(bytes, memory) => (bytes.clone(), RequestBody::Whole(bytes), None, Some(memory)),
            ReadBody::Long(body) => {
                let failure = body.failure();
                (Bytes::new(), RequestBody::Stream(body.boxed_unsync()), Some(failure), None)
            }
        };
        let max_wait = wishes.deadline.unwrap_or(self.max_wait);
        let deadline = Instant::now() + max_wait;
        let mut request = raw(method.clone(), &target.path, headers, rest, credential).map_err(invalid_path)?;
        request.version = target.version;
        request.submitter = submitter;
        request.trace = Some(log.trace);
        let route = request.route(unix_ms());
        let usual_lane = if route.interaction { Lane::Interactive } else { Lane::Operation };
        request.lane = wishes.lane.unwrap_or(usual_lane);
        if let Some(caller) = &restricted {
            let call = CheckedCall {
                method: &method,
                path: &target.path,
                headers: &request.headers,
                body: &whole,
                lane: request.lane,
                max_wait,
                trace: log.trace,
            };
            let checked = check_effect(&self.executor, caller, call).await;
            let guild = checked.inspect_err(|refused| self.audit(caller, &method, &target.path, refused))?;
            request.guild = request.guild.or(guild);
        }
        // What a check has waited is part of the time that the caller waits.
        request.max_wait = deadline.saturating_duration_since(Instant::now());
        let is_gateway = self.gateway_url.is_some() && gateway_url::is_requested(&method, &target.path);
        request.response = if is_gateway { ResponseMode::Whole } else { ResponseMode::Streamed };
        let answered = self.send(request, &route, &method, &target.path).await;
        match upload {
            // The rest of the body is still to come.
            Some(failure) => answered.map_err(|own| failure.get().map_or_else(|| own.closing(), failed_upload)),
            None => answered,
        }
    }

    async fn send(
        &self,
        request: RestRequest,
        route: &Route,
        method: &Method,
        path: &str,
    ) -> Result<Response<ResponseBody>, OwnAnswer> {
        let guild = request.guild;
        match self.gate.call(request).await {
            CallOutcome::Answered(mut response) => {
                self.buckets.observe(&route.key, &response.headers);
                if let Ok(made) = authorize::request(method, path, None) {
                    self.executor.on_call_made(&made, guild);
                }
                if let Some(url) = self.gateway_url.as_deref().filter(|_| gateway_url::is_requested(method, path)) {
                    response.body = gateway_url::replace(&response.body, url);
                }
                Ok(answer::of_discord(response, method))
            }
            CallOutcome::NotSent(refused) => {
                let is_route = refused.reason == "route_limit";
                let bucket = if is_route { self.buckets.find(&route.key).map(Box::new) } else { None };
                Err(OwnAnswer { bucket, ..OwnAnswer::not_sent(refused) })
            }
            CallOutcome::Unknown(lost) => {
                if let Ok(made) = authorize::request(method, path, None) {
                    self.executor.on_call_made(&made, guild);
                }
                Err(OwnAnswer::no_response(&lost.message))
            }
        }
    }

    /// Records in the audit log that a key was refused for what it is.
    fn audit(&self, caller: &Caller, method: &Method, path: &str, refused: &OwnAnswer) {
        if matches!(refused.why, "forbidden" | "foreign_target") {
            let route = Route::parse(method.as_str(), path.split('?').next().unwrap_or_default(), 0, 0);
            self.credentials.app.audit_rejection(caller, format!("egress {}: {}", route.key, refused.message));
        }
    }
}

fn invalid_path(error: RawRequestError) -> OwnAnswer {
    match error {
        RawRequestError::Method => OwnAnswer::new(StatusCode::METHOD_NOT_ALLOWED, "method", error.to_string()),
        RawRequestError::NoSlash
        | RawRequestError::DotSegment
        | RawRequestError::EncodedSlash
        | RawRequestError::EmptySegment
        | RawRequestError::Character => OwnAnswer::bad_request("path", error.to_string()),
    }
}

/// A method's name, out of a fixed set: it becomes part of a span's name.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

/// The wall clock, for the age of a message.
fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
