//! All shards of a process: opens, closes and observes them.
//!
//! ```text
//!  ShardSet::open ─▶ thread ─┬─ Shard actor 0 ──▶ ShardSender
//!                            └─ Shard actor 2 ──▶ ShardSender    the threads do nothing else
//!                 ─▶ thread ─── Shard actor 1 ──▶ ShardSender
//! ```

mod config_template;
mod events;
mod identify_queue;
mod shard_set;
mod timed_queue;
mod twilight_connection;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_actors::ports::StoredSession;
use guildhall_actors::shard::{FlowLimit, Shard, ShardConfig, ShardSender, ShardSpec, StartShard};
use guildhall_actors::supervision::Part;
use guildhall_actors::wall_clock::WallClock;
use guildhall_actors::{failpoint, supervision};
use tokio::{
    runtime::{Builder, Runtime},
    sync::{mpsc, watch},
    task::LocalSet,
};
use twilight_gateway::{ConfigBuilder, Intents, ShardId, queue::Queue};
use twilight_model::gateway::payload::outgoing::{
    identify::IdentifyProperties, update_presence::UpdatePresencePayload,
};

use self::{
    config_template::ConfigTemplate,
    shard_set::{OpenShard, PrepareShard},
    twilight_connection::TwilightConnection,
};
pub use self::{
    identify_queue::{IdentifyLimits, IdentifyQueue, SessionStartLimit},
    shard_set::{ResumeState, ShardSet},
};
pub use guildhall_actors::shard::{SessionKind, ShardEvent, ShardObserver};
use guildhall_core::backoff::Backoff;

use super::FatalClose;
use crate::settings::{SecretValue, ShardRange};

/// Configuration of the shards.
#[derive(Debug)]
pub struct ShardPoolConfig<Q> {
    /// The bot's token.
    pub token: SecretValue,
    /// URL of the gateway; `None` means Discord's own.
    pub gateway_url: Option<String>,
    /// Total number of shards of the bot; at least 1.
    pub shards: u32,
    /// The shards that this process may run.
    pub range: ShardRange,
    /// The events that Discord sends.
    pub intents: Intents,
    /// Presence of the bot at the start of a session; `None` leaves it to Discord.
    pub presence: Option<UpdatePresencePayload>,
    /// Permits shards to identify; Discord counts that for all shards together.
    pub queue: Q,
    /// Sessions to resume. Sessions of other shards, or of another total number of shards, are ignored.
    pub resume: Vec<StoredSession>,
    /// Number of threads for the shards.
    pub threads: usize,
    /// How much each shard buffers while there is no room.
    pub buffer: FlowLimit,
    /// Backoff between connection attempts.
    pub backoff: Backoff,
    /// Timeout for a connection and its HELLO.
    pub hello_timeout: Duration,
    /// Clock for the time at which events are received.
    pub clock: WallClock,
}

/// How a shard ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardEnd {
    /// Closed as requested; the session can be resumed.
    Closed,
    /// Closed because another process may soon own the shard; the session can be resumed.
    Lost,
    /// Discord closed it permanently.
    Refused(FatalClose),
    /// Panicked, which is a bug.
    Panicked,
}

/// The running shards. Dropping them ends their connections without a close frame.
#[derive(Debug)]
pub struct ShardPool {
    ends: mpsc::Receiver<ShardEnd>,
    /// Dropping it ends the threads.
    _alive: watch::Sender<()>,
    shard_set: ShardSet,
    set_token: DebugTokenSetter,
}

/// Sets the token of new connections to the gateway.
pub type TokenSetter = Arc<dyn Fn(&SecretValue) + Send + Sync>;

struct DebugTokenSetter(TokenSetter);

impl std::fmt::Debug for DebugTokenSetter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Setter")
    }
}

impl ShardPool {
    /// Starts every shard of the range. They connect by themselves, as soon as the queue permits each to identify.
    /// Events go to the shard's sender. `observer` is called on the shard's thread and must not block, because
    /// heartbeats wait for it.
    ///
    /// Needs a Tokio runtime, and an installed default `rustls` provider.
    ///
    /// # Errors
    ///
    /// When the operating system cannot start a thread.
    pub fn start<Q>(
        mut config: ShardPoolConfig<Q>,
        mut senders: impl FnMut(u32) -> ShardSender,
        observer: impl Fn(ShardEvent) + Send + Sync + 'static,
    ) -> io::Result<Self>
    where
        Q: Queue + Clone + Unpin + Send + Sync + 'static,
    {
        let range = config.range;
        let mut sessions: BTreeMap<u32, StoredSession> =
            resumable_sessions(std::mem::take(&mut config.resume), config.shards).collect();
        let shards = Self::start_threads(config, observer)?;
        for number in range.ids() {
            let resume = sessions.remove(&number).map(|session| ResumeState { session, unread: BTreeSet::new() });
            shards.shard_set.open(number, senders(number), resume, LeaseGuard::always());
        }
        Ok(shards)
    }

