//! A REST call before it is made.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use guildhall_core::invalid::Submitter;
use guildhall_core::lane::Lane;
use guildhall_core::response::Credential;
use guildhall_core::route::{Route, SublimitKind};
use guildhall_core::trace::TraceContext;
use http::{HeaderMap, HeaderValue, Method};
use http_body_util::combinators::UnsyncBoxBody;

use super::CommitHook;
use crate::lease_guard::LeaseGuard;

/// Version of Discord's API that a call is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ApiVersion {
    /// The one of the configured URL.
    #[default]
    Configured,
    /// This one.
    Number(u8),
    /// None is named: Discord selects it.
    Unversioned,
}

/// A REST call, typed or raw.
#[derive(Debug)]
pub struct RestRequest {
    /// The method.
    pub method: Method,
    /// The version of the API.
    pub version: ApiVersion,
    /// Path below the API version, with a leading slash and the query: `/guilds/1/members?limit=5`.
    pub path: String,
    /// Headers in addition to those that the transport sets (token, length). A user agent replaces that of the
    /// transport.
    pub headers: HeaderMap,
    /// The body.
    pub body: RequestBody,
    /// Credential to use.
    pub credential: Credential,
    /// Header `Authorization` of a call with [`Credential::Token`], marked as sensitive. Other calls have none: the
    /// transport has their tokens.
    pub authorization: Option<HeaderValue>,
    /// How the body of the response is read.
    pub response: ResponseMode,
    /// Urgency.
    pub lane: Lane,
    /// How long the caller waits for a permit. If there is none by then, the call is not sent, and the result says when
    /// to retry.
    pub max_wait: Duration,
    /// Effect of a repetition. Only calls that are safe to repeat may probe an open breaker.
    pub effects: Effects,
    /// The guild that the call is made for, for the ledger of invalid requests.
    pub guild: Option<u64>,
    /// Submitter of the operation, for the shares of the invalid requests.
    pub submitter: Submitter,
    /// Name of the caller: callers take turns while they wait for permits. `None`: the submitter's key.
    pub caller: Option<Arc<str>>,
    /// Sublimit of the route that applies.
    pub sub: Option<SublimitKind>,
    /// Lease that permits the call. Checked just before the call is sent, however long it has waited.
    pub lease: LeaseGuard,
    /// What has to be durable before it is sent.
    pub before_send: CommitHook,
    /// Trace context of the caller; from the gate on, the context of the call itself.
    pub trace: Option<TraceContext>,
}

/// Effect of repeating a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effects {
    /// It only reads.
    None,
    /// It may be repeated: PUT, DELETE, most PATCH calls.
    Idempotent,
    /// Each repetition creates something new.
    Creates,
}

/// Body of a call.
#[derive(Debug, Default)]
pub enum RequestBody {
    /// No body.
    #[default]
    Empty,
    /// Complete, with its content type in the headers.
    Whole(Bytes),
    /// Streamed from another source, which must end by itself. The time that it takes is not part of the time that the
    /// transport waits for a response.
    Stream(UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>),
}

/// How the body of a response is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResponseMode {
    /// Completely.
    #[default]
    Whole,
    /// As it arrives, if the call has succeeded. Errors are read completely, as long as they are not too large: they are
    /// classified by their body.
    Streamed,
}

impl RestRequest {
    /// Creates a call without a body, on the operation lane, with effects derived from its method. A call that belongs to no
    /// queue has [`LeaseGuard::always`].
    #[must_use]
    pub fn new(method: Method, path: impl Into<String>, credential: Credential, lease: LeaseGuard) -> Self {
        let effects = match method {
            Method::GET | Method::HEAD | Method::OPTIONS => Effects::None,
            Method::POST => Effects::Creates,
            _ => Effects::Idempotent,
        };
        Self {
            method,
            version: ApiVersion::Configured,
            path: path.into(),
            headers: HeaderMap::new(),
            body: RequestBody::Empty,
            credential,
            authorization: None,
            response: ResponseMode::Whole,
            lane: Lane::Operation,
            max_wait: Duration::from_secs(5),
            effects,
            guild: None,
            submitter: Submitter::default(),
            caller: None,
            sub: None,
            lease,
            before_send: CommitHook::none(),
            trace: None,
        }
    }

    /// Route of the call.
    #[must_use]
    pub fn route(&self, unix_ms: u64) -> Route {
        let application = match self.credential {
            Credential::Application(id) => id,
            Credential::Anonymous | Credential::Token(_) => 0,
        };
        let path = self.path.split_once('?').map_or(self.path.as_str(), |(path, _)| path);
        let mut route = Route::parse(self.method.as_str(), path, application, unix_ms);
        route.sub = self.sub;
        route
    }
}
