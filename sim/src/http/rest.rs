//! A REST call from request to response: read, admit, serve, respond.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, Method, Request};
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;
use serde_json::Value;

use super::admit::{Arrival, RateLimitOrigin, Refusal, route_name};
use super::body::{self, BodyError};
use super::form::{self, RequestBody};
use super::response;
use super::server::{Dropped, HttpResponse};
use crate::fault::{FaultAction, FaultPlan};
use crate::id::Snowflake;
use crate::limit::{BucketState, Scope};
use crate::rest::ROUTES;
use crate::rest::call::{Call, Repetition, Reply};
use crate::rest::error::ApiError;
use crate::rest::route::{self, Params, Route};
use crate::score::{PendingWrite, RequestDigest};
use crate::state::{Core, Shared};
use crate::time::At;

/// The supported versions, longest prefix first.
const VERSIONS: [&str; 3] = ["/api/v10/", "/api/v9/", "/api/"];

/// Maximum depth of a body. Parts of it are stored in a snapshot, which nests them deeper and is parsed with a limit of
/// 128.
const MAX_DEPTH: usize = 100;

/// Whether a path belongs to the REST API.
pub(super) fn is_api(path: &str) -> bool {
    path.starts_with("/api/")
}

/// Handles a call: returns its response, or an error that cuts its connection.
pub(super) async fn handle(
    shared: Arc<Shared>,
    peer: IpAddr,
    request: Request<Incoming>,
) -> Result<HttpResponse, Dropped> {
    let (head, incoming) = request.into_parts();
    let read = match body::read(incoming, &head.headers, shared.config.max_body, shared.config.idle_timeout).await {
        Ok(bytes) => form::split(&head.headers, bytes).await,
        Err(error) => Err(error),
    };
    let call = RestCall::new(&shared, peer, head, read);
    let answer = if call.plan.arrival_delay + call.plan.effect_delay + call.plan.response_delay == Duration::ZERO {
        call.run_at(shared.now())
    } else {
        // Discord continues a call after its caller has disconnected, so a delayed call is a task of its own.
        tokio::spawn(call.run_delayed()).await.unwrap_or(Err(Dropped))
    };
    answer.map(|answer| response::with_date(answer, shared.now()))
}

/// Handles a call that has arrived at `now`, with a body that is JSON. Delays by faults do not apply.
pub(crate) fn handle_at(
    shared: &Arc<Shared>,
    peer: IpAddr,
    request: Request<Bytes>,
    now: At,
) -> Result<HttpResponse, Dropped> {
    let (head, json) = request.into_parts();
    let answer = RestCall::new(shared, peer, head, Ok(RequestBody { json, files: Vec::new() })).run_at(now);
    answer.map(|answer| response::with_date(answer, now))
}

/// A call whose request was read completely.
struct RestCall {
    shared: Arc<Shared>,
    peer: IpAddr,
    head: Parts,
    path: String,
    body: Result<RequestBody, BodyError>,
    plan: FaultPlan,
}

/// A call between admission and response.
struct InFlightCall {
    write: Option<PendingWrite>,
    bucket: Option<BucketState>,
    caller: Option<Snowflake>,
}

impl RestCall {
    /// Decides which faults apply to the call.
    fn new(shared: &Arc<Shared>, peer: IpAddr, head: Parts, body: Result<RequestBody, BodyError>) -> Self {
        let path = below_version(head.uri.path());
        let found = route::find(ROUTES, &head.method, &path);
        let template = found.as_ref().map_or("", |(route, _)| route.template);
        let plan = shared.lock().faults.decide(head.method.as_str(), template, &path);
        drop(found);
        Self { shared: Arc::clone(shared), peer, head, path, body, plan }
    }

    fn run_at(&self, now: At) -> Result<HttpResponse, Dropped> {
        let mut core = self.shared.lock();
        match self.admit(&mut core, now) {
            Ok(in_flight) => self.serve(&mut core, in_flight, now),
            Err(refusal) => self.refuse(&mut core, &refusal, now),
        }
    }

