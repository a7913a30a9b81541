//! The daemon as a process: how it starts, how it responds, and all ways in which it ends.

#[path = "serve_reload/mod.rs"]
mod reload;
mod support;

use std::{net::TcpListener, sync::Arc};

use guildhall_sim::{Sim, SimConfig, SimHandle};
use support::{
    CANARY, Guildhall, Running,
    gateway::{Gateway, Manner, Seen},
    get, request, text,
};
use tokio::sync::Notify;

fn ready(daemon: &Running) {
    daemon.line_with("\"part is ready\",\"part\":\"gateway\"");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_becomes_ready_when_all_shards_are_connected_and_counts_what_they_receive() {
    let gateway = Gateway::start(Manner::Kind).await;
    let daemon = Guildhall::serve(&gateway.url)
        .env("GUILDHALL__GATEWAY__SHARDS", "2")
        .env("GUILDHALL__GATEWAY__MAX_CONCURRENCY", "2")
        .env("GUILDHALL__LOG__FILTER", "trace")
        .spawn();
    let address = daemon.address();
    let mut shards: Vec<_> = (0..2)
        .map(|_| match gateway.seen() {
            Seen::Identify(identify) => {
                assert_eq!(identify["token"], format!("Bot {CANARY}"));
                identify["shard"].to_string()
            }
            other => panic!("{other:?} before both have identified"),
        })
        .collect();
    shards.sort();
    assert_eq!(shards, ["[0,2]", "[1,2]"]);
    ready(&daemon);

    for path in ["/livez", "/readyz", "/startupz"] {
        assert_eq!(get(address, path).status, 200, "{path}");
    }
    assert_eq!(get(address, "/readyz").json()["parts"]["gateway"]["state"], "ready");

    // The last frame of each shard; after it, all have been counted.
    daemon.lines_with("\"kind\":\"other\"", 2);
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
    assert_eq!(daemon.end().code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_gateway_is_silent_it_lives_but_is_not_ready() {
    // Accepts connections, and never sends anything.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let daemon = Guildhall::serve(&format!("ws://{}", silent.local_addr().unwrap())).spawn();
    let address = daemon.address();
    assert_eq!(get(address, "/livez").status, 200);
    daemon.line_with("0 of 1 shards are connected");
    let answer = get(address, "/readyz");
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["parts"]["gateway"]["reason"], "0 of 1 shards are connected");
    assert_eq!(get(address, "/startupz").status, 503);

    let url = format!("http://{address}");
    let alive = Guildhall::new(&["healthcheck", "--live", "--url", &url]).output();
    assert_eq!((alive.status.code(), text(&alive.stdout).as_str()), (Some(0), "alive\n"));
    let not_ready = Guildhall::new(&["healthcheck", "--url", &url]).output();
    assert_eq!(not_ready.status.code(), Some(1));
    let says = text(&not_ready.stderr);
    assert!(says.contains("503; gateway: 0 of 1 shards are connected") && says.lines().count() == 1, "{says}");

    daemon.signal("INT");
    assert_eq!(daemon.end().code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_closes_every_shard_so_that_it_can_resume_and_nothing_is_ready_meanwhile() {
    for signal in ["TERM", "INT"] {
        let answer = Arc::new(Notify::new());
        let gateway = Gateway::start(Manner::Slow(Arc::clone(&answer))).await;
        let daemon = Guildhall::serve(&gateway.url).spawn();
        let address = daemon.address();
        ready(&daemon);
        assert!(matches!(gateway.seen(), Seen::Identify(_)));

        daemon.signal(signal);
        assert!(matches!(gateway.seen(), Seen::Closed(4000)), "any other code may end the session");
        let meanwhile = get(address, "/readyz");
        assert_eq!((meanwhile.status, &meanwhile.json()["stopping"]), (503, &true.into()));
        assert_eq!(get(address, "/livez").status, 200);
        answer.notify_one();

        let ended = daemon.end();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        for line in ["\"resumable\":true", "\"shut down\""] {
            assert!(ended.stderr.contains(line), "no {line} in {}", ended.stderr);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_it_at_once() {
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let gateway = Gateway::start(Manner::Slow(Arc::default())).await;
        let daemon = Guildhall::serve(&gateway.url).env("GUILDHALL__SHUTDOWN__TIMEOUT_MS", "600000").spawn();
        ready(&daemon);
        daemon.signal("TERM");
        daemon.line_with("\"shutting down\"");
        daemon.signal(signal);
        assert_eq!(daemon.end().code, Some(code));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_past_its_time_fails_and_names_what_had_not_finished() {
    let gateway = Gateway::start(Manner::Slow(Arc::default())).await;
    let daemon = Guildhall::serve(&gateway.url).env("GUILDHALL__SHUTDOWN__TIMEOUT_MS", "50").spawn();
    ready(&daemon);
    daemon.signal("TERM");
    let ended = daemon.end();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let last = ended.stderr.lines().last().unwrap();
    assert!(last.starts_with("error: ") && last.contains("timeout_ms = 50; not finished: shards 0"), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_that_cannot_be_retried_ends_it_with_advice() {
    for (code, advice) in [
        (4004, "invalid token"),
        (4010, "check gateway.shards and gateway.shard_range"),
        (4011, "raise gateway.shards"),
        (4012, "update Guildhall"),
        (4013, "check gateway.intents (guilds, guild_members)"),
        (4014, "requested privileged intents (guild_members); enable them"),
    ] {
        let gateway = Gateway::start(Manner::Close(code, String::new())).await;
        let daemon = Guildhall::serve(&gateway.url).env("GUILDHALL__GATEWAY__INTENTS", "guilds,guild_members");
        let ended = daemon.spawn().end();
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        let last = ended.stderr.lines().last().unwrap();
        assert!(last.starts_with(&format!("error: Discord closed shard 0 with {code}")), "{last}");
        assert!(last.contains(advice), "{last}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_lost_its_connection_resumes_where_it_was() {
    let gateway = Gateway::start(Manner::Drop).await;
    let daemon = Guildhall::serve(&gateway.url).spawn();
    let address = daemon.address();
    assert!(matches!(gateway.seen(), Seen::Identify(_)));
    daemon.line_with("\"shard disconnected\"");
    // Responses to closes are recorded as closes too.
    let resume = loop {
        match gateway.seen() {
            Seen::Resume(resume) => break resume,
            Seen::Closed(4000) => {}
            other => panic!("{other:?} instead of a RESUME"),
        }
    };
    assert_eq!((resume["session_id"].as_str(), resume["seq"].as_u64()), (Some("a-session"), Some(3)));
    ready(&daemon);
    assert_eq!(get(address, "/readyz").status, 200);
    let metrics = get(address, "/metrics").body;
    assert!(metrics.contains("guildhall_gateway_sessions_total{how=\"resumed\"} 1"), "{metrics}");
    daemon.signal("TERM");
    assert_eq!(daemon.end().code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_identify_that_nobody_answers_is_sent_again() {
    let gateway = Gateway::start(Manner::Mute).await;
    let daemon = Guildhall::serve(&gateway.url).env("GUILDHALL__GATEWAY__HELLO_TIMEOUT_MS", "300").spawn();
    let address = daemon.address();
    assert!(matches!(gateway.seen(), Seen::Identify(_)));
    assert!(matches!(gateway.seen(), Seen::Identify(_)));
    ready(&daemon);
    let metrics = get(address, "/metrics").body;
    assert!(metrics.contains("guildhall_gateway_reconnects_total{why=\"silent\"} 1"), "{metrics}");
    daemon.signal("TERM");
    assert_eq!(daemon.end().code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_runs_its_part_of_the_shards_and_shows_itself_as_it_is_told_to() {
    let gateway = Gateway::start(Manner::Kind).await;
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
        let Seen::Identify(identify) = gateway.seen() else { panic!("expected IDENTIFY") };
        assert_eq!(identify["presence"]["status"], "idle");
        let activity = &identify["presence"]["activities"][0];
        assert_eq!((&activity["type"], &activity["name"]), (&3.into(), &"the gate".into()));
        shards.push(identify["shard"].to_string());
    }
    shards.sort();
    assert_eq!(shards, ["[5,8]", "[6,8]"]);
    ready(&daemon);
    daemon.signal("TERM");
    assert_eq!(daemon.end().code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_that_cannot_be_read_are_skipped_and_counted() {
    let gateway = Gateway::start(Manner::Echo).await;
    let daemon = Guildhall::serve(&gateway.url).spawn();
    let address = daemon.address();
    daemon.line_with("\"how\":\"resumed\"");
    let metrics = get(address, "/metrics").body;
    assert!(metrics.contains("guildhall_gateway_malformed_total 2"), "{metrics}");
    daemon.signal("TERM");
    assert_eq!(daemon.end().code, Some(0));
}

#[test]
fn a_port_that_is_taken_is_one_clear_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = Guildhall::serve("ws://127.0.0.1:9").env("GUILDHALL__API__BIND", &address).output();
    assert_eq!(output.status.code(), Some(1));
    let says = text(&output.stderr);
    assert!(says.lines().count() == 1 && says.contains(&address) && says.contains("--api-bind"), "{says}");
}

#[test]
fn the_listener_bounds_what_clients_may_do() {
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
    assert_eq!(daemon.end().code, Some(0));
}

/// `serve` against a complete simulated Discord, without gateway settings.
fn serve_on(sim: &SimHandle, token: &str) -> Guildhall {
    Guildhall::serve("").env("GUILDHALL__DISCORD__TOKEN", token).env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
}

#[tokio::test(flavor = "multi_thread")]
async fn it_asks_discord_where_the_gateway_is_and_how_many_shards_it_wants() {
    let mut config = SimConfig::default();
    config.gateway.shards = 2;
    config.gateway.max_concurrency = 2;
    let sim = Sim::start(config).await.unwrap();
    let daemon = serve_on(&sim, "sim-bot-token").spawn();
    let address = daemon.address();
    ready(&daemon);
    let score = sim.score();
    assert_eq!(score.gateway.identifies, 2);
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
async fn a_token_that_discord_refuses_ends_it_after_one_call() {
    let sim = Sim::start(SimConfig::default()).await.unwrap();
    let ended = serve_on(&sim, "not-the-token").spawn().end();
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("Discord refused the token (401)"), "{}", ended.stderr);
    assert_eq!((sim.score().requests, sim.score().invalid_requests), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_session_starts_left_nothing_is_started() {
    let mut config = SimConfig::default();
    config.gateway.session_starts = 1;
    config.gateway.shards = 2;
    let sim = Sim::start(config).await.unwrap();
    let ended = serve_on(&sim, "sim-bot-token").spawn().end();
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.stderr.contains("1 more session starts") && ended.stderr.contains("2 are needed"),
        "{}",
        ended.stderr
    );
    assert_eq!(sim.score().gateway.identifies, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_discord_does_not_answer_it_lives_says_why_it_is_not_ready_and_ends_on_a_signal() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/api/v10", nobody.local_addr().unwrap());
    drop(nobody);
    let daemon = Guildhall::serve("").env("GUILDHALL__DISCORD__API_URL", &url).spawn();
    let address = daemon.address();
    daemon.line_with("cannot get the gateway URL");
    let answer = get(address, "/readyz");
    assert_eq!((answer.status, get(address, "/livez").status), (503, 200));
    let reason = answer.json()["parts"]["gateway"]["reason"].to_string();
    assert!(reason.contains("cannot connect"), "{reason}");
    daemon.signal("TERM");
    assert_eq!(daemon.end().code, Some(0));
}
