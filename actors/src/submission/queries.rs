//! Queries about operations and guilds, and manual control of them.

use std::collections::BTreeMap;

use guildhall_core::operation::{OperationId, OperationState, Queue};
use guildhall_core::usage::UsageScope;

use super::authorize::RedriveCandidate;
use super::{OperationError, OperationService};
use crate::access::{AuditAction, AuditRecord, Caller, DEFAULT_TENANT};
use crate::ports::{
    DEAD_EVENTS, DEAD_LETTERS, GuildFilter, GuildPage, Instance, OperationDetails, OperationFilter, PauseTarget,
    StoreError, StoreUsage,
};
use crate::telemetry::emit;
use crate::telemetry::submission::{OperationCancelled, OperationExpedited, PauseChanged};

/// Result of a manual retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryResult {
    /// The operation was waiting, and is due now.
    Expedited {
        /// Its state.
        state: OperationState,
    },
    /// The operation was finished, and another one repeats it.
    Redriven {
        /// That operation.
        id: OperationId,
    },
}

/// State of a guild, and of its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuildStatus {
    /// Name of the guild, if the gateway has reported it.
    pub name: Option<String>,
    /// Whether this guild is paused.
    pub paused: bool,
    /// Whether everything is paused.
    pub all_paused: bool,
    /// Number of operations in each state that is not final.
    pub pending: BTreeMap<&'static str, u64>,
    /// Whether there are more than were counted.
    pub more: bool,
}

/// Work that is pending or needs attention.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperationBacklog {
    /// Number of operations in each state that is not final.
    pub pending: BTreeMap<&'static str, u64>,
    /// Number of dead letters that were not redriven.
    pub dead_letters: u64,
    /// Number of dead events.
    pub dead_events: u64,
    /// Whether everything is paused.
    pub all_paused: bool,
    /// Number of guilds that are paused individually.
    pub paused_guilds: usize,
}

impl OperationService {
    /// One operation, with its attempts.
    ///
    /// # Errors
    ///
    /// When there is none that the caller may see, or the store fails.
    pub async fn show(&self, caller: &Caller, id: OperationId) -> Result<OperationDetails, OperationError> {
        let details = self.call_store::<_, StoreError>(self.store.for_caller(caller).get(id)).await?;
        let is_visible = |details: &OperationDetails| {
            caller.can_see(&details.stored.operation.tenant, details.stored.operation.guild)
        };
        details.filter(is_visible).ok_or(OperationError::OperationNotFound(id))
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
        let filter = OperationFilter { tenant: caller.tenant.clone(), guilds: caller.visible_guilds(guild), ..filter };
        Ok(self.call_store::<_, StoreError>(self.store.for_caller(caller).list(filter)).await?)
    }

