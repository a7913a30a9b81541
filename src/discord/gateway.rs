//! All shards of a bot: started together, watched together, closed together.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{sync::watch, task::JoinSet};
use twilight_gateway::{ConfigBuilder, Intents, Shard, ShardId, queue::InMemoryQueue};
use twilight_model::gateway::payload::outgoing::identify::IdentifyProperties;

use super::{
    FatalClose,
    shard::{Runner, ShardEvent},
};
use crate::settings::Token;

/// What shards need to connect.
#[derive(Debug)]
pub struct ShardsConfig {
    /// The bot's token.
    pub token: Token,
    /// The gateway; `None` means Discord's own.
    pub gateway_url: Option<String>,
    /// How many shards there are; at least 1.
    pub shards: u32,
    /// Which events Discord sends.
    pub intents: Intents,
    /// Spaces the IDENTIFYs of all shards, since Discord counts them together.
    pub queue: InMemoryQueue,
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
    tasks: JoinSet<ShardEnd>,
    stop: watch::Sender<bool>,
    open: Arc<Mutex<BTreeSet<u32>>>,
}

impl Shards {
    /// Starts every shard; they connect by themselves, each as soon as the queue lets it identify. `observer` is called
    /// on the shard's own task and must not block, since heartbeats wait for it.
    ///
    /// Needs a Tokio runtime, and a default `rustls` provider installed.
    pub fn start(config: ShardsConfig, observer: impl Fn(ShardEvent<'_>) + Send + Sync + 'static) -> Self {
        let observer = Arc::new(observer);
        let mut builder = ConfigBuilder::new(config.token.expose().to_owned(), config.intents)
            .identify_properties(IdentifyProperties::new("guildhall", "guildhall", std::env::consts::OS))
            .queue(config.queue);
        if let Some(url) = config.gateway_url {
            builder = builder.proxy_url(url);
        }
        // One configuration, cloned: it holds the TLS context, which all shards share.
        let twilight = builder.build();
        let (stop, stopped) = watch::channel(false);
        let open = Arc::new(Mutex::new(BTreeSet::new()));
        let mut tasks = JoinSet::new();
        for number in 0..config.shards {
            let id = ShardId::new(number, config.shards);
            let runner = Runner::new(Shard::with_config(id, twilight.clone()), observer.clone());
            let (stopped, open) = (stopped.clone(), Arc::clone(&open));
            open.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
            tasks.spawn(async move {
                let end = runner.run(stopped).await;
                open.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
                end
            });
        }
        Self { tasks, stop, open }
    }

    /// Waits until a shard ends; `None` when all have. Nothing is lost when the wait is cancelled.
    pub async fn next_end(&mut self) -> Option<ShardEnd> {
        let joined = self.tasks.join_next().await?;
        Some(joined.unwrap_or(ShardEnd::Panicked))
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
