//! Kinds of operations.

use serde::{Deserialize, Serialize};

use super::payload::NullHandling;
use crate::lane::Lane;

/// All kinds. Passes the table to a macro that defines an enum by it.
macro_rules! operation_kinds {
    ($define:ident) => {
        $define! {
            // kind            name                  needs a guild  null      a second send
            CreateRole         "create_role"         true           Omitted   Object,
            DeleteRole         "delete_role"         true           Omitted   Idempotent,
            AssignRole         "assign_role"         true           Omitted   Idempotent,
            RemoveRole         "remove_role"         true           Omitted   Idempotent,
            CreateChannel      "create_channel"      true           Omitted   Object,
            DeleteChannel      "delete_channel"      true           Omitted   Idempotent,
            UpdatePermissions  "update_permissions"  true           Omitted   Idempotent,
            SetMemberRoles     "set_member_roles"    true           Omitted   Idempotent,
            EnsureRole         "ensure_role"         true           Rejected  Object,
            EnsureChannel      "ensure_channel"      true           Rejected  Object,
            ReplaceOverwrites  "replace_overwrites"  true           Omitted   Idempotent,
            Reorder            "reorder"             true           Omitted   Idempotent,
            EnsureMessage      "ensure_message"      true           Rejected  Message,
            SendMessage        "send_message"        true           Omitted   Message,
            EditMessage        "edit_message"        true           Rejected  Idempotent,
            DeleteMessage      "delete_message"      true           Omitted   Idempotent,
            SendDm             "send_dm"             false          Omitted   Message,
            DeferReply         "defer_reply"         false          Omitted   Idempotent,
            SendFollowup       "send_followup"       false          Omitted   Once,
            EditOriginal       "edit_original"       false          Rejected  Idempotent,
            Read               "read"                false          Omitted   Idempotent,
            Request            "request"             false          Omitted   Once,
        }
    };
}
pub(super) use operation_kinds;

macro_rules! define_kinds {
    ($($kind:ident $name:literal $needs_guild:literal $nulls:ident $repeatability:ident,)+) => {
        /// Kind of an operation. Its payload has the type of the same name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum OperationKind {
            $(
                #[doc = concat!("`", $name, "`.")]
                #[serde(rename = $name)]
                $kind,
            )+
        }

        impl OperationKind {
            /// All kinds.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$kind),+];

            /// Name in the API, the store, metrics and logs.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                }
            }

            /// Whether it can only be submitted for a guild.
            #[must_use]
            pub const fn needs_guild(self) -> bool {
                match self {
                    $(Self::$kind => $needs_guild,)+
                }
            }

            /// How its payload treats `null`.
            #[must_use]
            pub const fn null_handling(self) -> NullHandling {
                match self {
                    $(Self::$kind => NullHandling::$nulls,)+
                }
            }

            /// What a second send would do. For `request` this is the worst case, since its method decides.
            #[must_use]
            pub const fn repeatability(self) -> Repeatability {
                match self {
                    $(Self::$kind => Repeatability::$repeatability,)+
                }
            }
        }
    };
}
operation_kinds!(define_kinds);

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
    /// The kind with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
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
