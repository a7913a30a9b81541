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
pub const REMEMBERED_FOR: Duration = Duration::from_secs(24 * 3_600);
/// Maximum number of keys that wait to be written.
const WAITING_MOST: usize = 4_096;
/// Maximum number of keys in one call.
const AT_ONCE: usize = 256;
/// How long Redis is not called after a failure. A submission waits for a failing Redis at most once in this time.
const LEFT_ALONE: Duration = Duration::from_secs(1);

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
    again_at: Mutex<Option<Instant>>,
    task: JoinHandle<()>,
}

impl RedisIdempotency {
    /// Starts the task for the keys of one application. Must be called on a Tokio runtime.
    #[must_use]
    pub fn start(redis: RedisClient, keys: RedisKeys) -> Self {
        let (waiting, line) = mpsc::channel(WAITING_MOST);
        let task = supervision::spawn(Part::RedisIdempotency, write(redis.clone(), keys.clone(), line));
        let get = Script::new("idempotency_get", GET);
        Self { redis, keys, get, waiting, again_at: Mutex::new(None), task }
    }

    fn may_ask(&self) -> bool {
        let again_at = *self.again_at.lock().unwrap_or_else(PoisonError::into_inner);
        again_at.is_none_or(|at| at <= Instant::now())
    }

    fn leave_alone(&self) {
        *self.again_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + LEFT_ALONE);
    }
}

impl IdempotencyCache for RedisIdempotency {
    fn get<'a>(&'a self, key: &'a IdempotencyKey) -> CacheFuture<'a> {
        Box::pin(async move {
            if !self.may_ask() {
                return None;
            }
            match self.redis.run(&self.get, &[name(&self.keys, key)], |_| Vec::new()).await {
                Ok(Value::BulkString(bytes)) => unpack(&bytes),
                // No value, or a value that other programs stored there.
                Ok(_) => None,
                Err(_) => {
                    self.leave_alone();
                    None
                }
            }
        })
    }

    fn put(&self, used: Vec<(IdempotencyKey, IdempotencyRecord)>) {
        let mut left_out = 0;
        for entry in used {
            if self.waiting.try_send(entry).is_err() {
                left_out += 1;
            }
        }
        if left_out > 0 {
            emit(IdempotencyKeysDropped { count: left_out });
        }
    }
}

impl Drop for RedisIdempotency {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Writes waiting keys in batches. Keys that a failed call does not write are dropped.
async fn write(redis: RedisClient, keys: RedisKeys, mut line: Receiver<(IdempotencyKey, IdempotencyRecord)>) {
    let script = Script::new("idempotency_put", PUT);
    let mut batch = Vec::with_capacity(AT_ONCE);
    while line.recv_many(&mut batch, AT_ONCE).await > 0 {
        failpoint::message(Part::RedisIdempotency);
        let names: Vec<_> = batch.iter().map(|(key, _)| name(&keys, key)).collect();
        let values = batch.iter().map(|(_, remembered)| pack(remembered));
        let ttl = REMEMBERED_FOR.as_millis().to_string().into_bytes();
        let args: Vec<Vec<u8>> = std::iter::once(ttl).chain(values).collect();
        if redis.run(&script, &names, |_| args).await.is_err() {
            emit(IdempotencyKeysDropped { count: batch.len() as u64 });
        }
        batch.clear();
    }
}

/// A caller's key may be long and contain any characters, so its hash is used.
fn name(keys: &RedisKeys, key: &IdempotencyKey) -> String {
    let mut hash = Sha256::new();
    // The length separates scope and key.
    hash.update((key.scope.len() as u64).to_be_bytes());
    hash.update(key.scope.as_bytes());
    hash.update(key.key.as_bytes());
    let hash: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    keys.of(&format!("idempotency:{hash}"))
}

fn pack(remembered: &IdempotencyRecord) -> Vec<u8> {
    [&remembered.payload_hash[..], remembered.id.uuid().as_bytes()].concat()
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
    fn scopes_and_keys_do_not_run_into_each_other() {
        let keys = RedisKeys::new(42);
        let names = [name(&keys, &key("a", "bc")), name(&keys, &key("ab", "c")), name(&keys, &key("abc", ""))];
        assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2]);
        assert!(names[0].starts_with("guildhall:{42}:idempotency:") && names[0].len() == 27 + 64, "{}", names[0]);
    }

    #[test]
    fn what_is_remembered_reads_back_and_nothing_else_does() {
        let remembered = IdempotencyRecord { payload_hash: [7; 32], id: OperationId::new(1_700_000_000_000, [3; 10]) };
        let packed = pack(&remembered);
        assert_eq!(unpack(&packed), Some(remembered));
        for length in [0, 31, 32, 47] {
            assert_eq!(unpack(&packed[..length]), None);
        }
        assert_eq!(unpack(&[packed, vec![0]].concat()), None);
    }
}
