//! Port to the store of API keys and audit records.

use std::sync::Arc;

use guildhall_core::access::{Grant, KeyId};
use guildhall_core::time::UnixMs;

use crate::access::{AuditFilter, AuditRecord, StoredAuditRecord};
use crate::ports::StoreFuture;

/// An API key to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewApiKey {
    /// Id of the key.
    pub id: KeyId,
    /// Tenant of the key.
    pub tenant: Arc<str>,
    /// Display name.
    pub name: String,
    /// SHA-256 of the secret.
    pub digest: [u8; 32],
    /// What the key permits.
    pub grant: Grant,
    /// Time of creation.
    pub created_at: UnixMs,
    /// Time of expiry.
    pub expires_at: Option<UnixMs>,
}

/// A stored API key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// The key as created.
    pub key: NewApiKey,
    /// Time from which it is revoked.
    pub revoked_at: Option<UnixMs>,
    /// Key that replaced it.
    pub rotated_to: Option<KeyId>,
}

impl ApiKey {
    /// Whether it is valid now.
    #[must_use]
    pub fn is_valid(&self, now: UnixMs) -> bool {
        self.revoked_at.is_none_or(|at| now < at) && self.key.expires_at.is_none_or(|at| now < at)
    }
}

/// An admin key that a process generated because none was configured. The key itself is in a file of that process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedAdminKey {
    /// SHA-256 of the key.
    pub digest: [u8; 32],
    /// Host that has the file.
    pub host: String,
    /// Absolute path of the file.
    pub file: String,
    /// Process that generated the key, or last started with it.
    pub instance: String,
    /// Time of generation.
    pub created_at: UnixMs,
}

/// Selects keys. The newest come first.
#[derive(Clone, Debug, Default)]
pub struct KeyFilter {
    /// Keys of this tenant.
    pub tenant: Option<Arc<str>>,
    /// Only keys before this one, by time of creation and id.
    pub before: Option<(UnixMs, KeyId)>,
    /// Maximum number of keys.
    pub limit: usize,
}

/// Result of adding a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddKeyResult {
    /// The key is stored.
    Done,
    /// Rejected: this guild belongs to another tenant.
    GuildTaken(u64),
}

/// Result of revoking a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevokeResult {
    /// Revoked. It was valid until now.
    Revoked,
    /// It was already revoked.
    AlreadyRevoked,
    /// There is no such key.
    Unknown,
}

/// Result of rotating a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotateResult {
    /// The new key is stored, and the old one expires.
    Done,
    /// There is no such key.
    Unknown,
    /// The key is no longer valid, or was already rotated.
    NotValid,
}

/// Store of API keys and audit records.
pub trait KeyStore: Send + Sync {
    /// The same store restricted to a tenant.
    fn for_tenant(self: Arc<Self>, tenant: Arc<str>) -> Arc<dyn KeyStore>;

    /// The generated admin key that all processes of the store accept, if there is one.
    fn admin_key(&self) -> StoreFuture<'_, Option<GeneratedAdminKey>>;

    /// A key, valid or not.
    fn key(&self, id: KeyId) -> StoreFuture<'_, Option<ApiKey>>;

    /// The keys with these ids, in any order. Unknown ids are skipped.
    fn find_keys(&self, ids: Vec<KeyId>) -> StoreFuture<'_, Vec<ApiKey>>;

    /// Ids of keys created at this time or later, the newest first, at most `limit`.
    fn key_ids(&self, since: UnixMs, limit: usize) -> StoreFuture<'_, Vec<KeyId>>;

    /// Lists keys, the newest first.
    fn keys(&self, filter: KeyFilter) -> StoreFuture<'_, Vec<ApiKey>>;

    /// Stores a key. Its guilds belong to its tenant from now on, unless they belong to another one.
    fn add_key(&self, key: NewApiKey, record: AuditRecord) -> StoreFuture<'_, AddKeyResult>;

    /// Revokes a key. A key that is already revoked does not change, and no audit record is written.
    fn revoke_key(&self, id: KeyId, record: AuditRecord) -> StoreFuture<'_, RevokeResult>;

    /// Stores a key that replaces another one, which stays valid at most until `until`.
    fn rotate_key(
        &self,
        old: KeyId,
        new: NewApiKey,
        until: UnixMs,
        record: AuditRecord,
    ) -> StoreFuture<'_, RotateResult>;

    /// Stores an audit record without a change: of a denied action.
    fn add_audit_record(&self, record: AuditRecord) -> StoreFuture<'_, ()>;

    /// Lists audit records, the newest first.
    fn audit(&self, filter: AuditFilter) -> StoreFuture<'_, Vec<StoredAuditRecord>>;

    /// Deletes a small batch of audit records from before this time, and of keys invalid since before it. Returns their
    /// number.
    fn sweep_access(&self, before: UnixMs) -> StoreFuture<'_, u64>;
}
