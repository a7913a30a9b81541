//! A call from request to response.

use std::{
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use guildhall_actors::access::Caller;
use guildhall_actors::gate::{
    CallOutcome, CommitHook, Gate, NotSent, RequestBody, ResponseMode, Rest as _, RestRequest, RestResponse,
};
use guildhall_actors::{lease_guard::LeaseGuard, wall_clock::unix_now_ms};
use guildhall_core::{
    access::Bounds,
    egress_usage::EndedCall,
    invalid::StormKey,
    lane::Lane,
    response::{Credential, ResponseClass},
    route::{Route, RouteKey},
    trace::TraceContext,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tokio::runtime::Handle;

use super::answer::{self, DiscordTime, OwnAnswer, ResponseBody};
use super::authorize::{self, CheckedCall, EffectCheck, check_scope};
use super::body::{BodyReader, LongBody, MAX_WHOLE, ReadBody, failed_upload, is_chunked};
use super::coalesce::{CallKey, Coalescer, SharedResponse};
use super::compat::{Compat, CompatCall, OpenCall};
use super::credentials::{Credentials, Identity};
use super::events::{CallAbandoned, CallAnswered, CallsCounted};
use super::fair_pool::{FairPool, NoRoom, Share};
use super::foreign_tokens::{ForeignTokens, TokenFileError};
use super::gateway_url;
use super::headers::{Wishes, prepare_for_discord};
use super::held_body::HeldBody;
use super::send_checks::{FORBIDDEN_STORM, SendChecks, Storms};
use super::target::Target;
use super::upload::{CheckedUpload, UploadSender};
use super::write_audit::WriteAudit;
use crate::api::app_state::AppState;
use crate::api::{Control, EgressUsageService, request_id};
use crate::discord::executor::DiscordExecutor;
use crate::discord::rest::{Authorization, RawRequestError, raw};
use crate::events::emit;
use crate::net::PaceFailure;
use crate::settings::EgressSettings;
use crate::store::Store;

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
    /// Knows who owns the queue of a guild.
    pub(crate) store: Store,
}

/// The REST proxy.
pub(crate) struct Egress {
    credentials: Credentials,
    gate: Arc<Gate>,
    executor: DiscordExecutor,
    calls: Arc<FairPool>,
    /// Calls whose body is arriving.
    receiving: Arc<FairPool>,
    bodies: BodyReader,
    storms: Arc<Storms>,
    writes: WriteAudit,
    store: Store,
    usage: EgressUsageService,
    compat: Compat,
    max_wait: Duration,
    /// What bots are told to connect to instead of Discord's gateway.
    gateway_url: Option<String>,
    coalescer: Arc<Coalescer>,
}

impl std::fmt::Debug for Egress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Egress").field("credentials", &self.credentials).finish_non_exhaustive()
    }
}

/// A body that was received, at least in part.
enum Received {
    Whole(Bytes, Share),
    /// It passes as it arrives.
    Passed(LongBody),
    /// Its files pass as they arrive, the rest once it was judged.
    Checked(Box<CheckedUpload>),
}

impl Received {
    fn whole(&self) -> Bytes {
        match self {
            Self::Whole(bytes, _) => bytes.clone(),
            Self::Passed(_) | Self::Checked(_) => Bytes::new(),
        }
    }

    /// Closes the connection, unless the whole body was read.
    fn close_unless_whole(&self, answer: OwnAnswer) -> OwnAnswer {
        match self {
            Self::Whole(..) => answer,
            Self::Passed(_) | Self::Checked(_) => answer.closing(),
        }
    }
}

