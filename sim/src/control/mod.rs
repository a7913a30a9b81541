//! `/sim/*`: the control API of the simulator, JSON over HTTP. [`crate::SimHandle`] has the same functions as methods.

mod drive;
mod handle;
mod reactions;
mod rules;
mod signed;

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub(crate) use drive::Drive;
pub use drive::{DriveReport, FireSpec, GuildsSpec, JoinSpec, MessageSpec, Pace, PostResponse};
pub use reactions::ReactionSpec;
pub(crate) use signed::{public_key, signing_key};

use crate::gateway::{self, StormSpec};
use crate::http::{BodyError, HttpResponse, json as answer_json, read_body};
use crate::id::Snowflake;
use crate::state::Shared;

/// Largest snapshot: that of a large world is large.
const MAX_SNAPSHOT: usize = 256 * 1024 * 1024;

/// Largest body of any other request.
const MAX_REQUEST: usize = 1024 * 1024;

/// Maximum duration of one storm.
const MAX_STORM_S: f64 = 600.0;

/// Endpoints of `/sim`: the response of `GET /sim`.
pub(crate) const ENDPOINTS: &[(&str, &str)] = &[
    ("GET /sim", "this list"),
    ("GET /sim/routes", "the supported REST routes"),
    ("GET /sim/state?after=&limit=", "bots and guilds with their channels and roles"),
    ("GET /sim/score?brief=true", "what arrived and its effects; brief omits effects and names"),
    ("DELETE /sim/score", "reset the score"),
    ("POST /sim/guilds", "{count, name, members, channels, bot_permissions}: create guilds"),
    ("PATCH /sim/guilds/{id}", "{bot_permissions, bot_role_position}: set the permissions of the bots"),
    ("DELETE /sim/guilds/{id}", "remove a guild"),
    ("POST /sim/guilds/{id}/members", "{count, per_second, name, user_id}: let members join"),
    ("DELETE /sim/guilds/{id}/members/{user}", "let a member leave"),
    ("POST /sim/messages", "{channel_id, content, user_id, count, per_second}: send messages as a member"),
    ("POST /sim/reactions", "{channel_id, message_id, emoji, user_id, remove}: react to a message as a member"),
    ("POST /sim/commands", "{guild_id, name, options, channel_id, user_id, url, count, per_second}: use a command"),
    ("POST /sim/buttons", "{guild_id, custom_id, …}: press a button"),
    ("POST /sim/modals", "{guild_id, custom_id, …}: submit a modal"),
    ("POST /sim/storm", "{events_per_s, guilds, seconds}: send many events"),
    ("GET /sim/faults", "the active REST faults, with their hits"),
    ("POST /sim/faults", "{route, do: {kind, …}, probability, count, skip}: add a fault"),
    ("DELETE /sim/faults", "remove all faults"),
    ("DELETE /sim/faults/{id}", "remove one fault"),
    ("GET /sim/gateway/faults", "the active gateway faults"),
    ("POST /sim/gateway/faults", "{kind, …}: disconnect, zombie, reconnect, invalid_session, dead_resume, mute, …"),
    ("DELETE /sim/gateway/faults", "end the active ones"),
    ("GET /sim/limits", "the table of limits"),
    ("PUT /sim/limits", "replace the table; omitted fields have their default"),
    ("PUT /sim/limits/routes", "{method, path, limit, per_ms, algorithm, case, bucket}: set the limit of one route"),
    ("POST /sim/reset", "reset the world, limits, faults and score to the start; sessions end"),
    ("GET /sim/snapshot", "the world as JSON"),
    ("PUT /sim/snapshot", "restore the world from a snapshot"),
];

/// Why a `/sim` request failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Unknown endpoint.
    #[error("unknown endpoint {0}; GET /sim lists the endpoints")]
    NoSuchEndpoint(String),
    /// The body is invalid for the endpoint.
    #[error("invalid body: {0}; GET /sim shows the fields of each endpoint")]
    BadBody(String),
    /// The body is too large.
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    /// The body is incomplete or did not arrive in time.
    #[error("the body is incomplete or did not arrive in time")]
    Incomplete,
    /// An object does not exist.
    #[error("{0}")]
    Unknown(String),
    /// A value is out of range.
    #[error("{0}")]
    Invalid(String),
    /// The URL that an interaction was posted to did not respond.
    #[error("cannot post to {url}: {reason}")]
    Post {
        /// The URL.
        url: String,
        /// What failed.
        reason: String,
    },
}

