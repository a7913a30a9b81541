//! The metrics of the real program.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use guildhall::metrics;
use guildhall_actors::telemetry::MetricType;
use guildhall_sim::{FireSpec, Sim, SimConfig};
use guildhall_testkit::{
    postgres::PostgresServer,
    program::{Guildhall, TEST_TIMEOUT, get, request},
};

use super::{metric_of, promql};

const KEY: &str = "gh_test_0123456789";

const HANDLERS: &str = r#"
[[handlers]]
name = "hello"
on = "interaction.command.hello"
reply = "Hello."

[[handlers]]
name = "broken"
on = "interaction.command.broken"
reply = "{data.nowhere}"
"#;

/// Series of alerts must exist before anything has happened: a series that appears with its first increase shows no
/// increase.
const INITIAL_SERIES: [&str; 18] = [
    "guildhall_breaker_state{key=\"discord\"} 0",
    "guildhall_build_info",
    "guildhall_dead_events 0",
    "guildhall_dead_letters 0",
    "guildhall_discord_429_global_total 0",
    "guildhall_events_received_total",
    "guildhall_gateway_sequence_lag{shard=\"0\"}",
    "guildhall_gateway_shard_connected{shard=\"0\"} 1",
    "guildhall_invalid_requests_used_ratio 0",
    "guildhall_oldest_operation_seconds{state=\"delayed\"} 0",
    "guildhall_queue_depth{queue=\"events\"}",
    "guildhall_queue_depth{queue=\"interactions\"}",
    "guildhall_queue_depth{queue=\"queued\"} 0",
    "guildhall_ready{part=\"store\"} 1",
    "guildhall_store_up 1",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
];

