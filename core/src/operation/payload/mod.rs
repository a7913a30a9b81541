//! Payloads of each kind of operation. A `Payload` is always valid.
//!
//! ```text
//!  JSON ──Payload::parse──▶ Payload ──objects──▶ what it reads and writes, for the order in its guild
//!              │               └─────resolve──▶ Payload with ids only, for Discord
//!              └─▶ every invalid field, by name
//! ```

mod channel;
pub(crate) mod field_reader;
mod interaction;
mod interaction_target;
pub(crate) mod location;
mod message;
mod misc;
mod objects;
mod overwrite;
mod parse;
mod path;
mod references;
mod rich_content;
mod role;
pub(crate) mod validation;
pub(crate) mod value;
mod write;

#[cfg(test)]
mod tests;

pub use channel::{ChannelType, CreateChannel, DeleteChannel, EnsureChannel, NewChannel};
pub use interaction::{DeferReply, EditOriginal, SendFollowup};
pub use interaction_target::InteractionTarget;
pub use location::{Location, LocationError};
pub use message::{DeleteMessage, EditMessage, EnsureMessage, MessageBody, SendDm, SendMessage};
pub use misc::{Method, Read, Reorder, ReorderPosition, ReorderTarget, Request};
pub use objects::{Object, Objects};
pub use overwrite::{Overwrite, OverwriteMode, OverwriteTarget, ReplaceOverwrites, UpdatePermissions};
pub use role::{AssignRole, CreateRole, DeleteRole, EnsureRole, NewRole, RemoveRole, SetMemberRoles};
pub use validation::{FieldError, InvalidPayload};

use super::{OperationKind, QueueKey, Repeatability};

/// An operation's payload.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant is described by its type")]
pub enum Payload {
    CreateRole(CreateRole),
    DeleteRole(DeleteRole),
    AssignRole(AssignRole),
    RemoveRole(RemoveRole),
    CreateChannel(CreateChannel),
    DeleteChannel(DeleteChannel),
    UpdatePermissions(UpdatePermissions),
    SetMemberRoles(SetMemberRoles),
    EnsureRole(EnsureRole),
    EnsureChannel(EnsureChannel),
    ReplaceOverwrites(ReplaceOverwrites),
    Reorder(Reorder),
    EnsureMessage(EnsureMessage),
    SendMessage(SendMessage),
    EditMessage(EditMessage),
    DeleteMessage(DeleteMessage),
    SendDm(SendDm),
    DeferReply(DeferReply),
    SendFollowup(SendFollowup),
    EditOriginal(EditOriginal),
    Read(Read),
    Request(Request),
}

impl Payload {
    /// Kind of the operation.
    #[must_use]
    pub const fn kind(&self) -> OperationKind {
        match self {
            Self::CreateRole(_) => OperationKind::CreateRole,
            Self::DeleteRole(_) => OperationKind::DeleteRole,
            Self::AssignRole(_) => OperationKind::AssignRole,
            Self::RemoveRole(_) => OperationKind::RemoveRole,
            Self::CreateChannel(_) => OperationKind::CreateChannel,
            Self::DeleteChannel(_) => OperationKind::DeleteChannel,
            Self::UpdatePermissions(_) => OperationKind::UpdatePermissions,
            Self::SetMemberRoles(_) => OperationKind::SetMemberRoles,
            Self::EnsureRole(_) => OperationKind::EnsureRole,
            Self::EnsureChannel(_) => OperationKind::EnsureChannel,
            Self::ReplaceOverwrites(_) => OperationKind::ReplaceOverwrites,
            Self::Reorder(_) => OperationKind::Reorder,
            Self::EnsureMessage(_) => OperationKind::EnsureMessage,
            Self::SendMessage(_) => OperationKind::SendMessage,
            Self::EditMessage(_) => OperationKind::EditMessage,
            Self::DeleteMessage(_) => OperationKind::DeleteMessage,
            Self::SendDm(_) => OperationKind::SendDm,
            Self::DeferReply(_) => OperationKind::DeferReply,
            Self::SendFollowup(_) => OperationKind::SendFollowup,
            Self::EditOriginal(_) => OperationKind::EditOriginal,
            Self::Read(_) => OperationKind::Read,
            Self::Request(_) => OperationKind::Request,
        }
    }

    /// What a second send would do.
    #[must_use]
    pub const fn repeatability(&self) -> Repeatability {
        if let Self::Request(request) = self {
            match request.method {
                Method::Get | Method::Put | Method::Patch | Method::Delete => Repeatability::Idempotent,
                Method::Post => Repeatability::Once,
            }
        } else {
            self.kind().repeatability()
        }
    }

    /// Whether it only reads, so that no attempt has an effect.
    #[must_use]
    pub const fn only_reads(&self) -> bool {
        matches!(self, Self::Read(_) | Self::Request(Request { method: Method::Get, .. }))
    }

    /// Its queue, if it was submitted for this guild, or for none.
    #[must_use]
    pub fn queue(&self, guild: Option<u64>) -> QueueKey {
        match self {
            Self::DeferReply(DeferReply { interaction, .. })
            | Self::SendFollowup(SendFollowup { interaction, .. })
            | Self::EditOriginal(EditOriginal { interaction, .. }) => QueueKey::interaction(*interaction),
            // Messages to a user keep their order, whichever guild they come from.
            Self::SendDm(SendDm { user, .. }) => QueueKey::user(*user),
            Self::Request(Request { user, .. }) => match (guild, user) {
                (Some(guild), _) => QueueKey::Guild(guild),
                (None, Some(user)) => QueueKey::user(*user),
                (None, None) => QueueKey::application(),
            },
            Self::CreateRole(_)
            | Self::DeleteRole(_)
            | Self::AssignRole(_)
            | Self::RemoveRole(_)
            | Self::CreateChannel(_)
            | Self::DeleteChannel(_)
            | Self::UpdatePermissions(_)
            | Self::SetMemberRoles(_)
            | Self::EnsureRole(_)
            | Self::EnsureChannel(_)
            | Self::ReplaceOverwrites(_)
            | Self::Reorder(_)
            | Self::EnsureMessage(_)
            | Self::SendMessage(_)
            | Self::EditMessage(_)
            | Self::DeleteMessage(_)
            | Self::Read(_) => guild.map_or_else(QueueKey::application, QueueKey::Guild),
        }
    }
}
