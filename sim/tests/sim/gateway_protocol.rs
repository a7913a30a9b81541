//! Tests of the gateway protocol, frame by frame, with clients that obey its rules and clients that do not.

use std::time::Duration;

use flate2::{Decompress, FlushDecompress};
use futures_util::{SinkExt, StreamExt};
use guildhall_sim::{GatewayConfig, GatewayFault, Sim, SimConfig, SimHandle, StormSpec};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_websockets::{ClientBuilder, CloseCode, MaybeTlsStream, Message, WebSocketStream};

/// A client that receives nothing for this long has failed; a passing test never waits for it.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Every relevant intent that is not privileged.
const INTENTS: u64 = 1 | 1 << 9;

struct Client {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    zlib: Decompress,
}

impl Client {
    async fn connect(sim: &SimHandle, query: &str) -> Self {
        let url = format!("{}/?{query}", sim.gateway_url());
        let (socket, _) = ClientBuilder::new().uri(&url).unwrap().connect().await.unwrap();
        Self { socket, zlib: Decompress::new(true) }
    }

    /// Connects and reads HELLO.
    async fn connect_and_read_hello(sim: &SimHandle) -> Self {
        let mut client = Self::connect(sim, "v=10&encoding=json").await;
        assert_eq!(client.frame().await["op"], 10);
        client
    }

    async fn send(&mut self, frame: &Value) {
        self.socket.send(Message::text(frame.to_string())).await.unwrap();
    }

    async fn identify(&mut self, d: Value) {
        let mut d = d;
        for (name, value) in [("token", json!("sim-bot-token")), ("intents", json!(INTENTS))] {
            if d.get(name).is_none() {
                d[name] = value;
            }
        }
        self.send(&json!({ "op": 2, "d": d })).await;
    }

    async fn message(&mut self) -> Message {
        tokio::time::timeout(TEST_TIMEOUT, self.socket.next())
            .await
            .expect("no frame from the gateway")
            .unwrap()
            .unwrap()
    }

    /// The next frame, which may be compressed.
    async fn frame(&mut self) -> Value {
        let message = self.message().await;
        if message.is_binary() {
            let mut text = Vec::with_capacity(1 << 20);
            self.zlib.decompress_vec(message.as_payload(), &mut text, FlushDecompress::Sync).unwrap();
            return serde_json::from_slice(&text).unwrap();
        }
        let text = message.as_text().unwrap_or_else(|| panic!("not a text frame: {message:?}"));
        serde_json::from_str(text).unwrap()
    }

    /// Reads until the gateway closes; returns the code and the reason.
    async fn read_close(&mut self) -> (u16, String) {
        loop {
            if let Some((code, reason)) = self.message().await.as_close() {
                return (code.into(), reason.to_owned());
            }
        }
    }
}

async fn sim(gateway: GatewayConfig) -> SimHandle {
    Sim::start(SimConfig { gateway, ..SimConfig::default() }).await.unwrap()
}

async fn default_sim() -> SimHandle {
    sim(GatewayConfig { identify_window: Duration::ZERO, ..GatewayConfig::default() }).await
}

#[tokio::test]
async fn too_many_pings_close_even_a_zombie() {
    let sim = default_sim().await;
    for zombie in [false, true] {
        let mut client = Client::connect_and_read_hello(&sim).await;
        if zombie {
            assert_eq!(sim.gateway_fault(GatewayFault::Zombie { shard: None }), 1);
        }
        for _ in 0..121 {
            client.socket.feed(Message::ping("are you there?")).await.unwrap();
        }
        client.socket.flush().await.unwrap();
        assert_eq!(client.read_close().await.0, 4008);
    }
}

#[tokio::test]
async fn client_may_heartbeat_before_identify_and_omit_its_shard() {
    let sim = default_sim().await;
    let mut client = Client::connect(&sim, "v=10&encoding=json").await;
    let hello = client.frame().await;
    assert_eq!(hello["d"]["heartbeat_interval"], 41_250);
    client.send(&json!({"op": 1, "d": null})).await;
    assert_eq!(client.frame().await["op"], 11);
    client.identify(json!({"compress": true})).await;
    let ready = client.frame().await;
    assert_eq!((&ready["t"], &ready["s"], &ready["op"]), (&json!("READY"), &json!(1), &json!(0)));
    assert_eq!(ready["d"]["shard"], json!([0, 1]));
    assert_eq!(ready["d"]["private_channels"], json!([]));
    assert_eq!(ready["d"]["guilds"][0]["unavailable"], true);
    assert_eq!(client.frame().await["t"], "GUILD_CREATE");
}

