//! Tests of the gateway with twilight, an ordinary client library, over real sockets.

use std::time::Duration;

use futures_util::StreamExt;
use guildhall_sim::{GatewayConfig, GatewayFault, Sim, SimConfig, SimHandle, Snowflake, StormSpec};
use serde_json::Value;
use twilight_gateway::queue::InMemoryQueue;
use twilight_gateway::{CloseFrame, Config, ConfigBuilder, Intents, Message, Session, Shard, ShardId};

const TOKEN: &str = "sim-bot-token";

/// A client that receives nothing for this long has failed; a passing test never waits for it.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A dispatch that was read.
#[derive(Debug)]
struct Dispatch {
    name: String,
    sequence: u64,
    data: Value,
}

struct Client {
    shard: Shard<InMemoryQueue>,
}

impl Client {
    fn connect(url: &str, id: ShardId) -> Self {
        Self { shard: Shard::with_config(id, config(url).build()) }
    }

    fn resume(session: Session, resume_url: &str) -> Self {
        let config: Config<_> = config("ws://127.0.0.1:1").session(session).resume_url(resume_url.to_owned()).build();
        Self { shard: Shard::with_config(ShardId::ONE, config) }
    }

    /// The next dispatch; twilight handles everything else.
    async fn next(&mut self) -> Dispatch {
        loop {
            match self.message().await {
                Message::Close(_) => {}
                Message::Text(text) => {
                    let mut frame: Value = serde_json::from_str(&text).unwrap();
                    if frame["op"] == 0 {
                        let name = frame["t"].as_str().unwrap().to_owned();
                        let sequence = frame["s"].as_u64().unwrap();
                        return Dispatch { name, sequence, data: frame["d"].take() };
                    }
                }
            }
        }
    }

    async fn message(&mut self) -> Message {
        loop {
            match tokio::time::timeout(TEST_TIMEOUT, self.shard.next()).await.expect("no frame from the gateway") {
                Some(Ok(message)) => return message,
                Some(Err(error)) => eprintln!("twilight continues after: {error}"),
                None => panic!("the gateway closed the shard permanently"),
            }
        }
    }

    /// All dispatches up to the first with this name.
    async fn until(&mut self, name: &str) -> Vec<Dispatch> {
        let mut read = Vec::new();
        loop {
            read.push(self.next().await);
            if read.last().is_some_and(|last| last.name == name) {
                return read;
            }
        }
    }

    /// READY, and the GUILD_CREATE of each of its guilds.
    async fn log_in(&mut self) -> Vec<Dispatch> {
        let mut read = self.until("READY").await;
        for _ in 0..read[0].data["guilds"].as_array().unwrap().len() {
            read.push(self.next().await);
        }
        read
    }

    /// Disconnects without ending the session.
    async fn disconnect(mut self) -> (Session, String) {
        self.shard.close(CloseFrame::RESUME);
        while !matches!(self.message().await, Message::Close(_)) {}
        (self.shard.session().unwrap().clone(), self.shard.resume_url().unwrap().to_owned())
    }
}

fn config(url: &str) -> ConfigBuilder<InMemoryQueue> {
    // Twilight creates a TLS connector for any URL. Another test of this process may have installed the provider
    // already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    ConfigBuilder::new(TOKEN.to_owned(), Intents::GUILDS | Intents::GUILD_MESSAGES)
        .proxy_url(url.to_owned())
        // Identifies at once, any number of times.
        .queue(InMemoryQueue::new(0, 1_000, Duration::from_secs(86_400), 1_000))
        .ratelimit_messages(false)
}

fn unlimited_config() -> GatewayConfig {
    GatewayConfig { identify_window: Duration::ZERO, sends_per_minute: 100_000, ..GatewayConfig::default() }
}

async fn sim(gateway: GatewayConfig) -> SimHandle {
    Sim::start(SimConfig { guilds: 2, gateway, ..SimConfig::default() }).await.unwrap()
}

fn messages(count: u64) -> StormSpec {
    StormSpec { events_per_s: 0, count: Some(count), seconds: 60.0, ..StormSpec::default() }
}

fn names(dispatches: &[Dispatch]) -> Vec<&str> {
    dispatches.iter().map(|dispatch| dispatch.name.as_str()).collect()
}