    /// Starts the threads for shards, but no shard: those are [opened](ShardSet::open) one by one.
    ///
    /// # Errors
    ///
    /// When the operating system cannot start a thread.
    pub fn start_threads<Q>(
        config: ShardPoolConfig<Q>,
        observer: impl Fn(ShardEvent) + Send + Sync + 'static,
    ) -> io::Result<Self>
    where
        Q: Queue + Clone + Unpin + Send + Sync + 'static,
    {
        let observer: ShardObserver = Arc::new(observer);
        let shard_config =
            ShardConfig { buffer: config.buffer, backoff: config.backoff, hello_timeout: config.hello_timeout };
        let (intents, queue) = (config.intents, config.queue.clone());
        let (gateway_url, presence) = (config.gateway_url, config.presence);
        let template = Arc::new(ConfigTemplate::new(&config.token, move |token: &SecretValue| {
            let mut builder = ConfigBuilder::new(token.expose().to_owned(), intents)
                .identify_properties(IdentifyProperties::new("guildhall", "guildhall", std::env::consts::OS))
                .queue(queue.clone());
            if let Some(url) = &gateway_url {
                builder = builder.proxy_url(url.clone());
            }
            if let Some(presence) = &presence {
                builder = builder.presence(presence.clone());
            }
            builder.build()
        }));
        let new_token = Arc::clone(&template);
        let set_token: TokenSetter = Arc::new(move |token| new_token.set_token(token));
        let (alive, alive_rx) = watch::channel(());
        let count = config.range.ids().len();
        let (ends_tx, ends) = mpsc::channel(count);
        let mut threads = Vec::new();
        for index in 0..config.threads.clamp(1, count) {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let (tasks_tx, tasks) = mpsc::channel(count);
            let alive_rx = alive_rx.clone();
            let name = format!("shards-{index}");
            supervision::thread(Part::ShardThread, name, move || run_thread(&runtime, alive_rx, tasks))?;
            threads.push(tasks_tx);
        }
        let shards = config.shards;
        let prepare: PrepareShard = Box::new(move |open| {
            let OpenShard { number, sender, resume, lease, on_exit } = open;
            let (session, unread) =
                resume.map_or((None, BTreeSet::new()), |resume| (Some(resume.session), resume.unread));
            let id = ShardId::new(number, shards);
            Shard::prepare(ShardSpec {
                number,
                connection: TwilightConnection::new(id, Arc::clone(&template), config.queue.clone(), session),
                unread,
                sender,
                observer: Arc::clone(&observer),
                clock: config.clock.clone(),
                config: shard_config,
                lease,
                on_exit,
            })
        });
        let shard_set = ShardSet::new(prepare, intents, threads, ends_tx);
        Ok(Self { ends, _alive: alive, shard_set, set_token: DebugTokenSetter(set_token) })
    }

    /// Returns a function that sets the token of new connections. Existing connections are unaffected.
    #[must_use]
    pub fn token_setter(&self) -> TokenSetter {
        Arc::clone(&self.set_token.0)
    }

    /// Waits until a shard ends that was neither closed on request nor lost. Cancel safe.
    pub async fn next_end(&mut self) -> ShardEnd {
        match self.ends.recv().await {
            Some(end) => end,
            // Unreachable: this struct holds a sender.
            None => std::future::pending().await,
        }
    }

    /// Opens and closes single shards.
    #[must_use]
    pub const fn shard_set(&self) -> &ShardSet {
        &self.shard_set
    }

    /// Closes every shard with code 4000, so that sessions can be resumed, and waits until the peer has responded. May
    /// be called again if the wait was cancelled.
    pub async fn shutdown(&mut self) {
        self.shard_set.close_all().await;
    }

    /// Numbers of the shards that have not ended yet.
    #[must_use]
    pub fn open(&self) -> Vec<u32> {
        self.shard_set.open_numbers()
    }
}

/// Sessions that can be resumed, by shard.
fn resumable_sessions(sessions: Vec<StoredSession>, shards: u32) -> impl Iterator<Item = (u32, StoredSession)> {
    sessions.into_iter().filter(move |sessions| sessions.shards == shards).map(|sessions| (sessions.shard, sessions))
}

/// Runs shards on a thread until the pool is dropped.
fn run_thread(runtime: &Runtime, mut alive: watch::Receiver<()>, mut tasks: mpsc::Receiver<StartShard>) {
    // Actors run in a local set. Dropping it drops the shards.
    LocalSet::new().block_on(runtime, async move {
        let mut ticks = pin!(failpoint::ticks(Part::ShardThread));
        loop {
            tokio::select! {
                biased;
                // Nothing is ever sent: this returns when the sender is dropped.
                _ = alive.changed() => return,
                Some(start) = tasks.recv() => start(),
                never = &mut ticks => match never {},
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use guildhall_core::time::UnixMs;

    use super::*;

    #[test]
    fn session_of_another_shard_count_is_ignored() {
        let session = |shard, shards| StoredSession {
            shard,
            shards,
            session: "s".into(),
            resume_url: None,
            confirmed: 1,
            at: UnixMs::new(0),
            fence: None,
        };
        let usable: Vec<_> =
            resumable_sessions(vec![session(0, 2), session(0, 1), session(1, 2)], 2).map(|(shard, _)| shard).collect();
        assert_eq!(usable, [0, 1]);
    }
}
