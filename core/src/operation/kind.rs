//! Kinds of operations.

use serde::{Deserialize, Serialize};

use crate::lane::Lane;

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are those of the API; docs/operations.md describes each kind")]
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

/// What a second send of a kind would do, and how to find out whether the first one took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Repeatability {
    /// A second send changes nothing more.
    Idempotent,
    /// It creates a role or a channel: found by its marker in the audit log, or in a list.
    Object,
    /// It creates a message: deduplicated by its nonce, found by author, content and time.
    Message,
    /// It creates something that cannot be found again: not sent again when in doubt.
    Once,
}

impl OperationKind {
    /// All kinds.
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

    /// Name in the API, the store, metrics and logs.
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

    /// The kind with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// What a second send would do. For `request` this is the worst case, since its method decides.
    #[must_use]
    pub const fn repeatability(self) -> Repeatability {
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
            | Self::Read => Repeatability::Idempotent,
        }
    }

    /// Whether it responds to an interaction, and so is outside the order of its guild.
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
