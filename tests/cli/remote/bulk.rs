//! Commands that change many objects, and commands that are interrupted.

use std::{
    io::Read as _,
    process::{Child, Stdio},
};

use guildhall_testkit::program::TEST_TIMEOUT;
use serde_json::{Value, json};

use super::{
    fake_server::{FakeServer, Reply, problem},
    fixture::{Cli, DaemonFixture},
};

const ROLE: &str = r#"{"name": "Pilots", "key": "pilots"}"#;

fn dead_letter_count(fixture: &DaemonFixture) -> usize {
    fixture.run(&["dlq", "list", "-o", "json"]).json()["dead_letters"].as_array().unwrap().len()
}

#[test]
fn bulk_changes_need_a_confirmation_without_a_terminal() {
    let fixture = DaemonFixture::start();
    let guild = fixture.guild(0);
    let (one, two) = (fixture.submit_dead(&guild), fixture.submit_dead(&guild));
    for command in [
        &["dlq", "discard", "--all"][..],
        &["dlq", "discard", "--kind", "assign_role"],
        &["dlq", "redrive", "--all"],
        &["ops", "retry", "--state", "dead"],
        &["ops", "retry", "--all"],
    ] {
        let error = fixture.run(command).expect_failure();
        assert!(
            error.contains(" 2 ") && error.contains("--yes") && error.contains("--dry-run"),
            "{command:?}: {error}"
        );
    }
    let error = fixture.run(&["dlq", "discard", &one]).expect_failure();
    assert!(error.starts_with("error: Discard 1 dead letter? This needs a confirmation"), "{error}");
    for command in [&["dlq", "discard", "--all"][..], &["dlq", "redrive", "--all"], &["ops", "retry", "--all"]] {
        let dry = fixture.run(&[command, &["--dry-run"]].concat());
        assert!(dry.code == 0 && dry.out.contains(&one) && dry.out.contains(&two), "{command:?}: {dry:?}");
        assert!(dry.err.contains("2 dead letters would be ") || dry.err.contains("2 operations would be "), "{dry:?}");
    }
    let dry = fixture.run(&["dlq", "discard", &one, "--dry-run", "-o", "json"]).json();
    assert_eq!((&dry["dead_letters"][0]["id"], &dry["more"]), (&json!(one), &json!(false)));
    assert_eq!(dead_letter_count(&fixture), 2, "nothing was changed");
    assert_eq!(fixture.run(&["dlq", "discard", "--all", "--yes"]).expect_success(), "2 discarded.\n");
    assert!(fixture.run(&["dlq", "discard", "--all", "--yes", "--dry-run"]).expect_usage_error().contains("--yes"));
}

#[test]
fn operations_are_retried_by_a_filter() {
    let fixture = DaemonFixture::start();
    let (guild, other) = (fixture.guild(0), fixture.guild(1));
    let (one, two) = (fixture.submit_dead(&guild), fixture.submit_dead(&guild));
    fixture.submit_dead(&other);
    fixture.run(&["guilds", "pause", "--all"]).expect_success();
    let retried = fixture.run(&["ops", "retry", "--guild", &guild, "--state", "dead", "--yes", "-o", "json"]).json();
    let mut redriven: Vec<_> =
        retried["operations"].as_array().unwrap().iter().map(|one| one["redrive_of"].as_str().unwrap()).collect();
    redriven.sort_unstable();
    let mut expected = [one.as_str(), two.as_str()];
    expected.sort_unstable();
    assert_eq!(redriven, expected, "{retried}");
    // The two are refused: each can be redriven only once.
    let again = fixture.run(&["ops", "retry", "--kind", "assign_role", "--yes"]);
    assert_eq!((again.code, again.err.matches("(409)").count()), (1, 2), "{again:?}");
    let none = fixture.run(&["ops", "retry", "--state", "needs_review", "--yes"]);
    assert!(none.code == 0 && none.err.contains("No matching operations."), "{none:?}");
    let limited = fixture.run(&["ops", "retry", "--all", "--limit", "1", "--dry-run", "-o", "json"]).json();
    assert_eq!(limited["operations"].as_array().unwrap().len(), 1);
    assert!(fixture.run(&["ops", "retry"]).expect_usage_error().contains("--all"));
    assert!(fixture.run(&["ops", "retry", &one, "--state", "dead"]).expect_usage_error().contains("cannot be used"));
}

fn dead_event(place: &str, handler: &str) -> Value {
    json!({"place": place, "handler": handler, "event_type": "member.join", "session": "s", "seq": "4",
        "why": "the webhook returned 410", "attempts": 5, "created_at": "2026-01-31T12:00:00.000Z",
        "event": {"event_type": "member.join", "guild_id": "7"}})
}