fn sequences(dispatches: &[Dispatch]) -> Vec<u64> {
    dispatches.iter().map(|dispatch| dispatch.sequence).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_shards_identify_and_each_receives_its_guilds() {
    let gateway = GatewayConfig { max_concurrency: 2, ..unlimited_config() };
    let sim = Sim::start(SimConfig { guilds: 8, gateway, ..SimConfig::default() }).await.unwrap();
    let mut guilds = Vec::new();
    for number in 0..2 {
        let mut client = Client::connect(&sim.gateway_url(), ShardId::new(number, 2));
        let read = client.log_in().await;
        let ready = &read[0];
        assert_eq!((ready.name.as_str(), ready.sequence), ("READY", 1));
        assert_eq!(ready.data["resume_gateway_url"], sim.gateway_url());
        assert_eq!(ready.data["shard"], serde_json::json!([number, 2]));
        assert_eq!(sequences(&read), (1..=read.len() as u64).collect::<Vec<_>>());
        for created in &read[1..] {
            assert_eq!(created.name, "GUILD_CREATE");
            let guild: Snowflake = serde_json::from_value(created.data["id"].clone()).unwrap();
            assert_eq!(guild.shard(2), number);
            guilds.push(guild);
        }
    }
    guilds.sort_unstable();
    guilds.dedup();
    assert_eq!(guilds.len(), 8);
    let score = sim.gateway_score();
    assert_eq!((score.identifies, score.sessions_started, score.duplicate_shards), (2, 2, 0));
    assert_eq!(score.identifies_by_shard.into_iter().collect::<Vec<_>>(), [(0, 1), (1, 1)]);
}

/// The environment variable that turns this test into the second process.
const SAVED: &str = "GUILDHALL_SIM_TEST_SAVED_SESSION";

#[tokio::test(flavor = "multi_thread")]
async fn a_session_saved_by_one_process_is_resumed_by_another() {
    if let Ok(saved) = std::env::var(SAVED) {
        return resume_as_a_second_process(&saved).await;
    }
    let sim = sim(unlimited_config()).await;
    let mut client = Client::connect(&sim.gateway_url(), ShardId::ONE);
    client.log_in().await;
    sim.storm(messages(3)).await;
    let first = client.until("MESSAGE_CREATE").await;
    let (session, url) = client.disconnect().await;
    // Messages that twilight read while it closed count as unread here: the first process confirmed one message only.
    let confirmed = first[0].sequence;
    sim.storm(messages(2)).await;

    let saved = serde_json::json!({ "sequence": confirmed, "id": session.id(), "url": url }).to_string();
    let second = tokio::task::spawn_blocking(move || {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "twilight_gateway::a_session_saved_by_one_process_is_resumed_by_another", "--nocapture"])
            .env(SAVED, saved)
            .output()
            .unwrap()
    });
    let second = second.await.unwrap();
    let output = String::from_utf8(second.stdout).unwrap();
    assert!(second.status.success(), "{output}{}", String::from_utf8_lossy(&second.stderr));
    let read: Vec<&str> = output.lines().filter_map(|line| line.split_once("READ ")).map(|(_, read)| read).collect();
    let expected: Vec<String> = (confirmed + 1..=confirmed + 5)
        .map(|sequence| {
            let name = if sequence == confirmed + 5 { "RESUMED" } else { "MESSAGE_CREATE" };
            format!("{name} {sequence}")
        })
        .collect();
    assert_eq!(read, expected);
    let score = sim.gateway_score();
    assert_eq!((score.identifies, score.resumes, score.resumes_refused), (1, 1, 0));
}

