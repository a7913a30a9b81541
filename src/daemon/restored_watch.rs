//! Reports what becomes of the operations of a restored store.

use guildhall_actors::ports::StoreError;

use crate::{
    events::{RestoreChecked, RestorePending, emit},
    store::{RestoreProgress, Store},
};

/// Reports the operations of a restored store that are not checked yet, and then the result.
#[derive(Debug)]
pub(crate) struct RestoredWatch {
    store: Store,
    state: WatchState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchState {
    /// Nothing was reported yet.
    Started,
    Pending,
    /// There is nothing more to report.
    Done,
}

impl RestoredWatch {
    pub(crate) const fn new(store: Store) -> Self {
        Self { store, state: WatchState::Started }
    }

    /// Reports what has changed. If the store does not respond, the next call does.
    pub(crate) async fn tick(&mut self) {
        if self.state != WatchState::Done
            && let Ok(state) = self.report().await
        {
            self.state = state;
        }
    }

    async fn report(&self) -> Result<WatchState, StoreError> {
        let Some(restored) = self.store.restored().await?.filter(|restored| restored.checked_at.is_none()) else {
            return Ok(WatchState::Done);
        };
        let progress = self.store.restore_progress().await?;
        let RestoreProgress { unchecked, not_sent, needs_review } = progress;
        if unchecked > 0 {
            if self.state == WatchState::Started {
                emit(RestorePending { unchecked, scheduled: restored.scheduled });
            }
            return Ok(WatchState::Pending);
        }
        self.store.finish_restore(restored).await?;
        emit(RestoreChecked { due: restored.due, not_sent, needs_review });
        Ok(WatchState::Done)
    }
}
