//! Ownership of Discord objects.

use std::sync::Arc;

use guildhall_actors::ports::{OperationStore, StoreFuture};
use guildhall_core::access::Owner;
use guildhall_core::operation::ManagedKind;
use guildhall_core::operation::payload::Location;

/// Looks up which objects belong to an operation or have a key.
pub trait ObjectOwnership: Send + Sync {
    /// Which of these objects have a key, or were created by an operation.
    fn bound(&self, kind: ManagedKind, ids: Vec<u64>) -> StoreFuture<'_, Vec<u64>>;

    /// The owners of these, where known.
    fn owners(&self, locations: Vec<Location>) -> StoreFuture<'_, Vec<Option<Owner>>>;

    /// Stores the guild that a location belongs to, or that it belongs to none, and returns its owner.
    fn store_guild(&self, location: Location, guild: Option<u64>) -> StoreFuture<'_, Owner>;
}

impl<S: OperationStore + ?Sized> ObjectOwnership for Arc<S> {
    fn bound(&self, kind: ManagedKind, ids: Vec<u64>) -> StoreFuture<'_, Vec<u64>> {
        OperationStore::find_bound(&**self, kind, ids)
    }

    fn owners(&self, locations: Vec<Location>) -> StoreFuture<'_, Vec<Option<Owner>>> {
        OperationStore::owners(&**self, locations)
    }

    fn store_guild(&self, location: Location, guild: Option<u64>) -> StoreFuture<'_, Owner> {
        OperationStore::record_location(&**self, location, guild)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_store_implements_ownership() {
        fn takes<K: ObjectOwnership + 'static>() {}
        takes::<Arc<dyn OperationStore>>();
    }
}
