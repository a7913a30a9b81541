//! Failures of operations.

use serde::{Deserialize, Serialize};

use super::GateCondition;
use super::gate_condition::stored;

crate::named_enum! {
    /// Class of a failure. It decides what happens next.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum FailureClass {
        /// Discord rejects the request as it is. Never retried.
        Validation = "validation",
        /// The bot lacks a permission. Never retried.
        Forbidden = "forbidden",
        /// The target does not exist. Never retried.
        NotFound = "not_found",
        /// A rate limit. Retried later; uses no attempt.
        RateLimited = "rate_limited",
        /// A failure that may not repeat. Uses an attempt.
        Transient = "transient",
        /// The state in Discord differs from what the operation assumed. The operation ends; its caller should plan
        /// again.
        Conflict = "conflict",
        /// It was sent and its outcome is unknown. The outcome is determined before anything else.
        Ambiguous = "ambiguous",
        /// Its deadline passed before it could run.
        Expired = "expired",
        /// It crashed the executor. It ends, so that it cannot do so again.
        Poison = "poison",
        /// The store was restored from a backup in which it was unfinished, and its effect does not exist. It is not sent
        /// again: it may have been executed and undone since.
        Restored = "restored",
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
