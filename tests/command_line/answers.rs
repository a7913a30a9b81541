//! Responses of a daemon of another version, as the API defines them, and of one that lacks the endpoint.

use serde_json::{Value, json};

use super::{
    fake::{Fake, Reply, problem},
    stage::{Cli, Ran},
};

/// Runs a command against a daemon with this response. Returns its result and the requests.
fn ask(status: u16, body: Value, args: &[&str]) -> (Ran, Vec<(String, String)>) {
    let fake = Fake::says(status, body);
    let ran = Cli::at(&fake.url()).run(args);
    let asked =
        fake.asked().into_iter().map(|asked| (format!("{} {}", asked.method, asked.path), asked.body)).collect();
    (ran, asked)
}

#[test]
fn limits_are_summed_up_listed_and_laid_to_whoever_uses_them() {
    let limits = json!({
        "global": {"limit": 50, "window_ms": 1000, "available": 48, "waiting": 0, "blocked_until": null, "shared": false},
        "lanes": [{"lane": "operation", "waiting": 0}], "buckets": 2,
        "invalid_requests": {"used": 3, "most": 10000, "ratio": 0.0003, "stops": null},
        "breakers": {"closed": 1, "open": 0, "half_open": 0, "forced_open": 0}});
    let (ran, asked) = ask(200, limits.clone(), &["limits"]);
    assert!(ran.fine().contains("global      48 of 50 per 1s available, 0 waiting\n"));
    assert_eq!(asked[0].0, "GET /v1/limits");
    assert_eq!(ask(200, limits.clone(), &["limits", "-o", "json"]).0.json(), limits);

    let bucket = json!({"route": "GET /gateway/bot", "bucket": "b", "id": null, "limit": 2, "left": 1,
        "resets_at": "2026-01-31T12:00:05.000Z", "waiting": 0});
    let (ran, asked) = ask(200, json!({"buckets": [bucket], "next": null}), &["limits", "buckets", "--all"]);
    assert!(ran.fine().contains("GET /gateway/bot  -   1/2"));
    assert_eq!(asked[0].0, "GET /v1/limits/buckets?limit=500");

    let top = json!({"by": "invalid", "since": "2026-01-31T12:00:00.000Z", "top": [{"guild_id": "7", "count": 9}]});
    let (ran, asked) = ask(200, top, &["limits", "top", "--by", "invalid", "--limit", "3"]);
    assert!(ran.fine().contains("guild 7  9\n"));
    assert_eq!(asked[0].0, "GET /v1/limits/top?by=invalid&limit=3");
}

