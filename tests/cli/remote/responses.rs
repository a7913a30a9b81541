//! Responses of a daemon of another version, as the API defines them, and of one that lacks the endpoint.

use serde_json::{Value, json};

use super::{
    fake_server::{FakeServer, Reply, operation, problem},
    fixture::{Cli, CommandResult},
};

/// Runs a command against a daemon with this response. Returns its result and the requests.
fn run_against(status: u16, body: Value, args: &[&str]) -> (CommandResult, Vec<(String, String)>) {
    let server = FakeServer::always(status, body);
    let result = Cli::at(&server.url()).run(args);
    let requests = server
        .requests()
        .into_iter()
        .map(|requests| (format!("{} {}", requests.method, requests.path), requests.body))
        .collect();
    (result, requests)
}

#[test]
fn limits_show_a_summary_buckets_and_top_users() {
    let limits = json!({
        "global": {"limit": 50, "total": 50, "sharing": "alone", "members": null, "window_ms": 1000, "available": 48,
            "in_flight": 2, "waiting": 0, "blocked_until": null, "shared": false, "mode": null},
        "lanes": [{"lane": "operation", "waiting": 0}], "buckets": 2,
        "invalid_requests": {"used": 3, "most": 10000, "window_ms": 600_000, "ratio": 0.0003, "stops": null,
            "shared": false, "spenders": [],
            "share": {"percent": 25, "most": 2500, "capped": 0, "held": 0, "holders": []}},
        "breakers": {"closed": 1, "open": 0, "half_open": 0, "forced_open": 0},
        "credentials": [], "gone_webhooks": 0, "refused_tokens": 0});
    let (result, requests) = run_against(200, limits.clone(), &["limits"]);
    assert!(result.expect_success().contains("global      48 of 50 per 1s available, 0 waiting\n"));
    assert_eq!(requests[0].0, "GET /v1/limits");
    assert_eq!(run_against(200, limits.clone(), &["limits", "-o", "json"]).0.json(), limits);

    let bucket = json!({"route": "GET /gateway/bot", "routes": ["GET /gateway/bot"], "bucket": "b", "id": null, "limit": 2, "left": 1,
        "resets_at": "2026-01-31T12:00:05.000Z", "waiting": 0});
    let (result, requests) =
        run_against(200, json!({"buckets": [bucket], "next": null}), &["limits", "buckets", "--all"]);
    assert!(result.expect_success().contains("GET /gateway/bot  -   1/2"));
    assert_eq!(requests[0].0, "GET /v1/limits/buckets?limit=500");

    let top = json!({"by": "invalid", "since": "2026-01-31T12:00:00.000Z", "top": [{"guild_id": "7", "count": 9, "over": 0}]});
    let (result, requests) = run_against(200, top, &["limits", "top", "--by", "invalid", "--limit", "3"]);
    assert!(result.expect_success().contains("guild 7  9\n"));
    assert_eq!(requests[0].0, "GET /v1/limits/top?by=invalid&limit=3");
}

