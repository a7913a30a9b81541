//! A REST call from request to response: read, admit, serve, respond.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, Method, Request};
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;
use serde_json::Value;

use super::admit::{Arrival, Refusal, route_name};
use super::answer;
use super::body::{self, BodyError};
use super::server::{Answer, Dropped};
use crate::fault::{Fate, FaultAction};
use crate::id::Snowflake;
use crate::limit::{BucketStanding, Scope};
use crate::rest::ROUTES;
use crate::rest::call::{Call, Reply};
use crate::rest::error::ApiError;
use crate::rest::route::{self, Params, Route};
use crate::score::Write;
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
pub(super) async fn handle(shared: Arc<Shared>, peer: IpAddr, request: Request<Incoming>) -> Result<Answer, Dropped> {
    let (head, incoming) = request.into_parts();
    let read = body::read(incoming, &head.headers, shared.config.max_body, shared.config.idle_timeout).await;
    let path = below_version(head.uri.path());
    let found = route::find(ROUTES, &head.method, &path);
    let template = found.as_ref().map_or("", |(route, _)| route.template);
    let fate = shared.lock().faults.decide(head.method.as_str(), template, &path);
    drop(found);

    let work = Work { shared: Arc::clone(&shared), peer, head, path, body: read, fate };
    let answer = if work.fate.at_arrival + work.fate.at_effect + work.fate.at_answer == Duration::ZERO {
        work.at_once()
    } else {
        // Discord continues a call after its caller has disconnected, so a delayed call is a task of its own.
        tokio::spawn(work.in_time()).await.unwrap_or(Err(Dropped))
    };
    answer.map(|answer| answer::dated(answer, shared.now()))
}

/// A call whose request was read completely.
struct Work {
    shared: Arc<Shared>,
    peer: IpAddr,
    head: Parts,
    path: String,
    body: Result<Bytes, BodyError>,
    fate: Fate,
}

/// A call between admission and response.
struct UnderWay {
    write: Option<Write>,
    bucket: Option<BucketStanding>,
    caller: Option<Snowflake>,
}

impl Work {
    fn at_once(&self) -> Result<Answer, Dropped> {
        let mut core = self.shared.lock();
        let now = self.shared.now();
        match self.admit(&mut core, now) {
            Ok(under_way) => self.serve(&mut core, under_way, now),
            Err(refusal) => self.refuse(&mut core, &refusal, now),
        }
    }

    async fn in_time(self) -> Result<Answer, Dropped> {
        tokio::time::sleep(self.fate.at_arrival).await;
        let admitted = {
            let mut core = self.shared.lock();
            let now = self.shared.now();
            match self.admit(&mut core, now) {
                Ok(under_way) => Ok(under_way),
                Err(refusal) => Err(self.refuse(&mut core, &refusal, now)),
            }
        };
        tokio::time::sleep(self.fate.at_effect).await;
        let under_way = match admitted {
            Ok(under_way) => under_way,
            Err(answer) => {
                tokio::time::sleep(self.fate.at_answer).await;
                return answer;
            }
        };
        let (answer, ended) = self.take_effect(&mut self.shared.lock(), under_way, self.shared.now());
        tokio::time::sleep(self.fate.at_answer).await;
        self.finish(&mut self.shared.lock(), answer, &ended, self.shared.now())
    }

    fn admit(&self, core: &mut Core, now: At) -> Result<UnderWay, Refusal> {
        let header = |name| self.head.headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
        let found = route::find(ROUTES, &self.head.method, &self.path);
        let arrival = Arrival {
            peer: self.peer,
            method: &self.head.method,
            route: found,
            authorization: header(AUTHORIZATION),
            user_agent: header(USER_AGENT),
            names_channel: self.names_channel(),
            fate: &self.fate,
        };
        let admitted = core.admit(arrival, now)?;
        let write = (admitted.route.method != Method::GET).then(|| {
            let guild = guild_of(core, &admitted.params);
            core.score.write_began(guild, now)
        });
        Ok(UnderWay { write, bucket: admitted.bucket, caller: admitted.caller })
    }

    fn serve(&self, core: &mut Core, under_way: UnderWay, now: At) -> Result<Answer, Dropped> {
        let (answer, ended) = self.take_effect(core, under_way, now);
        self.finish(core, answer, &ended, now)
    }