#[test]
fn breakers_are_listed_opened_and_closed() {
    let open = json!({"key": "discord", "state": "open", "since": "2026-01-31T12:00:00.000Z",
        "until": "2026-01-31T12:00:30.000Z", "calls": 9, "failures": 5, "why": "failures"});
    assert!(
        ask(200, json!({ "breakers": [open] }), &["breakers", "list"])
            .0
            .fine()
            .contains("discord  open   failures  5/9 ")
    );
    let (ran, asked) = ask(200, json!({}), &["breakers", "force", "discord POST /x/{id} 7", "--for", "5m"]);
    assert_eq!(ran.fine(), "discord POST /x/{id} 7 is open for 5m\n");
    assert_eq!(asked[0].0, "POST /v1/breakers/force");
    let body: Value = serde_json::from_str(&asked[0].1).unwrap();
    assert_eq!(body, json!({"key": "discord POST /x/{id} 7", "for_ms": 300_000}));
    let (ran, asked) = ask(204, json!(null), &["breakers", "reset", "discord"]);
    assert_eq!((ran.fine().as_str(), asked[0].1.as_str()), ("discord is closed\n", r#"{"key":"discord"}"#));
}

#[test]
fn shards_are_listed_and_made_anew() {
    let shard = json!({"id": 1, "state": "connected", "session": "s", "sequence": 9, "confirmed": 8, "latency_ms": 12,
        "instance": "a", "resumes": 0, "identifies": 1});
    let (ran, asked) = ask(200, json!({"shards": [shard], "total": 2, "next": null}), &["shards", "list"]);
    assert!(ran.fine().contains("1      connected  12ms"));
    assert_eq!(asked[0].0, "GET /v1/shards?limit=500");
    let (ran, asked) = ask(202, json!({}), &["shards", "restart", "0", "1"]);
    assert_eq!(ran.fine(), "shard 0 reconnects\nshard 1 reconnects\n");
    assert_eq!(
        asked.iter().map(|(asked, _)| asked.as_str()).collect::<Vec<_>>(),
        ["POST /v1/shards/0/restart", "POST /v1/shards/1/restart"]
    );
    assert_eq!(ask(202, json!({}), &["shards", "restart", "x"]).0.code, 2);
}

#[test]
fn budgets_are_listed_and_shown() {
    let budget =
        json!({"name": "rpc node", "available": 5, "spend": [{"hour": "2026-01-31T12:00:00.000Z", "cost": 7}]});
    assert_eq!(ask(200, json!({ "budgets": [budget] }), &["budgets"]).0.fine(), "NAME      AVAILABLE\nrpc node  5\n");
    let (ran, asked) = ask(200, budget, &["budgets", "show", "rpc node", "--hours", "6"]);
    assert!(ran.fine().ends_with("spend\nCOST  HOUR\n7     2026-01-31T12:00:00Z\n"));
    assert_eq!(asked[0].0, "GET /v1/budgets/rpc%20node?hours=6");
}

#[test]
fn what_many_dead_letters_have_in_common_is_asked_for_until_none_are_left() {
    let fake = Fake::start(|_, before| {
        Reply::Json(200, json!({"discarded": if before == 0 { 1_000 } else { 7 }, "more": before == 0}))
    });
    let cli = Cli::at(&fake.url());
    let args = ["dlq", "discard", "--reason", "Missing", "--died-before", "2026-01-31T12:00:00Z"];
    assert_eq!(cli.run(&args).fine(), "1007 discarded.\n");
    assert_eq!(
        fake.asked()[1].json(),
        json!({"reason": "Missing", "died_before": "2026-01-31T12:00:00.000Z", "limit": 1000})
    );
    let list = Fake::says(200, json!({"dead_letters": [], "next": null}));
    Cli::at(&list.url()).run(&["dlq", "list", "--reason", "a b", "--died-after", "2026-01-31T12:00:00Z"]).fine();
    assert_eq!(list.asked()[0].path, "/v1/dead-letters?reason=a+b&died_after=2026-01-31T12%3A00%3A00.000Z&limit=50");
}

#[test]
fn a_daemon_that_does_not_know_of_it_is_called_older() {
    for (args, what) in [
        (&["limits"][..], "limits"),
        (&["limits", "buckets"], "limits"),
        (&["limits", "top"], "limits"),
        (&["breakers", "list"], "breakers"),
        (&["shards", "list"], "shards"),
        (&["budgets"], "budgets"),
        (&["dlq", "discard", "--all"], "bulk discard of dead letters"),
    ] {
        let fake = Fake::start(|_, _| problem(404, "not-found", "No resource exists at this path.", json!({})));
        let says = Cli::at(&fake.url()).run(args).failed();
        let expected =
            format!("error: the daemon at {} does not support {what}; it may be older than this program\n", fake.url());
        assert_eq!(says, expected, "{args:?}");
    }
    let fake = Fake::start(|_, _| problem(404, "not-found", "No resource exists at this path.", json!({})));
    let says = Cli::at(&fake.url()).run(&["shards", "restart", "3"]).failed();
    assert!(says.contains("(404)") && says.contains("may be older than this program"), "{says}");
    let fake = Fake::start(|_, _| problem(404, "not-found", "There is no shard 3.", json!({})));
    assert_eq!(Cli::at(&fake.url()).run(&["shards", "restart", "3"]).failed(), "error: There is no shard 3 (404)\n");
}

#[test]
fn nothing_that_a_daemon_says_moves_the_terminal() {
    let odd = json!({"id": "1", "kind": "a\u{1b}]0;b\u{7}", "state": "dead", "error": {"message": "\u{1b}[2J\n"}});
    let ran = ask(200, json!({"operations": [odd], "next": null}), &["ops", "list"]).0.fine();
    assert!(!ran.contains('\u{1b}') && ran.lines().count() == 2, "{ran}");
    let fake = Fake::start(|_, _| problem(409, "conflict", "No \u{1b}[2J.", json!({})));
    assert!(!Cli::at(&fake.url()).run(&["ops", "cancel", "1"]).failed().contains('\u{1b}'));
}
