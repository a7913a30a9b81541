//! Dead letters: operations that failed for good.

use guildhall_actors::ports;
use guildhall_actors::submission::{DiscardSummary, RedriveSummary};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{Failure, Href, Kind, OperationId, Snowflake, Time, operations::payload};

/// A page of dead letters.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct DeadLetterPage {
    pub(crate) dead_letters: Vec<DeadLetter>,
    /// Value of `cursor` for the next page; `null` on the last page.
    pub(crate) next: Option<String>,
}

/// An operation that failed for good.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct DeadLetter {
    pub(crate) id: OperationId,
    pub(crate) kind: Kind,
    pub(crate) guild_id: Option<Snowflake>,
    /// The payload of its kind. Interaction tokens are redacted.
    #[schema(value_type = Object)]
    pub(crate) payload: Value,
    /// Reason for Discord's audit log.
    pub(crate) reason: Option<String>,
    /// Why the operation failed for good.
    pub(crate) error: Failure,
    /// Number of attempts.
    pub(crate) attempts: u32,
    pub(crate) created_at: Time,
    pub(crate) died_at: Time,
    /// The operation that this one redrove.
    pub(crate) redrive_of: Option<OperationId>,
    /// The operation that redrives this one.
    pub(crate) redriven_as: Option<OperationId>,
    /// Path of this resource.
    pub(crate) href: Href,
}

/// The result of redriving dead letters.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub(crate) struct Redriven {
    /// Number of redriven dead letters.
    pub(crate) redriven: usize,
    /// The redriven dead letters and their new operations.
    pub(crate) operations: Vec<RedrivenLetter>,
    /// Dead letters that could not be redriven, and the reasons.
    pub(crate) skipped: Vec<SkippedLetter>,
    /// Whether more dead letters match.
    pub(crate) more: bool,
    /// Why it stopped early, if it did. Dead letters redriven before stay redriven.
    pub(crate) stopped: Option<String>,
}

/// A dead letter and the operation that redrives it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct RedrivenLetter {
    pub(crate) letter: OperationId,
    pub(crate) operation: OperationId,
}

/// A dead letter that could not be redriven.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct SkippedLetter {
    pub(crate) letter: OperationId,
    pub(crate) why: String,
}

/// The result of discarding dead letters.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Discarded {
    /// Number of discarded dead letters.
    pub(crate) discarded: u64,
    /// Whether more dead letters match.
    pub(crate) more: bool,
}

impl From<&ports::DeadLetter> for DeadLetter {
    fn from(letter: &ports::DeadLetter) -> Self {
        Self {
            id: letter.id.into(),
            kind: letter.kind.name().into(),
            guild_id: letter.guild.map(Snowflake::from),
            payload: payload(&letter.payload),
            reason: letter.reason.clone(),
            error: (&letter.error).into(),
            attempts: letter.attempts,
            created_at: letter.created_at.into(),
            died_at: letter.died_at.into(),
            redrive_of: letter.redrive_of.map(OperationId::from),
            redriven_as: letter.redriven_as.map(OperationId::from),
            href: format!("/v1/dead-letters/{}", letter.id).into(),
        }
    }
}

impl From<&RedriveSummary> for Redriven {
    fn from(summary: &RedriveSummary) -> Self {
        let pairs = summary.redriven.iter();
        let skipped = summary.skipped.iter();
        Self {
            redriven: summary.redriven.len(),
            operations: pairs
                .map(|(letter, operation)| RedrivenLetter { letter: (*letter).into(), operation: (*operation).into() })
                .collect(),
            skipped: skipped
                .map(|skipped| SkippedLetter { letter: skipped.id.into(), why: skipped.reason.clone() })
                .collect(),
            more: summary.more,
            stopped: summary.stopped.as_ref().map(ToString::to_string),
        }
    }
}

impl From<DiscardSummary> for Discarded {
    fn from(summary: DiscardSummary) -> Self {
        Self { discarded: summary.count, more: summary.more }
    }
}
