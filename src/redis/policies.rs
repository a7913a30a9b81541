//! API requests that processes count together: implements `guildhall_actors::policies` with one script.
//!
//! | key | value |
//! |---|---|
//! | `policy:<policy>:<key's id>` | when the caller's bucket is full, in microseconds since 1970; expires then |
//!
//! The clock is that of Redis. An API request waits for the response, so the timeout is short, and after a failure
//! Redis is not called for a moment.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use ::redis::Value;
use guildhall_actors::policies::{SharedPolicies, SharedPolicyFuture};
use guildhall_core::policy::{MAX_COST, Rate};
use tokio::time::{Instant, timeout};

use super::{RedisClient, RedisKeys, Script};

/// Timeout of a count.
const TIMEOUT: Duration = Duration::from_millis(100);
/// How long Redis is not called after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Counts in Redis.
#[derive(Debug)]
pub struct RedisPolicies {
    redis: RedisClient,
    keys: RedisKeys,
    script: Script,
    max_wait: Duration,
    /// When Redis may be called again after a failure.
    retry_at: Mutex<Option<Instant>>,
}

impl RedisPolicies {
    /// Creates the counts of one application. No request may wait for longer than `max_wait`.
    #[must_use]
    pub fn new(redis: RedisClient, keys: RedisKeys, max_wait: Duration) -> Self {
        let script = Script::new("policies", include_str!("policies.lua"));
        Self { redis, keys, script, max_wait, retry_at: Mutex::new(None) }
    }

    async fn count(&self, policy: &str, caller: &str, rate: Rate, cost: u32, max_wait: Duration) -> Option<Duration> {
        let retry_at = *self.retry_at.lock().unwrap_or_else(PoisonError::into_inner);
        if retry_at.is_some_and(|at| at > Instant::now()) {
            return None;
        }
        let key = self.keys.of(&format!("policy:{policy}:{caller}"));
        // A request may have left a debt of its whole cost.
        let max_debt = self.max_wait.max(max_wait) + rate.interval().saturating_mul(2 * MAX_COST);
        let cost = cost.clamp(1, MAX_COST);
        let call = self.redis.run(&self.script, std::slice::from_ref(&key), |_| {
            let mut arguments = [rate.interval(), rate.window(), max_wait, max_debt].map(micros).to_vec();
            arguments.push(cost.to_string().into_bytes());
            arguments
        });
        match timeout(TIMEOUT, call).await {
            Ok(Ok(Value::Int(debt))) => u64::try_from(debt).ok().map(Duration::from_micros),
            // A failure, or a value that other programs stored there.
            Ok(Ok(_) | Err(_)) | Err(_) => {
                *self.retry_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + RETRY_DELAY);
                None
            }
        }
    }
}

fn micros(duration: Duration) -> Vec<u8> {
    duration.as_micros().to_string().into_bytes()
}

impl SharedPolicies for RedisPolicies {
    fn take<'a>(
        &'a self,
        policy: &'static str,
        caller: &'a str,
        rate: Rate,
        cost: u32,
        max_wait: Duration,
    ) -> SharedPolicyFuture<'a> {
        Box::pin(self.count(policy, caller, rate, cost, max_wait))
    }
}
