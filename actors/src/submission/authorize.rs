//! Whether a caller may submit an operation, or repeat one.

use guildhall_core::access::{Bounds, MissingAccess, Owner, PermissionEffect, RoleGuild, Scope, no_such};
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
    pub(super) lack: Option<String>,
    /// The locations that it names, if the caller may not use all of them.
    pub(super) names: Vec<Location>,
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
    pub(super) fn needs(&self, caller: &Caller, payload: &Payload, guild: Option<u64>) -> Requirements {
        let lack = caller.grant.lacks(payload, guild).or_else(|| self.role_danger(caller, payload, guild));
        if let Some(MissingAccess::Danger(danger)) = &lack {
            emit(DangerRefused { at: "submission", danger });
        }
        let lack = lack.map(|lack| lack.to_string());
        if caller.bounds() == Bounds::Anywhere {
            return Requirements { lack, names: Vec::new() };
        }
        match payload.locations() {
            Ok(names) => Requirements { lack, names },
            Err(untold) => {
                let lack = lack.or_else(|| Some(format!("{untold}; that needs a key with the scope admin")));
                Requirements { lack, names: Vec::new() }
            }
        }
    }

    /// The danger of the roles that an operation assigns, if their permissions are cached.
    fn role_danger(&self, caller: &Caller, payload: &Payload, guild: Option<u64>) -> Option<MissingAccess> {
        if caller.may(Scope::Danger) {
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
    pub(super) async fn check_again(&self, caller: &Caller, again: RedriveCandidate<'_>) -> Result<(), OperationError> {
        match self.refusals(caller, &[again]).await?.pop().flatten() {
            Some(refusal) => Err(refusal),
            None => Ok(()),
        }
    }

    /// The same for several: for each, why it may not be repeated.
    pub(super) async fn refusals(
        &self,
        caller: &Caller,
        all: &[RedriveCandidate<'_>],
    ) -> Result<Vec<Option<OperationError>>, StoreError> {
        let (mut refusals, mut names) = (Vec::with_capacity(all.len()), Vec::new());
        for (index, again) in all.iter().enumerate() {
            let refusal = match parse(again) {
                Ok(payload) => {
                    let needs = self.needs(caller, &payload, again.guild);
                    names.extend(needs.names.into_iter().map(|name| (index, name)));
                    needs.lack.map(|lack| OperationError::Forbidden { id: again.id, lack })
                }
                Err(error) => Some(error.into()),
            };
            refusals.push(refusal);
        }
        for (index, name) in self.elsewhere(caller, names, |index| all.get(index).and_then(|one| one.guild)).await? {
            let guild = all.get(index).and_then(|one| one.guild);
            if let (Some(refusal @ None), Some(again)) = (refusals.get_mut(index), all.get(index)) {
                *refusal = Some(OperationError::Elsewhere { id: again.id, why: no_such(&name, guild) });
            }
        }
        Ok(refusals)
    }

    /// The locations that the caller may not use, each with the index of its operation.
    pub(super) async fn elsewhere(
        &self,
        caller: &Caller,
        names: Vec<(usize, Location)>,
        guild_of: impl Fn(usize) -> Option<u64>,
    ) -> Result<Vec<(usize, Location)>, StoreError> {
        if names.is_empty() {
            return Ok(names);
        }
        let asked = names.iter().map(|(_, location)| location.clone()).collect();
        let whose = self.ask::<_, StoreError>(self.store.judge().whose(asked)).await?;
        let (bounds, tenant) = (caller.bounds(), caller.tenant.as_deref().unwrap_or_default());
        let is_elsewhere = |index, whose: &Owner| !bounds.admit(tenant, guild_of(index), whose);
        let named = names.into_iter().zip(whose);
        let elsewhere: Vec<_> = named
            .filter(|((index, _), whose)| whose.as_ref().is_some_and(|whose| is_elsewhere(*index, whose)))
            .map(|(name, _)| name)
            .collect();
        if !elsewhere.is_empty() {
            emit(ForeignTargetRefused { at: "submission" });
        }
        Ok(elsewhere)
    }
}

/// The payload of a stored operation.
pub(super) fn parse(again: &RedriveCandidate<'_>) -> Result<Payload, StoreError> {
    let unreadable = |why: String| StoreError::Corrupt(format!("the payload of operation {}: {why}", again.id));
    let value: Value = serde_json::from_str(again.payload).map_err(|error| unreadable(error.to_string()))?;
    Payload::parse(again.kind, &value, again.guild).map_err(|invalid| unreadable(invalid.to_string()))
}
