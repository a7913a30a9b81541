//! References of a payload, and their replacement by ids.

use std::collections::HashSet;

use super::{Payload, SetMemberRoles};
use crate::operation::{ManagedKind, OperationId, Reference};

/// All references of a payload with their kinds, as `&Reference` or `&mut Reference`. One macro serves both, so that
/// neither misses a field that the other one visits.
macro_rules! references_of {
    ($payload:expr, $iter:ident) => {{
        use super::{
            AssignRole, CreateChannel, DeleteChannel, DeleteMessage, DeleteRole, EditMessage, EnsureChannel,
            EnsureMessage, NewChannel, Overwrite, OverwriteTarget, RemoveRole, Reorder, ReorderPosition,
            ReplaceOverwrites, SendMessage, UpdatePermissions,
        };
        const ROLE: ManagedKind = ManagedKind::Role;
        const CHANNEL: ManagedKind = ManagedKind::Channel;
        const MESSAGE: ManagedKind = ManagedKind::Message;
        let mut found = Vec::new();
        match $payload {
            Payload::DeleteRole(DeleteRole { role })
            | Payload::AssignRole(AssignRole { role, .. })
            | Payload::RemoveRole(RemoveRole { role, .. }) => found.push((ROLE, role)),
            Payload::SetMemberRoles(SetMemberRoles { roles, .. }) => {
                found.extend(roles.$iter().map(|role| (ROLE, role)));
            }
            Payload::CreateChannel(CreateChannel { channel: NewChannel { parent, overwrites, .. }, .. })
            | Payload::EnsureChannel(EnsureChannel { channel: NewChannel { parent, overwrites, .. }, .. }) => {
                found.extend(parent.$iter().map(|parent| (CHANNEL, parent)));
                for overwrite in overwrites.$iter().flatten() {
                    let Overwrite { target, .. } = overwrite;
                    match target {
                        OverwriteTarget::Role(role) => found.push((ROLE, role)),
                        OverwriteTarget::Member(_) => {}
                    }
                }
            }
            Payload::DeleteChannel(DeleteChannel { channel }) => found.push((CHANNEL, channel)),
            Payload::UpdatePermissions(UpdatePermissions { channel, overwrites, .. })
            | Payload::ReplaceOverwrites(ReplaceOverwrites { channel, overwrites }) => {
                found.push((CHANNEL, channel));
                for overwrite in overwrites {
                    let Overwrite { target, .. } = overwrite;
                    match target {
                        OverwriteTarget::Role(role) => found.push((ROLE, role)),
                        OverwriteTarget::Member(_) => {}
                    }
                }
            }
            Payload::Reorder(Reorder { what, places }) => {
                for ReorderPosition { object, parent, .. } in places {
                    found.push((what.kind(), object));
                    found.extend(parent.$iter().map(|parent| (CHANNEL, parent)));
                }
            }
            Payload::SendMessage(SendMessage { channel, reply_to, .. }) => {
                found.push((CHANNEL, channel));
                found.extend(reply_to.$iter().map(|message| (MESSAGE, message)));
            }
            Payload::EnsureMessage(EnsureMessage { channel, .. }) => found.push((CHANNEL, channel)),
            Payload::EditMessage(EditMessage { channel, message, .. })
            | Payload::DeleteMessage(DeleteMessage { channel, message }) => {
                found.extend([(CHANNEL, channel), (MESSAGE, message)]);
            }
            Payload::CreateRole(_)
            | Payload::EnsureRole(_)
            | Payload::SendDm(_)
            | Payload::DeferReply(_)
            | Payload::SendFollowup(_)
            | Payload::EditOriginal(_)
            | Payload::Read(_)
            | Payload::Request(_) => {}
        }
        found
    }};
}

impl Payload {
    /// All its references: by id, by key or by operation. The `key` of an object that it creates or ensures is not a
    /// reference.
    #[must_use]
    pub fn references(&self) -> Vec<(ManagedKind, &Reference)> {
        references_of!(self, iter)
    }

    /// The operations whose objects it refers to, without duplicates.
    #[must_use]
    pub fn operations(&self) -> Vec<OperationId> {
        let mut seen = HashSet::new();
        let named = self.references().into_iter().filter_map(|(_, reference)| match reference {
            Reference::Operation(id) => Some(*id),
            Reference::Id(_) | Reference::Key(_) => None,
        });
        named.filter(|id| seen.insert(*id)).collect()
    }

    /// The payload with ids only; `lookup` returns the id of each key and operation. The `key` of an object that it
    /// creates or ensures stays. If two references in a member's roles resolve to the same role, one is removed.
    ///
    /// # Errors
    ///
    /// The references that have no id, without duplicates.
    pub fn resolve(
        &self,
        mut lookup: impl FnMut(ManagedKind, &Reference) -> Option<u64>,
    ) -> Result<Self, Vec<Reference>> {
        let mut resolved = self.clone();
        let mut unknown = Vec::new();
        for (kind, reference) in resolved.references_mut() {
            match reference {
                Reference::Id(_) => {}
                Reference::Key(_) | Reference::Operation(_) => match lookup(kind, reference) {
                    Some(id) => *reference = Reference::Id(id),
                    None if unknown.contains(reference) => {}
                    None => unknown.push(reference.clone()),
                },
            }
        }
        if !unknown.is_empty() {
            return Err(unknown);
        }
        if let Self::SetMemberRoles(SetMemberRoles { roles, .. }) = &mut resolved {
            let mut seen = HashSet::new();
            roles.retain(|role| seen.insert(role.clone()));
        }
        Ok(resolved)
    }

    fn references_mut(&mut self) -> Vec<(ManagedKind, &mut Reference)> {
        references_of!(self, iter_mut)
    }
}