async fn resume_as_a_second_process(saved: &str) {
    let saved: Value = serde_json::from_str(saved).unwrap();
    let session = Session::new(saved["sequence"].as_u64().unwrap(), saved["id"].as_str().unwrap().to_owned());
    let mut client = Client::resume(session, saved["url"].as_str().unwrap());
    for dispatch in client.until("RESUMED").await {
        println!("READ {} {}", dispatch.name, dispatch.sequence);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn zombie_connection_is_closed_and_its_session_resumed() {
    let heartbeat_interval = Duration::from_millis(200);
    let sim = sim(GatewayConfig { heartbeat_interval, missed_heartbeats: 300, ..unlimited_config() }).await;
    let mut client = Client::connect(&sim.gateway_url(), ShardId::ONE);
    client.log_in().await;
    assert_eq!(sim.gateway_fault(GatewayFault::Zombie { shard: Some(0) }), 1);
    sim.storm(messages(2)).await;
    let read = client.until("RESUMED").await;
    assert_eq!(names(&read), ["MESSAGE_CREATE", "MESSAGE_CREATE", "RESUMED"]);
    let score = sim.gateway_score();
    assert_eq!((score.zombies, score.identifies, score.resumes), (1, 1, 1));
    assert_eq!(score.connections, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_session_is_resumed_if_resumable_else_replaced() {
    let sim = sim(unlimited_config()).await;
    let mut client = Client::connect(&sim.gateway_url(), ShardId::ONE);
    client.log_in().await;
    let first = client.shard.session().unwrap().id().to_owned();

    sim.gateway_fault(GatewayFault::InvalidSession { shard: None, resumable: true });
    assert_eq!(names(&client.until("RESUMED").await), ["RESUMED"]);
    assert_eq!(sim.gateway_score().identifies, 1);

    sim.gateway_fault(GatewayFault::InvalidSession { shard: None, resumable: false });
    let ready = client.until("READY").await.pop().unwrap();
    assert_eq!(ready.sequence, 1);
    assert_ne!(ready.data["session_id"], first.as_str());
    let score = sim.gateway_score();
    assert_eq!((score.identifies, score.resumes, score.sessions_ended), (2, 1, 1));
    assert!(!score.sessions[&first].live);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reconnect_request_is_followed_by_a_resume() {
    let sim = sim(unlimited_config()).await;
    let mut client = Client::connect(&sim.gateway_url(), ShardId::ONE);
    let last = client.log_in().await.last().unwrap().sequence;
    assert_eq!(sim.gateway_fault(GatewayFault::Reconnect { shard: None }), 1);
    let resumed = client.until("RESUMED").await.pop().unwrap();
    assert_eq!(resumed.sequence, last + 1);
    assert!(resumed.data.is_object());
    assert_eq!(sim.gateway_score().closes_received.into_iter().collect::<Vec<_>>(), [(4000, 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_a_gap_are_replayed_in_order_with_and_without_compression() {
    for compression in [true, false] {
        for cut in [true, false] {
            let sim = sim(GatewayConfig { compression, ..unlimited_config() }).await;
            let mut client = Client::connect(&sim.gateway_url(), ShardId::ONE);
            let last = client.log_in().await.last().unwrap().sequence;
            let fault = GatewayFault::Disconnect { shard: None, code: 4000, cut, hold_ms: 600_000 };
            assert_eq!(sim.gateway_fault(fault), 1);
            sim.storm(messages(100)).await;
            assert_eq!(sim.gateway_faults().len(), 1);
            sim.clear_gateway_faults();
            let read = client.until("RESUMED").await;
            assert_eq!(sequences(&read), (last + 1..=last + 101).collect::<Vec<_>>());
            assert_eq!(read.iter().filter(|event| event.name == "MESSAGE_CREATE").count(), 100);
            let score = sim.gateway_score();
            assert_eq!((score.identifies, score.resumes), (1, 1));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_resume_makes_the_client_identify() {
    let sim = sim(unlimited_config()).await;
    let mut client = Client::connect(&sim.gateway_url(), ShardId::ONE);
    client.log_in().await;
    sim.gateway_fault(GatewayFault::DeadResume { count: 1 });
    sim.gateway_fault(GatewayFault::Disconnect { shard: None, code: 4000, cut: false, hold_ms: 0 });
    assert_eq!(names(&client.until("READY").await), ["READY"]);
    let score = sim.gateway_score();
    assert_eq!((score.identifies, score.resumes, score.resumes_refused), (2, 0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn muted_events_have_no_number_and_skipped_numbers_have_no_event() {
    let sim = sim(unlimited_config()).await;
    let mut client = Client::connect(&sim.gateway_url(), ShardId::ONE);
    let last = client.log_in().await.last().unwrap().sequence;
    sim.gateway_fault(GatewayFault::Mute { event: "MESSAGE_CREATE".into() });
    sim.storm(messages(5)).await;
    sim.gateway_fault(GatewayFault::Unmute { event: None });
    sim.storm(messages(1)).await;
    assert_eq!(client.next().await.sequence, last + 1);
    assert_eq!(sim.gateway_fault(GatewayFault::SkipSequence { shard: None, count: 3 }), 1);
    sim.storm(messages(1)).await;
    assert_eq!(client.next().await.sequence, last + 5);
    assert_eq!(sim.gateway_score().events_muted, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn requested_heartbeat_is_sent_at_once() {
    let sim = sim(unlimited_config()).await;
    let mut client = Client::connect(&sim.gateway_url(), ShardId::ONE);
    client.log_in().await;
    // Twilight's own first heartbeat may be sent at any time within the interval.
    let before = sim.gateway_score().heartbeats;
    sim.gateway_fault(GatewayFault::HeartbeatRequest { shard: None });
    // The request comes before the message, and twilight responds to it before it reads further.
    sim.storm(messages(1)).await;
    client.next().await;
    sim.gateway_fault(GatewayFault::Reconnect { shard: None });
    client.until("RESUMED").await;
    assert!(sim.gateway_score().heartbeats > before);
}

#[tokio::test(flavor = "multi_thread")]
async fn identify_too_soon_is_refused_and_accepted_later() {
    let sim = sim(GatewayConfig { identify_window: Duration::from_secs(2), ..unlimited_config() }).await;
    let mut first = Client::connect(&sim.gateway_url(), ShardId::new(0, 2));
    first.until("READY").await;
    let mut second = Client::connect(&sim.gateway_url(), ShardId::new(1, 2));
    second.until("READY").await;
    let score = sim.gateway_score();
    assert!(score.identify_refusals > 0);
    assert_eq!(score.identifies, score.identify_refusals + 2);
    assert_eq!(score.sessions_started, 2);
}
