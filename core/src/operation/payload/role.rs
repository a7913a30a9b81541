//! Roles and their members.

use super::{
    format::{BOOLEAN, ID, KEY, NAME, PERMISSIONS, integer, list},
    record::{defaulted, flattened, optional, record, required},
    reference::REFERENCE,
    value::distinct,
};
use crate::operation::Reference;

record! {
    /// Properties of a role. Omitted ones have Discord's default.
    #[derive(Default)]
    pub struct NewRole {
        name: String = required("name", NAME),
        permissions: Option<u64> = optional("permissions", PERMISSIONS),
        color: Option<u32> = optional("color", integer(0, 0xFF_FF_FF)),
        /// Whether its members are listed separately.
        hoist: Option<bool> = optional("hoist", BOOLEAN),
        mentionable: Option<bool> = optional("mentionable", BOOLEAN),
    }
}

record! {
    /// Creates a role.
    pub struct CreateRole {
        key: Option<String> = optional("key", KEY),
        role: NewRole = flattened(),
    }
}

record! {
    /// Creates the role if the key has none yet, otherwise updates it; omitted fields stay unchanged.
    pub struct EnsureRole {
        key: String = required("key", KEY),
        role: NewRole = flattened(),
        /// Adopts the only role with this name that has no key, if the key has no role yet. Several such roles are a
        /// conflict.
        adopt: bool = defaulted("adopt", BOOLEAN, false),
    }
}

record! {
    /// Deletes a role. Succeeds if it does not exist.
    pub struct DeleteRole {
        role: Reference = required("role_id", REFERENCE),
    }
}

record! {
    /// Gives a member a role.
    pub struct AssignRole {
        /// The member.
        user: u64 = required("user_id", ID),
        /// The role.
        role: Reference = required("role_id", REFERENCE),
    }
}

record! {
    /// Removes a role from a member.
    pub struct RemoveRole {
        /// The member.
        user: u64 = required("user_id", ID),
        /// The role.
        role: Reference = required("role_id", REFERENCE),
    }
}

record! {
    /// Sets exactly these roles of a member.
    pub struct SetMemberRoles {
        /// The member.
        user: u64 = required("user_id", ID),
        /// Without duplicates.
        roles: Vec<Reference> = required(
            "role_ids",
            list(0, 250, REFERENCE).checked(|roles, at| distinct(roles, |role| role, at))
        ),
    }
}
