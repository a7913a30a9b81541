//! Reordering, reads and raw requests.

use serde_json::Value;

use super::{
    field_reader::{FieldReader, object},
    path::path,
    validation::FieldContext,
    value::{choice, distinct, id, integer, list, reference},
    write::{self, FieldWriter},
};
use crate::operation::{ManagedKind, Reference};

/// What is reordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReorderTarget {
    /// `roles`.
    Roles,
    /// `channels`.
    Channels,
}

/// New position of a role or channel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReorderPosition {
    /// `id`: which role or channel.
    pub object: Reference,
    /// `position`.
    pub position: u16,
    /// `parent_id` of a channel, if it moves to another category.
    pub parent: Option<Reference>,
}

/// Reorders roles or channels in one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reorder {
    /// `what`.
    pub what: ReorderTarget,
    /// `places`: 1 to 500.
    pub places: Vec<ReorderPosition>,
}

/// Reads from Discord and stores the response as the operation's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// `path` below the API's version, with its query: `/guilds/1/roles`.
    pub path: String,
}

/// HTTP method of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "named as in HTTP")]
pub enum Method {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

impl Method {
    /// All methods.
    pub const ALL: [Self; 5] = [Self::Get, Self::Post, Self::Put, Self::Patch, Self::Delete];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

/// Any call to Discord's API that no other kind makes.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// `method`.
    pub method: Method,
    /// `path` below the API's version, with its query.
    pub path: String,
    /// `body`: JSON, if it has one.
    pub body: Option<Value>,
    /// `user_id`: the user whose queue it joins if it has no guild.
    pub user: Option<u64>,
}

impl ReorderTarget {
    /// All targets.
    pub const ALL: [Self; 2] = [Self::Roles, Self::Channels];

    /// Name in payloads.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Roles => "roles",
            Self::Channels => "channels",
        }
    }

    /// Kind of the objects.
    #[must_use]
    pub const fn kind(self) -> ManagedKind {
        match self {
            Self::Roles => ManagedKind::Role,
            Self::Channels => ManagedKind::Channel,
        }
    }
}

impl ReorderPosition {
    fn read(value: &Value, at: &mut FieldContext<'_>) -> Option<Self> {
        object(value, at, |form| {
            let object = form.required("id", reference);
            let position = form.required("position", integer(0, u16::MAX.into()));
            let parent = form.optional("parent_id", reference);
            Some(Self { object: object?, position: position?, parent })
        })
    }

    fn write(out: &mut String, place: &Self) {
        write::object(out, |fields| {
            fields.reference("id", &place.object);
            fields.plain("position", place.position);
            fields.optional("parent_id", place.parent.as_ref(), FieldWriter::reference);
        });
    }
}

impl Reorder {
    pub(super) fn from_form(form: &mut FieldReader<'_, '_>) -> Option<Self> {
        let what = form.required("what", choice(&ReorderTarget::ALL.map(|what| (what.name(), what))));
        let places = form.required("places", |value, at| {
            let places = list(1, 500, ReorderPosition::read)(value, at)?;
            distinct(&places, |place| &place.object, at);
            for (index, place) in places.iter().enumerate() {
                if place.parent.is_some() && what == Some(ReorderTarget::Roles) {
                    at.item(index).field("parent_id").invalid::<()>("is not supported for roles");
                }
            }
            Some(places)
        });
        Some(Self { what: what?, places: places? })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.text("what", self.what.name());
        fields.with("places", |out| write::list(out, &self.places, ReorderPosition::write));
    }
}

impl Read {
    pub(super) fn from_form(form: &mut FieldReader<'_, '_>) -> Option<Self> {
        Some(Self { path: form.required("path", path)? })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.text("path", &self.path);
    }
}

impl Request {
    pub(super) fn from_form(form: &mut FieldReader<'_, '_>, guild: Option<u64>) -> Option<Self> {
        let method = form.required("method", choice(&Method::ALL.map(|method| (method.name(), method))));
        let path = form.required("path", path);
        let body = form.optional("body", |body, _| Some(body.clone()));
        let user = form.optional("user_id", id);
        if method == Some(Method::Get) && body.is_some() {
            form.invalid("body", "must be omitted for GET");
        }
        if guild.is_some() && user.is_some() {
            form.invalid("user_id", "must be omitted in a guild, because the call joins the queue of the guild");
        }
        Some(Self { method: method?, path: path?, body, user })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.text("method", self.method.name());
        fields.text("path", &self.path);
        if let Some(body) = &self.body {
            fields.with("body", |out| write::value(out, body));
        }
        fields.optional("user_id", self.user, FieldWriter::quoted);
    }
}
