//! An operation's turn: it is sent, or looked for.

use guildhall_core::guild::{Phase, Step};
use guildhall_core::operation::{Failure, FailureClass};
use guildhall_core::time::UnixMs;
use guildhall_core::trace::Trace;
use tokio::time::timeout;

use super::Seat;
use super::keeping::add;
use super::verdict::{Verdict, judge, judge_search};
use super::work::{Fenced, Worker};
use crate::failpoint::{self, Point};
use crate::operations::throttle::Admission;
use crate::operations::{Attempt, Change, Hold, Performed, Reconciled, Recorded};
use crate::telemetry::emit;
use crate::telemetry::operations::{OperationTried, TriedTo};

/// How a try ended: a word, and why it did not end well, if it did not.
fn ended(performed: &Performed) -> (&'static str, Option<&str>) {
    match performed {
        Performed::Done(_) => ("succeeded", None),
        Performed::Held { why, .. } => ("held", Some(why)),
        Performed::Failed(failure) => (failure.class.name(), Some(&failure.message)),
    }
}

/// The same of looking for what an earlier one did.
fn found(reconciled: &Reconciled) -> (&'static str, Option<&str>) {
    match reconciled {
        Reconciled::Found(_) => ("found", None),
        Reconciled::Absent => ("absent", None),
        Reconciled::Unclear(why) => ("unclear", Some(why)),
        Reconciled::Held { why, .. } => ("held", Some(why)),
    }
}

impl Worker {
    /// It is this one's turn, if it may begin.
    pub(super) async fn turn(&self, seq: u64, unsaved: &mut Vec<Change>) -> Result<(), Fenced> {
        let Some(id) = self.book.borrow().id(seq) else { return Ok(()) };
        let Some(_admission) = self.admission(seq, unsaved).await? else { return Ok(()) };
        self.seat.vitals.execute(Some(id));
        let phase = self.book.borrow().shown().entry(seq).map(|entry| entry.phase);
        let turn = match phase {
            None => Ok(()),
            Some(Phase::Reconciling) => self.search(seq, unsaved).await,
            Some(Phase::Queued | Phase::Delayed { .. } | Phase::Retrying) => self.execute(seq, unsaved).await,
        };
        self.seat.vitals.execute(None);
        turn
    }

    /// The right to begin; nothing if it is no longer this one's turn.
    pub(super) async fn admission(&self, seq: u64, unsaved: &mut Vec<Change>) -> Result<Option<Admission>, Fenced> {
        let Seat { throttle, vitals, clock, .. } = &self.seat;
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
                    self.listen();
                    if self.has_to_leave() || self.paused.get() {
                        return Ok(None);
                    }
                }
            }
        };
        let step = self.book.borrow_mut().line().next(clock.now());
        Ok((step == Step::Run(seq)).then_some(admission))
    }

    pub(super) async fn execute(&self, seq: u64, unsaved: &mut Vec<Change>) -> Result<(), Fenced> {
        let Some(work) = self.prepare(seq, unsaved).await? else { return Ok(()) };
        if unsaved.iter().any(|change| change.id == work.id) {
            // What it became before is a step of its own.
            self.save(unsaved).await?;
        }
        let started_at = self.seat.clock.now();
        let Some(start) = self.book.borrow_mut().start(seq, started_at) else { return Ok(()) };
        add(unsaved, Some(start));
        failpoint::pass(Point::BeforeIntent);
        if self.save(unsaved).await? == Recorded::Gone {
            return Ok(());
        }
        failpoint::pass(Point::AfterIntent);
        if !self.book.borrow().may_act() {
            // The store still takes its word, but the lease has run out or was begun anew: the queue goes back to all.
            self.give_up();
        }
        if self.may_no_longer_be_sent(seq) {
            add(unsaved, self.book.borrow_mut().unstart(seq, self.seat.clock.now()));
            return Ok(());
        }
        let (limit, trace) = (self.seat.config.perform_timeout, work.trace);
        let performed = timeout(limit, self.seat.perform.perform(work)).await.unwrap_or_else(|_| {
            Performed::Failed(Failure::new(FailureClass::Ambiguous, format!("nothing came of it within {limit:?}")))
        });
        self.tell_of_try(seq, TriedTo::Perform, trace, started_at, ended(&performed));
        self.settle(seq, performed, started_at, unsaved);
        failpoint::pass(Point::BeforeOutcome);
        Ok(())
    }

    /// Whether something has happened while the store took its time.
    pub(super) fn may_no_longer_be_sent(&self, seq: u64) -> bool {
        let deadline = self.book.borrow().shown().entry(seq).and_then(|entry| entry.deadline);
        self.paused.get() || self.has_to_leave() || deadline.is_some_and(|deadline| deadline <= self.seat.clock.now())
    }

    pub(super) fn settle(&self, seq: u64, performed: Performed, started_at: UnixMs, unsaved: &mut Vec<Change>) {
        let mut book = self.book.borrow_mut();
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
            Performed::Done(done) => Some(attempt(done.status, "succeeded", None)),
            Performed::Held { .. } => None,
            Performed::Failed(failure) => {
                Some(attempt(failure.status, failure.class.name(), Some(failure.message.clone())))
            }
        };
        let verdict = judge(performed, case, &self.seat.config, fastrand::f64());
        if let Verdict::Dead(Failure {
            class: FailureClass::Transient | FailureClass::Ambiguous, status: None, ..
        }) = &verdict
        {
            // What was given up may still be under way: what follows must not overtake it.
            self.quiet_until.set(now + self.seat.config.request_timeout);
        }
        add(unsaved, book.conclude(seq, verdict, attempt, now));
    }

    fn tell_of_try(
        &self,
        seq: u64,
        to: TriedTo,
        trace: Option<Trace>,
        began: UnixMs,
        (result, why): (&'static str, Option<&str>),
    ) {
        let Some(of) = self.book.borrow().subject(seq) else { return };
        emit(OperationTried { of, to, trace, began, ended: self.seat.clock.now(), result, why });
    }

    /// Looks for what an earlier try may have done.
    pub(super) async fn search(&self, seq: u64, unsaved: &mut Vec<Change>) -> Result<(), Fenced> {
        let Some(work) = self.prepare(seq, unsaved).await? else { return Ok(()) };
        // What is not kept yet must not get lost while this takes its time.
        self.save(unsaved).await?;
        if !self.book.borrow().may_act() {
            // Every call would be denied for as long as this guild keeps the queue.
            self.give_up();
            return Ok(());
        }
        self.book.borrow_mut().line().on_started(seq);
        let (limit, trace, began) = (self.seat.config.perform_timeout, work.trace, self.seat.clock.now());
        let reconciled = timeout(limit, self.seat.perform.reconcile(work)).await.unwrap_or_else(|_| {
            let why = format!("looking for it took longer than {limit:?}");
            Reconciled::Held { retry_after: self.seat.config.blind_hold, hold: Hold::All, why }
        });
        self.tell_of_try(seq, TriedTo::Reconcile, trace, began, found(&reconciled));
        let mut book = self.book.borrow_mut();
        if let Some(case) = book.case(seq) {
            let verdict = judge_search(reconciled, case, &self.seat.config);
            add(unsaved, book.conclude(seq, verdict, None, self.seat.clock.now()));
            failpoint::pass(Point::BeforeOutcome);
        }
        Ok(())
    }
}
