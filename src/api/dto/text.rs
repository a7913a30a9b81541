//! Strings of a known form: ids, times, and names out of fixed sets.
//!
//! Each type has a schema of its name. None of them rejects a value: a newer daemon may have more names.

use std::{borrow::Cow, fmt};

use chrono::{DateTime, SecondsFormat};
use guildhall_actors::access::AuditAction;
use guildhall_core::{
    access::{KeyId as CoreKeyId, Scope as CoreScope},
    egress_usage::EgressMeasure as CoreEgressMeasure,
    lane::Lane as CoreLane,
    operation::{
        FailureClass as CoreFailureClass, OperationId as CoreOperationId, OperationKind, OperationState,
        ProgressStep as CoreProgressStep, payload::patterns,
    },
    spending::Measure,
    time::UnixMs,
};
use serde::{Deserialize, Serialize};
use utoipa::{PartialSchema, ToSchema, openapi::KnownFormat};

use crate::api::openapi::{
    common::{A_GUILD, A_TIME, AN_OPERATION, KEY_ID},
    doc_text,
    schema::{Describe as _, SchemaRef, any_of, formatted, formatted_as, one_of_names, text},
};

macro_rules! text_types {
    ($($(#[doc = $doc:literal])+ $name:ident = $schema:expr;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(transparent)]
        pub(crate) struct $name(Cow<'static, str>);

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl From<&'static str> for $name {
            fn from(text: &'static str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl PartialSchema for $name {
            fn schema() -> SchemaRef {
                $schema.describe(&doc_text(&[$($doc),+])).into()
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                stringify!($name).into()
            }
        }
    )+};
}

text_types! {
    /// A Discord id, as a string of digits.
    Snowflake = text().pattern(Some(patterns::ID)).examples([A_GUILD]);
    /// The id of an operation: a UUID of version 7, so that ids sort by time. Its dead letter has the same id.
    OperationId = formatted_as("uuid").examples([AN_OPERATION]);
    /// The id of an API key. It is not secret.
    KeyId = text().pattern(Some(KEY_ID)).examples(["k7mq2vx9apzd"]);
    /// What an operation does.
    Kind = one_of_names(OperationKind::ALL.map(OperationKind::name));
    /// The state of an operation. `scheduled` (not due yet: it is not in its queue and blocks nothing), `queued`,
    /// `running`, `delayed` (by a limit or a breaker; no attempt is used), `retrying` and `reconciling` (sent, and its
    /// outcome is being determined) continue by themselves; `succeeded`, `dead`, `cancelled` and `needs_review` are
    /// final.
    State = one_of_names(OperationState::ALL.map(OperationState::name));
    /// The priority of a call.
    Lane = one_of_names(CoreLane::ALL.map(CoreLane::name));
    /// The class of a failure, which determines how it is handled.
    FailureClass = one_of_names(CoreFailureClass::ALL.map(CoreFailureClass::name));
    /// A permission of a key. `write` includes `read`; `admin` includes everything.
    Scope = any_of([one_of_names(CoreScope::ALL.map(CoreScope::name)).into(), guild_scope()]);
    /// Path of this resource.
    Href = formatted_as("uri-reference");
    /// Position in this list.
    Position = text().pattern(Some(POSITION));
    /// The kind of a change, or of a rejection.
    Action = one_of_names(AuditAction::ALL.map(AuditAction::name));
    /// The state of a breaker.
    BreakerState = one_of_names(["closed", "open", "half_open", "forced_open"]);
    /// What the heaviest users are sorted by.
    TopMeasure = one_of_names(Measure::ALL.map(Measure::name));
    /// What routes and callers of the REST proxy are sorted by.
    EgressMeasure = one_of_names(CoreEgressMeasure::ALL.map(CoreEgressMeasure::name));
    /// How the processes share a limit.
    LimitSharing = one_of_names(["alone", "store", "redis"]);
    /// What is held back now.
    HeldCalls = one_of_names(["background", "all_but_interactive", "everything"]);
    /// The kind of a holder.
    BanShareHolderKind = one_of_names(["key", "tenant", "guild"]);
    /// Whether processes share the budget.
    BudgetSharing = one_of_names(["alone", "together", "meanwhile"]);
    /// The state of a shard's connection.
    ShardState = one_of_names(["connected", "connecting", "identifying", "resuming", "waiting", "elsewhere", "unclaimed"]);
    /// The owner of a share of the store.
    UsageOwner = one_of_names(["key", "tenant", "operator"]);
    /// The state of a cancelled operation.
    CancelledState = one_of_names(["cancelled"]);
    /// The completed step.
    StepName = one_of_names(CoreProgressStep::NAMES);
    /// What an operation waits for. `delay`: its `delay_ms`. `policy`: the rate limit of its caller.
    /// `scheduled_operation`: it refers to an operation that is scheduled. `queue`: an operation before it in its queue.
    /// `guild_paused`, `all_paused`: its guild or everything is paused. `process`: no process owns its queue yet. `turn`:
    /// it is next, and may be waiting for its permit at the gate. `limit`: a rate limit, a breaker or a reference.
    /// `parked`: the same for so long that others may overtake it. `backoff`: the next attempt. `reconciliation`: the
    /// outcome of an earlier attempt is being determined.
    WaitReason = one_of_names([
        "delay", "policy", "scheduled_operation", "queue", "guild_paused", "all_paused", "process", "turn", "limit",
        "parked", "backoff", "reconciliation",
    ]);
    /// What happened to an operation.
    TimelineEvent = one_of_names([
        "accepted", "scheduled", "started", "delayed", "retrying", "reconciling", "succeeded", "dead", "cancelled",
        "needs_review",
    ]);
}

/// A position in a numbered list.
pub(crate) const POSITION: &str = "^-?[0-9]{1,18}$";

fn guild_scope() -> SchemaRef {
    let guild = text().pattern(Some("^guild:[1-9][0-9]{0,18}$"));
    guild.describe("Restricts the key to this guild, and to others that are given likewise.").into()
}

impl From<u64> for Snowflake {
    fn from(id: u64) -> Self {
        id.to_string().into()
    }
}

impl From<CoreOperationId> for OperationId {
    fn from(id: CoreOperationId) -> Self {
        id.to_string().into()
    }
}

impl From<CoreKeyId> for KeyId {
    fn from(id: CoreKeyId) -> Self {
        id.to_string().into()
    }
}

/// A time in UTC, as RFC 3339. `None` is one that has no such form, or that an older daemon does not report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Time(Option<String>);

impl From<UnixMs> for Time {
    fn from(at: UnixMs) -> Self {
        let at = i64::try_from(at.millis()).ok().and_then(DateTime::from_timestamp_millis);
        Self(at.map(|at| at.to_rfc3339_opts(SecondsFormat::Millis, true)))
    }
}

impl Time {
    /// The time, if it is known.
    pub(crate) fn as_str(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_deref().unwrap_or("an unknown time"))
    }
}

impl PartialSchema for Time {
    fn schema() -> SchemaRef {
        formatted(KnownFormat::DateTime).describe("A time in UTC, as RFC 3339.").examples([A_TIME]).into()
    }
}

impl ToSchema for Time {
    fn name() -> Cow<'static, str> {
        "Time".into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn times_are_rfc_3339() {
        let time = |at| json!(Time::from(UnixMs::new(at)));
        assert_eq!(time(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
        assert_eq!(time(u64::MAX), Value::Null);
    }
}