#[test]
fn dead_events_are_listed_shown_redriven_and_discarded() {
    let server = FakeServer::start(|request, _| match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/v1/events/dead/17") => Reply::Json(200, dead_event("17", "greeter")),
        ("GET", _) => {
            let events = [dead_event("18", "other"), dead_event("17", "greeter")];
            Reply::Json(200, json!({"events": events, "next": null}))
        }
        ("POST", _) => Reply::Json(202, json!({"revived": true})),
        _ => Reply::Json(204, Value::Null),
    });
    let cli = Cli::at(&server.url());
    let listed = cli.run(&["events", "list"]).expect_success();
    assert!(listed.starts_with("PLACE  HANDLER") && listed.contains("17     greeter"), "{listed}");
    let filtered = cli.run(&["events", "list", "--handler", "greeter", "-o", "json"]).json();
    assert_eq!(filtered["events"].as_array().unwrap().len(), 1);
    assert!(cli.run(&["events", "show", "17"]).expect_success().contains("why      the webhook returned 410"));
    assert_eq!(cli.run(&["events", "redrive", "17"]).expect_success(), "1 redriven.\n");
    let error = cli.run(&["events", "discard", "--all"]).expect_failure();
    assert!(error.contains("Discard 2 dead events?") && error.contains("--yes"), "{error}");
    assert!(cli.run(&["events", "discard", "17"]).expect_failure().contains("--yes"));
    let dry = cli.run(&["events", "discard", "--type", "member.join", "--dry-run"]);
    assert!(dry.err.contains("2 dead events would be discarded."), "{dry:?}");
    let before = server.requests().len();
    assert_eq!(cli.run(&["events", "discard", "--all", "--yes"]).expect_success(), "2 discarded.\n");
    let requests = server.requests();
    let deleted: Vec<_> =
        requests[before..].iter().filter(|one| one.method == "DELETE").map(|one| one.path.as_str()).collect();
    assert_eq!(deleted, ["/v1/events/dead/18", "/v1/events/dead/17"]);
    assert!(requests[..before].iter().all(|one| one.method != "DELETE"), "without a confirmation nothing is discarded");
}

/// Reads an output until it contains a text.
fn read_until(output: &mut impl std::io::Read, expected: &str) -> String {
    let (mut text, mut piece) = (String::new(), [0; 1_024]);
    while !text.contains(expected) {
        let count = output.read(&mut piece).unwrap();
        assert!(count > 0, "no {expected:?} in {text}");
        text += std::str::from_utf8(&piece[..count]).unwrap();
    }
    text
}

/// Sends Ctrl-C to a command, and waits for its exit code.
fn interrupt(child: &mut Child) -> Option<i32> {
    let sent = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let deadline = std::time::Instant::now() + TEST_TIMEOUT;
    while std::time::Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("it does not end");
}

