//! What a guild does, one thing after the other.
//!
//! ```text
//!  load ─▶ whose turn? ─▶ resolve ─▶ record [end of the last, start of this] ─▶ perform ─▶ judge ─┐
//!              ▲                                                                                  │
//!              └──────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! What came of one operation and the start of the next are kept together, so that an operation costs one commit. Nothing
//! is sent before the store has kept that it is about to be.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use guildhall_core::guild::{HeldBack, Phase, Step};
use guildhall_core::operation::{Failure, FailureClass, Reference};
use guildhall_core::time::UnixMs;
use tokio::sync::oneshot;
use tokio::task::coop::consume_budget;
use tokio::time::{sleep, timeout};

use super::book::{Book, Readiness, own_key};
use super::verdict::{Verdict, judge, judge_search};
use super::{Departure, Leave, Seat};
use crate::operations::throttle::Admission;
use crate::operations::{
    Attempt, Change, Hold, Intent, Performed, Reconciled, Recorded, Resolved, StoreError, StoreFuture, Wanted, Work,
};
use crate::telemetry::emit;
use crate::telemetry::operations::{GuildFenced, StoreRetried};

/// Clocks are set, so no wait is believed for longer than this.
const LONGEST_REST: Duration = Duration::from_secs(60);
/// Changes that are kept at once at most.
const BATCH: usize = 64;
/// How often a queue is given back that the store does not take, before it is left to its lease.
const RELEASES: u32 = 3;

/// Why a guild stops in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fenced;

/// A request to leave, and who waits for the answer.
#[derive(Debug)]
struct Leaving {
    how: Leave,
    answer: oneshot::Sender<Departure>,
}

/// Does what a guild does.
#[derive(Debug)]
pub(super) struct Worker {
    seat: Seat,
    book: RefCell<Book>,
    paused: Cell<bool>,
    leaving: RefCell<Option<Leaving>>,
}

impl Worker {
    pub(super) fn new(seat: Seat) -> Self {
        let book = RefCell::new(Book::new(seat.queue, seat.fence, &seat.config));
        let paused = Cell::new(seat.paused);
        Self { seat, book, paused, leaving: RefCell::default() }
    }

    pub(super) const fn seat(&self) -> &Seat {
        &self.seat
    }

    pub(super) const fn book(&self) -> &RefCell<Book> {
        &self.book
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.get()
    }

    pub(super) fn pause(&self, paused: bool) {
        self.paused.set(paused);
        self.seat.vitals.nudge();
    }

    /// Asks it to leave.
    pub(super) fn ask_to_leave(&self, how: Leave) -> oneshot::Receiver<Departure> {
        let (answer, answered) = oneshot::channel();
        if how == Leave::IfIdle && self.seat.vitals.resting_since().is_none() {
            let _ = answer.send(Departure::Busy);
            return answered;
        }
        // One that asked before was asked by somebody who no longer waits.
        let before = self.leaving.replace(Some(Leaving { how, answer }));
        if let Some(Leaving { answer, .. }) = before {
            let _ = answer.send(Departure::Busy);
        }
        self.seat.vitals.nudge();
        answered
    }

    /// Works until it has left its queue, or lost it.
    pub(super) async fn work(&self) {
        if self.go_on().await == Err(Fenced) {
            emit(GuildFenced { queue: self.seat.queue });
            self.answer(Departure::Released);
        }
        self.seat.vitals.end();
    }

    async fn go_on(&self) -> Result<(), Fenced> {
        let mut unsaved = Vec::new();
        loop {
            // A store and a Discord that answer at once must not keep other guilds from their turn.
            consume_budget().await;
            self.listen();
            if self.has_to_leave() {
                self.save(&mut unsaved).await?;
                self.depart().await;
                return Ok(());
            }
            let now = self.seat.clock.now();
            let step = self.book.borrow_mut().line().next(now);
            let due = match step {
                Step::Run(_) if self.paused.get() => None,
                Step::Run(seq) => {
                    self.stay();
                    self.turn(seq, &mut unsaved).await?;
                    continue;
                }
                Step::Expire(seq) => {
                    add(&mut unsaved, self.book.borrow_mut().expire(seq, now));
                    self.save_if_many(&mut unsaved).await?;
                    continue;
                }
                Step::Park(seq) => {
                    add(&mut unsaved, self.book.borrow().park(seq, now));
                    continue;
                }
                Step::NeedMore => {
                    self.save(&mut unsaved).await?;
                    self.stay();
                    self.load(&mut unsaved).await?;
                    continue;
                }
                Step::WaitUntil(due) => Some(due),
                Step::Idle => None,
            };
            self.save(&mut unsaved).await?;
            if self.leaves_idle(due).await {
                return Ok(());
            }
            self.rest(due).await;
        }
    }

