//! The adapter to Redis: one connection that is re-established when it is lost, scripts that run over it, and
//! subscriptions.
//!
//! ```text
//!  RedisClient::run ────────▶ ConnectionSlot ◀── ReconnectTask: connect, handshake, wait for the end, back off, repeat
//!                              │ ▲
//!  RedisClient::subscribe ◀────┘ └──── pushes of the connection: messages, and the close
//! ```
//!
//! One connection carries both. Calls have a timeout, so they also detect that messages would no longer arrive.

mod breaker_sync;
mod budgets;
mod connection;
mod connection_slot;
mod connector;
mod error;
mod events;
mod idempotency;
mod keys;
mod leases;
mod ledger_sync;
mod policies;
mod probe;
mod process_lock;
mod pubsub;
mod reconnect;
mod script;
mod shared_state;
mod subscription;
pub mod window;

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use ::redis::Value;
use tokio::time::{Instant, timeout_at};

use self::{
    connection::RedisConnection,
    connection_slot::ConnectionSlot,
    connector::Connector,
    error::{ConnectionAction, RedisFailure},
    events::{RedisCallFinished, RedisCallRejected},
    reconnect::ReconnectTask,
};
use crate::{events::emit, settings};

pub use self::{
    budgets::RedisBudgets,
    error::{ACL_RULES, RedisCallError, RedisErrorReason},
    idempotency::{IDEMPOTENCY_RETENTION, RedisIdempotency},
    keys::RedisKeys,
    leases::RedisLeases,
    policies::RedisPolicies,
    probe::{RedisProbe, RedisProbeError, probe_redis},
    process_lock::{ProcessLock, ProcessLockError},
    pubsub::{BreakerRecord, PubSubMessage, PubSubParseError, RateLimitBlock},
    script::Script,
    shared_state::{SharedState, SharedStateConfig, fingerprint},
    subscription::{Subscription, SubscriptionEvent},
    window::RedisWindow,
};
pub use crate::settings::RedisUrl;

/// Configuration of the connection.
#[derive(Clone, Debug)]
pub struct RedisConfig {
    /// Address of Redis, and the login.
    pub url: RedisUrl,
    /// PEM file with certificate authorities to trust instead of the public ones.
    pub ca_file: Option<PathBuf>,
    /// Timeout of a call as a whole.
    pub timeout: Duration,
}

impl RedisConfig {
    /// Creates the configuration from the settings; `None` without a URL.
    #[must_use]
    pub fn new(settings: &settings::RedisSettings) -> Option<Self> {
        let url = settings.url.clone()?;
        Some(Self { url, ca_file: settings.ca_file.clone(), timeout: settings.timeout })
    }
}

/// Invalid configuration of the connection.
#[derive(Debug, thiserror::Error)]
pub enum RedisConfigError {
    /// The file of certificate authorities cannot be read.
    #[error("cannot read redis.ca_file {}: {error}", path.display())]
    CaFile {
        /// The file.
        path: PathBuf,
        /// Cause.
        error: std::io::Error,
    },
    /// The file of certificate authorities contains none.
    #[error("redis.ca_file {} contains no certificate; it must be a PEM file", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
}

/// A Redis client. Cheap to clone; the connection ends with the last clone.
#[derive(Clone)]
pub struct RedisClient {
    slot: Arc<ConnectionSlot>,
    timeout: Duration,
    _reconnect: Arc<ReconnectTask>,
}

impl RedisClient {
    /// Starts to connect in the background, and retries until it succeeds. Must be called on a Tokio runtime.
    ///
    /// # Errors
    ///
    /// When the file of certificate authorities is invalid.
    pub fn new(config: RedisConfig) -> Result<Self, RedisConfigError> {
        let RedisConfig { url, ca_file, timeout } = config;
        let connector = Connector::new(url, ca_file)?;
        let slot = Arc::new(ConnectionSlot::new());
        let reconnect = Arc::new(ReconnectTask::start(Arc::clone(&slot), connector, timeout));
        Ok(Self { slot, timeout, _reconnect: reconnect })
    }

    /// Runs a script: one round trip, and two more on a server that has not loaded it yet. `args` receives the `run_id`
    /// of the server that the call goes to.
    ///
    /// A call waits for a connection that is being made, but not after the last attempt has failed.
    ///
    /// # Errors
    ///
    /// When there is no valid response within the timeout. Unless there was no connection, the script may have run.
    pub async fn run(
        &self,
        script: &Script,
        keys: &[String],
        args: impl FnOnce(&str) -> Vec<Vec<u8>>,
    ) -> Result<Value, RedisCallError> {
        let started = Instant::now();
        let result = self.try_run(started + self.timeout, script, keys, args).await;
        emit(RedisCallFinished {
            script: script.name(),
            error: result.as_ref().err().copied(),
            elapsed: started.elapsed(),
        });
        result.map_err(|reason| RedisCallError { reason })
    }

    async fn try_run(
        &self,
        deadline: Instant,
        script: &Script,
        keys: &[String],
        args: impl FnOnce(&str) -> Vec<Vec<u8>>,
    ) -> Result<Value, RedisErrorReason> {
        let connection =
            timeout_at(deadline, self.slot.connection()).await.unwrap_or(Err(RedisErrorReason::Timeout))?;
        let args = args(&connection.run_id);
        let failure = match timeout_at(deadline, connection.run(script, keys, &args)).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(failure)) => failure,
            // Its response may still arrive. It must never be taken for that of another call, so the connection is
            // dropped.
            Err(_) => RedisFailure::new(RedisErrorReason::Timeout, "call timed out"),
        };
        let reason = failure.reason;
        self.on_failure(&connection, script, failure);
        Err(reason)
    }

    /// Handles a failed call: drops the connection, or logs the error.
    fn on_failure(&self, connection: &RedisConnection, script: &Script, failure: RedisFailure) {
        match failure.action {
            ConnectionAction::Drop => self.slot.drop_connection(connection.generation, failure),
            ConnectionAction::Keep => {
                emit(RedisCallRejected { script: script.name(), reason: failure.reason, message: &failure.message });
            }
        }
    }

    /// Waits until there is a connection. After a failed call, this is when to retry.
    pub async fn wait_until_up(&self) {
        self.slot.wait_until_up().await;
    }

    /// Subscribes to a channel, across all connections.
    #[must_use]
    pub fn subscribe(&self, channel: &str) -> Subscription {
        let events = self.slot.router.listen(channel);
        self.slot.subscribe_requested.notify_one();
        Subscription::new(events, self.clone())
    }
}

impl fmt::Debug for RedisClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisClient").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}