    /// Runs the call, which may change the world.
    fn take_effect(&self, core: &mut Core, under_way: UnderWay, now: At) -> (Answer, Ended) {
        let UnderWay { write, bucket, caller } = under_way;
        let result = self.call(core, caller, now);
        core.deliver(now);
        let mut place = None;
        let answer = match result {
            Ok(reply) => {
                if let (Some(effect), Some(write)) = (&reply.effect, &write) {
                    place = core.score.took_effect(effect, write, now);
                }
                answer::success(reply, bucket.as_ref(), now)
            }
            Err(error) => answer::error(&error, bucket.as_ref(), now),
        };
        (answer, Ended { write, place })
    }

    fn call(&self, core: &mut Core, caller: Option<Snowflake>, now: At) -> Result<Reply, ApiError> {
        let (route, params): (&'static Route, Params<'_>) = route::find(ROUTES, &self.head.method, &self.path)?;
        let bytes = self.body.as_ref().map_err(BodyError::api_error)?;
        let query = self.head.uri.query().unwrap_or_default();
        let call = Call {
            params,
            query: form_urlencoded::parse(query.as_bytes()).into_owned().collect(),
            body: parse(&self.head.headers, bytes)?,
            reason: reason(&self.head.headers)?,
            caller,
            hidden: self.fate.hidden.clone(),
            now,
        };
        if let (Some(application), "/gateway/bot") = (caller, route.template) {
            core.world.session_starts = core.hub.session_starts(application, now);
        }
        (route.handler)(&mut core.world, &call)
    }

    /// Finishes the call in the score, and returns its response unless a fault cuts the connection.
    fn finish(&self, core: &mut Core, answer: Answer, ended: &Ended, now: At) -> Result<Answer, Dropped> {
        let cut = self.fate.end == Some(FaultAction::DropAfter);
        if let Some(write) = &ended.write {
            core.score.write_ended(write, ended.place.as_ref(), (!cut).then_some(now));
        }
        if cut {
            core.score.dropped();
            return Err(Dropped);
        }
        let answer = match self.fate.end {
            Some(FaultAction::StatusAfter { status }) => answer::with_status(status, 0, None, now),
            _ => answer,
        };
        self.note(core, &answer, false, now);
        Ok(answer)
    }

    fn refuse(&self, core: &mut Core, refusal: &Refusal, now: At) -> Result<Answer, Dropped> {
        let Some(answer) = answer::refusal(refusal, now) else {
            core.score.dropped();
            return Err(Dropped);
        };
        let mut free = false;
        match refusal {
            Refusal::RateLimited { scope, .. } => {
                core.score.rate_limited(*scope);
                free = *scope == Scope::Shared;
            }
            // Requests that Cloudflare refuses never reach the API that counts them.
            Refusal::Cloudflare { .. } => free = true,
            Refusal::Error { .. } | Refusal::Status { .. } | Refusal::Dropped => {}
        }
        self.note(core, &answer, free, now);
        Ok(answer)
    }

    /// Counts a response, and whether its request was invalid.
    fn note(&self, core: &mut Core, answer: &Answer, free: bool, now: At) {
        let found = route::find(ROUTES, &self.head.method, &self.path);
        let status = answer.status().as_u16();
        core.score.answered(&route_name(&self.head.method, &found), status);
        if matches!(status, 401 | 403 | 429) && !free {
            core.note_invalid(self.peer, now);
        }
    }

    fn names_channel(&self) -> bool {
        self.head.method == Method::PATCH
            && self.path.starts_with("/channels/")
            && self.body.as_ref().is_ok_and(|bytes| {
                serde_json::from_slice::<Value>(bytes)
                    .is_ok_and(|body| body.get("name").is_some() || body.get("topic").is_some())
            })
    }
}

/// Data to finish a write in the score.
struct Ended {
    write: Option<Write>,
    place: Option<crate::score::Place>,
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

fn parse(headers: &HeaderMap, bytes: &Bytes) -> Result<Value, ApiError> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let kind = headers.get(CONTENT_TYPE).map_or("", |value| value.to_str().unwrap_or_default());
    if kind.starts_with("multipart/") {
        return Err(ApiError::form(
            "files",
            "ATTACHMENTS_UNSUPPORTED",
            "The simulator does not support attachments; send JSON.",
        ));
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

fn reason(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get("x-audit-log-reason") else { return Ok(None) };
    let reason = percent_decode_str(&String::from_utf8_lossy(value.as_bytes())).decode_utf8_lossy().into_owned();
    match reason.chars().count() {
        0 => Ok(None),
        1..=512 => Ok(Some(reason)),
        _ => Err(ApiError::form("X-Audit-Log-Reason", "BASE_TYPE_BAD_LENGTH", "Must be between 1 and 512 in length.")),
    }
}
