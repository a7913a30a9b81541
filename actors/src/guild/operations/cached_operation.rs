//! What a guild has in memory of one operation, apart from its position in the order.

use std::sync::Arc;
use std::time::Duration;

use guildhall_core::access::{Bounds, ScopeSet};
use guildhall_core::lane::Lane;
use guildhall_core::operation::{
    Failure, FailureClass, ManagedKind, Marker, OperationId, OperationKind, OperationState, Payload, Progress,
    ProgressStep, Queue, Reference, Repeatability,
};
use guildhall_core::time::UnixMs;
use guildhall_core::trace::TraceContext;

use super::disposition::expired;
use crate::guild::Journal;
use crate::lease_guard::LeaseGuard;
use crate::ports::{
    Binding, Execution, Fence, IntentUpdate, OperationUpdate, ProgressUpdate, UnknownOutcome, UnresolvedReference,
};
use crate::supervisor::operations::wakeups::ReleasedConditions;
use crate::telemetry::operations::{OperationEnded, OperationRef};

/// An operation in memory, without its position in the order.
#[derive(Debug)]
pub(super) struct CachedOperation {
    pub(super) id: OperationId,
    pub(super) guild: Option<u64>,
    pub(super) tenant: Arc<str>,
    pub(super) bounds: Bounds,
    pub(super) caller: Arc<str>,
    pub(super) scopes: ScopeSet,
    pub(super) kind: OperationKind,
    pub(super) repeatability: Repeatability,
    pub(super) lane: Lane,
    pub(super) reason: Option<String>,
    pub(super) trace: Option<TraceContext>,
    pub(super) created_at: UnixMs,
    pub(super) attempts: u32,
    pub(super) max_attempts: u32,
    pub(super) delays: u32,
    /// When a call was first about to be sent, if that is stored. `None` also if it is certain that no call had an
    /// effect.
    pub(super) intent: Option<UnixMs>,
    /// Whether the current execution has opened the intent.
    pub(super) has_opened: bool,
    /// Steps that are done.
    pub(super) progress: Progress,
    /// How much of the progress is stored: steps, and bytes of JSON.
    pub(super) stored_progress: (usize, usize),
    /// Set if an attempt may have taken effect.
    pub(super) unknown_outcome: Option<UnknownOutcome>,
    /// Why it is delayed, or why its outcome is checked later.
    pub(super) wait_reason: Option<Box<Failure>>,
    pub(super) payload: CachedPayload,
}

/// A payload, if it is in memory.
#[derive(Debug)]
pub(super) enum CachedPayload {
    /// It must be read again.
    NotLoaded,
    /// It is not valid for its kind.
    Invalid(String),
    Loaded {
        payload: Box<Payload>,
        bytes: usize,
    },
}

impl CachedOperation {
    /// An update of the state, without anything else.
    pub(super) fn update(&self, queue: Queue, fence: Fence, state: OperationState, now: UnixMs) -> OperationUpdate {
        OperationUpdate {
            queue,
            fence,
            id: self.id,
            guild: self.guild,
            state,
            attempts: self.attempts,
            delays: self.delays,
            eligible_at: now,
            parked: false,
            error: None,
            result: None,
            created: None,
            intent: IntentUpdate::Unchanged,
            progress: None,
            attempt: None,
            unknown_outcome: None,
            bind: Vec::new(),
            unbind: Vec::new(),
            at: now,
        }
    }

    /// Whether this change of the gate releases it.
    pub(super) fn is_held_by(&self, released: &ReleasedConditions) -> bool {
        let held_by = self.wait_reason.as_ref().and_then(|failure| failure.held_by.as_ref());
        held_by.is_some_and(|condition| released.includes(condition))
    }

    /// Closes the intent: the operation is final.
    pub(super) const fn close_intent(&mut self) -> IntentUpdate {
        self.has_opened = false;
        match self.intent.take() {
            None => IntentUpdate::Unchanged,
            Some(_) => IntentUpdate::Close,
        }
    }

    /// Closes the intent after the current execution was refused or sent nothing, unless an earlier call or an earlier
    /// step may have had an effect.
    pub(super) fn close_intent_if_unused(&mut self) -> IntentUpdate {
        if self.has_opened && self.progress.is_empty() {
            return self.close_intent();
        }
        self.has_opened = false;
        IntentUpdate::Unchanged
    }

    /// Adds completed steps.
    pub(super) fn advance(&mut self, steps: Vec<ProgressStep>) {
        steps.into_iter().for_each(|step| self.progress.add(step));
    }

    /// Whether a step is not stored that would create a second object if it were repeated.
    pub(super) fn has_unstored_object(&self) -> bool {
        self.progress.steps().iter().skip(self.stored_progress.0).any(ProgressStep::creates)
    }

    /// Adds the steps that are not stored yet to an update, and the objects that they created.
    pub(super) fn with_progress(&mut self, change: OperationUpdate) -> OperationUpdate {
        let (steps, bytes) = self.stored_progress;
        let unstored = self.progress.steps().get(steps..).unwrap_or_default();
        let Some(json) = self.progress.to_json().filter(|_| !unstored.is_empty()) else { return change };
        let mut bind: Vec<Binding> = unstored.iter().filter_map(binding).collect();
        bind.extend(change.bind);
        self.stored_progress = (self.progress.steps().len(), json.len());
        let progress = Some(ProgressUpdate { added_bytes: json.len().saturating_sub(bytes), json });
        OperationUpdate { progress, bind, ..change }
    }

