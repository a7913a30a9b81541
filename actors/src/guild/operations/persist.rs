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
const BATCH_SIZE: usize = 64;

impl Worker {
    /// Makes one call to the store.
    pub(super) async fn call_store<T>(&self, call: StoreFuture<'_, T>) -> Result<T, StoreError> {
        self.spec.config.store_retry().attempt(call).await
    }

    pub(super) async fn back_off(&self, what: &'static str, error: &StoreError, tried: u32) {
        self.spec.config.store_retry().back_off(Some(self.spec.queue), what, error, tried).await;
    }

    pub(super) async fn save_if_many(&self, unsaved: &mut Vec<OperationUpdate>) -> Result<(), Fenced> {
        if unsaved.len() >= BATCH_SIZE {
            self.save(unsaved).await?;
        }
        Ok(())
    }

    /// Saves updates, however long that takes. Returns the result of the last one.
    pub(super) async fn save(&self, unsaved: &mut Vec<OperationUpdate>) -> Result<UpdateResult, Fenced> {
        let Some(last) = unsaved.last() else { return Ok(UpdateResult::Done) };
        let last = last.id;
        let mut tried = 0;
        let results = loop {
            match self.call_store(self.spec.store.record(unsaved.clone())).await {
                Ok(results) => break results,
                Err(error) => {
                    tried += 1;
                    self.back_off("record", &error, tried).await;
                }
            }
        };
        if unsaved.iter().any(|update| update.state != OperationState::Running) {
            failpoint::pass(Point::AfterOutcome);
        }
        let mut last_result = UpdateResult::Done;
        for (update, result) in unsaved.drain(..).zip(results) {
            match result {
                UpdateResult::Done => {}
                UpdateResult::Fenced => return Err(Fenced),
                UpdateResult::Finished => {
                    self.state.borrow_mut().forget(update.id);
                    if update.id == last {
                        last_result = UpdateResult::Finished;
                    }
                }
            }
        }
        Ok(last_result)
    }

    pub(super) async fn load(&self, unsaved: &mut Vec<OperationUpdate>) -> Result<(), Fenced> {
        let GuildSpec { store, queue, config, clock, shared, poison, .. } = &self.spec;
        let after = self.state.borrow().order_view().last();
        let mut tried = 0;
        let page = loop {
            match self.call_store(store.load(*queue, after, config.page_size)).await {
                Ok(page) => break page,
                Err(error) => {
                    tried += 1;
                    self.back_off("load", &error, tried).await;
                    if self.must_stop() {
                        return Ok(());
                    }
                }
            }
        };
        let now = clock.now();
        let OperationPage { operations: page, unreadable, scheduled } = page;
        let has_more = page.len() + unreadable.len() >= config.page_size;
        for unreadable in &unreadable {
            merge_update(unsaved, Some(self.set_aside(unreadable)));
        }
        let mut state = self.state.borrow_mut();
        let mut entries = Vec::with_capacity(page.len());
        for stored in page {
            shared.set_executing(Some(stored.operation.id));
            let (entry, update) = state.add(stored, now);
            entries.push(entry);
            merge_update(unsaved, update);
        }
        shared.set_executing(None);
        let poisoned = poison
            .and_then(|poison| entries.iter().find(|entry| entry.id == poison.input).map(|entry| (entry.seq, poison)));
        state.order().on_loaded(entries, has_more);
        state.order().on_scheduled(scheduled);
        if let Some((seq, poison)) = poisoned {
            merge_update(unsaved, state.end_poisoned(seq, poison, now));
        }
        Ok(())
    }
}

impl Worker {
    /// Ends an operation that cannot be read: another attempt would block its queue forever.
    pub(super) fn set_aside(&self, unreadable: &UnreadableOperation) -> OperationUpdate {
        let GuildSpec { queue, fence, clock, .. } = &self.spec;
        let (state, failure) = unreadable.final_state();
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
            created: None,
            intent: IntentUpdate::Unchanged,
            progress: None,
            attempt: None,
            unknown_outcome: None,
            bind: Vec::new(),
            unbind: Vec::new(),
            at: now,
        }
    }

    /// Gives scheduled operations that are due their positions.
    pub(super) async fn join_due(&self) {
        let GuildSpec { store, queue, config, clock, .. } = &self.spec;
        let mut tried = 0;
        loop {
            match self.call_store(store.join_due(*queue, clock.now(), config.max_joins)).await {
                Ok(next) => return self.state.borrow_mut().order().on_joined(next),
                Err(error) => {
                    tried += 1;
                    self.back_off("join", &error, tried).await;
                    if self.must_stop() {
                        return;
                    }
                }
            }
        }
    }
}

/// Adds an update to those that are saved together. An operation has one update: the later one has its state, and
/// everything else of the earlier one is merged into it.
pub(super) fn merge_update(unsaved: &mut Vec<OperationUpdate>, update: Option<OperationUpdate>) {
    let Some(mut update) = update else { return };
    if let Some(at) = unsaved.iter().position(|earlier| earlier.id == update.id) {
        let earlier = unsaved.remove(at);
        update.attempt = update.attempt.or(earlier.attempt);
        update.unknown_outcome = update.unknown_outcome.or(earlier.unknown_outcome);
        // An intent that is opened and closed before either is saved may be stored nevertheless, if a response was
        // lost.
        if update.intent == IntentUpdate::Unchanged {
            update.intent = earlier.intent;
        }
        if let Some(earlier) = earlier.progress {
            let added_bytes = earlier.added_bytes + update.progress.as_ref().map_or(0, |progress| progress.added_bytes);
            let json = update.progress.map_or(earlier.json, |progress| progress.json);
            update.progress = Some(ProgressUpdate { json, added_bytes });
        }
        update.bind.splice(0..0, earlier.bind);
        update.unbind.splice(0..0, earlier.unbind);
    }
    unsaved.push(update);
}
