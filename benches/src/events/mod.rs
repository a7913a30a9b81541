//! `events`: end-to-end events per second, from gateway connections through shards, router and guilds to a rule that
//! does nothing, and the latency of an event at lower rates.

mod event_counter;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;
use guildhall::daemon::EventsComponent;
use guildhall::discord::{IdentifyLimits, IdentifyQueue, RestInteractionResponder, ShardPool, ShardPoolConfig};
use guildhall::settings::{SecretValue, ShardRange};
use guildhall::store::Store;
use guildhall::webhook::{WebhookConfig, Webhooks};
use guildhall_actors::gate::{Gate, GateConfig};
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_actors::ports::EventStore;
use guildhall_actors::shard::{DesiredShards, FlowLimit, ShardSender, ShardStore as _};
use guildhall_actors::supervisor::{EventPorts, EventsConfig, EventsHandle};
use guildhall_actors::wall_clock::WallClock;
use guildhall_core::backoff::Backoff;
use guildhall_core::event::handler::EventHandlers;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::{interval, sleep};

use self::event_counter::EventCounter;
use crate::operations::{OperationsFixture, Upstream, settings};
use crate::sender::{Guild, Sender};
use crate::stats::{Durations, per_second};
use crate::{cpu, disk, pipeline};

/// Id of the first guild: as long as a Discord id, and always on the first shard.
const FIRST_GUILD: u64 = 310_000_000_000 << 22;

/// Maximum number of events in flight per shard during the saturation run: less than a shard buffers.
const WINDOW: u64 = 4_000;

/// Time before anything is counted.
const WARM_UP: Duration = Duration::from_secs(2);

/// Time limit for handling what was sent.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval of the metrics upkeep, as in the daemon.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Guilds and shards.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Number of guilds with events.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    guilds: u32,
    /// Number of shards that the events arrive on.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    shards: u32,
    /// Measure only the maximum rate.
    #[arg(long)]
    saturation_only: bool,
}

pub(crate) async fn run(arguments: &Arguments, seconds: u64, quiet: bool) -> anyhow::Result<Value> {
    let recorder = guildhall::metrics::install()?;
    tokio::spawn(async move {
        let mut tick = interval(UPKEEP_INTERVAL);
        loop {
            tick.tick().await;
            recorder.run_upkeep();
        }
    });
    let (time, folder) = (Duration::from_secs(seconds), disk::temp_dir()?);
    let fixture = EventsFixture::start(arguments, folder.path()).await?;
    let SaturationResult { per_s, cpu_us, sender_us } = fixture.run_saturated(time).await?;
    if !quiet {
        println!("{per_s:.0} events/s, {cpu_us:.2} µs each, and {sender_us:.2} µs to send one");
    }
    let mut figures = json!({
        "name": "events",
        "seconds": seconds,
        "guilds": arguments.guilds,
        "shards": arguments.shards,
        "saturation_per_s": per_s,
        "cpu_us_per_event": cpu_us,
        "sender_us_per_event": sender_us,
    });
    let rates: &[u32] = if arguments.saturation_only { &[] } else { &[1_000, 5_000] };
    for rate in rates {
        let latencies = fixture.run_at_rate(*rate, time).await?;
        let (p50, p99) = (latencies.quantile_ms(0.5), latencies.quantile_ms(0.99));
        if !quiet {
            println!("at {rate} events/s: p50 {p50:.3} ms, p99 {p99:.3} ms");
        }
        figures[format!("p50_ms_at_{rate}")] = p50.into();
        figures[format!("p99_ms_at_{rate}")] = p99.into();
    }
    figures["lost"] = fixture.lost().into();
    figures["out_of_order"] = fixture.counter.out_of_order().into();
    fixture.close().await?;
    Ok(figures)
}

/// Result of a saturation run.
struct SaturationResult {
    per_s: f64,
    /// Processor time per event, without the sender's.
    cpu_us: f64,
    sender_us: f64,
}

/// All components that an event passes through in the daemon, assembled as in the daemon.
struct EventsFixture {
    sender: Sender,
    counter: Arc<EventCounter>,
    shards: ShardPool,
    events: EventsComponent,
    operations: OperationsFixture,
}

