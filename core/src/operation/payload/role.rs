//! Roles, and who has them.

use crate::operation::Reference;

/// What a role is like. What is not said is Discord's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewRole {
    /// `name`: 1 to 100 characters.
    pub name: String,
    /// `permissions`: a number as a string, as Discord writes permissions.
    pub permissions: Option<u64>,
    /// `color`: 0 to 0xFFFFFF.
    pub color: Option<u32>,
    /// `hoist`: shown apart from others.
    pub hoist: Option<bool>,
    /// `mentionable`.
    pub mentionable: Option<bool>,
}

/// Makes a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateRole {
    /// `key`: the name under which others may refer to it, if it is to have one.
    pub key: Option<String>,
    /// What it is like; its fields stand beside `key`.
    pub role: NewRole,
}

/// Sees to it that the guild has this role, and that it is like this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnsureRole {
    /// `key`: which role.
    pub key: String,
    /// What it should be like; what is not said is left as it is.
    pub role: NewRole,
    /// `adopt`: if the key names nothing yet, take the one role of this name that has no key. Several are a conflict.
    pub adopt: bool,
}

/// Deletes a role. Succeeds if there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteRole {
    /// `role_id`.
    pub role: Reference,
}

/// Gives a member a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssignRole {
    /// `user_id`.
    pub user: u64,
    /// `role_id`.
    pub role: Reference,
}

/// Takes a role from a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoveRole {
    /// `user_id`.
    pub user: u64,
    /// `role_id`.
    pub role: Reference,
}

/// Gives a member exactly these roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetMemberRoles {
    /// `user_id`.
    pub user: u64,
    /// `role_ids`: at most 250.
    pub roles: Vec<Reference>,
}
