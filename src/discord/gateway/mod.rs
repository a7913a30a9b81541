//! All shards of a process: started together, watched together, closed together.
//!
//! ```text
//!  Shards::start ─▶ thread ─┬─ Runner (shard 0) ──▶ Feed
//!                           └─ Runner (shard 2) ──▶ Feed        the threads have nothing else to do
//!                ─▶ thread ─── Runner (shard 1) ──▶ Feed
//! ```

mod backlog;
mod events;
mod identify;
mod line;
mod observe;
mod patience;
mod runner;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use guildhall_actors::{
    events::{Allowance, Feed, KeptSession},
    operations::WallClock,
};
use tokio::{
    runtime::{Builder, Runtime},
    sync::{mpsc, watch},
    task::JoinSet,
};
use twilight_gateway::{ConfigBuilder, Intents, Session as TwilightSession, Shard, ShardId, queue::Queue};
use twilight_model::gateway::payload::outgoing::{
    identify::IdentifyProperties, update_presence::UpdatePresencePayload,
};

use self::runner::{Manners, Runner};
pub use self::{
    identify::{IdentifyLimits, IdentifyQueue, SessionsLeft},
    observe::{Observer, Session, ShardEvent},
    patience::Reconnects,
};
use super::FatalClose;
use crate::settings::{ShardRange, Token};

/// What shards need to connect.
#[derive(Debug)]
pub struct ShardsConfig<Q> {
    /// The bot's token.
    pub token: Token,
    /// The gateway; `None` means Discord's own.
    pub gateway_url: Option<String>,
    /// How many shards the bot has; at least 1.
    pub shards: u32,
    /// Which of them this process runs.
    pub range: ShardRange,
    /// Which events Discord sends.
    pub intents: Intents,
    /// What the bot is shown as from the start of a session; `None` leaves it to Discord.
    pub presence: Option<UpdatePresencePayload>,
    /// Lets shards identify, since Discord counts that for all of them together.
    pub queue: Q,
    /// Sessions to go on with. Those of other shards, or of another number of them, are of no use, and not used.
    pub resume: Vec<KeptSession>,
    /// On how many threads they run.
    pub threads: usize,
    /// How much each keeps while there is no room.
    pub buffer: Allowance,
    /// How long the waits before connecting again are.
    pub reconnects: Reconnects,
    /// How long a connection may take to be made and greeted.
    pub hello_within: Duration,
}

/// How a shard ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardEnd {
    /// It was closed as asked; its session can be resumed.
    Closed,
    /// Discord ended it for good.
    Refused(FatalClose),
    /// It panicked, which is a bug.
    Panicked,
}

/// The running shards. Dropping them ends their connections without a goodbye.
#[derive(Debug)]
pub struct Shards {
    ends: mpsc::Receiver<ShardEnd>,
    /// Its end is that of the threads.
    _alive: watch::Sender<()>,
    stop: watch::Sender<bool>,
    open: Arc<Mutex<BTreeSet<u32>>>,
}

