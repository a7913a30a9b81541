//! Checks that operations respond only to interactions that this deployment has received.
//!
//! A response with an invalid token counts against the ban budget, which all callers share. So the check is made before
//! an operation is accepted, and the operation gets the token's expiry as its deadline: nothing is sent after it. Keys
//! with the scope `interactions:any`, the operator's key and handlers are not checked.

use std::collections::{BTreeSet, HashMap};

use guildhall_core::access::{Scope, ScopeSet};
use guildhall_core::interaction::{ReceivedInteraction, TokenDigest};
use guildhall_core::operation::payload::{InteractionTarget, LocationError};
use guildhall_core::operation::{OperationKind, Payload};

use super::authorize::{RedriveCandidate, parse};
use super::parse::MAX_ERRORS;
use super::{FieldError, OperationService, SubmissionError};
use crate::ports::{NewOperation, StoreError};
use crate::telemetry::emit;
use crate::telemetry::submission::InteractionsNotReceived;

/// The end of a message about an operation that responds to such an interaction. It gives no further reason, so that a
/// caller cannot find out which interactions exist.
pub(super) const NOT_RECEIVED: &str = "an interaction that this deployment has not received in this guild with this token \
     in the last 15 minutes. Respond to interactions of this bot, in their own guild, within 15 minutes; other interactions \
     need a key with the scope interactions:any";

const TOO_LATE: &str = "makes the operation due after the interaction's token expires, 15 minutes after its creation";

impl OperationService {
    /// The interactions that an operation with these scopes responds to and that must have been received.
    pub(super) fn interaction_targets(
        &self,
        scopes: ScopeSet,
        payload: &Payload,
    ) -> Result<Vec<InteractionTarget>, LocationError> {
        if scopes.allow(Scope::InteractionsAny) {
            return Ok(Vec::new());
        }
        payload.interaction_targets(self.config.application)
    }

    /// Checks the interactions that new operations respond to, each with the index of its operation.
    pub(super) async fn check_interactions(
        &self,
        operations: &mut [NewOperation],
        targets: Vec<(usize, InteractionTarget)>,
    ) -> Result<(), SubmissionError> {
        let RefusedTargets { not_received, late } = self.check_targets(operations, targets).await?;
        if !not_received.is_empty() {
            emit(InteractionsNotReceived { at: "submission", count: not_received.len() });
        }
        let not_received = not_received.into_iter().map(|index| {
            let is_path = matches!(operations[index].kind, OperationKind::Read | OperationKind::Request);
            let field = if is_path { "payload.path" } else { "payload.interaction_id" };
            (index, FieldError::new(field, format!("is {NOT_RECEIVED}")))
        });
        let late = late.into_iter().map(|index| (index, FieldError::new("delay_ms", TOO_LATE)));
        let errors: Vec<_> = not_received.chain(late).take(MAX_ERRORS).collect();
        if errors.is_empty() { Ok(()) } else { Err(SubmissionError::Invalid(errors)) }
    }

    /// Splits operations that repeat others into those that may respond to the interactions that they name, and the
    /// others. The rules are those for new operations with the same scopes.
    pub(super) async fn split_received(
        &self,
        mut batch: Vec<NewOperation>,
    ) -> Result<(Vec<NewOperation>, Vec<NewOperation>), StoreError> {
        let (mut targets, mut refused) = (Vec::new(), BTreeSet::new());
        for (index, operation) in batch.iter().enumerate().filter(|(_, operation)| may_respond(operation.kind)) {
            let payload = parse(&RedriveCandidate::from(operation))?;
            match self.interaction_targets(operation.scopes, &payload) {
                Ok(found) => targets.extend(found.into_iter().map(|target| (index, target))),
                Err(_) => drop(refused.insert(index)),
            }
        }
        let found = self.check_targets(&mut batch, targets).await?;
        refused.extend(found.not_received.into_iter().chain(found.late));
        if !refused.is_empty() {
            emit(InteractionsNotReceived { at: "redrive", count: refused.len() });
        }
        let (rejected, allowed): (Vec<_>, Vec<_>) =
            batch.into_iter().enumerate().partition(|(index, _)| refused.contains(index));
        let operations =
            |listed: Vec<(usize, NewOperation)>| listed.into_iter().map(|(_, operation)| operation).collect();
        Ok((operations(allowed), operations(rejected)))
    }

    /// Finds the operations whose interactions were not received or expire too early. The others get a deadline.
    async fn check_targets(
        &self,
        operations: &mut [NewOperation],
        targets: Vec<(usize, InteractionTarget)>,
    ) -> Result<RefusedTargets, StoreError> {
        let mut refused = RefusedTargets::default();
        if targets.is_empty() {
            return Ok(refused);
        }
        let tokens: BTreeSet<TokenDigest> = targets.iter().map(|(_, target)| target.token).collect();
        let query = self.store.unrestricted().received_interactions(tokens.into_iter().collect());
        let received: HashMap<TokenDigest, ReceivedInteraction> = self
            .call_store::<_, StoreError>(query)
            .await?
            .into_iter()
            .map(|interaction| (interaction.token, interaction))
            .collect();
        let now = self.now();
        for (index, target) in targets {
            let operation = &mut operations[index];
            match received.get(&target.token).filter(|interaction| interaction.accepts(&target, operation.guild, now)) {
                Some(interaction) if interaction.has_expired(operation.eligible_at) => drop(refused.late.insert(index)),
                Some(interaction) => {
                    let deadline =
                        operation.deadline_at.map_or(interaction.expires_at, |at| at.min(interaction.expires_at));
                    operation.deadline_at = Some(deadline);
                }
                None => drop(refused.not_received.insert(index)),
            }
        }
        Ok(refused)
    }
}

/// Indexes of operations that may not respond to the interactions that they name.
#[derive(Debug, Default)]
struct RefusedTargets {
    not_received: BTreeSet<usize>,
    /// Due after the token expires.
    late: BTreeSet<usize>,
}

/// Whether operations of a kind can respond to an interaction.
const fn may_respond(kind: OperationKind) -> bool {
    match kind {
        OperationKind::DeferReply
        | OperationKind::SendFollowup
        | OperationKind::EditOriginal
        | OperationKind::Read
        | OperationKind::Request => true,
        OperationKind::CreateRole
        | OperationKind::DeleteRole
        | OperationKind::AssignRole
        | OperationKind::RemoveRole
        | OperationKind::CreateChannel
        | OperationKind::DeleteChannel
        | OperationKind::UpdatePermissions
        | OperationKind::SetMemberRoles
        | OperationKind::EnsureRole
        | OperationKind::EnsureChannel
        | OperationKind::ReplaceOverwrites
        | OperationKind::Reorder
        | OperationKind::EnsureMessage
        | OperationKind::SendMessage
        | OperationKind::EditMessage
        | OperationKind::DeleteMessage
        | OperationKind::SendDm => false,
    }
}
