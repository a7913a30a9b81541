//! Permission overwrites of channels.

use serde_json::Value;

use super::{
    field_reader::{FieldReader, object},
    validation::FieldContext,
    value::{choice, distinct, id, list, permissions, reference},
    write::{self, FieldWriter},
};
use crate::operation::Reference;

/// Subject of an overwrite.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OverwriteTarget {
    /// `role_id`: the members with this role.
    Role(Reference),
    /// `user_id`: one member.
    Member(u64),
}

/// Permissions that a role or member is allowed or denied in a channel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Overwrite {
    /// Subject of the overwrite.
    pub target: OverwriteTarget,
    /// `allow`: permissions, as a string.
    pub allow: u64,
    /// `deny`: permissions, as a string.
    pub deny: u64,
}

/// How to treat existing permissions in a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OverwriteMode {
    /// `replace`: these become the permissions.
    Replace,
    /// `merge`: these are added to the existing ones; bits in neither `allow` nor `deny` stay.
    Merge,
}

/// Changes some overwrites of a channel; the others stay as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdatePermissions {
    /// `channel_id`.
    pub channel: Reference,
    /// `overwrites`: 1 to 100.
    pub overwrites: Vec<Overwrite>,
    /// `mode`: `replace` by default.
    pub mode: OverwriteMode,
}

/// Sets the overwrites of a channel to exactly these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplaceOverwrites {
    /// `channel_id`.
    pub channel: Reference,
    /// `overwrites`: at most 100.
    pub overwrites: Vec<Overwrite>,
}

impl OverwriteMode {
    /// All modes.
    pub const ALL: [Self; 2] = [Self::Replace, Self::Merge];

    /// Name in payloads.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Replace => "replace",
            Self::Merge => "merge",
        }
    }
}

impl Overwrite {
    fn read(value: &Value, at: &mut FieldContext<'_>) -> Option<Self> {
        object(value, at, |form| {
            let role = form.optional("role_id", reference);
            let member = form.optional("user_id", id);
            let target = match (form.has_value("role_id"), form.has_value("user_id")) {
                (true, false) => role.map(OverwriteTarget::Role),
                (false, true) => member.map(OverwriteTarget::Member),
                (true, true) | (false, false) => {
                    form.invalid_here("must have either `role_id` or `user_id`");
                    None
                }
            };
            let allow = form.optional("allow", permissions).unwrap_or(0);
            let deny = form.optional("deny", permissions).unwrap_or(0);
            if allow & deny != 0 {
                form.invalid("deny", format!("must not contain permissions that are in `allow`: {}", allow & deny));
            }
            Some(Self { target: target?, allow, deny })
        })
    }

    pub(super) fn write(out: &mut String, overwrite: &Self) {
        write::object(out, |fields| {
            match &overwrite.target {
                OverwriteTarget::Role(role) => fields.reference("role_id", role),
                OverwriteTarget::Member(member) => fields.quoted("user_id", member),
            }
            fields.quoted("allow", overwrite.allow);
            fields.quoted("deny", overwrite.deny);
        });
    }
}

/// Reads at least `min` overwrites, each with a different subject.
pub(super) fn overwrites(min: usize) -> impl FnOnce(&Value, &mut FieldContext<'_>) -> Option<Vec<Overwrite>> {
    move |value, at| {
        let overwrites = list(min, 100, Overwrite::read)(value, at)?;
        distinct(&overwrites, |overwrite| &overwrite.target, at);
        Some(overwrites)
    }
}

impl UpdatePermissions {
    pub(super) fn from_form(form: &mut FieldReader<'_, '_>) -> Option<Self> {
        let channel = form.required("channel_id", reference);
        let overwrites = form.required("overwrites", overwrites(1));
        let mode = form.optional("mode", choice(&OverwriteMode::ALL.map(|mode| (mode.name(), mode))));
        Some(Self { channel: channel?, overwrites: overwrites?, mode: mode.unwrap_or(OverwriteMode::Replace) })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.reference("channel_id", &self.channel);
        fields.with("overwrites", |out| write::list(out, &self.overwrites, Overwrite::write));
        fields.text("mode", self.mode.name());
    }
}

impl ReplaceOverwrites {
    pub(super) fn from_form(form: &mut FieldReader<'_, '_>) -> Option<Self> {
        let channel = form.required("channel_id", reference);
        let overwrites = form.required("overwrites", overwrites(0));
        Some(Self { channel: channel?, overwrites: overwrites? })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.reference("channel_id", &self.channel);
        fields.with("overwrites", |out| write::list(out, &self.overwrites, Overwrite::write));
    }
}
