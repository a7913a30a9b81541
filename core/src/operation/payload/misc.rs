//! Reordering, reads and raw requests.

use serde_json::Value;

use super::{
    field_reader::FieldReader,
    format::{ANYTHING, ID, PATH, choice, integer, list, object_of},
    record::{names, optional, record, required},
    reference::REFERENCE,
    value::distinct,
};
use crate::operation::{ManagedKind, Reference};

names! {
    /// What is reordered.
    pub enum ReorderTarget {
        Roles = "roles",
        Channels = "channels",
    }
}

names! {
    /// HTTP method of a call.
    pub enum Method {
        Get = "GET",
        Post = "POST",
        Put = "PUT",
        Patch = "PATCH",
        Delete = "DELETE",
    }
}

record! {
    /// New position of a role or channel.
    #[derive(Hash)]
    pub struct ReorderPosition {
        /// The role or channel.
        object: Reference = required("id", REFERENCE),
        position: u16 = required("position", integer(0, 65_535)),
        /// The category that a channel moves to. Not for roles.
        parent: Option<Reference> = optional("parent_id", REFERENCE),
    }
}

record! {
    /// Sets the positions of roles or channels, in one call.
    pub struct Reorder {
        what: ReorderTarget = required("what", choice()),
        /// Without duplicates.
        places: Vec<ReorderPosition> = required(
            "places",
            list(1, 500, object_of::<ReorderPosition>())
                .checked(|places, at| distinct(places, |place| &place.object, at))
        ),
    }
    check = reject_parents_of_roles;
}

record! {
    /// Reads a resource, and stores the response as the operation's result.
    pub struct Read {
        path: String = required("path", PATH),
    }
}

record! {
    /// Any call to Discord's API that no other kind makes. If the outcome of a `POST` is unknown it is not sent again:
    /// `needs_review`.
    pub struct Request {
        method: Method = required("method", choice()),
        path: String = required("path", PATH),
        /// Any JSON. Not with `GET`.
        body: Option<Value> = optional("body", ANYTHING),
        /// The user whose queue it is in. Only outside a guild.
        user: Option<u64> = optional("user_id", ID),
    }
    check = reject_body_of_get;
}

impl ReorderTarget {
    /// Kind of the objects.
    #[must_use]
    pub const fn kind(self) -> ManagedKind {
        match self {
            Self::Roles => ManagedKind::Role,
            Self::Channels => ManagedKind::Channel,
        }
    }
}

fn reject_parents_of_roles(form: &mut FieldReader<'_, '_>) {
    let Some(places) = form.valid("places").and_then(Value::as_array) else { return };
    if form.valid("what").is_some_and(|what| what == ReorderTarget::Roles.name()) {
        for (index, _) in places.iter().enumerate().filter(|(_, place)| !place["parent_id"].is_null()) {
            form.invalid(&format!("places[{index}].parent_id"), "is not supported for roles");
        }
    }
}

fn reject_body_of_get(form: &mut FieldReader<'_, '_>) {
    if form.valid("method").is_some_and(|method| method == Method::Get.name()) && form.has_value("body") {
        form.invalid("body", "must be omitted for GET");
    }
}
