//! What an operation does.

use serde::{Deserialize, Serialize};

use crate::lane::Lane;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the API's own, and docs/operations.md tells what each does")]
pub enum OperationKind {
    CreateRole,
    DeleteRole,
    AssignRole,
    RemoveRole,
    CreateChannel,
    DeleteChannel,
    UpdatePermissions,
    SetMemberRoles,
    EnsureRole,
    EnsureChannel,
    ReplaceOverwrites,
    Reorder,
    EnsureMessage,
    SendMessage,
    EditMessage,
    DeleteMessage,
    SendDm,
    DeferReply,
    SendFollowup,
    EditOriginal,
    Read,
    Request,
}

/// What sending a kind twice would do, and how it is found out whether it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Repeatability {
    /// Sending it again changes nothing more.
    Again,
    /// It makes a role or a channel: found by its marker in the audit log, or in a list.
    Object,
    /// It makes a message: kept single by its nonce, found by author, content and time.
    Message,
    /// It makes something that cannot be found again: never sent again when in doubt.
    Once,
}

impl OperationKind {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::CreateRole,
        Self::DeleteRole,
        Self::AssignRole,
        Self::RemoveRole,
        Self::CreateChannel,
        Self::DeleteChannel,
        Self::UpdatePermissions,
        Self::SetMemberRoles,
        Self::EnsureRole,
        Self::EnsureChannel,
        Self::ReplaceOverwrites,
        Self::Reorder,
        Self::EnsureMessage,
        Self::SendMessage,
        Self::EditMessage,
        Self::DeleteMessage,
        Self::SendDm,
        Self::DeferReply,
        Self::SendFollowup,
        Self::EditOriginal,
        Self::Read,
        Self::Request,
    ];

    /// Its name, as the API, the store, metrics and logs have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CreateRole => "create_role",
            Self::DeleteRole => "delete_role",
            Self::AssignRole => "assign_role",
            Self::RemoveRole => "remove_role",
            Self::CreateChannel => "create_channel",
            Self::DeleteChannel => "delete_channel",
            Self::UpdatePermissions => "update_permissions",
            Self::SetMemberRoles => "set_member_roles",
            Self::EnsureRole => "ensure_role",
            Self::EnsureChannel => "ensure_channel",
            Self::ReplaceOverwrites => "replace_overwrites",
            Self::Reorder => "reorder",
            Self::EnsureMessage => "ensure_message",
            Self::SendMessage => "send_message",
            Self::EditMessage => "edit_message",
            Self::DeleteMessage => "delete_message",
            Self::SendDm => "send_dm",
            Self::DeferReply => "defer_reply",
            Self::SendFollowup => "send_followup",
            Self::EditOriginal => "edit_original",
            Self::Read => "read",
            Self::Request => "request",
        }
    }

    /// The kind of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// What sending it twice would do. What a `request` does is told by its method, so this takes the worst.
    #[must_use]
    pub const fn sends(self) -> Repeatability {
        match self {
            Self::CreateRole | Self::CreateChannel | Self::EnsureRole | Self::EnsureChannel => Repeatability::Object,
            Self::SendMessage | Self::EnsureMessage | Self::SendDm => Repeatability::Message,
            Self::SendFollowup | Self::Request => Repeatability::Once,
            Self::DeleteRole
            | Self::AssignRole
            | Self::RemoveRole
            | Self::DeleteChannel
            | Self::UpdatePermissions
            | Self::SetMemberRoles
            | Self::ReplaceOverwrites
            | Self::Reorder
            | Self::EditMessage
            | Self::DeleteMessage
            | Self::DeferReply
            | Self::EditOriginal
            | Self::Read => Repeatability::Again,
        }
    }

    /// Whether it answers an interaction, and so stands outside its guild's order.
    #[must_use]
    pub const fn is_interaction(self) -> bool {
        matches!(self, Self::DeferReply | Self::SendFollowup | Self::EditOriginal)
    }

    /// How urgent it is.
    #[must_use]
    pub const fn lane(self) -> Lane {
        if self.is_interaction() { Lane::Interactive } else { Lane::Operation }
    }
}
