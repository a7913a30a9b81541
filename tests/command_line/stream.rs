//! Following operations over the stream, against a server that disconnects, forgets, or has no stream.

use serde_json::{Value, json};

use super::{
    fake::{Asked, Fake, Reply, problem},
    stage::Cli,
};

fn operation(id: &str, state: &str) -> Value {
    json!({"id": id, "kind": "create_role", "guild_id": "7", "state": state, "attempts": 1, "max_attempts": 3,
        "created_at": "2026-01-31T12:00:00.000Z", "updated_at": "2026-01-31T12:00:01.000Z", "error": null, "result": null})
}

fn event(cursor: &str, id: &str, state: &str) -> String {
    format!("id: {cursor}\nevent: operation\ndata: {}\n\n", operation(id, state))
}

fn is_stream(asked: &Asked) -> bool {
    asked.path.starts_with("/v1/operations/stream")
}

/// A server with one stream for each connection. A lookup of an operation returns this state.
fn fake(streams: Vec<Vec<String>>, looked: &'static str) -> Fake {
    let taken = std::sync::atomic::AtomicUsize::new(0);
    Fake::start(move |asked, _| {
        if is_stream(asked) {
            let number = taken.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            return streams.get(number).map_or(Reply::Silence, |pieces| Reply::Stream(pieces.clone()));
        }
        let id = asked.path.rsplit('/').next().unwrap();
        Reply::Json(200, operation(id, looked))
    })
}

fn streams(fake: &Fake) -> Vec<Asked> {
    fake.asked().into_iter().filter(is_stream).collect()
}

#[test]
fn a_stream_that_breaks_goes_on_after_the_last_event_that_came_whole() {
    let half = "id: c3\nevent: operation\ndata: {\"id\": \"b\", \"sta".to_owned();
    let first = vec![": keep-alive\n\n".to_owned(), event("c1", "a", "running"), event("c2", "a", "succeeded"), half];
    let second = vec![
        event("c3", "b", "running"),
        "event: nothing-known\ndata: x\n\n".to_owned(),
        event("c4", "b", "succeeded"),
    ];
    let fake = fake(vec![first, second], "queued");
    let ran = Cli::at(&fake.url()).run(&["ops", "watch", "a", "b", "--guild", "7"]);
    let lines: Vec<&str> = ran.out.lines().map(|line| line.split("  ").nth(1).unwrap()).collect();
    assert_eq!((ran.code, lines), (0, vec!["b", "a", "a", "a", "b", "b"]), "{ran:?}");
    assert!(ran.out.contains("2026-01-31T12:00:01Z  a  create_role  guild 7  succeeded"), "{ran:?}");
    assert!(ran.err.contains("2 succeeded, 0 did not."), "{ran:?}");
    let asked = streams(&fake);
    assert_eq!(asked[0].path, "/v1/operations/stream?guild_id=7");
    assert_eq!((asked[0].header("last-event-id"), asked[0].header("accept")), (None, Some("text/event-stream")));
    assert_eq!(
        (asked.len(), asked[1].header("last-event-id")),
        (2, Some("c2")),
        "the incomplete event is requested again"
    );
}

#[test]
fn what_was_missed_is_looked_at() {
    // It disconnects before the first event id, then reports a gap.
    let fake = fake(vec![vec![], vec!["event: gap\ndata: {}\n\n".to_owned()]], "succeeded");
    // The first lookup precedes the first disconnect, and finds it done.
    Cli::at(&fake.url()).run(&["ops", "watch", "a"]).fine();

    let looks = std::sync::atomic::AtomicUsize::new(0);
    let fake = Fake::start(move |asked, _| {
        if is_stream(asked) {
            return Reply::Stream(vec!["id: c9\nevent: gap\n\n".to_owned()]);
        }
        let before = looks.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Reply::Json(200, operation("a", if before == 0 { "queued" } else { "dead" }))
    });
    let ran = Cli::at(&fake.url()).run(&["ops", "watch", "a", "-o", "json"]);
    let states: Vec<Value> =
        ran.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["state"].clone()).collect();
    assert_eq!((ran.code, states), (1, vec![json!("queued"), json!("dead")]));
}

