//! Order, and calls of any kind.

use serde_json::Value;

use crate::operation::Reference;

/// What is put in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reordered {
    /// `roles`.
    Roles,
    /// `channels`.
    Channels,
}

/// Where one of them goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// `id`: which role or channel.
    pub object: Reference,
    /// `position`.
    pub position: u16,
    /// `parent_id` of a channel, if it moves to another category.
    pub parent: Option<Reference>,
}

/// Puts roles or channels in order, in one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reorder {
    /// `what`.
    pub what: Reordered,
    /// `places`: 1 to 500.
    pub places: Vec<Place>,
}

/// Reads something, and keeps the answer as the operation's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// `path` below the API's version, with its query: `/guilds/1/roles`.
    pub path: String,
}

/// A method that changes something, or reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "HTTP's own names")]
pub enum Method {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

impl Method {
    /// All of them.
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
    /// `user_id`: whose queue it stands in if it belongs to no guild.
    pub user: Option<u64>,
}
