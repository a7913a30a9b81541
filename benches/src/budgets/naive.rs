//! The naive client: a plain token bucket whose script is sent in full with each attempt.

use std::time::Duration;

use anyhow::Context as _;
use guildhall_core::budget::BudgetLimits;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tokio::time::sleep;

/// A token bucket as it is commonly written.
const SCRIPT: &str = r"
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local maximum, rate, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(bucket[1]) or maximum, tonumber(bucket[2]) or now
tokens = math.min(maximum, tokens + (now - at) * rate)
local allowed = tokens >= cost
if allowed then
    tokens = tokens - cost
end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'at', now)
redis.call('PEXPIRE', KEYS[1], 60000)
return allowed and 1 or 0
";

/// One connection that all callers share.
#[derive(Clone)]
pub(super) struct NaiveClient {
    connection: MultiplexedConnection,
    pause: Duration,
}

impl NaiveClient {
    pub(super) async fn connect(url: &str, pause: Duration) -> anyhow::Result<Self> {
        let client = redis::Client::open(url)?;
        // No response timeout: on a slow machine, an abandoned attempt would change what is measured.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let connected = client.get_multiplexed_async_connection_with_config(&config).await;
        let connection = connected.context("cannot connect to redis-server")?;
        Ok(Self { connection, pause })
    }

    /// Retries until permitted.
    pub(super) async fn acquire(&self, key: &str, limits: BudgetLimits) -> anyhow::Result<()> {
        let mut call = redis::cmd("EVAL");
        call.arg(SCRIPT).arg(1).arg(key);
        call.arg(limits.maximum.as_f64()).arg(limits.restore_per_second.as_f64()).arg(1);
        let mut connection = self.connection.clone();
        loop {
            let allowed: bool = call.query_async(&mut connection).await.context("an attempt failed")?;
            if allowed {
                return Ok(());
            }
            sleep(self.pause).await;
        }
    }
}