    /// Cancels an operation. Idempotent.
    ///
    /// # Errors
    ///
    /// When there is none, or it was already sent or is finished; with its progress.
    pub async fn cancel(&self, caller: &Caller, id: OperationId) -> Result<(), OperationError> {
        let details = self.show(caller, id).await?;
        if details.stored.state == OperationState::Cancelled {
            // The process that cancelled it may have ended before it notified the guild.
            let operation = &details.stored.operation;
            self.notifier.cancelled(id, operation.queue.queue(&operation.tenant));
            return Ok(());
        }
        let record = caller
            .audit_record(AuditAction::OperationsCancel, self.now())
            .in_guild(details.stored.operation.guild)
            .with_target(&id);
        let result =
            self.call_store::<_, StoreError>(self.store.with_audit(caller, record).cancel(id, self.now())).await?;
        match result.ok_or(OperationError::OperationNotFound(id))? {
            (OperationState::Cancelled, queue) => {
                self.notifier.cancelled(id, queue);
                emit(OperationCancelled { id });
                Ok(())
            }
            (OperationState::Succeeded, _) => {
                Err(OperationError::WrongState { id, state: OperationState::Succeeded, action: "cancelled" })
            }
            (state, _) => {
                // Read again: steps may have been done since the first read.
                let progress = self.show(caller, id).await?.stored.progress;
                if state.is_waiting() || !progress.is_empty() {
                    return Err(OperationError::AlreadyAttempted { id, state, progress });
                }
                Err(OperationError::WrongState { id, state, action: "cancelled" })
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
        let details = match self.show(caller, id).await {
            // The dead letter of an operation outlives it.
            Err(OperationError::OperationNotFound(_)) => {
                let again =
                    self.redrive_as(caller, AuditAction::OperationsRetry, id).await.map_err(|error| match error {
                        OperationError::DeadLetterNotFound(id) => OperationError::OperationNotFound(id),
                        other => other,
                    });
                return Ok(RetryResult::Redriven { id: again? });
            }
            details => details?,
        };
        match details.stored.state {
            OperationState::Scheduled | OperationState::Queued | OperationState::Delayed | OperationState::Retrying => {
                let guild = details.stored.operation.guild;
                self.check_redrive(caller, RedriveCandidate::from(&details.stored.operation)).await?;
                let record =
                    caller.audit_record(AuditAction::OperationsRetry, self.now()).in_guild(guild).with_target(&id);
                self.expedite(caller, record, id).await
            }
            OperationState::Dead => {
                Ok(RetryResult::Redriven { id: self.redrive_as(caller, AuditAction::OperationsRetry, id).await? })
            }
            OperationState::NeedsReview => {
                let record = caller
                    .audit_record(AuditAction::OperationsRetry, self.now())
                    .in_guild(details.stored.operation.guild)
                    .with_target(&id);
                self.check_redrive(caller, RedriveCandidate::from(&details.stored.operation)).await?;
                let (again, refused) =
                    self.split_received(vec![self.operation_from_reviewed(caller, details.stored.operation)?]).await?;
                if !refused.is_empty() {
                    return Err(OperationError::NotReceived(id));
                }
                let accepted = self.submit_redrives(&self.store.with_audit(caller, record), again).await?;
                let id = *accepted.first().ok_or(OperationError::AlreadyRedriven { id, by: None })?;
                Ok(RetryResult::Redriven { id })
            }
            state @ (OperationState::Running
            | OperationState::Reconciling
            | OperationState::Succeeded
            | OperationState::Cancelled) => Err(OperationError::WrongState { id, state, action: "retried" }),
        }
    }

    async fn expedite(
        &self,
        caller: &Caller,
        record: AuditRecord,
        id: OperationId,
    ) -> Result<RetryResult, OperationError> {
        let result =
            self.call_store::<_, StoreError>(self.store.with_audit(caller, record).expedite(id, self.now())).await?;
        let (state, queue) = result.ok_or(OperationError::OperationNotFound(id))?;
        // It may have started or finished in between.
        if !state.is_waiting() {
            return Err(OperationError::WrongState { id, state, action: "retried" });
        }
        self.notifier.expedited(id, queue);
        emit(OperationExpedited { id });
        Ok(RetryResult::Expedited { state })
    }

    /// Pauses or resumes something. Running operations are not interrupted.
    ///
    /// # Errors
    ///
    /// When it is a guild that the caller may not see, or the store fails.
    pub async fn pause(&self, caller: &Caller, target: PauseTarget, paused: bool) -> Result<(), OperationError> {
        let (action, guild) = match (target, paused) {
            (PauseTarget::All, true) => (AuditAction::FleetPause, None),
            (PauseTarget::All, false) => (AuditAction::FleetResume, None),
            (PauseTarget::Queue(queue), true) => (AuditAction::GuildsPause, queue.guild()),
            (PauseTarget::Queue(queue), false) => (AuditAction::GuildsResume, queue.guild()),
        };
        if let Some(guild) = guild {
            self.check_guild(caller, guild).await?;
        }
        let record = caller.audit_record(action, self.now()).in_guild(guild);
        self.call_store::<_, StoreError>(self.store.with_audit(caller, record).pause(target, paused)).await?;
        self.notifier.paused(target, paused);
        emit(PauseChanged { target, paused });
        Ok(())
    }

    /// Guilds that the caller may see and that the gateway, an operation or a pause has named, in the order of their ids.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn guilds(&self, caller: &Caller, after: u64, limit: usize) -> Result<GuildPage, OperationError> {
        let filter = GuildFilter { tenant: caller.tenant.clone(), guilds: caller.visible_guilds(None), after, limit };
        Ok(self.call_store::<_, StoreError>(self.store.for_caller(caller).guilds(filter)).await?)
    }

    /// State of a guild, and of its queue.
    ///
    /// # Errors
    ///
    /// When the guild is unknown, the caller may not see it, or the store fails.
    pub async fn guild(&self, caller: &Caller, guild: u64) -> Result<GuildStatus, OperationError> {
        self.check_guild(caller, guild).await?;
        let filter = GuildFilter { guilds: Some(vec![guild]), limit: 1, ..GuildFilter::default() };
        let known = self.call_store::<_, StoreError>(self.store.unrestricted().guilds(filter)).await?;
        let Some(known) = known.guilds.into_iter().next() else { return Err(OperationError::GuildNotFound(guild)) };
        let queue = Queue::Guild(guild);
        let store = self.store.for_caller(caller);
        let (all_paused, queues) = self.call_store::<_, StoreError>(store.paused()).await?;
        let max = self.config.max_depth;
        let page = self.call_store::<_, StoreError>(store.load(queue, 0, max + 1)).await?;
        let mut pending = BTreeMap::new();
        for stored in page.operations.iter().take(max) {
            *pending.entry(stored.state.name()).or_default() += 1;
        }
        let mut more = page.operations.len() > max;
        if page.scheduled.is_some() {
            let scheduled = store.count_scheduled(queue, max + 1);
            let count = self.call_store::<_, StoreError>(scheduled).await?;
            pending.insert(OperationState::Scheduled.name(), count.min(max as u64));
            more |= count > max as u64;
        }
        Ok(GuildStatus { name: known.name, paused: queues.contains(&queue), all_paused, pending, more })
    }

    /// Checks that the caller may see a guild.
    async fn check_guild(&self, caller: &Caller, guild: u64) -> Result<(), OperationError> {
        if self.can_see_guild(caller, guild).await? { Ok(()) } else { Err(OperationError::GuildNotFound(guild)) }
    }

    pub(super) async fn can_see_guild(&self, caller: &Caller, guild: u64) -> Result<bool, StoreError> {
        let tenant = self.call_store::<_, StoreError>(self.store.unrestricted().tenant(guild)).await?;
        Ok(caller.can_see(tenant.as_deref().unwrap_or(DEFAULT_TENANT), Some(guild)))
    }

    /// A caller's usage of the store: of its key and its tenant; for the operator, of all.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn usage(&self, caller: &Caller) -> Result<StoreUsage, OperationError> {
        let scopes = caller.tenant.as_ref().map(|tenant| UsageScope::of(&caller.key, tenant).collect::<Vec<_>>());
        let is_confined = scopes.is_some();
        let usage = self.call_store::<_, StoreError>(self.store.unrestricted().usage(scopes)).await?;
        // Only the operator may see how full the file is.
        Ok(if is_confined { StoreUsage { file: None, ..usage } } else { usage })
    }

    /// The work of all processes and tenants that is pending or needs attention.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn backlog(&self) -> Result<OperationBacklog, OperationError> {
        let store = self.store.unrestricted();
        let mut pending = self.call_store::<_, StoreError>(store.depths()).await?;
        let (all_paused, paused) = self.call_store::<_, StoreError>(store.paused()).await?;
        let (dead_letters, dead_events) = (pending.remove(DEAD_LETTERS), pending.remove(DEAD_EVENTS));
        Ok(OperationBacklog {
            pending,
            dead_letters: dead_letters.unwrap_or_default(),
            dead_events: dead_events.unwrap_or_default(),
            all_paused,
            paused_guilds: paused.into_iter().filter_map(Queue::guild).count(),
        })
    }

    /// The processes that share the store, the oldest first.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn instances(&self) -> Result<Vec<Instance>, OperationError> {
        Ok(self.call_store::<_, StoreError>(self.store.unrestricted().instances()).await?)
    }
}
