//! Errors as RFC 9457 problems.

use std::fmt;

use actix_web::{
    HttpResponse, HttpResponseBuilder, ResponseError,
    http::{
        StatusCode,
        header::{ALLOW, HeaderValue},
    },
};
use serde_json::{Map, Value, json};

/// A kind of problem. Its `type` is stable: programs may compare it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProblemType {
    /// There is no such thing.
    NotFound,
    /// The path takes other methods.
    MethodNotAllowed,
    /// There is more than is read.
    BodyTooLarge,
    /// It takes too long to arrive.
    BodyTooSlow,
    /// The caller shows no key, or a wrong one.
    Unauthorized,
    /// The key is not good for it.
    Forbidden,
    /// The request itself cannot be understood.
    BadRequest,
    /// The body is something else than JSON.
    NotJson,
    /// An operation is not as it should be.
    InvalidOperation,
    /// The settings cannot be reloaded.
    InvalidSettings,
    /// An idempotency key was used for something else.
    KeyReused,
    /// What is asked for does not go with the state that something is in.
    Conflict,
    /// Another operation does it again already.
    AlreadyRedriven,
    /// There is no room in a queue.
    QueueFull,
    /// The share of a caller or its tenant in the store is full.
    ShareFull,
    /// The store is full.
    StoreFull,
    /// The daemon has only just started.
    Starting,
    /// There are too many calls at once.
    Busy,
    /// The caller asks too much.
    TooManyRequests,
    /// There are too many connections.
    TooManyConnections,
    /// The process is ending.
    Draining,
    /// The store cannot be reached.
    StoreUnavailable,
    /// A shared budget cannot be asked.
    BudgetUnavailable,
    /// It is our own fault.
    Internal,
}

/// How long to wait before trying again, in seconds.
const SOON: u32 = 1;
const LATER: u32 = 10;

