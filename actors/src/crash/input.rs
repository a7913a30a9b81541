//! Inputs that a part may process when it panics, and how often that ended the process.

use std::fmt;
use std::sync::Arc;

use guildhall_core::operation::OperationId;
use guildhall_core::time::UnixMs;

use crate::ports::{InboxKey, StoreFuture};
use crate::supervision::{EndCause, PartEnd};

/// An input that ended a process this often is set aside before it is processed again.
pub const CRASHES_BEFORE_SET_ASIDE: u32 = 2;

/// Work that the next process gets again if this one ends before it is finished.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Input {
    /// An event of a gateway session that is not confirmed: RESUME replays it.
    Event {
        /// The gateway session.
        session: Arc<str>,
        /// Sequence number in the session.
        seq: u64,
    },
    /// An event that waits in the inbox for a handler.
    InboxEntry(InboxKey),
    /// An unfinished operation: the process that claims its queue continues it.
    Operation(OperationId),
}

impl Input {
    /// Kind of the input, for metrics and the store.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Event { .. } => "event",
            Self::InboxEntry(_) => "inbox",
            Self::Operation(_) => "operation",
        }
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Event { session, seq } => write!(f, "event {seq} of session {session}"),
            Self::InboxEntry(InboxKey { session, seq, handler }) => {
                write!(f, "event {seq} of session {session} for handler {handler}")
            }
            Self::Operation(id) => write!(f, "operation {id}"),
        }
    }
}

/// A panic that ended the process, and the input that was being processed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crash {
    /// The input.
    pub input: Input,
    /// The part that panicked.
    pub part: String,
    /// Location of the panic. Without the message: it may contain data that not every reader may see, and only the log
    /// removes secrets.
    pub cause: String,
    /// Time of the crash.
    pub at: UnixMs,
}

/// An input, and how often it ended a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashedInput {
    /// The input.
    pub input: Input,
    /// How often it ended a process.
    pub crashes: u32,
    /// The part that panicked last.
    pub part: String,
    /// Location of the last panic.
    pub cause: String,
}

impl Crash {
    /// The crash that the end of a part means, if the part panicked on an input.
    #[must_use]
    pub fn of(end: &PartEnd, at: UnixMs) -> Option<Self> {
        match &end.cause {
            EndCause::Panicked(panic) => {
                let input = panic.input.clone()?;
                Some(Self { input, part: end.part.name().to_owned(), cause: end.cause.summary(), at })
            }
            EndCause::Returned(_) | EndCause::Dropped => None,
        }
    }
}

impl CrashedInput {
    /// Whether setting it aside also ended a process: then it is set aside without being read.
    #[must_use]
    pub const fn crashed_while_set_aside(&self) -> bool {
        self.crashes > CRASHES_BEFORE_SET_ASIDE
    }

    /// Why it is set aside, and what to do about it.
    #[must_use]
    pub fn reason(&self) -> String {
        format!(
            "it ended the process {} times and was set aside: {} {}; the log of that process has the message. Report \
             it as a bug, and redrive it with a version that fixes the bug",
            self.crashes, self.part, self.cause
        )
    }
}

/// Counts the inputs that ended a process.
pub trait CrashStore: Send + Sync {
    /// Inputs that ended a process [often enough](CRASHES_BEFORE_SET_ASIDE) to be set aside. Without operations: the
    /// store sets those aside itself when their queue is claimed.
    fn inputs_to_set_aside(&self) -> StoreFuture<'_, Vec<CrashedInput>>;

    /// Deletes the counts of inputs that were set aside. Idempotent.
    fn forget_crashes(&self, inputs: Vec<Input>) -> StoreFuture<'_, ()>;
}
