//! State that processes of an application share besides their limits: breakers, and the ledger of invalid requests.
//!
//! ```text
//!   CircuitBreaker ──notifies──▶ BreakerSync ──publish.lua──▶ Redis ──news──▶ breakers of the others
//!          ▲                         └──────read.lua────▶ (full state, each second and after every loss)
//!          └── RemoteBreakerChanged, SharedStateRead, LedgerSynced ──┐
//!   CircuitBreaker ──notifies──▶ LedgerSync ──ledger.lua──▶ (at once after a count, and each second)
//! ```
//!
//! One task does all of it, and no call to Discord ever waits for it.

use std::{future::Future, sync::Arc, time::Duration};

use actix::Addr;
use guildhall_actors::circuit_breaker::{BreakerReplicator, CircuitBreaker, ShareBreakers};
use guildhall_actors::supervision;
use guildhall_actors::supervision::Part;
use guildhall_core::{
    invalid::{InvalidConfig, LedgerFallback},
    response::Credential,
};
use sha1_smol::Sha1;
use tokio::{sync::Notify, task::JoinHandle, time::timeout};

use super::{RedisClient, RedisKeys, breaker_sync::BreakerSync, ledger_sync::LedgerSync, pubsub::RateLimitBlock};
use crate::settings::SecretValue;

/// Timeout of the last call to Redis.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Configuration of the shared state of a process.
#[derive(Clone, Debug)]
pub struct SharedStateConfig {
    /// The application whose processes share state.
    pub application: u64,
    /// Id of this process. No other process ever has the same, not even this one after a restart.
    pub process: String,
    /// The address that it reaches Discord from. Bans and invalid requests concern all processes behind the same
    /// address.
    pub ip_group: String,
    /// The [`fingerprint`]s of its tokens.
    pub tokens: Vec<(Credential, String)>,
    /// The limit on invalid requests; the same for all behind an address.
    pub invalid: InvalidConfig,
    /// What the ledger does after a whole window without contact.
    pub fallback: LedgerFallback,
    /// How often the full state is read: pub/sub may lose messages.
    pub heartbeat: Duration,
}

/// Shares a process's breakers and ledger with the others for as long as it lives.
#[derive(Debug)]
pub struct SharedState {
    notifier: Arc<StateNotifier>,
    task: Option<JoinHandle<()>>,
}

impl SharedState {
    /// Starts to share, on the Tokio runtime of the caller. Call it before any call is admitted: from then on the
    /// ledger permits only what Redis lends it. `on_block` is called for every process that Discord makes wait; it
    /// must not block.
    #[must_use]
    pub fn start(
        redis: RedisClient,
        breaker: Addr<CircuitBreaker>,
        config: SharedStateConfig,
        on_block: impl Fn(RateLimitBlock) + Send + Sync + 'static,
    ) -> Self {
        let notifier = Arc::new(StateNotifier::default());
        let replicator: Arc<dyn BreakerReplicator> = notifier.clone();
        // Once, and before anything else: there is room in the mailbox.
        breaker.do_send(ShareBreakers { replicator, tokens: config.tokens.clone(), fallback: config.fallback });
        let keys = RedisKeys::new(config.application);
        let ledger = LedgerSync::new(redis.clone(), breaker.clone(), &keys, &config);
        let breakers = BreakerSync::new(redis, breaker, &keys, config, Box::new(on_block));
        let task = supervision::spawn(
            Part::RedisState,
            synchronize(Arc::clone(&notifier), breakers.run(Arc::clone(&notifier)), ledger),
        );
        Self { notifier, task: Some(task) }
    }

    /// Leaves: returns to the others what the ledger was lent. Nothing more is permitted. Call it when no call is in
    /// flight any more; those that still are count as invalid.
    pub async fn leave(mut self) {
        self.notifier.leaving.notify_one();
        if let Some(task) = self.task.take() {
            let abort = task.abort_handle();
            // Redis may be lost, and then no process can be notified.
            if timeout(LEAVE_TIMEOUT, task).await.is_err() {
                abort.abort();
            }
        }
    }
}

impl Drop for SharedState {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Ends with the actor, or when the process leaves.
async fn synchronize(notifier: Arc<StateNotifier>, breakers: impl Future<Output = ()>, mut ledger: LedgerSync) {
    tokio::select! {
        () = breakers => {}
        () = ledger.run(&notifier) => {}
        () = notifier.leaving.notified() => ledger.leave().await,
    }
}

/// Wakes the task. Notifications coalesce.
#[derive(Debug, Default)]
pub(super) struct StateNotifier {
    pub(super) turned: Notify,
    pub(super) counted: Notify,
    leaving: Notify,
}

impl BreakerReplicator for StateNotifier {
    fn on_breaker_changed(&self) {
        self.turned.notify_one();
    }

    fn on_ledger_changed(&self) {
        self.counted.notify_one();
    }
}

/// Distinguishes tokens without revealing them: the first eight bytes of a hash, in hexadecimal.
#[must_use]
pub fn fingerprint(token: &SecretValue) -> String {
    let mut digest = Sha1::from(token.expose()).digest().to_string();
    digest.truncate(16);
    digest
}

/// The actor is gone: the process ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActorStopped;

/// Sends a message to the actor.
pub(super) async fn send<M>(breaker: &Addr<CircuitBreaker>, message: M) -> Result<M::Result, ActorStopped>
where
    M: actix::Message + Send + 'static,
    M::Result: Send,
    CircuitBreaker: actix::Handler<M>,
{
    breaker.send(message).await.map_err(|_| ActorStopped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_distinguish_tokens_without_revealing_them() {
        let (one, other) =
            (fingerprint(&SecretValue::new("MTIz.secret.one")), fingerprint(&SecretValue::new("MTIz.secret.two")));
        assert_ne!(one, other);
        assert_eq!(one, fingerprint(&SecretValue::new("MTIz.secret.one")));
        assert_eq!(one.len(), 16);
        assert!(one.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}
