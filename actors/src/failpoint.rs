//! Places where a test ends the process or makes a part panic, to see what the next one makes of it.
//!
//! Without the feature `failpoints` nothing of this is in the program. With it, the environment names a place and how
//! many times it is passed first, and the process ends there as it would by `kill -9`: nothing is flushed, nothing is
//! dropped, nobody is told. Or it names a part, and that panics after it has taken so many messages, or after so many ticks of
//! 10 ms if it takes none.
//!
//! ```text
//! GUILDHALL_FAILPOINT=before_outcome:2
//! GUILDHALL_FAILPOINT=panic:token_bucket:100
//! GUILDHALL_FAILPOINT=poison:event_router:some text
//! ```
//!
//! `GUILDHALL_FAILPOINT_HOLD=supervision,watchdog:file` holds the end of the process until there is that file.

use std::convert::Infallible;
use std::future::Future;

use crate::supervision::Part;

/// A step boundary on an operation's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The operation waits for a permit or for an answer to a read. Nothing of it is stored; what came before it is.
    WaitingForPermit,
    /// The permit is granted, and nothing of that is stored yet.
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
    pub const ALL: [Self; 9] = [
        Self::WaitingForPermit,
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
            Self::WaitingForPermit => "waiting_for_permit",
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

/// A part takes a message, or begins another round of its work; it may panic here.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn message(_: Part) {}

/// A part takes a message, or begins another round of its work; it may panic here.
#[cfg(feature = "failpoints")]
pub fn message(part: Part) {
    armed::message(part);
}

/// For a part that takes no messages of its own: it may panic here at each tick. Never returns.
#[cfg(not(feature = "failpoints"))]
pub async fn ticks(_: Part) -> Infallible {
    std::future::pending().await
}

/// For a part that takes no messages of its own: it may panic here at each tick. Never returns.
#[cfg(feature = "failpoints")]
pub async fn ticks(part: Part) -> Infallible {
    armed::ticks(part).await
}

/// Runs a task that may panic at each [tick](ticks), whatever it waits for.
pub async fn with_ticks<F: Future>(part: Part, task: F) -> F::Output {
    tokio::select! {
        biased;
        output = task => output,
        never = ticks(part) => match never {},
    }
}

/// What ends the process once a part has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ender {
    /// The thread that takes the last steps.
    Supervision,
    /// The thread that ends the process in any case.
    Watchdog,
}

/// What ends the process may be held here until a test goes on.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn hold(_: Ender) {}

/// What ends the process may be held here until a test goes on.
#[cfg(feature = "failpoints")]
pub fn hold(ender: Ender) {
    armed::hold(ender);
}

/// A part begins to work on an input with this text; it may panic here.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn input<T: AsRef<str>>(_: Part, _: impl FnOnce() -> T) {}

/// A part begins to work on an input with this text; it may panic here.
#[cfg(feature = "failpoints")]
pub fn input<T: AsRef<str>>(part: Part, text: impl FnOnce() -> T) {
    armed::input(part, text);
}

#[cfg(feature = "failpoints")]
mod armed {
    use std::convert::Infallible;
    use std::path::Path;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::{Ender, Part, Point};
    use crate::crash;

    const TICK: Duration = Duration::from_millis(10);

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Target {
        Point(Point),
        Part(Part),
    }

    /// What fails, and how many times to pass it first.
    static ARMED: LazyLock<Option<(Target, AtomicU64)>> = LazyLock::new(|| {
        let setting = std::env::var("GUILDHALL_FAILPOINT").ok().filter(|setting| !setting.starts_with(POISON))?;
        let armed = parse(&setting).map(|(target, passes)| (target, AtomicU64::new(passes)));
        assert!(
            armed.is_some(),
            "GUILDHALL_FAILPOINT={setting} names no place; it looks like before_outcome:2 or panic:token_bucket:100"
        );
        armed
    });

    const POISON: &str = "poison:";

