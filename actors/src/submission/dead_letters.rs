//! Dead letters: listing, redriving and discarding them.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use guildhall_core::operation::OperationId;

use super::authorize::RedriveCandidate;
use super::{OperationError, OperationService};
use crate::access::{AuditAction, Caller};
use crate::ports::{DeadLetter, DeadLetterFilter, NewOperation, OperationStore, StoreError, SubmitError};
use crate::telemetry::emit;
use crate::telemetry::submission::{DeadLettersDiscarded, DeadLettersRedriven};

/// Number of dead letters in one read of the store.
const PAGE_SIZE: usize = 500;

/// Result of redriving dead letters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedriveSummary {
    /// Each dead letter with the operation that repeats it, the oldest first.
    pub redriven: Vec<(OperationId, OperationId)>,
    /// Dead letters that cannot be redriven.
    pub skipped: Vec<SkippedLetter>,
    /// Whether there are more that were not examined: repeat the call.
    pub more: bool,
    /// Why it ended early, if it did. What was done by then stays done.
    pub stopped: Option<SubmitError>,
}

/// A dead letter that cannot be redriven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedLetter {
    /// Id of the dead letter.
    pub id: OperationId,
    /// The reason.
    pub reason: String,
}

/// Result of discarding dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscardSummary {
    /// Number of discarded dead letters.
    pub count: u64,
    /// Whether there are more: repeat the call.
    pub more: bool,
}