impl ControlError {
    fn status(&self) -> StatusCode {
        match self {
            Self::NoSuchEndpoint(_) | Self::Unknown(_) => StatusCode::NOT_FOUND,
            Self::BadBody(_) | Self::Invalid(_) | Self::Incomplete => StatusCode::BAD_REQUEST,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Post { .. } => StatusCode::BAD_GATEWAY,
        }
    }
}

/// Whether a path belongs to the control API.
pub(crate) fn is_control(path: &str) -> bool {
    path == "/sim" || path.starts_with("/sim/")
}

/// Handles a `/sim` request.
pub(crate) async fn handle_request(shared: Arc<Shared>, request: Request<Incoming>) -> HttpResponse {
    match route(shared, request).await {
        Ok(body) => answer_json(StatusCode::OK, body),
        Err(error) => answer_json(error.status(), json!({ "error": error.to_string() }).to_string()),
    }
}

async fn route(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Bytes, ControlError> {
    let (head, body) = request.into_parts();
    let limit = if head.uri.path() == "/sim/snapshot" { MAX_SNAPSHOT } else { MAX_REQUEST };
    let body =
        read_body(body, &head.headers, limit, shared.config.idle_timeout).await.map_err(|error| match error {
            BodyError::TooLarge(limit) => ControlError::TooLarge(limit),
            BodyError::Incomplete | BodyError::Multipart(_) => ControlError::Incomplete,
        })?;
    let path = head.uri.path().trim_end_matches('/').to_owned();
    let parts: Vec<&str> = path.split('/').skip(2).collect();
    let query = |name: &str| {
        let query = head.uri.query().unwrap_or_default();
        form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    };
    let (get, post, put, patch, delete) = (Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE);
    let is_method = |method: &Method| head.method == *method;

    match parts.as_slice() {
        [] if is_method(&get) => {
            let list: Vec<_> = ENDPOINTS.iter().map(|(what, does)| json!({ "endpoint": what, "does": does })).collect();
            Ok(encode(&list))
        }
        ["routes"] if is_method(&get) => Ok(encode(&crate::rest::ROUTES)),
        ["state"] if is_method(&get) => {
            let after = query("after").map(|after| parse_id(&after)).transpose()?;
            let limit = query("limit")
                .map_or(Ok(1_000), |limit| limit.parse())
                .map_err(|_| ControlError::Invalid("`limit` must be a number".into()))?;
            Ok(encode(&shared.lock().world.state(after, limit)))
        }
        ["score"] if is_method(&get) => {
            let mut score = shared.score();
            if query("brief").is_some_and(|brief| brief != "false") {
                score.effects.clear();
                score.created.clear();
            }
            Ok(encode(&score))
        }
        ["score"] if is_method(&delete) => {
            shared.reset_score();
            empty_response()
        }
        ["guilds"] if is_method(&post) => {
            let created: Vec<_> = shared.create_guilds(&parse(&body)?)?.iter().map(|id| json!({ "id": id })).collect();
            Ok(encode(&json!({ "guilds": created })))
        }
        ["guilds", guild] if is_method(&patch) => {
            shared.set_bot_role(parse_id(guild)?, &parse(&body)?).and_then(|()| empty_response())
        }
        ["guilds", guild] if is_method(&delete) => {
            shared.remove_guild(parse_id(guild)?).and_then(|()| empty_response())
        }
        ["guilds", guild, "members"] if is_method(&post) => {
            Ok(encode(&shared.drive(Drive::Join { guild: parse_id(guild)?, spec: parse(&body)? }).await?))
        }
        ["guilds", guild, "members", user] if is_method(&delete) => {
            shared.leave(parse_id(guild)?, parse_id(user)?).and_then(|()| empty_response())
        }
        ["messages"] if is_method(&post) => Ok(encode(&shared.drive(Drive::Message(parse(&body)?)).await?)),
        ["reactions"] if is_method(&post) => shared.react(&parse(&body)?).and_then(|()| empty_response()),
        [kind @ ("commands" | "buttons" | "modals")] if is_method(&post) => {
            let spec: FireSpec = FireSpec::from_body(kind, parse::<Value>(&body)?)?;
            Ok(encode(&shared.drive(Drive::Fire(spec)).await?))
        }
        ["storm"] if is_method(&post) => {
            let spec: StormSpec = parse(&body)?;
            if !(0.0..=MAX_STORM_S).contains(&spec.seconds) {
                return Err(ControlError::Invalid(format!("`seconds` must be from 0 to {MAX_STORM_S}")));
            }
            Ok(encode(&gateway::storm(Arc::clone(&shared), spec).await))
        }
        ["faults"] if is_method(&get) => Ok(encode(&shared.lock().faults.active())),
        ["faults"] if is_method(&post) => Ok(encode(&json!({ "id": shared.add_fault(parse(&body)?)? }))),
        ["faults"] if is_method(&delete) => Ok(encode(&json!({ "removed": shared.lock().faults.remove(None) }))),
        ["faults", fault] if is_method(&delete) => {
            let number =
                fault.parse().map_err(|_| ControlError::Invalid("the id of a fault must be a number".into()))?;
            match shared.lock().faults.remove(Some(number)) {
                0 => {
                    Err(ControlError::Unknown(format!("unknown fault {number}; GET /sim/faults lists the active ones")))
                }
                removed => Ok(encode(&json!({ "removed": removed }))),
            }
        }
        ["gateway", "faults"] if is_method(&get) => Ok(encode(&shared.lock().gateway.faults(shared.now()))),
        ["gateway", "faults"] if is_method(&post) => {
            let fault = parse(&body)?;
            let mut core = shared.lock();
            if !core.gateway.has_room_for(&fault) {
                let advice = "too many event types are muted; unmute them with DELETE /sim/gateway/faults";
                return Err(ControlError::Invalid(advice.into()));
            }
            Ok(encode(&json!({ "affected": core.gateway.apply_fault(fault, shared.now()) })))
        }
        ["gateway", "faults"] if is_method(&delete) => {
            shared.lock().gateway.clear_faults(shared.now());
            empty_response()
        }
        ["limits"] if is_method(&get) => Ok(encode(shared.lock().limits.config())),
        ["limits"] if is_method(&put) => shared.set_limits(parse(&body)?).and_then(|()| empty_response()),
        ["limits", "routes"] if is_method(&put) => {
            shared.set_route_limit(parse(&body)?).and_then(|()| empty_response())
        }
        ["reset"] if is_method(&post) => {
            shared.reset();
            empty_response()
        }
        ["snapshot"] if is_method(&get) => Ok(encode(&shared.lock().world)),
        ["snapshot"] if is_method(&put) => shared.restore(&body).and_then(|()| empty_response()),
        _ => Err(ControlError::NoSuchEndpoint(format!("{} {path}", head.method))),
    }
}

fn empty_response() -> Result<Bytes, ControlError> {
    Ok(Bytes::from_static(b"{}"))
}

fn parse_id(text: &str) -> Result<Snowflake, ControlError> {
    text.parse().map_err(|_| ControlError::Invalid(format!("\"{text}\" is not an id: ids consist of digits")))
}

/// Parses a body, which must be an object; an empty body is an empty object.
fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, ControlError> {
    let text = body.trim_ascii();
    let text: &[u8] = if text.is_empty() { b"{}" } else { text };
    // Serde would accept a list for a struct.
    if text[0] != b'{' {
        return Err(ControlError::BadBody("it must be an object".into()));
    }
    serde_json::from_slice(text).map_err(|error| ControlError::BadBody(error.to_string()))
}

fn encode(value: &(impl Serialize + ?Sized)) -> Bytes {
    serde_json::to_vec(value).expect("invariant: the simulator's own objects are plain JSON").into()
}