/// A body of which more is still to come.
enum Upload<'a> {
    Passed(PaceFailure),
    Checked(Box<(UploadSender, EffectCheck<'a>)>),
}

/// Takes a place for a call.
fn take(places: &Arc<FairPool>, caller: &Arc<str>) -> Result<Share, OwnAnswer> {
    places.take(caller, 1).map_err(|full| {
        let reason = match full {
            NoRoom::All => "too many calls are in progress (egress.max_calls)",
            NoRoom::Caller => {
                "this caller has its share of the calls that may be in progress (egress.max_calls_per_caller, egress.max_calls)"
            }
        };
        let message = format!("You are being rate limited. (Guildhall: {reason})");
        OwnAnswer::rate_limited("calls_full", message, Duration::from_secs(1))
    })
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
    ///
    /// # Errors
    ///
    /// When a file with a token cannot be used.
    pub(crate) fn new(config: EgressConfig<'_>) -> Result<Self, TokenFileError> {
        let EgressConfig { settings, address, control, gate, executor, authorization, credential, store } = config;
        let usage = EgressUsageService::start();
        control.publish_egress(usage.clone());
        let credentials = Credentials {
            app: AppState::new(control, Handle::current()),
            authorization,
            bot: credential,
            foreign: ForeignTokens::read(&settings.bot_token_files, settings.foreign_tokens)?,
            allow_anonymous: settings.allow_anonymous || address.ip().to_canonical().is_loopback(),
        };
        Ok(Self {
            credentials,
            gate,
            executor,
            calls: FairPool::new(settings.max_calls, settings.max_calls_per_caller, |calls| {
                emit(CallsCounted { calls });
            }),
            receiving: FairPool::new(settings.max_calls, settings.max_calls_per_caller, |_| ()),
            bodies: BodyReader::new(settings),
            storms: Arc::new(Storms::new()),
            writes: WriteAudit::default(),
            store,
            usage,
            compat: Compat::new(settings.compat),
            max_wait: settings.max_wait,
            gateway_url: settings.gateway_url.clone(),
            coalescer: Coalescer::new(&settings.coalesce),
        })
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
        let checked =
            raw(method.clone(), &target.path, HeaderMap::new(), RequestBody::Empty, credential, LeaseGuard::always())
                .map_err(|error| unread(invalid_path(error)))?;
        let route = checked.route(unix_now_ms().millis()).key;
        log.open = self.compat.on_call(log.method, &route);
        log.route = Some(route);
        let client = self.credentials.app.control.proxies.egress_client_address(peer, &headers);
        let identity = self.credentials.identify(&headers, &target.path, client, &log.request).await.map_err(unread)?;
        log.caller = identity.kind.name();
        let identity = match wishes.application {
            Some(application) => self.credentials.select_application(identity, application).map_err(unread)?,
            None => identity,
        };
        let Identity { restricted, credential, authorization, submitter, name, kind: _ } = identity;
        (log.name, log.credential) = (Some(Arc::clone(&name)), Some(credential));
        if let Some(caller) = &restricted {
            check_scope(caller, &method, wishes.lane)
                .inspect_err(|refused| self.audit(caller, &method, &target.path, refused))
                .map_err(unread)?;
        }
        prepare_for_discord(&mut headers);
        // Before a permit is requested: nobody else waits for the body of a slow client.
        let is_checked = restricted.as_ref().is_some_and(|caller| caller.bounds() != Bounds::Anywhere);
        let received = self.receive(body, &headers, &name, is_checked).await?;
        let slot = take(&self.calls, &name).map_err(|full| received.close_unless_whole(full))?;
        let max_wait = wishes.deadline.unwrap_or(self.max_wait);
        let deadline = Instant::now() + max_wait;
        // The sublimit depends on the body.
        let whole = received.whole();
        let body = RequestBody::Whole(whole.clone());
        let mut request =
            raw(method.clone(), &target.path, headers, body, credential, LeaseGuard::always()).map_err(invalid_path)?;
        request.version = target.version;
        request.submitter = submitter;
        request.authorization = authorization;
        request.caller = Some(Arc::clone(&name));
        request.trace = Some(log.trace);
        let route = request.route(unix_now_ms().millis());
        let usual_lane = if route.interaction { Lane::Interactive } else { Lane::Operation };
        request.lane = wishes.lane.unwrap_or(usual_lane);
        let check = restricted.as_ref().map(|caller| EffectCheck {
            executor: &self.executor,
            caller,
            call: CheckedCall { method: &method, path: &target.path, lane: request.lane, max_wait, trace: log.trace },
        });
        let audit = |refused: &OwnAnswer| {
            restricted.iter().for_each(|caller| self.audit(caller, &method, &target.path, refused));
        };
        let (upload, _memory) = match received {
            Received::Whole(_, memory) => {
                if let Some(check) = check.filter(|_| is_checked) {
                    let content = authorize::read_content(&request.headers, &whole)?;
                    let guild = check.judge(content).await.inspect_err(audit)?;
                    request.guild = request.guild.or(guild);
                }
                (None, Some(memory))
            }
            Received::Passed(body) => {
                let failure = body.rest().failure();
                request.body = RequestBody::Stream(body.boxed_unsync());
                (Some(Upload::Passed(failure)), None)
            }
            Received::Checked(mut form) => {
                let check = check.expect("invariant: only calls with limits are checked");
                let guild = form.judge_first(&check).await.inspect_err(audit).map_err(unread)?;
                request.guild = request.guild.or(guild);
                let (body, sender) = form.into_body();
                request.body = RequestBody::Stream(body.boxed_unsync());
                (Some(Upload::Checked(Box::new((sender, check)))), None)
            }
        };
        let storm = StormKey { caller: name, route: route.key.clone(), major: route.major };
        if self.storms.is_watched(&storm) || wishes.fence.is_some() {
            self.storms.check(&storm).map_err(|refused| {
                let own = self.not_sent(refused, &storm);
                if upload.is_some() { own.closing() } else { own }
            })?;
            let (storms, key) = (Arc::clone(&self.storms), storm.clone());
            let fence = wishes.fence.map(|fence| (fence, self.store.clone()));
            request.before_send = CommitHook::new(Arc::new(SendChecks { storms, key, fence }));
        }
        // What a check has waited is part of the time that the caller waits.
        request.max_wait = deadline.saturating_duration_since(Instant::now());
        let is_gateway = self.gateway_url.is_some() && gateway_url::is_requested(&method, &target.path);
        request.response = if is_gateway { ResponseMode::Whole } else { ResponseMode::Streamed };
        if wishes.deadline.is_none()
            && wishes.fence.is_none()
            && !is_gateway
            && !self.storms.is_watched(&storm)
            && let Some(key) = self.coalescer.key_of(&request, &route.key)
        {
            return self.send_shared(request, key).await.map(|shared| {
                self.observe(&storm, credential, shared.class, shared.code);
                answer::of_shared(shared, &method).map(|body| HeldBody::new(body, slot).boxed_unsync())
            });
        }
        let answered = self.send(request, &storm, &method, &target.path);
        let answered = match upload {
            None => answered.await,
            // The rest of the body is still to come.
            Some(Upload::Passed(failure)) => {
                answered.await.map_err(|own| failure.get().map_or_else(|| own.closing(), failed_upload))
            }
            Some(Upload::Checked(checked)) => {
                let (sender, check) = *checked;
                let mut answered = pin!(answered);
                let passed = sender.pass(&check);
                tokio::select! {
                    biased;
                    // Dropping the call frees its place, or ends it together with its body.
                    refused = async { passed.await.err() } => match refused {
                        Some(refused) => {
                            audit(&refused);
                            Err(refused)
                        }
                        None => answered.await,
                    },
                    answered = &mut answered => answered,
                }
                .map_err(OwnAnswer::closing)
            }
        };
        if let (Some(caller), Ok(response)) = (&restricted, &answered) {
            self.audit_write(caller, &method, &route, response.status());
        }
        // The place is held until the response was written.
        answered.map(|response| response.map(|body| HeldBody::new(body, slot).boxed_unsync()))
    }

    /// Reads the body of a call, or its first part.
    async fn receive(
        &self,
        body: Incoming,
        headers: &HeaderMap,
        caller: &Arc<str>,
        is_checked: bool,
    ) -> Result<Received, OwnAnswer> {
        if is_checked && body.size_hint().lower() > MAX_WHOLE as u64 {
            // Before anything of it is read.
            CheckedUpload::reader(headers)?;
        }
        // Calls without a body need no place of their own here.
        let has_body = !body.is_end_stream();
        let _place = has_body.then(|| take(&self.receiving, caller)).transpose().map_err(OwnAnswer::closing)?;
        match self.bodies.read(body, caller).await? {
            ReadBody::Whole(bytes, memory) => Ok(Received::Whole(bytes, memory)),
            ReadBody::Long(body) if is_checked => {
                CheckedUpload::new(headers, body).map(|form| Received::Checked(Box::new(form)))
            }
            ReadBody::Long(body) => Ok(Received::Passed(body)),
        }
    }

    async fn send(
        &self,
        request: RestRequest,
        storm: &StormKey,
        method: &Method,
        path: &str,
    ) -> Result<Response<ResponseBody>, OwnAnswer> {
        let (guild, credential) = (request.guild, request.credential);
        match self.gate.call(request).await {
            CallOutcome::Answered(mut response) => {
                self.observe(storm, credential, response.class, response.code);
                self.on_sent(method, path, guild);
                if let Some(url) = self.gateway_url.as_deref().filter(|_| gateway_url::is_requested(method, path)) {
                    response.body = gateway_url::replace(&response.body, url);
                }
                Ok(answer::of_discord(response, method))
            }
            CallOutcome::NotSent(refused) => Err(self.not_sent(refused, storm)),
            CallOutcome::Unknown(lost) => {
                self.on_sent(method, path, guild);
                Err(OwnAnswer::no_response(&lost.message))
            }
        }
    }

    /// The answer to a call that was not sent.
    fn not_sent(&self, refused: NotSent, storm: &StormKey) -> OwnAnswer {
        match refused.reason {
            FORBIDDEN_STORM => OwnAnswer::not_sent(refused).with_forbidden_code(self.storms.code(storm)),
            _ => OwnAnswer::not_sent(refused),
        }
    }

    /// Records in the audit log that a key has changed something. Only some calls of a key with many are recorded.
    fn audit_write(&self, caller: &Caller, method: &Method, route: &Route, status: StatusCode) {
        if matches!(*method, Method::GET | Method::HEAD) || !status.is_success() {
            return;
        }
        if let Some(skipped) = self.writes.on_write(&caller.key, Instant::now()) {
            let more = if skipped == 0 { String::new() } else { format!(", after {skipped} that are not recorded") };
            let detail = format!("{} for {}{more}", route.key, route.major);
            self.credentials.app.audit_write(caller, detail);
        }
    }

    /// Makes a read, unless an identical one is in flight.
    async fn send_shared(&self, mut request: RestRequest, key: CallKey) -> Result<SharedResponse, OwnAnswer> {
        request.response = ResponseMode::Whole;
        let gate = Arc::clone(&self.gate);
        let call = || async move {
            match gate.call(request).await {
                CallOutcome::Answered(RestResponse { status, headers, body, class, code, elapsed, .. }) => {
                    Ok(SharedResponse { status, headers, body, class, code, elapsed })
                }
                CallOutcome::NotSent(refused) => Err(OwnAnswer::not_sent(refused)),
                CallOutcome::Unknown(lost) => Err(OwnAnswer::no_response(&lost.message)),
            }
        };
        self.coalescer.join(key, call).await
    }

    /// Remembers refusals that would repeat.
    fn observe(&self, storm: &StormKey, credential: Credential, class: ResponseClass, code: Option<u32>) {
        self.storms.on_response(storm, class, code);
        if let Credential::Token(fingerprint) = credential {
            self.credentials.foreign.on_response(fingerprint, class != ResponseClass::Unauthorized);
        }
    }

    /// Cached permissions may have changed.
    fn on_sent(&self, method: &Method, path: &str, guild: Option<u64>) {
        if !matches!(*method, Method::GET | Method::HEAD)
            && let Ok(made) = authorize::request(method, path, None)
        {
            self.executor.on_call_made(&made, guild);
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
        | RawRequestError::EncodedCharacter
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
