//! Points at which a test ends the process or makes a part panic, to see how the next process recovers.
//!
//! Without the feature `failpoints` none of this is compiled. With it, the environment names a point and how many times
//! it is passed first, and the process ends there as by `kill -9`: nothing is flushed, dropped or reported. Or it names
//! a part, which panics after that many messages, or after that many ticks of 10 ms if it receives none.
//!
//! ```text
//! GUILDHALL_FAILPOINT=before_outcome:2
//! GUILDHALL_FAILPOINT=panic:token_bucket:100
//! GUILDHALL_FAILPOINT=poison:event_router:some text
//! ```
//!
//! `GUILDHALL_FAILPOINT_HOLD=supervision,watchdog:file` delays the end of the process until that file exists.

use std::convert::Infallible;
use std::future::Future;

use crate::supervision::Part;

guildhall_core::named_enum! {
    /// A step boundary in the life of an operation, in the order in which it passes them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Point {
        /// The operation waits for a permit or for the response to a read. Nothing of it is stored; what came before it
        /// is.
        WaitingForPermit = "waiting_for_permit",
        /// The permit is granted, and that is not stored yet.
        BeforeIntent = "before_intent",
        /// The intent to send the call is stored.
        AfterIntent = "after_intent",
        /// The call has passed the gate, and nothing was sent.
        BeforeSend = "before_send",
        /// Discord has responded, and the response was not processed.
        AfterSend = "after_send",
        /// The outcome is known, and not stored yet.
        BeforeOutcome = "before_outcome",
        /// The outcome is stored.
        AfterOutcome = "after_outcome",
        /// A batch of writes is complete, but not committed.
        BeforeCommit = "before_commit",
        /// A batch of writes is committed, and that was not reported yet.
        AfterCommit = "after_commit",
    }
}

/// Passes a point; the process may end here.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn pass(_: Point) {}

/// Passes a point; the process may end here.
#[cfg(feature = "failpoints")]
pub fn pass(point: Point) {
    armed::pass(point);
}

/// A part receives a message, or starts another round of its work; it may panic here.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn message(_: Part) {}

/// A part receives a message, or starts another round of its work; it may panic here.
#[cfg(feature = "failpoints")]
pub fn message(part: Part) {
    armed::message(part);
}

/// For a part that receives no messages: it may panic here at each tick. Never returns.
#[cfg(not(feature = "failpoints"))]
pub async fn ticks(_: Part) -> Infallible {
    std::future::pending().await
}

/// For a part that receives no messages: it may panic here at each tick. Never returns.
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

/// The threads that end the process once a part has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ender {
    /// The thread that runs the exit hooks.
    Supervision,
    /// The thread that ends the process in any case.
    Watchdog,
}

/// The end of the process may be delayed here until a test continues.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn hold(_: Ender) {}

/// The end of the process may be delayed here until a test continues.
#[cfg(feature = "failpoints")]
pub fn hold(ender: Ender) {
    armed::hold(ender);
}

/// A part starts to process an input with this text; it may panic here.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn input<T: AsRef<str>>(_: Part, _: impl FnOnce() -> T) {}

/// A part starts to process an input with this text; it may panic here.
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

    /// What fails, and how many times it is passed first.
    static ARMED: LazyLock<Option<(Target, AtomicU64)>> = LazyLock::new(|| {
        let setting = std::env::var("GUILDHALL_FAILPOINT").ok().filter(|setting| !setting.starts_with(POISON))?;
        let armed = parse(&setting).map(|(target, passes)| (target, AtomicU64::new(passes)));
        assert!(
            armed.is_some(),
            "GUILDHALL_FAILPOINT={setting} names no failpoint; use the form before_outcome:2 or \
             panic:token_bucket:100"
        );
        armed
    });

    const POISON: &str = "poison:";

    /// The part that panics, and the text of the inputs on which it panics each time.
    static POISONED: LazyLock<Option<(Part, String)>> = LazyLock::new(|| {
        let setting = std::env::var("GUILDHALL_FAILPOINT").ok()?;
        let poison = setting.strip_prefix(POISON)?;
        let parsed = parse_poison(poison);
        assert!(parsed.is_some(), "GUILDHALL_FAILPOINT={setting} names no part; use the form poison:event_router:text");
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
            panic!("failpoint: {} processes an input with {poison}", part.name());
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

    /// Whether it fails now.
    fn fails(target: Target) -> bool {
        let Some((armed, passes)) = &*ARMED else { return false };
        *armed == target
            && passes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |remaining| remaining.checked_sub(1)).is_err()
    }

    pub(super) fn pass(point: Point) {
        if fails(Target::Point(point)) {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    }

    pub(super) fn message(part: Part) {
        if fails(Target::Part(part)) {
            // Once: a restarted part continues.
            if let Some((_, passes)) = &*ARMED {
                passes.store(u64::MAX, Ordering::SeqCst);
            }
            // The failure is that of the part, whatever input it processes.
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

    /// Waits until the file in `GUILDHALL_FAILPOINT_HOLD` exists, if this thread is named there.
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
        fn failpoint_is_a_point_or_a_part_with_a_count() {
            assert_eq!(parse("after_send"), Some((Target::Point(Point::AfterSend), 0)));
            assert_eq!(parse("before_outcome:2"), Some((Target::Point(Point::BeforeOutcome), 2)));
            assert_eq!(parse("panic:token_bucket:100"), Some((Target::Part(Part::TokenBucket), 100)));
            assert_eq!(parse("panic:heartbeat"), Some((Target::Part(Part::Heartbeat), 0)));
            assert_eq!(parse_poison("shard:a:b"), Some((Part::Shard, "a:b".to_owned())));
            assert_eq!(parse_poison("nobody:a"), None);
            for invalid in ["panic:nobody:1", "nowhere", "after_send:x", "panic"] {
                assert_eq!(parse(invalid), None, "{invalid}");
            }
        }
    }
}
