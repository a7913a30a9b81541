//! Looking at operations and guilds, and what people do to them.

use std::collections::BTreeMap;

use guildhall_core::operation::{OperationId, OperationState, Queue};
use guildhall_core::usage::UsageScope;

use super::authorize::RedriveCandidate;
use super::{OperationError, OperationService};
use crate::access::{AuditAction, AuditRecord, Caller, DEFAULT_TENANT};
use crate::ports::{Instance, OperationDetails, OperationFilter, PauseTarget, StoreError, StoreUsage};
use crate::telemetry::emit;
use crate::telemetry::submission::{OperationCancelled, OperationExpedited, PauseChanged};

/// What became of an operation that a person wanted tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryResult {
    /// It waited, and is due now.
    Hastened {
        /// What it is.
        state: OperationState,
    },
    /// It was over, and another operation does it again.
    Again {
        /// That operation.
        id: OperationId,
    },
}

/// How things stand in a guild's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuildStatus {
    /// Whether a person has paused this guild.
    pub paused: bool,
    /// Whether a person has paused everything.
    pub all_paused: bool,
    /// How many operations are in each state that is not final.
    pub pending: BTreeMap<&'static str, u64>,
    /// Whether there are more than were counted.
    pub more: bool,
}

impl OperationService {
    /// One operation, with its tries.
    ///
    /// # Errors
    ///
    /// When there is none that the caller may know of, or the store cannot tell.
    pub async fn show(&self, caller: &Caller, id: OperationId) -> Result<OperationDetails, OperationError> {
        let shown = self.ask::<_, StoreError>(self.store.of(caller).show(id)).await?;
        let is_seen =
            |shown: &OperationDetails| caller.sees(&shown.stored.operation.tenant, shown.stored.operation.guild);
        shown.filter(is_seen).ok_or(OperationError::NoOperation(id))
    }

    /// Operations, the newest first: those of the filter that the caller may know of. `tenant` and `among` of the filter are
    /// not looked at.
    ///
    /// # Errors
    ///
    /// When the store cannot tell.
    pub async fn list(
        &self,
        caller: &Caller,
        guild: Option<u64>,
        filter: OperationFilter,
    ) -> Result<Vec<OperationDetails>, OperationError> {
        let filter = OperationFilter { tenant: caller.tenant.clone(), among: caller.among(guild), ..filter };
        Ok(self.ask::<_, StoreError>(self.store.of(caller).list(filter)).await?)
    }

    /// Takes an operation back. To do so twice is as good as once.
    ///
    /// # Errors
    ///
    /// When there is none, or it was sent already or is over; with what was done of it.
    pub async fn cancel(&self, caller: &Caller, id: OperationId) -> Result<(), OperationError> {
        let shown = self.show(caller, id).await?;
        if shown.stored.state == OperationState::Cancelled {
            // Whoever did so may have ended before its guild heard of it.
            let operation = &shown.stored.operation;
            self.hears.cancelled(id, operation.queue.queue(&operation.tenant));
            return Ok(());
        }
        let note =
            caller.note(AuditAction::OperationsCancel, self.now()).in_guild(shown.stored.operation.guild).on(&id);
        let answer = self.ask::<_, StoreError>(self.store.noting(caller, note).cancel(id, self.now())).await?;
        match answer.ok_or(OperationError::NoOperation(id))? {
            (OperationState::Cancelled, queue) => {
                self.hears.cancelled(id, queue);
                emit(OperationCancelled { id });
                Ok(())
            }
            (OperationState::Succeeded, _) => {
                Err(OperationError::Unfit { id, state: OperationState::Succeeded, asked: "cancelled" })
            }
            (state, _) => {
                // As it is by now: steps may have been done since it was looked at.
                let progress = self.show(caller, id).await?.stored.progress;
                if state.waits() || !progress.is_empty() {
                    return Err(OperationError::Tried { id, state, progress });
                }
                Err(OperationError::Unfit { id, state, asked: "cancelled" })
            }
        }
    }

