//! Headers of a call: those of its connection, those for Guildhall, and those for Discord.

use std::time::Duration;

use guildhall_core::{lane::Lane, trace::TraceContext};
use http::{HeaderMap, HeaderName, header};

/// Header with the lane of a call.
const LANE: &str = "x-guildhall-lane";
/// Header with the time that a call may wait for its permit, in milliseconds.
const DEADLINE: &str = "x-guildhall-deadline-ms";
/// Header with the guild whose queue the sender owns, and the fence of its claim.
const FENCE: &str = "x-guildhall-fence";
/// Header with the application whose token a call uses.
const APPLICATION: &str = "x-guildhall-application";
/// Prefix of headers that never reach Discord, nor a client from there.
const OWN_PREFIX: &str = "x-guildhall-";
/// Longest deadline that a call may have.
const MAX_DEADLINE: Duration = Duration::from_secs(600);

/// Headers of a connection, which end at each server.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Headers by which some servers take a request for another one than its first line says.
const OVERRIDES: [HeaderName; 5] = [
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-method-override"),
    HeaderName::from_static("x-original-url"),
    HeaderName::from_static("x-rewrite-url"),
];

/// What a caller wants of Guildhall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wishes {
    pub(super) lane: Option<Lane>,
    pub(super) deadline: Option<Duration>,
    pub(super) fence: Option<Fence>,
    /// The application whose token is used.
    pub(super) application: Option<u64>,
    pub(super) trace: Option<TraceContext>,
}

/// The claim of a process that sends calls of a guild's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fence {
    pub(super) guild: u64,
    pub(super) number: u64,
}

/// A header is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HeaderError {
    #[error("the request has more than one Host header")]
    Hosts,
    #[error("X-Guildhall-Lane must be interactive, operation or background")]
    Lane,
    #[error("X-Guildhall-Fence must be the id of a guild and the fence of its queue, such as 1571715189416398849:7")]
    Fence,
    #[error("X-Guildhall-Application must be the id of an application")]
    Application,
    #[error("X-Guildhall-Deadline-Ms must be a number of milliseconds, at most 600000")]
    Deadline,
}

impl Wishes {
    /// Reads them from the headers of a request.
    pub(super) fn read(headers: &HeaderMap) -> Result<Self, HeaderError> {
        if headers.get_all(header::HOST).iter().count() > 1 {
            return Err(HeaderError::Hosts);
        }
        let lane = match one(headers, LANE) {
            Some(text) => Some(text.and_then(Lane::from_name).ok_or(HeaderError::Lane)?),
            None => None,
        };
        let millis = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().map(Duration::from_millis).filter(|wait| is_number && *wait <= MAX_DEADLINE)
        };
        let deadline = match one(headers, DEADLINE) {
            Some(text) => Some(text.and_then(millis).ok_or(HeaderError::Deadline)?),
            None => None,
        };
        let fence = match one(headers, FENCE) {
            Some(text) => Some(text.and_then(read_fence).ok_or(HeaderError::Fence)?),
            None => None,
        };
        let application = match one(headers, APPLICATION) {
            Some(text) => Some(text.and_then(read_number).ok_or(HeaderError::Application)?),
            None => None,
        };
        // An invalid or repeated one is ignored, as its specification says.
        let trace = one(headers, "traceparent").flatten().and_then(TraceContext::read);
        Ok(Self { lane, deadline, fence, application, trace })
    }
}

/// A number in its only form.
fn read_number(text: &str) -> Option<u64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain)
}

fn read_fence(text: &str) -> Option<Fence> {
    let (guild, number) = text.split_once(':')?;
    // Fences of the store are signed numbers of 64 bits, as are ids.
    let number_of = |text| read_number(text).filter(|number| i64::try_from(*number).is_ok());
    Some(Fence { guild: number_of(guild).filter(|guild| *guild > 0)?, number: number_of(number)? })
}

