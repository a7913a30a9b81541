//! Executes one operation. Its start is committed when its first call with an effect has its permit.
//!
//! ```text
//!  execute ──Wait────▶ save the updates of earlier operations              (nothing of this one is stored)
//!          ──Commit──▶ save those, and that this one runs, in one commit ──▶ the call is sent
//!          ──Wait────▶ a later call has to wait: save that nothing is in flight
//! ```
//!
//! Until the first commit nothing is sent, so a cancel, a pause or a handover takes effect immediately. A pause or a
//! handover also takes effect while a later call waits.

use std::future::Future;
use std::pin::{Pin, pin};

use guildhall_core::operation::{Failure, FailureClass};
use tokio::sync::oneshot;
use tokio::time::{Duration, sleep, timeout};

use super::persist::merge_update;
use super::run_loop::{Fenced, Worker};
use crate::failpoint::{self, Point};
use crate::gate::NotSent;
use crate::guild::Journal;
use crate::guild::operations::journal::{JournalRequest, withdrawn};
use crate::ports::{ExecutionResult, OperationUpdate, UpdateResult};
use crate::telemetry::operations::AttemptPurpose;

/// Maximum time that the outcome of an operation stays unsaved while it waits for the start of the next one.
const MAX_UNSAVED: Duration = Duration::from_millis(20);

/// Stage of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing was sent, and nothing is stored.
    Unsent,
    /// It is stored that a call may be in flight.
    Running,
    /// All calls have responses, none is in flight, and that is stored.
    Suspended,
    /// It must not run now: it was withdrawn while no call was in flight.
    Withdrawn,
}

/// An execution, and its result once it has one. It continues while its guild does something else.
struct RunningExecution<'a, F> {
    future: Pin<&'a mut F>,
    result: Option<ExecutionResult>,
}

impl<F: Future<Output = ExecutionResult>> RunningExecution<'_, F> {
    /// Completes `other` while the execution continues.
    async fn run_beside<T>(&mut self, mut other: Pin<&mut impl Future<Output = T>>) -> T {
        loop {
            tokio::select! {
                biased;
                output = &mut other => return output,
                result = self.future.as_mut(), if self.result.is_none() => self.result = Some(result),
            }
        }
    }
}

impl Worker {
    pub(super) async fn execute(&self, seq: u64, unsaved: &mut Vec<OperationUpdate>) -> Result<(), Fenced> {
        let Some(mut work) = self.prepare(seq, unsaved).await? else { return Ok(()) };
        if unsaved.iter().any(|change| change.id == work.id) {
            // The earlier state of the operation is a separate update.
            self.save(unsaved).await?;
        }
        if !self.state.borrow().may_act() {
            // Every call would be denied as long as this guild has the queue.
            self.stop_soon();
            return Ok(());
        }
        let started_at = self.spec.clock.now();
        if !self.state.borrow_mut().start_attempt(seq) {
            return Ok(());
        }
        let (journal, mut requests) = Journal::open();
        work.journal = journal.clone();
        let (limit, trace) = (self.spec.config.execution_timeout, work.trace);
        let timed = async {
            let result = timeout(limit, self.spec.executor.execute(work)).await;
            result.unwrap_or_else(|_| {
                ExecutionResult::Unknown(Failure::new(
                    FailureClass::Ambiguous,
                    format!("there was no result within {limit:?}"),
                ))
            })
        };
        let mut timed = pin!(timed);
        let mut execution = RunningExecution { future: timed.as_mut(), result: None };
        let mut stage = Stage::Unsent;
        let mut linger = pin!(sleep(MAX_UNSAVED));
        let result = loop {
            if stage == Stage::Withdrawn {
                return Ok(());
            }
            if let Some(result) = execution.result.take() {
                break result;
            }
            tokio::select! {
                biased;
                request = requests.next() => {
                    self.state.borrow_mut().advance(seq, journal.take_steps());
                    stage = match request {
                        JournalRequest::Wait => self.on_wait(seq, stage, &mut execution, unsaved).await?,
                        JournalRequest::Commit(reply) => {
                            self.on_commit(seq, stage, reply, &mut execution, unsaved).await?
                        }
                    };
                }
                () = self.spec.shared.nudged(), if stage.may_withdraw() => {
                    self.apply_signals(unsaved);
                    stage = self.withdraw_if_requested(seq, stage);
                }
                result = execution.future.as_mut() => break result,
                () = &mut linger, if !unsaved.is_empty() => {
                    execution.run_beside(pin!(self.save(unsaved))).await?;
                }
            }
        };
        self.state.borrow_mut().advance(seq, journal.take_steps());
        let result = if stage == Stage::Unsent { unsent(result) } else { result };
        self.report_attempt(seq, AttemptPurpose::Perform, trace, started_at, super::dispatch::describe_result(&result));
        self.finish(seq, result, started_at, unsaved);
        failpoint::pass(Point::BeforeOutcome);
        Ok(())
    }

