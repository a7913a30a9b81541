//! The port to what remembers idempotency keys for a while, so that a repeat need not pass the store's writer.

use std::future::Future;
use std::pin::Pin;

use guildhall_core::operation::OperationId;

use crate::ports::IdempotencyKey;

/// What a key was used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencyRecord {
    /// Of kind, guild and payload: SHA-256.
    pub payload_hash: [u8; 32],
    /// The operation that was accepted.
    pub id: OperationId,
}

/// A question to the cache under way.
pub type CacheFuture<'a> = Pin<Box<dyn Future<Output = Option<IdempotencyRecord>> + Send + 'a>>;

/// Remembers what the store has kept. The store has the last word: what a cache does not know, forgot or cannot say is asked
/// of the store, and so nothing breaks without one.
pub trait IdempotencyCache: Send + Sync {
    /// What a key was used for, as far as the cache can tell. Answers soon, or with nothing.
    fn get<'a>(&'a self, key: &'a IdempotencyKey) -> CacheFuture<'a>;

    /// Remembers keys, in its own time and if it can. Never waits.
    fn put(&self, used: Vec<(IdempotencyKey, IdempotencyRecord)>);
}
