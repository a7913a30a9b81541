//! The port to leases: named locks with an end, which one holder at a time has, over all processes.
//!
//! ```text
//!  acquire ──▶ Lease { token, fence, until } ──renew──▶ the same, with a later end ──release──▶ free
//!                                     └── its end passes ──────────────────────────────────▶ free
//! ```

use std::{fmt, future::Future, pin::Pin, time::Duration};

use tokio::time::Instant;

/// A call to leases under way.
pub type LeaseFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, LeaseError>> + Send + 'a>>;

/// Why a lease could not be asked about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// There was no good answer in time. What was asked for may have been done all the same.
    #[error("leases cannot be reached ({0}); count on a lease until its end and no longer, and ask again")]
    Unreachable(String),
    /// There are no random bytes to make a token from. Nothing was asked.
    #[error("the system gives no random bytes, so no lease can be told from another; see to its random source")]
    Chance,
}

/// What a lease is called: 1 to 100 letters, digits, `_`, `-`, `.` and `:`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseName(String);

/// A text that names no lease.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no lease; use 1 to 100 letters, digits, and _ - . :")]
pub struct InvalidLeaseName(
    /// The text.
    pub String,
);

impl LeaseName {
    const LONGEST: usize = 100;

    /// Takes a text for a name.
    ///
    /// # Errors
    ///
    /// When it is none.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidLeaseName> {
        let text = text.into();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b':');
        if (1..=Self::LONGEST).contains(&text.len()) && text.bytes().all(plain) {
            Ok(Self(text))
        } else {
            Err(InvalidLeaseName(text))
        }
    }

    /// The lease on a guild, for whoever changes much of it.
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

/// Tells one acquisition from all others, and proves it: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseToken([u8; 16]);

impl LeaseToken {
    /// The token of these bits, which should be random.
    #[must_use]
    pub const fn new(bits: [u8; 16]) -> Self {
        Self(bits)
    }

    /// Its bits.
    #[must_use]
    pub const fn bits(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for LeaseToken {
    /// Not the token itself: whoever reads it in a log could end the lease with it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseToken(…)")
    }
}

/// Grows with every acquisition of a name: what carries an older one comes from somebody who has lost the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseFence(
    /// The number.
    pub u64,
);

/// A lease that was held when it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its name.
    pub name: LeaseName,
    /// What it is renewed and released by.
    pub token: LeaseToken,
    /// What to pass on with all that is done under it.
    pub fence: LeaseFence,
    /// When to stop counting on it, by this process's clock. The lease itself ends no earlier.
    pub until: Instant,
}

impl Lease {
    /// The longest that a lease is given for at once; whoever asks for more gets this.
    pub const LONGEST: Duration = Duration::from_secs(24 * 3_600);
    /// The shortest.
    pub const SHORTEST: Duration = Duration::from_millis(1);

    /// What is given to whoever asks for so long: whole milliseconds within the bounds.
    #[must_use]
    pub fn given(ttl: Duration) -> Duration {
        let millis = ttl.clamp(Self::SHORTEST, Self::LONGEST).as_millis();
        Duration::from_millis(u64::try_from(millis).expect("invariant: a day has few milliseconds"))
    }

    /// Whether it can still be counted on, with this much left for what is about to be done.
    #[must_use]
    pub fn holds(&self, now: Instant, margin: Duration) -> bool {
        now + margin < self.until
    }
}

/// Keeps leases for all processes, by one clock, which is the keeper's own: how the clocks of processes stand does not matter.
///
/// Holding a lease is never more than very likely. A process may be halted between looking at its lease and doing what the
/// lease is for, and a keeper may lose what it knew. So a holder
///
/// - counts on a lease until [`Lease::until`] and no longer. That is reckoned from *before* the call was sent, by a clock that
///   is never set, so it is never later than the end that the keeper knows; and it looks at it again just before each step that
///   others must not take at the same time ([`Lease::holds`]);
/// - passes the [fence](Lease::fence) on with what it does, to whoever can refuse an older one: fences grow with every
///   acquisition of a name, over expiry, release, restarts and processes, and even when the keeper has forgotten the name;
/// - renews well before the end, and takes an answer that does not come for no answer: the end stays where it was.
///
/// An acquisition whose answer is lost may have been made. Nobody knows its token, so it ends by itself after its time.
///
/// Every call ends within a time limit of the implementation's own.
pub trait LeaseStore: Send + Sync + 'static {
    /// Takes a lease that nobody has. `holder` says who, for people to read. `None` if somebody has it, who may be the asker.
    fn acquire<'a>(&'a self, name: &'a LeaseName, holder: &'a str, ttl: Duration) -> LeaseFuture<'a, Option<Lease>>;

    /// Moves the end of a lease that is still held to `ttl` from now, which may be earlier than it was. `None` if it is lost:
    /// it has ended, was released, or is somebody else's.
    fn renew<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> LeaseFuture<'a, Option<Lease>>;

    /// Gives a lease back. `false` if there was nothing to give back, and then nothing has changed, whoever holds it now.
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
    fn a_lease_is_given_for_whole_milliseconds_within_bounds() {
        let given = |micros| Lease::given(Duration::from_micros(micros)).as_micros();
        assert_eq!((given(0), given(1_999), given(u64::MAX)), (1_000, 1_000, Lease::LONGEST.as_micros()));
    }

    #[test]
    fn a_lease_holds_until_its_end_less_what_is_left_for_the_work() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let name = LeaseName::of_guild(1);
        let lease = Lease { name, token: LeaseToken::new([7; 16]), fence: LeaseFence(1), until: now + 3 * second };
        assert!(lease.holds(now, 2 * second) && lease.holds(now + 2 * second, Duration::ZERO));
        assert!(!lease.holds(now + second, 2 * second) && !lease.holds(now + 3 * second, Duration::ZERO));
        assert_eq!(format!("{:?}", lease.token), "LeaseToken(…)", "a token must not be told");
    }
}