    /// The execution waits: updates that are not saved yet must not be lost meanwhile.
    async fn on_wait(
        &self,
        seq: u64,
        stage: Stage,
        execution: &mut RunningExecution<'_, impl Future<Output = ExecutionResult>>,
        unsaved: &mut Vec<OperationUpdate>,
    ) -> Result<Stage, Fenced> {
        let next = match stage {
            Stage::Running => {
                merge_update(unsaved, self.state.borrow_mut().suspend(seq, self.spec.clock.now()));
                Stage::Suspended
            }
            Stage::Unsent | Stage::Suspended | Stage::Withdrawn => stage,
        };
        execution.run_beside(pin!(self.save(unsaved))).await?;
        if next == Stage::Unsent {
            failpoint::pass(Point::WaitingForPermit);
        }
        Ok(next)
    }

    /// A call with an effect has its permit: it is sent once it is stored that it may be in flight.
    async fn on_commit(
        &self,
        seq: u64,
        stage: Stage,
        reply: oneshot::Sender<Result<(), NotSent>>,
        execution: &mut RunningExecution<'_, impl Future<Output = ExecutionResult>>,
        unsaved: &mut Vec<OperationUpdate>,
    ) -> Result<Stage, Fenced> {
        if stage.may_withdraw() && self.may_no_longer_be_sent(seq) {
            self.state.borrow_mut().withdraw(seq);
            Stage::Withdrawn.reply(reply);
            return Ok(Stage::Withdrawn);
        }
        if !stage.may_withdraw() && !self.state.borrow().has_unstored_object(seq) {
            stage.reply(reply);
            return Ok(stage);
        }
        let start = self.state.borrow_mut().mark_running(seq, self.spec.clock.now());
        merge_update(unsaved, start);
        failpoint::pass(Point::BeforeIntent);
        if execution.run_beside(pin!(self.save(unsaved))).await? == UpdateResult::Finished {
            Stage::Withdrawn.reply(reply);
            return Ok(Stage::Withdrawn);
        }
        failpoint::pass(Point::AfterIntent);
        if !self.state.borrow().may_act() {
            // The store still accepts its writes, but its lease is no longer valid: the queue is released.
            self.stop_soon();
        }
        let next = if stage.may_withdraw() && self.may_no_longer_be_sent(seq) {
            merge_update(unsaved, self.state.borrow_mut().unmark_running(seq, self.spec.clock.now()));
            Stage::Withdrawn
        } else {
            Stage::Running
        };
        next.reply(reply);
        Ok(next)
    }

    /// Withdraws an operation without a call in flight, if it was cancelled or its guild must stop.
    fn withdraw_if_requested(&self, seq: u64, stage: Stage) -> Stage {
        if self.state.borrow().id(seq).is_none() {
            return Stage::Withdrawn;
        }
        if self.paused.get() || self.must_stop() {
            self.state.borrow_mut().withdraw(seq);
            return Stage::Withdrawn;
        }
        stage
    }

    /// Whether it must not be sent any more.
    pub(super) fn may_no_longer_be_sent(&self, seq: u64) -> bool {
        let deadline = self.state.borrow().order_view().entry(seq).and_then(|entry| entry.deadline);
        self.paused.get() || self.must_stop() || deadline.is_some_and(|deadline| deadline <= self.spec.clock.now())
    }
}

impl Stage {
    /// Whether no call is in flight, according to the store as well.
    const fn may_withdraw(self) -> bool {
        match self {
            Self::Unsent | Self::Suspended => true,
            Self::Running | Self::Withdrawn => false,
        }
    }

    /// Replies to the gate whether to send.
    fn reply(self, reply: oneshot::Sender<Result<(), NotSent>>) {
        let result = match self {
            Self::Unsent | Self::Withdrawn => Err(withdrawn()),
            Self::Running | Self::Suspended => Ok(()),
        };
        // The gate may have stopped waiting.
        let _ = reply.send(result);
    }
}

/// The result of an execution that sent nothing with an effect: its outcome is not in doubt.
fn unsent(result: ExecutionResult) -> ExecutionResult {
    match result {
        ExecutionResult::Unknown(failure) => {
            ExecutionResult::Failed(Failure { class: FailureClass::Transient, ..failure })
        }
        ExecutionResult::Done(_) | ExecutionResult::Held { .. } | ExecutionResult::Failed(_) => result,
    }
}
