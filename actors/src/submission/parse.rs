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
pub(super) const MAX_ERRORS: usize = 1_000;

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
    locations: Vec<Location>,
    interactions: Vec<InteractionTarget>,
    missing: Option<String>,
}

/// The operations of a submission.
pub(super) struct ValidatedSubmission {
    pub(super) operations: Vec<NewOperation>,
    /// The locations that they name and whose owner has to be checked, each with the index of its operation.
    pub(super) locations: Vec<(usize, Location)>,
    /// The interactions that they respond to and that must have been received, each with the index of its operation.
    pub(super) interactions: Vec<(usize, InteractionTarget)>,
}

impl OperationService {
    /// Converts all operations of a submission, or returns all errors.
    pub(super) fn validate(&self, submission: Submission) -> Result<ValidatedSubmission, SubmissionError> {
        let Submission { caller, guild, operations } = submission;
        let (bounds, scopes) = (caller.bounds(), ScopeSet::of(&caller.grant));
        let tenant = caller.tenant.clone().unwrap_or_default();
        let context = SubmissionContext { caller, tenant, bounds, scopes, guild };
        let (count, max) = (operations.len(), self.config.max_batch);
        if count == 0 {
            return Err(SubmissionError::Empty);
        }
        if count > max {
            return Err(SubmissionError::TooMany { count, max });
        }
        let now = self.now();
        let mut validated = ValidatedSubmission {
            operations: Vec::with_capacity(count),
            locations: Vec::new(),
            interactions: Vec::new(),
        };
        let (mut invalid, mut forbidden) = (Vec::new(), Vec::new());
        for (index, request) in operations.into_iter().enumerate() {
            match request.and_then(|request| self.parse_operation(request, &context, now)) {
                Ok(ValidatedOperation { missing: None, operation, locations, interactions }) => {
                    validated.operations.push(operation);
                    validated.locations.extend(locations.into_iter().map(|location| (index, location)));
                    validated.interactions.extend(interactions.into_iter().map(|target| (index, target)));
                }
                Ok(ValidatedOperation { missing: Some(missing), .. }) => {
                    forbidden.push((index, FieldError::new("", missing)));
                }
                Err(error) => invalid.extend(error.into_iter().map(|error| (index, error))),
            }
        }
        // Errors come before missing permissions: an invalid operation has no known requirements.
        invalid.truncate(MAX_ERRORS);
        forbidden.truncate(MAX_ERRORS);
        match (invalid.is_empty(), forbidden.is_empty()) {
            (false, _) => Err(SubmissionError::Invalid(invalid)),
            (true, false) => Err(SubmissionError::Forbidden(forbidden)),
            (true, true) => Ok(validated),
        }
    }

    /// Converts the operations of a handler: in the event's guild and trace, and with idempotency keys of the handler.
    ///
    /// # Errors
    ///
    /// When any of them is invalid.
    pub fn validate_handler_operations(
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
        Ok(self.validate(Submission { caller, guild, operations })?.operations)
    }

    fn parse_operation(
        &self,
        request: OperationRequest,
        context: &SubmissionContext,
        now: UnixMs,
    ) -> Result<ValidatedOperation, Vec<FieldError>> {
        let guild = context.guild;
        let payload = Payload::parse(request.kind, &request.payload, guild).map_err(|invalid| {
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
            id: self.next_id(now),
            tenant: Arc::clone(&context.tenant),
            queue: payload.queue(guild),
            guild,
            caller: Arc::clone(&context.caller.key),
            bounds: context.bounds,
            scopes: context.scopes,
            kind: request.kind,
            payload_hash: hash(request.kind, guild, &json),
            payload: json,
            lane: request.kind.lane(),
            max_attempts: request.max_attempts.unwrap_or(self.config.max_attempts),
            eligible_at: now + request.delay,
            delayed_by: request.delayed_by,
            deadline_at: request.deadline.map(|deadline| now + deadline),
            deployment: None,
            trace: request.trace.or(context.caller.trace),
            reason: request.reason,
            idempotency: request.key.map(|key| IdempotencyKey { scope: Arc::clone(&context.caller.key), key }),
            refers_to: payload.operations(),
            redrive_of: None,
            created_at: now,
        };
        let Requirements { missing, locations } = self.requirements(&context.caller, &payload, guild);
        let interactions = self
            .interaction_targets(context.scopes, &payload)
            .map_err(|error| vec![FieldError::new("payload.path", format!("{error}; write ids as digits"))])?;
        Ok(ValidatedOperation { operation, locations, interactions, missing })
    }

    /// Creates an operation that repeats a dead letter, at the end of its queue.
    pub(super) fn operation_from_dead_letter(
        &self,
        caller: &Caller,
        letter: &DeadLetter,
    ) -> Result<NewOperation, StoreError> {
        let now = self.now();
        let payload = parse(&RedriveCandidate::from(letter))?;
        Ok(NewOperation {
            id: self.next_id(now),
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
    pub(super) fn operation_from_reviewed(
        &self,
        caller: &Caller,
        original: NewOperation,
    ) -> Result<NewOperation, StoreError> {
        let now = self.now();
        let payload = parse(&RedriveCandidate::from(&original))?;
        Ok(NewOperation {
            id: self.next_id(now),
            queue: payload.queue(original.guild),
            caller: Arc::clone(&caller.key),
            bounds: original.bounds.and(caller.bounds()),
            scopes: original.scopes.and(ScopeSet::of(&caller.grant)),
            eligible_at: now,
            delayed_by: DelayedBy::Caller,
            deadline_at: None,
            trace: caller.trace.or(original.trace),
            idempotency: None,
            refers_to: payload.operations(),
            redrive_of: Some(original.id),
            created_at: now,
            ..original
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
