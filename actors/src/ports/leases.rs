//! Port to leases: named locks with an expiry, held by one holder at a time among all processes.
//!
//! ```text
//!  acquire ──▶ Lease { token, fence, until } ──renew──▶ the same, with a later expiry ──release──▶ free
//!                                     └── it expires ──────────────────────────────────────────▶ free
//! ```

use std::{fmt, future::Future, pin::Pin, time::Duration};

use tokio::time::Instant;

/// Pending call to the lease store.
pub type LeaseFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, LeaseError>> + Send + 'a>>;

/// Why a call to the lease store failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// There was no valid response in time. The call may have taken effect nevertheless.
    #[error("the lease store is unreachable ({0}); rely on a lease only until it expires, and retry")]
    Unreachable(String),
    /// There are no random bytes for a token. No call was made.
    #[error("the system returned no random bytes, so no lease token can be created; check its random source")]
    NoRandomBytes,
}

/// Name of a lease: 1 to 100 letters, digits, `_`, `-`, `.` and `:`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseName(String);

/// A text that is not a valid lease name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a valid lease name; use 1 to 100 letters, digits, and _ - . :")]
pub struct InvalidLeaseName(
    /// The text.
    pub String,
);

impl LeaseName {
    const MAX_LENGTH: usize = 100;

    /// Creates a name.
    ///
    /// # Errors
    ///
    /// When the text is not a valid name.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidLeaseName> {
        let text = text.into();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b':');
        if (1..=Self::MAX_LENGTH).contains(&text.len()) && text.bytes().all(plain) {
            Ok(Self(text))
        } else {
            Err(InvalidLeaseName(text))
        }
    }

    /// The lease on a guild, for bulk changes of it.
    #[must_use]
    pub fn of_guild(guild: u64) -> Self {
        Self(guild.to_string())
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Identifies one acquisition, and proves it: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseToken([u8; 16]);

impl LeaseToken {
    /// Creates a token from these bits, which should be random.
    #[must_use]
    pub const fn new(bits: [u8; 16]) -> Self {
        Self(bits)
    }

    /// The bits.
    #[must_use]
    pub const fn bits(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for LeaseToken {
    /// Hides the token: with it, a reader of the log could end the lease.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseToken(…)")
    }
}

/// Grows with every acquisition of a name: a request with an older fence comes from a process that has lost the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseFence(
    /// The number.
    pub u64,
);

/// A lease that was held when it was requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its name.
    pub name: LeaseName,
    /// Needed to renew and release it.
    pub token: LeaseToken,
    /// To be passed on with everything that is done under the lease.
    pub fence: LeaseFence,
    /// Until when to rely on it, by the clock of this process. The lease itself expires no earlier.
    pub until: Instant,
}

impl Lease {
    /// The maximum time to live; longer requests get this.
    pub const MAX_TTL: Duration = Duration::from_secs(24 * 3_600);
    /// The minimum time to live.
    pub const MIN_TTL: Duration = Duration::from_millis(1);

    /// The time to live for a request: whole milliseconds within the bounds.
    #[must_use]
    pub fn clamp_ttl(ttl: Duration) -> Duration {
        let millis = ttl.clamp(Self::MIN_TTL, Self::MAX_TTL).as_millis();
        Duration::from_millis(u64::try_from(millis).expect("invariant: a day has few milliseconds"))
    }

    /// Whether the lease is still valid, with this margin for what is about to be done.
    #[must_use]
    pub fn holds(&self, now: Instant, margin: Duration) -> bool {
        now + margin < self.until
    }
}

/// Stores leases for all processes. It uses one clock of its own: the clocks of the processes do not matter.
///
/// A held lease is never certain. A process may be stopped between the check of its lease and what the lease protects,
/// and a store may lose its data. So a holder
///
/// - relies on a lease only until [`Lease::until`]. That is computed from *before* the call was sent, by a monotonic
///   clock, so it is never later than the expiry in the store; the holder checks it again just before each step that
///   others must not take at the same time ([`Lease::holds`]);
/// - passes the [fence](Lease::fence) on with what it does, to receivers that can reject an older one: fences grow with
///   every acquisition of a name, across expiry, release, restarts and processes, and even when the store has lost the
///   name;
/// - renews well before the expiry, and treats a missing response as a failure: the expiry does not change.
///
/// An acquisition whose response is lost may have succeeded. Its token is unknown, so it expires by itself.
///
/// Every call ends within a timeout of the implementation.
pub trait LeaseStore: Send + Sync + 'static {
    /// Acquires a free lease. `holder` identifies the holder for people. `None` if the lease is held, possibly by the
    /// caller.
    fn acquire<'a>(&'a self, name: &'a LeaseName, holder: &'a str, ttl: Duration) -> LeaseFuture<'a, Option<Lease>>;

    /// Sets the expiry of a held lease to `ttl` from now, which may be earlier than before. `None` if it is lost: it
    /// has expired, was released, or has another holder.
    fn renew<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> LeaseFuture<'a, Option<Lease>>;

    /// Releases a lease. `false` if the caller did not hold it; then nothing has changed.
    fn release<'a>(&'a self, lease: &'a Lease) -> LeaseFuture<'a, bool>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_short() {
        assert_eq!(LeaseName::of_guild(17), LeaseName::new("17").unwrap());
        assert!(LeaseName::new("a".repeat(100)).is_ok() && LeaseName::new("part:1.b_c-D").is_ok());
        for text in ["", "a b", "ä", "{x}", "a\n", &"a".repeat(101)] {
            assert_eq!(LeaseName::new(text), Err(InvalidLeaseName(text.to_owned())));
        }
    }

    #[test]
    fn ttl_is_in_whole_milliseconds_within_bounds() {
        let clamped = |micros| Lease::clamp_ttl(Duration::from_micros(micros)).as_micros();
        assert_eq!((clamped(0), clamped(1_999), clamped(u64::MAX)), (1_000, 1_000, Lease::MAX_TTL.as_micros()));
    }

    #[test]
    fn lease_holds_until_its_end_minus_the_margin() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let name = LeaseName::of_guild(1);
        let lease = Lease { name, token: LeaseToken::new([7; 16]), fence: LeaseFence(1), until: now + 3 * second };
        assert!(lease.holds(now, 2 * second) && lease.holds(now + 2 * second, Duration::ZERO));
        assert!(!lease.holds(now + second, 2 * second) && !lease.holds(now + 3 * second, Duration::ZERO));
        assert_eq!(format!("{:?}", lease.token), "LeaseToken(…)", "a token must not be shown");
    }
}
