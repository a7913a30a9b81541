//! Converts requests to operations for the store.

use std::sync::Arc;

use guildhall_core::access::{Bounds, ScopeSet};
use guildhall_core::operation::payload::{InteractionTarget, Location};
use guildhall_core::operation::{OperationKind, Payload};
use guildhall_core::time::UnixMs;
use guildhall_core::trace::TraceContext;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::authorize::{RedriveCandidate, Requirements, parse};
use super::request::{FieldError, OperationRequest, Submission};
use super::{OperationService, SubmissionError};
use crate::access::Caller;
use crate::ports::{DeadLetter, DelayedBy, IdempotencyKey, NewOperation, StoreError};

/// Maximum number of errors reported for one submission.
pub(super) const TOLD_MOST: usize = 1_000;

/// What the operations of one submission have in common.
struct SubmissionContext {
    caller: Caller,
    tenant: Arc<str>,
    bounds: Bounds,
    scopes: ScopeSet,
    guild: Option<u64>,
}

/// An operation, the locations that it names if the caller may not use all of them, and the permission that it lacks.
struct ValidatedOperation {
    operation: NewOperation,
    names: Vec<Location>,
    interactions: Vec<InteractionTarget>,
    lack: Option<String>,
}

/// The operations of a submission.
pub(super) struct ValidatedSubmission {
    pub(super) operations: Vec<NewOperation>,
    /// The locations that they name and whose owner has to be checked, each with the index of its operation.
    pub(super) names: Vec<(usize, Location)>,
    /// The interactions that they respond to and that must have been received, each with the index of its operation.
    pub(super) interactions: Vec<(usize, InteractionTarget)>,
}

impl OperationService {
    /// Converts all operations of a submission, or returns all errors.
    pub(super) fn draft(&self, submission: Submission) -> Result<ValidatedSubmission, SubmissionError> {
        let Submission { caller, guild, operations } = submission;
        let (bounds, scopes) = (caller.bounds(), ScopeSet::of(&caller.grant));
        let tenant = caller.tenant.clone().unwrap_or_default();
        let draft = SubmissionContext { caller, tenant, bounds, scopes, guild };
        let (count, most) = (operations.len(), self.config.batch_most);
        if count == 0 {
            return Err(SubmissionError::Empty);
        }
        if count > most {
            return Err(SubmissionError::TooMany { count, most });
        }
        let now = self.now();
        let mut drafts =
            ValidatedSubmission { operations: Vec::with_capacity(count), names: Vec::new(), interactions: Vec::new() };
        let (mut wrong, mut forbidden) = (Vec::new(), Vec::new());
        for (index, asked) in operations.into_iter().enumerate() {
            match asked.and_then(|asked| self.draft_one(asked, &draft, now)) {
                Ok(ValidatedOperation { lack: None, operation, names, interactions }) => {
                    drafts.operations.push(operation);
                    drafts.names.extend(names.into_iter().map(|name| (index, name)));
                    drafts.interactions.extend(interactions.into_iter().map(|target| (index, target)));
                }
                Ok(ValidatedOperation { lack: Some(lack), .. }) => forbidden.push((index, FieldError::new("", lack))),
                Err(found) => wrong.extend(found.into_iter().map(|found| (index, found))),
            }
        }
        // Errors come before missing permissions: an invalid operation has no known requirements.
        wrong.truncate(TOLD_MOST);
        forbidden.truncate(TOLD_MOST);
        match (wrong.is_empty(), forbidden.is_empty()) {
            (false, _) => Err(SubmissionError::Invalid(wrong)),
            (true, false) => Err(SubmissionError::Forbidden(forbidden)),
            (true, true) => Ok(drafts),
        }
    }

    /// Converts the operations of a handler: in the event's guild and trace, and with idempotency keys of the handler.
    ///
    /// # Errors
    ///
    /// When any of them is invalid.
    pub fn draft_given(
        &self,
        guild: Option<u64>,
        scope: Arc<str>,
        trace: TraceContext,
        operations: Vec<Value>,
    ) -> Result<Vec<NewOperation>, SubmissionError> {
        if operations.is_empty() {
            return Ok(Vec::new());
        }
        let operations = operations.into_iter().map(OperationRequest::read).collect();
        // Handlers are written by the operator; their operations belong to the tenant of the guild.
        let caller = Caller { key: scope, trace: Some(trace), ..Caller::operator() };
        Ok(self.draft(Submission { caller, guild, operations })?.operations)
    }

