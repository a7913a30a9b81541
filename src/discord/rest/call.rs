//! A typed call: a request that was validated, and the type of its response. Nothing here uses the network.

use std::{error::Error, fmt, marker::PhantomData, time::Duration};

use bytes::Bytes;
use guildhall_actors::gate::{RequestBody, RestRequest, RestResponse};
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_core::{
    lane::Lane,
    response::{Credential, ResponseClass},
};
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use twilight_http::request::TryIntoRequest;
use twilight_model::id::{
    Id,
    marker::{ApplicationMarker, GuildMarker},
};

use super::raw;

/// The header that carries the reason for the audit log.
const REASON_HEADER: HeaderName = HeaderName::from_static("x-audit-log-reason");

/// Maximum length of a reason in Discord, in characters.
const MAX_REASON_CHARS: usize = 512;

/// A call whose response contains a `T`.
#[derive(Debug)]
#[must_use = "a call does nothing until it is sent"]
pub struct Call<T> {
    /// The request to send.
    pub request: RestRequest,
    /// Reads the response.
    pub decoder: ResponseDecoder<T>,
}

/// Reads the response to a [`Call`].
pub struct ResponseDecoder<T>(PhantomData<fn() -> T>);

impl<T> Clone for ResponseDecoder<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ResponseDecoder<T> {}

impl<T> fmt::Debug for ResponseDecoder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResponseDecoder<{}>", std::any::type_name::<T>())
    }
}

/// A call that cannot be made as it is. A retry cannot help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Discord would reject a field.
    #[error("invalid call: {0}")]
    Invalid(String),
    /// The reason is empty or too long.
    #[error("a reason must have 1 to 512 characters, not {0}")]
    Reason(usize),
    /// The nonce is empty or too long.
    #[error("a nonce must have 1 to 25 characters, not {0}")]
    Nonce(usize),
    /// A nonce together with uploaded files, which need a multipart body.
    #[error("a message that uploads files cannot carry a nonce")]
    NonceWithFiles,
}

/// Why a response cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The response is an error.
    #[error("Discord returned {status}{}", code.map_or_else(String::new, |code| format!(", code {code}")))]
    Refused {
        /// HTTP status.
        status: StatusCode,
        /// Class of the response.
        class: ResponseClass,
        /// Discord's error code.
        code: Option<u32>,
    },
    /// The body does not have the expected form.
    #[error("unexpected response from Discord: {0}")]
    Body(String),
}

impl<T> Call<T> {
    /// Builds a call from one of twilight's builders. It belongs to no queue: an operation that sends it adds its lease.
    ///
    /// # Errors
    ///
    /// When Discord would reject a field.
    pub fn build(application: Id<ApplicationMarker>, builder: impl TryIntoRequest) -> Result<Self, CallError> {
        let built = builder.try_into_request().map_err(|error| invalid(&error))?;
        let method = Method::from_bytes(built.method().name().as_bytes()).map_err(|error| invalid(&error))?;
        let path = format!("/{}", built.path());
        // An interaction's calls need no bot token. They use the application's credential all the same: the gate uses
        // it to tell the webhooks of its own interactions from other webhooks.
        let own_webhooks = format!("/webhooks/{application}/");
        let credential =
            if built.use_authorization_token() || path.starts_with("/interactions/") || path.starts_with(&own_webhooks)
            {
                Credential::Application(application.get())
            } else {
                Credential::Anonymous
            };
        let mut request = RestRequest::new(method, path, credential, LeaseGuard::always());
        if let Some(headers) = built.headers() {
            request.headers = headers.clone();
        }
        if let Some(form) = built.form() {
            let kind = HeaderValue::from_bytes(&form.content_type()).map_err(|error| invalid(&error))?;
            request.headers.insert(header::CONTENT_TYPE, kind);
            request.body = RequestBody::Whole(form.clone().build().into());
        } else if let Some(body) = built.body() {
            request.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            request.body = RequestBody::Whole(Bytes::copy_from_slice(body));
        }
        raw::fill_derived_fields(&mut request);
        Ok(Self { request, decoder: ResponseDecoder(PhantomData) })
    }