#[tokio::test]
async fn every_invalid_identify_has_its_close_code() {
    let config = GatewayConfig { privileged_intents: false, ..GatewayConfig::default() };
    let sim = sim(config).await;
    let cases = [
        (json!({"token": "wrong"}), 4004),
        (json!({"shard": [1, 1]}), 4010),
        (json!({"shard": [0, 0]}), 4010),
        (json!({"shard": [0, 1_u64 << 40]}), 4010),
        (json!({"shard": "0"}), 4002),
        (json!({"intents": 1 << 30}), 4013),
        (json!({"intents": "all"}), 4013),
        (json!({"intents": 1 << 15}), 4014),
    ];
    for (d, code) in cases {
        let mut client = Client::connect_and_read_hello(&sim).await;
        client.identify(d.clone()).await;
        assert_eq!(client.read_close().await.0, code, "{d}");
    }
    let score = sim.gateway_score();
    assert_eq!(score.sessions_started, 0);
    assert_eq!(score.closes_sent.values().sum::<u64>(), 8);
}

#[tokio::test]
async fn unexpected_frames_have_their_close_code() {
    let sim = default_sim().await;
    let cases = [
        (json!({"op": 3, "d": {}}), 4003),
        (json!({"op": 8, "d": {"guild_id": "1"}}), 4003),
        (json!({"op": 77, "d": {}}), 4001),
        (json!({"d": {}}), 4002),
        (json!({"op": 1, "d": null, "padding": "x".repeat(5_000)}), 4002),
    ];
    for (frame, code) in cases {
        let mut client = Client::connect_and_read_hello(&sim).await;
        client.send(&frame).await;
        assert_eq!(client.read_close().await.0, code);
    }
    let mut client = Client::connect_and_read_hello(&sim).await;
    client.socket.send(Message::binary(vec![131, 116, 0])).await.unwrap();
    assert_eq!(client.read_close().await.0, 4002);

    let mut client = Client::connect_and_read_hello(&sim).await;
    client.identify(json!({})).await;
    client.identify(json!({})).await;
    assert_eq!(client.read_close().await.0, 4005);
}

