//! Roles and their members.

use super::{
    field_reader::FieldReader,
    value::{boolean, distinct, id, integer, key, list, name, permissions, reference},
    write::{self, FieldWriter},
};
use crate::operation::Reference;

/// Properties of a role. Omitted ones have Discord's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewRole {
    /// `name`: 1 to 100 characters.
    pub name: String,
    /// `permissions`: a number as a string, as Discord writes permissions.
    pub permissions: Option<u64>,
    /// `color`: 0 to 0xFFFFFF.
    pub color: Option<u32>,
    /// `hoist`: displayed separately.
    pub hoist: Option<bool>,
    /// `mentionable`.
    pub mentionable: Option<bool>,
}

/// Creates a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateRole {
    /// `key`: the key by which other operations can refer to it.
    pub key: Option<String>,
    /// Its properties; in JSON these fields are beside `key`.
    pub role: NewRole,
}

/// Ensures that the guild has this role with these properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnsureRole {
    /// `key`: which role.
    pub key: String,
    /// Desired properties; omitted ones stay as they are.
    pub role: NewRole,
    /// `adopt`: if the key is not bound yet, adopt the one role with this name that has no key. Several such roles are
    /// a conflict.
    pub adopt: bool,
}

/// Deletes a role. Succeeds if it does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteRole {
    /// `role_id`.
    pub role: Reference,
}

/// Adds a role to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssignRole {
    /// `user_id`.
    pub user: u64,
    /// `role_id`.
    pub role: Reference,
}

/// Removes a role from a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoveRole {
    /// `user_id`.
    pub user: u64,
    /// `role_id`.
    pub role: Reference,
}

/// Sets the roles of a member to exactly these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetMemberRoles {
    /// `user_id`.
    pub user: u64,
    /// `role_ids`: at most 250.
    pub roles: Vec<Reference>,
}

impl NewRole {
    fn from_form(form: &mut FieldReader<'_, '_>) -> Option<Self> {
        let name = form.required("name", name);
        let permissions = form.optional("permissions", permissions);
        let color = form.optional("color", integer(0, 0xFF_FF_FF));
        let hoist = form.optional("hoist", boolean);
        let mentionable = form.optional("mentionable", boolean);
        Some(Self { name: name?, permissions, color, hoist, mentionable })
    }

    fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.text("name", &self.name);
        fields.optional("permissions", self.permissions, FieldWriter::quoted);
        fields.optional("color", self.color, FieldWriter::plain);
        fields.optional("hoist", self.hoist, FieldWriter::plain);
        fields.optional("mentionable", self.mentionable, FieldWriter::plain);
    }
}

impl CreateRole {
    pub(super) fn from_form(form: &mut FieldReader<'_, '_>) -> Option<Self> {
        let key = form.optional("key", key);
        Some(Self { key, role: NewRole::from_form(form)? })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.optional("key", self.key.as_deref(), FieldWriter::text);
        self.role.write(fields);
    }
}

impl EnsureRole {
    pub(super) fn from_form(form: &mut FieldReader<'_, '_>) -> Option<Self> {
        let key = form.required("key", key);
        let role = NewRole::from_form(form);
        let adopt = form.optional("adopt", boolean).unwrap_or(false);
        Some(Self { key: key?, role: role?, adopt })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.text("key", &self.key);
        self.role.write(fields);
        fields.plain("adopt", self.adopt);
    }
}

impl DeleteRole {
    pub(super) fn from_form(form: &mut FieldReader<'_, '_>) -> Option<Self> {
        Some(Self { role: form.required("role_id", reference)? })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.reference("role_id", &self.role);
    }
}

impl AssignRole {
    pub(super) fn from_form(form: &mut FieldReader<'_, '_>) -> Option<Self> {
        let (user, role) = member_and_role(form)?;
        Some(Self { user, role })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.quoted("user_id", self.user);
        fields.reference("role_id", &self.role);
    }
}

impl RemoveRole {
    pub(super) fn from_form(form: &mut FieldReader<'_, '_>) -> Option<Self> {
        let (user, role) = member_and_role(form)?;
        Some(Self { user, role })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.quoted("user_id", self.user);
        fields.reference("role_id", &self.role);
    }
}

fn member_and_role(form: &mut FieldReader<'_, '_>) -> Option<(u64, Reference)> {
    let user = form.required("user_id", id);
    let role = form.required("role_id", reference);
    Some((user?, role?))
}

impl SetMemberRoles {
    pub(super) fn from_form(form: &mut FieldReader<'_, '_>) -> Option<Self> {
        let user = form.required("user_id", id);
        let roles = form.required("role_ids", |value, at| {
            let roles = list(0, 250, reference)(value, at)?;
            distinct(&roles, |role| role, at);
            Some(roles)
        });
        Some(Self { user: user?, roles: roles? })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.quoted("user_id", self.user);
        fields.with("role_ids", |out| write::list(out, &self.roles, write::reference));
    }
}
