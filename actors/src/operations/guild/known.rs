//! What a guild knows of one operation besides its place.

use std::sync::Arc;
use std::time::Duration;

use guildhall_core::access::{Bounds, ScopeSet};
use guildhall_core::lane::Lane;
use guildhall_core::operation::{
    Failure, Kind, ManagedKind, Marker, OperationId, Payload, Queue, Reference, Sends, State,
};
use guildhall_core::time::UnixMs;
use guildhall_core::trace::Trace;

use crate::operations::{Change, Fence, Intent, Wanted, Work};
use crate::right::Right;
use crate::telemetry::operations::{OperationEnded, Subject};

/// What is needed of an operation besides its place.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) id: OperationId,
    pub(super) guild: Option<u64>,
    pub(super) tenant: Arc<str>,
    pub(super) bounds: Bounds,
    pub(super) caller: Arc<str>,
    pub(super) scopes: ScopeSet,
    pub(super) kind: Kind,
    pub(super) sends: Sends,
    pub(super) lane: Lane,
    pub(super) reason: Option<String>,
    pub(super) trace: Option<Trace>,
    pub(super) created_at: UnixMs,
    pub(super) attempts: u32,
    pub(super) max_attempts: u32,
    pub(super) delays: u32,
    /// When it was told to be sent, if nobody knows what came of it.
    pub(super) intent: Option<UnixMs>,
    /// When it was first told to be sent, as far as this guild has seen.
    pub(super) first_intent: Option<UnixMs>,
    pub(super) poison: bool,
    pub(super) payload: Kept,
}

/// A payload, if it is kept.
#[derive(Debug)]
pub(super) enum Kept {
    /// It has to be read again.
    No,
    /// It is not what its kind takes.
    Wrong(String),
    Yes {
        payload: Box<Payload>,
        bytes: usize,
    },
}

impl Known {
    /// A change that says where it stands, and nothing else.
    pub(super) fn change(&self, queue: Queue, fence: Fence, state: State, now: UnixMs) -> Change {
        Change {
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
            made: None,
            intent: Intent::Keep,
            attempt: None,
            bind: Vec::new(),
            unbind: Vec::new(),
            at: now,
        }
    }

    /// What came of sending it is known.
    pub(super) const fn close(&mut self) -> Intent {
        match self.intent.take() {
            None => Intent::Keep,
            Some(_) => Intent::Close,
        }
    }

    pub(super) fn take_payload(&mut self, bytes: &mut usize) -> Option<Box<Payload>> {
        match std::mem::replace(&mut self.payload, Kept::No) {
            Kept::No => None,
            wrong @ Kept::Wrong(_) => {
                self.payload = wrong;
                None
            }
            Kept::Yes { payload, bytes: taken } => {
                *bytes -= taken;
                Some(payload)
            }
        }
    }

    pub(super) fn work(
        &self,
        payload: Payload,
        bound: Option<(u64, Option<u64>)>,
        max_wait: Duration,
        now: UnixMs,
        right: Right,
    ) -> Work {
        Work {
            id: self.id,
            guild: self.guild,
            tenant: Arc::clone(&self.tenant),
            bounds: self.bounds,
            caller: Arc::clone(&self.caller),
            scopes: self.scopes,
            payload,
            bound,
            marker: Marker::of(self.id),
            reason: self.reason.clone(),
            lane: self.lane,
            max_wait,
            intent_at: self.first_intent.unwrap_or(now),
            right,
            // A part of its own for each try.
            trace: self.subject().trace().map(|trace| trace.child(fastrand::u64(..))),
        }
    }

    pub(super) const fn subject(&self) -> Subject {
        Subject { id: self.id, kind: self.kind, guild: self.guild, attempt: self.attempts, asked_by: self.trace }
    }

    pub(super) fn ended<'a>(&self, state: State, error: Option<&'a Failure>, now: UnixMs) -> OperationEnded<'a> {
        OperationEnded { of: self.subject(), state, error, accepted: self.created_at, now }
    }
}

/// What the store has to be asked before a payload can be carried out: what it refers to, and what its own key stands
/// for.
pub(super) fn wanted(payload: &Payload) -> Vec<Wanted> {
    let mut wanted: Vec<Wanted> = Vec::new();
    wanted.extend(own_key(payload).map(|(kind, key)| Wanted::Key(kind, key.to_owned())));
    wanted.extend(payload.references().into_iter().filter_map(|(kind, reference)| match reference {
        Reference::Id(_) => None,
        Reference::Key(key) => Some(Wanted::Key(kind, key.clone())),
        Reference::Operation(id) => Some(Wanted::Operation(*id)),
    }));
    wanted
}

/// The key of what a payload sees to.
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