    async fn run_delayed(self) -> Result<HttpResponse, Dropped> {
        tokio::time::sleep(self.plan.arrival_delay).await;
        let admitted = {
            let mut core = self.shared.lock();
            let now = self.shared.now();
            match self.admit(&mut core, now) {
                Ok(in_flight) => Ok(in_flight),
                Err(refusal) => Err(self.refuse(&mut core, &refusal, now)),
            }
        };
        tokio::time::sleep(self.plan.effect_delay).await;
        let in_flight = match admitted {
            Ok(in_flight) => in_flight,
            Err(answer) => {
                tokio::time::sleep(self.plan.response_delay).await;
                return answer;
            }
        };
        let (answer, write_record) = self.execute(&mut self.shared.lock(), in_flight, self.shared.now());
        tokio::time::sleep(self.plan.response_delay).await;
        self.finish(&mut self.shared.lock(), answer, &write_record, self.shared.now())
    }

    fn admit(&self, core: &mut Core, now: At) -> Result<InFlightCall, Refusal> {
        let header = |name| self.head.headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
        let found = route::find(ROUTES, &self.head.method, &self.path);
        let arrival = Arrival {
            peer: self.peer,
            method: &self.head.method,
            route: found,
            authorization: header(AUTHORIZATION),
            user_agent: header(USER_AGENT),
            requires_user_agent: self.shared.config.require_user_agent,
            changes_name_or_topic: self.changes_name_or_topic(),
            plan: &self.plan,
        };
        let admitted = core.admit(arrival, now)?;
        let write = (admitted.route.method != Method::GET).then(|| {
            let guild = guild_of(core, &admitted.params);
            core.score.start_write(guild, now)
        });
        Ok(InFlightCall { write, bucket: admitted.bucket, caller: admitted.caller })
    }

    fn serve(&self, core: &mut Core, in_flight: InFlightCall, now: At) -> Result<HttpResponse, Dropped> {
        let (answer, write_record) = self.execute(core, in_flight, now);
        self.finish(core, answer, &write_record, now)
    }

    /// Runs the call, which may change the world.
    fn execute(&self, core: &mut Core, in_flight: InFlightCall, now: At) -> (HttpResponse, WriteRecord) {
        let InFlightCall { write, bucket, caller } = in_flight;
        let result = self.invoke_handler(core, caller, now);
        core.deliver(now);
        let mut position = None;
        let answer = match result {
            Ok(reply) => {
                if let (Some(effect), Some(write)) = (&reply.effect, &write) {
                    let digest = (effect.repetition == Repetition::Duplicates).then(|| self.digest(caller));
                    position = core.score.record_effect(effect, digest, write, now);
                }
                response::success(reply, bucket.as_ref(), now)
            }
            Err(error) => response::error(&error, bucket.as_ref(), now),
        };
        (answer, WriteRecord { write, position })
    }

    fn invoke_handler(&self, core: &mut Core, caller: Option<Snowflake>, now: At) -> Result<Reply, ApiError> {
        let (route, params): (&'static Route, Params<'_>) = route::find(ROUTES, &self.head.method, &self.path)?;
        let body = self.body.as_ref().map_err(BodyError::api_error)?;
        let query = self.head.uri.query().unwrap_or_default();
        let call = Call {
            params,
            query: form_urlencoded::parse(query.as_bytes()).into_owned().collect(),
            body: parse(&body.json)?,
            files: body.files.clone(),
            reason: audit_log_reason(&self.head.headers)?,
            caller,
            hidden: self.plan.hidden.clone(),
            now,
        };
        if let (Some(application), "/gateway/bot") = (caller, route.template) {
            core.world.session_starts = core.gateway.session_starts(application, now);
        }
        (route.handler)(&mut core.world, &call)
    }

    /// Finishes the call in the score, and returns its response unless a fault cuts the connection.
    fn finish(
        &self,
        core: &mut Core,
        answer: HttpResponse,
        write_record: &WriteRecord,
        now: At,
    ) -> Result<HttpResponse, Dropped> {
        let is_dropped = self.plan.final_action == Some(FaultAction::DropAfter);
        if let Some(write) = &write_record.write {
            core.score.finish_write(write, write_record.position.as_ref(), (!is_dropped).then_some(now));
        }
        if is_dropped {
            core.score.record_dropped_connection();
            return Err(Dropped);
        }
        let answer = match self.plan.final_action {
            Some(FaultAction::StatusAfter { status }) => response::with_status(status, 0, None, now),
            _ => answer,
        };
        self.record_response(core, &answer, false, now);
        Ok(answer)
    }