#[test]
fn interrupted_wait_says_what_continues_and_what_is_paused() {
    let fixture = DaemonFixture::start();
    let guild = fixture.guild(0);
    fixture.run(&["guilds", "pause", &guild]).expect_success();
    let submit = ["ops", "submit", "--guild", &guild, "--kind", "create_role", "--payload", ROLE, "-o", "json"];
    let id = fixture.run(&submit).json()["id"].as_str().unwrap().to_owned();
    assert_eq!(fixture.run(&["ops", "show", &id, "-o", "json"]).json()["waits_for"]["reason"], "guild_paused");
    let mut command = fixture.cli.command(&["ops", "watch", &id]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = child.stderr.take().unwrap();
    let paused = format!("Guild {guild} is paused; resume it with `guildhall guilds resume {guild}`");
    let note = read_until(&mut errors, &paused);
    assert_eq!(interrupt(&mut child), Some(130));
    let mut rest = String::new();
    errors.read_to_string(&mut rest).unwrap();
    let output = format!("{note}{rest}");
    assert!(output.contains("interrupted: 1 of 1 operations still pending."), "{output}");
    assert!(
        output.contains(&format!("continue in the background; follow them with `guildhall ops watch {id}`")),
        "{output}"
    );

    // While the daemon itself waits with its response.
    let args = ["ops", "submit", "--guild", &guild, "--kind", "create_role", "--payload", ROLE, "--wait"];
    let mut command = fixture.cli.command(&[&args[..], &["--idempotency-key", "k-7"]].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    fixture.wait_until(|| {
        let pending = ["ops", "list", "--guild", &guild, "--state", "queued", "-o", "json"];
        fixture.run(&pending).json()["operations"].as_array().unwrap().len() == 2
    });
    assert_eq!(interrupt(&mut child), Some(130));
    let mut output = String::new();
    child.stderr.take().unwrap().read_to_string(&mut output).unwrap();
    assert!(output.contains("may have been accepted") && output.contains("--idempotency-key k-7"), "{output}");
}

#[test]
fn watch_without_ids_ends_with_ctrl_c() {
    let fixture = DaemonFixture::start();
    let mut command = fixture.cli.command(&["ops", "watch"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = child.stderr.take().unwrap();
    read_until(&mut errors, "press Ctrl-C to stop.");
    assert_eq!(interrupt(&mut child), Some(0));
    assert!(read_until(&mut errors, "continue").contains("Stopped following; the operations continue."));
}

#[test]
fn status_shows_every_part_of_the_daemon() {
    let fixture = DaemonFixture::start();
    fixture.wait_until(|| fixture.run(&["shards", "list", "-o", "json"]).json()["shards"][0]["state"] == "connected");
    let guild = fixture.guild(0);
    fixture.submit_dead(&guild);
    fixture.run(&["guilds", "pause", &guild]).expect_success();
    let submit = ["ops", "submit", "--guild", &guild, "--kind", "create_role", "--payload", ROLE];
    fixture.run(&submit).expect_success();
    let screen = fixture.run(&["status"]).expect_success();
    for part in [
        "shards      1 of 1 connected, ",
        " of 50 per 1s available",
        "ban budget  ",
        "breakers    0 not closed\n",
        "queues      1 queued; 1 guild is paused\n",
        "dead        1 dead letters, 0 dead events\n",
        "(self): ",
    ] {
        assert!(screen.contains(part), "no {part:?} in\n{screen}");
    }
    assert!(!screen.contains('\u{1b}'), "no terminal: {screen}");
    for format in [&["--json"][..], &["-o", "json"]] {
        let status = fixture.run(&[&["status"], format].concat()).json();
        assert_eq!((&status["queues"]["pending"]["queued"], &status["errors"]), (&json!(1), &json!({})), "{status}");
        assert_eq!(status["instances"]["instances"][0]["is_self"], true);
        assert_eq!(status["shards"][0]["state"], "connected");
    }

    let mut command = fixture.cli.command(&["status", "--watch", "--interval", "100ms", "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    for _ in 0..2 {
        let status: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(status["limits"]["global"]["limit"], 50);
    }
    assert_eq!(interrupt(&mut child), Some(0));
}

#[test]
fn status_says_why_a_part_cannot_be_fetched() {
    let server = FakeServer::start(|request, _| match request.path.as_str() {
        "/v1/queues" => Reply::Json(
            200,
            json!({"pending": {"queued": 3}, "dead_letters": 0, "dead_events": 2,
            "all_paused": true, "paused_guilds": 0}),
        ),
        "/v1/instances" => Reply::Json(200, json!({"instances": "odd"})),
        "/v1/breakers" => Reply::Text(502, "no daemon here"),
        path if path.starts_with("/v1/shards") => problem(403, "forbidden", "No.", json!({"needs": "fleet:read"})),
        _ => problem(404, "not-found", "No resource exists at this path.", json!({})),
    });
    let screen = Cli::at(&server.url()).run(&["status"]).expect_success();
    for part in [
        "shards      not available: the key from GUILDHALL_KEY lacks the scope fleet:read",
        "limits      not available: the daemon at ",
        "ban budget  not available: ",
        "breakers    not available: ",
        "queues      3 queued; everything is paused\n",
        "dead        0 dead letters, 2 dead events\n",
        "instances   not available: cannot read the response of the daemon: invalid type",
    ] {
        assert!(screen.contains(part), "no {part:?} in\n{screen}");
    }
    let value = Cli::at(&server.url()).run(&["status", "--json"]).json();
    assert_eq!(value["shards"], Value::Null);
    assert!(value["errors"]["shards"].as_str().unwrap().contains("fleet:read"), "{value}");

    let none = Cli::at("http://127.0.0.1:1").run(&["status"]);
    assert!(none.code == 1 && none.out.contains("not available: cannot connect to "), "{none:?}");
}

#[test]
fn guilds_are_listed_with_their_names() {
    let fixture = DaemonFixture::start();
    let names = fixture.wait_for_guild_names();
    let (one, two) = (fixture.guild(0), fixture.guild(1));
    let listed = fixture.run(&["guilds", "list"]).expect_success();
    assert!(listed.starts_with("ID ") && listed.lines().count() == 4, "{listed}");
    assert!(listed.lines().any(|line| line.starts_with(&one) && line.contains(&names[0])), "{listed}");
    let first = fixture.run(&["guilds", "list", "--limit", "1", "-o", "json"]).json();
    assert_eq!((first["guilds"].as_array().unwrap().len(), first["next"].is_string()), (1, true), "{first}");
    let message = fixture.run(&["guilds", "show", "77"]).expect_failure();
    assert!(message.contains("77") && message.contains("(404)"), "{message}");
    let erased = fixture.run(&["erase", "--guild", &two, "-o", "json"]).json();
    assert_eq!(erased["removed"]["guild_names"], 1, "{erased}");
    assert!(!fixture.run(&["guilds", "list"]).expect_success().contains(&two));
    fixture.run(&["guilds", "show", &two]).expect_failure();
}
