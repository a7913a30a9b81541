//! What processes of an application share beside their limits: breakers, and the budget of invalid requests.
//!
//! ```text
//!   CircuitBreaker ──bell──▶ breakers ──tell.lua──▶ Redis ──news──▶ breakers of the others
//!          ▲                    └──────read.lua────▶ (the truth, each second and after every loss)
//!          └── Heard, StateRead, LedgerSynced ──┐
//!   CircuitBreaker ──bell──▶ ledger ──ledger.lua──▶ (at once when something was counted, and each second)
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

/// How long the last word to Redis may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// What a process has to say of itself.
#[derive(Clone, Debug)]
pub struct SharedStateConfig {
    /// The application whose processes share.
    pub application: u64,
    /// The name of this process. No other process ever has the same, not even this one after a restart.
    pub process: String,
    /// The address that it reaches Discord from. Bans and invalid requests concern those behind the same.
    pub ip_group: String,
    /// The [`fingerprint`]s of its tokens.
    pub tokens: Vec<(Credential, String)>,
    /// The budget of invalid requests; the same for all behind an address.
    pub invalid: InvalidConfig,
    /// What the ledger does that has heard nothing for a whole window.
    pub when_lost: LedgerFallback,
    /// How often everything is read anew: pub/sub may lose messages.
    pub heartbeat: Duration,
}

/// Shares a process's breakers and ledger with the others for as long as it lives.
#[derive(Debug)]
pub struct SharedState {
    bell: Arc<StateNotifier>,
    task: Option<JoinHandle<()>>,
}

impl SharedState {
    /// Begins to share, on the Tokio runtime of the caller. To be called before any call is admitted: from then on the
    /// ledger lets out only what Redis lends it. `on_block` hears of every process that Discord told to wait; it must not
    /// block.
    #[must_use]
    pub fn start(
        redis: RedisClient,
        breaker: Addr<CircuitBreaker>,
        config: SharedStateConfig,
        on_block: impl Fn(RateLimitBlock) + Send + Sync + 'static,
    ) -> Self {
        let bell = Arc::new(StateNotifier::default());
        let courier: Arc<dyn BreakerReplicator> = bell.clone();
        // Once, and before anything else: there is room in the mailbox.
        breaker.do_send(ShareBreakers { courier, tokens: config.tokens.clone(), when_lost: config.when_lost });
        let keys = RedisKeys::new(config.application);
        let ledger = LedgerSync::new(redis.clone(), breaker.clone(), &keys, &config);
        let breakers = BreakerSync::new(redis, breaker, &keys, config, Box::new(on_block));
        let task =
            supervision::spawn(Part::RedisState, carry(Arc::clone(&bell), breakers.run(Arc::clone(&bell)), ledger));
        Self { bell, task: Some(task) }
    }

    /// Says goodbye: what the ledger was lent goes back to the others. Nothing more is let out. To be called when no call
    /// is under way any more; those that still are count as invalid.
    pub async fn leave(mut self) {
        self.bell.leaving.notify_one();
        if let Some(task) = self.task.take() {
            let abort = task.abort_handle();
            // Redis may be lost, and then nobody can be told.
            if timeout(GOODBYE, task).await.is_err() {
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
async fn carry(bell: Arc<StateNotifier>, breakers: impl Future<Output = ()>, mut ledger: LedgerSync) {
    tokio::select! {
        () = breakers => {}
        () = ledger.run(&bell) => {}
        () = bell.leaving.notified() => ledger.leave().await,
    }
}

/// Wakes the task. However often it rings, it is heard once.
#[derive(Debug, Default)]
pub(super) struct StateNotifier {
    pub(super) turned: Notify,
    pub(super) counted: Notify,
    leaving: Notify,
}

impl BreakerReplicator for StateNotifier {
    fn turned(&self) {
        self.turned.notify_one();
    }

    fn counted(&self) {
        self.counted.notify_one();
    }
}

/// What tells tokens apart without giving them away: the first eight bytes of a hash, as hexadecimal digits.
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
    fn a_fingerprint_tells_tokens_apart_and_holds_nothing_of_them() {
        let (one, other) =
            (fingerprint(&SecretValue::new("MTIz.secret.one")), fingerprint(&SecretValue::new("MTIz.secret.two")));
        assert_ne!(one, other);
        assert_eq!(one, fingerprint(&SecretValue::new("MTIz.secret.one")));
        assert_eq!(one.len(), 16);
        assert!(one.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}
