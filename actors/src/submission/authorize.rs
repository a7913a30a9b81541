//! Whether a caller may submit an operation, or repeat one.

use guildhall_core::access::{Bounds, MissingAccess, Owner, PermissionEffect, RoleGuild, Scope, not_found_message};
use guildhall_core::operation::payload::Location;
use guildhall_core::operation::{OperationId, OperationKind, Payload};
use serde_json::Value;

use super::{OperationError, OperationService};
use crate::access::Caller;
use crate::ports::{DeadLetter, NewOperation, StoreError};
use crate::telemetry::emit;
use crate::telemetry::submission::{DangerRefused, ForeignTargetRefused};

/// What a caller needs for an operation.
pub(super) struct Requirements {
    /// The permission that the caller lacks.
    pub(super) missing: Option<String>,
    /// The locations that it names, if the caller may not use all of them.
    pub(super) locations: Vec<Location>,
}

/// An operation to repeat.
#[derive(Clone, Copy)]
pub(super) struct RedriveCandidate<'a> {
    pub(super) id: OperationId,
    pub(super) kind: OperationKind,
    pub(super) guild: Option<u64>,
    pub(super) payload: &'a str,
}

impl<'a> From<&'a DeadLetter> for RedriveCandidate<'a> {
    fn from(letter: &'a DeadLetter) -> Self {
        Self { id: letter.id, kind: letter.kind, guild: letter.guild, payload: &letter.payload }
    }
}

impl<'a> From<&'a NewOperation> for RedriveCandidate<'a> {
    fn from(operation: &'a NewOperation) -> Self {
        Self { id: operation.id, kind: operation.kind, guild: operation.guild, payload: &operation.payload }
    }
}

impl OperationService {
    /// What a caller needs for an operation, as far as it is known without a call to Discord. The effect is checked
    /// again when the operation is dispatched.
    pub(super) fn requirements(&self, caller: &Caller, payload: &Payload, guild: Option<u64>) -> Requirements {
        let missing = caller.grant.missing_access(payload, guild).or_else(|| self.role_danger(caller, payload, guild));
        if let Some(MissingAccess::Danger(danger)) = &missing {
            emit(DangerRefused { at: "submission", danger });
        }
        let missing = missing.map(|missing| missing.to_string());
        if caller.bounds() == Bounds::Anywhere {
            return Requirements { missing, locations: Vec::new() };
        }
        match payload.locations() {
            Ok(locations) => Requirements { missing, locations },
            Err(error) => {
                let missing = missing.or_else(|| Some(format!("{error}; that needs a key with the scope admin")));
                Requirements { missing, locations: Vec::new() }
            }
        }
    }

    /// The danger of the roles that an operation assigns, if their permissions are cached.
    fn role_danger(&self, caller: &Caller, payload: &Payload, guild: Option<u64>) -> Option<MissingAccess> {
        if caller.has_scope(Scope::Danger) {
            return None;
        }
        let (roles, effect) = (self.roles.as_ref()?, PermissionEffect::of(payload, guild));
        // A member may already have the roles that replace theirs.
        let assigned = effect.assigned().filter(|assigned| assigned.replaces.is_none())?;
        match assigned.guild {
            RoleGuild::Guild(guild) => assigned.danger(&*roles.get(guild)?).ok().flatten().map(MissingAccess::Danger),
            RoleGuild::Channel(_) => None,
        }
    }

    /// Checks that a caller may repeat an operation: the same checks as for a submission.
    pub(super) async fn check_redrive(
        &self,
        caller: &Caller,
        candidate: RedriveCandidate<'_>,
    ) -> Result<(), OperationError> {
        match self.refusals(caller, &[candidate]).await?.pop().flatten() {
            Some(refusal) => Err(refusal),
            None => Ok(()),
        }
    }

    /// The same for several: for each, why it may not be repeated.
    pub(super) async fn refusals(
        &self,
        caller: &Caller,
        candidates: &[RedriveCandidate<'_>],
    ) -> Result<Vec<Option<OperationError>>, StoreError> {
        let (mut refusals, mut locations) = (Vec::with_capacity(candidates.len()), Vec::new());
        for (index, candidate) in candidates.iter().enumerate() {
            let refusal = match parse(candidate) {
                Ok(payload) => {
                    let requirements = self.requirements(caller, &payload, candidate.guild);
                    locations.extend(requirements.locations.into_iter().map(|location| (index, location)));
                    requirements.missing.map(|missing| OperationError::Forbidden { id: candidate.id, missing })
                }
                Err(error) => Some(error.into()),
            };
            refusals.push(refusal);
        }
        for (index, location) in
            self.foreign_locations(caller, locations, |index| candidates.get(index).and_then(|one| one.guild)).await?
        {
            let guild = candidates.get(index).and_then(|one| one.guild);
            if let (Some(refusal @ None), Some(candidate)) = (refusals.get_mut(index), candidates.get(index)) {
                *refusal = Some(OperationError::ForeignTarget {
                    id: candidate.id,
                    reason: not_found_message(&location, guild),
                });
            }
        }
        Ok(refusals)
    }

    /// The locations that the caller may not use, each with the index of its operation.
    pub(super) async fn foreign_locations(
        &self,
        caller: &Caller,
        locations: Vec<(usize, Location)>,
        guild_of: impl Fn(usize) -> Option<u64>,
    ) -> Result<Vec<(usize, Location)>, StoreError> {
        if locations.is_empty() {
            return Ok(locations);
        }
        let requested = locations.iter().map(|(_, location)| location.clone()).collect();
        let owner = self.call_store::<_, StoreError>(self.store.unrestricted().owners(requested)).await?;
        let (bounds, tenant) = (caller.bounds(), caller.tenant.as_deref().unwrap_or_default());
        let is_foreign = |index, owner: &Owner| !bounds.allows(tenant, guild_of(index), owner);
        let named = locations.into_iter().zip(owner);
        let foreign: Vec<_> = named
            .filter(|((index, _), owner)| owner.as_ref().is_some_and(|owner| is_foreign(*index, owner)))
            .map(|(location, _)| location)
            .collect();
        if !foreign.is_empty() {
            emit(ForeignTargetRefused { at: "submission" });
        }
        Ok(foreign)
    }
}

/// The payload of a stored operation.
pub(super) fn parse(candidate: &RedriveCandidate<'_>) -> Result<Payload, StoreError> {
    let unreadable =
        |reason: String| StoreError::Corrupt(format!("the payload of operation {}: {reason}", candidate.id));
    let value: Value = serde_json::from_str(candidate.payload).map_err(|error| unreadable(error.to_string()))?;
    Payload::parse(candidate.kind, &value, candidate.guild).map_err(|invalid| unreadable(invalid.to_string()))
}
