//! Following operations over the stream, against a server that disconnects, forgets, or has no stream.

use serde_json::{Value, json};

use super::{
    fake_server::{FakeServer, ReceivedRequest, Reply, accepted, operation, problem},
    fixture::Cli,
};

fn event(cursor: &str, id: &str, state: &str) -> String {
    format!("id: {cursor}\nevent: operation\ndata: {}\n\n", operation(id, state))
}

fn is_stream(request: &ReceivedRequest) -> bool {
    request.path.starts_with("/v1/operations/stream")
}

/// A server with one stream for each connection. A lookup of an operation returns this state.
fn stream_server(streams: Vec<Vec<String>>, state: &'static str) -> FakeServer {
    let opened = std::sync::atomic::AtomicUsize::new(0);
    FakeServer::start(move |request, _| {
        if is_stream(request) {
            let number = opened.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            return streams.get(number).map_or(Reply::Silence, |pieces| Reply::Stream(pieces.clone()));
        }
        let id = request.path.rsplit('/').next().unwrap();
        Reply::Json(200, operation(id, state))
    })
}

fn stream_requests(server: &FakeServer) -> Vec<ReceivedRequest> {
    server.requests().into_iter().filter(is_stream).collect()
}

#[test]
fn stream_resumes_after_the_last_complete_event() {
    let incomplete = "id: c3\nevent: operation\ndata: {\"id\": \"b\", \"sta".to_owned();
    let first =
        vec![": keep-alive\n\n".to_owned(), event("c1", "a", "running"), event("c2", "a", "succeeded"), incomplete];
    let second = vec![
        event("c3", "b", "running"),
        "event: nothing-known\ndata: x\n\n".to_owned(),
        event("c4", "b", "succeeded"),
    ];
    let server = stream_server(vec![first, second], "queued");
    let result = Cli::at(&server.url()).run(&["ops", "watch", "a", "b", "--guild", "7"]);
    let lines: Vec<&str> = result.out.lines().map(|line| line.split("  ").nth(1).unwrap()).collect();
    assert_eq!((result.code, lines), (0, vec!["b", "a", "a", "a", "b", "b"]), "{result:?}");
    assert!(result.out.contains("2026-01-31T12:00:01Z  a  create_role  guild 7  succeeded"), "{result:?}");
    assert!(result.err.contains("2 succeeded, 0 did not."), "{result:?}");
    let requests = stream_requests(&server);
    assert_eq!(requests[0].path, "/v1/operations/stream?guild_id=7");
    assert_eq!((requests[0].header("last-event-id"), requests[0].header("accept")), (None, Some("text/event-stream")));
    assert_eq!(
        (requests.len(), requests[1].header("last-event-id")),
        (2, Some("c2")),
        "the incomplete event is requested again"
    );
}

#[test]
fn missed_operations_are_looked_up() {
    // It disconnects before the first event id, then reports a gap.
    let server = stream_server(vec![vec![], vec!["event: gap\ndata: {}\n\n".to_owned()]], "succeeded");
    // The first lookup precedes the first disconnect, and finds it done.
    Cli::at(&server.url()).run(&["ops", "watch", "a"]).expect_success();

    let lookups = std::sync::atomic::AtomicUsize::new(0);
    let server = FakeServer::start(move |request, _| {
        if is_stream(request) {
            return Reply::Stream(vec!["id: c9\nevent: gap\n\n".to_owned()]);
        }
        let before = lookups.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Reply::Json(200, operation("a", if before == 0 { "queued" } else { "dead" }))
    });
    let result = Cli::at(&server.url()).run(&["ops", "watch", "a", "-o", "json"]);
    let states: Vec<Value> =
        result.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["state"].clone()).collect();
    assert_eq!((result.code, states), (1, vec![json!("queued"), json!("dead")]));
}

#[test]
fn watch_ends_when_its_output_is_closed() {
    // More than a pipe holds, so that it writes after the reader has gone.
    let many: Vec<String> = (0..2_000).map(|n| event(&n.to_string(), &format!("op-{n}"), "queued")).collect();
    let server = stream_server(vec![many], "queued");
    let cli = Cli::at(&server.url());
    let command = format!(
        "{} ops watch --guild 7 --kind create_role --state queued --after c0 | head -n 3",
        env!("CARGO_BIN_EXE_guildhall")
    );
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &command]).env("GUILDHALL_API", server.url()).env("GUILDHALL_KEY", "gh_test_0123456789");
    let output = shell.output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert_eq!(out.lines().count(), 3, "{out}");
    assert!(out.contains("op-0") && out.contains("op-2"), "{out}");
    let first = &stream_requests(&server)[0];
    assert_eq!(first.path, "/v1/operations/stream?guild_id=7&kind=create_role&state=queued");
    assert_eq!(first.header("last-event-id"), Some("c0"));
    assert_eq!(cli.run(&["ops", "watch", "a", "--kind", "create_role"]).code, 2, "the kind of an operation is fixed");
}