#[test]
fn all_of_a_guild_is_followed_until_whoever_reads_has_had_enough() {
    let many: Vec<String> = (0..200).map(|n| event(&n.to_string(), &format!("op-{n}"), "queued")).collect();
    let fake = fake(vec![many], "queued");
    let cli = Cli::at(&fake.url());
    let command = format!(
        "{} ops watch --guild 7 --kind create_role --state queued --after c0 | head -n 3",
        env!("CARGO_BIN_EXE_guildhall")
    );
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &command]).env("GUILDHALL_API", fake.url()).env("GUILDHALL_KEY", "gh_test_0123456789");
    let output = shell.output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert_eq!(out.lines().count(), 3, "{out}");
    assert!(out.contains("op-0") && out.contains("op-2"), "{out}");
    let first = &streams(&fake)[0];
    assert_eq!(first.path, "/v1/operations/stream?guild_id=7&kind=create_role&state=queued");
    assert_eq!(first.header("last-event-id"), Some("c0"));
    assert_eq!(cli.run(&["ops", "watch", "a", "--kind", "create_role"]).code, 2, "the kind of an operation is fixed");
}

#[test]
fn without_a_stream_operations_are_looked_at_until_they_are_over() {
    for older in [
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
        let looks = std::sync::atomic::AtomicUsize::new(0);
        let fake = Fake::start(move |asked, _| {
            if is_stream(asked) {
                return older();
            }
            let before = looks.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            Reply::Json(200, operation("a", ["queued", "running", "succeeded"][before.min(2)]))
        });
        let out = Cli::at(&fake.url()).run(&["ops", "watch", "a"]).fine();
        assert_eq!(out.lines().count(), 3, "{out}");
        let says = Cli::at(&fake.url()).run(&["ops", "watch"]).failed();
        assert!(says.contains("does not support the operation stream; it may be older"), "{says}");
    }
}

#[test]
fn a_stream_that_is_refused_or_stays_away_is_not_asked_for_ever() {
    let fake = Fake::start(|_, _| problem(403, "forbidden", "No.", json!({"needs": "operations:read"})));
    let says = Cli::at(&fake.url()).run(&["ops", "watch", "--guild", "7"]).failed();
    assert!(says.contains("lacks the scope operations:read"), "{says}");
    assert_eq!(fake.asked().len(), 1);

    // The stream was open once. Then its process is gone, and another program listens.
    let fake =
        Fake::start(
            |_, before| {
                if before == 0 { Reply::Stream(vec![]) } else { problem(401, "unauthorized", "No.", json!({})) }
            },
        );
    assert!(Cli::at(&fake.url()).run(&["ops", "watch"]).failed().contains("rejected the key"));
}

#[test]
fn an_operation_that_is_not_there_is_told_and_fails() {
    let fake = Fake::start(|asked, _| {
        if is_stream(asked) {
            return Reply::Open;
        }
        problem(404, "not-found", "There is no operation.", json!({}))
    });
    let ran = Cli::at(&fake.url()).run(&["ops", "watch", "a"]);
    assert!(ran.code == 1 && ran.out.contains("operation a does not exist or was removed"), "{ran:?}");
}

#[test]
fn a_daemon_that_can_wait_is_asked_to_and_not_asked_again() {
    let done = operation("a", "succeeded");
    let fake = Fake::start(move |_, _| Reply::Json(200, done.clone()));
    let args =
        ["ops", "submit", "--guild", "7", "--kind", "create_role", "--wait", "--wait-timeout", "5m", "-o", "json"];
    let shown = Cli::at(&fake.url()).run(&args).json();
    assert_eq!(shown["operations"][0]["state"], "succeeded");
    let asked = fake.asked();
    assert_eq!((asked.len(), asked[0].header("prefer")), (1, Some("wait=60")));
}

#[test]
fn many_are_heard_of_over_a_stream_that_was_open_before_they_were_submitted() {
    let fake = Fake::start(|asked, _| {
        if is_stream(asked) {
            return Reply::Stream(vec![
                event("1", "a", "succeeded"),
                event("2", "z", "dead"),
                event("3", "b", "succeeded"),
            ]);
        }
        assert_eq!(asked.method, "POST", "no lookup is needed: {asked:?}");
        let accepted =
            |id: &str| json!({"id": id, "kind": "create_role", "guild_id": "7", "state": "queued", "replayed": false});
        Reply::Json(202, json!({"operations": [accepted("a"), accepted("b")]}))
    });
    let cli = Cli::at(&fake.url());
    cli.file("two.json", r#"[{"kind": "create_role"}, {"kind": "create_role"}]"#);
    let shown = cli.run(&["ops", "submit", "--guild", "7", "-f", "two.json", "--wait", "-o", "json"]).json();
    let states: Vec<_> = shown["operations"].as_array().unwrap().iter().map(|one| one["state"].clone()).collect();
    assert_eq!(states, ["succeeded", "succeeded"]);
    assert!(is_stream(&fake.asked()[0]) && fake.asked()[0].path.ends_with("guild_id=7"), "{:?}", fake.asked());
}