impl EventsFixture {
    async fn start(arguments: &Arguments, folder: &std::path::Path) -> anyhow::Result<Self> {
        let Arguments { guilds, shards, .. } = *arguments;
        let guild = |nth: u32| {
            let id = FIRST_GUILD + (u64::from(nth) << 22);
            Guild { id, channel: id + 1, user: id + 2 }
        };
        let all: Vec<Guild> = (0..guilds).map(guild).collect();
        let sender = Sender::start(shards, &all, None)?;
        let counter = Arc::new(EventCounter::new(sender.clone(), shards, FIRST_GUILD, all.len()));
        let set = settings(&format!("sqlite:{}", folder.join("events.db").display()), &[])?;
        let operations = OperationsFixture::start(&set, Upstream::new(0)).await?;
        let store: Arc<dyn EventStore> = Arc::new(Store::clone(&operations.store));
        // Never called: the rule has no actions.
        let gate = Gate::start(
            pipeline::transport("http://127.0.0.1:9".to_owned())?,
            GateConfig::default(),
            LeaseGuard::always(),
        );
        let rule = json!({ "name": "nothing", "on": ["message.#", "member.#"], "do": [] });
        let handlers =
            EventHandlers::parse(&json!({ "handlers": [rule] })).map_err(|errors| anyhow::anyhow!("{errors:?}"))?;
        let brain = Webhooks::new(Vec::new(), &WebhookConfig::default(), gate.breaker().clone())?;
        let ports = EventPorts {
            handlers,
            store: Arc::clone(&store),
            crashes: Arc::new(Store::clone(&operations.store)),
            brain: Arc::new(brain),
            broker: None,
            responder: Arc::new(RestInteractionResponder::new(gate, set.interactions.timeout)),
            operations: Arc::clone(operations.service()),
            observer: Some(counter.clone()),
        };
        let flow_limit = FlowLimit { events: set.gateway.buffer_events, bytes: set.gateway.buffer_bytes };
        let config = EventsConfig { shards, ..EventsConfig::default() };
        let events = EventsComponent::start(EventsHandle::prepare(ports, WallClock::system(), config, flow_limit));
        let desired = DesiredShards { shards, first: 0, last: shards - 1, shared: false };
        let taken = events.events().attach(operations.store.claim_shards(desired).await?.claims).await;
        let mut senders: HashMap<u32, ShardSender> =
            taken.into_iter().map(|taken| (taken.claim.shard, taken.sender)).collect();
        let limits =
            IdentifyLimits { max_concurrency: 0, spacing: Duration::ZERO, max_per_day: 1_000, remaining_starts: None };
        let config = ShardPoolConfig {
            token: SecretValue::new(pipeline::TOKEN),
            gateway_url: Some(sender.url()),
            shards,
            range: ShardRange::all(shards),
            intents: set.gateway.intents,
            presence: None,
            queue: IdentifyQueue::new(store, limits, WallClock::system(), Arc::new(|_| {})),
            resume: Vec::new(),
            threads: set.gateway.threads,
            buffer: flow_limit,
            backoff: Backoff::up_to(set.gateway.reconnect_base, set.gateway.reconnect_cap),
            hello_timeout: set.gateway.hello_timeout,
            clock: WallClock::system(),
        };
        let take_sender = move |shard| senders.remove(&shard).expect("invariant: each shard has a sender");
        let shards = ShardPool::start(config, take_sender, |_| {})?;
        let fixture = Self { sender, counter, shards, events, operations };
        let sender = fixture.sender.clone();
        spawn_blocking(move || sender.wait_until_ready()).await??;
        Ok(fixture)
    }

    /// Sends as fast as events are handled.
    async fn run_saturated(&self, time: Duration) -> anyhow::Result<SaturationResult> {
        let counter = Arc::clone(&self.counter);
        let flood = self.sender.flood(WARM_UP + time, WINDOW, move |shard| counter.handled_by_shard(shard))?;
        sleep(WARM_UP).await;
        let (started, before, used) = (Instant::now(), self.counter.handled(), cpu::process_time()?);
        // The processor time of the sending thread is known at its end. Its load is constant.
        sleep(time).await;
        let (elapsed, handled) = (started.elapsed(), self.counter.handled() - before);
        let used = cpu::process_time()?.saturating_sub(used);
        let flood_result = spawn_blocking(move || flood.join())
            .await?
            .map_err(|_| anyhow::anyhow!("the sender thread panicked"))??;
        self.wait_until_handled().await?;
        let micros_each = |used: Duration, count: u64| used.as_secs_f64() * 1_000_000.0 / (count.max(1) as f64);
        let sender_us = micros_each(flood_result.cpu, flood_result.sent);
        Ok(SaturationResult {
            per_s: per_second(usize::try_from(handled)?, elapsed),
            cpu_us: micros_each(used, handled) - sender_us,
            sender_us,
        })
    }

    /// Sends events at a fixed rate. Returns the time of each from when it was due to be written until it was handled.
    async fn run_at_rate(&self, per_s: u32, time: Duration) -> anyhow::Result<Durations> {
        self.counter.start_recording();
        let pace = self.sender.pace(per_s, time)?;
        spawn_blocking(move || pace.join()).await?.map_err(|_| anyhow::anyhow!("the sender thread panicked"))??;
        self.wait_until_handled().await?;
        Ok(self.counter.take_latencies())
    }

    /// Waits until everything that was sent is handled, or until the time limit.
    async fn wait_until_handled(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        while self.lost() > 0 && Instant::now() < deadline {
            sleep(Duration::from_millis(5)).await;
        }
        ensure!(
            self.sender.reconnects() == 0,
            "a shard disconnected because its buffer was full; the figures are not valid"
        );
        Ok(())
    }

    fn lost(&self) -> u64 {
        self.sender.sent() - self.counter.handled()
    }

    async fn close(mut self) -> anyhow::Result<()> {
        self.shards.shutdown().await;
        ensure!(self.events.drain(DRAIN_TIMEOUT).await, "the router did not confirm all events in time");
        self.events.stop();
        self.operations.drain().await?;
        self.operations.close().await;
        Ok(())
    }
}
