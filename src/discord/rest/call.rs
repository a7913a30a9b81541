//! A typed call: a request that is known to be valid, and what its answer holds. Nothing here touches the network.

use std::{error::Error, fmt, marker::PhantomData, time::Duration};

use bytes::Bytes;
use guildhall_actors::gate::{RequestBody, RestRequest, RestResponse};
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

/// The header that a reason travels in.
const REASON: HeaderName = HeaderName::from_static("x-audit-log-reason");

/// The longest reason that Discord keeps, in characters.
const LONGEST_REASON: usize = 512;

/// A call whose answer holds a `T`.
#[derive(Debug)]
#[must_use = "a call does nothing until it is sent"]
pub struct Call<T> {
    /// What is sent.
    pub request: RestRequest,
    /// How to read what comes back.
    pub answer: ResponseDecoder<T>,
}

/// Reads the answer to a [`Call`].
pub struct ResponseDecoder<T>(PhantomData<fn() -> T>);

impl<T> Clone for ResponseDecoder<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ResponseDecoder<T> {}

impl<T> fmt::Debug for ResponseDecoder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnswerOf<{}>", std::any::type_name::<T>())
    }
}

/// A call that cannot be made as it is. Trying again cannot help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// A field is not as Discord takes it.
    #[error("the call is not valid: {0}")]
    Invalid(String),
    /// The reason is empty or too long.
    #[error("a reason has 1 to {LONGEST_REASON} characters, not {0}")]
    Reason(usize),
    /// The nonce is empty or too long.
    #[error("a nonce has 1 to 25 characters, not {0}")]
    Nonce(usize),
    /// A nonce beside uploaded files, which travel in another form.
    #[error("a message that uploads files cannot carry a nonce")]
    NonceWithFiles,
}

/// Why an answer holds nothing to read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It is a refusal.
    #[error("Discord answered {status}, code {code:?}")]
    Refused {
        /// The status.
        status: StatusCode,
        /// What kind of answer it is.
        class: ResponseClass,
        /// Discord's error code.
        code: Option<u32>,
    },
    /// Its body is not what it should be.
    #[error("Discord's answer is not as expected: {0}")]
    Body(String),
}

impl<T> Call<T> {
    /// A call as one of twilight's builders has it.
    ///
    /// # Errors
    ///
    /// When a field is not as Discord takes it.
    pub fn build(application: Id<ApplicationMarker>, builder: impl TryIntoRequest) -> Result<Self, CallError> {
        let built = builder.try_into_request().map_err(|error| invalid(&error))?;
        let method = Method::from_bytes(built.method().name().as_bytes()).map_err(|error| invalid(&error))?;
        let path = format!("/{}", built.path());
        // An interaction's calls need no token of the bot. They go out as the application's own all the same, since that
        // is how the gate knows its interactions' webhooks from others.
        let own = format!("/webhooks/{application}/");
        let credential =
            if built.use_authorization_token() || path.starts_with("/interactions/") || path.starts_with(&own) {
                Credential::Application(application.get())
            } else {
                Credential::Anonymous
            };
        let mut request = RestRequest::new(method, path, credential);
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
        raw::complete(&mut request);
        Ok(Self { request, answer: ResponseDecoder(PhantomData) })
    }

    /// The same call with a reason for the audit log.
    ///
    /// # Errors
    ///
    /// When the reason is empty or too long.
    pub fn with_reason(mut self, reason: &str) -> Result<Self, CallError> {
        with_reason(&mut self.request, reason)?;
        Ok(self)
    }

    /// The same call on behalf of a guild that its path does not name.
    pub fn for_guild(mut self, guild: Id<GuildMarker>) -> Self {
        self.request.guild = Some(guild.get());
        self
    }

    /// The same call on another lane.
    pub fn on(mut self, lane: Lane) -> Self {
        self.request.lane = lane;
        self
    }

    /// The same call, waiting for its turn at most so long.
    pub fn waiting(mut self, at_most: Duration) -> Self {
        self.request.max_wait = at_most;
        self
    }
}

impl<T: DeserializeOwned> ResponseDecoder<T> {
    /// What the answer holds.
    ///
    /// # Errors
    ///
    /// When it is a refusal, or is not as expected.
    pub fn read(self, answered: &RestResponse) -> Result<T, DecodeError> {
        let RestResponse { status, class, code, .. } = *answered;
        if class != ResponseClass::Success {
            return Err(DecodeError::Refused { status, class, code });
        }
        // No content reads as nothing.
        let body: &[u8] = if answered.body.is_empty() { b"null" } else { &answered.body };
        serde_json::from_slice(body).map_err(|error| DecodeError::Body(error.to_string()))
    }
}

/// Gives a request a reason for the audit log.
///
/// # Errors
///
/// When the reason is empty or too long.
pub fn with_reason(request: &mut RestRequest, reason: &str) -> Result<(), CallError> {
    let length = reason.chars().count();
    if length == 0 || length > LONGEST_REASON {
        return Err(CallError::Reason(length));
    }
    let encoded = utf8_percent_encode(reason, NON_ALPHANUMERIC).to_string();
    let value = HeaderValue::from_str(&encoded).expect("invariant: percent-encoded text is plain");
    request.headers.insert(REASON, value);
    Ok(())
}

/// Twilight says what is wrong in an error's causes.
pub(super) fn invalid(error: &(dyn Error + 'static)) -> CallError {
    let mut why = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        why = format!("{why}: {error}");
        cause = error.source();
    }
    CallError::Invalid(why)
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    fn answered(status: StatusCode, class: ResponseClass, body: &'static str) -> RestResponse {
        RestResponse { status, headers: HeaderMap::new(), body: Bytes::from_static(body.as_bytes()), class, code: None }
    }

    #[test]
    fn a_reason_is_kept_whole_whatever_it_is_written_in() {
        let mut request = RestRequest::new(Method::POST, "/guilds/1/roles", Credential::Application(1));
        with_reason(&mut request, "für Ordnung [gh:7]\n").unwrap();
        let sent = request.headers[REASON].to_str().unwrap();
        assert_eq!(percent_encoding::percent_decode_str(sent).decode_utf8().unwrap(), "für Ordnung [gh:7]\n");
        assert_eq!(with_reason(&mut request, ""), Err(CallError::Reason(0)));
        assert_eq!(with_reason(&mut request, &"ü".repeat(513)), Err(CallError::Reason(513)));
        with_reason(&mut request, &"ü".repeat(512)).unwrap();
    }

    #[test]
    fn an_answer_is_read_only_if_it_is_a_success_of_the_right_kind() {
        let numbers = ResponseDecoder::<Vec<u8>>(PhantomData);
        assert_eq!(numbers.read(&answered(StatusCode::OK, ResponseClass::Success, "[1,2]")).unwrap(), [1, 2]);
        assert!(matches!(
            numbers.read(&answered(StatusCode::OK, ResponseClass::Success, "{}")),
            Err(DecodeError::Body(_))
        ));
        let refused = numbers.read(&answered(StatusCode::NOT_FOUND, ResponseClass::NotFound, "[1]"));
        assert!(matches!(refused, Err(DecodeError::Refused { class: ResponseClass::NotFound, .. })));
        ResponseDecoder::<()>(PhantomData).read(&answered(StatusCode::NO_CONTENT, ResponseClass::Success, "")).unwrap();
    }
}