impl ProblemType {
    /// Its status, name, title and what there is to say in general.
    fn about(self) -> (StatusCode, &'static str, &'static str, &'static str) {
        match self {
            Self::NotFound => (
                StatusCode::NOT_FOUND,
                "not-found",
                "Not found",
                "There is nothing at this path. Try /livez, /readyz, /startupz or /metrics; /docs tells what the API has.",
            ),
            Self::MethodNotAllowed => (
                StatusCode::METHOD_NOT_ALLOWED,
                "method-not-allowed",
                "Method not allowed",
                "This path only takes the methods that the Allow header names.",
            ),
            Self::BodyTooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "body-too-large",
                "Body too large",
                "The request's body is larger than this server reads.",
            ),
            Self::BodyTooSlow => (
                StatusCode::REQUEST_TIMEOUT,
                "body-too-slow",
                "Body too slow",
                "The request's body did not arrive in time.",
            ),
            Self::Unauthorized => (
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "A key is needed",
                "Send `Authorization: Bearer <key>` with a key that is still good: one that was made with \
                 `POST /v1/keys`, or api.admin_key of the settings; if that is not set, the daemon has made one, and its \
                 log names the file that holds it. Processes that share a store accept one generated key, which is in a file \
                 of one of them: copy that file, or set api.admin_key_file in all of them.",
            ),
            Self::Forbidden => (
                StatusCode::FORBIDDEN,
                "forbidden",
                "The key is not good for this",
                "The key lacks a scope. Ask whoever runs the daemon for one that has it.",
            ),
            Self::BadRequest => (
                StatusCode::BAD_REQUEST,
                "bad-request",
                "The request cannot be understood",
                "The request cannot be understood.",
            ),
            Self::NotJson => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "not-json",
                "The body has to be JSON",
                "Send the body as JSON, with `Content-Type: application/json`.",
            ),
            Self::InvalidOperation => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "invalid-operation",
                "Something is wrong with what was asked",
                "Nothing was accepted. `errors` names every field that is wrong.",
            ),
            Self::InvalidSettings => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "invalid-settings",
                "Settings are wrong",
                "Nothing was applied. `errors` names everything that is wrong.",
            ),
            Self::KeyReused => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "idempotency-key-reused",
                "The idempotency key was used for something else",
                "Nothing was accepted.",
            ),
            Self::Conflict => {
                (StatusCode::CONFLICT, "conflict", "That is not possible any more", "It is in another state.")
            }
            Self::AlreadyRedriven => {
                (StatusCode::CONFLICT, "already-redriven", "It is done again already", "Another operation does it.")
            }
            Self::QueueFull => (
                StatusCode::TOO_MANY_REQUESTS,
                "queue-full",
                "There is no room in the queue",
                "Nothing was accepted. Wait until some of what is queued has been done.",
            ),
            Self::ShareFull => (
                StatusCode::TOO_MANY_REQUESTS,
                "share-full",
                "The share of this caller in the store is full",
                "Nothing was accepted. `bound`, `used`, `most` and `setting` say which bound is reached.",
            ),
            Self::StoreFull => (
                StatusCode::INSUFFICIENT_STORAGE,
                "store-full",
                "The store is full",
                "Nothing was accepted. What was accepted before is still done.",
            ),
            Self::Starting => (
                StatusCode::SERVICE_UNAVAILABLE,
                "starting",
                "Not there yet",
                "The daemon is starting, and takes no operations yet. /readyz says what it waits for.",
            ),
            Self::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "busy",
                "Too many requests at once",
                "Too many requests are being answered. Try again in a moment.",
            ),
            Self::TooManyRequests => (
                StatusCode::TOO_MANY_REQUESTS,
                "too-many-requests",
                "The caller asks too much",
                "Nothing was done. Retry-After says when to try again.",
            ),
            Self::TooManyConnections => (
                StatusCode::SERVICE_UNAVAILABLE,
                "too-many-connections",
                "Too many connections at once",
                "Nothing was done: there are as many connections as api.max_connections allows. Try again in a moment, and \
                 use connections again that are open.",
            ),
            Self::Draining => (
                StatusCode::SERVICE_UNAVAILABLE,
                "draining",
                "The process is ending",
                "Nothing was done: the process is ending, and takes nothing new. Ask another one, or this one again in a \
                 moment.",
            ),
            Self::StoreUnavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "store-unavailable",
                "The store is not available",
                "The store is not available.",
            ),
            Self::BudgetUnavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "budget-unavailable",
                "The budget is out of reach",
                "Nothing was taken. Try again in a moment.",
            ),
            Self::Internal => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal",
                "Something is wrong inside",
                "This is not the request's fault. The log says more.",
            ),
        }
    }

    pub(crate) fn response(self) -> HttpResponse {
        ProblemResponse::from(self).response()
    }

    /// The whole answer as it goes over the wire, for connections that are not served.
    pub(crate) fn words(self) -> String {
        let (status, ..) = self.about();
        let body = ProblemResponse::from(self).body().to_string();
        let (code, reason) = (status.as_u16(), status.canonical_reason().unwrap_or_default());
        let length = body.len();
        format!(
            "HTTP/1.1 {code} {reason}\r\ncontent-type: application/problem+json\r\nretry-after: {SOON}\r\n\
             connection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        )
    }

    /// The path takes these methods alone.
    pub(crate) fn not_allowed(allow: HeaderValue) -> HttpResponse {
        let mut response = Self::MethodNotAllowed.response();
        response.headers_mut().insert(ALLOW, allow);
        response
    }

    /// The problem in the words of this case.
    pub(crate) fn says(self, detail: impl Into<String>) -> ProblemResponse {
        ProblemResponse { detail: Some(detail.into()), ..ProblemResponse::from(self) }
    }
}

