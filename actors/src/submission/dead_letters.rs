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
const PAGE: usize = 500;

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
    pub why: String,
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
    pub async fn letters(
        &self,
        caller: &Caller,
        guild: Option<u64>,
        filter: DeadLetterFilter,
    ) -> Result<Vec<DeadLetter>, OperationError> {
        let filter = DeadLetterFilter { tenant: caller.tenant.clone(), among: caller.among(guild), ..filter };
        Ok(self.ask::<_, StoreError>(self.store.of(caller).letters(filter)).await?)
    }

    /// One dead letter.
    ///
    /// # Errors
    ///
    /// When there is none, or the store fails.
    pub async fn letter(&self, caller: &Caller, id: OperationId) -> Result<DeadLetter, OperationError> {
        let filter = DeadLetterFilter { id: Some(id), limit: 1, ..DeadLetterFilter::default() };
        self.letters(caller, None, filter).await?.into_iter().next().ok_or(OperationError::NoLetter(id))
    }

    /// Redrives a dead letter. Returns the new operation.
    ///
    /// # Errors
    ///
    /// When there is none, it was already redriven, or it is not accepted.
    pub async fn redrive(&self, caller: &Caller, id: OperationId) -> Result<OperationId, OperationError> {
        self.redrive_as(caller, AuditAction::LettersRedrive, id).await
    }

    pub(super) async fn redrive_as(
        &self,
        caller: &Caller,
        action: AuditAction,
        id: OperationId,
    ) -> Result<OperationId, OperationError> {
        let letter = self.letter(caller, id).await?;
        if letter.redriven_as.is_some() {
            return Err(OperationError::AlreadyRedriven { id, by: letter.redriven_as });
        }
        self.check_again(caller, RedriveCandidate::from(&letter)).await?;
        let (again, refused) = self.split_received(vec![self.draft_again(caller, &letter)?]).await?;
        if !refused.is_empty() {
            return Err(OperationError::NotReceived(id));
        }
        let note = caller.note(action, self.now()).in_guild(letter.guild).on(&id);
        let kept = self.do_again(&self.store.noting(caller, note), again).await?;
        kept.first().copied().ok_or(OperationError::AlreadyRedriven { id, by: None })
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
        let note = caller.note(AuditAction::LettersRedrive, self.now()).in_guild(guild).saying(filter_said(&filter));
        let store = self.store.noting(caller, note);
        let (mut letters, more) = self.oldest(caller, guild, filter).await?;
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
    async fn oldest(
        &self,
        caller: &Caller,
        guild: Option<u64>,
        filter: DeadLetterFilter,
    ) -> Result<(VecDeque<DeadLetter>, bool), OperationError> {
        let most = match filter.limit {
            0 => self.config.redrive_most,
            limit => limit.min(self.config.redrive_most),
        };
        let mut page = DeadLetterFilter { id: None, redriven: Some(false), before: None, limit: PAGE, ..filter };
        let (mut oldest, mut walked, mut more) = (VecDeque::new(), 0, false);
        loop {
            let found = self.letters(caller, guild, page.clone()).await?;
            let (count, last) = (found.len(), found.last().map(|letter| letter.id));
            for letter in found {
                oldest.push_front(letter);
                if oldest.len() > most {
                    oldest.pop_back();
                    more = true;
                }
            }
            walked += count;
            if count < PAGE {
                return Ok((oldest, more));
            }
            if walked >= self.config.redrive_walk {
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
        letters: Vec<DeadLetter>,
        summary: &mut RedriveSummary,
    ) {
        let all: Vec<_> = letters.iter().map(RedriveCandidate::from).collect();
        let refusals = match self.refusals(caller, &all).await {
            Ok(refusals) => refusals,
            Err(error) => {
                (summary.stopped, summary.more) = (Some(error.into()), true);
                return;
            }
        };
        let mut batch = Vec::with_capacity(letters.len());
        for (letter, refusal) in letters.iter().zip(refusals) {
            let again = refusal.map_or_else(|| self.draft_again(caller, letter).map_err(OperationError::from), Err);
            match again {
                Ok(again) => batch.push(again),
                Err(error) => summary.skipped.push(SkippedLetter { id: letter.id, why: error.to_string() }),
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
        summary.skipped.extend(refused.iter().map(|again| {
            let id = again.redrive_of.unwrap_or(again.id);
            SkippedLetter { id, why: OperationError::NotReceived(id).to_string() }
        }));
        while !batch.is_empty() {
            let pairs: Vec<_> = batch.iter().map(|again| (again.redrive_of.unwrap_or(again.id), again.id)).collect();
            match self.do_again(store, batch.clone()).await {
                Ok(kept) => {
                    let kept: BTreeSet<_> = kept.into_iter().collect();
                    summary.redriven.extend(pairs.into_iter().filter(|(_, again)| kept.contains(again)));
                    return;
                }
                Err(error @ (SubmitError::NoSuchOperation { index, .. } | SubmitError::KeyReused { index, .. }))
                    if index < batch.len() =>
                {
                    let left_out = batch.remove(index);
                    let id = left_out.redrive_of.unwrap_or(left_out.id);
                    summary.skipped.push(SkippedLetter { id, why: error.to_string() });
                }
                Err(
                    error @ (SubmitError::NoSuchOperation { .. }
                    | SubmitError::KeyReused { .. }
                    | SubmitError::Full { .. }
                    | SubmitError::OverBound(_)
                    | SubmitError::NotYours { .. }
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
    pub(super) async fn do_again(
        &self,
        store: &Arc<dyn OperationStore>,
        batch: Vec<NewOperation>,
    ) -> Result<Vec<OperationId>, SubmitError> {
        let queues: BTreeSet<_> = batch.iter().map(|again| again.queue.queue(&again.tenant)).collect();
        let kept = self.ask::<_, SubmitError>(store.redrive(batch)).await?;
        if !kept.is_empty() {
            queues.into_iter().for_each(|queue| self.hears.wake(queue));
            emit(DeadLettersRedriven { count: kept.len() as u64 });
        }
        Ok(kept)
    }

    /// Discards a dead letter.
    ///
    /// # Errors
    ///
    /// When there is none, or the store fails.
    pub async fn discard(&self, caller: &Caller, id: OperationId) -> Result<(), OperationError> {
        let letter = self.letter(caller, id).await?;
        let note = caller.note(AuditAction::LettersDiscard, self.now()).in_guild(letter.guild).on(&id);
        let filter = DeadLetterFilter { id: Some(id), limit: 1, ..DeadLetterFilter::default() };
        match self.ask::<_, StoreError>(self.store.noting(caller, note).discard(filter)).await? {
            0 => Err(OperationError::NoLetter(id)),
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
        let note = caller.note(AuditAction::LettersDiscard, self.now()).in_guild(guild).saying(filter_said(&filter));
        let most = match filter.limit {
            0 => self.config.discard_most,
            limit => limit.min(self.config.discard_most),
        };
        let (tenant, among) = (caller.tenant.clone(), caller.among(guild));
        let filter = DeadLetterFilter { id: None, before: None, tenant, among, limit: most, ..filter };
        let count = self.ask::<_, StoreError>(self.store.noting(caller, note).discard(filter.clone())).await?;
        if count > 0 {
            emit(DeadLettersDiscarded { count });
        }
        // They are already discarded: if the count fails, report that there may be more.
        let more = count >= most as u64 && {
            let store = self.store.of(caller);
            let left = store.letters(DeadLetterFilter { limit: 1, ..filter });
            self.ask::<_, StoreError>(left).await.map_or(true, |left| !left.is_empty())
        };
        Ok(DiscardSummary { count, more })
    }
}

/// Describes a filter in a few words, for the audit log.
fn filter_said(filter: &DeadLetterFilter) -> String {
    let kind = filter.kind.map(|kind| format!("kind {}", kind.name()));
    let class = filter.class.as_ref().map(|class| format!("class {class}"));
    let says = filter.says.as_ref().map(|says| format!("message contains {says:?}"));
    let after = filter.died_after.map(|at| format!("died at or after {} ms", at.millis()));
    let before = filter.died_before.map(|at| format!("died before {} ms", at.millis()));
    let said: Vec<_> = [kind, class, says, after, before].into_iter().flatten().collect();
    if said.is_empty() { "no filter".to_owned() } else { said.join(", ") }
}
