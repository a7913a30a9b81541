//! The running daemon: a listener and the shards, with one way in and one way out.

use std::{fmt, io, net::SocketAddr, time::Duration};

use metrics_exporter_prometheus::{BuildError, PrometheusHandle};
use tokio::{task::JoinHandle, time::Instant};

use super::{
    discovery::{self, DiscoveryError},
    gateway_part::GatewayPart,
    redis_part::RedisPart,
    rest::{Rest, RestError},
};
use crate::{
    api::{self, AdminKey, BindError, Control, ControlConfig, Listener, Readiness},
    discord::{FatalClose, ShardEnd, ShardEvent, Shards, ShardsConfig},
    events::{ListenerStarted, emit},
    metrics, process,
    settings::Settings,
};

/// How often the recorder folds what it has collected, which bounds its memory when nobody scrapes.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// The daemon cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no token.
    #[error(
        "there is no bot token; set GUILDHALL__DISCORD__TOKEN, or GUILDHALL__DISCORD__TOKEN_FILE to a file that holds \
         it, or token_file under [discord] in config/guildhall.toml; `guildhall demo` needs no token"
    )]
    NoToken,
    /// The listener's address cannot be had.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The listener cannot start.
    #[error("cannot serve the API: {0}")]
    Serve(#[source] io::Error),
    /// Metrics cannot be recorded.
    #[error("cannot record metrics: {0}")]
    Metrics(#[from] BuildError),
    /// Calls to Discord cannot be made.
    #[error(transparent)]
    Rest(#[from] RestError),
    /// Shards must not be started.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
}

/// The daemon has to end, though nobody asked it to.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// Discord refused a shard for good.
    #[error(transparent)]
    Refused(#[from] FatalClose),
    /// A shard ended without a reason.
    #[error("a shard ended unexpectedly; this is a bug, and the log above says where")]
    Shard,
    /// The listener ended.
    #[error("the API listener ended unexpectedly: {0}")]
    Listener(String),
}

/// What had not ended when a shutdown's time was up.
#[derive(Debug, thiserror::Error)]
pub struct Unfinished {
    timeout: Duration,
    shards: Vec<u32>,
    listener: bool,
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMED: usize = 10;
        write!(f, "the shutdown took longer than shutdown.timeout_ms = {}; not finished:", self.timeout.as_millis())?;
        let named: Vec<_> = self.shards.iter().take(NAMED).map(ToString::to_string).collect();
        if !named.is_empty() {
            write!(f, " shards {}", named.join(", "))?;
        }
        if self.shards.len() > NAMED {
            write!(f, " and {} more", self.shards.len() - NAMED)?;
        }
        if self.listener {
            write!(f, "{} the API listener", if named.is_empty() { "" } else { "," })?;
        }
        Ok(())
    }
}

/// The running daemon.
#[derive(Debug)]
pub struct Daemon {
    readiness: Readiness,
    listener: Listener,
    shards: Shards,
    rest: Rest,
    upkeep: JoinHandle<()>,
    _redis: Option<RedisPart>,
}

impl Daemon {
    /// Starts the listener and the gate, waits for Redis if there is to be one, asks Discord where the gateway is, then starts the shards. Until Discord has
    /// answered, the listener tells what is waited for. `observer` sees what the shards tell; it is called on their tasks and
    /// must not block.
    ///
    /// # Errors
    ///
    /// When there is no token, the address cannot be had, or the process has started a daemon before.
    pub async fn start(
        settings: &Settings,
        observer: impl Fn(ShardEvent<'_>) + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let token = settings.discord.token.clone().ok_or(StartError::NoToken)?;
        // Before anything has something to say: a taken port should be the only line.
        let bound = api::bind(settings.api.bind)?;
        let recorder = metrics::install()?;
        process::record_start();

        let readiness = Readiness::default();
        let part = readiness.register("gateway");
        // It answers that it is starting until it is opened with a desk.
        let control = settings.api.admin_key.as_ref();
        let control = control.map(|key| Control::new(AdminKey::new(key), ControlConfig::default()));
        let listener = bound.serve(readiness.clone(), recorder.clone(), control).map_err(StartError::Serve)?;
        emit(ListenerStarted { address: listener.address() });

        let shares = settings.redis.url.is_some().then(|| readiness.register("redis"));
        let rest = Rest::start(settings, token.clone())?;
        let redis = match shares {
            Some(part) => Some(RedisPart::start(&rest.gate, part).await),
            None => None,
        };
        let upkeep = tokio::spawn(upkeep(recorder));
        let found = discovery::find(settings, rest.gate.as_ref(), &rest.calls, &part).await?;
        let gateway = GatewayPart::new(part, found.shards);
        let config = ShardsConfig {
            token,
            gateway_url: found.url,
            shards: found.shards,
            intents: settings.gateway.intents,
            queue: found.queue,
        };
        let shards = Shards::start(config, move |event| {
            gateway.observe(&event);
            observer(event);
        });
        Ok(Self { readiness, listener, shards, rest, upkeep, _redis: redis })
    }

    /// The way to Discord's REST API.
    pub fn rest(&self) -> &Rest {
        &self.rest
    }

    /// Where the listener is, with the real port.
    pub fn api_address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Waits until something ends that should not. Nothing is lost when the wait is cancelled.
    pub async fn ended(&mut self) -> Ended {
        tokio::select! {
            end = self.shards.next_end() => match end {
                Some(ShardEnd::Refused(fatal)) => Ended::Refused(fatal),
                Some(ShardEnd::Closed | ShardEnd::Panicked) | None => Ended::Shard,
            },
            end = self.listener.ended() => {
                Ended::Listener(end.err().map_or_else(|| "no error".to_owned(), |error| error.to_string()))
            }
        }
    }

    /// Ends everything: nothing is ready any more, the shards close so that their sessions can be resumed, and the
    /// listener, which tells of all this until then, drains.
    ///
    /// # Errors
    ///
    /// When that takes longer than `timeout`; what had not ended is dropped, and named.
    pub async fn shutdown(mut self, timeout: Duration) -> Result<(), Unfinished> {
        let deadline = Instant::now() + timeout;
        self.readiness.stopping();
        let closed = tokio::time::timeout_at(deadline, self.shards.shutdown()).await;
        let shards = if closed.is_ok() { Vec::new() } else { self.shards.open() };
        // If there is no time for it, the others find out by the silence.
        let _ = tokio::time::timeout_at(deadline, self.rest.leave()).await;
        let listener = tokio::time::timeout_at(deadline, self.listener.stop()).await.is_err();
        self.upkeep.abort();
        if shards.is_empty() && !listener { Ok(()) } else { Err(Unfinished { timeout, shards, listener }) }
    }
}

async fn upkeep(recorder: PrometheusHandle) {
    let mut tick = tokio::time::interval(UPKEEP_EVERY);
    loop {
        tick.tick().await;
        recorder.run_upkeep();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_finished_is_named_but_not_without_end() {
        let timeout = Duration::from_millis(5);
        let few = Unfinished { timeout, shards: vec![0, 3], listener: true };
        assert!(few.to_string().ends_with("= 5; not finished: shards 0, 3, the API listener"), "{few}");
        let many = Unfinished { timeout, shards: (0..16_000).collect(), listener: false };
        assert!(many.to_string().ends_with("8, 9 and 15990 more"), "{many}");
        let listener = Unfinished { timeout, shards: vec![], listener: true };
        assert!(listener.to_string().ends_with("not finished: the API listener"), "{listener}");
    }
}
