//! Deferred interactions without a response from their handler: the real program, a simulated Discord, and brains that
//! fail.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use guildhall_sim::{Fault, FaultAction, FireSpec, Sim, SimConfig, SimHandle, Snowflake};
use guildhall_testkit::brain::{Action, Brain, Request, respond};
use guildhall_testkit::program::{TEST_TIMEOUT, request};
use serde_json::{Value, json};

use super::interactions::{ADMIN, InteractionDaemon, call, stop, wait_for_response};

const TEXTS: [(&str, &str); 4] = [
    ("GUILDHALL__INTERACTIONS__FALLBACK__COOLDOWN", "slow down"),
    ("GUILDHALL__INTERACTIONS__FALLBACK__FAILED", "it is broken"),
    ("GUILDHALL__INTERACTIONS__FALLBACK__UNAVAILABLE", "it is down"),
    ("GUILDHALL__INTERACTIONS__FALLBACK__UNANSWERED", "nothing yet"),
];

async fn sim() -> SimHandle {
    Sim::start(SimConfig { guilds: 1, members: 1, channels: 1, ..SimConfig::default() }).await.unwrap()
}

/// A handler whose webhook has this path of the brain.
fn webhook(name: &str, brain: SocketAddr, fields: &str) -> String {
    format!(
        "[[handlers]]\nname = \"{name}\"\non = \"interaction.command.{name}\"\n{fields}\n[handlers.webhook]\n\
         url = \"http://{brain}/{name}\"\nsecrets = [\"whsec_ZXhhbXBsZS1vbmx5LW1ha2UteW91ci1vd24tc2VjcmV0\"]\n\
         allow_private = true\n"
    )
}

/// A response with operations of these kinds for the interaction of a request, each with these fields and this text.
fn respond_with(request: &Request, operations: &[(&str, Value, &str)]) -> Action {
    let event: Value = serde_json::from_str(&request.body).unwrap();
    let operation = |(kind, fields, content): &(&str, Value, &str)| {
        let (id, token) = (&event["interaction_id"], &event["interaction_token"]);
        let payload = json!({ "interaction_id": id, "interaction_token": token, "content": content });
        let mut operation = json!({ "kind": kind, "payload": payload });
        operation.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        operation
    };
    let operations: Vec<Value> = operations.iter().map(operation).collect();
    respond(200, "", &json!({ "operations": operations }).to_string())
}

/// An address at which nothing listens.
fn closed_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn start(sim: &SimHandle, store: &Path, handlers: &str, settings: &[(&str, &str)]) -> InteractionDaemon {
    let settings = [&TEXTS[..], settings].concat();
    tokio::task::block_in_place(|| InteractionDaemon::start_with(sim, &sim.verify_key(), store, handlers, &settings))
}

/// Fires a command over the gateway, or over HTTP. Returns its id and token.
async fn fire(sim: &SimHandle, daemon: &InteractionDaemon, name: &str, over_http: bool) -> (Snowflake, String) {
    let mut command = FireSpec::command(sim.guilds()[0], name);
    command.url = over_http.then(|| format!("http://{}/interactions", daemon.interactions));
    let fired = sim.fire(command).await.unwrap();
    (fired.id.unwrap(), fired.token.unwrap())
}

async fn content(sim: &SimHandle, token: &str) -> String {
    wait_for_response(sim, token).await["content"].as_str().unwrap().to_owned()
}

/// The operations that edited, or would have edited, a deferred response.
fn fallbacks(daemon: &InteractionDaemon) -> Vec<Value> {
    let path = "/v1/operations?kind=edit_original";
    let listed = request(
        daemon.api,
        &format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {ADMIN}\r\n\r\n"),
    );
    let operations = listed.json()["operations"].as_array().unwrap().clone();
    operations.into_iter().filter(|operation| operation["payload"]["only_if_deferred"] == true).collect()
}

