//! Whose an object is.

use std::sync::Arc;

use guildhall_actors::operations::{OperationStore, StoreFuture};
use guildhall_core::operation::ManagedKind;

/// Tells objects that belong to an operation or have a key from strangers.
pub trait Known: Send + Sync {
    /// Which of these objects have a key, or were made by an operation.
    fn bound(&self, kind: ManagedKind, ids: Vec<u64>) -> StoreFuture<'_, Vec<u64>>;
}

impl<S: OperationStore + ?Sized> Known for Arc<S> {
    fn bound(&self, kind: ManagedKind, ids: Vec<u64>) -> StoreFuture<'_, Vec<u64>> {
        OperationStore::bound(&**self, kind, ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_store_will_do() {
        fn takes<K: Known + 'static>() {}
        takes::<Arc<dyn OperationStore>>();
    }
}
