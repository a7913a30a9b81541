//! Permission overwrites of channels.

use super::{
    field_reader::FieldReader,
    format::{ID, List, ObjectOf, PERMISSIONS, Plain, choice, list, object_of},
    record::{Alternative, EitherField, defaulted, names, record, required},
    reference::REFERENCE,
    value::{digits, distinct},
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

record! {
    /// What a role or a member may do in a channel. `allow` and `deny` must have no permission in common.
    #[derive(Hash)]
    pub struct Overwrite {
        target: OverwriteTarget = TARGET,
        allow: u64 = defaulted("allow", PERMISSIONS, 0),
        deny: u64 = defaulted("deny", PERMISSIONS, 0),
    }
    check = reject_common_permissions;
}

names! {
    /// How to treat existing permissions in a channel.
    pub enum OverwriteMode {
        /// These become the permissions.
        Replace = "replace",
        /// These are added to the existing ones; bits in neither `allow` nor `deny` stay.
        Merge = "merge",
    }
}

record! {
    /// Changes the overwrites of some roles and members in a channel; others stay unchanged.
    pub struct UpdatePermissions {
        channel: Reference = required("channel_id", REFERENCE),
        /// At most one for each role or member.
        overwrites: Vec<Overwrite> = required("overwrites", overwrites(1)),
        /// `replace`: these replace the existing overwrites of the same roles and members. `merge`: these are applied on
        /// top of them.
        mode: OverwriteMode = defaulted("mode", choice(), OverwriteMode::Replace),
    }
}

record! {
    /// Sets exactly these overwrites of a channel.
    pub struct ReplaceOverwrites {
        channel: Reference = required("channel_id", REFERENCE),
        /// At most one for each role or member.
        overwrites: Vec<Overwrite> = required("overwrites", overwrites(0)),
    }
}

const TARGET: EitherField<OverwriteTarget, Plain<Reference>, Plain<u64>> = EitherField {
    first: Alternative {
        name: "role_id",
        title: "For a role",
        description: "The role whose members get these permissions.",
        format: REFERENCE,
        with: OverwriteTarget::Role,
        get: |target| if let OverwriteTarget::Role(role) = target { Some(role) } else { None },
    },
    second: Alternative {
        name: "user_id",
        title: "For a member",
        description: "The member who gets these permissions.",
        format: ID,
        with: OverwriteTarget::Member,
        get: |target| if let OverwriteTarget::Member(member) = target { Some(member) } else { None },
    },
};

/// At least `min` overwrites, each with a different subject.
pub(super) fn overwrites(min: usize) -> List<ObjectOf<Overwrite>> {
    list(min, 100, object_of()).checked(|overwrites, at| distinct(overwrites, |overwrite| &overwrite.target, at))
}

fn reject_common_permissions(form: &mut FieldReader<'_, '_>) {
    let given = |name| form.valid(name).and_then(|value| digits(value.as_str()?)).unwrap_or(0);
    let common = given("allow") & given("deny");
    if common != 0 {
        form.invalid("deny", format!("must not contain permissions that are in `allow`: {common}"));
    }
}
