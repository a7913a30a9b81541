//! What a guild does, one thing after the other.
//!
//! ```text
//!  load ─▶ whose turn? ─▶ resolve ─▶ perform ─────────────────────────────────────────────▶ judge ─┐
//!              ▲                        └▶ permit ─▶ record [end of the last, start of this] ─▶ send │
//!              └─────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The outcome of one operation and the start of the next are stored together, so that an operation costs one commit. A call
//! with an effect is sent once it is stored that it may be in flight; see `execution`.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use guildhall_core::guild::OrderStep;
use guildhall_core::time::UnixMs;
use tokio::sync::oneshot;
use tokio::task::coop::consume_budget;
use tokio::time::timeout;

use super::persist::add;
use super::queue_state::QueueState;
use super::{GuildSpec, StopMode, StopResult};
use crate::failpoint;
use crate::ports::OperationUpdate;
use crate::supervision::Part;
use crate::supervisor::operations::wakeups::ReleasedConditions;
use crate::telemetry::emit;
use crate::telemetry::operations::{GuildFenced, OperationsReleased};

/// Clocks are set, so no wait is believed for longer than this.
const LONGEST_REST: Duration = Duration::from_secs(60);
/// How often a process that is about to end gives a queue back that the store does not take, before it is left to its lease.
const RELEASES: u32 = 3;

/// Why a guild stops in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fenced;

/// A request to leave, and who waits for the answer.
#[derive(Debug)]
struct StopRequest {
    how: StopMode,
    answer: oneshot::Sender<StopResult>,
}

/// Does what a guild does.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) seat: GuildSpec,
    pub(super) book: RefCell<QueueState>,
    pub(super) paused: Cell<bool>,
    /// Whether it leaves by itself.
    gives_up: Cell<bool>,
    leaving: RefCell<Option<StopRequest>>,
}

impl Worker {
    pub(super) fn new(seat: GuildSpec) -> Self {
        let right = seat.store.right(seat.queue, seat.fence);
        let book = RefCell::new(QueueState::new(seat.queue, seat.fence, right, &seat.config));
        let paused = Cell::new(seat.paused);
        Self { seat, book, paused, gives_up: Cell::new(false), leaving: RefCell::default() }
    }

    pub(super) const fn seat(&self) -> &GuildSpec {
        &self.seat
    }

    pub(super) const fn book(&self) -> &RefCell<QueueState> {
        &self.book
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.get()
    }

    pub(super) fn pause(&self, paused: bool) {
        self.paused.set(paused);
        if paused {
            self.seat.vitals.nudge();
        } else {
            // Whatever held its operations back, the gate is asked again.
            self.seat.vitals.release(&ReleasedConditions::All);
        }
    }

    /// Asks it to leave.
    pub(super) fn ask_to_leave(&self, how: StopMode) -> oneshot::Receiver<StopResult> {
        let (answer, answered) = oneshot::channel();
        if how == StopMode::IfIdle && self.seat.vitals.resting_since().is_none() {
            let _ = answer.send(StopResult::Busy);
            return answered;
        }
        // One that asked before was asked by somebody who no longer waits.
        let before = self.leaving.replace(Some(StopRequest { how, answer }));
        if let Some(StopRequest { answer, .. }) = before {
            let _ = answer.send(StopResult::Busy);
        }
        self.seat.vitals.nudge();
        answered
    }

    /// Works until it has left its queue, or lost it.
    pub(super) async fn work(&self) {
        if self.go_on().await == Err(Fenced) {
            emit(GuildFenced { queue: self.seat.queue });
            self.answer(StopResult::Released);
        }
        self.seat.vitals.end();
    }

