//! Why an operation did not do what it should.

use serde::{Deserialize, Serialize};

use super::GateCondition;
use super::gate_condition::stored;

/// What kind of failure it was, and so what is done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    /// Discord does not take it as it is. Never tried again.
    Validation,
    /// The bot may not. Never tried again.
    Forbidden,
    /// What it is about does not exist. Never tried again.
    NotFound,
    /// A limit: tried again later, and no attempt is used.
    RateLimited,
    /// Something went wrong that may go right next time. An attempt is used.
    Transient,
    /// The world is not as the operation took it to be. It ends, and whoever planned it should plan again.
    Conflict,
    /// It was sent, and nobody knows what came of it. It is looked for before anything else.
    Ambiguous,
    /// Its time was up before it could be done.
    Expired,
    /// It broke what executes operations. It ends, so that it cannot do so again.
    Poison,
}

impl FailureClass {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Validation,
        Self::Forbidden,
        Self::NotFound,
        Self::RateLimited,
        Self::Transient,
        Self::Conflict,
        Self::Ambiguous,
        Self::Expired,
        Self::Poison,
    ];

    /// Its name, as the store, metrics and logs have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Validation => "validation",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::RateLimited => "rate_limited",
            Self::Transient => "transient",
            Self::Conflict => "conflict",
            Self::Ambiguous => "ambiguous",
            Self::Expired => "expired",
            Self::Poison => "poison",
        }
    }
}

/// Why an operation did not do what it should, for people and for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What kind it was.
    pub class: FailureClass,
    /// What went wrong, and what to do if something can be done.
    pub message: String,
    /// The status of Discord's answer, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Discord's own error code, if it gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u32>,
    /// What in the gate holds the operation back, if a change there releases it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "stored")]
    pub held_by: Option<GateCondition>,
}

impl Failure {
    /// A failure that no answer of Discord tells of.
    pub fn new(class: FailureClass, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), status: None, code: None, held_by: None }
    }
}