    /// Adds a reason for the audit log.
    ///
    /// # Errors
    ///
    /// When the reason is empty or too long.
    pub fn with_reason(mut self, reason: &str) -> Result<Self, CallError> {
        with_reason(&mut self.request, reason)?;
        Ok(self)
    }

    /// Sets the guild that the call belongs to, for a path that does not name it.
    pub fn for_guild(mut self, guild: Id<GuildMarker>) -> Self {
        self.request.guild = Some(guild.get());
        self
    }

    /// Sets the lane.
    pub fn with_lane(mut self, lane: Lane) -> Self {
        self.request.lane = lane;
        self
    }

    /// Sets the maximum time to wait for a permit.
    pub fn with_max_wait(mut self, max_wait: Duration) -> Self {
        self.request.max_wait = max_wait;
        self
    }
}

impl<T: DeserializeOwned> ResponseDecoder<T> {
    /// Decodes the response.
    ///
    /// # Errors
    ///
    /// When the response is an error, or does not have the expected form.
    pub fn decode(self, response: &RestResponse) -> Result<T, DecodeError> {
        let RestResponse { status, class, code, .. } = *response;
        if class != ResponseClass::Success {
            return Err(DecodeError::Refused { status, class, code });
        }
        // An empty body decodes as `null`.
        let body: &[u8] = if response.body.is_empty() { b"null" } else { &response.body };
        serde_json::from_slice(body).map_err(|error| DecodeError::Body(error.to_string()))
    }
}

/// Adds a reason for the audit log to a request.
///
/// # Errors
///
/// When the reason is empty or too long.
pub fn with_reason(request: &mut RestRequest, reason: &str) -> Result<(), CallError> {
    let length = reason.chars().count();
    if length == 0 || length > MAX_REASON_CHARS {
        return Err(CallError::Reason(length));
    }
    let encoded = utf8_percent_encode(reason, NON_ALPHANUMERIC).to_string();
    let value = HeaderValue::from_str(&encoded).expect("invariant: percent-encoded text is ASCII");
    request.headers.insert(REASON_HEADER, value);
    Ok(())
}

/// Converts an error of twilight, with its causes: they name the invalid field.
pub(super) fn invalid(error: &(dyn Error + 'static)) -> CallError {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message = format!("{message}: {error}");
        cause = error.source();
    }
    CallError::Invalid(message)
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    fn response(status: StatusCode, class: ResponseClass, body: &'static str) -> RestResponse {
        let body = Bytes::from_static(body.as_bytes());
        RestResponse {
            status,
            headers: HeaderMap::new(),
            body,
            stream: None,
            class,
            code: None,
            elapsed: Duration::ZERO,
        }
    }

    #[test]
    fn reason_survives_percent_encoding() {
        let mut request =
            RestRequest::new(Method::POST, "/guilds/1/roles", Credential::Application(1), LeaseGuard::always());
        with_reason(&mut request, "für Ordnung [gh:7]\n").unwrap();
        let sent = request.headers[REASON_HEADER].to_str().unwrap();
        assert_eq!(percent_encoding::percent_decode_str(sent).decode_utf8().unwrap(), "für Ordnung [gh:7]\n");
        assert_eq!(with_reason(&mut request, ""), Err(CallError::Reason(0)));
        assert_eq!(with_reason(&mut request, &"ü".repeat(513)), Err(CallError::Reason(513)));
        with_reason(&mut request, &"ü".repeat(512)).unwrap();
    }

    #[test]
    fn only_successful_responses_of_the_expected_form_decode() {
        let numbers = ResponseDecoder::<Vec<u8>>(PhantomData);
        assert_eq!(numbers.decode(&response(StatusCode::OK, ResponseClass::Success, "[1,2]")).unwrap(), [1, 2]);
        assert!(matches!(
            numbers.decode(&response(StatusCode::OK, ResponseClass::Success, "{}")),
            Err(DecodeError::Body(_))
        ));
        let refused = numbers.decode(&response(StatusCode::NOT_FOUND, ResponseClass::NotFound, "[1]"));
        assert!(matches!(refused, Err(DecodeError::Refused { class: ResponseClass::NotFound, .. })));
        ResponseDecoder::<()>(PhantomData)
            .decode(&response(StatusCode::NO_CONTENT, ResponseClass::Success, ""))
            .unwrap();
    }
}