impl OperationService {
    /// Dead letters, the newest first: those that match the filter and that the caller may see. `tenant` and `among` of
    /// the filter are ignored.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn dead_letters(
        &self,
        caller: &Caller,
        guild: Option<u64>,
        filter: DeadLetterFilter,
    ) -> Result<Vec<DeadLetter>, OperationError> {
        let filter = DeadLetterFilter { tenant: caller.tenant.clone(), guilds: caller.visible_guilds(guild), ..filter };
        Ok(self.call_store::<_, StoreError>(self.store.for_caller(caller).dead_letters(filter)).await?)
    }

    /// One dead letter.
    ///
    /// # Errors
    ///
    /// When there is none, or the store fails.
    pub async fn dead_letter(&self, caller: &Caller, id: OperationId) -> Result<DeadLetter, OperationError> {
        let filter = DeadLetterFilter { id: Some(id), limit: 1, ..DeadLetterFilter::default() };
        self.dead_letters(caller, None, filter).await?.into_iter().next().ok_or(OperationError::DeadLetterNotFound(id))
    }

    /// Redrives a dead letter. Returns the new operation.
    ///
    /// # Errors
    ///
    /// When there is none, it was already redriven, or it is not accepted.
    pub async fn redrive(&self, caller: &Caller, id: OperationId) -> Result<OperationId, OperationError> {
        self.redrive_as(caller, AuditAction::DeadLettersRedrive, id).await
    }

    pub(super) async fn redrive_as(
        &self,
        caller: &Caller,
        action: AuditAction,
        id: OperationId,
    ) -> Result<OperationId, OperationError> {
        let letter = self.dead_letter(caller, id).await?;
        if letter.redriven_as.is_some() {
            return Err(OperationError::AlreadyRedriven { id, by: letter.redriven_as });
        }
        self.check_redrive(caller, RedriveCandidate::from(&letter)).await?;
        let (operations, refused) =
            self.split_received(vec![self.operation_from_dead_letter(caller, &letter)?]).await?;
        if !refused.is_empty() {
            return Err(OperationError::NotReceived(id));
        }
        let record = caller.audit_record(action, self.now()).in_guild(letter.guild).with_target(&id);
        let accepted = self.submit_redrives(&self.store.with_audit(caller, record), operations).await?;
        accepted.first().copied().ok_or(OperationError::AlreadyRedriven { id, by: None })
    }

    /// Redrives all dead letters that match a filter and were not redriven yet, the oldest first, up to the limit of
    /// one call. `id`, `redriven` and `before` of the filter are ignored; `limit` may lower the limit.
    ///
    /// # Errors
    ///
    /// When the dead letters cannot be read.
    pub async fn redrive_all(
        &self,
        caller: &Caller,
        guild: Option<u64>,
        filter: DeadLetterFilter,
    ) -> Result<RedriveSummary, OperationError> {
        let record = caller
            .audit_record(AuditAction::DeadLettersRedrive, self.now())
            .in_guild(guild)
            .with_detail(describe_filter(&filter));
        let store = self.store.with_audit(caller, record);
        let (mut letters, more) = self.oldest_dead_letters(caller, guild, filter).await?;
        let mut summary = RedriveSummary { more, ..RedriveSummary::default() };
        while !letters.is_empty() && summary.stopped.is_none() {
            let chunk: Vec<_> = letters.drain(..letters.len().min(self.config.redrive_chunk)).collect();
            self.redrive_chunk(caller, &store, chunk, &mut summary).await;
        }
        summary.more |= !letters.is_empty();
        Ok(summary)
    }

    /// The oldest dead letters that were not redriven, and whether there are newer ones. The store lists the newest
    /// first, so all are read; if there are too many, the result may not be the oldest.
    async fn oldest_dead_letters(
        &self,
        caller: &Caller,
        guild: Option<u64>,
        filter: DeadLetterFilter,
    ) -> Result<(VecDeque<DeadLetter>, bool), OperationError> {
        let max = match filter.limit {
            0 => self.config.max_redrive,
            limit => limit.min(self.config.max_redrive),
        };
        let mut page = DeadLetterFilter { id: None, redriven: Some(false), before: None, limit: PAGE_SIZE, ..filter };
        let (mut oldest, mut scanned, mut more) = (VecDeque::new(), 0, false);
        loop {
            let found = self.dead_letters(caller, guild, page.clone()).await?;
            let (count, last) = (found.len(), found.last().map(|letter| letter.id));
            for letter in found {
                oldest.push_front(letter);
                if oldest.len() > max {
                    oldest.pop_back();
                    more = true;
                }
            }
            scanned += count;
            if count < PAGE_SIZE {
                return Ok((oldest, more));
            }
            if scanned >= self.config.max_redrive_scan {
                return Ok((oldest, true));
            }
            page.before = last;
        }
    }

    /// Passes dead letters to the store together. One that it rejects is skipped, and the others are tried again.
    async fn redrive_chunk(
        &self,
        caller: &Caller,
        store: &Arc<dyn OperationStore>,
        dead_letters: Vec<DeadLetter>,
        summary: &mut RedriveSummary,
    ) {
        let candidates: Vec<_> = dead_letters.iter().map(RedriveCandidate::from).collect();
        let refusals = match self.refusals(caller, &candidates).await {
            Ok(refusals) => refusals,
            Err(error) => {
                (summary.stopped, summary.more) = (Some(error.into()), true);
                return;
            }
        };
        let mut batch = Vec::with_capacity(dead_letters.len());
        for (letter, refusal) in dead_letters.iter().zip(refusals) {
            let operation = refusal
                .map_or_else(|| self.operation_from_dead_letter(caller, letter).map_err(OperationError::from), Err);
            match operation {
                Ok(operation) => batch.push(operation),
                Err(error) => summary.skipped.push(SkippedLetter { id: letter.id, reason: error.to_string() }),
            }
        }
        let (mut batch, refused) = match self.split_received(batch).await {
            Ok(split) => split,
            Err(error) => {
                summary.stopped = Some(error.into());
                summary.more = true;
                return;
            }
        };
        summary.skipped.extend(refused.iter().map(|operation| {
            let id = operation.redrive_of.unwrap_or(operation.id);
            SkippedLetter { id, reason: OperationError::NotReceived(id).to_string() }
        }));
        while !batch.is_empty() {
            let pairs: Vec<_> =
                batch.iter().map(|operation| (operation.redrive_of.unwrap_or(operation.id), operation.id)).collect();
            match self.submit_redrives(store, batch.clone()).await {
                Ok(accepted) => {
                    let accepted: BTreeSet<_> = accepted.into_iter().collect();
                    summary.redriven.extend(pairs.into_iter().filter(|(_, operation)| accepted.contains(operation)));
                    return;
                }
                Err(error @ (SubmitError::UnknownOperation { index, .. } | SubmitError::KeyReused { index, .. }))
                    if index < batch.len() =>
                {
                    let rejected = batch.remove(index);
                    let id = rejected.redrive_of.unwrap_or(rejected.id);
                    summary.skipped.push(SkippedLetter { id, reason: error.to_string() });
                }
                Err(
                    error @ (SubmitError::UnknownOperation { .. }
                    | SubmitError::KeyReused { .. }
                    | SubmitError::Full { .. }
                    | SubmitError::OverBound(_)
                    | SubmitError::ForeignGuild { .. }
                    | SubmitError::Store(_)),
                ) => {
                    summary.stopped = Some(error);
                    summary.more = true;
                    return;
                }
            }
        }
    }

    /// Submits operations that repeat others, and wakes their queues. Returns the accepted ones.
    pub(super) async fn submit_redrives(
        &self,
        store: &Arc<dyn OperationStore>,
        batch: Vec<NewOperation>,
    ) -> Result<Vec<OperationId>, SubmitError> {
        let queues: BTreeSet<_> = batch.iter().map(|operation| operation.queue.queue(&operation.tenant)).collect();
        let accepted = self.call_store::<_, SubmitError>(store.redrive(batch)).await?;
        if !accepted.is_empty() {
            queues.into_iter().for_each(|queue| self.notifier.wake(queue));
            emit(DeadLettersRedriven { count: accepted.len() as u64 });
        }
        Ok(accepted)
    }

    /// Discards a dead letter.
    ///
    /// # Errors
    ///
    /// When there is none, or the store fails.
    pub async fn discard(&self, caller: &Caller, id: OperationId) -> Result<(), OperationError> {
        let letter = self.dead_letter(caller, id).await?;
        let record =
            caller.audit_record(AuditAction::DeadLettersDiscard, self.now()).in_guild(letter.guild).with_target(&id);
        let filter = DeadLetterFilter { id: Some(id), limit: 1, ..DeadLetterFilter::default() };
        match self.call_store::<_, StoreError>(self.store.with_audit(caller, record).discard(filter)).await? {
            0 => Err(OperationError::DeadLetterNotFound(id)),
            count => {
                emit(DeadLettersDiscarded { count });
                Ok(())
            }
        }
    }

    /// Discards all dead letters that match a filter, the oldest first, up to the limit of one call. `id` and `before`
    /// of the filter are ignored; `limit` may lower the limit.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn discard_all(
        &self,
        caller: &Caller,
        guild: Option<u64>,
        filter: DeadLetterFilter,
    ) -> Result<DiscardSummary, OperationError> {
        let record = caller
            .audit_record(AuditAction::DeadLettersDiscard, self.now())
            .in_guild(guild)
            .with_detail(describe_filter(&filter));
        let max = match filter.limit {
            0 => self.config.max_discard,
            limit => limit.min(self.config.max_discard),
        };
        let (tenant, among) = (caller.tenant.clone(), caller.visible_guilds(guild));
        let filter = DeadLetterFilter { id: None, before: None, tenant, guilds: among, limit: max, ..filter };
        let count =
            self.call_store::<_, StoreError>(self.store.with_audit(caller, record).discard(filter.clone())).await?;
        if count > 0 {
            emit(DeadLettersDiscarded { count });
        }
        // They are already discarded: if the count fails, report that there may be more.
        let more = count >= max as u64 && {
            let store = self.store.for_caller(caller);
            let remaining = store.dead_letters(DeadLetterFilter { limit: 1, ..filter });
            self.call_store::<_, StoreError>(remaining).await.map_or(true, |remaining| !remaining.is_empty())
        };
        Ok(DiscardSummary { count, more })
    }
}

/// Describes a filter in a few words, for the audit log.
fn describe_filter(filter: &DeadLetterFilter) -> String {
    let kind = filter.kind.map(|kind| format!("kind {}", kind.name()));
    let class = filter.class.as_ref().map(|class| format!("class {class}"));
    let message = filter.message_contains.as_ref().map(|message| format!("message contains {message:?}"));
    let after = filter.died_after.map(|at| format!("died at or after {} ms", at.millis()));
    let before = filter.died_before.map(|at| format!("died before {} ms", at.millis()));
    let parts: Vec<_> = [kind, class, message, after, before].into_iter().flatten().collect();
    if parts.is_empty() { "no filter".to_owned() } else { parts.join(", ") }
}
