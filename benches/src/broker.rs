//! `broker`: events per second through RabbitMQ with confirms and a consumer. The baseline is a plain publisher with as many
//! unconfirmed messages on one channel, and no order of confirms.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use clap::Args;
use futures_util::StreamExt as _;
use futures_util::stream::select_all;
use guildhall::broker::Broker;
use guildhall::settings::{self, SettingsSources};
use guildhall_actors::ports::{BrokerEvent, EventBroker, StreamPosition};
use guildhall_core::event::EventOrigin;
use guildhall_core::event::handler::trace;
use guildhall_core::time::UnixMs;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Connection, ConnectionProperties};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use crate::stats::{Durations, per_second};
use guildhall_testkit::rabbitmq::RabbitServer;

/// Number of turns that each side has.
const ROUNDS: u32 = 2;

/// Partitions. Each is a quorum queue.
const PARTITIONS: u16 = 8;

/// Load on RabbitMQ.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Number of guilds. Each has one unconfirmed event at a time.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    guilds: u64,
    /// Maximum number of unconfirmed messages of each side.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    window: u32,
    /// Size of an event in bytes.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    bytes: u32,
}

/// What a consumer has seen.
#[derive(Default)]
struct Seen {
    latencies: Durations,
    /// The last counter of each stream.
    last: HashMap<u64, u64>,
    out_of_order: u64,
}

/// One side in one turn.
#[derive(Default)]
struct Turn {
    published: usize,
    elapsed: Duration,
}

pub(crate) async fn run(arguments: &Arguments, seconds: u64, quiet: bool) -> anyhow::Result<Value> {
    let server = spawn_blocking(RabbitServer::start).await?;
    let window = arguments.window.to_string();
    let environment = [
        ("GUILDHALL__BROKER__URL", server.url()),
        ("GUILDHALL__BROKER__PARTITIONS", PARTITIONS.to_string()),
        ("GUILDHALL__BROKER__WINDOW", window),
        ("GUILDHALL__BROKER__QUEUE_MAX_MESSAGES", "10000000".to_owned()),
    ];
    let environment = environment.map(|(name, value)| (name.into(), value.into())).into();
    let sources = SettingsSources { environment, ..SettingsSources::default() };
    let broker_settings = settings::load(sources)?.settings.broker;
    let url = broker_settings.url.clone().context("the URL is set")?;
    let broker = Arc::new(Broker::start(&broker_settings, url, Box::new(|_| {}))?);
    broker.wait_until_available().await;

    let started = Instant::now();
    let seen = Arc::new(Mutex::new(Seen::default()));
    let consumer = tokio::spawn(consume(server.url(), started, Arc::clone(&seen)));
    let turn = Duration::from_secs_f64(seconds as f64 / f64::from(ROUNDS));
    let (mut ours, mut plain) = (Turn::default(), Turn::default());
    let (mut lost, mut latencies, mut out_of_order) = (0, Durations::default(), 0);
    let mut counters = vec![0_u64; usize::try_from(arguments.guilds)?];
    for _ in 0..ROUNDS {
        let published = publish_ours(&broker, arguments, &mut counters, started, turn).await?;
        lost += wait_until_consumed(&seen, published.published).await;
        let round = std::mem::take(&mut seen.lock().map_err(|_| anyhow!("the consumer panicked"))?.latencies);
        latencies.extend(round);
        ours.add(&published);
        let published = publish_plain(&server.url(), arguments, &mut counters, started, turn).await?;
        wait_until_consumed(&seen, published.published).await;
        {
            let mut seen = seen.lock().map_err(|_| anyhow!("the consumer panicked"))?;
            (out_of_order, seen.latencies) = (seen.out_of_order, Durations::default());
        }
        plain.add(&published);
        if !quiet {
            println!("{:.0} events/s, plain {:.0}/s", ours.rate(), plain.rate());
        }
    }
    consumer.abort();
    latencies.sort();
    Ok(json!({
        "events_per_s": ours.rate().round(),
        "plain_per_s": plain.rate().round(),
        "ratio": ours.rate() / plain.rate(),
        "p50_ms": latencies.quantile_ms(0.5),
        "p99_ms": latencies.quantile_ms(0.99),
        "lost": lost,
        "out_of_order": out_of_order,
        "guilds": arguments.guilds,
        "window": arguments.window,
    }))
}

impl Turn {
    fn add(&mut self, other: &Self) {
        self.published += other.published;
        self.elapsed += other.elapsed;
    }

    fn rate(&self) -> f64 {
        per_second(self.published, self.elapsed)
    }
}

/// The body of an event: when it was published, and filler.
fn body(started: Instant, bytes: u32) -> String {
    let micros = started.elapsed().as_micros();
    format!("{micros} {}", "x".repeat(bytes as usize))
}

