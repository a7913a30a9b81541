//! A REST call before it is made.

use std::time::Duration;

use bytes::Bytes;
use guildhall_core::invalid::Submitter;
use guildhall_core::lane::Lane;
use guildhall_core::response::Credential;
use guildhall_core::route::{Route, SublimitKind};
use guildhall_core::trace::TraceContext;
use http::{HeaderMap, Method};
use http_body_util::combinators::UnsyncBoxBody;

use super::CommitHook;
use crate::lease_guard::LeaseGuard;

/// A REST call: typed or raw, it is the same from here on.
#[derive(Debug)]
pub struct RestRequest {
    /// The method.
    pub method: Method,
    /// The path below the API's version, with a leading slash and with its query: `/guilds/1/members?limit=5`.
    pub path: String,
    /// Headers beside those that the transport sets itself (token, user agent, length).
    pub headers: HeaderMap,
    /// The body.
    pub body: RequestBody,
    /// Who it is made as.
    pub credential: Credential,
    /// How urgent it is.
    pub lane: Lane,
    /// How long its caller waits for a turn. A call that is not due by then is not sent, and says when it would be.
    pub max_wait: Duration,
    /// What repeating it would do; only what is safe to repeat may probe an open breaker.
    pub effects: Effects,
    /// The guild on whose behalf it is made, for the ledger of who spent the budget.
    pub guild: Option<u64>,
    /// Who submitted the operation behind it, for the shares of the invalid requests.
    pub submitter: Submitter,
    /// A limit within the route's limit that it falls under.
    pub sub: Option<SublimitKind>,
    /// The right by which it is made. It is looked at just before the call leaves, however long it has waited.
    pub right: LeaseGuard,
    /// What has to be durable before it is sent.
    pub before_send: CommitHook,
    /// The part of a trace that makes it; from the gate on, the part that it is itself.
    pub trace: Option<TraceContext>,
}

/// What repeating a call would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effects {
    /// It only reads.
    None,
    /// It may be repeated: PUTs, DELETEs, most PATCHes.
    Idempotent,
    /// Each time makes something new.
    Creates,
}

/// A call's body.
#[derive(Debug, Default)]
pub enum RequestBody {
    /// None.
    #[default]
    Empty,
    /// Whole, with its content type in the headers.
    Whole(Bytes),
    /// On its way from somebody else.
    Stream(UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>),
}

impl RestRequest {
    /// A call with no body, on the operation lane, whose effects are told by its method.
    #[must_use]
    pub fn new(method: Method, path: impl Into<String>, credential: Credential) -> Self {
        let effects = match method {
            Method::GET | Method::HEAD | Method::OPTIONS => Effects::None,
            Method::POST => Effects::Creates,
            _ => Effects::Idempotent,
        };
        Self {
            method,
            path: path.into(),
            headers: HeaderMap::new(),
            body: RequestBody::Empty,
            credential,
            lane: Lane::Operation,
            max_wait: Duration::from_secs(5),
            effects,
            guild: None,
            submitter: Submitter::default(),
            sub: None,
            right: LeaseGuard::always(),
            before_send: CommitHook::none(),
            trace: None,
        }
    }

    /// The route it goes to.
    #[must_use]
    pub fn route(&self, unix_ms: u64) -> Route {
        let application = match self.credential {
            Credential::Application(id) => id,
            Credential::Anonymous => 0,
        };
        let path = self.path.split_once('?').map_or(self.path.as_str(), |(path, _)| path);
        let mut route = Route::parse(self.method.as_str(), path, application, unix_ms);
        route.sub = self.sub;
        route
    }
}