impl Shards {
    /// Starts every shard; they connect by themselves, each as soon as the queue lets it identify. What a shard reads goes
    /// to its feed; `observer` is called on its thread and must not block, since heartbeats wait for it.
    ///
    /// Needs a Tokio runtime, and a default `rustls` provider installed.
    ///
    /// # Errors
    ///
    /// When the operating system gives no threads.
    pub fn start<Q>(
        config: ShardsConfig<Q>,
        mut feeds: impl FnMut(u32) -> Feed,
        observer: impl Fn(ShardEvent) + Send + Sync + 'static,
    ) -> io::Result<Self>
    where
        Q: Queue + Clone + Unpin + Send + Sync + 'static,
    {
        let observer: Observer = Arc::new(observer);
        let manners =
            Manners { buffer: config.buffer, reconnects: config.reconnects, hello_within: config.hello_within };
        let mut kept: BTreeMap<u32, KeptSession> = usable(config.resume, config.shards).collect();
        let mut builder = ConfigBuilder::new(config.token.expose().to_owned(), config.intents)
            .identify_properties(IdentifyProperties::new("guildhall", "guildhall", std::env::consts::OS))
            .queue(config.queue);
        if let Some(url) = config.gateway_url {
            builder = builder.proxy_url(url);
        }
        if let Some(presence) = config.presence {
            builder = builder.presence(presence);
        }
        // One configuration, cloned: it holds the TLS context, which all shards share.
        let twilight = builder.build();
        let (stop, stopped) = watch::channel(false);
        let (alive, lives) = watch::channel(());
        let open: Arc<Mutex<BTreeSet<u32>>> = Arc::new(Mutex::new(config.range.numbers().collect()));
        let count = config.range.numbers().len();
        let (tell, ends) = mpsc::channel(count);
        let threads = config.threads.clamp(1, count);
        let mut rosters: Vec<Vec<Runner<Q>>> = (0..threads).map(|_| Vec::new()).collect();
        for (place, number) in config.range.numbers().enumerate() {
            let mut own = ConfigBuilder::from(twilight.clone());
            if let Some(kept) = kept.remove(&number) {
                own = own.session(TwilightSession::new(kept.confirmed, kept.session.as_ref().to_owned()));
                if let Some(url) = kept.resume_url {
                    own = own.resume_url(url);
                }
            }
            let shard = Shard::with_config(ShardId::new(number, config.shards), own.build());
            let runner = Runner::new(shard, feeds(number), Arc::clone(&observer), WallClock::system(), manners);
            rosters[place % threads].push(runner);
        }
        for (place, roster) in rosters.into_iter().enumerate() {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let crew = Crew { lives: lives.clone(), stopped: stopped.clone(), tell: tell.clone(), open: open.clone() };
            thread::Builder::new().name(format!("shards-{place}")).spawn(move || crew.work(&runtime, roster))?;
        }
        Ok(Self { ends, _alive: alive, stop, open })
    }

    /// Waits until a shard ends; `None` when all have. Nothing is lost when the wait is cancelled.
    pub async fn next_end(&mut self) -> Option<ShardEnd> {
        self.ends.recv().await
    }

    /// Closes every shard with code 4000, so that sessions can be resumed, and waits until the other side has answered.
    /// It may be called again when the wait was cancelled.
    pub async fn shutdown(&mut self) {
        self.stop.send_replace(true);
        while self.next_end().await.is_some() {}
    }

    /// The shards that have not ended yet.
    pub fn open(&self) -> Vec<u32> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}

/// Sessions that can be gone on with, by their shard.
fn usable(kept: Vec<KeptSession>, shards: u32) -> impl Iterator<Item = (u32, KeptSession)> {
    kept.into_iter().filter(move |kept| kept.shards == shards).map(|kept| (kept.shard, kept))
}

/// What a thread needs beside its shards.
struct Crew {
    lives: watch::Receiver<()>,
    stopped: watch::Receiver<bool>,
    tell: mpsc::Sender<ShardEnd>,
    open: Arc<Mutex<BTreeSet<u32>>>,
}

impl Crew {
    /// Runs shards until all have ended, or nobody wants them any more.
    fn work<Q>(mut self, runtime: &Runtime, roster: Vec<Runner<Q>>)
    where
        Q: Queue + Clone + Unpin + Send + Sync + 'static,
    {
        runtime.block_on(async move {
            let mut tasks = JoinSet::new();
            for runner in roster {
                let (number, stopped, open) = (runner.number(), self.stopped.clone(), Arc::clone(&self.open));
                tasks.spawn(async move {
                    let end = runner.run(stopped).await;
                    open.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
                    end
                });
            }
            loop {
                let joined = tokio::select! {
                    biased;
                    // Nothing is ever sent: this is the end of the other end.
                    _ = self.lives.changed() => return,
                    joined = tasks.join_next() => joined,
                };
                let Some(joined) = joined else { return };
                // There is a place for each shard; whoever listened may be gone.
                let _ = self.tell.try_send(joined.unwrap_or(ShardEnd::Panicked));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use guildhall_core::time::UnixMs;

    use super::*;

    #[test]
    fn a_session_of_another_number_of_shards_is_of_no_use() {
        let kept = |shard, shards| KeptSession {
            shard,
            shards,
            session: "s".into(),
            resume_url: None,
            confirmed: 1,
            at: UnixMs::new(0),
        };
        let usable: Vec<_> = usable(vec![kept(0, 2), kept(0, 1), kept(1, 2)], 2).map(|(shard, _)| shard).collect();
        assert_eq!(usable, [0, 1]);
    }
}
