//! The headers of answers.

use utoipa::openapi::{
    Ref,
    extensions::Extensions,
    header::{Header, HeaderBuilder},
    schema::ObjectBuilder,
};

use super::schema::{count, one_of_names, text, text_of};

/// A header that answers may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseHeader {
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
    pub(super) const ALL: [Self; 11] = [
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

    /// Its name.
    pub(super) const fn name(self) -> &'static str {
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

    /// What it is called among the components.
    const fn key(self) -> &'static str {
        if matches!(self, Self::NoStore) { "Not-Stored" } else { self.name() }
    }

    /// Where it is described.
    pub(super) fn named(self) -> Ref {
        Ref::new(format!("#/components/headers/{}", self.key()))
    }

    fn header(self) -> Header {
        let (says, always, shape): (_, _, ObjectBuilder) = match self {
            Self::RequestId => (
                "What the request called itself in its own `X-Request-Id`, else a name by chance. The audit has it, too.",
                true,
                text_of(1, 128),
            ),
            Self::Location => ("Where to look.", false, text()),
            Self::Replayed => ("The idempotency key was used before, for the same.", false, one_of_names(["true"])),
            Self::RetryAfter => ("So many seconds are worth waiting.", true, count()),
            Self::Authenticate => ("What kind of key is asked for.", true, text()),
            Self::CacheControl => ("It may be kept if it is asked for again with its `ETag`.", true, text()),
            Self::NoStore => ("It must not be kept.", true, one_of_names(["no-store"])),
            Self::ETag => ("What this version is called.", true, text()),
            Self::PreferenceApplied => ("What was asked for with `Prefer`, and done.", false, text()),
            Self::RateLimit => (
                "What is left of the caller's own limit: `r` requests, and all of them again in `t` seconds.",
                false,
                text(),
            ),
            Self::RateLimitPolicy => ("The caller's own limit: `q` requests in `w` seconds.", false, text()),
        };
        let header = HeaderBuilder::new().description(Some(says)).schema(Some(shape));
        let required = always.then(|| Extensions::from_iter([("required", true)]));
        header.extensions(required).build()
    }
}

/// The headers of every answer under `/v1`.
pub(super) const ALWAYS: [ResponseHeader; 3] =
    [ResponseHeader::RequestId, ResponseHeader::RateLimit, ResponseHeader::RateLimitPolicy];

/// Every header, by its name among the components.
pub(super) fn components() -> Vec<(&'static str, Header)> {
    ResponseHeader::ALL.map(|sent| (sent.key(), sent.header())).into()
}
