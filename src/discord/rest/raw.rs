//! Calls by method and path, for calls without a typed builder. They are validated before any other code sees them.

use guildhall_actors::gate::{RequestBody, RestRequest};
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_core::{response::Credential, route::SublimitKind};
use http::{HeaderMap, Method};
use serde::{Deserialize, de::IgnoredAny};

/// Why a path or a method is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RawRequestError {
    /// The path does not start with a slash.
    #[error("the path must start with a slash and omit the API version, such as /users/@me")]
    NoSlash,
    /// The path contains a `.` or `..` segment, plain or encoded: it would lead to another resource than it seems to.
    #[error("the path must not contain a `.` or `..` segment, plain or encoded")]
    DotSegment,
    /// The path contains a character that a server may or may not treat as a slash.
    #[error("the path must not contain an encoded slash or a backslash")]
    EncodedSlash,
    /// The path spells a letter, a digit or one of `-._~` in percent-encoding: the same path for Discord, and another one
    /// for limits and permissions, which follow from its text.
    #[error("the path must not percent-encode letters, digits, `-`, `.`, `_` or `~`; write them as they are")]
    EncodedCharacter,
    /// The path contains two slashes in a row, or a trailing one.
    #[error("the path must not contain an empty segment: no two slashes in a row, and no trailing slash")]
    EmptySegment,
    /// The path contains a character that must be encoded.
    #[error("the path must be printable ASCII without `#`; percent-encode other characters")]
    Character,
    /// The method is not supported.
    #[error("the method must be GET, HEAD, POST, PUT, PATCH or DELETE")]
    Method,
}

/// Builds a call from its method and path. The sublimit on channel names is only detected in a complete body; a stream
/// is not read here.
///
/// # Errors
///
/// When the path is ambiguous, or the method is not supported.
pub fn raw(
    method: Method,
    path: &str,
    headers: HeaderMap,
    body: RequestBody,
    credential: Credential,
    lease: LeaseGuard,
) -> Result<RestRequest, RawRequestError> {
    if !matches!(method, Method::GET | Method::HEAD | Method::POST | Method::PUT | Method::PATCH | Method::DELETE) {
        return Err(RawRequestError::Method);
    }
    validate_path(path)?;
    let mut request = RestRequest::new(method, path, credential, lease);
    request.headers = headers;
    request.body = body;
    fill_derived_fields(&mut request);
    Ok(request)
}

/// Limits and permissions follow from the path, so it must be unambiguous.
fn validate_path(path: &str) -> Result<(), RawRequestError> {
    if !path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        return Err(RawRequestError::Character);
    }
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    let below = path.strip_prefix('/').ok_or(RawRequestError::NoSlash)?;
    // Nearly no path has one.
    let is_encoded = path.contains('%');
    let lower = if is_encoded { path.to_ascii_lowercase() } else { String::new() };
    // Double encoding matters only to a proxy that decodes twice, but is cheap to reject.
    if path.contains('\\') || ["%2f", "%5c", "%252f", "%255c"].iter().any(|slash| lower.contains(slash)) {
        return Err(RawRequestError::EncodedSlash);
    }
    let decoded = lower.replace("%25", "%").replace("%2e", ".");
    let segments = if is_encoded { decoded.strip_prefix('/').unwrap_or(&decoded) } else { below };
    for segment in segments.split('/') {
        match segment {
            "" => return Err(RawRequestError::EmptySegment),
            "." | ".." => return Err(RawRequestError::DotSegment),
            _ => {}
        }
    }
    if encodes_unreserved(path) { Err(RawRequestError::EncodedCharacter) } else { Ok(()) }
}

