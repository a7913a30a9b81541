//! The store, restricted to a tenant.

use std::sync::Arc;

use crate::access::{AuditRecord, Caller};
use crate::ports::OperationStore;

/// The store of the service. Every access names its tenant, so that a forgotten filter cannot show a caller the rows of
/// another tenant.
pub(super) struct TenantStore(Arc<dyn OperationStore>);

impl TenantStore {
    pub(super) fn new(store: Arc<dyn OperationStore>) -> Self {
        Self(store)
    }

    /// Access for a caller: it sees and changes only what belongs to the caller's tenant.
    pub(super) fn for_caller(&self, caller: &Caller) -> Arc<dyn OperationStore> {
        let store = Arc::clone(&self.0);
        match &caller.tenant {
            Some(tenant) => store.for_tenant(Arc::clone(tenant)),
            None => store,
        }
    }

    /// The same for a change with an audit record.
    pub(super) fn with_audit(&self, caller: &Caller, record: AuditRecord) -> Arc<dyn OperationStore> {
        self.for_caller(caller).with_audit(record)
    }

    /// Unrestricted access for authorization checks: the results stay in the service and are not returned to callers.
    pub(super) fn unrestricted(&self) -> &dyn OperationStore {
        &*self.0
    }
}