#[tokio::test]
async fn json_is_read_from_binary_frames_too() {
    let sim = default_sim().await;
    let mut client = Client::connect_and_read_hello(&sim).await;
    let identify = json!({ "op": 2, "d": { "token": "sim-bot-token", "intents": INTENTS } });
    client.socket.send(Message::binary(identify.to_string())).await.unwrap();
    assert_eq!(client.frame().await["t"], "READY");
    client.socket.send(Message::binary(r#"{"op":1,"d":1}"#)).await.unwrap();
    while client.message().await.as_text() != Some(r#"{"t":null,"s":null,"op":11,"d":null}"#) {}
}

#[tokio::test]
async fn oversized_frame_closes_the_connection() {
    let sim = default_sim().await;
    let mut client = Client::connect_and_read_hello(&sim).await;
    client.socket.send(Message::text("x".repeat(1 << 20))).await.unwrap();
    // Data left in the socket's buffers may cut the close frame short.
    while let Some(Ok(message)) = tokio::time::timeout(TEST_TIMEOUT, client.socket.next()).await.unwrap() {
        if let Some((code, _)) = message.as_close() {
            assert_eq!(code, CloseCode::MESSAGE_TOO_BIG);
        }
    }
    assert_eq!(Client::connect_and_read_hello(&sim).await.socket.close().await.ok(), Some(()));
}

#[tokio::test]
async fn unsupported_url_parameters_have_their_close_code() {
    let sim = default_sim().await;
    for (query, code) in [("v=6&encoding=json", 4012), ("v=10&encoding=etf", 4002), ("v=10&compress=zstd-stream", 4002)]
    {
        assert_eq!(Client::connect(&sim, query).await.read_close().await.0, code, "{query}");
    }
}

#[tokio::test]
async fn too_many_sends_close_and_the_session_can_be_resumed() {
    let sim = default_sim().await;
    let mut client = Client::connect_and_read_hello(&sim).await;
    client.identify(json!({})).await;
    let ready = client.frame().await;
    for _ in 0..120 {
        client.send(&json!({"op": 3, "d": {"status": "online"}})).await;
    }
    assert_eq!(client.read_close().await.0, 4008);

    let mut client = Client::connect_and_read_hello(&sim).await;
    let resume = json!({"token": "sim-bot-token", "session_id": ready["d"]["session_id"], "seq": 1});
    client.send(&json!({"op": 6, "d": resume})).await;
    assert_eq!(client.frame().await["t"], "GUILD_CREATE");
    let resumed = client.frame().await;
    assert_eq!((&resumed["t"], &resumed["s"]), (&json!("RESUMED"), &json!(3)));
    assert!(resumed["d"].is_object());
}

#[tokio::test]
async fn resume_of_an_unknown_session_may_be_followed_by_identify() {
    let sim = default_sim().await;
    let mut client = Client::connect_and_read_hello(&sim).await;
    client.send(&json!({"op": 6, "d": {"token": "sim-bot-token", "session_id": "none", "seq": 4}})).await;
    let invalid = client.frame().await;
    assert_eq!((&invalid["op"], &invalid["d"], &invalid["s"]), (&json!(9), &json!(false), &Value::Null));
    client.identify(json!({})).await;
    assert_eq!(client.frame().await["t"], "READY");
    assert_eq!(sim.gateway_score().resumes_refused, 1);
}

#[tokio::test]
async fn silent_client_times_out() {
    let heartbeat_interval = Duration::from_millis(50);
    let sim = sim(GatewayConfig { heartbeat_interval, ..GatewayConfig::default() }).await;
    let mut client = Client::connect_and_read_hello(&sim).await;
    assert_eq!(client.read_close().await.0, 4009);
    assert_eq!(sim.gateway_score().heartbeat_timeouts, 1);
}

#[tokio::test]
async fn a_compressed_connection_is_one_zlib_stream() {
    let sim = default_sim().await;
    let mut client = Client::connect(&sim, "v=10&encoding=json&compress=zlib-stream").await;
    let first = client.message().await;
    assert!(first.is_binary());
    assert!(first.as_payload().ends_with(&[0, 0, 0xff, 0xff]));
    let mut hello = Vec::with_capacity(1_024);
    client.zlib.decompress_vec(first.as_payload(), &mut hello, FlushDecompress::Sync).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&hello).unwrap()["op"], 10);
    client.identify(json!({"compress": true})).await;
    assert_eq!(client.frame().await["t"], "READY");
    assert_eq!(client.frame().await["t"], "GUILD_CREATE");
}

#[tokio::test]
async fn a_cut_connection_ends_without_a_close_frame() {
    let sim = default_sim().await;
    let mut client = Client::connect_and_read_hello(&sim).await;
    client.identify(json!({})).await;
    client.frame().await;
    client.frame().await;
    sim.gateway_fault(GatewayFault::Disconnect { shard: Some(0), code: 4000, cut: true, hold_ms: 0 });
    let end = tokio::time::timeout(TEST_TIMEOUT, client.socket.next()).await.unwrap();
    assert!(!matches!(end, Some(Ok(_))), "no frame expected: {end:?}");
    assert!(sim.gateway_score().closes_sent.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn storm_faster_than_its_reader_waits_and_loses_nothing() {
    const EVENTS: u64 = 20_000;
    let config = GatewayConfig { replay_events: 100, identify_window: Duration::ZERO, ..GatewayConfig::default() };
    let sim = sim(config).await;
    let mut client = Client::connect_and_read_hello(&sim).await;
    client.identify(json!({})).await;
    // A storm without any session is not received by any client.
    assert_eq!(client.frame().await["t"], "READY");
    let storm = StormSpec { events_per_s: 100_000_000, count: Some(EVENTS), seconds: 600.0, ..StormSpec::default() };
    let reader = async {
        for sequence in 2..=EVENTS + 2 {
            assert_eq!(client.frame().await["s"], sequence);
        }
    };
    let (report, ()) = tokio::join!(sim.storm(storm), reader);
    assert_eq!((report.sent, report.behind), (EVENTS, 0));
    let score = sim.gateway_score();
    assert_eq!((score.slow_readers, score.events_by_type["MESSAGE_CREATE"]), (0, EVENTS));
}

#[tokio::test(flavor = "multi_thread")]
async fn storm_with_a_stalled_reader_ends_in_time_and_reports_behind() {
    let config = GatewayConfig { replay_events: 100, identify_window: Duration::ZERO, ..GatewayConfig::default() };
    let sim = sim(config).await;
    let mut client = Client::connect_and_read_hello(&sim).await;
    client.identify(json!({})).await;
    client.frame().await;
    sim.gateway_fault(GatewayFault::Zombie { shard: None });
    let storm = StormSpec { events_per_s: 100_000, seconds: 0.2, ..StormSpec::default() };
    let report = sim.storm(storm).await;
    assert!(report.sent <= 100);
    assert_eq!(report.sent + report.behind, 20_000);
    assert_eq!(sim.gateway_score().slow_readers, 0);
}
