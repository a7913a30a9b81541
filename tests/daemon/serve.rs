//! The daemon as a process: how it starts, how it responds, and all ways in which it ends.

use std::{net::TcpListener, sync::Arc};

use guildhall_sim::{Sim, SimConfig, SimHandle};
use guildhall_testkit::{
    gateway::{FakeGateway, GatewayBehavior, ReceivedFrame},
    program::{CANARY, Guildhall, RunningGuildhall, get, request, text},
};
use tokio::sync::Notify;

fn wait_until_ready(daemon: &RunningGuildhall) {
    daemon.wait_for_log_line("\"part is ready\",\"part\":\"gateway\"");
}

#[tokio::test(flavor = "multi_thread")]
async fn daemon_is_ready_when_all_shards_are_connected() {
    let gateway = FakeGateway::start(GatewayBehavior::Normal).await;
    let daemon = Guildhall::serve(&gateway.url)
        .env("GUILDHALL__GATEWAY__SHARDS", "2")
        .env("GUILDHALL__GATEWAY__MAX_CONCURRENCY", "2")
        .env("GUILDHALL__LOG__FILTER", "trace")
        .spawn();
    let address = daemon.address();
    let mut shards: Vec<_> = (0..2)
        .map(|_| match gateway.next_frame() {
            ReceivedFrame::Identify(identify) => {
                assert_eq!(identify["token"], format!("Bot {CANARY}"));
                identify["shard"].to_string()
            }
            other => panic!("{other:?} before both have identified"),
        })
        .collect();
    shards.sort();
    assert_eq!(shards, ["[0,2]", "[1,2]"]);
    let started = daemon.wait_for_log_line("\"guildhall started\"");
    for part in [
        format!("\"version\":\"{}\"", env!("CARGO_PKG_VERSION")),
        "\"parts\":\"api,events,gate,gateway,operations,store\"".to_owned(),
        "\"store\":\"sqlite\"".to_owned(),
        "\"handlers\":0".to_owned(),
        "\"shards\":\"0-1 of 2\"".to_owned(),
    ] {
        assert!(started.contains(&part), "no {part} in {started}");
    }
    wait_until_ready(&daemon);

    for path in ["/livez", "/readyz", "/startupz"] {
        assert_eq!(get(address, path).status, 200, "{path}");
    }
    assert_eq!(get(address, "/readyz").json()["parts"]["gateway"]["state"], "ready");

    // The last frame of each shard; after it, all have been counted.
    daemon.wait_for_log_lines("\"kind\":\"other\"", 2);
    let metrics = get(address, "/metrics");
    assert!(metrics.head.contains("content-type: text/plain; version=0.0.4"), "{}", metrics.head);
    let version = format!("guildhall_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
    for line in [
        version.as_str(),
        "guildhall_ready{part=\"gateway\"} 1",
        "guildhall_gateway_events_total{type=\"gateway.ready\"} 2",
        "guildhall_gateway_events_total{type=\"guild.create\"} 2",
        "guildhall_gateway_events_total{type=\"other\"} 2",
        "guildhall_gateway_shard_connected{shard=\"0\"} 1",
        "guildhall_gateway_shard_connected{shard=\"1\"} 1",
        "guildhall_gateway_sessions_total{how=\"ready\"} 2",
        "process_start_time_seconds ",
    ] {
        assert!(metrics.body.lines().any(|l| l.starts_with(line)), "no {line} in\n{}", metrics.body);
    }
    if cfg!(target_os = "linux") {
        for name in ["process_resident_memory_bytes ", "process_open_fds ", "process_max_fds "] {
            assert!(metrics.body.lines().any(|l| l.starts_with(name)), "no {name} in\n{}", metrics.body);
        }
    }
    daemon.signal("TERM");
    assert_eq!(daemon.wait_for_exit().code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn daemon_is_live_but_not_ready_while_the_gateway_is_silent() {
    // Accepts connections, and never sends anything.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let daemon = Guildhall::serve(&format!("ws://{}", silent.local_addr().unwrap())).spawn();
    let address = daemon.address();
    assert_eq!(get(address, "/livez").status, 200);
    daemon.wait_for_log_line("0 of 1 shards are connected");
    let response = get(address, "/readyz");
    assert_eq!(response.status, 503);
    assert_eq!(response.json()["parts"]["gateway"]["reason"], "0 of 1 shards are connected");
    assert_eq!(get(address, "/startupz").status, 503);

    let url = format!("http://{address}");
    let alive = Guildhall::new(&["healthcheck", "--live", "--url", &url]).output();
    assert_eq!((alive.status.code(), text(&alive.stdout).as_str()), (Some(0), "alive\n"));
    let not_ready = Guildhall::new(&["healthcheck", "--url", &url]).output();
    assert_eq!(not_ready.status.code(), Some(1));
    let message = text(&not_ready.stderr);
    assert!(message.contains("503; gateway: 0 of 1 shards are connected") && message.lines().count() == 1, "{message}");

    daemon.signal("INT");
    assert_eq!(daemon.wait_for_exit().code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn signal_closes_shards_resumably_and_ends_readiness() {
    for signal in ["TERM", "INT"] {
        let close_allowed = Arc::new(Notify::new());
        let gateway = FakeGateway::start(GatewayBehavior::SlowClose(Arc::clone(&close_allowed))).await;
        let daemon = Guildhall::serve(&gateway.url).spawn();
        let address = daemon.address();
        wait_until_ready(&daemon);
        assert!(matches!(gateway.next_frame(), ReceivedFrame::Identify(_)));

        daemon.signal(signal);
        assert!(matches!(gateway.next_frame(), ReceivedFrame::Closed(4000)), "any other code may end the session");
        let meanwhile = get(address, "/readyz");
        assert_eq!((meanwhile.status, &meanwhile.json()["stopping"]), (503, &true.into()));
        assert_eq!(get(address, "/livez").status, 200);
        close_allowed.notify_one();

        let exited = daemon.wait_for_exit();
        assert_eq!(exited.code, Some(0), "{}", exited.stderr);
        for line in ["\"resumable\":true", "\"shut down\""] {
            assert!(exited.stderr.contains(line), "no {line} in {}", exited.stderr);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn second_signal_ends_it_at_once() {
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let gateway = FakeGateway::start(GatewayBehavior::SlowClose(Arc::default())).await;
        let daemon = Guildhall::serve(&gateway.url).env("GUILDHALL__SHUTDOWN__TIMEOUT_MS", "600000").spawn();
        wait_until_ready(&daemon);
        daemon.signal("TERM");
        daemon.wait_for_log_line("\"shutting down\"");
        daemon.signal(signal);
        assert_eq!(daemon.wait_for_exit().code, Some(code));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_timeout_names_what_is_not_finished() {
    let gateway = FakeGateway::start(GatewayBehavior::SlowClose(Arc::default())).await;
    let daemon = Guildhall::serve(&gateway.url).env("GUILDHALL__SHUTDOWN__TIMEOUT_MS", "50").spawn();
    wait_until_ready(&daemon);
    daemon.signal("TERM");
    let exited = daemon.wait_for_exit();
    assert_eq!(exited.code, Some(1), "{}", exited.stderr);
    let last = exited.stderr.lines().last().unwrap();
    assert!(last.starts_with("error: ") && last.contains("timeout_ms = 50; not finished: shards 0"), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fatal_close_code_ends_it_with_advice() {
    for (code, advice) in [
        (4004, "invalid token"),
        (4010, "check gateway.shards and gateway.shard_range"),
        (4011, "raise gateway.shards"),
        (4012, "update Guildhall"),
        (4013, "check gateway.intents (guilds, guild_members)"),
        (4014, "requested privileged intents (guild_members); enable them"),
    ] {
        let gateway = FakeGateway::start(GatewayBehavior::CloseOnIdentify(code, String::new())).await;
        let daemon = Guildhall::serve(&gateway.url).env("GUILDHALL__GATEWAY__INTENTS", "guilds,guild_members");
        let exited = daemon.spawn().wait_for_exit();
        assert_eq!(exited.code, Some(1), "{}", exited.stderr);
        let last = exited.stderr.lines().last().unwrap();
        assert!(last.starts_with(&format!("error: Discord closed shard 0 with {code}")), "{last}");
        assert!(last.contains(advice), "{last}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnected_shard_resumes_its_session() {
    let gateway = FakeGateway::start(GatewayBehavior::DropFirstSession).await;
    let daemon = Guildhall::serve(&gateway.url).spawn();
    let address = daemon.address();
    assert!(matches!(gateway.next_frame(), ReceivedFrame::Identify(_)));
    daemon.wait_for_log_line("\"shard disconnected\"");
    // Responses to closes are recorded as closes too.
    let resume = loop {
        match gateway.next_frame() {
            ReceivedFrame::Resume(resume) => break resume,
            ReceivedFrame::Closed(4000) => {}
            other => panic!("{other:?} instead of a RESUME"),
        }
    };
    assert_eq!((resume["session_id"].as_str(), resume["seq"].as_u64()), (Some("a-session"), Some(3)));
    wait_until_ready(&daemon);
    assert_eq!(get(address, "/readyz").status, 200);
    let metrics = get(address, "/metrics").body;
    assert!(metrics.contains("guildhall_gateway_sessions_total{how=\"resumed\"} 1"), "{metrics}");
    daemon.signal("TERM");
    assert_eq!(daemon.wait_for_exit().code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn unanswered_identify_is_sent_again() {
    let gateway = FakeGateway::start(GatewayBehavior::IgnoreFirstIdentify).await;
    let daemon = Guildhall::serve(&gateway.url).env("GUILDHALL__GATEWAY__HELLO_TIMEOUT_MS", "300").spawn();
    let address = daemon.address();
    assert!(matches!(gateway.next_frame(), ReceivedFrame::Identify(_)));
    assert!(matches!(gateway.next_frame(), ReceivedFrame::Identify(_)));
    wait_until_ready(&daemon);
    let metrics = get(address, "/metrics").body;
    assert!(metrics.contains("guildhall_gateway_reconnects_total{why=\"silent\"} 1"), "{metrics}");
    daemon.signal("TERM");
    assert_eq!(daemon.wait_for_exit().code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn shard_range_and_presence_are_applied() {
    let gateway = FakeGateway::start(GatewayBehavior::Normal).await;
    let daemon = Guildhall::serve(&gateway.url)
        .env("GUILDHALL__GATEWAY__SHARDS", "8")
        .env("GUILDHALL__GATEWAY__SHARD_RANGE", "5-6")
        .env("GUILDHALL__GATEWAY__MAX_CONCURRENCY", "8")
        .env("GUILDHALL__GATEWAY__THREADS", "2")
        .env("GUILDHALL__GATEWAY__PRESENCE_STATUS", "idle")
        .env("GUILDHALL__GATEWAY__ACTIVITY_TYPE", "watching")
        .env("GUILDHALL__GATEWAY__ACTIVITY_NAME", "the gate")
        .spawn();
    let mut shards = Vec::new();
    for _ in 0..2 {
        let ReceivedFrame::Identify(identify) = gateway.next_frame() else { panic!("expected IDENTIFY") };
        assert_eq!(identify["presence"]["status"], "idle");
        let activity = &identify["presence"]["activities"][0];
        assert_eq!((&activity["type"], &activity["name"]), (&3.into(), &"the gate".into()));
        shards.push(identify["shard"].to_string());
    }
    shards.sort();
    assert_eq!(shards, ["[5,8]", "[6,8]"]);
    wait_until_ready(&daemon);
    daemon.signal("TERM");
    assert_eq!(daemon.wait_for_exit().code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_frames_are_skipped_and_counted() {
    let gateway = FakeGateway::start(GatewayBehavior::EchoToken).await;
    let daemon = Guildhall::serve(&gateway.url).spawn();
    let address = daemon.address();
    daemon.wait_for_log_line("\"how\":\"resumed\"");
    let metrics = get(address, "/metrics").body;
    assert!(metrics.contains("guildhall_gateway_malformed_total 2"), "{metrics}");
    daemon.signal("TERM");
    assert_eq!(daemon.wait_for_exit().code, Some(0));
}

#[test]
fn port_in_use_is_reported_in_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = Guildhall::serve("ws://127.0.0.1:9").env("GUILDHALL__API__BIND", &address).output();
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    assert!(message.lines().count() == 1 && message.contains(&address) && message.contains("--api-bind"), "{message}");
}

#[test]
fn listener_limits_requests_of_clients() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let daemon = Guildhall::serve(&format!("ws://{}", silent.local_addr().unwrap())).spawn();
    let address = daemon.address();

    let large = request(address, "POST /readyz HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000000\r\n\r\n");
    assert_eq!(large.status, 413);
    assert!(large.head.contains("application/problem+json"), "{}", large.head);

    let post = request(address, "POST /readyz HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    assert_eq!(post.status, 405);
    assert!(post.head.contains("allow: get, head"), "{}", post.head);

    let elsewhere = get(address, "/nothing");
    assert_eq!((elsewhere.status, &elsewhere.json()["type"]), (404, &"urn:guildhall:problem:not-found".into()));
    let unknown = get(address, "/v1/nothing");
    assert_eq!((unknown.status, &unknown.json()["type"]), (401, &"urn:guildhall:problem:unauthorized".into()));

    // A body that is not needed is not waited for, however it is sent.
    for length in ["Transfer-Encoding: chunked", "Content-Length: 100"] {
        let endless = request(address, &format!("POST /readyz HTTP/1.1\r\nHost: test\r\n{length}\r\n\r\n5\r\nhello"));
        assert_eq!(endless.status, 405, "{length}");
    }

    // A client that never finishes its request gets a 408, and its connection is closed.
    let slow = request(address, "GET /livez HTTP/1.1\r\nHost: te");
    assert_eq!(slow.status, 408);
    daemon.signal("TERM");
    assert_eq!(daemon.wait_for_exit().code, Some(0));
}

/// `serve` against a complete simulated Discord, without gateway settings.
fn serve_with_sim(sim: &SimHandle, token: &str) -> Guildhall {
    Guildhall::serve("").env("GUILDHALL__DISCORD__TOKEN", token).env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
}

#[tokio::test(flavor = "multi_thread")]
async fn gateway_url_and_shard_count_come_from_discord() {
    let mut config = SimConfig { require_user_agent: true, ..SimConfig::default() };
    config.gateway.shards = 2;
    config.gateway.max_concurrency = 2;
    let sim = Sim::start(config).await.unwrap();
    let daemon = serve_with_sim(&sim, "sim-bot-token").spawn();
    let address = daemon.address();
    wait_until_ready(&daemon);
    let score = sim.score();
    assert_eq!((score.gateway.identifies, score.invalid_user_agents), (2, 0));
    assert_eq!(score.routes["GET /gateway/bot"].requests, 1);
    let metrics = get(address, "/metrics").body;
    for line in [
        // Calls for the gateway URL, and for the bot's id, which this token does not contain.
        "guildhall_token_bucket_acquired_total{lane=\"interactive\"} 2",
        "guildhall_rest_request_seconds_count{route=\"GET /gateway/bot\",status_class=\"2xx\"} 1",
        "guildhall_invalid_requests_used_ratio 0",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sim_flag_replaces_discord_its_gateway_and_a_real_token() {
    let sim = Sim::start(SimConfig::default()).await.unwrap();
    let serve = || Guildhall::new(&["serve", "--sim", &sim.url()]).env("GUILDHALL__API__BIND", "127.0.0.1:0");
    let real = serve()
        .env("GUILDHALL__DISCORD__TOKEN", CANARY)
        .env("GUILDHALL__DISCORD__GATEWAY_URL", "ws://127.0.0.1:1")
        .env("GUILDHALL__LOG__FORMAT", "json")
        .spawn();
    wait_until_ready(&real);
    let score = sim.score();
    assert_eq!((score.gateway.identifies, score.invalid_requests), (1, 0), "the simulator's own token was used");
    real.signal("TERM");
    assert_eq!(real.wait_for_exit().code, Some(0));

    let own = serve().env("GUILDHALL__DISCORD__TOKEN", "sim-unknown").spawn().wait_for_exit();
    assert!(own.stderr.contains("Discord refused the token (401)"), "{}", own.stderr);
}

#[test]
fn token_of_a_simulator_is_not_sent_to_discord() {
    let exited = Guildhall::new(&["serve"]).env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token").output();
    let error = text(&exited.stderr);
    assert_eq!(exited.status.code(), Some(1));
    assert!(error.lines().count() == 1 && error.contains("add --sim http://127.0.0.1:PORT"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_token_ends_it_after_one_call() {
    let sim = Sim::start(SimConfig::default()).await.unwrap();
    let exited = serve_with_sim(&sim, "not-the-token").spawn().wait_for_exit();
    assert_eq!(exited.code, Some(1));
    assert!(exited.stderr.contains("Discord refused the token (401)"), "{}", exited.stderr);
    assert_eq!((sim.score().requests, sim.score().invalid_requests), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn too_few_session_starts_prevent_a_start() {
    let mut config = SimConfig::default();
    config.gateway.session_starts = 1;
    config.gateway.shards = 2;
    let sim = Sim::start(config).await.unwrap();
    let exited = serve_with_sim(&sim, "sim-bot-token").spawn().wait_for_exit();
    assert_eq!(exited.code, Some(1));
    assert!(
        exited.stderr.contains("1 more session starts") && exited.stderr.contains("2 are needed"),
        "{}",
        exited.stderr
    );
    assert_eq!(sim.score().gateway.identifies, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn daemon_is_live_and_not_ready_while_discord_is_unreachable() {
    let closed_listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/api/v10", closed_listener.local_addr().unwrap());
    drop(closed_listener);
    let daemon = Guildhall::serve("").env("GUILDHALL__DISCORD__API_URL", &url).spawn();
    let address = daemon.address();
    daemon.wait_for_log_line("cannot get the gateway URL");
    let response = get(address, "/readyz");
    assert_eq!((response.status, get(address, "/livez").status), (503, 200));
    let reason = response.json()["parts"]["gateway"]["reason"].to_string();
    assert!(reason.contains("cannot connect"), "{reason}");
    daemon.signal("TERM");
    assert_eq!(daemon.wait_for_exit().code, Some(0));
}
