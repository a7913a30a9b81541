//! Executes an operation, or checks its outcome.

use std::pin::pin;

use guildhall_core::guild::{OrderStep, WaitPhase};
use guildhall_core::time::UnixMs;
use guildhall_core::trace::TraceContext;
use tokio::time::timeout;

use super::GuildSpec;
use super::disposition::{judge, judge_search};
use super::persist::add;
use super::run_loop::{Fenced, Worker};
use crate::crash::{self, Input};
use crate::failpoint::{self, Point};
use crate::ports::{Attempt, ExecutionResult, OperationUpdate, ReconcileResult};
use crate::supervisor::operations::throttle::Admission;
use crate::telemetry::emit;
use crate::telemetry::operations::{AttemptPurpose, OperationAttempted};

/// Result of an attempt: a short name, and the message unless it succeeded.
pub(super) fn ended(performed: &ExecutionResult) -> (&'static str, Option<&str>) {
    match performed {
        ExecutionResult::Done(_) => ("succeeded", None),
        ExecutionResult::Held { why, .. } => ("held", Some(why)),
        ExecutionResult::Failed(failure) | ExecutionResult::Unknown(failure) => {
            (failure.class.name(), Some(&failure.message))
        }
    }
}

/// Result of a search for the effect of an earlier attempt, in the same form.
fn found(reconciled: &ReconcileResult) -> (&'static str, Option<&str>) {
    match reconciled {
        ReconcileResult::Found(_) => ("found", None),
        ReconcileResult::Absent => ("absent", None),
        ReconcileResult::Unclear(why) => ("unclear", Some(why)),
        ReconcileResult::Failed(why) => ("failed", Some(why)),
        ReconcileResult::Held { why, .. } => ("held", Some(why)),
    }
}

impl Worker {
    /// Runs the next operation once it is admitted.
    pub(super) async fn turn(&self, seq: u64, unsaved: &mut Vec<OperationUpdate>) -> Result<(), Fenced> {
        let Some(id) = self.book.borrow().id(seq) else { return Ok(()) };
        let Some(_admission) = self.admission(seq, unsaved).await? else { return Ok(()) };
        self.seat.vitals.execute(Some(id));
        let phase = self.book.borrow().shown().entry(seq).map(|entry| entry.phase);
        // Parts that work for it, such as the gate, inherit this scope.
        let turn = pin!(async {
            match phase {
                None => Ok(()),
                Some(WaitPhase::Reconciling) => self.search(seq, unsaved).await,
                Some(WaitPhase::Queued | WaitPhase::Delayed { .. } | WaitPhase::Retrying) => {
                    self.execute(seq, unsaved).await
                }
            }
        });
        let turn = crash::within(Some(Input::Operation(id)), turn).await;
        self.seat.vitals.execute(None);
        turn
    }

    /// Waits until the operation may start. `None` if it is no longer the next one.
    pub(super) async fn admission(
        &self,
        seq: u64,
        unsaved: &mut Vec<OperationUpdate>,
    ) -> Result<Option<Admission>, Fenced> {
        let GuildSpec { throttle, vitals, clock, .. } = &self.seat;
        if self.book.borrow().is_interactive(seq) {
            return Ok(Some(Admission::free()));
        }
        if let Some(admission) = throttle.try_admit() {
            return Ok(Some(admission));
        }
        self.save(unsaved).await?;
        let mut admitted = std::pin::pin!(throttle.admit());
        let admission = loop {
            tokio::select! {
                biased;
                admission = &mut admitted => break admission,
                () = vitals.nudged() => {
                    self.listen(unsaved);
                    if self.has_to_leave() || self.paused.get() {
                        return Ok(None);
                    }
                }
            }
        };
        let step = self.book.borrow_mut().line().next(clock.now());
        Ok((step == OrderStep::Run(seq)).then_some(admission))
    }

    pub(super) fn settle(
        &self,
        seq: u64,
        performed: ExecutionResult,
        started_at: UnixMs,
        unsaved: &mut Vec<OperationUpdate>,
    ) {
        let mut book = self.book.borrow_mut();
        if matches!(performed, ExecutionResult::Unknown(_)) {
            book.note_unknown(seq, started_at);
        }
        let Some(case) = book.case(seq) else { return };
        let now = self.seat.clock.now();
        let attempt = |status, class: &str, detail| Attempt {
            n: case.attempts,
            started_at,
            ended_at: now,
            status,
            class: class.to_owned(),
            detail,
        };
        let attempt = match &performed {
            ExecutionResult::Done(done) => Some(attempt(done.status, "succeeded", None)),
            ExecutionResult::Held { .. } => None,
            ExecutionResult::Failed(failure) | ExecutionResult::Unknown(failure) => {
                Some(attempt(failure.status, failure.class.name(), Some(failure.message.clone())))
            }
        };
        let verdict = judge(performed, &case, &self.seat.config, fastrand::f64());
        add(unsaved, book.conclude(seq, verdict, attempt, now));
    }

    pub(super) fn report_attempt(
        &self,
        seq: u64,
        to: AttemptPurpose,
        trace: Option<TraceContext>,
        began: UnixMs,
        (result, why): (&'static str, Option<&str>),
    ) {
        let Some(of) = self.book.borrow().subject(seq) else { return };
        emit(OperationAttempted { of, to, trace, began, ended: self.seat.clock.now(), result, why });
    }

    /// Checks whether an earlier attempt took effect.
    pub(super) async fn search(&self, seq: u64, unsaved: &mut Vec<OperationUpdate>) -> Result<(), Fenced> {
        let Some(work) = self.prepare(seq, unsaved).await? else { return Ok(()) };
        // Updates that are not saved yet must not be lost while this runs.
        self.save(unsaved).await?;
        if !self.book.borrow().may_act() {
            // Every call would be denied as long as this guild has the queue.
            self.give_up();
            return Ok(());
        }
        self.book.borrow_mut().line().on_started(seq);
        let (limit, trace, began) = (self.seat.config.perform_timeout, work.trace, self.seat.clock.now());
        let is_checked = self.book.borrow_mut().is_checked(seq, began);
        let (to, search) = if is_checked {
            (AttemptPurpose::Verify, self.seat.perform.verify(work))
        } else {
            (AttemptPurpose::Reconcile, self.seat.perform.reconcile(work))
        };
        let reconciled = timeout(limit, search)
            .await
            .unwrap_or_else(|_| ReconcileResult::Failed(format!("checking its outcome took longer than {limit:?}")));
        self.report_attempt(seq, to, trace, began, found(&reconciled));
        let mut book = self.book.borrow_mut();
        if let Some(case) = book.case(seq) {
            let now = self.seat.clock.now();
            let verdict = judge_search(reconciled, &case, &self.seat.config, now, fastrand::f64());
            add(unsaved, book.conclude(seq, verdict, None, now));
            failpoint::pass(Point::BeforeOutcome);
        }
        Ok(())
    }
}
