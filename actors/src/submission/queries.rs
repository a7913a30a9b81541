//! Queries about operations and guilds, and manual control of them.

use std::collections::BTreeMap;

use guildhall_core::operation::{OperationId, OperationState, Queue};
use guildhall_core::usage::UsageScope;

use super::authorize::RedriveCandidate;
use super::{OperationError, OperationService};
use crate::access::{AuditAction, AuditRecord, Caller, DEFAULT_TENANT};
use crate::ports::{Instance, OperationDetails, OperationFilter, PauseTarget, StoreError, StoreUsage};
use crate::telemetry::emit;
use crate::telemetry::submission::{OperationCancelled, OperationExpedited, PauseChanged};

/// Result of a manual retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryResult {
    /// The operation was waiting, and is due now.
    Hastened {
        /// Its state.
        state: OperationState,
    },
    /// The operation was finished, and another one repeats it.
    Again {
        /// That operation.
        id: OperationId,
    },
}

/// State of a guild's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuildStatus {
    /// Whether this guild is paused.
    pub paused: bool,
    /// Whether everything is paused.
    pub all_paused: bool,
    /// Number of operations in each state that is not final.
    pub pending: BTreeMap<&'static str, u64>,
    /// Whether there are more than were counted.
    pub more: bool,
}

impl OperationService {
    /// One operation, with its attempts.
    ///
    /// # Errors
    ///
    /// When there is none that the caller may see, or the store fails.
    pub async fn show(&self, caller: &Caller, id: OperationId) -> Result<OperationDetails, OperationError> {
        let shown = self.ask::<_, StoreError>(self.store.of(caller).show(id)).await?;
        let is_seen =
            |shown: &OperationDetails| caller.sees(&shown.stored.operation.tenant, shown.stored.operation.guild);
        shown.filter(is_seen).ok_or(OperationError::NoOperation(id))
    }

    /// Operations, the newest first: those that match the filter and that the caller may see. `tenant` and `among` of
    /// the filter are ignored.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn list(
        &self,
        caller: &Caller,
        guild: Option<u64>,
        filter: OperationFilter,
    ) -> Result<Vec<OperationDetails>, OperationError> {
        let filter = OperationFilter { tenant: caller.tenant.clone(), among: caller.among(guild), ..filter };
        Ok(self.ask::<_, StoreError>(self.store.of(caller).list(filter)).await?)
    }

    /// Cancels an operation. Idempotent.
    ///
    /// # Errors
    ///
    /// When there is none, or it was already sent or is finished; with its progress.
    pub async fn cancel(&self, caller: &Caller, id: OperationId) -> Result<(), OperationError> {
        let shown = self.show(caller, id).await?;
        if shown.stored.state == OperationState::Cancelled {
            // The process that cancelled it may have ended before it notified the guild.
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
                // Read again: steps may have been done since the first read.
                let progress = self.show(caller, id).await?.stored.progress;
                if state.waits() || !progress.is_empty() {
                    return Err(OperationError::Tried { id, state, progress });
                }
                Err(OperationError::Unfit { id, state, asked: "cancelled" })
            }
        }
    }

    /// Retries an operation: a waiting one is due now, a dead one or one that needs review is repeated by a new
    /// operation.
    ///
    /// # Errors
    ///
    /// When there is none, it is running or has succeeded, or the caller could not submit it.
    pub async fn retry(&self, caller: &Caller, id: OperationId) -> Result<RetryResult, OperationError> {
        let shown = match self.show(caller, id).await {
            // The dead letter of an operation outlives it.
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
        // It may have started or finished in between.
        if !state.waits() {
            return Err(OperationError::Unfit { id, state, asked: "retried" });
        }
        self.hears.hastened(id, queue);
        emit(OperationExpedited { id });
        Ok(RetryResult::Hastened { state })
    }

    /// Pauses or resumes something. Running operations are not interrupted.
    ///
    /// # Errors
    ///
    /// When it is a guild that the caller may not see, or the store fails.
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

    /// State of a guild's queue.
    ///
    /// # Errors
    ///
    /// When the caller may not see the guild, or the store fails.
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

    /// Checks that the caller may see a guild.
    async fn check_guild(&self, caller: &Caller, guild: u64) -> Result<(), OperationError> {
        if self.sees_guild(caller, guild).await? { Ok(()) } else { Err(OperationError::NoGuild(guild)) }
    }

    pub(super) async fn sees_guild(&self, caller: &Caller, guild: u64) -> Result<bool, StoreError> {
        let tenant = self.ask::<_, StoreError>(self.store.judge().tenant(guild)).await?;
        Ok(caller.sees(tenant.as_deref().unwrap_or(DEFAULT_TENANT), Some(guild)))
    }

    /// A caller's usage of the store: of its key and its tenant; for the operator, of all.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn usage(&self, caller: &Caller) -> Result<StoreUsage, OperationError> {
        let scopes = caller.tenant.as_ref().map(|tenant| UsageScope::of(&caller.key, tenant).collect::<Vec<_>>());
        let is_confined = scopes.is_some();
        let usage = self.ask::<_, StoreError>(self.store.judge().usage(scopes)).await?;
        // Only the operator may see how full the file is.
        Ok(if is_confined { StoreUsage { file: None, ..usage } } else { usage })
    }

    /// The processes that share the store, the oldest first.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn instances(&self) -> Result<Vec<Instance>, OperationError> {
        Ok(self.ask::<_, StoreError>(self.store.judge().instances()).await?)
    }
}
