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
    /// The resource does not exist.
    NotFound,
    /// The path supports other methods.
    MethodNotAllowed,
    /// The body exceeds the maximum size.
    BodyTooLarge,
    /// The body did not arrive in time.
    BodyTooSlow,
    /// The request has no key.
    Unauthorized,
    /// The daemon does not know the key.
    KeyInvalid,
    /// The key has expired.
    KeyExpired,
    /// The key was revoked.
    KeyRevoked,
    /// The key lacks a scope.
    Forbidden,
    /// The request is malformed.
    BadRequest,
    /// The body is not JSON.
    NotJson,
    /// An operation is invalid.
    InvalidOperation,
    /// The settings cannot be reloaded.
    InvalidSettings,
    /// The idempotency key was used for something else.
    KeyReused,
    /// The state of the resource does not allow the request.
    Conflict,
    /// Another operation already redrives this one.
    AlreadyRedriven,
    /// The queue is full.
    QueueFull,
    /// The share of a caller or its tenant in the store is full.
    ShareFull,
    /// The store is full.
    StoreFull,
    /// The daemon is still starting.
    Starting,
    /// Too many requests are in progress.
    Busy,
    /// The caller exceeds its rate limit.
    TooManyRequests,
    /// Too many connections are open.
    TooManyConnections,
    /// The process is shutting down.
    Draining,
    /// The store cannot be reached.
    StoreUnavailable,
    /// A shared budget cannot be reached.
    BudgetUnavailable,
    /// The daemon itself failed.
    Internal,
}

/// Default values of `Retry-After`, in seconds.
const SOON: u32 = 1;
const LATER: u32 = 10;