    /// The part that panics, and the text of the inputs that it panics on, each time.
    static POISONED: LazyLock<Option<(Part, String)>> = LazyLock::new(|| {
        let setting = std::env::var("GUILDHALL_FAILPOINT").ok()?;
        let poison = setting.strip_prefix(POISON)?;
        let parsed = parse_poison(poison);
        assert!(
            parsed.is_some(),
            "GUILDHALL_FAILPOINT={setting} names no part; it looks like poison:event_router:text"
        );
        parsed
    });

    fn parse_poison(poison: &str) -> Option<(Part, String)> {
        let (name, text) = poison.split_once(':')?;
        let part = Part::ALL.iter().find(|part| part.name() == name)?;
        Some((*part, text.to_owned()))
    }

    pub(super) fn input<T: AsRef<str>>(part: Part, text: impl FnOnce() -> T) {
        if let Some((poisoned, poison)) = &*POISONED
            && *poisoned == part
            && text().as_ref().contains(poison)
        {
            panic!("failpoint: {} works on an input with {poison}", part.name());
        }
    }

    fn parse(setting: &str) -> Option<(Target, u64)> {
        if let Some(part) = setting.strip_prefix("panic:") {
            let (name, passes) = part.split_once(':').unwrap_or((part, "0"));
            let part = Part::ALL.iter().find(|part| part.name() == name)?;
            return Some((Target::Part(*part), passes.parse().ok()?));
        }
        let (name, passes) = setting.split_once(':').unwrap_or((setting, "0"));
        let point = Point::ALL.into_iter().find(|point| point.name() == name)?;
        Some((Target::Point(point), passes.parse().ok()?))
    }

    /// Whether this fails now.
    fn fails(target: Target) -> bool {
        let Some((armed, passes)) = &*ARMED else { return false };
        *armed == target && passes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_err()
    }

    pub(super) fn pass(point: Point) {
        if fails(Target::Point(point)) {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    }

    pub(super) fn message(part: Part) {
        if fails(Target::Part(part)) {
            // Once: a part that is started again goes on.
            if let Some((_, passes)) = &*ARMED {
                passes.store(u64::MAX, Ordering::SeqCst);
            }
            // It is the part that fails, whatever it works on.
            let _nothing = crash::enter(None);
            panic!("failpoint of {}", part.name());
        }
    }

    pub(super) async fn ticks(part: Part) -> Infallible {
        if !matches!(&*ARMED, Some((Target::Part(armed), _)) if *armed == part) {
            return std::future::pending().await;
        }
        loop {
            message(part);
            tokio::time::sleep(TICK).await;
        }
    }

    /// Waits until the file exists that `GUILDHALL_FAILPOINT_HOLD` names, if it names this one.
    pub(super) fn hold(ender: Ender) {
        let Ok(setting) = std::env::var("GUILDHALL_FAILPOINT_HOLD") else { return };
        let (held, file) = setting.split_once(':').unwrap_or_default();
        let name = match ender {
            Ender::Supervision => "supervision",
            Ender::Watchdog => "watchdog",
        };
        while held.split(',').any(|held| held == name) && !Path::new(file).exists() {
            std::thread::sleep(TICK);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_failpoint_is_a_place_or_a_part_and_how_often_to_pass_it() {
            assert_eq!(parse("after_send"), Some((Target::Point(Point::AfterSend), 0)));
            assert_eq!(parse("before_outcome:2"), Some((Target::Point(Point::BeforeOutcome), 2)));
            assert_eq!(parse("panic:token_bucket:100"), Some((Target::Part(Part::TokenBucket), 100)));
            assert_eq!(parse("panic:heartbeat"), Some((Target::Part(Part::Heartbeat), 0)));
            assert_eq!(parse_poison("shard:a:b"), Some((Part::Shard, "a:b".to_owned())));
            assert_eq!(parse_poison("nobody:a"), None);
            for wrong in ["panic:nobody:1", "nowhere", "after_send:x", "panic"] {
                assert_eq!(parse(wrong), None, "{wrong}");
            }
        }
    }
}
