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
use guildhall_core::policy::{MOST_COST, Rate};
use tokio::time::{Instant, timeout};

use super::{RedisClient, RedisKeys, Script};

/// Timeout of a count.
const WITHIN: Duration = Duration::from_millis(100);
/// How long Redis is not called after a failure.
const LEFT_ALONE: Duration = Duration::from_secs(1);

/// Counts in Redis.
#[derive(Debug)]
pub struct RedisPolicies {
    redis: RedisClient,
    keys: RedisKeys,
    script: Script,
    longest: Duration,
    /// When Redis may be called again after a failure.
    again_at: Mutex<Option<Instant>>,
}

impl RedisPolicies {
    /// Creates the counts of one application. No request may wait for longer than `max_wait`.
    #[must_use]
    pub fn new(redis: RedisClient, keys: RedisKeys, longest: Duration) -> Self {
        let script = Script::new("policies", include_str!("policies.lua"));
        Self { redis, keys, script, longest, again_at: Mutex::new(None) }
    }

    async fn count(&self, policy: &str, who: &str, rate: Rate, cost: u32, max_wait: Duration) -> Option<Duration> {
        let again_at = *self.again_at.lock().unwrap_or_else(PoisonError::into_inner);
        if again_at.is_some_and(|at| at > Instant::now()) {
            return None;
        }
        let key = self.keys.of(&format!("policy:{policy}:{who}"));
        // A request may have left a debt of its whole cost.
        let longest = self.longest.max(max_wait) + rate.interval().saturating_mul(2 * MOST_COST);
        let cost = cost.clamp(1, MOST_COST);
        let call = self.redis.run(&self.script, std::slice::from_ref(&key), |_| {
            let mut arguments = [rate.interval(), rate.window(), max_wait, longest].map(micros).to_vec();
            arguments.push(cost.to_string().into_bytes());
            arguments
        });
        match timeout(WITHIN, call).await {
            Ok(Ok(Value::Int(debt))) => u64::try_from(debt).ok().map(Duration::from_micros),
            // A failure, or a value that other programs stored there.
            Ok(Ok(_) | Err(_)) | Err(_) => {
                *self.again_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + LEFT_ALONE);
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
        who: &'a str,
        rate: Rate,
        cost: u32,
        max_wait: Duration,
    ) -> SharedPolicyFuture<'a> {
        Box::pin(self.count(policy, who, rate, cost, max_wait))
    }
}