impl ProblemType {
    /// Status, name, title and default detail.
    fn definition(self) -> (StatusCode, &'static str, &'static str, &'static str) {
        match self {
            Self::NotFound => (
                StatusCode::NOT_FOUND,
                "not-found",
                "Not found",
                "No resource exists at this path. Health and metrics are at /livez, /readyz, /startupz and /metrics; \
                 /docs documents the API.",
            ),
            Self::MethodNotAllowed => (
                StatusCode::METHOD_NOT_ALLOWED,
                "method-not-allowed",
                "Method not allowed",
                "This path supports only the methods that the Allow header lists.",
            ),
            Self::BodyTooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "body-too-large",
                "Request body too large",
                "The request body exceeds the maximum size.",
            ),
            Self::BodyTooSlow => (
                StatusCode::REQUEST_TIMEOUT,
                "body-too-slow",
                "Request body timeout",
                "The request body did not arrive in time.",
            ),
            Self::Unauthorized => (
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "Authentication required",
                "The request has no key. Send `Authorization: Bearer <key>` with a valid key: one created with `POST /v1/keys`, or \
                 api.admin_key of the settings. If api.admin_key is not set, the daemon has generated a key, and its \
                 log names the file. Processes that share a store accept one generated key, which is in a file of one \
                 of them: copy that file, or set api.admin_key_file in all of them.",
            ),
            Self::KeyInvalid => (
                StatusCode::UNAUTHORIZED,
                "key-invalid",
                "Key invalid",
                "The key is invalid: this daemon has no such key, or the key is not complete. Send one that was created with \
                 `POST /v1/keys` of this daemon, or api.admin_key of its settings. Processes that share a store accept \
                 one generated key, which is in a file of one of them: copy that file, or set api.admin_key_file in all \
                 of them.",
            ),
            Self::KeyExpired => (
                StatusCode::UNAUTHORIZED,
                "key-expired",
                "Key expired",
                "The key has expired. Create another one with `POST /v1/keys`.",
            ),
            Self::KeyRevoked => (
                StatusCode::UNAUTHORIZED,
                "key-revoked",
                "Key revoked",
                "The key was revoked. Create another one with `POST /v1/keys`.",
            ),
            Self::Forbidden => (
                StatusCode::FORBIDDEN,
                "forbidden",
                "Forbidden",
                "The key lacks a required scope. Ask the operator of the daemon for a key that has it.",
            ),
            Self::BadRequest => {
                (StatusCode::BAD_REQUEST, "bad-request", "Malformed request", "The request is malformed.")
            }
            Self::NotJson => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "not-json",
                "Unsupported media type",
                "Send the body as JSON, with `Content-Type: application/json`.",
            ),
            Self::InvalidOperation => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "invalid-operation",
                "Validation failed",
                "Nothing was accepted. `errors` lists every invalid field.",
            ),
            Self::InvalidSettings => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "invalid-settings",
                "Invalid settings",
                "Nothing was applied. `errors` lists every error.",
            ),
            Self::KeyReused => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "idempotency-key-reused",
                "Idempotency key reused",
                "The idempotency key was used for something else. Nothing was accepted.",
            ),
            Self::Conflict => (
                StatusCode::CONFLICT,
                "conflict",
                "Conflict",
                "The current state does not allow \
                    this.",
            ),
            Self::AlreadyRedriven => (
                StatusCode::CONFLICT,
                "already-redriven",
                "Already redriven",
                "Another operation already \
                    redrives this one.",
            ),
            Self::QueueFull => (
                StatusCode::TOO_MANY_REQUESTS,
                "queue-full",
                "Queue full",
                "Nothing was accepted. Retry when some of the queued operations have finished.",
            ),
            Self::ShareFull => (
                StatusCode::TOO_MANY_REQUESTS,
                "share-full",
                "Store share full",
                "Nothing was accepted. `bound`, `used`, `most` and `setting` describe the bound that is reached.",
            ),
            Self::StoreFull => (
                StatusCode::INSUFFICIENT_STORAGE,
                "store-full",
                "Store full",
                "Nothing was accepted. Operations that were accepted before still run.",
            ),
            Self::Starting => (
                StatusCode::SERVICE_UNAVAILABLE,
                "starting",
                "Starting",
                "The daemon is starting and accepts no operations yet. /readyz lists the parts that are not ready.",
            ),
            Self::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "busy",
                "Server busy",
                "Too many requests are in progress. Retry in a moment.",
            ),
            Self::TooManyRequests => (
                StatusCode::TOO_MANY_REQUESTS,
                "too-many-requests",
                "Too many requests",
                "The rate limit is exceeded; the request had no effect. Retry-After says when to retry.",
            ),
            Self::TooManyConnections => (
                StatusCode::SERVICE_UNAVAILABLE,
                "too-many-connections",
                "Too many connections",
                "The request had no effect: the number of connections has reached api.max_connections. Retry in a \
                 moment, and reuse open connections.",
            ),
            Self::Draining => (
                StatusCode::SERVICE_UNAVAILABLE,
                "draining",
                "Shutting down",
                "The request had no effect: the process is shutting down. Send it to another process, or to this one \
                 in a moment.",
            ),
            Self::StoreUnavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", "Store unavailable", "The store is unavailable.")
            }
            Self::BudgetUnavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "budget-unavailable",
                "Budget unavailable",
                "Nothing was taken. Retry in a moment.",
            ),
            Self::Internal => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal",
                "Internal error",
                "The request is not at fault. The daemon's log has the details.",
            ),
        }
    }

    pub(crate) fn response(self) -> HttpResponse {
        ProblemResponse::from(self).response()
    }

    /// The complete HTTP response as text, for connections that are rejected.
    pub(crate) fn raw_response(self) -> String {
        let (status, ..) = self.definition();
        let body = ProblemResponse::from(self).body().to_string();
        let (code, reason) = (status.as_u16(), status.canonical_reason().unwrap_or_default());
        let length = body.len();
        format!(
            "HTTP/1.1 {code} {reason}\r\ncontent-type: application/problem+json\r\nretry-after: {SOON}\r\n\
             connection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        )
    }

    /// A 405 response that lists the allowed methods.
    pub(crate) fn not_allowed(allow: HeaderValue) -> HttpResponse {
        let mut response = Self::MethodNotAllowed.response();
        response.headers_mut().insert(ALLOW, allow);
        response
    }

    /// The problem with a detail for this occurrence.
    pub(crate) fn with_detail(self, detail: impl Into<String>) -> ProblemResponse {
        ProblemResponse { detail: Some(detail.into()), ..ProblemResponse::from(self) }
    }
}