/// As the API's description has it.
impl ProblemType {
    /// All of them.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 24] = [
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::BodyTooLarge,
        Self::BodyTooSlow,
        Self::Unauthorized,
        Self::Forbidden,
        Self::BadRequest,
        Self::NotJson,
        Self::InvalidOperation,
        Self::InvalidSettings,
        Self::KeyReused,
        Self::Conflict,
        Self::AlreadyRedriven,
        Self::QueueFull,
        Self::ShareFull,
        Self::StoreFull,
        Self::Starting,
        Self::Busy,
        Self::TooManyRequests,
        Self::TooManyConnections,
        Self::Draining,
        Self::StoreUnavailable,
        Self::BudgetUnavailable,
        Self::Internal,
    ];

    pub(crate) fn status(self) -> StatusCode {
        self.about().0
    }

    /// Its name, which `type` ends with.
    pub(crate) fn name(self) -> &'static str {
        self.about().1
    }

    /// Its `type`.
    pub(crate) fn urn(self) -> String {
        format!("urn:guildhall:problem:{}", self.name())
    }

    pub(crate) fn title(self) -> &'static str {
        self.about().2
    }

    /// What there is to say in general.
    pub(crate) fn detail(self) -> &'static str {
        self.about().3
    }
}

/// A problem with what there is to say about this case of it.
#[derive(Clone, Debug)]
pub(crate) struct ProblemResponse {
    problem: ProblemType,
    detail: Option<String>,
    more: Map<String, Value>,
    /// When to try again, in seconds, if this case has its own answer to that.
    after: Option<u64>,
}

impl From<ProblemType> for ProblemResponse {
    fn from(problem: ProblemType) -> Self {
        Self { problem, detail: None, more: Map::new(), after: None }
    }
}

impl ProblemResponse {
    /// Adds a member for programs.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
        self
    }

    /// Says when to try again, in seconds.
    pub(crate) fn after(self, seconds: u64) -> Self {
        Self { after: Some(seconds), ..self }
    }

    /// Adds what is wrong with which field.
    pub(crate) fn errors(self, errors: impl IntoIterator<Item = (String, String)>) -> Self {
        let errors = errors.into_iter().map(|(field, message)| json!({"field": field, "message": message}));
        let errors: Vec<Value> = errors.collect();
        self.with("errors", errors)
    }

    pub(crate) fn response(&self) -> HttpResponse {
        let (status, ..) = self.problem.about();
        let mut response = HttpResponseBuilder::new(status);
        if let Some(after) = self.after {
            response.insert_header(("Retry-After", after.to_string()));
        }
        match self.problem {
            _ if self.after.is_some() => {}
            ProblemType::Unauthorized => {
                response.insert_header(("WWW-Authenticate", "Bearer realm=\"guildhall\""));
            }
            ProblemType::Starting
            | ProblemType::Busy
            | ProblemType::TooManyRequests
            | ProblemType::TooManyConnections
            | ProblemType::Draining
            | ProblemType::StoreUnavailable
            | ProblemType::BudgetUnavailable => {
                response.insert_header(("Retry-After", SOON.to_string()));
            }
            ProblemType::QueueFull | ProblemType::ShareFull | ProblemType::StoreFull => {
                response.insert_header(("Retry-After", LATER.to_string()));
            }
            ProblemType::NotFound
            | ProblemType::MethodNotAllowed
            | ProblemType::Forbidden
            | ProblemType::BodyTooLarge
            | ProblemType::BodyTooSlow
            | ProblemType::BadRequest
            | ProblemType::NotJson
            | ProblemType::InvalidOperation
            | ProblemType::InvalidSettings
            | ProblemType::KeyReused
            | ProblemType::Conflict
            | ProblemType::AlreadyRedriven
            | ProblemType::Internal => {}
        }
        response.content_type("application/problem+json").body(self.body().to_string())
    }

    fn body(&self) -> Value {
        let (status, name, title, general) = self.problem.about();
        let mut body = json!({
            "type": format!("urn:guildhall:problem:{name}"),
            "title": title,
            "status": status.as_u16(),
            "detail": self.detail.as_deref().unwrap_or(general),
        });
        if let Some(body) = body.as_object_mut() {
            body.extend(self.more.clone());
        }
        body
    }
}

impl fmt::Display for ProblemResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, name, _, general) = self.problem.about();
        write!(f, "{name}: {}", self.detail.as_deref().unwrap_or(general))
    }
}

impl ResponseError for ProblemResponse {
    fn status_code(&self) -> StatusCode {
        self.problem.about().0
    }

    fn error_response(&self) -> HttpResponse {
        self.response()
    }
}