#[test]
fn operations_are_polled_without_a_stream() {
    for old_response in [
        || problem(404, "not-found", "No resource exists at this path.", json!({})),
        || {
            problem(
                400,
                "bad-request",
                "id must be a UUID.",
                json!({"errors": [{"field": "id", "message": "must be a UUID"}]}),
            )
        },
    ] {
        let lookups = std::sync::atomic::AtomicUsize::new(0);
        let server = FakeServer::start(move |request, _| {
            if is_stream(request) {
                return old_response();
            }
            let before = lookups.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            Reply::Json(200, operation("a", ["queued", "running", "succeeded"][before.min(2)]))
        });
        let out = Cli::at(&server.url()).run(&["ops", "watch", "a"]).expect_success();
        assert_eq!(out.lines().count(), 3, "{out}");
        let message = Cli::at(&server.url()).run(&["ops", "watch"]).expect_failure();
        assert!(message.contains("does not support the operation stream; it may be older"), "{message}");
    }
}

#[test]
fn refused_stream_is_not_retried_forever() {
    let server = FakeServer::start(|_, _| problem(403, "forbidden", "No.", json!({"needs": "operations:read"})));
    let message = Cli::at(&server.url()).run(&["ops", "watch", "--guild", "7"]).expect_failure();
    assert!(message.contains("lacks the scope operations:read"), "{message}");
    assert_eq!(server.requests().len(), 1);

    // The stream was open once. Then its process is gone, and another program listens.
    let server = FakeServer::start(|_, before| {
        if before == 0 { Reply::Stream(vec![]) } else { problem(401, "unauthorized", "No.", json!({})) }
    });
    assert!(Cli::at(&server.url()).run(&["ops", "watch"]).expect_failure().contains("rejected the key"));
}

#[test]
fn watch_of_an_unknown_operation_fails() {
    let server = FakeServer::start(|request, _| {
        if is_stream(request) {
            return Reply::Open;
        }
        problem(404, "not-found", "There is no operation.", json!({}))
    });
    let result = Cli::at(&server.url()).run(&["ops", "watch", "a"]);
    assert!(result.code == 1 && result.out.contains("operation a does not exist or was removed"), "{result:?}");
}

#[test]
fn wait_uses_the_prefer_header_and_one_request() {
    let done = operation("a", "succeeded");
    let server = FakeServer::start(move |_, _| Reply::Json(200, done.clone()));
    let args =
        ["ops", "submit", "--guild", "7", "--kind", "create_role", "--wait", "--wait-timeout", "5m", "-o", "json"];
    let output = Cli::at(&server.url()).run(&args).json();
    assert_eq!(output["operations"][0]["state"], "succeeded");
    let requests = server.requests();
    assert_eq!((requests.len(), requests[0].header("prefer")), (1, Some("wait=60")));
}

#[test]
fn batch_is_awaited_over_a_stream_opened_before() {
    let server = FakeServer::start(|request, _| {
        if is_stream(request) {
            return Reply::Stream(vec![
                event("1", "a", "succeeded"),
                event("2", "z", "dead"),
                event("3", "b", "succeeded"),
            ]);
        }
        assert_eq!(request.method, "POST", "no lookup is needed: {request:?}");
        Reply::Json(202, json!({"operations": [accepted("a", false), accepted("b", false)]}))
    });
    let cli = Cli::at(&server.url());
    cli.file("two.json", r#"[{"kind": "create_role"}, {"kind": "create_role"}]"#);
    let output = cli.run(&["ops", "submit", "--guild", "7", "-f", "two.json", "--wait", "-o", "json"]).json();
    let states: Vec<_> = output["operations"].as_array().unwrap().iter().map(|one| one["state"].clone()).collect();
    assert_eq!(states, ["succeeded", "succeeded"]);
    assert!(
        is_stream(&server.requests()[0]) && server.requests()[0].path.ends_with("guild_id=7"),
        "{:?}",
        server.requests()
    );
}