/// Reads the metrics until they have all of these lines.
pub(crate) async fn wait_for_metrics(address: std::net::SocketAddr, lines: &[&str]) -> String {
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let text = tokio::task::block_in_place(|| get(address, "/metrics")).body;
        let missing = lines.iter().find(|line| !text.lines().any(|sample| sample.starts_with(**line)));
        let Some(missing) = missing else { return text };
        assert!(Instant::now() < deadline, "timed out waiting for {missing}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_described_and_alert_series_exist_at_start() {
    let sim = Sim::start(SimConfig { guilds: 1, members: 1, channels: 1, ..SimConfig::default() }).await.unwrap();
    let daemon = Guildhall::serve(&sim.gateway_url())
        .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
        .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
        .env("GUILDHALL__API__ADMIN_KEY", KEY)
        .file("handlers.toml", HANDLERS)
        .env("GUILDHALL__HANDLERS__FILE", "handlers.toml")
        .spawn();
    let address = daemon.address();
    daemon.wait_for_log_line("\"part is ready\",\"part\":\"gateway\"");
    wait_for_metrics(address, &INITIAL_SERIES).await;

    // One that succeeds, one that fails, and an operation that Discord refuses.
    let guild = sim.guilds()[0];
    sim.fire(FireSpec::command(guild, "hello")).await.unwrap();
    sim.fire(FireSpec::command(guild, "broken")).await.unwrap();
    let body = r#"{"kind": "delete_message", "payload": {"channel_id": "1", "message_id": "1"}}"#;
    let length = body.len();
    let submit = format!(
        "POST /v1/guilds/{guild}/operations HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    assert_eq!(tokio::task::block_in_place(|| request(address, &submit)).status, 202);
    let expected = [
        // The response, and the text of the one that failed.
        "guildhall_operations_completed_total{kind=\"edit_original\"} 2",
        "guildhall_interaction_fallbacks_total{reason=\"failed\"} 1",
        "guildhall_interaction_fallback_edits_total{outcome=\"sent\"} 1",
        "guildhall_events_handled_total{handler=\"hello\"",
        "guildhall_events_dead_total{handler=\"broken\"} 1",
        "guildhall_dead_events 1",
    ];
    let text = wait_for_metrics(address, &expected).await;
    assert_all_described(&text);
    assert_promtool_accepts(&text);
    daemon.signal("TERM");
    assert_eq!(daemon.wait_for_exit().code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_events_are_counted_and_are_the_lag() {
    // It accepts connections, and never responds.
    let brain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let handlers = format!(
        "[[handlers]]\nname = \"brain\"\non = [\"guild.create\", \"interaction.command.ask\"]\n\
         [handlers.webhook]\nurl = \"http://{}/\"\nsecrets = [\"whsec_ZXhhbXBsZS1vbmx5LW1ha2UteW91ci1vd24tc2VjcmV0\"]\n\
         allow_private = true\n",
        brain.local_addr().unwrap()
    );
    let sim = Sim::start(SimConfig { guilds: 3, members: 1, channels: 1, ..SimConfig::default() }).await.unwrap();
    let daemon = Guildhall::serve(&sim.gateway_url())
        .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
        .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
        .file("handlers.toml", &handlers)
        .env("GUILDHALL__HANDLERS__FILE", "handlers.toml")
        // Nothing goes to the inbox meanwhile.
        .env("GUILDHALL__HANDLERS__SLOW_MS", "600000")
        .env("GUILDHALL__HANDLERS__TIMEOUT_MS", "600000")
        .spawn();
    let address = daemon.address();
    daemon.wait_for_log_line("\"part is ready\",\"part\":\"gateway\"");
    sim.fire(FireSpec::command(sim.guilds()[0], "ask")).await.unwrap();
    let expected = [
        "guildhall_queue_depth{queue=\"events\"} 3",
        "guildhall_queue_depth{queue=\"interactions\"} 1",
        "guildhall_inbox_events 0",
    ];
    let text = wait_for_metrics(address, &expected).await;
    // READY is confirmed, and nothing after it. Events without a handler count, too.
    let lag = text.lines().find_map(|line| line.strip_prefix("guildhall_gateway_sequence_lag{shard=\"0\"} "));
    let lag: u64 = lag.unwrap().parse().unwrap();
    assert!((4..20).contains(&lag), "{lag}");
}

#[tokio::test(flavor = "multi_thread")]
async fn store_metrics_follow_an_outage() {
    let mut server = tokio::task::block_in_place(PostgresServer::start);
    let url = server.create_database().await;
    let sim = Sim::start(SimConfig { guilds: 1, members: 1, channels: 1, ..SimConfig::default() }).await.unwrap();
    let daemon = Guildhall::serve(&sim.gateway_url())
        .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
        .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
        .env("GUILDHALL__STORE__URL", &url)
        .env("GUILDHALL__STORE__TIMEOUT_MS", "1000")
        .env("GUILDHALL__OPERATIONS__HEARTBEAT_MS", "200")
        .spawn();
    let address = daemon.address();
    daemon.wait_for_log_line("\"part is ready\",\"part\":\"store\"");
    wait_for_metrics(address, &["guildhall_store_up 1", "guildhall_lease_held 1"]).await;
    tokio::task::block_in_place(|| server.kill());
    wait_for_metrics(address, &["guildhall_store_up 0", "guildhall_ready{part=\"store\"} 0"]).await;
    tokio::task::block_in_place(|| server.start_again());
    wait_for_metrics(address, &["guildhall_store_up 1", "guildhall_ready{part=\"store\"} 1"]).await;
}

/// Asserts that every sample is of a described metric, of its type, and with no other labels.
fn assert_all_described(text: &str) {
    let types: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    for (name, kind) in &types {
        let metric = metrics::all().find(|metric| metric.name == *name);
        let metric = metric.unwrap_or_else(|| panic!("{name} is exported, but not described"));
        assert_eq!(metric.kind.name(), *kind, "{name}");
        assert!(text.lines().any(|line| line == format!("# HELP {name} {}", metric.help)), "{name} has no help text");
    }
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (series, _value) = line.rsplit_once(' ').unwrap();
        let names = promql::parse_expression(series);
        let name = names.metrics.first().unwrap();
        let metric = metric_of(name).unwrap_or_else(|| panic!("{name} is exported, but not described"));
        let labels: BTreeSet<&str> = names.matched.iter().map(|(_, label)| label.as_str()).collect();
        let is_le = |label: &str| metric.kind == MetricType::Histogram && label == "le";
        let undescribed = labels.iter().find(|label| !(metric.labels().contains(label) || is_le(label)));
        assert_eq!(undescribed, None, "a label that is not described, in {line}");
    }
}

fn assert_promtool_accepts(text: &str) {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed: scripts/test installs it, as `prometheus` of Debian");
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let text_output = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text_output.is_empty(), "{text_output}");
}
