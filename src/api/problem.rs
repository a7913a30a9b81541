//! Errors as RFC 9457 problems.

use actix_web::{HttpResponse, HttpResponseBuilder, http::StatusCode};
use serde_json::json;

/// A kind of problem. Its `type` is stable: programs may compare it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    NotFound,
    MethodNotAllowed,
    BodyTooLarge,
}

impl Problem {
    pub(crate) fn response(self) -> HttpResponse {
        let (status, name, title, detail) = match self {
            Self::NotFound => (
                StatusCode::NOT_FOUND,
                "not-found",
                "Not found",
                "There is nothing at this path. Try /livez, /readyz, /startupz or /metrics.",
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
        };
        let mut response = HttpResponseBuilder::new(status);
        if self == Self::MethodNotAllowed {
            response.insert_header(("Allow", "GET, HEAD"));
        }
        response.content_type("application/problem+json").body(
            json!({
                "type": format!("urn:guildhall:problem:{name}"),
                "title": title,
                "status": status.as_u16(),
                "detail": detail,
            })
            .to_string(),
        )
    }
}
