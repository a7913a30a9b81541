//! Looking at operations and guilds, and what people do to them.

use std::collections::BTreeMap;

use guildhall_core::operation::{OperationId, Queue, State};

use super::{Desk, DeskError};
use crate::operations::{Instance, ListFilter, Pausable, Shown, StoreError};
use crate::telemetry::desk::{OperationCancelled, OperationHastened, Paused};
use crate::telemetry::emit;

/// What became of an operation that a person wanted tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retried {
    /// It waited, and is due now.
    Hastened {
        /// What it is.
        state: State,
    },
    /// It was over, and another operation does it again.
    Again {
        /// That operation.
        id: OperationId,
    },
}

/// How things stand in a guild's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuildStanding {
    /// Whether a person has paused this guild.
    pub paused: bool,
    /// Whether a person has paused everything.
    pub all_paused: bool,
    /// How many operations are in each state that is not final.
    pub pending: BTreeMap<&'static str, u64>,
    /// Whether there are more than were counted.
    pub more: bool,
}

impl Desk {
    /// One operation, with its tries.
    ///
    /// # Errors
    ///
    /// When there is none, or the store cannot tell.
    pub async fn show(&self, id: OperationId) -> Result<Shown, DeskError> {
        self.ask::<_, StoreError>(self.store.show(id)).await?.ok_or(DeskError::NoOperation(id))
    }

    /// Operations, the newest first.
    ///
    /// # Errors
    ///
    /// When the store cannot tell.
    pub async fn list(&self, filter: ListFilter) -> Result<Vec<Shown>, DeskError> {
        Ok(self.ask::<_, StoreError>(self.store.list(filter)).await?)
    }

    /// Takes an operation back. To do so twice is as good as once.
    ///
    /// # Errors
    ///
    /// When there is none, or it was sent already or is over.
    pub async fn cancel(&self, id: OperationId) -> Result<(), DeskError> {
        let answer = self.ask::<_, StoreError>(self.store.cancel(id, self.now())).await?;
        match answer.ok_or(DeskError::NoOperation(id))? {
            (State::Cancelled, queue) => {
                self.hears.cancelled(id, queue);
                emit(OperationCancelled { id });
                Ok(())
            }
            (state, _) if state.waits() => Err(DeskError::Tried { id, state }),
            (state, _) => Err(DeskError::Unfit { id, state, asked: "cancelled" }),
        }
    }

    /// Tries an operation again: one that waits is due now, one that was given up or needs a person is done again as
    /// another.
    ///
    /// # Errors
    ///
    /// When there is none, or it is under way or has succeeded.
    pub async fn retry(&self, id: OperationId) -> Result<Retried, DeskError> {
        let shown = match self.show(id).await {
            // The letter of a dead operation outlives it.
            Err(DeskError::NoOperation(_)) => {
                let again = self.redrive(id).await.map_err(|error| match error {
                    DeskError::NoLetter(id) => DeskError::NoOperation(id),
                    other => other,
                });
                return Ok(Retried::Again { id: again? });
            }
            shown => shown?,
        };
        match shown.stored.state {
            State::Queued | State::Delayed | State::Retrying => self.hasten(id).await,
            State::Dead => Ok(Retried::Again { id: self.redrive(id).await? }),
            State::NeedsReview => {
                let again = self.draft_from(shown.stored.operation)?;
                let kept = self.do_again(vec![again]).await?;
                let id = *kept.first().ok_or(DeskError::AlreadyRedriven { id, by: None })?;
                Ok(Retried::Again { id })
            }
            state @ (State::Running | State::Reconciling | State::Succeeded | State::Cancelled) => {
                Err(DeskError::Unfit { id, state, asked: "retried" })
            }
        }
    }

    async fn hasten(&self, id: OperationId) -> Result<Retried, DeskError> {
        let answer = self.ask::<_, StoreError>(self.store.hasten(id, self.now())).await?;
        let (state, queue) = answer.ok_or(DeskError::NoOperation(id))?;
        // It may have begun, or ended, in between.
        if !state.waits() {
            return Err(DeskError::Unfit { id, state, asked: "retried" });
        }
        self.hears.hastened(id, queue);
        emit(OperationHastened { id });
        Ok(Retried::Hastened { state })
    }

    /// Pauses something, or lets it go on. What runs is not interrupted.
    ///
    /// # Errors
    ///
    /// When the store cannot keep it.
    pub async fn pause(&self, what: Pausable, paused: bool) -> Result<(), DeskError> {
        self.ask::<_, StoreError>(self.store.pause(what, paused)).await?;
        self.hears.paused(what, paused);
        emit(Paused { what, paused });
        Ok(())
    }

    /// How things stand in a guild's queue.
    ///
    /// # Errors
    ///
    /// When the store cannot tell.
    pub async fn guild(&self, guild: u64) -> Result<GuildStanding, DeskError> {
        let queue = Queue::Guild(guild);
        let (all_paused, queues) = self.ask::<_, StoreError>(self.store.paused()).await?;
        let most = self.config.depth_most;
        let waiting = self.ask::<_, StoreError>(self.store.load(queue, 0, most + 1)).await?;
        let mut pending = BTreeMap::new();
        for stored in waiting.iter().take(most) {
            *pending.entry(stored.state.name()).or_default() += 1;
        }
        Ok(GuildStanding { paused: queues.contains(&queue), all_paused, pending, more: waiting.len() > most })
    }

    /// The processes that share the store, the oldest first.
    ///
    /// # Errors
    ///
    /// When the store cannot tell.
    pub async fn instances(&self) -> Result<Vec<Instance>, DeskError> {
        Ok(self.ask::<_, StoreError>(self.store.instances()).await?)
    }
}
