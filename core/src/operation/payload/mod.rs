//! What each kind of operation takes, as types that hold nothing wrong.
//!
//! ```text
//!  JSON ──Payload::parse──▶ Payload ──objects──▶ what it reads and writes, for the order in its guild
//!              │               └─────resolve──▶ Payload with ids only, for Discord
//!              └─▶ every field that is wrong, by name
//! ```

mod channel;
pub(crate) mod form;
mod interaction;
mod interaction_target;
pub(crate) mod invalid;
pub(crate) mod location;
mod message;
mod misc;
mod objects;
mod overwrite;
mod parse;
mod path;
mod references;
mod rich;
mod role;
pub(crate) mod value;
mod write;

#[cfg(test)]
mod tests;

pub use channel::{ChannelType, CreateChannel, DeleteChannel, EnsureChannel, NewChannel};
pub use interaction::{DeferReply, EditOriginal, SendFollowup};
pub use interaction_target::InteractionTarget;
pub use invalid::{FieldError, Invalid};
pub use location::{Location, Untold};
pub use message::{DeleteMessage, EditMessage, EnsureMessage, MessageBody, SendDm, SendMessage};
pub use misc::{Method, Place, Read, Reorder, Reordered, Request};
pub use objects::{Object, Objects};
pub use overwrite::{Overwrite, OverwriteMode, OverwriteTarget, ReplaceOverwrites, UpdatePermissions};
pub use role::{AssignRole, CreateRole, DeleteRole, EnsureRole, NewRole, RemoveRole, SetMemberRoles};

use super::{Kind, QueueKey, Sends};

/// An operation's payload.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant is told by the type that it holds")]
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
    /// What kind of operation it belongs to.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::CreateRole(_) => Kind::CreateRole,
            Self::DeleteRole(_) => Kind::DeleteRole,
            Self::AssignRole(_) => Kind::AssignRole,
            Self::RemoveRole(_) => Kind::RemoveRole,
            Self::CreateChannel(_) => Kind::CreateChannel,
            Self::DeleteChannel(_) => Kind::DeleteChannel,
            Self::UpdatePermissions(_) => Kind::UpdatePermissions,
            Self::SetMemberRoles(_) => Kind::SetMemberRoles,
            Self::EnsureRole(_) => Kind::EnsureRole,
            Self::EnsureChannel(_) => Kind::EnsureChannel,
            Self::ReplaceOverwrites(_) => Kind::ReplaceOverwrites,
            Self::Reorder(_) => Kind::Reorder,
            Self::EnsureMessage(_) => Kind::EnsureMessage,
            Self::SendMessage(_) => Kind::SendMessage,
            Self::EditMessage(_) => Kind::EditMessage,
            Self::DeleteMessage(_) => Kind::DeleteMessage,
            Self::SendDm(_) => Kind::SendDm,
            Self::DeferReply(_) => Kind::DeferReply,
            Self::SendFollowup(_) => Kind::SendFollowup,
            Self::EditOriginal(_) => Kind::EditOriginal,
            Self::Read(_) => Kind::Read,
            Self::Request(_) => Kind::Request,
        }
    }

    /// What sending it twice would do.
    #[must_use]
    pub const fn sends(&self) -> Sends {
        if let Self::Request(request) = self {
            match request.method {
                Method::Get | Method::Put | Method::Patch | Method::Delete => Sends::Again,
                Method::Post => Sends::Once,
            }
        } else {
            self.kind().sends()
        }
    }

    /// Whether it only reads: no attempt at it can have an effect.
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
            // What is said to a user keeps its order, whichever guild it comes from.
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
