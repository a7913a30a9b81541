//! Reads and writes a guild's operations, however long the store takes.

use guildhall_core::operation::OperationState;

use super::GuildSpec;
use super::run_loop::{Fenced, Worker};
use crate::failpoint::{self, Point};
use crate::ports::{
    IntentUpdate, OperationPage, OperationUpdate, ProgressUpdate, StoreError, StoreFuture, UnreadableOperation,
    UpdateResult,
};
use crate::telemetry::crash::UnreadableSetAside;
use crate::telemetry::emit;

/// Maximum number of updates in one write.
const BATCH: usize = 64;

impl Worker {
    /// Makes one call to the store.
    pub(super) async fn ask<T>(&self, call: StoreFuture<'_, T>) -> Result<T, StoreError> {
        self.seat.config.store_retry().attempt(call).await
    }

    pub(super) async fn back_off(&self, what: &'static str, error: &StoreError, tried: u32) {
        self.seat.config.store_retry().back_off(Some(self.seat.queue), what, error, tried).await;
    }

    pub(super) async fn save_if_many(&self, unsaved: &mut Vec<OperationUpdate>) -> Result<(), Fenced> {
        if unsaved.len() >= BATCH {
            self.save(unsaved).await?;
        }
        Ok(())
    }

    /// Saves updates, however long that takes. Returns the result of the last one.
    pub(super) async fn save(&self, unsaved: &mut Vec<OperationUpdate>) -> Result<UpdateResult, Fenced> {
        let Some(last) = unsaved.last() else { return Ok(UpdateResult::Done) };
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
        if unsaved.iter().any(|change| change.state != OperationState::Running) {
            failpoint::pass(Point::AfterOutcome);
        }
        let mut recorded = UpdateResult::Done;
        for (change, answer) in unsaved.drain(..).zip(answers) {
            match answer {
                UpdateResult::Done => {}
                UpdateResult::Fenced => return Err(Fenced),
                UpdateResult::Gone => {
                    self.book.borrow_mut().forget(change.id);
                    if change.id == last {
                        recorded = UpdateResult::Gone;
                    }
                }
            }
        }
        Ok(recorded)
    }

    pub(super) async fn load(&self, unsaved: &mut Vec<OperationUpdate>) -> Result<(), Fenced> {
        let GuildSpec { store, queue, config, clock, vitals, poison, .. } = &self.seat;
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
        let OperationPage { operations: page, unreadable, scheduled } = page;
        let more = page.len() + unreadable.len() >= config.page;
        for unreadable in &unreadable {
            add(unsaved, Some(self.set_aside(unreadable)));
        }
        let mut book = self.book.borrow_mut();
        let mut entries = Vec::with_capacity(page.len());
        for stored in page {
            vitals.execute(Some(stored.operation.id));
            let (entry, change) = book.enter(stored, now);
            entries.push(entry);
            add(unsaved, change);
        }
        vitals.execute(None);
        let poisoned = poison
            .and_then(|poison| entries.iter().find(|entry| entry.id == poison.input).map(|entry| (entry.seq, poison)));
        book.line().on_loaded(entries, more);
        book.line().on_scheduled(scheduled);
        if let Some((seq, poison)) = poisoned {
            add(unsaved, book.end_poison(seq, poison, now));
        }
        Ok(())
    }
}

impl Worker {
    /// Ends an operation that cannot be read: another attempt would block its queue forever.
    pub(super) fn set_aside(&self, unreadable: &UnreadableOperation) -> OperationUpdate {
        let GuildSpec { queue, fence, clock, .. } = &self.seat;
        let (state, failure) = unreadable.verdict();
        emit(UnreadableSetAside { unreadable, queue: *queue, result: state });
        let now = clock.now();
        OperationUpdate {
            queue: *queue,
            fence: *fence,
            id: unreadable.id,
            guild: unreadable.guild,
            state,
            attempts: unreadable.attempts,
            delays: unreadable.delays,
            eligible_at: now,
            parked: false,
            error: Some(failure),
            result: None,
            made: None,
            intent: IntentUpdate::Keep,
            progress: None,
            attempt: None,
            unknown_outcome: None,
            bind: Vec::new(),
            unbind: Vec::new(),
            at: now,
        }
    }

    /// Gives scheduled operations that are due their positions.
    pub(super) async fn join(&self) {
        let GuildSpec { store, queue, config, clock, .. } = &self.seat;
        let mut tried = 0;
        loop {
            match self.ask(store.join(*queue, clock.now(), config.join_most)).await {
                Ok(next) => return self.book.borrow_mut().line().on_joined(next),
                Err(error) => {
                    tried += 1;
                    self.back_off("join", &error, tried).await;
                    if self.has_to_leave() {
                        return;
                    }
                }
            }
        }
    }
}

/// Adds an update to those that are saved together. An operation has one update: the later one has its state, and
/// everything else of the earlier one is merged into it.
pub(super) fn add(unsaved: &mut Vec<OperationUpdate>, change: Option<OperationUpdate>) {
    let Some(mut change) = change else { return };
    if let Some(at) = unsaved.iter().position(|earlier| earlier.id == change.id) {
        let earlier = unsaved.remove(at);
        change.attempt = change.attempt.or(earlier.attempt);
        change.unknown_outcome = change.unknown_outcome.or(earlier.unknown_outcome);
        // An intent that is opened and closed before either is saved may be stored nevertheless, if a response was
        // lost.
        if change.intent == IntentUpdate::Keep {
            change.intent = earlier.intent;
        }
        if let Some(earlier) = earlier.progress {
            let grown = earlier.grown + change.progress.as_ref().map_or(0, |progress| progress.grown);
            let json = change.progress.map_or(earlier.json, |progress| progress.json);
            change.progress = Some(ProgressUpdate { json, grown });
        }
        change.bind.splice(0..0, earlier.bind);
        change.unbind.splice(0..0, earlier.unbind);
    }
    unsaved.push(change);
}
