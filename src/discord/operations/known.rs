//! Whose an object is.

use std::sync::Arc;

use guildhall_actors::operations::{OperationStore, StoreFuture};
use guildhall_core::operation::ManagedKind;

/// Tells objects that belong to an operation or have a key from strangers.
pub trait Known: Send + Sync {
    /// Which of these objects have a key, or were made by an operation. Those of direct messages are in no guild.
    fn bound(&self, guild: Option<u64>, kind: ManagedKind, ids: Vec<u64>) -> StoreFuture<'_, Vec<u64>>;
}

impl<S: OperationStore + ?Sized> Known for Arc<S> {
    fn bound(&self, guild: Option<u64>, kind: ManagedKind, ids: Vec<u64>) -> StoreFuture<'_, Vec<u64>> {
        // What is in no guild is kept under none: 0.
        OperationStore::bound(&**self, guild.unwrap_or_default(), kind, ids)
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