/// Whether the path percent-encodes a character that means the same as it is.
fn encodes_unreserved(path: &str) -> bool {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    path.as_bytes().windows(3).any(|window| {
        let [b'%', high, low] = window else { return false };
        let code = digit(*high).zip(digit(*low)).and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
        code.is_some_and(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~'))
    })
}

/// Sets what follows from path and body: the guild that the call counts for, and the sublimit.
pub(super) fn fill_derived_fields(request: &mut RestRequest) {
    let path = request.path.split_once('?').map_or(request.path.as_str(), |(path, _)| path);
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    if let ["guilds", id, ..] = parts.as_slice() {
        request.guild = id.parse().ok();
    }
    if let (&Method::PATCH, ["channels", _], RequestBody::Whole(body)) =
        (&request.method, parts.as_slice(), &request.body)
        && changes_name_or_topic(body)
    {
        request.sub = Some(SublimitKind::ChannelName);
    }
}

/// Whether a change of a channel sets its name or its topic, including to null.
fn changes_name_or_topic(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Change {
        #[serde(default, deserialize_with = "present")]
        name: bool,
        #[serde(default, deserialize_with = "present")]
        topic: bool,
    }
    fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| true)
    }
    serde_json::from_slice::<Change>(body).is_ok_and(|change| change.name || change.topic)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use guildhall_actors::gate::Effects;
    use proptest::prelude::*;

    use super::*;

    const BOT: Credential = Credential::Application(5);

    fn path(path: &str) -> Result<RestRequest, RawRequestError> {
        raw(Method::GET, path, HeaderMap::new(), RequestBody::Empty, BOT, LeaseGuard::always())
    }

    #[test]
    fn ambiguous_paths_are_rejected_with_a_reason() {
        for (text, error) in [
            ("", RawRequestError::NoSlash),
            ("users/@me", RawRequestError::NoSlash),
            ("?a=/", RawRequestError::NoSlash),
            ("http://elsewhere/", RawRequestError::NoSlash),
            ("/guilds/../users/@me", RawRequestError::DotSegment),
            ("/guilds/./1", RawRequestError::DotSegment),
            ("/guilds/1/..", RawRequestError::DotSegment),
            ("/guilds/%2e%2E/1", RawRequestError::DotSegment),
            ("/guilds/.%2e/1", RawRequestError::DotSegment),
            ("/guilds/%252e./1", RawRequestError::DotSegment),
            ("/guilds/1%2Froles", RawRequestError::EncodedSlash),
            ("/guilds/1%5croles", RawRequestError::EncodedSlash),
            ("/guilds/1%252froles", RawRequestError::EncodedSlash),
            ("/guilds\\1", RawRequestError::EncodedSlash),
            ("/ch%61nnels/1/messages", RawRequestError::EncodedCharacter),
            ("/channels/%31/messages", RawRequestError::EncodedCharacter),
            ("/audit%2Dlogs", RawRequestError::EncodedCharacter),
            ("/a/b%2ec", RawRequestError::EncodedCharacter),
            ("//elsewhere/x", RawRequestError::EmptySegment),
            ("/guilds//1", RawRequestError::EmptySegment),
            ("/guilds/1/", RawRequestError::EmptySegment),
            ("/", RawRequestError::EmptySegment),
            ("/a b", RawRequestError::Character),
            ("/a\r\nx: y", RawRequestError::Character),
            ("/a#b", RawRequestError::Character),
            ("/ü", RawRequestError::Character),
        ] {
            assert_eq!(path(text).err(), Some(error), "{text}");
        }
        assert_eq!(
            raw(Method::CONNECT, "/a", HeaderMap::new(), RequestBody::Empty, BOT, LeaseGuard::always()).err(),
            Some(RawRequestError::Method)
        );
    }

    #[test]
    fn ordinary_paths_are_accepted_unchanged() {
        for text in [
            "/users/@me",
            "/guilds/1/audit-logs?before=..%2F#".trim_end_matches('#'),
            "/a/...",
            "/a/b.c?d=/../",
            "/users/%40me",
            "/channels/1/messages/2/reactions/%F0%9F%91%8D/@me",
            "/reactions/a%3A1",
            "/a?b=%61",
        ] {
            assert_eq!(path(text).unwrap().path, text);
        }
        let request =
            raw(Method::POST, "/guilds/7/roles", HeaderMap::new(), RequestBody::Empty, BOT, LeaseGuard::always())
                .unwrap();
        assert_eq!((request.guild, request.effects), (Some(7), Effects::Creates));
    }

    #[test]
    fn channel_name_and_topic_changes_have_their_own_limit() {
        let sub = |method, path, body: &'static str| {
            raw(
                method,
                path,
                HeaderMap::new(),
                RequestBody::Whole(Bytes::from_static(body.as_bytes())),
                BOT,
                LeaseGuard::always(),
            )
            .unwrap()
            .sub
        };
        let named = Some(SublimitKind::ChannelName);
        assert_eq!(sub(Method::PATCH, "/channels/1", r#"{"name":"a"}"#), named);
        assert_eq!(sub(Method::PATCH, "/channels/1?x=1", r#"{"nsfw":true,"topic":null}"#), named);
        assert_eq!(sub(Method::PATCH, "/channels/1", r#"{"nsfw":true,"tags":[{"name":"a"}]}"#), None);
        assert_eq!(sub(Method::PATCH, "/channels/1", "name"), None);
        assert_eq!(sub(Method::PATCH, "/channels/1/messages/2", r#"{"name":"a"}"#), None);
        assert_eq!(sub(Method::POST, "/channels/1", r#"{"name":"a"}"#), None);
    }

    proptest! {
        #[test]
        fn accepted_paths_parse_the_same_in_every_url_parser(text in "/[a-z./%25?#\\\\@ 0-9eEfF-]{0,24}") {
            if path(&text).is_ok() {
                let url = url::Url::parse(&format!("http://127.0.0.1/api{text}")).unwrap();
                let (path, query) = text.split_once('?').map_or((text.as_str(), None), |(path, query)| (path, Some(query)));
                prop_assert_eq!(url.path(), format!("/api{path}"));
                prop_assert_eq!(url.query(), query);
            }
        }
    }
}