/// Waits until a fallback has this state.
async fn wait_for_fallback(daemon: &InteractionDaemon, matches: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let listed = tokio::task::block_in_place(|| fallbacks(daemon));
        if let Some(found) = listed.iter().find(|operation| matches(operation)) {
            return found.clone();
        }
        assert!(Instant::now() < deadline, "no such fallback in {listed:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_failure_replaces_thinking_by_its_text() {
    let (sim, store) = (sim().await, tempfile::tempdir().unwrap());
    let brain = Brain::replying(|request| match request.line.split(' ').nth(1).unwrap() {
        "/invalid" => respond(200, "", r#"{"repply": {"content": "hi"}}"#),
        "/gone" => respond(410, "", ""),
        "/failing" => respond(503, "", ""),
        "/hanging" => Action::RespondAndHang(String::new()),
        "/rejected" => respond_with(request, &[("edit_original", json!({}), "")]),
        "/followup" => respond_with(request, &[("send_followup", json!({}), "more")]),
        // The edit waits behind the followup until it is too late.
        "/late" => respond_with(
            request,
            &[("send_followup", json!({}), "more"), ("edit_original", json!({ "deadline_ms": 1 }), "in time")],
        ),
        _ => respond(204, "", ""),
    })
    .await;
    let rules = r#"
[[handlers]]
name = "often"
on = "interaction.command.often"
reply = "hi"
cooldown = { key = "{user_id}", for_ms = 600000 }

[[handlers]]
name = "empty"
on = "interaction.command.empty"
reply = "{data.missing?}"

[[handlers]]
name = "blank"
on = "interaction.command.blank"
reply = "{data.missing?}{data.missing?}"

[[handlers]]
name = "silent"
on = "interaction.command.silent"
set = [{ key = "silent:{user_id}", value = true }]
"#;
    let rejected = FaultAction::Status { status: 400, code: 50_035 };
    let rejected =
        Fault { route: "POST /webhooks/**".to_owned(), action: rejected, probability: 1.0, count: None, skip: 0 };
    sim.add_fault(rejected).unwrap();
    let webhooks: String = ["invalid", "gone", "failing", "hanging", "quiet", "rejected", "followup", "late"]
        .iter()
        .map(|name| webhook(name, brain.address, ""))
        .chain([webhook("down", closed_address(), "")])
        .collect();
    let settings = [
        ("GUILDHALL__INTERACTIONS__FALLBACK__UNAVAILABLE_AFTER_MS", "0"),
        ("GUILDHALL__INTERACTIONS__FALLBACK__UNANSWERED_AFTER_MS", "1000"),
        ("GUILDHALL__HANDLERS__SLOW_MS", "100"),
        // The hanging webhook is not a failed one, however long this takes.
        ("GUILDHALL__HANDLERS__TIMEOUT_MS", "60000"),
    ];
    let daemon = start(&sim, store.path(), &format!("{rules}{webhooks}"), &settings);
    let mut expected = Vec::new();
    for over_http in [false, true] {
        for (name, text) in [
            ("invalid", "it is broken"),
            ("gone", "it is broken"),
            ("failing", "it is down"),
            ("down", "it is down"),
            ("hanging", "nothing yet"),
            ("quiet", "nothing yet"),
            ("silent", "nothing yet"),
            // Invalid before it is sent, and rejected by Discord.
            ("empty", "it is broken"),
            ("blank", "it is broken"),
            ("rejected", "it is broken"),
            // Operations of the brain that end without a response.
            ("followup", "nothing yet"),
            ("late", "nothing yet"),
        ] {
            expected.push((name, over_http, fire(&sim, &daemon, name, over_http).await.1, text));
        }
    }
    for (name, over_http, token, text) in expected {
        assert_eq!(content(&sim, &token).await, text, "{name} over HTTP: {over_http}");
    }
    let (_, token) = fire(&sim, &daemon, "often", false).await;
    assert_eq!(content(&sim, &token).await, "hi");
    for over_http in [false, true] {
        let (_, token) = fire(&sim, &daemon, "often", over_http).await;
        let response = wait_for_response(&sim, &token).await;
        assert_eq!((&response["content"], &response["flags"]), (&json!("slow down"), &json!(64)));
    }
    let metrics = tokio::task::block_in_place(|| guildhall_testkit::program::get(daemon.api, "/metrics")).body;
    for line in [
        "guildhall_interaction_fallbacks_total{reason=\"failed\"} 6",
        "guildhall_interaction_fallbacks_total{reason=\"unavailable\"} 4",
        "guildhall_interactions_total{how=\"fallback\"} 2",
    ] {
        assert!(metrics.contains(line), "no {line} in {metrics}");
    }
    assert!(!metrics.contains("fallbacks_total{reason=\"cooldown\"}"), "a cooldown is known before the deferral");
    stop(daemon.running);
}

#[tokio::test(flavor = "multi_thread")]
async fn open_breaker_of_a_webhook_gives_its_text_without_a_call() {
    let (sim, store) = (sim().await, tempfile::tempdir().unwrap());
    let brain = Brain::always(respond(204, "", "")).await;
    let settings = [("GUILDHALL__INTERACTIONS__FALLBACK__UNAVAILABLE_AFTER_MS", "0")];
    let daemon = start(&sim, store.path(), &webhook("ask", brain.address, ""), &settings);
    let forced =
        tokio::task::block_in_place(|| call(daemon.api, ADMIN, "/v1/breakers/force", &json!({ "key": "target:ask" })));
    assert_eq!(forced.status, 200, "{}", forced.body);
    for over_http in [false, true] {
        let (_, token) = fire(&sim, &daemon, "ask", over_http).await;
        assert_eq!(content(&sim, &token).await, "it is down");
    }
    assert_eq!(brain.received().requests.len(), 0);
    stop(daemon.running);
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_edit_does_not_replace_a_response_that_the_user_has() {
    let (sim, store) = (sim().await, tempfile::tempdir().unwrap());
    let brain = Brain::replying(|request| {
        respond_with(request, &[("edit_original", json!({}), "the answer"), ("edit_original", json!({}), "")])
    })
    .await;
    let daemon = start(&sim, store.path(), &webhook("ask", brain.address, ""), &[]);
    let (_, token) = fire(&sim, &daemon, "ask", false).await;
    daemon.running.wait_for_log_line("\"operation failed\"");
    assert_eq!(content(&sim, &token).await, "the answer");
    stop(daemon.running);
}

#[tokio::test(flavor = "multi_thread")]
async fn response_of_the_brain_is_never_replaced_and_replaces_the_text() {
    let (sim, store) = (sim().await, tempfile::tempdir().unwrap());
    let brain = Brain::always(respond(204, "", "")).await;
    let daemon = start(&sim, store.path(), &webhook("ask", brain.address, ""), &[]);
    let post = |path: &str, body: &Value| {
        let response = tokio::task::block_in_place(|| call(daemon.api, ADMIN, path, body));
        assert!(response.status < 300, "{path}: {}", response.body);
    };
    for (kind, is_late) in [("edit_original", false), ("send_followup", false), ("edit_original", true)] {
        let (id, token) = fire(&sim, &daemon, "ask", is_late).await;
        let is_its = |operation: &Value| operation["payload"]["interaction_id"] == json!(id);
        let queued = wait_for_fallback(&daemon, is_its).await;
        assert_ne!(queued["state"], "succeeded", "{queued}");
        let respond = || {
            let payload = json!({ "interaction_id": id, "interaction_token": token, "content": "the answer" });
            let path = format!("/v1/guilds/{}/operations", sim.guilds()[0]);
            post(&path, &json!({ "kind": kind, "payload": payload }));
        };
        // Makes the fallback due now.
        let expedite = async || {
            post(&format!("/v1/operations/{}/retry", queued["id"].as_str().unwrap()), &json!({}));
            let is_over = |operation: &Value| is_its(operation) && operation["state"] == "succeeded";
            wait_for_fallback(&daemon, is_over).await["result"]["edited"].clone()
        };
        if is_late {
            assert_eq!(expedite().await, true);
            assert_eq!(content(&sim, &token).await, "nothing yet");
            respond();
            wait_for_content(&sim, &token, "the answer").await;
        } else {
            respond();
            wait_for_content(&sim, &token, "the answer").await;
            assert_eq!(expedite().await, false);
            assert_eq!(content(&sim, &token).await, "the answer", "{kind}");
        }
    }
    stop(daemon.running);
}

async fn wait_for_content(sim: &SimHandle, token: &str, expected: &str) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while content(sim, token).await != expected {
        assert!(Instant::now() < deadline, "the response is not {expected}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_starts_a_cooldown_with_the_key_of_its_handler() {
    let (sim, store) = (sim().await, tempfile::tempdir().unwrap());
    let brain = Brain::replying(|request| {
        let event: Value = serde_json::from_str(&request.body).unwrap();
        let cooldown = json!({ "key": event["user_id"], "for_ms": 600_000 });
        respond(200, "", &json!({ "reply": { "content": "hi" }, "cooldown": cooldown }).to_string())
    })
    .await;
    let declared = webhook("declared", brain.address, "cooldown = { key = \"{user_id}\" }");
    let handlers = format!("{declared}{}", webhook("undeclared", brain.address, ""));
    let daemon = start(&sim, store.path(), &handlers, &[]);
    for (name, text) in [("declared", "hi"), ("declared", "slow down"), ("undeclared", "it is broken")] {
        let (_, token) = fire(&sim, &daemon, name, false).await;
        assert_eq!(content(&sim, &token).await, text, "{name}");
    }
    let reason = daemon.running.wait_for_log_line("event became dead for a handler");
    assert!(reason.contains("undeclared") && reason.contains("add `cooldown = { key"), "{reason}");
    stop(daemon.running);
}

#[tokio::test(flavor = "multi_thread")]
async fn interaction_of_a_killed_process_gets_its_text_from_the_next_one() {
    let (sim, store) = (sim().await, tempfile::tempdir().unwrap());
    let brain = Brain::always(Action::RespondAndHang(String::new())).await;
    let handlers = webhook("ask", brain.address, "");
    let daemon = start(&sim, store.path(), &handlers, &[]);
    let mut tokens = Vec::new();
    for (count, over_http) in [false, true].into_iter().enumerate() {
        tokens.push(fire(&sim, &daemon, "ask", over_http).await.1);
        brain.wait_for_requests(count + 1).await;
    }
    daemon.running.signal("KILL");
    drop(daemon.running.wait_for_exit());
    for token in &tokens {
        let response = original(&sim, token);
        assert_eq!(response["flags"], 128, "still deferred: {response}");
    }
    let dead = handlers.replace(&brain.address.to_string(), &closed_address().to_string());
    let settings = [("GUILDHALL__INTERACTIONS__FALLBACK__UNAVAILABLE_AFTER_MS", "0")];
    let daemon = start(&sim, store.path(), &dead, &settings);
    for token in &tokens {
        assert_eq!(content(&sim, token).await, "it is down");
    }
    stop(daemon.running);
}

/// The first response as Discord has it.
fn original(sim: &SimHandle, token: &str) -> Value {
    let application = sim.application("sim-bot-token").unwrap();
    let url = sim.api_url();
    let (host, base) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let path = format!("/{base}/webhooks/{application}/{token}/messages/@original");
    tokio::task::block_in_place(|| guildhall_testkit::program::get(host.parse().unwrap(), &path)).json()
}
