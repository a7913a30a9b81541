//! Leases in Redis: implements `guildhall_actors::leases` with one script. The clock is the server's.
//!
//! | key | value |
//! |---|---|
//! | `bulk-lock:<name>` | the lease while it is held: token, fence and holder; expires with its TTL |
//! | `bulk-fence:<name>` | the last fence, for a week |

use std::{fmt::Write as _, time::Duration};

use ::redis::Value;
use guildhall_actors::ports::{Lease, LeaseError, LeaseFence, LeaseFuture, LeaseName, LeaseStore, LeaseToken};
use tokio::time::Instant;

use super::{RedisClient, RedisKeys, Script};
use crate::random;

/// Maximum length of a holder's name, in characters.
const MAX_HOLDER_CHARS: usize = 200;

/// Leases in Redis.
#[derive(Debug)]
pub struct RedisLeases {
    redis: RedisClient,
    keys: RedisKeys,
    script: Script,
}

impl RedisLeases {
    /// Creates the leases of one application.
    #[must_use]
    pub fn new(redis: RedisClient, keys: RedisKeys) -> Self {
        Self { redis, keys, script: Script::new("leases", include_str!("leases.lua")) }
    }

    /// Runs the script. Returns the lease's fence if the request succeeded.
    async fn run(&self, name: &LeaseName, arguments: [String; 4]) -> Result<Option<LeaseFence>, LeaseError> {
        let keys = [self.keys.of(&format!("bulk-lock:{name}")), self.keys.of(&format!("bulk-fence:{name}"))];
        let arguments = arguments.map(String::into_bytes).to_vec();
        let response = self.redis.run(&self.script, &keys, |_| arguments).await;
        parse_fence(&response.map_err(|error| LeaseError::Unreachable(error.to_string()))?)
    }
}

impl LeaseStore for RedisLeases {
    fn acquire<'a>(&'a self, name: &'a LeaseName, holder: &'a str, ttl: Duration) -> LeaseFuture<'a, Option<Lease>> {
        Box::pin(async move {
            let token = LeaseToken::new(random::bytes().map_err(|_| LeaseError::NoRandomBytes)?);
            let ttl = Lease::clamp_ttl(ttl);
            let holder = holder.chars().take(MAX_HOLDER_CHARS).collect();
            let sent = Instant::now();
            let fence = self.run(name, ["acquire".to_owned(), hex(&token), millis(ttl), holder]).await?;
            Ok(fence.map(|fence| Lease { name: name.clone(), token, fence, until: sent + ttl }))
        })
    }

    fn renew<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> LeaseFuture<'a, Option<Lease>> {
        Box::pin(async move {
            let ttl = Lease::clamp_ttl(ttl);
            let sent = Instant::now();
            let arguments = ["renew".to_owned(), hex(&lease.token), millis(ttl), String::new()];
            let fence = self.run(&lease.name, arguments).await?;
            Ok(fence.map(|fence| Lease { fence, until: sent + ttl, ..lease.clone() }))
        })
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> LeaseFuture<'a, bool> {
        Box::pin(async move {
            let arguments = ["release".to_owned(), hex(&lease.token), String::new(), String::new()];
            Ok(self.run(&lease.name, arguments).await?.is_some())
        })
    }
}

fn parse_fence(response: &Value) -> Result<Option<LeaseFence>, LeaseError> {
    match response {
        Value::Int(0) => Ok(None),
        Value::Int(fence @ 1..) => Ok(Some(LeaseFence(fence.unsigned_abs()))),
        _ => Err(LeaseError::Unreachable(
            "unexpected response from Redis; check whether other programs write to its keys".to_owned(),
        )),
    }
}

fn hex(token: &LeaseToken) -> String {
    token.bits().iter().fold(String::with_capacity(32), |mut text, byte| {
        write!(text, "{byte:02x}").expect("invariant: writing to a String cannot fail");
        text
    })
}

fn millis(ttl: Duration) -> String {
    ttl.as_millis().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_responses_are_rejected() {
        assert_eq!(parse_fence(&Value::Int(0)), Ok(None));
        assert_eq!(parse_fence(&Value::Int(1_790_000_000_000_000)), Ok(Some(LeaseFence(1_790_000_000_000_000))));
        for strange in [Value::Nil, Value::Int(-1), Value::Okay, Value::Array(vec![Value::Int(1)])] {
            assert!(parse_fence(&strange).is_err(), "{strange:?}");
        }
    }

    #[test]
    fn token_is_written_with_all_its_bits() {
        let mut bits = [0; 16];
        (bits[0], bits[15]) = (1, 255);
        assert_eq!(hex(&LeaseToken::new(bits)), format!("01{}ff", "00".repeat(14)));
    }
}
