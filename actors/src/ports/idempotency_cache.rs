//! Port to a cache of idempotency keys, so that a repeated submission need not wait for the store's writer.

use std::future::Future;
use std::pin::Pin;

use guildhall_core::operation::OperationId;

use crate::ports::IdempotencyKey;

/// The operation of an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencyRecord {
    /// SHA-256 of kind, guild and payload.
    pub payload_hash: [u8; 32],
    /// The operation that was accepted.
    pub id: OperationId,
}

/// Pending lookup.
pub type CacheFuture<'a> = Pin<Box<dyn Future<Output = Option<IdempotencyRecord>> + Send + 'a>>;

/// Caches idempotency keys of the store. The store is authoritative: a key that the cache does not have is looked up
/// there, so nothing fails without a cache.
pub trait IdempotencyCache: Send + Sync {
    /// The operation of a key, if it is cached. Returns quickly, or with `None`.
    fn get<'a>(&'a self, key: &'a IdempotencyKey) -> CacheFuture<'a>;

    /// Adds keys in the background, if possible. Never blocks.
    fn put(&self, records: Vec<(IdempotencyKey, IdempotencyRecord)>);
}
