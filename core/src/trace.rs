//! Trace context (W3C): the trace that a request or an event starts, and a span in it.
//!
//! ```text
//!  traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
//!                  └────────────── id ────────────┘ └─── span ─────┘ └ flags
//! ```
//!
//! The id stays the same for the whole trace; every part has a span of its own, and knows its parent.

use std::fmt;

use serde::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// Set by the originator of a trace that is to be recorded.
const SAMPLED: u8 = 1;

/// Length of a `traceparent`.
const LENGTH: usize = 55;

/// Id of a trace: never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(u128);

/// Id of a span: never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(u64);

/// A span of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// The trace.
    pub id: TraceId,
    /// The span.
    pub span: SpanId,
    /// Whether the originator requests that the trace is recorded, and flags of later versions.
    flags: u8,
}

impl TraceId {
    /// Creates an id from bits; zero is not valid and becomes 1.
    #[must_use]
    pub const fn new(bits: u128) -> Self {
        Self(if bits == 0 { 1 } else { bits })
    }
}

impl SpanId {
    /// Creates an id from bits; zero is not valid and becomes 1.
    #[must_use]
    pub const fn new(bits: u64) -> Self {
        Self(if bits == 0 { 1 } else { bits })
    }
}

impl TraceContext {
    /// Starts a trace that is to be recorded. Both numbers must be random, or from a hash.
    #[must_use]
    pub const fn start(id: u128, span: u64) -> Self {
        Self { id: TraceId::new(id), span: SpanId::new(span), flags: SAMPLED }
    }

    /// Parses a `traceparent`; `None` if it is invalid. From a later version it takes the fields of this version.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let (head, more) = text.as_bytes().split_at_checked(LENGTH)?;
        let head = std::str::from_utf8(head).ok()?;
        let mut parts = head.split('-');
        let (version, id, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let version = hex(version, 2)?;
        let fits = match version {
            0 => more.is_empty(),
            0xff => false,
            _ => more.is_empty() || more.starts_with(b"-"),
        };
        let (id, span, flags) = (hex(id, 32)?, hex(span, 16)?, hex(flags, 2)?);
        (fits && id != 0 && span != 0 && parts.next().is_none()).then_some(Self {
            id: TraceId(id),
            span: SpanId(u64::try_from(span).ok()?),
            flags: u8::try_from(flags).ok()?,
        })
    }

    /// A span of the same trace, from a random number.
    #[must_use]
    pub const fn child(self, span: u64) -> Self {
        Self { span: SpanId::new(span), ..self }
    }

    /// The span with this name within this one: always the same for the same name.
    #[must_use]
    pub fn child_named(self, name: &str) -> Self {
        let hash = Sha256::new().chain_update(self.span.0.to_be_bytes()).chain_update(name).finalize();
        let mut bits = [0; 8];
        bits.copy_from_slice(&hash[..8]);
        self.child(u64::from_be_bytes(bits))
    }

    /// Whether the originator requests that the trace is recorded.
    #[must_use]
    pub const fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }
}

/// Parses a fixed number of lower-case hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let fits = text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    fits.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Writes a `traceparent`.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.id, self.span, self.flags)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for TraceContext {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn traceparent_round_trips() {
        let trace = TraceContext::read(GIVEN).unwrap();
        assert_eq!(trace.to_string(), GIVEN);
        assert_eq!(trace.id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(trace.span.to_string(), "00f067aa0ba902b7");
        assert!(trace.is_sampled());
        assert!(!TraceContext::read(&GIVEN.replace("-01", "-00")).unwrap().is_sampled());
    }

    #[test]
    fn later_version_is_parsed_like_this_one() {
        let later = GIVEN.replacen("00", "cc", 1);
        for text in [later.clone(), format!("{later}-what-the-future-will-be-like")] {
            assert_eq!(TraceContext::read(&text).unwrap().to_string(), GIVEN, "{text}");
        }
    }

    #[test]
    fn invalid_traceparent_is_rejected() {
        let invalid = [
            String::new(),
            GIVEN.to_uppercase(),
            GIVEN.replacen("00", "ff", 1),
            GIVEN.replace("4bf92f3577b34da6a3ce929d0e0e4736", "00000000000000000000000000000000"),
            GIVEN.replace("00f067aa0ba902b7", "0000000000000000"),
            GIVEN.replace('-', "_"),
            GIVEN.replace("-01", "-1"),
            GIVEN.replace("-01", "-+1"),
            format!("{GIVEN}-00"),
            format!("{GIVEN} "),
            format!(" {GIVEN}"),
            format!("{}00", GIVEN.replacen("00", "cc", 1)),
            "ä".repeat(28),
        ];
        for text in invalid {
            assert_eq!(TraceContext::read(&text), None, "{text}");
        }
    }

    #[test]
    fn spans_share_the_trace_id_and_differ() {
        let trace = TraceContext::read(GIVEN).unwrap();
        let parts =
            [trace, trace.child(7), trace.child_named("a"), trace.child_named("b"), trace.child(7).child_named("a")];
        for (n, part) in parts.iter().enumerate() {
            assert_eq!(part.id, trace.id);
            assert!(parts[..n].iter().all(|other| other.span != part.span), "{part}");
        }
        assert_eq!(trace.child_named("a"), trace.child_named("a"));
    }

    #[test]
    fn zero_ids_become_one() {
        assert_eq!(TraceContext::read(&TraceContext::start(0, 0).to_string()), Some(TraceContext::start(1, 1)));
        assert_eq!(TraceContext::start(5, 5).child(0), TraceContext::start(5, 1));
    }

    proptest! {
        #[test]
        fn trace_context_round_trips(id: u128, span: u64, flags: u8) {
            let trace = TraceContext { flags, ..TraceContext::start(id, span) };
            prop_assert_eq!(TraceContext::read(&trace.to_string()), Some(trace));
        }

        #[test]
        fn arbitrary_text_does_not_panic(text: String) {
            let _ = TraceContext::read(&text);
        }
    }
}
