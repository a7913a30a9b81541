//! Whether a caller may make a call: its scope, then the effect of the call, as for operations of the kind `request`.

use std::time::Duration;

use bytes::Bytes;
use guildhall_actors::access::Caller;
use guildhall_core::access::{Bounds, MissingAccess, Scope};
use guildhall_core::lane::Lane;
use guildhall_core::operation::payload;
use guildhall_core::trace::TraceContext;
use http::{HeaderMap, Method, StatusCode};
use serde_json::Value;

use super::answer::OwnAnswer;
use super::form;
use crate::discord::executor::{CallRefusal, DiscordExecutor, ProposedCall};

/// A call to be checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckedCall<'a> {
    pub(super) method: &'a Method,
    pub(super) path: &'a str,
    pub(super) lane: Lane,
    pub(super) max_wait: Duration,
    pub(super) trace: TraceContext,
}

/// Whether the key may make calls of this method, in this lane.
pub(super) fn check_scope(caller: &Caller, method: &Method, lane: Option<Lane>) -> Result<(), OwnAnswer> {
    let reads = matches!(*method, Method::GET | Method::HEAD);
    let needed = if reads { Scope::EgressRead } else { Scope::Egress };
    if !caller.has_scope(needed) {
        let message = MissingAccess::Scope(needed).to_string();
        return Err(OwnAnswer::new(StatusCode::FORBIDDEN, "forbidden", format!("the call {message}")));
    }
    // Otherwise the key of one guild could pass everything that others have waiting.
    if lane == Some(Lane::Interactive) && caller.bounds() == Bounds::Guild {
        let message =
            "a key for single guilds cannot choose the lane interactive; calls to interactions have it anyway";
        return Err(OwnAnswer::new(StatusCode::FORBIDDEN, "forbidden", message));
    }
    Ok(())
}

/// Checks the effect of a call.
#[derive(Clone, Copy)]
pub(super) struct EffectCheck<'a> {
    pub(super) executor: &'a DiscordExecutor,
    pub(super) caller: &'a Caller,
    pub(super) call: CheckedCall<'a>,
}

impl EffectCheck<'_> {
    /// Whether the caller may make the call with this content. Returns the guild that it concerns, where known.
    pub(super) async fn judge(&self, content: Option<Value>) -> Result<Option<u64>, OwnAnswer> {
        let Self { executor, caller, call } = self;
        let request = request(call.method, call.path, content)?;
        if request.method == payload::Method::Get && request.body.is_some() {
            return Err(OwnAnswer::bad_request("unreadable_body", "a GET or HEAD request has no body"));
        }
        let proposed = ProposedCall { request, lane: call.lane, max_wait: call.max_wait, trace: Some(call.trace) };
        executor.authorize_call(caller, proposed).await.map_err(OwnAnswer::refused)
    }
}

/// The content of a whole body.
pub(super) fn read_content(headers: &HeaderMap, body: &Bytes) -> Result<Option<Value>, OwnAnswer> {
    form::content(headers, body).map_err(|error| OwnAnswer::bad_request("unreadable_body", error.to_string()))
}

/// The call as the payload of an operation.
pub(super) fn request(method: &Method, path: &str, body: Option<Value>) -> Result<payload::Request, OwnAnswer> {
    let method = match *method {
        Method::GET | Method::HEAD => payload::Method::Get,
        Method::POST => payload::Method::Post,
        Method::PUT => payload::Method::Put,
        Method::PATCH => payload::Method::Patch,
        Method::DELETE => payload::Method::Delete,
        _ => return Err(OwnAnswer::refused(CallRefusal::Invalid("the method is not supported".to_owned()))),
    };
    Ok(payload::Request { method, path: path.to_owned(), body, user: None })
}