    async fn go_on(&self) -> Result<(), Fenced> {
        let mut unsaved = Vec::new();
        loop {
            // A store and a Discord that answer at once must not keep other guilds from their turn.
            consume_budget().await;
            self.listen(&mut unsaved);
            if self.has_to_leave() {
                self.save(&mut unsaved).await?;
                self.depart().await;
                return Ok(());
            }
            let now = self.seat.clock.now();
            let step = self.book.borrow_mut().line().next(now);
            let due = match step {
                OrderStep::Run(_) if self.paused.get() => None,
                OrderStep::Run(seq) => {
                    self.stay();
                    failpoint::message(Part::OperationGuild);
                    self.turn(seq, &mut unsaved).await?;
                    continue;
                }
                OrderStep::Expire(seq) => {
                    add(&mut unsaved, self.book.borrow_mut().expire(seq, now));
                    self.save_if_many(&mut unsaved).await?;
                    continue;
                }
                OrderStep::Park(seq) => {
                    add(&mut unsaved, self.book.borrow().park(seq, now));
                    continue;
                }
                OrderStep::Join => {
                    self.save(&mut unsaved).await?;
                    self.stay();
                    self.join().await;
                    continue;
                }
                OrderStep::NeedMore => {
                    self.save(&mut unsaved).await?;
                    self.stay();
                    self.load(&mut unsaved).await?;
                    continue;
                }
                OrderStep::WaitUntil(due) => Some(due),
                OrderStep::Idle => None,
            };
            self.save(&mut unsaved).await?;
            if self.has_to_leave() {
                // It was told to while the store took its time.
                continue;
            }
            if self.leaves_idle(due).await {
                return Ok(());
            }
            self.rest(due).await;
        }
    }

    /// Takes in what was said.
    pub(super) fn listen(&self, unsaved: &mut Vec<OperationUpdate>) {
        let Some(heard) = self.seat.vitals.listen() else { return };
        let now = self.seat.clock.now();
        let mut book = self.book.borrow_mut();
        book.line().on_woken();
        for word in heard.words {
            book.hear(word, now);
        }
        let released = book.release(&heard.released, now);
        if !released.is_empty() {
            emit(OperationsReleased { queue: self.seat.queue, count: released.len() });
        }
        released.into_iter().for_each(|change| add(unsaved, Some(change)));
    }

    async fn rest(&self, due: Option<UnixMs>) {
        let GuildSpec { vitals, clock, .. } = &self.seat;
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
        if self.leaving.borrow().as_ref().is_some_and(|leaving| leaving.how == StopMode::IfIdle) {
            self.answer(StopResult::Busy);
        }
    }

    /// Leaves as soon as nothing is under way, though nobody has asked it to.
    pub(super) fn give_up(&self) {
        self.gives_up.set(true);
    }

    pub(super) fn has_to_leave(&self) -> bool {
        let told = self.leaving.borrow().as_ref().is_some_and(|leaving| match leaving.how {
            StopMode::Now | StopMode::AtEnd => true,
            StopMode::IfIdle => false,
        });
        self.gives_up.get() || told
    }

    /// Leaves if somebody asked and nothing is to be done; `true` if it has left.
    async fn leaves_idle(&self, due: Option<UnixMs>) -> bool {
        let GuildSpec { vitals, clock, config, .. } = &self.seat;
        if self.leaving.borrow().is_none() {
            return false;
        }
        let soon = due.is_some_and(|due| clock.until(due) <= config.long_wait);
        if vitals.is_woken() || soon {
            self.answer(StopResult::Busy);
            return false;
        }
        self.depart().await;
        true
    }

    /// Gives its queue back, whatever is left in it. It may be anybody's from the first try on, whatever the store says: there
    /// is no way back. And for as long as the process lives nobody else would give it back.
    async fn depart(&self) {
        let GuildSpec { store, queue, fence, .. } = &self.seat;
        let mut tried = 0;
        while let Err(error) = self.ask(store.release(*queue, *fence)).await {
            tried += 1;
            if tried >= RELEASES && self.is_at_end() {
                return self.answer(StopResult::Unreleased);
            }
            self.back_off("release", &error, tried).await;
        }
        self.answer(StopResult::Released);
    }

    /// Whether the process is about to end.
    fn is_at_end(&self) -> bool {
        self.leaving.borrow().as_ref().is_some_and(|leaving| leaving.how == StopMode::AtEnd)
    }

    fn answer(&self, departure: StopResult) {
        if let Some(StopRequest { answer, .. }) = self.leaving.take() {
            let _ = answer.send(departure);
        }
    }
}
