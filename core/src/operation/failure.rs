//! Failures of operations.

use serde::{Deserialize, Serialize};

use super::GateCondition;
use super::gate_condition::stored;

/// Class of a failure. It decides what happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    /// Discord rejects the request as it is. Never retried.
    Validation,
    /// The bot lacks a permission. Never retried.
    Forbidden,
    /// The target does not exist. Never retried.
    NotFound,
    /// A rate limit. Retried later; uses no attempt.
    RateLimited,
    /// A failure that may not repeat. Uses an attempt.
    Transient,
    /// The state in Discord differs from what the operation assumed. The operation ends; its caller should plan again.
    Conflict,
    /// It was sent and its outcome is unknown. The outcome is determined before anything else.
    Ambiguous,
    /// Its deadline passed before it could run.
    Expired,
    /// It crashed the executor. It ends, so that it cannot do so again.
    Poison,
}

impl FailureClass {
    /// All classes.
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

    /// Name in the store, metrics and logs.
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

/// Failure of an operation, for people and for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Class of the failure.
    pub class: FailureClass,
    /// What failed, and what to do about it, if anything.
    pub message: String,
    /// Status of Discord's response, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Discord's error code, if it sent one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u32>,
    /// The gate condition that holds the operation back, if a change of it releases the operation.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "stored")]
    pub held_by: Option<GateCondition>,
}

impl Failure {
    /// A failure without a response from Discord.
    pub fn new(class: FailureClass, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), status: None, code: None, held_by: None }
    }
}
