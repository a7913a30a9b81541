//! Logs and metrics of inputs that ended a process.

use std::sync::LazyLock;

use guildhall_core::operation::{FailureClass, OperationKind, OperationState, Queue};
use tracing::{error, warn};

use super::operations::FAILED;
use super::{FailureLog, counter, event, metrics};
use crate::crash::{CRASHES_BEFORE_SET_ASIDE, Crash, CrashedInput, Input};
use crate::ports::UnreadableOperation;

metrics! {
    Events {
        /// Events, inbox entries and operations set aside because they ended the process twice or cannot be read.
        SET_ASIDE = counter "guildhall_inputs_set_aside_total" [kind];
    }
}

event! {
    /// The process ends because a part of it panicked on an input.
    pub struct CrashRecorded<'a> {
        /// The crash.
        crash: &'a Crash,
        /// How often the input has ended a process, or why that is not recorded.
        crashes: Result<u32, String>,
    }
    let Crash { input, part, cause, .. } = crash;
    match crashes {
        Ok(crashes) => error!(
            %input, part, cause, crashes,
            "input ended the process; after {CRASHES_BEFORE_SET_ASIDE} times it is set aside"
        ),
        Err(error) => error!(
            %input, part, cause, error,
            "input ended the process; recording that failed, so the input is retried"
        ),
    }
}

event! {
    /// An event was set aside.
    pub(crate) struct EventSetAside<'a> { crashed: &'a CrashedInput }
    let CrashedInput { input, crashes, part, cause } = crashed;
    warn!(%input, crashes, part, cause, "input set aside: it ended the process; see the dead events");
    counter!(SET_ASIDE, "kind" => input.kind()).increment(1);
}

event! {
    /// An operation was set aside.
    pub struct OperationSetAside<'a> {
        /// The input and its crashes.
        crashed: &'a CrashedInput,
        /// Kind of the operation, if this version knows it.
        kind: Option<OperationKind>,
        /// Its guild.
        guild: Option<u64>,
        /// Final state of the operation.
        result: OperationState,
    }
    let CrashedInput { input, crashes, part, cause } = crashed;
    let (known, kind, result) = (kind, kind.map_or("unknown", OperationKind::name), result.name());
    warn!(%input, kind, guild_id = guild, result, crashes, part, cause, "input set aside: it ended the process");
    counter!(SET_ASIDE, "kind" => input.kind()).increment(1);
    if known.is_some() {
        counter!(FAILED, "kind" => kind, "reason" => FailureClass::Poison.name()).increment(1);
    }
}

event! {
    /// An operation that cannot be read was set aside.
    pub(crate) struct UnreadableSetAside<'a> { unreadable: &'a UnreadableOperation, queue: Queue, result: OperationState }
    let UnreadableOperation { id, guild, seq, problem, .. } = unreadable;
    let (input, result) = (Input::Operation(*id), result.name());
    warn!(%input, guild_id = guild, queue = queue.number(), seq, result, problem, "input set aside: it cannot be read");
    counter!(SET_ASIDE, "kind" => input.kind()).increment(1);
}

/// Rows that were skipped: each read of a table skips all of them.
static UNREADABLE_ROWS: LazyLock<FailureLog> = LazyLock::new(|| FailureLog::new("rows of the store"));

event! {
    /// A row that cannot be read was skipped.
    pub struct UnreadableSkipped<'a> {
        /// Why it cannot be read.
        problem: &'a str,
    }
    if let Some(summary) = UNREADABLE_ROWS.on_isolated_failure() {
        let (failures, failing_for_s) = summary.repeated();
        warn!(
            problem, failures, failing_for_s,
            "row cannot be read and was skipped; a newer version may have written it"
        );
    }
}
