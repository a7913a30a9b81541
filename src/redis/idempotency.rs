//! Idempotency keys that processes share, so that a repeat does not have to pass the store's writer.
//!
//! ```text
//!  submission ──get──▶ one call, unless Redis failed a moment ago
//!       ──put──▶ a bounded queue ──▶ one task ──▶ Redis, in batches
//! ```
//!
//! The store is authoritative, so everything here may fail: what cannot be read is requested from the store, and what
//! cannot be written is only in the store.
//!
//! | key | value |
//! |---|---|
//! | `idempotency:<hash of scope and key>` | the payload's hash and the operation's id, 48 bytes, for 24 h |

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use ::redis::Value;
use guildhall_actors::ports::{CacheFuture, IdempotencyCache, IdempotencyKey, IdempotencyRecord};
use guildhall_actors::supervision::Part;
use guildhall_actors::{failpoint, supervision};
use guildhall_core::operation::OperationId;
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::mpsc::{self, Receiver, Sender},
    task::JoinHandle,
    time::Instant,
};
use uuid::Uuid;

use super::{RedisClient, RedisKeys, Script, events::IdempotencyKeysDropped};
use crate::events::emit;

/// How long a key is stored.
pub const IDEMPOTENCY_RETENTION: Duration = Duration::from_secs(24 * 3_600);
/// Maximum number of keys that wait to be written.
const MAX_WAITING: usize = 4_096;
/// Maximum number of keys in one call.
const BATCH_SIZE: usize = 256;
/// How long Redis is not called after a failure. A submission waits for a failing Redis at most once in this time.
const RETRY_DELAY: Duration = Duration::from_secs(1);

const GET: &str = "return redis.call('GET', KEYS[1])";
const PUT: &str = "\
for i = 1, #KEYS do
  redis.call('SET', KEYS[i], ARGV[i + 1], 'PX', ARGV[1])
end
return #KEYS";

/// Idempotency keys in Redis. The task that writes them ends when this is dropped.
#[derive(Debug)]
pub struct RedisIdempotency {
    redis: RedisClient,
    keys: RedisKeys,
    get: Script,
    waiting: Sender<(IdempotencyKey, IdempotencyRecord)>,
    /// When Redis may be called again after a failure.
    retry_at: Mutex<Option<Instant>>,
    task: JoinHandle<()>,
}

impl RedisIdempotency {
    /// Starts the task for the keys of one application. Must be called on a Tokio runtime.
    #[must_use]
    pub fn start(redis: RedisClient, keys: RedisKeys) -> Self {
        let (waiting, queue) = mpsc::channel(MAX_WAITING);
        let task = supervision::spawn(Part::RedisIdempotency, write_batches(redis.clone(), keys.clone(), queue));
        let get = Script::new("idempotency_get", GET);
        Self { redis, keys, get, waiting, retry_at: Mutex::new(None), task }
    }

    fn may_call(&self) -> bool {
        let retry_at = *self.retry_at.lock().unwrap_or_else(PoisonError::into_inner);
        retry_at.is_none_or(|at| at <= Instant::now())
    }

    fn pause_calls(&self) {
        *self.retry_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + RETRY_DELAY);
    }
}

impl IdempotencyCache for RedisIdempotency {
    fn get<'a>(&'a self, key: &'a IdempotencyKey) -> CacheFuture<'a> {
        Box::pin(async move {
            if !self.may_call() {
                return None;
            }
            match self.redis.run(&self.get, &[redis_key(&self.keys, key)], |_| Vec::new()).await {
                Ok(Value::BulkString(bytes)) => unpack(&bytes),
                // No value, or a value that other programs stored there.
                Ok(_) => None,
                Err(_) => {
                    self.pause_calls();
                    None
                }
            }
        })
    }

    fn put(&self, records: Vec<(IdempotencyKey, IdempotencyRecord)>) {
        let mut dropped = 0;
        for entry in records {
            if self.waiting.try_send(entry).is_err() {
                dropped += 1;
            }
        }
        if dropped > 0 {
            emit(IdempotencyKeysDropped { count: dropped });
        }
    }
}

impl Drop for RedisIdempotency {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Writes waiting keys in batches. Keys that a failed call does not write are dropped.
async fn write_batches(redis: RedisClient, keys: RedisKeys, mut queue: Receiver<(IdempotencyKey, IdempotencyRecord)>) {
    let script = Script::new("idempotency_put", PUT);
    let mut batch = Vec::with_capacity(BATCH_SIZE);
    while queue.recv_many(&mut batch, BATCH_SIZE).await > 0 {
        failpoint::message(Part::RedisIdempotency);
        let names: Vec<_> = batch.iter().map(|(key, _)| redis_key(&keys, key)).collect();
        let values = batch.iter().map(|(_, record)| pack(record));
        let ttl = IDEMPOTENCY_RETENTION.as_millis().to_string().into_bytes();
        let args: Vec<Vec<u8>> = std::iter::once(ttl).chain(values).collect();
        if redis.run(&script, &names, |_| args).await.is_err() {
            emit(IdempotencyKeysDropped { count: batch.len() as u64 });
        }
        batch.clear();
    }
}

/// A caller's key may be long and contain any characters, so its hash is used.
fn redis_key(keys: &RedisKeys, key: &IdempotencyKey) -> String {
    let mut hash = Sha256::new();
    // The length separates scope and key.
    hash.update((key.scope.len() as u64).to_be_bytes());
    hash.update(key.scope.as_bytes());
    hash.update(key.key.as_bytes());
    let hash: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    keys.of(&format!("idempotency:{hash}"))
}

fn pack(record: &IdempotencyRecord) -> Vec<u8> {
    [&record.payload_hash[..], record.id.uuid().as_bytes()].concat()
}

fn unpack(bytes: &[u8]) -> Option<IdempotencyRecord> {
    let (hash, id) = bytes.split_at_checked(32)?;
    Some(IdempotencyRecord {
        payload_hash: hash.try_into().ok()?,
        id: OperationId::from_uuid(Uuid::from_slice(id).ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(scope: &str, key: &str) -> IdempotencyKey {
        IdempotencyKey { scope: scope.into(), key: key.to_owned() }
    }

    #[test]
    fn scopes_and_keys_do_not_collide() {
        let keys = RedisKeys::new(42);
        let names =
            [redis_key(&keys, &key("a", "bc")), redis_key(&keys, &key("ab", "c")), redis_key(&keys, &key("abc", ""))];
        assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2]);
        assert!(names[0].starts_with("guildhall:{42}:idempotency:") && names[0].len() == 27 + 64, "{}", names[0]);
    }

    #[test]
    fn records_round_trip_and_malformed_ones_are_rejected() {
        let record = IdempotencyRecord { payload_hash: [7; 32], id: OperationId::new(1_700_000_000_000, [3; 10]) };
        let packed = pack(&record);
        assert_eq!(unpack(&packed), Some(record));
        for length in [0, 31, 32, 47] {
            assert_eq!(unpack(&packed[..length]), None);
        }
        assert_eq!(unpack(&[packed, vec![0]].concat()), None);
    }
}
