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

use super::persist::add;
use super::run_loop::{Fenced, Worker};
use crate::failpoint::{self, Point};
use crate::gate::NotSent;
use crate::guild::Journal;
use crate::guild::operations::journal::{JournalRequest, withdrawn};
use crate::ports::{ExecutionResult, OperationUpdate, UpdateResult};
use crate::telemetry::operations::AttemptPurpose;

/// Maximum time that the outcome of an operation stays unsaved while it waits for the start of the next one.
const LONGEST_UNSAVED: Duration = Duration::from_millis(20);

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
    performed: Option<ExecutionResult>,
}

impl<F: Future<Output = ExecutionResult>> RunningExecution<'_, F> {
    /// Completes `other` while the execution continues.
    async fn beside<T>(&mut self, mut other: Pin<&mut impl Future<Output = T>>) -> T {
        loop {
            tokio::select! {
                biased;
                output = &mut other => return output,
                performed = self.future.as_mut(), if self.performed.is_none() => self.performed = Some(performed),
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
        if !self.book.borrow().may_act() {
            // Every call would be denied as long as this guild has the queue.
            self.give_up();
            return Ok(());
        }
        let started_at = self.seat.clock.now();
        if !self.book.borrow_mut().begin(seq) {
            return Ok(());
        }
        let (journal, mut requests) = Journal::open();
        work.journal = journal.clone();
        let (limit, trace) = (self.seat.config.perform_timeout, work.trace);
        let timed = async {
            let performed = timeout(limit, self.seat.perform.perform(work)).await;
            performed.unwrap_or_else(|_| {
                ExecutionResult::Unknown(Failure::new(
                    FailureClass::Ambiguous,
                    format!("there was no result within {limit:?}"),
                ))
            })
        };
        let mut timed = pin!(timed);
        let mut execution = RunningExecution { future: timed.as_mut(), performed: None };
        let mut stage = Stage::Unsent;
        let mut linger = pin!(sleep(LONGEST_UNSAVED));
        let performed = loop {
            if stage == Stage::Withdrawn {
                return Ok(());
            }
            if let Some(performed) = execution.performed.take() {
                break performed;
            }
            tokio::select! {
                biased;
                request = requests.next() => {
                    self.book.borrow_mut().advance(seq, journal.take_steps());
                    stage = match request {
                        JournalRequest::Wait => self.on_wait(seq, stage, &mut execution, unsaved).await?,
                        JournalRequest::Commit(reply) => {
                            self.on_commit(seq, stage, reply, &mut execution, unsaved).await?
                        }
                    };
                }
                () = self.seat.vitals.nudged(), if stage.may_withdraw() => {
                    self.listen(unsaved);
                    stage = self.withdraw_if_asked(seq, stage);
                }
                performed = execution.future.as_mut() => break performed,
                () = &mut linger, if !unsaved.is_empty() => {
                    execution.beside(pin!(self.save(unsaved))).await?;
                }
            }
        };
        self.book.borrow_mut().advance(seq, journal.take_steps());
        let performed = if stage == Stage::Unsent { unsent(performed) } else { performed };
        self.report_attempt(seq, AttemptPurpose::Perform, trace, started_at, super::dispatch::ended(&performed));
        self.settle(seq, performed, started_at, unsaved);
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
                add(unsaved, self.book.borrow_mut().suspend(seq, self.seat.clock.now()));
                Stage::Suspended
            }
            Stage::Unsent | Stage::Suspended | Stage::Withdrawn => stage,
        };
        execution.beside(pin!(self.save(unsaved))).await?;
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
            self.book.borrow_mut().withdraw(seq);
            Stage::Withdrawn.answer(reply);
            return Ok(Stage::Withdrawn);
        }
        if !stage.may_withdraw() && !self.book.borrow().has_unstored_object(seq) {
            stage.answer(reply);
            return Ok(stage);
        }
        let start = self.book.borrow_mut().start(seq, self.seat.clock.now());
        add(unsaved, start);
        failpoint::pass(Point::BeforeIntent);
        if execution.beside(pin!(self.save(unsaved))).await? == UpdateResult::Gone {
            Stage::Withdrawn.answer(reply);
            return Ok(Stage::Withdrawn);
        }
        failpoint::pass(Point::AfterIntent);
        if !self.book.borrow().may_act() {
            // The store still accepts its writes, but its lease is no longer valid: the queue is released.
            self.give_up();
        }
        let next = if stage.may_withdraw() && self.may_no_longer_be_sent(seq) {
            add(unsaved, self.book.borrow_mut().unstart(seq, self.seat.clock.now()));
            Stage::Withdrawn
        } else {
            Stage::Running
        };
        next.answer(reply);
        Ok(next)
    }

    /// Withdraws an operation without a call in flight, if it was cancelled or its guild must stop.
    fn withdraw_if_asked(&self, seq: u64, stage: Stage) -> Stage {
        if self.book.borrow().id(seq).is_none() {
            return Stage::Withdrawn;
        }
        if self.paused.get() || self.has_to_leave() {
            self.book.borrow_mut().withdraw(seq);
            return Stage::Withdrawn;
        }
        stage
    }

    /// Whether it must not be sent any more.
    pub(super) fn may_no_longer_be_sent(&self, seq: u64) -> bool {
        let deadline = self.book.borrow().shown().entry(seq).and_then(|entry| entry.deadline);
        self.paused.get() || self.has_to_leave() || deadline.is_some_and(|deadline| deadline <= self.seat.clock.now())
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
    fn answer(self, reply: oneshot::Sender<Result<(), NotSent>>) {
        let answer = match self {
            Self::Unsent | Self::Withdrawn => Err(withdrawn()),
            Self::Running | Self::Suspended => Ok(()),
        };
        // The gate may have stopped waiting.
        let _ = reply.send(answer);
    }
}

/// The result of an execution that sent nothing with an effect: its outcome is not in doubt.
fn unsent(performed: ExecutionResult) -> ExecutionResult {
    match performed {
        ExecutionResult::Unknown(failure) => {
            ExecutionResult::Failed(Failure { class: FailureClass::Transient, ..failure })
        }
        ExecutionResult::Done(_) | ExecutionResult::Held { .. } | ExecutionResult::Failed(_) => performed,
    }
}