    fn draft_one(
        &self,
        asked: OperationRequest,
        drafting: &SubmissionContext,
        now: UnixMs,
    ) -> Result<ValidatedOperation, Vec<FieldError>> {
        let guild = drafting.guild;
        let payload = Payload::parse(asked.kind, &asked.payload, guild).map_err(|invalid| {
            let under = |field: String| match field.as_str() {
                "" => "payload".to_owned(),
                field if field.starts_with('[') => format!("payload{field}"),
                field => format!("payload.{field}"),
            };
            invalid
                .errors
                .into_iter()
                .map(|error| FieldError::new(under(error.field), error.message))
                .collect::<Vec<_>>()
        })?;
        let json = payload.to_json();
        let operation = NewOperation {
            id: self.name(now),
            tenant: Arc::clone(&drafting.tenant),
            queue: payload.queue(guild),
            guild,
            caller: Arc::clone(&drafting.caller.key),
            bounds: drafting.bounds,
            scopes: drafting.scopes,
            kind: asked.kind,
            payload_hash: hash(asked.kind, guild, &json),
            payload: json,
            lane: asked.kind.lane(),
            max_attempts: asked.max_attempts.unwrap_or(self.config.max_attempts),
            eligible_at: now + asked.delay,
            delayed_by: asked.delayed_by,
            deadline_at: asked.deadline.map(|deadline| now + deadline),
            deployment: None,
            trace: asked.trace.or(drafting.caller.trace),
            reason: asked.reason,
            idempotency: asked.key.map(|key| IdempotencyKey { scope: Arc::clone(&drafting.caller.key), key }),
            refers_to: payload.operations(),
            redrive_of: None,
            created_at: now,
        };
        let Requirements { lack, names } = self.needs(&drafting.caller, &payload, guild);
        let interactions = self
            .targets(drafting.scopes, &payload)
            .map_err(|untold| vec![FieldError::new("payload.path", format!("{untold}; write ids as digits"))])?;
        Ok(ValidatedOperation { operation, names, interactions, lack })
    }

    /// Creates an operation that repeats a dead letter, at the end of its queue.
    pub(super) fn draft_again(&self, caller: &Caller, letter: &DeadLetter) -> Result<NewOperation, StoreError> {
        let now = self.now();
        let payload = parse(&RedriveCandidate::from(letter))?;
        Ok(NewOperation {
            id: self.name(now),
            tenant: Arc::clone(&letter.tenant),
            queue: payload.queue(letter.guild),
            guild: letter.guild,
            // It gets no more rights than either the redriving or the original caller has.
            caller: Arc::clone(&caller.key),
            bounds: letter.bounds.and(caller.bounds()),
            scopes: letter.scopes.and(ScopeSet::of(&caller.grant)),
            kind: letter.kind,
            payload_hash: hash(letter.kind, letter.guild, &letter.payload),
            payload: letter.payload.clone(),
            lane: letter.kind.lane(),
            max_attempts: self.config.max_attempts,
            eligible_at: now,
            delayed_by: DelayedBy::Caller,
            deadline_at: None,
            deployment: None,
            trace: caller.trace,
            reason: letter.reason.clone(),
            idempotency: None,
            refers_to: payload.operations(),
            redrive_of: Some(letter.id),
            created_at: now,
        })
    }

    /// Creates an operation that repeats one in need of review, at the end of its queue.
    pub(super) fn draft_from(&self, caller: &Caller, first: NewOperation) -> Result<NewOperation, StoreError> {
        let now = self.now();
        let payload = parse(&RedriveCandidate::from(&first))?;
        Ok(NewOperation {
            id: self.name(now),
            queue: payload.queue(first.guild),
            caller: Arc::clone(&caller.key),
            bounds: first.bounds.and(caller.bounds()),
            scopes: first.scopes.and(ScopeSet::of(&caller.grant)),
            eligible_at: now,
            delayed_by: DelayedBy::Caller,
            deadline_at: None,
            trace: caller.trace.or(first.trace),
            idempotency: None,
            refers_to: payload.operations(),
            redrive_of: Some(first.id),
            created_at: now,
            ..first
        })
    }
}

/// Identifies equal submissions. The parts are separated by line breaks, which kinds and guilds do not contain.
fn hash(kind: OperationKind, guild: Option<u64>, payload: &str) -> [u8; 32] {
    let guild = guild.map_or_else(String::new, |guild| guild.to_string());
    let mut hash = Sha256::new();
    for part in [kind.name(), "\n", &guild, "\n", payload] {
        hash.update(part);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_guild_and_payload_each_make_another_hash() {
        let hashes = [
            hash(OperationKind::CreateRole, Some(1), "{}"),
            hash(OperationKind::DeleteRole, Some(1), "{}"),
            hash(OperationKind::CreateRole, Some(2), "{}"),
            hash(OperationKind::CreateRole, None, "{}"),
            hash(OperationKind::CreateRole, Some(1), "{\"a\":1}"),
        ];
        for (n, one) in hashes.iter().enumerate() {
            assert!(hashes[..n].iter().all(|other| other != one), "{n}");
        }
        assert_eq!(hashes[0], hash(OperationKind::CreateRole, Some(1), "{}"));
    }
}
