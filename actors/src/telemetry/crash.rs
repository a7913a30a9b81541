//! Logs and metrics of inputs that ended a process.

use guildhall_core::operation::{FailureClass, OperationKind, OperationState, Queue};
use metrics::counter;
use tracing::{error, warn};

use super::operations::FAILED;
use super::{InternalEvent, Metric};
use crate::crash::{Crash, CrashedInput, Input};
use crate::ports::UnreadableOperation;

/// Inputs set aside because they ended the process twice or cannot be read, by kind.
pub const SET_ASIDE: &str = "guildhall_inputs_set_aside_total";

/// All metrics of this module.
pub(super) const METRICS: &[Metric] = &[Metric::counter(
    SET_ASIDE,
    &["kind"],
    "Events, inbox entries and operations set aside because they ended the process twice or cannot be read.",
)];

/// The process ends because a part of it panicked on an input.
#[derive(Debug)]
pub struct CrashRecorded<'a> {
    /// The crash.
    pub crash: &'a Crash,
    /// How often the input has ended a process, or why that is not recorded.
    pub crashes: Result<u32, String>,
}

impl InternalEvent for CrashRecorded<'_> {
    fn emit(self) {
        let Crash { input, part, cause, .. } = self.crash;
        match self.crashes {
            Ok(crashes) => {
                error!(%input, part, cause, crashes, "input ended the process; after {} times it is set aside",
                    crate::crash::CRASHES_BEFORE_SET_ASIDE);
            }
            Err(error) => {
                error!(%input, part, cause, error, "input ended the process; recording that failed, so the input is \
                    retried");
            }
        }
    }
}

/// An event was set aside.
#[derive(Debug)]
pub(crate) struct EventSetAside<'a> {
    pub(crate) crashed: &'a CrashedInput,
}

impl InternalEvent for EventSetAside<'_> {
    fn emit(self) {
        let CrashedInput { input, crashes, part, cause } = self.crashed;
        warn!(%input, crashes, part, cause, "input set aside: it ended the process; see the dead events");
        counter!(SET_ASIDE, "kind" => input.kind()).increment(1);
    }
}

/// An operation was set aside.
#[derive(Debug)]
pub struct OperationSetAside<'a> {
    /// The input and its crashes.
    pub crashed: &'a CrashedInput,
    /// Kind of the operation, if this version knows it.
    pub kind: Option<OperationKind>,
    /// Its guild.
    pub guild: Option<u64>,
    /// Final state of the operation.
    pub result: OperationState,
}

impl InternalEvent for OperationSetAside<'_> {
    fn emit(self) {
        let CrashedInput { input, crashes, part, cause } = self.crashed;
        let (kind, result) = (self.kind.map_or("unknown", OperationKind::name), self.result.name());
        warn!(%input, kind, guild_id = self.guild, result, crashes, part, cause, "input set aside: it ended the process");
        counter!(SET_ASIDE, "kind" => input.kind()).increment(1);
        if self.kind.is_some() {
            counter!(FAILED, "kind" => kind, "reason" => FailureClass::Poison.name()).increment(1);
        }
    }
}

/// An operation that cannot be read was set aside.
#[derive(Debug)]
pub(crate) struct UnreadableSetAside<'a> {
    pub(crate) unreadable: &'a UnreadableOperation,
    pub(crate) queue: Queue,
    pub(crate) result: OperationState,
}

impl InternalEvent for UnreadableSetAside<'_> {
    fn emit(self) {
        let UnreadableOperation { id, guild, seq, problem, .. } = self.unreadable;
        let (input, result) = (Input::Operation(*id), self.result.name());
        warn!(%input, guild_id = guild, queue = ?self.queue, seq, result, problem, "input set aside: it cannot be read");
        counter!(SET_ASIDE, "kind" => input.kind()).increment(1);
    }
}

/// A row that cannot be read was skipped.
#[derive(Debug)]
pub struct UnreadableSkipped<'a> {
    /// Why it cannot be read.
    pub problem: &'a str,
}

impl InternalEvent for UnreadableSkipped<'_> {
    fn emit(self) {
        warn!(problem = self.problem, "row cannot be read and was skipped; a newer version may have written it");
    }
}