/// The only value of a header; the inner `None` if it is repeated or not a text.
fn one<'a>(headers: &'a HeaderMap, name: &str) -> Option<Option<&'a str>> {
    let mut values = headers.get_all(name).iter();
    let (first, second) = (values.next()?, values.next());
    Some(first.to_str().ok().filter(|_| second.is_none()))
}

/// Removes what belongs to a connection: it ends here, in both directions.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Removes what only Guildhall may say or read.
pub(super) fn remove_own(headers: &mut HeaderMap) {
    let own: Vec<HeaderName> = headers.keys().filter(|name| name.as_str().starts_with(OWN_PREFIX)).cloned().collect();
    for name in &own {
        headers.remove(name);
    }
}

/// Removes what Discord must not receive. The transport sets the credential, the host and the length itself.
pub(super) fn prepare_for_discord(headers: &mut HeaderMap) {
    remove_hop_by_hop(headers);
    remove_own(headers);
    for name in &OVERRIDES {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn wishes_are_read_or_refused() {
        let wishes = Wishes::read(&headers(&[(LANE, "background"), (DEADLINE, "0")])).unwrap();
        assert_eq!((wishes.lane, wishes.deadline), (Some(Lane::Background), Some(Duration::ZERO)));
        assert_eq!(Wishes::read(&HeaderMap::new()), Ok(Wishes::default()));
        assert_eq!(Wishes::read(&headers(&[("host", "a"), ("host", "b")])), Err(HeaderError::Hosts));
        for lane in ["", "Interactive", "urgent"] {
            assert_eq!(Wishes::read(&headers(&[(LANE, lane)])), Err(HeaderError::Lane), "{lane}");
        }
        let fenced = Wishes::read(&headers(&[(FENCE, "7:12"), (APPLICATION, "42")])).unwrap();
        assert_eq!((fenced.fence, fenced.application), (Some(Fence { guild: 7, number: 12 }), Some(42)));
        for fence in ["", "7", "7:", ":12", "0:12", "7:12:1", "7:-1", "7:+1", "07:1", " 7:1", "7:9223372036854775808"] {
            assert_eq!(Wishes::read(&headers(&[(FENCE, fence)])), Err(HeaderError::Fence), "{fence}");
        }
        assert_eq!(Wishes::read(&headers(&[(FENCE, "7:1"), (FENCE, "7:1")])), Err(HeaderError::Fence));
        assert_eq!(Wishes::read(&headers(&[(APPLICATION, "x")])), Err(HeaderError::Application));
        assert_eq!(Wishes::read(&headers(&[(LANE, "operation"), (LANE, "operation")])), Err(HeaderError::Lane));
        for deadline in ["", "-1", "+1", "1.5", "600001", "99999999999999999999", "soon"] {
            assert_eq!(Wishes::read(&headers(&[(DEADLINE, deadline)])), Err(HeaderError::Deadline), "{deadline}");
        }
    }

    #[test]
    fn only_end_to_end_headers_reach_discord() {
        let mut all = headers(&[
            ("connection", "close, X-Private"),
            ("connection", "te"),
            ("x-private", "1"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("proxy-authorization", "secret"),
            ("x-guildhall-lane", "interactive"),
            ("x-guildhall-anything", "1"),
            ("x-http-method-override", "DELETE"),
            ("x-audit-log-reason", "why"),
            ("cookie", "a=1"),
            ("cookie", "b=2"),
            ("content-type", "application/json"),
        ]);
        prepare_for_discord(&mut all);
        let left: Vec<(&str, &str)> =
            all.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        let mut expected = vec![
            ("content-type", "application/json"),
            ("cookie", "a=1"),
            ("cookie", "b=2"),
            ("x-audit-log-reason", "why"),
        ];
        expected.sort_unstable();
        let mut left = left;
        left.sort_unstable();
        assert_eq!(left, expected);
    }
}
