//! Dead events and state entries.

use guildhall_actors::ports::InboxEntry;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{Position, Time};

/// A page of dead events.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct DeadEventPage {
    pub(crate) events: Vec<DeadEvent>,
    /// Value of `before` for the next page; `null` on the last page.
    pub(crate) next: Option<Position>,
}

/// An event that failed for good.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct DeadEvent {
    pub(crate) place: Position,
    /// The handler that failed.
    pub(crate) handler: String,
    /// The type of the event, such as `member.join`.
    pub(crate) event_type: String,
    pub(crate) session: String,
    #[schema(pattern = r"^-?[0-9]{1,18}$")]
    pub(crate) seq: String,
    /// Why it failed for good.
    pub(crate) why: Option<String>,
    /// Number of attempts.
    pub(crate) attempts: u32,
    pub(crate) created_at: Time,
    /// The event. Interaction tokens are redacted.
    #[schema(value_type = Option<Object>)]
    pub(crate) event: Value,
}

impl From<&InboxEntry> for DeadEvent {
    fn from(entry: &InboxEntry) -> Self {
        let mut event: Value = serde_json::from_str(&entry.event).unwrap_or_default();
        // The token permits anyone to respond as the bot.
        if let Some(token) = event.get_mut("interaction_token") {
            *token = "(redacted)".into();
        }
        if let Some(token) = event.pointer_mut("/data/token") {
            *token = "(redacted)".into();
        }
        Self {
            place: entry.position.to_string().into(),
            handler: entry.key.handler.to_string(),
            event_type: entry.name.to_string(),
            session: entry.key.session.to_string(),
            seq: entry.key.seq.to_string(),
            why: entry.dead.clone(),
            attempts: entry.attempts,
            created_at: entry.created_at.into(),
            event,
        }
    }
}

/// The response to a revived event.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Revived {
    pub(crate) revived: bool,
}

/// A state entry.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct StateValue {
    pub(crate) key: String,
    /// Any JSON except `null`.
    pub(crate) value: Value,
}
