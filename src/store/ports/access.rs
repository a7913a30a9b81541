//! Implements the ports for API keys, audit records and erasure on [`Store`].

use std::sync::Arc;

use guildhall_actors::access::{
    AuditFilter, AuditRecord, DataSubject, ErasureCursor, ErasureStep, ErasureStore, StoredAuditRecord,
};
use guildhall_actors::ports::{
    AddKeyResult, ApiKey, GeneratedAdminKey, KeyFilter, KeyStore, NewApiKey, RevokeResult, RotateResult, StoreFuture,
};
use guildhall_core::{access::KeyId, time::UnixMs};

use crate::store::ports::operations::look;
use crate::store::read::access;
use crate::store::write::{
    access::{AddKey, AuditOnly, RevokeKey, RotateKey, SweepAccess},
    erase::Erase,
};
use crate::store::{Store, admin_key};

impl KeyStore for Store {
    fn for_tenant(self: Arc<Self>, tenant: Arc<str>) -> Arc<dyn KeyStore> {
        Arc::new(self.scoped_to_tenant(tenant))
    }

    fn admin_key(&self) -> StoreFuture<'_, Option<GeneratedAdminKey>> {
        Box::pin(self.read(admin_key::read(&self.shared.reading)))
    }

    fn key(&self, id: KeyId) -> StoreFuture<'_, Option<ApiKey>> {
        Box::pin(self.read(access::key(&self.shared.reading, id)))
    }

    fn find_keys(&self, ids: Vec<KeyId>) -> StoreFuture<'_, Vec<ApiKey>> {
        Box::pin(async move { self.read(access::find_keys(&self.shared.reading, &ids)).await })
    }

    fn key_ids(&self, since: UnixMs, limit: usize) -> StoreFuture<'_, Vec<KeyId>> {
        Box::pin(self.read(access::key_ids(&self.shared.reading, since, limit)))
    }

    fn keys(&self, filter: KeyFilter) -> StoreFuture<'_, Vec<ApiKey>> {
        Box::pin(async move {
            let mut keys = look!(self, |view| access::keys(&view, &filter)).await?;
            keys.retain(|key| self.is_visible(&key.key.tenant));
            Ok(keys)
        })
    }

    fn add_key(&self, key: NewApiKey, note: AuditRecord) -> StoreFuture<'_, AddKeyResult> {
        Box::pin(self.write_with(AddKey(key), Some(note)))
    }

    fn revoke_key(&self, id: KeyId, note: AuditRecord) -> StoreFuture<'_, RevokeResult> {
        Box::pin(self.write_with(RevokeKey { id, now: note.at }, Some(note)))
    }

    fn rotate_key(
        &self,
        old: KeyId,
        new: NewApiKey,
        until: UnixMs,
        note: AuditRecord,
    ) -> StoreFuture<'_, RotateResult> {
        Box::pin(self.write_with(RotateKey { old, new, until }, Some(note)))
    }

    fn add_audit_record(&self, note: AuditRecord) -> StoreFuture<'_, ()> {
        Box::pin(self.write_with(AuditOnly, Some(note)))
    }

    fn audit(&self, filter: AuditFilter) -> StoreFuture<'_, Vec<StoredAuditRecord>> {
        Box::pin(async move {
            let mut rows = look!(self, |view| access::audit(&view, &filter)).await?;
            rows.retain(|row| self.is_visible(&row.record.tenant));
            Ok(rows)
        })
    }

    fn sweep_access(&self, before: UnixMs) -> StoreFuture<'_, u64> {
        Box::pin(self.write(SweepAccess(before)))
    }
}

impl ErasureStore for Store {
    fn erase(
        &self,
        subject: DataSubject,
        from: ErasureCursor,
        note: Option<AuditRecord>,
    ) -> StoreFuture<'_, ErasureStep> {
        Box::pin(self.write_with(Erase { subject, from }, note))
    }
}