    fn refuse(&self, core: &mut Core, refusal: &Refusal, now: At) -> Result<HttpResponse, Dropped> {
        let Some(answer) = response::refusal(refusal, now) else {
            core.score.record_dropped_connection();
            return Err(Dropped);
        };
        let mut uncounted = false;
        match refusal {
            Refusal::RateLimited { scope, origin, .. } => {
                core.score.record_rate_limit(*scope, *origin == RateLimitOrigin::Fault);
                uncounted = *scope == Scope::Shared;
            }
            // Requests that Cloudflare refuses never reach the API that counts them.
            Refusal::Cloudflare { .. } => uncounted = true,
            Refusal::Error { .. } | Refusal::Status { .. } | Refusal::Dropped => {}
        }
        self.record_response(core, &answer, uncounted, now);
        Ok(answer)
    }

    /// Counts a response, and whether its request was invalid.
    fn record_response(&self, core: &mut Core, answer: &HttpResponse, uncounted: bool, now: At) {
        let found = route::find(ROUTES, &self.head.method, &self.path);
        let status = answer.status().as_u16();
        core.score.record_response(&route_name(&self.head.method, &found), status);
        if matches!(status, 401 | 403 | 429) && !uncounted {
            core.record_invalid_request(self.peer, now);
        }
    }

    /// Digest of the request: equal for requests of one caller with the same method, path, JSON and files. The nonce of
    /// a message does not count: clients choose a new one when they send the same message again.
    fn digest(&self, caller: Option<Snowflake>) -> RequestDigest {
        let mut hasher = DefaultHasher::new();
        (caller.map(Snowflake::get), self.head.method.as_str(), &self.path).hash(&mut hasher);
        if let Ok(body) = &self.body {
            let mut json: Value = serde_json::from_slice(&body.json).unwrap_or_default();
            if let Some(fields) = json.as_object_mut() {
                fields.remove("nonce");
                fields.remove("enforce_nonce");
            }
            json.to_string().hash(&mut hasher);
            for file in &body.files {
                (&file.filename, &file.content).hash(&mut hasher);
            }
        }
        RequestDigest(hasher.finish())
    }

    fn changes_name_or_topic(&self) -> bool {
        self.head.method == Method::PATCH
            && self.path.starts_with("/channels/")
            && self.body.as_ref().is_ok_and(|body| {
                serde_json::from_slice::<Value>(&body.json)
                    .is_ok_and(|body| body.get("name").is_some() || body.get("topic").is_some())
            })
    }
}

/// Data to finish a write in the score.
struct WriteRecord {
    write: Option<PendingWrite>,
    position: Option<crate::score::EffectPosition>,
}

/// The path below the API's version, each part decoded; a part that contains an encoded `/` stays encoded.
fn below_version(path: &str) -> String {
    let rest = VERSIONS.iter().find_map(|version| path.strip_prefix(version)).unwrap_or_default();
    let mut below = String::with_capacity(rest.len() + 1);
    for part in rest.split('/') {
        let decoded = percent_decode_str(part).decode_utf8_lossy();
        below.push('/');
        below.push_str(if decoded.contains('/') { part } else { &decoded });
    }
    below
}

fn guild_of(core: &Core, params: &Params<'_>) -> Option<Snowflake> {
    params.iter().find_map(|(name, _)| match name {
        "guild.id" => params.id(name).ok(),
        "channel.id" => params.id(name).ok().and_then(|channel| core.world.guild_of_channel(channel)),
        _ => None,
    })
}

fn parse(bytes: &Bytes) -> Result<Value, ApiError> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let body: Value = serde_json::from_slice(bytes).map_err(|_| ApiError::INVALID_JSON)?;
    if is_deeper_than(&body, MAX_DEPTH) { Err(ApiError::INVALID_JSON) } else { Ok(body) }
}

fn is_deeper_than(value: &Value, levels: usize) -> bool {
    let deeper = |inner: &Value| is_deeper_than(inner, levels - 1);
    match value {
        Value::Array(_) | Value::Object(_) if levels == 0 => true,
        Value::Array(list) => list.iter().any(deeper),
        Value::Object(fields) => fields.values().any(deeper),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn audit_log_reason(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get("x-audit-log-reason") else { return Ok(None) };
    let reason = percent_decode_str(&String::from_utf8_lossy(value.as_bytes())).decode_utf8_lossy().into_owned();
    match reason.chars().count() {
        0 => Ok(None),
        1..=512 => Ok(Some(reason)),
        _ => Err(ApiError::form("X-Audit-Log-Reason", "BASE_TYPE_BAD_LENGTH", "Must be between 1 and 512 in length.")),
    }
}
