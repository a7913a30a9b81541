//! Which parts run, and whether the end of one ends the process. It only decides; [`Supervision`](super::Supervision)
//! acts.

use std::collections::BTreeMap;
use std::fmt;

use super::Part;
use crate::crash::Input;

/// Why a part ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// It panicked.
    Panicked(PanicInfo),
    /// It returned, with this error if it had one.
    Returned(Option<String>),
    /// It was dropped before it returned: its runtime, its arbiter or all its addresses are gone.
    Dropped,
}

impl fmt::Display for EndCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panicked(PanicInfo { message, .. }) => write!(f, "{}: {message}", self.summary()),
            Self::Returned(Some(error)) => write!(f, "{}: {error}", self.summary()),
            Self::Returned(None) | Self::Dropped => write!(f, "{}", self.summary()),
        }
    }
}

impl EndCause {
    /// The cause without the message: a message may contain data that not every reader may see, and only the log
    /// removes secrets.
    #[must_use]
    pub fn summary(&self) -> String {
        match self {
            Self::Panicked(PanicInfo { location: Some(location), .. }) => format!("panicked at {location}"),
            Self::Panicked(PanicInfo { location: None, .. }) => "panicked".to_owned(),
            Self::Returned(_) => "returned".to_owned(),
            Self::Dropped => "was dropped".to_owned(),
        }
    }
}

/// Location and message of a panic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PanicInfo {
    /// File, line and column, if they are known.
    pub location: Option<String>,
    /// The message.
    pub message: String,
    /// The input of the thread, if a restart would give it to the next process again.
    pub input: Option<Input>,
}

/// The end of a part that the process cannot continue without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartEnd {
    /// The part.
    pub part: Part,
    /// Why it ended.
    pub cause: EndCause,
}

impl PartEnd {
    /// Whether this, noticed after `other`, explains the end of the process better: a panic ends the parts that wait
    /// for the panicking one, and a thread that panics ends what runs on it. Either may be noticed first.
    #[must_use]
    pub fn explains_better_than(&self, other: &Self) -> bool {
        match (&self.cause, &other.cause) {
            (EndCause::Panicked(later), EndCause::Panicked(first)) => later == first && self.part != other.part,
            (EndCause::Panicked(_), EndCause::Returned(_) | EndCause::Dropped) => true,
            (EndCause::Returned(_) | EndCause::Dropped, _) => false,
        }
    }
}

impl fmt::Display for PartEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.part.name(), self.cause)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// No part may end.
    #[default]
    Running,
    /// Parts end because of an orderly shutdown.
    Stopping,
    /// The process ends because a part ended.
    Ending,
}

/// Consequence of the end of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndAction {
    /// The process shuts down anyway.
    Expected,
    /// The process has to end.
    EndProcess,
    /// The process is already ending; this may be the cause.
    AlreadyEnding,
}

/// The running parts.
#[derive(Debug, Default)]
pub(super) struct Registry {
    phase: Phase,
    running: BTreeMap<Part, usize>,
}

impl Registry {
    /// Number of running parts, by part.
    pub(super) fn running(&self) -> impl Iterator<Item = (Part, usize)> {
        self.running.iter().map(|(part, running)| (*part, *running))
    }

    /// A part started. Returns how many of its kind run now.
    pub(super) fn on_started(&mut self, part: Part) -> usize {
        let running = self.running.entry(part).or_default();
        *running += 1;
        *running
    }

    /// A part finished its work. Returns how many of its kind still run.
    pub(super) fn on_finished(&mut self, part: Part) -> usize {
        let running = self.running.entry(part).or_default();
        *running = running.saturating_sub(1);
        *running
    }

    /// A part ended.
    pub(super) fn on_ended(&mut self, part: Part) -> EndAction {
        self.on_finished(part);
        match self.phase {
            Phase::Running => {
                self.phase = Phase::Ending;
                EndAction::EndProcess
            }
            Phase::Stopping => EndAction::Expected,
            Phase::Ending => EndAction::AlreadyEnding,
        }
    }

    /// An orderly shutdown starts: from now on parts may end. `false` if the process is already ending because of a
    /// part.
    pub(super) fn on_stopping(&mut self) -> bool {
        match self.phase {
            Phase::Running | Phase::Stopping => {
                self.phase = Phase::Stopping;
                true
            }
            Phase::Ending => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_end_of_a_part_ends_the_process() {
        let mut registry = Registry::default();
        registry.on_started(Part::TokenBucket);
        registry.on_started(Part::GateSnapshot);
        assert_eq!(registry.on_ended(Part::TokenBucket), EndAction::EndProcess);
        assert_eq!(registry.on_ended(Part::GateSnapshot), EndAction::AlreadyEnding);
        assert!(!registry.on_stopping(), "a shutdown can no longer take over");
    }

    #[test]
    fn parts_may_end_during_a_shutdown_and_finite_ones_at_any_time() {
        let mut registry = Registry::default();
        assert_eq!((registry.on_started(Part::Shard), registry.on_started(Part::Shard)), (1, 2));
        assert_eq!(registry.on_finished(Part::Shard), 1);
        assert!(registry.on_stopping());
        assert_eq!(registry.on_ended(Part::Shard), EndAction::Expected);
        assert!(registry.on_stopping(), "idempotent");
    }

    #[test]
    fn panic_explains_more_than_the_ends_that_follow_from_it() {
        let end = |part, cause| PartEnd { part, cause };
        let panic = PanicInfo { location: Some("a.rs:1".to_owned()), message: "oh".to_owned(), input: None };
        let panicked = end(Part::CircuitBreaker, EndCause::Panicked(panic));
        let returned = end(Part::GateSnapshot, EndCause::Returned(None));
        assert!(panicked.explains_better_than(&returned) && !returned.explains_better_than(&panicked));
        assert!(!panicked.explains_better_than(&panicked), "it is the same end");
        let thread = PartEnd { part: Part::ShardThread, ..panicked.clone() };
        assert!(thread.explains_better_than(&panicked), "the panic of a thread unwinds what runs on it first");
        let other =
            end(Part::Budgets, EndCause::Panicked(PanicInfo { message: "no".to_owned(), ..PanicInfo::default() }));
        assert!(!other.explains_better_than(&panicked), "the first of two panics stays");
        assert_eq!(panicked.to_string(), "circuit_breaker panicked at a.rs:1: oh");
        assert_eq!(panicked.cause.summary(), "panicked at a.rs:1");
        assert_eq!(end(Part::Sweeper, EndCause::Dropped).to_string(), "sweeper was dropped");
        assert_eq!(
            end(Part::ApiListener, EndCause::Returned(Some("no sockets".to_owned()))).to_string(),
            "api_listener returned: no sockets"
        );
    }
}