    /// Takes in what was said.
    fn listen(&self) {
        let Some(words) = self.seat.vitals.listen() else { return };
        let now = self.seat.clock.now();
        let mut book = self.book.borrow_mut();
        book.line().on_woken();
        for word in words {
            book.hear(word, now);
        }
    }

    async fn rest(&self, due: Option<UnixMs>) {
        let Seat { vitals, clock, .. } = &self.seat;
        let wait = due.map_or(LONGEST_REST, |due| clock.until(due)).min(LONGEST_REST);
        vitals.rest(clock.now(), due);
        if !vitals.is_woken() {
            // Whichever comes first.
            let _ = timeout(wait, vitals.nudged()).await;
        }
        // One that is merely asked to leave goes on resting.
        if vitals.is_woken() || due.is_some_and(|due| due <= clock.now()) {
            vitals.work();
        }
    }

    /// There is something to do: whoever asked it to leave if there is not has to ask again.
    fn stay(&self) {
        self.seat.vitals.work();
        if self.leaving.borrow().as_ref().is_some_and(|leaving| leaving.how == Leave::IfIdle) {
            self.answer(Departure::Busy);
        }
    }

    fn has_to_leave(&self) -> bool {
        self.leaving.borrow().as_ref().is_some_and(|leaving| leaving.how == Leave::Now)
    }

    /// Leaves if somebody asked and nothing is to be done; `true` if it has left.
    async fn leaves_idle(&self, due: Option<UnixMs>) -> bool {
        let Seat { vitals, clock, config, store, queue, fence, .. } = &self.seat;
        if self.leaving.borrow().is_none() {
            return false;
        }
        let soon = due.is_some_and(|due| clock.until(due) <= config.long_wait);
        if vitals.is_woken() || soon {
            self.answer(Departure::Busy);
            return false;
        }
        // It may be anybody's from the first try on, whatever the store says: there is no way back.
        let mut tried = 0;
        while let Err(error) = self.ask(store.release(*queue, *fence)).await {
            tried += 1;
            self.back_off("release", &error, tried).await;
        }
        self.answer(Departure::Released);
        true
    }

    /// Gives its queue back, whatever is left in it.
    async fn depart(&self) {
        let Seat { store, queue, fence, .. } = &self.seat;
        for tried in 1..=RELEASES {
            match self.ask(store.release(*queue, *fence)).await {
                Ok(_) => return self.answer(Departure::Released),
                Err(error) if tried < RELEASES => self.back_off("release", &error, tried).await,
                Err(_) => {}
            }
        }
        self.answer(Departure::Unreleased);
    }

    fn answer(&self, departure: Departure) {
        if let Some(Leaving { answer, .. }) = self.leaving.take() {
            let _ = answer.send(departure);
        }
    }

    /// A call to the store, for as long as one may take.
    async fn ask<T>(&self, call: StoreFuture<'_, T>) -> Result<T, StoreError> {
        timeout(self.seat.config.store_timeout, call)
            .await
            .unwrap_or_else(|_| Err(StoreError::Unavailable("it did not answer in time".to_owned())))
    }

    async fn back_off(&self, what: &'static str, error: &StoreError, tried: u32) {
        let wait = self.seat.config.store_backoff.delay(tried, fastrand::f64());
        emit(StoreRetried { queue: Some(self.seat.queue), what, error, wait });
        sleep(wait).await;
    }

    async fn save_if_many(&self, unsaved: &mut Vec<Change>) -> Result<(), Fenced> {
        if unsaved.len() >= BATCH {
            self.save(unsaved).await?;
        }
        Ok(())
    }

    /// Has changes kept, however long that takes. The answer to the last one.
    async fn save(&self, unsaved: &mut Vec<Change>) -> Result<Recorded, Fenced> {
        let Some(last) = unsaved.last() else { return Ok(Recorded::Done) };
        let last = last.id;
        let mut tried = 0;
        let answers = loop {
            match self.ask(self.seat.store.record(unsaved.clone())).await {
                Ok(answers) => break answers,
                Err(error) => {
                    tried += 1;
                    self.back_off("record", &error, tried).await;
                }
            }
        };
        let mut recorded = Recorded::Done;
        for (change, answer) in unsaved.drain(..).zip(answers) {
            match answer {
                Recorded::Done => {}
                Recorded::Fenced => return Err(Fenced),
                Recorded::Gone => {
                    self.book.borrow_mut().forget(change.id);
                    if change.id == last {
                        recorded = Recorded::Gone;
                    }
                }
            }
        }
        Ok(recorded)
    }

