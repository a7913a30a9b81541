//! The store, as the service opens it for a tenant.

use std::sync::Arc;

use crate::access::{AuditRecord, Caller};
use crate::ports::OperationStore;

/// The store behind the service. Every access names the tenant that it is for, so that no forgotten filter shows a caller
/// another tenant's rows.
pub(super) struct TenantStore(Arc<dyn OperationStore>);

impl TenantStore {
    pub(super) fn new(store: Arc<dyn OperationStore>) -> Self {
        Self(store)
    }

    /// For what is done for a caller: it sees and changes what belongs to the caller's tenant alone.
    pub(super) fn of(&self, caller: &Caller) -> Arc<dyn OperationStore> {
        let store = Arc::clone(&self.0);
        match &caller.tenant {
            Some(tenant) => store.within(Arc::clone(tenant)),
            None => store,
        }
    }

    /// The same for an errand that this is to be kept of.
    pub(super) fn noting(&self, caller: &Caller, note: AuditRecord) -> Arc<dyn OperationStore> {
        self.of(caller).noting(note)
    }

    /// For finding out whether a caller may have something: what it says is for the service, and goes to nobody.
    pub(super) fn judge(&self) -> &dyn OperationStore {
        &*self.0
    }
}
