//! Places where a test ends the process, to see what the next one makes of it.
//!
//! Without the feature `failpoints` nothing of this is in the program. With it, the environment names a place and how
//! many times it is passed first, and the process ends there as it would by `kill -9`: nothing is flushed, nothing is
//! dropped, nobody is told.
//!
//! ```text
//! GUILDHALL_FAILPOINT=before_outcome:2
//! ```

/// A step boundary on an operation's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The operation's turn has come, and nothing is kept of that yet.
    BeforeIntent,
    /// The store has kept that it is about to be sent.
    AfterIntent,
    /// The call has passed the gate, and nothing of it has left.
    BeforeSend,
    /// Discord has answered, and nobody has seen the answer.
    AfterSend,
    /// The outcome is known, and nothing is kept of it yet.
    BeforeOutcome,
    /// The store has kept the outcome.
    AfterOutcome,
    /// A batch of writes is complete, but not committed.
    BeforeCommit,
    /// A batch of writes is committed, and nobody has been told.
    AfterCommit,
}

impl Point {
    /// All of them, in the order of an operation's way.
    pub const ALL: [Self; 8] = [
        Self::BeforeIntent,
        Self::AfterIntent,
        Self::BeforeSend,
        Self::AfterSend,
        Self::BeforeOutcome,
        Self::AfterOutcome,
        Self::BeforeCommit,
        Self::AfterCommit,
    ];

    /// Its name in the environment.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BeforeIntent => "before_intent",
            Self::AfterIntent => "after_intent",
            Self::BeforeSend => "before_send",
            Self::AfterSend => "after_send",
            Self::BeforeOutcome => "before_outcome",
            Self::AfterOutcome => "after_outcome",
            Self::BeforeCommit => "before_commit",
            Self::AfterCommit => "after_commit",
        }
    }
}

/// Passes a place; the process may end here.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn pass(_: Point) {}

/// Passes a place; the process may end here.
#[cfg(feature = "failpoints")]
pub fn pass(point: Point) {
    armed::pass(point);
}

#[cfg(feature = "failpoints")]
mod armed {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::Point;

    /// Where to end, and how many times to pass first.
    static ARMED: LazyLock<Option<(Point, AtomicU64)>> = LazyLock::new(|| {
        let setting = std::env::var("GUILDHALL_FAILPOINT").ok()?;
        let (name, passes) = setting.split_once(':').unwrap_or((&setting, "0"));
        let point = Point::ALL.into_iter().find(|point| point.name() == name);
        let passes = passes.parse().ok().map(AtomicU64::new);
        let armed = point.zip(passes);
        assert!(armed.is_some(), "GUILDHALL_FAILPOINT={setting} names no place; it looks like before_outcome:2");
        armed
    });

    pub(super) fn pass(point: Point) {
        let Some((armed, passes)) = &*ARMED else { return };
        if *armed == point
            && passes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_err()
        {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    }
}