    async fn load(&self, unsaved: &mut Vec<Change>) -> Result<(), Fenced> {
        let Seat { store, queue, config, clock, vitals, poison, .. } = &self.seat;
        let after = self.book.borrow().shown().last();
        let mut tried = 0;
        let page = loop {
            match self.ask(store.load(*queue, after, config.page)).await {
                Ok(page) => break page,
                Err(error) => {
                    tried += 1;
                    self.back_off("load", &error, tried).await;
                    if self.has_to_leave() {
                        return Ok(());
                    }
                }
            }
        };
        let now = clock.now();
        let more = page.len() >= config.page;
        let mut book = self.book.borrow_mut();
        let mut entries = Vec::with_capacity(page.len());
        for stored in page {
            vitals.execute(Some(stored.operation.id));
            let (entry, change) = book.enter(stored, *poison, now);
            entries.push(entry);
            add(unsaved, change);
        }
        vitals.execute(None);
        let poisoned = poison
            .and_then(|poison| entries.iter().find(|entry| entry.id == poison.id).map(|entry| (entry.seq, poison)));
        book.line().on_loaded(entries, more);
        if let Some((seq, poison)) = poisoned {
            add(unsaved, book.end_poison(seq, poison, now));
        }
        Ok(())
    }

    /// It is this one's turn, if it may begin.
    async fn turn(&self, seq: u64, unsaved: &mut Vec<Change>) -> Result<(), Fenced> {
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
    async fn admission(&self, seq: u64, unsaved: &mut Vec<Change>) -> Result<Option<Admission>, Fenced> {
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

    async fn execute(&self, seq: u64, unsaved: &mut Vec<Change>) -> Result<(), Fenced> {
        let Some(work) = self.prepare(seq, unsaved).await? else { return Ok(()) };
        let started_at = self.seat.clock.now();
        let Some(start) = self.book.borrow_mut().start(seq, started_at) else { return Ok(()) };
        add(unsaved, Some(start));
        if self.save(unsaved).await? == Recorded::Gone {
            return Ok(());
        }
        if self.may_no_longer_be_sent(seq) {
            add(unsaved, self.book.borrow_mut().unstart(seq, self.seat.clock.now()));
            return Ok(());
        }
        let limit = self.seat.config.perform_timeout;
        let performed = timeout(limit, self.seat.perform.perform(work)).await.unwrap_or_else(|_| {
            Performed::Failed(Failure::new(FailureClass::Ambiguous, format!("nothing came of it within {limit:?}")))
        });
        self.settle(seq, performed, started_at, unsaved);
        Ok(())
    }

    /// Whether something has happened while the store took its time.
    fn may_no_longer_be_sent(&self, seq: u64) -> bool {
        let deadline = self.book.borrow().shown().entry(seq).and_then(|entry| entry.deadline);
        self.paused.get() || self.has_to_leave() || deadline.is_some_and(|deadline| deadline <= self.seat.clock.now())
    }

    fn settle(&self, seq: u64, performed: Performed, started_at: UnixMs, unsaved: &mut Vec<Change>) {
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
        add(unsaved, book.conclude(seq, verdict, attempt, now));
    }

    /// Looks for what an earlier try may have done.
    async fn search(&self, seq: u64, unsaved: &mut Vec<Change>) -> Result<(), Fenced> {
        let Some(work) = self.prepare(seq, unsaved).await? else { return Ok(()) };
        // What is not kept yet must not get lost while this takes its time.
        self.save(unsaved).await?;
        self.book.borrow_mut().line().on_started(seq);
        let limit = self.seat.config.perform_timeout;
        let reconciled = timeout(limit, self.seat.perform.reconcile(work)).await.unwrap_or_else(|_| {
            let why = format!("looking for it took longer than {limit:?}");
            Reconciled::Held { retry_after: self.seat.config.blind_hold, hold: Hold::All, why }
        });
        let mut book = self.book.borrow_mut();
        if let Some(case) = book.case(seq) {
            let verdict = judge_search(reconciled, case, &self.seat.config);
            add(unsaved, book.conclude(seq, verdict, None, self.seat.clock.now()));
        }
        Ok(())
    }

    /// What is to be done, with ids only; nothing if it cannot be done now.
    async fn prepare(&self, seq: u64, unsaved: &mut Vec<Change>) -> Result<Option<Work>, Fenced> {
        let Seat { store, queue, config, clock, .. } = &self.seat;
        let mut tried = 0;
        loop {
            let readiness = self.book.borrow_mut().ready(seq, clock.now());
            match readiness {
                Readiness::Ready(work) => return Ok(Some(*work)),
                Readiness::Wrong(failure) => {
                    let verdict = if self.may_have_happened(seq) { Verdict::Review } else { Verdict::Dead };
                    add(unsaved, self.book.borrow_mut().conclude(seq, verdict(failure), None, clock.now()));
                    return Ok(None);
                }
                Readiness::Unread => {
                    self.save(unsaved).await?;
                    match self.ask(store.load(*queue, seq - 1, config.page)).await {
                        Ok(page) if page.first().is_none_or(|stored| stored.seq != seq) => {
                            // Somebody took it back.
                            let id = self.book.borrow().id(seq);
                            id.into_iter().for_each(|id| self.book.borrow_mut().forget(id));
                            return Ok(None);
                        }
                        Ok(page) => self.book.borrow_mut().reread(page, seq),
                        Err(error) => {
                            tried += 1;
                            self.back_off("load", &error, tried).await;
                        }
                    }
                }
                Readiness::Refers(wanted) => {
                    // It may refer to what is not kept yet.
                    self.save(unsaved).await?;
                    let guild = self.book.borrow().guild(seq);
                    match self.ask(store.resolve(guild, wanted.clone())).await {
                        Ok(found) => return Ok(self.resolved(seq, &wanted, &found, unsaved)),
                        Err(error) => {
                            tried += 1;
                            self.back_off("resolve", &error, tried).await;
                        }
                    }
                }
            }
            if self.has_to_leave() {
                return Ok(None);
            }
        }
    }

    fn may_have_happened(&self, seq: u64) -> bool {
        let book = self.book.borrow();
        book.shown().entry(seq).is_some_and(|entry| matches!(entry.phase, Phase::Reconciling))
    }

    /// Puts ids into a payload, or says what becomes of an operation that refers to nothing.
    fn resolved(&self, seq: u64, wanted: &[Wanted], found: &[Resolved], unsaved: &mut Vec<Change>) -> Option<Work> {
        let may_have_happened = self.may_have_happened(seq);
        let mut book = self.book.borrow_mut();
        let payload = book.payload(seq)?;
        let look =
            |asked: &Wanted| wanted.iter().position(|wanted| wanted == asked).and_then(|at| found.get(at).copied());
        let own = own_key(payload).map(|(kind, key)| Wanted::Key(kind, key.to_owned()));
        let bound = own.as_ref().and_then(look).and_then(|resolved| match resolved {
            Resolved::Object { id, channel } => Some((id, channel)),
            Resolved::Pending | Resolved::Nothing(_) => None,
        });
        let mut pending = None;
        let resolved = payload.resolve(|kind, reference| {
            let asked = match reference {
                Reference::Id(id) => return Some(*id),
                Reference::Key(key) => Wanted::Key(kind, key.clone()),
                Reference::Operation(id) => Wanted::Operation(*id),
            };
            match look(&asked)? {
                Resolved::Object { id, .. } => Some(id),
                Resolved::Pending => {
                    pending = Some(asked);
                    None
                }
                Resolved::Nothing(_) => None,
            }
        });
        let verdict = match (resolved, pending) {
            (Ok(payload), _) => return book.work(seq, payload, bound, self.seat.clock.now()),
            (Err(_), Some(pending)) => {
                let why = format!("it waits for {}, which is not done", named(&pending));
                let wait = self.seat.config.reference_backoff.delay(book.delays(seq) + 1, fastrand::f64());
                let error = Failure::new(FailureClass::RateLimited, why);
                if may_have_happened {
                    Verdict::Reconciling { wait, error }
                } else {
                    Verdict::Delayed { wait, held: HeldBack::Alone, reason: "reference", error }
                }
            }
            (Err(missing), None) => {
                let missing: Vec<String> = missing.iter().map(refers_to).collect();
                let message =
                    format!("it refers to {}, which nothing stands for; see whether it was made", missing.join(", "));
                let failure = Failure::new(FailureClass::NotFound, message);
                if may_have_happened { Verdict::Review(failure) } else { Verdict::Dead(failure) }
            }
        };
        add(unsaved, book.conclude(seq, verdict, None, self.seat.clock.now()));
        None
    }
}

/// Adds a change to those that are kept together. An operation is among them once: the later change tells where it
/// stands, and nothing that the earlier one tells besides gets lost.
fn add(unsaved: &mut Vec<Change>, change: Option<Change>) {
    let Some(mut change) = change else { return };
    if let Some(at) = unsaved.iter().position(|earlier| earlier.id == change.id) {
        let earlier = unsaved.remove(at);
        change.attempt = change.attempt.or(earlier.attempt);
        if change.intent == Intent::Keep {
            change.intent = earlier.intent;
        }
    }
    unsaved.push(change);
}

fn named(wanted: &Wanted) -> String {
    match wanted {
        Wanted::Key(kind, key) => format!("the {} with key `{key}`", kind.name()),
        Wanted::Operation(id) => format!("operation {id}"),
    }
}

fn refers_to(reference: &Reference) -> String {
    match reference {
        Reference::Id(id) => id.to_string(),
        Reference::Key(key) => format!("key `{key}`"),
        Reference::Operation(id) => format!("operation {id}"),
    }
}