/// Each guild publishes its events one after the other; all guilds at the same time.
async fn publish_ours(
    broker: &Arc<Broker>,
    arguments: &Arguments,
    counters: &mut [u64],
    started: Instant,
    turn: Duration,
) -> anyhow::Result<Turn> {
    let (begin, is_over) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let mut guilds = JoinSet::new();
    for (lane, counter) in (0..arguments.guilds).zip(counters.iter()) {
        let (broker, is_over, bytes) = (Arc::clone(broker), Arc::clone(&is_over), arguments.bytes);
        let mut counter = *counter;
        guilds.spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                counter += 1;
                let event = event(lane, counter, &body(started, bytes));
                broker.publish(event).await.map_err(|error| anyhow!(error.reason))?;
            }
            anyhow::Ok((lane, counter))
        });
    }
    sleep(turn).await;
    is_over.store(true, Ordering::Relaxed);
    let mut published = 0;
    while let Some(result) = guilds.join_next().await {
        let (lane, counter) = result??;
        let before = std::mem::replace(&mut counters[usize::try_from(lane)?], counter);
        published += usize::try_from(counter - before)?;
    }
    Ok(Turn { published, elapsed: begin.elapsed() })
}

fn event(lane: u64, counter: u64, body: &str) -> BrokerEvent {
    let origin = EventOrigin { session: "bench".into(), shard: 0, seq: counter };
    BrokerEvent {
        handler: "bench".into(),
        id: format!("bench-{lane}-{counter}"),
        name: "message.create".to_owned(),
        trace: trace(&origin),
        origin,
        is_interaction: false,
        lane,
        guild: Some(lane),
        received_at: UnixMs::new(1_700_000_000_000),
        position: Some(StreamPosition { epoch: UnixMs::new(1), counter }),
        json: body.into(),
    }
}

/// One channel with a window of unconfirmed messages.
async fn publish_plain(
    url: &str,
    arguments: &Arguments,
    counters: &mut [u64],
    started: Instant,
    turn: Duration,
) -> anyhow::Result<Turn> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let window = Arc::new(Semaphore::new(arguments.window as usize));
    let mut confirms = JoinSet::new();
    let (begin, mut published) = (Instant::now(), 0);
    while begin.elapsed() < turn {
        let permit = Arc::clone(&window).acquire_owned().await?;
        let lane = published % counters.len();
        counters[lane] += 1;
        let mut headers = FieldTable::default();
        headers.insert("guildhall-counter".into(), AMQPValue::LongLongInt(counters[lane].try_into()?));
        headers.insert("guildhall-guild".into(), AMQPValue::LongString(lane.to_string().into()));
        let properties = BasicProperties::default().with_delivery_mode(2).with_headers(headers);
        let key = format!("message.create.p{:02}", lane % usize::from(PARTITIONS));
        let (options, body) = (BasicPublishOptions::default(), body(started, arguments.bytes));
        let exchange = "guildhall.events".into();
        let confirm =
            channel.basic_publish(exchange, key.as_str().into(), options, body.as_bytes(), properties).await?;
        confirms.spawn(async move {
            let _permit = permit;
            confirm.await.map(|confirmation| confirmation.is_ack())
        });
        published += 1;
        while let Some(done) = confirms.try_join_next() {
            anyhow::ensure!(done??, "a message was not confirmed");
        }
    }
    while let Some(done) = confirms.join_next().await {
        anyhow::ensure!(done??, "a message was not confirmed");
    }
    Ok(Turn { published, elapsed: begin.elapsed() })
}

/// Waits until so many messages were consumed since the last turn. Returns how many are missing after a while without one.
async fn wait_until_consumed(seen: &Mutex<Seen>, published: usize) -> usize {
    let consumed = || seen.lock().map_or(0, |seen| seen.latencies.len());
    let (mut last, mut idle) = (consumed(), 0);
    while last < published && idle < 500 {
        sleep(Duration::from_millis(10)).await;
        let now = consumed();
        idle = if now == last { idle + 1 } else { 0 };
        last = now;
    }
    published.saturating_sub(last)
}

/// Consumes all partitions, and checks the order of each guild.
async fn consume(url: String, started: Instant, seen: Arc<Mutex<Seen>>) -> anyhow::Result<()> {
    let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.basic_qos(200, BasicQosOptions::default()).await?;
    let mut consumers = Vec::new();
    for number in 0..PARTITIONS {
        let queue = format!("guildhall.events.p{number:02}");
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        consumers.push(channel.basic_consume(queue.as_str().into(), "".into(), options, arguments).await?);
    }
    let mut deliveries = select_all(consumers);
    while let Some(delivery) = deliveries.next().await {
        let delivery = delivery?;
        record(&delivery, started, &seen)?;
        delivery.ack(BasicAckOptions::default()).await?;
    }
    Ok(())
}

fn record(delivery: &Delivery, started: Instant, seen: &Mutex<Seen>) -> anyhow::Result<()> {
    let headers = delivery.properties.headers().clone().unwrap_or_default();
    let (guild, counter) = match (headers.inner().get("guildhall-guild"), headers.inner().get("guildhall-counter")) {
        (Some(AMQPValue::LongString(guild)), Some(AMQPValue::LongLongInt(counter))) => {
            (guild.to_string().parse()?, u64::try_from(*counter)?)
        }
        _ => return Err(anyhow!("a message without headers")),
    };
    let text = std::str::from_utf8(&delivery.data)?;
    let micros: u64 = text.split(' ').next().unwrap_or_default().parse()?;
    let latency = started.elapsed().saturating_sub(Duration::from_micros(micros));
    let mut seen = seen.lock().map_err(|_| anyhow!("the benchmark panicked"))?;
    seen.latencies.push(latency);
    let last = seen.last.insert(guild, counter).unwrap_or(0);
    seen.out_of_order += u64::from(counter != last + 1);
    Ok(())
}