    /// When a call of it was first about to be sent, or may have taken effect.
    fn first_sent(&self) -> Option<UnixMs> {
        self.intent.into_iter().chain(self.unknown_outcome.as_ref().map(|unknown| unknown.since)).min()
    }

    /// The failure of an operation whose deadline has passed.
    pub(super) fn expired(&self) -> Failure {
        if self.progress.is_empty() {
            return expired(self.attempts);
        }
        Failure::new(FailureClass::Expired, "its deadline passed before it was completed")
    }

    /// Adds the completed steps to the message of a failure.
    pub(super) fn with_steps(&self, failure: Failure) -> Failure {
        if self.progress.is_empty() {
            return failure;
        }
        Failure { message: format!("{}; before that it {}", failure.message, self.progress), ..failure }
    }

    pub(super) fn take_payload(&mut self, bytes: &mut usize) -> Option<Box<Payload>> {
        match std::mem::replace(&mut self.payload, CachedPayload::NotLoaded) {
            CachedPayload::NotLoaded => None,
            wrong @ CachedPayload::Invalid(_) => {
                self.payload = wrong;
                None
            }
            CachedPayload::Loaded { payload, bytes: size } => {
                *bytes -= size;
                Some(payload)
            }
        }
    }

    pub(super) fn execution(
        &self,
        payload: Payload,
        existing: Option<(u64, Option<u64>)>,
        max_wait: Duration,
        now: UnixMs,
        lease: LeaseGuard,
    ) -> Execution {
        Execution {
            id: self.id,
            guild: self.guild,
            tenant: Arc::clone(&self.tenant),
            bounds: self.bounds,
            caller: Arc::clone(&self.caller),
            scopes: self.scopes,
            payload,
            existing,
            marker: Marker::of(self.id),
            reason: self.reason.clone(),
            lane: self.lane,
            max_wait,
            progress: self.progress.clone(),
            intent_at: self.first_sent().unwrap_or(now),
            lease,
            journal: Journal::none(),
            // A separate span for each attempt.
            trace: self.subject().trace().map(|trace| trace.child(fastrand::u64(..))),
        }
    }

    pub(super) const fn subject(&self) -> OperationRef {
        OperationRef { id: self.id, kind: self.kind, guild: self.guild, attempt: self.attempts, parent: self.trace }
    }

    pub(super) fn ended_event<'a>(
        &self,
        state: OperationState,
        error: Option<&'a Failure>,
        now: UnixMs,
    ) -> OperationEnded<'a> {
        OperationEnded { of: self.subject(), state, error, accepted: self.created_at, now }
    }
}

/// The object that a step created, if it has a key. Its key is bound even if the operation is never completed.
fn binding(step: &ProgressStep) -> Option<Binding> {
    match step {
        ProgressStep::MessageSent { channel_id, message_id, key } => Some(Binding {
            kind: ManagedKind::Message,
            key: key.clone()?,
            discord_id: *message_id,
            channel: Some(*channel_id),
            origin: "created",
        }),
        ProgressStep::MessageEdited { .. }
        | ProgressStep::RoleOverwriteSet { .. }
        | ProgressStep::MemberOverwriteSet { .. } => None,
    }
}

/// References that must be resolved before a payload can be executed: those that it contains, and its own key.
pub(super) fn unresolved_references(payload: &Payload) -> Vec<UnresolvedReference> {
    let mut references: Vec<UnresolvedReference> = Vec::new();
    references.extend(own_key(payload).map(|(kind, key)| UnresolvedReference::Key(kind, key.to_owned())));
    references.extend(payload.references().into_iter().filter_map(|(kind, reference)| match reference {
        Reference::Id(_) => None,
        Reference::Key(key) => Some(UnresolvedReference::Key(kind, key.clone())),
        Reference::Operation(id) => Some(UnresolvedReference::Operation(*id)),
    }));
    references
}

/// The key of the object that an `ensure_…` payload manages.
pub(super) fn own_key(payload: &Payload) -> Option<(ManagedKind, &str)> {
    match payload {
        Payload::EnsureRole(ensure) => Some((ManagedKind::Role, &ensure.key)),
        Payload::EnsureChannel(ensure) => Some((ManagedKind::Channel, &ensure.key)),
        Payload::EnsureMessage(ensure) => Some((ManagedKind::Message, &ensure.key)),
        Payload::CreateRole(_)
        | Payload::DeleteRole(_)
        | Payload::AssignRole(_)
        | Payload::RemoveRole(_)
        | Payload::CreateChannel(_)
        | Payload::DeleteChannel(_)
        | Payload::UpdatePermissions(_)
        | Payload::SetMemberRoles(_)
        | Payload::ReplaceOverwrites(_)
        | Payload::Reorder(_)
        | Payload::SendMessage(_)
        | Payload::EditMessage(_)
        | Payload::DeleteMessage(_)
        | Payload::SendDm(_)
        | Payload::DeferReply(_)
        | Payload::SendFollowup(_)
        | Payload::EditOriginal(_)
        | Payload::Read(_)
        | Payload::Request(_) => None,
    }
}
