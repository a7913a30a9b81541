//! API keys, the audit, and erasure.

use std::collections::BTreeMap;

use guildhall_actors::access::StoredAuditRecord;
use guildhall_actors::ports::ApiKey;
use guildhall_core::time::UnixMs;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Action, KeyId, Position, Scope, Snowflake, Time};

/// A page of keys.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct KeyPage {
    pub(crate) keys: Vec<Key>,
    /// Value of `cursor` for the next page; `null` on the last page.
    pub(crate) next: Option<String>,
}

/// An API key without its secret.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Key {
    pub(crate) id: KeyId,
    /// What the key is for.
    pub(crate) name: String,
    /// The tenant of the key.
    pub(crate) tenant: String,
    pub(crate) scopes: Vec<Scope>,
    /// Whether the key is valid now.
    pub(crate) active: bool,
    pub(crate) created_at: Time,
    pub(crate) expires_at: Option<Time>,
    pub(crate) revoked_at: Option<Time>,
    /// The key that replaces it.
    pub(crate) rotated_to: Option<KeyId>,
}

/// A new API key.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct CreatedKey {
    #[serde(flatten)]
    pub(crate) about: Key,
    /// The key itself. **It is shown only in this response.**
    pub(crate) key: String,
}

impl Key {
    pub(crate) fn new(key: &ApiKey, now: UnixMs) -> Self {
        Self {
            id: key.key.id.into(),
            name: key.key.name.clone(),
            tenant: key.key.tenant.to_string(),
            scopes: key.key.grant.names().into_iter().map(Scope::from).collect(),
            active: key.is_valid(now),
            created_at: key.key.created_at.into(),
            expires_at: key.key.expires_at.map(Time::from),
            revoked_at: key.revoked_at.map(Time::from),
            rotated_to: key.rotated_to.map(KeyId::from),
        }
    }
}

/// A page of audit rows.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct AuditPage {
    pub(crate) audit: Vec<AuditRow>,
    /// Value of `before` for the next page; `null` on the last page.
    pub(crate) next: Option<Position>,
}

/// A change, or a rejected request.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct AuditRow {
    pub(crate) place: Position,
    pub(crate) at: Time,
    pub(crate) tenant: String,
    /// The id of the key; `admin` for the admin key.
    pub(crate) key: String,
    pub(crate) action: Action,
    pub(crate) guild_id: Option<Snowflake>,
    /// The object of the action.
    pub(crate) target: Option<String>,
    pub(crate) detail: Option<String>,
    /// `X-Request-Id` of the request.
    pub(crate) request_id: String,
}

impl From<&StoredAuditRecord> for AuditRow {
    fn from(StoredAuditRecord { position, record }: &StoredAuditRecord) -> Self {
        Self {
            place: position.to_string().into(),
            at: record.at.into(),
            tenant: record.tenant.to_string(),
            key: record.key.to_string(),
            action: record.action.name().into(),
            guild_id: record.guild.map(Snowflake::from),
            target: Some(record.target.clone()),
            detail: Some(record.detail.clone()),
            request_id: record.request.to_string(),
        }
    }
}

/// What was erased, and what stays.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub(crate) struct Erased {
    /// Number of removed rows, by kind.
    pub(crate) removed: BTreeMap<String, u64>,
    pub(crate) kept: Vec<RetainedRows>,
    /// Whether every table was examined.
    pub(crate) done: bool,
    /// What to send as `next` to continue; `null` at the end.
    pub(crate) next: Option<String>,
}

/// Rows that stay.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct RetainedRows {
    /// What stays.
    pub(crate) what: String,
    /// How many rows, where they are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) count: Option<u64>,
    /// Why it stays, and what to do.
    pub(crate) why: String,
}