#[test]
fn breakers_are_listed_opened_and_closed() {
    let open = json!({"key": "discord", "kind": "address", "state": "open", "since": "2026-01-31T12:00:00.000Z",
        "until": "2026-01-31T12:00:30.000Z", "calls": 9, "failures": 5, "why": "failures"});
    assert!(
        run_against(200, json!({ "breakers": [open], "watched": 1 }), &["breakers", "list"])
            .0
            .expect_success()
            .contains("discord  open   failures  5/9 ")
    );
    let (result, requests) =
        run_against(200, json!({}), &["breakers", "force", "discord POST /x/{id} 7", "--for", "5m"]);
    assert_eq!(result.expect_success(), "discord POST /x/{id} 7 is open for 5m\n");
    assert_eq!(requests[0].0, "POST /v1/breakers/force");
    let body: Value = serde_json::from_str(&requests[0].1).unwrap();
    assert_eq!(body, json!({"key": "discord POST /x/{id} 7", "for_ms": 300_000}));
    let (result, requests) = run_against(204, json!(null), &["breakers", "reset", "discord"]);
    assert_eq!(
        (result.expect_success().as_str(), requests[0].1.as_str()),
        ("discord is closed\n", r#"{"key":"discord"}"#)
    );
}

#[test]
fn shards_are_listed_and_restarted() {
    let shard = json!({"id": 1, "state": "connected", "session": "s", "sequence": 9, "confirmed": 8, "latency_ms": 12,
        "instance": "a", "resumes": 0, "identifies": 1});
    let (result, requests) =
        run_against(200, json!({"shards": [shard], "total": 2, "next": null}), &["shards", "list"]);
    assert!(result.expect_success().contains("1      connected  12ms"));
    assert_eq!(requests[0].0, "GET /v1/shards?limit=500");
    let (result, requests) = run_against(202, json!({}), &["shards", "restart", "0", "1"]);
    assert_eq!(result.expect_success(), "shard 0 reconnects\nshard 1 reconnects\n");
    assert_eq!(
        requests.iter().map(|(requests, _)| requests.as_str()).collect::<Vec<_>>(),
        ["POST /v1/shards/0/restart", "POST /v1/shards/1/restart"]
    );
    assert_eq!(run_against(202, json!({}), &["shards", "restart", "x"]).0.code, 2);
}

#[test]
fn budgets_are_listed_and_shown() {
    let budget = json!({"name": "rpc node", "available": 5, "booked": 0, "maximum": 10, "restore_per_second": 1,
        "observed": false, "kept": "alone", "blocked_until": null,
        "spend": [{"hour": "2026-01-31T12:00:00.000Z", "points": 7, "calls": 2}]});
    let listed = run_against(200, json!({"budgets": [budget], "next": null}), &["budgets"]);
    assert!(listed.0.expect_success().contains("\nrpc node  5 "));
    assert_eq!(listed.1[0].0, "GET /v1/budgets");
    let (result, requests) = run_against(200, budget, &["budgets", "show", "rpc node", "--hours", "6"]);
    assert!(
        result.expect_success().ends_with("\nHOUR                  POINTS  CALLS\n2026-01-31T12:00:00Z  7       2\n")
    );
    assert_eq!(requests[0].0, "GET /v1/budgets/rpc%20node?hours=6");
}

#[test]
fn bulk_discard_repeats_until_none_remain() {
    let server = FakeServer::start(|_, before| {
        Reply::Json(200, json!({"discarded": if before == 0 { 1_000 } else { 7 }, "more": before == 0}))
    });
    let cli = Cli::at(&server.url());
    let args = ["dlq", "discard", "--reason", "Missing", "--died-before", "2026-01-31T12:00:00Z", "--yes"];
    assert_eq!(cli.run(&args).expect_success(), "1007 discarded.\n");
    assert_eq!(
        server.requests()[1].json(),
        json!({"reason": "Missing", "died_before": "2026-01-31T12:00:00.000Z", "limit": 1000})
    );
    let list = FakeServer::always(200, json!({"dead_letters": [], "next": null}));
    Cli::at(&list.url())
        .run(&["dlq", "list", "--reason", "a b", "--died-after", "2026-01-31T12:00:00Z"])
        .expect_success();
    assert_eq!(list.requests()[0].path, "/v1/dead-letters?reason=a+b&died_after=2026-01-31T12%3A00%3A00.000Z&limit=50");
}

#[test]
fn missing_endpoint_suggests_an_older_daemon() {
    for (args, feature) in [
        (&["limits"][..], "limits"),
        (&["limits", "buckets"], "limits"),
        (&["limits", "top"], "limits"),
        (&["breakers", "list"], "breakers"),
        (&["shards", "list"], "shards"),
        (&["budgets"], "budgets"),
        (&["dlq", "discard", "--all", "--yes"], "bulk discard of dead letters"),
    ] {
        let server = FakeServer::start(|_, _| problem(404, "not-found", "No resource exists at this path.", json!({})));
        let message = Cli::at(&server.url()).run(args).expect_failure();
        let expected = format!(
            "error: the daemon at {} does not support {feature}; it may be older than this program\n",
            server.url()
        );
        assert_eq!(message, expected, "{args:?}");
    }
    let server = FakeServer::start(|_, _| problem(404, "not-found", "No resource exists at this path.", json!({})));
    let message = Cli::at(&server.url()).run(&["shards", "restart", "3"]).expect_failure();
    assert!(message.contains("(404)") && message.contains("may be older than this program"), "{message}");
    let server = FakeServer::start(|_, _| problem(404, "not-found", "There is no shard 3.", json!({})));
    assert_eq!(
        Cli::at(&server.url()).run(&["shards", "restart", "3"]).expect_failure(),
        "error: There is no shard 3 (404)\n"
    );
}

#[test]
fn responses_cannot_send_terminal_escapes() {
    let mut operation = operation("1", "dead");
    operation["kind"] = "a\u{1b}]0;b\u{7}".into();
    operation["error"] = json!({"class": "forbidden", "message": "\u{1b}[2J\n", "status": null, "code": null});
    let output =
        run_against(200, json!({"operations": [operation], "next": null}), &["ops", "list"]).0.expect_success();
    assert!(!output.contains('\u{1b}') && output.lines().count() == 2, "{output}");
    let server = FakeServer::start(|_, _| problem(409, "conflict", "No \u{1b}[2J.", json!({})));
    assert!(!Cli::at(&server.url()).run(&["ops", "cancel", "1"]).expect_failure().contains('\u{1b}'));
}
