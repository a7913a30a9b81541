//! What never reaches Discord, over raw sockets.

use guildhall_testkit::program::{Guildhall, HttpResponse, text};
use tokio::task::block_in_place;

use crate::fixture::{Call, EgressFixture, bot, header, open, read_all, read_until};

/// Asserts that Guildhall answered itself, with this status and reason.
fn assert_own(response: &HttpResponse, status: u16, why: &str, about: &str) {
    assert_eq!(response.status, status, "{about}: {} {}", response.head, response.body);
    assert_eq!(header(response, "x-guildhall-why"), Some(why), "{about}: {}", response.head);
    assert_eq!(header(response, "x-guildhall-sent"), Some("0"), "{about}: {}", response.head);
    assert_eq!(header(response, "generated-by-proxy"), Some("true"), "{about}: {}", response.head);
    assert!(response.json()["message"].is_string() && response.json()["code"].is_u64(), "{about}: {}", response.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ambiguous_and_foreign_targets_are_refused_with_a_sentence() {
    let fixture = EgressFixture::start().await;
    let before = fixture.sim.score().requests;
    for (path, why) in [
        ("/api/v10/guilds/../users/@me", "path"),
        ("/api/v10/guilds/./1", "path"),
        ("/api/v10/guilds/%2e%2e/users/@me", "path"),
        ("/api/v10/guilds/.%2E/users/@me", "path"),
        ("/api/v10/guilds/%252e%252e/1", "path"),
        ("/api/v10/guilds%2f1", "path"),
        ("/api/v10/guilds/1%5croles", "path"),
        ("/api/v10/guilds/1%252Froles", "path"),
        ("/api/v10//guilds/1", "path"),
        ("/api/v10/guilds//1", "path"),
        ("/api/v10/guilds/1/", "path"),
        ("/api/v10", "path"),
        ("/api//users/@me", "path"),
        ("/api/v8/users/@me", "target"),
        ("/api", "target"),
        ("/api2/v10/users/@me", "target"),
    ] {
        let response = fixture.get(path);
        assert_own(&response, 400, why, path);
    }
    let authorization = format!("Authorization: {}\r\n", bot());
    let close = "Connection: close\r\n";
    for (line, host) in [
        ("GET http://discord.com/api/v10/users/@me HTTP/1.1", "discord.com"),
        ("GET https://evil.example/api/v10/users/@me HTTP/1.1", "test"),
        ("GET /users/@me HTTP/1.1", "test"),
        ("GET //api/v10/users/@me HTTP/1.1", "test"),
        ("OPTIONS * HTTP/1.1", "test"),
    ] {
        let response = fixture.raw(&format!("{line}\r\nHost: {host}\r\n{close}{authorization}\r\n"));
        assert_own(&response, 400, "target", line);
    }
    let tunnel = fixture.raw("CONNECT discord.com:443 HTTP/1.1\r\nHost: discord.com:443\r\n\r\n");
    assert_own(&tunnel, 400, "target", "CONNECT");
    assert!(tunnel.json()["message"].as_str().unwrap().contains("base URL"), "{}", tunnel.body);
    for method in ["TRACE", "OPTIONS", "PROPFIND", "get"] {
        let response = fixture.send(&Call { method, authorization: &bot(), ..Call::default() });
        assert_own(&response, 405, "method", method);
        assert!(header(&response, "allow").is_some(), "{}", response.head);
    }
    for (headers, why) in [
        ("Host: other\r\n", "headers"),
        ("X-Guildhall-Lane: fastest\r\n", "headers"),
        ("X-Guildhall-Deadline-Ms: -1\r\n", "headers"),
        ("Authorization: Bot another\r\n", "authorization"),
    ] {
        let response = fixture.send(&Call { authorization: &bot(), headers, ..Call::default() });
        assert_own(&response, 400, why, headers);
    }
    assert_eq!(fixture.sim.score().requests, before, "nothing of this reached Discord");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_and_foreign_credentials_never_reach_discord() {
    let fixture = EgressFixture::start().await;
    let before = fixture.sim.score().requests;
    let revoked = fixture.create_key(&["egress"]);
    let unknown = format!("{}x", &revoked[..revoked.len() - 1]);
    for authorization in ["", "Bot MTAw.another.bot", "Basic YTpi", "Bot", "Bot ", "bearer nothing", &unknown] {
        let call = Call { authorization, ..Call::default() };
        assert_own(&fixture.send(&call), 401, "unauthorized", authorization);
    }
    // The token of a webhook permits only that webhook, and a wrong key is not ignored for it.
    let call = Call { path: "/webhooks/1/token", authorization: &unknown, ..Call::default() };
    assert_own(&fixture.send(&call), 401, "unauthorized", "a wrong key");
    let call = Call { path: "/webhooks/1", ..Call::default() };
    assert_own(&fixture.send(&call), 401, "unauthorized", "no token in the path");
    let score = fixture.sim.score();
    assert_eq!((score.requests, score.invalid_requests), (before, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_uncertain_length_end_their_connection() {
    let fixture = EgressFixture::start().await;
    let guild = fixture.sim.guilds()[0];
    let before = fixture.arrived_at("DELETE /guilds/{guild.id}");
    let hidden = format!("DELETE /api/v10/guilds/{guild} HTTP/1.1\r\nHost: test\r\nAuthorization: {}\r\n\r\n", bot());
    let head = format!("POST /api/v10/channels/1/typing HTTP/1.1\r\nHost: test\r\nAuthorization: {}\r\n", bot());
    for (about, text) in [
        ("both lengths", format!("{head}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}")),
        (
            "lengths in the other order",
            format!("{head}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n{hidden}"),
        ),
        ("two lengths", format!("{head}Content-Length: 0\r\nContent-Length: 200\r\n\r\n{hidden}")),
        ("an unknown encoding", format!("{head}Transfer-Encoding: gzip\r\n\r\n{hidden}")),
        (
            "a folded line",
            format!("{head}X-A: b\r\n c: d\r\nContent-Length: 0\r\nTransfer-Encoding : chunked\r\n\r\n{hidden}"),
        ),
        ("a chunk that is no number", format!("{head}Transfer-Encoding: chunked\r\n\r\nx\r\n{hidden}")),
    ] {
        let answers = block_in_place(|| read_all(open(fixture.egress, &text)));
        assert_eq!(answers.matches("HTTP/1.1 ").count(), 1, "{about}: {answers}");
    }
    assert_eq!(fixture.arrived_at("DELETE /guilds/{guild.id}"), before, "the hidden request was never read");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_that_is_too_large_or_too_slow_is_refused() {
    let fixture =
        EgressFixture::start_with(guildhall_sim::LimitConfig::off(), &[("GUILDHALL__EGRESS__BODY_TIMEOUT_MS", "300")])
            .await;
    let before = fixture.sim.score().requests;
    let head = format!("POST /api/v10/channels/1/messages HTTP/1.1\r\nHost: test\r\nAuthorization: {}\r\n", bot());
    let key = fixture.create_key(&["egress", "application", "danger"]);
    let keyed = head.replace(&bot(), &key);
    let announced = fixture.raw(&format!("{keyed}Content-Length: 1048577\r\n\r\n"));
    assert_own(&announced, 413, "body_too_large", "announced");
    let announced = fixture.raw(&format!("{head}Content-Length: 134217729\r\n\r\n"));
    assert_own(&announced, 413, "body_too_large", "announced by the bot");
    let slow = fixture.raw(&format!("{head}Content-Length: 5\r\n\r\nfour"));
    assert_own(&slow, 408, "body_too_slow", "incomplete");
    let chunk = format!("{:x}\r\n{}\r\n", 1_048_577, "x".repeat(1_048_577));
    let chunked = fixture.raw(&format!("{keyed}Transfer-Encoding: chunked\r\n\r\n{chunk}0\r\n\r\n"));
    assert_own(&chunked, 413, "body_too_large", "chunked");
    assert_eq!(fixture.sim.score().requests, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connection_makes_room_and_one_with_a_call_does_not() {
    let fixture = EgressFixture::start_with(
        guildhall_sim::LimitConfig::off(),
        &[("GUILDHALL__EGRESS__MAX_CONNECTIONS", "1"), ("GUILDHALL__EGRESS__IDLE_TIMEOUT_MS", "600000")],
    )
    .await;
    // The first part of a head is no call.
    let idle = block_in_place(|| open(fixture.egress, "GET "));
    fixture.wait_for_metric("guildhall_egress_connections 1");
    assert_eq!(fixture.get("/users/@me").status, 200);
    assert_eq!(block_in_place(|| read_all(idle)), "");
    fixture.wait_for_metric("guildhall_egress_connections_cut_total{why=\"idle\"} 1");
    fixture.wait_for_metric("guildhall_egress_connections 0");
    let call = Call { path: "/voice/regions?slow-response", authorization: &bot(), ..Call::default() };
    let mut busy = block_in_place(|| open(fixture.egress, &call.text()));
    block_in_place(|| read_until(&mut busy, "\"first"));
    let refused = block_in_place(|| read_all(open(fixture.egress, &call.text())));
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("connections_full"), "{refused}");
    fixture.upstream.release();
    assert_eq!(block_in_place(|| read_all(busy)), "last\"");
}

#[test]
fn open_address_needs_a_key_and_a_decision_about_plaintext() {
    let serve = |settings: &[(&str, &str)]| {
        let guildhall = Guildhall::serve("ws://127.0.0.1:1").env("GUILDHALL__EGRESS__ENABLED", "true");
        let guildhall = settings.iter().fold(guildhall, |guildhall, (name, value)| guildhall.env(name, value));
        text(&guildhall.env("GUILDHALL__EGRESS__BIND", "0.0.0.0:0").output().stderr)
    };
    let errors = serve(&[]);
    for part in ["egress.bind", "api.admin_key is not set", "egress.tls.cert_file", "egress.allow_plaintext"] {
        assert!(errors.contains(part), "no {part} in {errors}");
    }
    let errors = serve(&[("GUILDHALL__API__ADMIN_KEY", "a-key-that-is-long")]);
    assert!(errors.contains("egress.allow_plaintext") && !errors.contains("is not set, with which"), "{errors}");
}