/// For the OpenAPI description.
impl ProblemType {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 27] = [
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::BodyTooLarge,
        Self::BodyTooSlow,
        Self::Unauthorized,
        Self::KeyInvalid,
        Self::KeyExpired,
        Self::KeyRevoked,
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
        self.definition().0
    }

    /// The last part of its `type`.
    pub(crate) fn name(self) -> &'static str {
        self.definition().1
    }

    /// Its `type`.
    pub(crate) fn urn(self) -> String {
        format!("urn:guildhall:problem:{}", self.name())
    }

    pub(crate) fn title(self) -> &'static str {
        self.definition().2
    }

    /// The default detail.
    pub(crate) fn detail(self) -> &'static str {
        self.definition().3
    }
}

/// A problem with the details of this occurrence.
#[derive(Clone, Debug)]
pub(crate) struct ProblemResponse {
    problem: ProblemType,
    detail: Option<String>,
    extensions: Map<String, Value>,
    /// `Retry-After` in seconds, if it differs from the default.
    retry_after: Option<u64>,
}

impl From<ProblemType> for ProblemResponse {
    fn from(problem: ProblemType) -> Self {
        Self { problem, detail: None, extensions: Map::new(), retry_after: None }
    }
}

impl ProblemResponse {
    /// Adds an extension member.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.extensions.insert(name.to_owned(), value.into());
        self
    }

    /// Sets `Retry-After`, in seconds.
    pub(crate) fn retry_after(self, seconds: u64) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }

    /// Adds `errors`: a message for each invalid field. An empty field means the whole body.
    pub(crate) fn errors(self, errors: impl IntoIterator<Item = (String, String)>) -> Self {
        // An error of the whole body has no field.
        let error = |(field, message): (String, String)| match field.as_str() {
            "" => json!({"message": message}),
            field => json!({"field": field, "message": message}),
        };
        let errors: Vec<Value> = errors.into_iter().map(error).collect();
        self.with("errors", errors)
    }

    /// Its status.
    pub(crate) fn status(&self) -> StatusCode {
        self.problem.status()
    }

    /// What failed, and what to do.
    pub(crate) fn detail(&self) -> &str {
        self.detail.as_deref().unwrap_or(self.problem.detail())
    }

    /// The `Retry-After` in seconds that was set for this occurrence.
    pub(crate) fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after
    }

    pub(crate) fn response(&self) -> HttpResponse {
        let (status, ..) = self.problem.definition();
        let mut response = HttpResponseBuilder::new(status);
        if let Some(after) = self.retry_after {
            response.insert_header(("Retry-After", after.to_string()));
        }
        match self.problem {
            _ if self.retry_after.is_some() => {}
            ProblemType::Unauthorized | ProblemType::KeyInvalid | ProblemType::KeyExpired | ProblemType::KeyRevoked => {
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
        let (status, name, title, general) = self.problem.definition();
        let mut body = json!({
            "type": format!("urn:guildhall:problem:{name}"),
            "title": title,
            "status": status.as_u16(),
            "detail": self.detail.as_deref().unwrap_or(general),
        });
        if let Some(body) = body.as_object_mut() {
            body.extend(self.extensions.clone());
        }
        body
    }
}

impl fmt::Display for ProblemResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, name, _, general) = self.problem.definition();
        write!(f, "{name}: {}", self.detail.as_deref().unwrap_or(general))
    }
}

impl ResponseError for ProblemResponse {
    fn status_code(&self) -> StatusCode {
        self.problem.definition().0
    }

    fn error_response(&self) -> HttpResponse {
        self.response()
    }
}