    /// Tries an operation again: one that waits is due now, one that was given up or needs a person is done again as
    /// another.
    ///
    /// # Errors
    ///
    /// When there is none, it is under way or has succeeded, or the caller could not submit it.
    pub async fn retry(&self, caller: &Caller, id: OperationId) -> Result<RetryResult, OperationError> {
        let shown = match self.show(caller, id).await {
            // The letter of a dead operation outlives it.
            Err(OperationError::NoOperation(_)) => {
                let again =
                    self.redrive_as(caller, AuditAction::OperationsRetry, id).await.map_err(|error| match error {
                        OperationError::NoLetter(id) => OperationError::NoOperation(id),
                        other => other,
                    });
                return Ok(RetryResult::Again { id: again? });
            }
            shown => shown?,
        };
        match shown.stored.state {
            OperationState::Scheduled | OperationState::Queued | OperationState::Delayed | OperationState::Retrying => {
                let guild = shown.stored.operation.guild;
                self.check_again(caller, RedriveCandidate::from(&shown.stored.operation)).await?;
                let note = caller.note(AuditAction::OperationsRetry, self.now()).in_guild(guild).on(&id);
                self.hasten(caller, note, id).await
            }
            OperationState::Dead => {
                Ok(RetryResult::Again { id: self.redrive_as(caller, AuditAction::OperationsRetry, id).await? })
            }
            OperationState::NeedsReview => {
                let note = caller
                    .note(AuditAction::OperationsRetry, self.now())
                    .in_guild(shown.stored.operation.guild)
                    .on(&id);
                self.check_again(caller, RedriveCandidate::from(&shown.stored.operation)).await?;
                let (again, refused) =
                    self.split_received(vec![self.draft_from(caller, shown.stored.operation)?]).await?;
                if !refused.is_empty() {
                    return Err(OperationError::NotReceived(id));
                }
                let kept = self.do_again(&self.store.noting(caller, note), again).await?;
                let id = *kept.first().ok_or(OperationError::AlreadyRedriven { id, by: None })?;
                Ok(RetryResult::Again { id })
            }
            state @ (OperationState::Running
            | OperationState::Reconciling
            | OperationState::Succeeded
            | OperationState::Cancelled) => Err(OperationError::Unfit { id, state, asked: "retried" }),
        }
    }

    async fn hasten(&self, caller: &Caller, note: AuditRecord, id: OperationId) -> Result<RetryResult, OperationError> {
        let answer = self.ask::<_, StoreError>(self.store.noting(caller, note).hasten(id, self.now())).await?;
        let (state, queue) = answer.ok_or(OperationError::NoOperation(id))?;
        // It may have begun, or ended, in between.
        if !state.waits() {
            return Err(OperationError::Unfit { id, state, asked: "retried" });
        }
        self.hears.hastened(id, queue);
        emit(OperationExpedited { id });
        Ok(RetryResult::Hastened { state })
    }

    /// Pauses something, or lets it go on. What runs is not interrupted.
    ///
    /// # Errors
    ///
    /// When it is a guild that the caller may not know of, or the store cannot keep it.
    pub async fn pause(&self, caller: &Caller, what: PauseTarget, paused: bool) -> Result<(), OperationError> {
        let (action, guild) = match (what, paused) {
            (PauseTarget::All, true) => (AuditAction::FleetPause, None),
            (PauseTarget::All, false) => (AuditAction::FleetResume, None),
            (PauseTarget::Queue(queue), true) => (AuditAction::GuildsPause, queue.guild()),
            (PauseTarget::Queue(queue), false) => (AuditAction::GuildsResume, queue.guild()),
        };
        if let Some(guild) = guild {
            self.check_guild(caller, guild).await?;
        }
        let note = caller.note(action, self.now()).in_guild(guild);
        self.ask::<_, StoreError>(self.store.noting(caller, note).pause(what, paused)).await?;
        self.hears.paused(what, paused);
        emit(PauseChanged { what, paused });
        Ok(())
    }

    /// How things stand in a guild's queue.
    ///
    /// # Errors
    ///
    /// When the caller may not know of it, or the store cannot tell.
    pub async fn guild(&self, caller: &Caller, guild: u64) -> Result<GuildStatus, OperationError> {
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
            pending.insert(OperationState::Scheduled.name(), count.min(most as u64));
            more |= count > most as u64;
        }
        Ok(GuildStatus { paused: queues.contains(&queue), all_paused, pending, more })
    }

    /// Whether the caller may know of a guild.
    async fn check_guild(&self, caller: &Caller, guild: u64) -> Result<(), OperationError> {
        if self.sees_guild(caller, guild).await? { Ok(()) } else { Err(OperationError::NoGuild(guild)) }
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
    pub async fn usage(&self, caller: &Caller) -> Result<StoreUsage, OperationError> {
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
    pub async fn instances(&self) -> Result<Vec<Instance>, OperationError> {
        Ok(self.ask::<_, StoreError>(self.store.judge().instances()).await?)
    }
}
