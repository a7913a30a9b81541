//! Looking at operations and guilds, and what people do to them.

use std::collections::BTreeMap;

use guildhall_core::operation::{OperationId, Queue, State};
use guildhall_core::usage::UsageScope;

use super::permit::Again;
use super::{Desk, DeskError};
use crate::access::{Action, Caller, DEFAULT_TENANT, Note};
use crate::operations::{Instance, ListFilter, Pausable, Shown, StoreError, StoreUsage};
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
    /// When there is none that the caller may know of, or the store cannot tell.
    pub async fn show(&self, caller: &Caller, id: OperationId) -> Result<Shown, DeskError> {
        let shown = self.ask::<_, StoreError>(self.store.of(caller).show(id)).await?;
        let is_seen = |shown: &Shown| caller.sees(&shown.stored.operation.tenant, shown.stored.operation.guild);
        shown.filter(is_seen).ok_or(DeskError::NoOperation(id))
    }

    /// Operations, the newest first: those of the filter that the caller may know of. `tenant` and `among` of the filter are
    /// not looked at.
    ///
    /// # Errors
    ///
    /// When the store cannot tell.
    pub async fn list(&self, caller: &Caller, guild: Option<u64>, filter: ListFilter) -> Result<Vec<Shown>, DeskError> {
        let filter = ListFilter { tenant: caller.tenant.clone(), among: caller.among(guild), ..filter };
        Ok(self.ask::<_, StoreError>(self.store.of(caller).list(filter)).await?)
    }

    /// Takes an operation back. To do so twice is as good as once.
    ///
    /// # Errors
    ///
    /// When there is none, or it was sent already or is over; with what was done of it.
    pub async fn cancel(&self, caller: &Caller, id: OperationId) -> Result<(), DeskError> {
        let shown = self.show(caller, id).await?;
        if shown.stored.state == State::Cancelled {
            // Whoever did so may have ended before its guild heard of it.
            let operation = &shown.stored.operation;
            self.hears.cancelled(id, operation.queue.queue(&operation.tenant));
            return Ok(());
        }
        let note = caller.note(Action::OperationsCancel, self.now()).in_guild(shown.stored.operation.guild).on(&id);
        let answer = self.ask::<_, StoreError>(self.store.noting(caller, note).cancel(id, self.now())).await?;
        match answer.ok_or(DeskError::NoOperation(id))? {
            (State::Cancelled, queue) => {
                self.hears.cancelled(id, queue);
                emit(OperationCancelled { id });
                Ok(())
            }
            (State::Succeeded, _) => Err(DeskError::Unfit { id, state: State::Succeeded, asked: "cancelled" }),
            (state, _) => {
                // As it is by now: steps may have been done since it was looked at.
                let progress = self.show(caller, id).await?.stored.progress;
                if state.waits() || !progress.is_empty() {
                    return Err(DeskError::Tried { id, state, progress });
                }
                Err(DeskError::Unfit { id, state, asked: "cancelled" })
            }
        }
    }

    /// Tries an operation again: one that waits is due now, one that was given up or needs a person is done again as
    /// another.
    ///
    /// # Errors
    ///
    /// When there is none, it is under way or has succeeded, or the caller could not submit it.
    pub async fn retry(&self, caller: &Caller, id: OperationId) -> Result<Retried, DeskError> {
        let shown = match self.show(caller, id).await {
            // The letter of a dead operation outlives it.
            Err(DeskError::NoOperation(_)) => {
                let again = self.redrive_as(caller, Action::OperationsRetry, id).await.map_err(|error| match error {
                    DeskError::NoLetter(id) => DeskError::NoOperation(id),
                    other => other,
                });
                return Ok(Retried::Again { id: again? });
            }
            shown => shown?,
        };
        match shown.stored.state {
            State::Scheduled | State::Queued | State::Delayed | State::Retrying => {
                let guild = shown.stored.operation.guild;
                self.check_again(caller, Again::from(&shown.stored.operation)).await?;
                let note = caller.note(Action::OperationsRetry, self.now()).in_guild(guild).on(&id);
                self.hasten(caller, note, id).await
            }
            State::Dead => Ok(Retried::Again { id: self.redrive_as(caller, Action::OperationsRetry, id).await? }),
            State::NeedsReview => {
                let note =
                    caller.note(Action::OperationsRetry, self.now()).in_guild(shown.stored.operation.guild).on(&id);
                self.check_again(caller, Again::from(&shown.stored.operation)).await?;
                let (again, refused) =
                    self.split_received(vec![self.draft_from(caller, shown.stored.operation)?]).await?;
                if !refused.is_empty() {
                    return Err(DeskError::NotReceived(id));
                }
                let kept = self.do_again(&self.store.noting(caller, note), again).await?;
                let id = *kept.first().ok_or(DeskError::AlreadyRedriven { id, by: None })?;
                Ok(Retried::Again { id })
            }
            state @ (State::Running | State::Reconciling | State::Succeeded | State::Cancelled) => {
                Err(DeskError::Unfit { id, state, asked: "retried" })
            }
        }
    }

    async fn hasten(&self, caller: &Caller, note: Note, id: OperationId) -> Result<Retried, DeskError> {
        let answer = self.ask::<_, StoreError>(self.store.noting(caller, note).hasten(id, self.now())).await?;
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
    /// When it is a guild that the caller may not know of, or the store cannot keep it.
    pub async fn pause(&self, caller: &Caller, what: Pausable, paused: bool) -> Result<(), DeskError> {
        let (action, guild) = match (what, paused) {
            (Pausable::All, true) => (Action::FleetPause, None),
            (Pausable::All, false) => (Action::FleetResume, None),
            (Pausable::Queue(queue), true) => (Action::GuildsPause, queue.guild()),
            (Pausable::Queue(queue), false) => (Action::GuildsResume, queue.guild()),
        };
        if let Some(guild) = guild {
            self.check_guild(caller, guild).await?;
        }
        let note = caller.note(action, self.now()).in_guild(guild);
        self.ask::<_, StoreError>(self.store.noting(caller, note).pause(what, paused)).await?;
        self.hears.paused(what, paused);
        emit(Paused { what, paused });
        Ok(())
    }

    /// How things stand in a guild's queue.
    ///
    /// # Errors
    ///
    /// When the caller may not know of it, or the store cannot tell.
    pub async fn guild(&self, caller: &Caller, guild: u64) -> Result<GuildStanding, DeskError> {
        self.check_guild(caller, guild).await?;
        let queue = Queue::Guild(guild);
        let store = self.store.of(caller);
        let (all_paused, queues) = self.ask::<_, StoreError>(store.paused()).await?;
        let most = self.config.depth_most;
        let page = self.ask::<_, StoreError>(store.load(queue, 0, most + 1)).await?;
        let mut pending = BTreeMap::new();
        for stored in page.operations.iter().take(most) {
            *pending.entry(stored.state.name()).or_default() += 1;
        }
        let mut more = page.operations.len() > most;
        if page.scheduled.is_some() {
            let scheduled = store.scheduled(queue, most + 1);
            let count = self.ask::<_, StoreError>(scheduled).await?;
            pending.insert(State::Scheduled.name(), count.min(most as u64));
            more |= count > most as u64;
        }
        Ok(GuildStanding { paused: queues.contains(&queue), all_paused, pending, more })
    }

    /// Whether the caller may know of a guild.
    async fn check_guild(&self, caller: &Caller, guild: u64) -> Result<(), DeskError> {
        if self.sees_guild(caller, guild).await? { Ok(()) } else { Err(DeskError::NoGuild(guild)) }
    }

    pub(super) async fn sees_guild(&self, caller: &Caller, guild: u64) -> Result<bool, StoreError> {
        let tenant = self.ask::<_, StoreError>(self.store.judge().tenant(guild)).await?;
        Ok(caller.sees(tenant.as_deref().unwrap_or(DEFAULT_TENANT), Some(guild)))
    }

    /// What a caller uses of the store: its key and its tenant, and for the operator everybody.
    ///
    /// # Errors
    ///
    /// When the store cannot tell.
    pub async fn usage(&self, caller: &Caller) -> Result<StoreUsage, DeskError> {
        let scopes = caller.tenant.as_ref().map(|tenant| UsageScope::of(&caller.key, tenant).collect::<Vec<_>>());
        let is_confined = scopes.is_some();
        let usage = self.ask::<_, StoreError>(self.store.judge().usage(scopes)).await?;
        // How full the file is, is the operator's business.
        Ok(if is_confined { StoreUsage { file: None, ..usage } } else { usage })
    }

    /// The processes that share the store, the oldest first.
    ///
    /// # Errors
    ///
    /// When the store cannot tell.
    pub async fn instances(&self) -> Result<Vec<Instance>, DeskError> {
        Ok(self.ask::<_, StoreError>(self.store.judge().instances()).await?)
    }
}
