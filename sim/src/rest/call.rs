//! A REST call as its handler receives it, and the handler's reply.

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;
use serde_json::{Map, Value};

use super::error::ApiError;
use super::route::Params;
use crate::id::Snowflake;
use crate::time::At;

/// A call that has passed the limits: parsed, authenticated, and with its time.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) params: Params<'a>,
    /// The query string, decoded, in order.
    pub(crate) query: Vec<(String, String)>,
    /// The JSON body; `Value::Null` if there is none.
    pub(crate) body: Value,
    /// The files of a multipart body.
    pub(crate) files: Vec<Upload>,
    /// `X-Audit-Log-Reason`, decoded.
    pub(crate) reason: Option<String>,
    /// The application whose bot token was sent with the call. Calls that need a token and have none are refused before
    /// their handler runs.
    pub(crate) caller: Option<Snowflake>,
    /// Channels or objects of audit log entries that a fault omits from listings during this call.
    pub(crate) hidden: Vec<Snowflake>,
    pub(crate) now: At,
}

impl Call<'_> {
    /// The first value of a query parameter.
    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The body, which must be a list. A missing body is not an empty list: a bulk overwrite would delete everything.
    pub(crate) fn list(&self) -> Result<&Value, ApiError> {
        let message = "Only iterables may be used in a ListType";
        if self.body.is_array() { Ok(&self.body) } else { Err(ApiError::form("_", "LIST_TYPE_CONVERT", message)) }
    }

    /// The body as an object; anything else is an invalid form body.
    pub(crate) fn object(&self) -> Result<&Map<String, Value>, ApiError> {
        self.body
            .as_object()
            .ok_or_else(|| ApiError::form("_", "MODEL_TYPE_CONVERT", "Only dictionaries may be used in a DictType"))
    }
}

/// A file of a multipart body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Upload {
    /// Name of the part, such as `files[0]`.
    pub(crate) field: String,
    pub(crate) filename: String,
    pub(crate) content_type: Option<String>,
    pub(crate) content: Bytes,
}

/// Response of a handler, and the effect of the call.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
    /// The change, for the score; `None` for a read.
    pub(crate) effect: Option<Effect>,
}

/// A change made by a call, for the score.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Effect {
    pub(crate) guild: Option<Snowflake>,
    pub(crate) verb: Verb,
    /// `role`, `channel`, `message`, `member_role`, `overwrite`, `pin`, `interaction`, `command` and so on.
    pub(crate) kind: &'static str,
    pub(crate) object: Snowflake,
    /// The name of a role or channel, or the content of a message.
    pub(crate) name: String,
    pub(crate) repetition: Repetition,
    /// Objects that a bulk deletion removed.
    pub(crate) removed: Vec<Snowflake>,
}

/// What the same request does if it is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Repetition {
    /// Nothing, or an error: the request names its object.
    Harmless,
    /// It makes another object, which is a duplicate.
    Duplicates,
}

impl Effect {
    pub(crate) fn new(verb: Verb, kind: &'static str, guild: Option<Snowflake>, object: Snowflake, name: &str) -> Self {
        Self { guild, verb, kind, object, name: name.to_owned(), repetition: Repetition::Harmless, removed: Vec::new() }
    }

    /// The creation of an object by a request that makes another one if it is sent again.
    pub(crate) fn new_object(kind: &'static str, guild: Option<Snowflake>, object: Snowflake, name: &str) -> Self {
        Self { repetition: Repetition::Duplicates, ..Self::new(Verb::Create, kind, guild, object, name) }
    }

    pub(crate) fn with_removed(mut self, removed: Vec<Snowflake>) -> Self {
        self.removed = removed;
        self
    }
}

/// Whether an effect created, changed or deleted its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verb {
    Create,
    Update,
    Delete,
}

impl Reply {
    pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Self {
        let body = serde_json::to_vec(body).expect("invariant: the simulator's own objects are plain JSON").into();
        Self { status, body, effect: None }
    }

    pub(crate) fn ok(body: &impl Serialize) -> Self {
        Self::json(StatusCode::OK, body)
    }

    pub(crate) fn no_content() -> Self {
        Self { status: StatusCode::NO_CONTENT, body: Bytes::new(), effect: None }
    }

    pub(crate) fn with_effect(mut self, effect: Effect) -> Self {
        self.effect = Some(effect);
        self
    }
}
