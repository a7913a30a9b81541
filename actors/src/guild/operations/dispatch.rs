//! Executes an operation, or checks its outcome.

use std::pin::pin;

use guildhall_core::guild::{OrderStep, WaitPhase};
use guildhall_core::time::UnixMs;
use guildhall_core::trace::TraceContext;
use tokio::time::timeout;

use super::GuildSpec;
use super::disposition::{decide, decide_search};
use super::persist::merge_update;
use super::run_loop::{Fenced, Worker};
use crate::crash::{self, Input};
use crate::failpoint::{self, Point};
use crate::ports::{Attempt, ExecutionResult, OperationUpdate, ReconcileResult};
use crate::supervisor::operations::throttle::Admission;
use crate::telemetry::emit;
use crate::telemetry::operations::{AttemptPurpose, OperationAttempted};

/// Result of an attempt: a short name, and the message unless it succeeded.
pub(super) fn describe_result(result: &ExecutionResult) -> (&'static str, Option<&str>) {
    match result {
        ExecutionResult::Done(_) => ("succeeded", None),
        ExecutionResult::Held { message, .. } => ("held", Some(message)),
        ExecutionResult::Failed(failure) | ExecutionResult::Unknown(failure) => {
            (failure.class.name(), Some(&failure.message))
        }
    }
}

/// Result of a search for the effect of an earlier attempt, in the same form.
fn describe_search(search_result: &ReconcileResult) -> (&'static str, Option<&str>) {
    match search_result {
        ReconcileResult::Found(_) => ("found", None),
        ReconcileResult::Absent => ("absent", None),
        ReconcileResult::Unclear(message) => ("unclear", Some(message)),
        ReconcileResult::Failed(message) => ("failed", Some(message)),
        ReconcileResult::Held { message, .. } => ("held", Some(message)),
    }
}

impl Worker {
    /// Runs the next operation once it is admitted.
    pub(super) async fn run_next(&self, seq: u64, unsaved: &mut Vec<OperationUpdate>) -> Result<(), Fenced> {
        let Some(id) = self.state.borrow().id(seq) else { return Ok(()) };
        let Some(_admission) = self.admit(seq, unsaved).await? else { return Ok(()) };
        self.spec.shared.set_executing(Some(id));
        let phase = self.state.borrow().order_view().entry(seq).map(|entry| entry.phase);
        // Parts that work for it, such as the gate, inherit this scope.
        let run = pin!(async {
            match phase {
                None => Ok(()),
                Some(WaitPhase::Reconciling) => self.search(seq, unsaved).await,
                Some(WaitPhase::Queued | WaitPhase::Delayed { .. } | WaitPhase::Retrying) => {
                    self.execute(seq, unsaved).await
                }
            }
        });
        let run = crash::with_input(Some(Input::Operation(id)), run).await;
        self.spec.shared.set_executing(None);
        run
    }

    /// Waits until the operation may start. `None` if it is no longer the next one.
    pub(super) async fn admit(
        &self,
        seq: u64,
        unsaved: &mut Vec<OperationUpdate>,
    ) -> Result<Option<Admission>, Fenced> {
        let GuildSpec { throttle, shared, clock, .. } = &self.spec;
        if self.state.borrow().is_interactive(seq) {
            return Ok(Some(Admission::free()));
        }
        if let Some(admission) = throttle.try_admit() {
            return Ok(Some(admission));
        }
        self.save(unsaved).await?;
        let mut waiting = std::pin::pin!(throttle.admit());
        let admission = loop {
            tokio::select! {
                biased;
                admission = &mut waiting => break admission,
                () = shared.nudged() => {
                    self.apply_signals(unsaved);
                    if self.must_stop() || self.paused.get() {
                        return Ok(None);
                    }
                }
            }
        };
        let step = self.state.borrow_mut().order().next(clock.now());
        Ok((step == OrderStep::Run(seq)).then_some(admission))
    }

    pub(super) fn finish(
        &self,
        seq: u64,
        result: ExecutionResult,
        started_at: UnixMs,
        unsaved: &mut Vec<OperationUpdate>,
    ) {
        let mut state = self.state.borrow_mut();
        if matches!(result, ExecutionResult::Unknown(_)) {
            state.record_unknown(seq, started_at);
        }
        let Some(attempt_state) = state.attempt_state(seq) else { return };
        let now = self.spec.clock.now();
        let attempt = |status, class: &str, detail| Attempt {
            n: attempt_state.attempts,
            started_at,
            ended_at: now,
            status,
            class: class.to_owned(),
            detail,
        };
        let attempt = match &result {
            ExecutionResult::Done(output) => Some(attempt(output.status, "succeeded", None)),
            ExecutionResult::Held { .. } => None,
            ExecutionResult::Failed(failure) | ExecutionResult::Unknown(failure) => {
                Some(attempt(failure.status, failure.class.name(), Some(failure.message.clone())))
            }
        };
        let disposition = decide(result, &attempt_state, &self.spec.config, fastrand::f64());
        merge_update(unsaved, state.apply_disposition(seq, disposition, attempt, now));
    }

    pub(super) fn report_attempt(
        &self,
        seq: u64,
        purpose: AttemptPurpose,
        trace: Option<TraceContext>,
        started_at: UnixMs,
        (result, message): (&'static str, Option<&str>),
    ) {
        let Some(operation) = self.state.borrow().subject(seq) else { return };
        emit(OperationAttempted {
            of: operation,
            purpose,
            trace,
            started_at,
            ended_at: self.spec.clock.now(),
            result,
            message,
        });
    }

    /// Checks whether an earlier attempt took effect.
    pub(super) async fn search(&self, seq: u64, unsaved: &mut Vec<OperationUpdate>) -> Result<(), Fenced> {
        let Some(execution) = self.prepare(seq, unsaved).await? else { return Ok(()) };
        // Updates that are not saved yet must not be lost while this runs.
        self.save(unsaved).await?;
        if !self.state.borrow().may_act() {
            // Every call would be denied as long as this guild has the queue.
            self.stop_soon();
            return Ok(());
        }
        self.state.borrow_mut().order().on_started(seq);
        let (limit, trace, started_at) = (self.spec.config.execution_timeout, execution.trace, self.spec.clock.now());
        let is_checked = self.state.borrow_mut().is_checked(seq, started_at);
        let (purpose, search) = if is_checked {
            (AttemptPurpose::Verify, self.spec.executor.verify(execution))
        } else {
            (AttemptPurpose::Reconcile, self.spec.executor.reconcile(execution))
        };
        let search_result = timeout(limit, search)
            .await
            .unwrap_or_else(|_| ReconcileResult::Failed(format!("checking its outcome took longer than {limit:?}")));
        self.report_attempt(seq, purpose, trace, started_at, describe_search(&search_result));
        let mut state = self.state.borrow_mut();
        if let Some(attempt_state) = state.attempt_state(seq) {
            let now = self.spec.clock.now();
            let disposition = decide_search(search_result, &attempt_state, &self.spec.config, now, fastrand::f64());
            merge_update(unsaved, state.apply_disposition(seq, disposition, None, now));
            failpoint::pass(Point::BeforeOutcome);
        }
        Ok(())
    }
}
