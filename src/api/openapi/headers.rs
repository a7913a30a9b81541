//! Headers of responses.

use utoipa::openapi::{
    Ref,
    extensions::Extensions,
    header::{Header, HeaderBuilder},
    schema::ObjectBuilder,
};

use super::schema::{count, one_of_names, text, text_of};

/// A header of responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseHeader {
    RequestId,
    Location,
    Replayed,
    RetryAfter,
    Authenticate,
    CacheControl,
    NoStore,
    ETag,
    PreferenceApplied,
    RateLimit,
    RateLimitPolicy,
}

impl ResponseHeader {
    pub(crate) const ALL: [Self; 11] = [
        Self::RequestId,
        Self::Location,
        Self::Replayed,
        Self::RetryAfter,
        Self::Authenticate,
        Self::CacheControl,
        Self::NoStore,
        Self::ETag,
        Self::PreferenceApplied,
        Self::RateLimit,
        Self::RateLimitPolicy,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::RequestId => "X-Request-Id",
            Self::Location => "Location",
            Self::Replayed => "Idempotency-Replayed",
            Self::RetryAfter => "Retry-After",
            Self::Authenticate => "WWW-Authenticate",
            Self::CacheControl | Self::NoStore => "Cache-Control",
            Self::ETag => "ETag",
            Self::PreferenceApplied => "Preference-Applied",
            Self::RateLimit => "RateLimit",
            Self::RateLimitPolicy => "RateLimit-Policy",
        }
    }

    /// Its name among the components.
    const fn component_name(self) -> &'static str {
        if matches!(self, Self::NoStore) { "Not-Stored" } else { self.name() }
    }

    /// A reference to its description.
    pub(crate) fn component_ref(self) -> Ref {
        Ref::new(format!("#/components/headers/{}", self.component_name()))
    }

    fn header(self) -> Header {
        let (description, always, shape): (_, _, ObjectBuilder) = match self {
            Self::RequestId => (
                "The `X-Request-Id` of the request, or a random id if it has none. The audit contains it, too.",
                true,
                text_of(1, 128),
            ),
            Self::Location => ("URL of the resource.", false, text()),
            Self::Replayed => {
                ("The operations were accepted before with the same idempotency keys.", false, one_of_names(["true"]))
            }
            Self::RetryAfter => ("Number of seconds to wait before a retry.", true, count()),
            Self::Authenticate => ("The required authentication scheme.", true, text()),
            Self::CacheControl => {
                ("The response may be cached, and must be revalidated with its `ETag`.", true, text())
            }
            Self::NoStore => ("The response must not be cached.", true, one_of_names(["no-store"])),
            Self::ETag => ("Identifier of this version.", true, text()),
            Self::PreferenceApplied => ("The preference of `Prefer` that was applied.", false, text()),
            Self::RateLimit => (
                "What remains of the caller's rate limit: `r` requests, and the full limit again in `t` seconds.",
                false,
                text(),
            ),
            Self::RateLimitPolicy => ("The caller's rate limit: `q` requests in `w` seconds.", false, text()),
        };
        let header = HeaderBuilder::new().description(Some(description)).schema(Some(shape));
        let required = always.then(|| Extensions::from_iter([("required", true)]));
        header.extensions(required).build()
    }
}

/// The headers of every response under `/v1`.
pub(crate) const ALWAYS: [ResponseHeader; 3] =
    [ResponseHeader::RequestId, ResponseHeader::RateLimit, ResponseHeader::RateLimitPolicy];

/// All headers, by their names among the components.
pub(crate) fn components() -> Vec<(&'static str, Header)> {
    ResponseHeader::ALL.map(|sent| (sent.component_name(), sent.header())).into()
}
