//! The port to where keys and notes are kept.

use std::sync::Arc;

use guildhall_core::access::{Grant, KeyId};
use guildhall_core::time::UnixMs;

use crate::access::{AuditFilter, AuditRecord, StoredAuditRecord};
use crate::ports::StoreFuture;

/// A key that is about to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewApiKey {
    /// What it is called.
    pub id: KeyId,
    /// Whose it is.
    pub tenant: Arc<str>,
    /// What people call it.
    pub name: String,
    /// Of its secret: SHA-256.
    pub digest: [u8; 32],
    /// What it is good for.
    pub grant: Grant,
    /// When it was made.
    pub created_at: UnixMs,
    /// Until when it is good.
    pub expires_at: Option<UnixMs>,
}

/// A key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// As it was made.
    pub made: NewApiKey,
    /// When somebody took it back.
    pub revoked_at: Option<UnixMs>,
    /// The key that came in its place, if one did.
    pub rotated_to: Option<KeyId>,
}

impl ApiKey {
    /// Whether it is good now.
    #[must_use]
    pub fn is_good(&self, now: UnixMs) -> bool {
        self.revoked_at.is_none_or(|at| now < at) && self.made.expires_at.is_none_or(|at| now < at)
    }
}

/// An admin key that a process generated because none was set. The key itself is in a file of that process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedAdminKey {
    /// SHA-256 of the key.
    pub digest: [u8; 32],
    /// The host that has the file.
    pub host: String,
    /// The absolute path of the file.
    pub file: String,
    /// The process that generated the key, or last started with it.
    pub instance: String,
    /// When it was generated.
    pub created_at: UnixMs,
}

/// Which keys. The newest come first.
#[derive(Clone, Debug, Default)]
pub struct KeyFilter {
    /// Of this tenant.
    pub tenant: Option<Arc<str>>,
    /// Only those before this one, by when they were made and by id.
    pub before: Option<(UnixMs, KeyId)>,
    /// How many at most.
    pub limit: usize,
}

/// What became of a key that was to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddKeyResult {
    /// It is.
    Done,
    /// It is not: this guild belongs to another tenant.
    GuildTaken(u64),
}

/// What became of a key that was to be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevokeResult {
    /// It was good until now.
    Now,
    /// Somebody had done so before.
    Before,
    /// There is no such key.
    Unknown,
}

/// What became of a key that was to be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotateResult {
    /// The new one is kept, the old one ends.
    Done,
    /// There is no such key.
    Unknown,
    /// It is no longer good, or was replaced before.
    Over,
}

/// Where keys and notes are kept.
pub trait KeyStore: Send + Sync {
    /// The same store as a tenant sees it: whatever is asked through it is that tenant's.
    fn within(self: Arc<Self>, tenant: Arc<str>) -> Arc<dyn KeyStore>;

    /// The generated admin key that all processes of the store accept; nothing if there is none.
    fn admin_key(&self) -> StoreFuture<'_, Option<GeneratedAdminKey>>;

    /// A key, whether it is still good or not.
    fn key(&self, id: KeyId) -> StoreFuture<'_, Option<ApiKey>>;

    /// The keys with these ids, in any order. Ids that do not exist are left out.
    fn find_keys(&self, ids: Vec<KeyId>) -> StoreFuture<'_, Vec<ApiKey>>;

    /// The ids of keys that were created at this time or later, the newest first, at most so many.
    fn key_ids(&self, since: UnixMs, limit: usize) -> StoreFuture<'_, Vec<KeyId>>;

    /// Keys, the newest first.
    fn keys(&self, filter: KeyFilter) -> StoreFuture<'_, Vec<ApiKey>>;

    /// Keeps a key. The guilds that it is for belong to its tenant from now on, unless they are another's.
    fn add_key(&self, key: NewApiKey, note: AuditRecord) -> StoreFuture<'_, AddKeyResult>;

    /// Takes a key back. One that was taken back before stays as it is, without another note.
    fn revoke_key(&self, id: KeyId, note: AuditRecord) -> StoreFuture<'_, RevokeResult>;

    /// Keeps a key in the place of another, which is good until `until` at the longest.
    fn rotate_key(&self, old: KeyId, new: NewApiKey, until: UnixMs, note: AuditRecord)
    -> StoreFuture<'_, RotateResult>;

    /// Keeps a note by itself: of something that was refused.
    fn note(&self, note: AuditRecord) -> StoreFuture<'_, ()>;

    /// Notes, the newest first.
    fn audit(&self, filter: AuditFilter) -> StoreFuture<'_, Vec<StoredAuditRecord>>;

    /// Forgets notes from before this, and keys that have been over for as long; a small batch, and how many.
    fn sweep_access(&self, before: UnixMs) -> StoreFuture<'_, u64>;
}
