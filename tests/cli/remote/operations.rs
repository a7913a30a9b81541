//! `guildhall ops` on a real daemon.

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
};

use serde_json::{Value, json};

use super::fixture::DaemonFixture;

const ROLE: &str = r#"{"name": "Pilots", "key": "pilots"}"#;

#[test]
fn operation_is_submitted_awaited_and_shown() {
    let fixture = DaemonFixture::start();
    let guild = fixture.guild(0);
    let submit = ["ops", "submit", "--guild", &guild, "--kind", "create_role", "--payload", ROLE];
    let done = fixture
        .run(&[&submit[..], &["--idempotency-key", "k-1", "--reason", "a crew", "--wait"]].concat())
        .expect_success();
    assert!(done.starts_with("ID ") && done.contains("succeeded") && done.contains("created role_id "), "{done}");

    // Again, as a client would that never received the response.
    let repeated = fixture.run(&[&submit[..], &["--idempotency-key", "k-1", "-o", "json"]].concat()).json();
    assert_eq!((&repeated["replayed"], &repeated["state"]), (&json!(true), &json!("succeeded")), "{repeated}");
    let id = repeated["id"].as_str().unwrap();

    let output = fixture.run(&["ops", "show", id]).expect_success();
    for part in
        [&format!("id        {id}"), "state     succeeded", "reason    a crew", "key       k-1", "\"name\":\"Pilots\""]
    {
        assert!(output.contains(part), "no {part:?} in\n{output}");
    }
    let yaml = fixture.run(&["ops", "show", id, "-o", "yaml"]).expect_success();
    assert!(yaml.contains("state: succeeded\n") && yaml.contains(&format!("guild_id: '{guild}'\n")), "{yaml}");

    // Without a key one is generated, so this is another operation.
    let other = fixture.run(&[&submit[..], &["-o", "json"]].concat()).json();
    assert!(other["replayed"] == json!(false) && other["id"] != repeated["id"], "{other}");
    let listed = fixture.run(&["ops", "list", "--guild", &guild, "--kind", "create_role", "-o", "json"]).json();
    assert_eq!(listed["operations"].as_array().unwrap().len(), 2, "{listed}");
    let watched = fixture.run(&["ops", "watch", id, other["id"].as_str().unwrap()]).expect_success();
    assert_eq!(watched.lines().filter(|line| line.contains("succeeded")).count(), 2, "{watched}");
}

#[test]
fn validation_errors_name_their_fields() {
    let fixture = DaemonFixture::start();
    let guild = fixture.guild(0);
    let submit = |kind: &str, payload: &str| {
        fixture.run(&["ops", "submit", "--guild", &guild, "--kind", kind, "--payload", payload])
    };
    let message = submit("delete_role", r#"{"role_id": 5, "nme": 1}"#).expect_failure();
    assert!(
        message.contains("(422)") && message.contains("\n  payload.role_id: ") && message.contains("\n  payload.nme: "),
        "{message}"
    );
    assert!(submit("make_role", "{}").expect_failure().contains("\n  kind: "));
    let message = submit("create_role", "{name: x}").expect_failure();
    assert!(message.contains("--payload is not valid JSON") && message.contains("@FILE"), "{message}");
    assert!(fixture.run(&["ops", "show", "nonsense"]).expect_failure().contains("id: "));
    let unknown_id = "01981a3b-0000-7000-8000-000000000000";
    assert!(fixture.run(&["ops", "show", unknown_id]).expect_failure().contains(unknown_id));
    assert!(fixture.run(&["ops", "list", "--state", "odd"]).expect_failure().contains("state: must be one of "));
    assert!(fixture.run(&["ops", "submit", "--guild", "1"]).expect_usage_error().contains("--kind"));
    assert_eq!(fixture.run(&["ops", "submit", "--kind", "a", "-f", "x.yaml"]).code, 2);
    // An invalid guild id.
    let message = fixture.run(&["ops", "submit", "--guild", "../keys", "--kind", "create_role"]).expect_failure();
    assert!(message.contains("guild_id"), "{message}");
}

#[test]
fn payload_is_read_from_a_file_or_standard_input() {
    let fixture = DaemonFixture::start();
    let guild = fixture.guild(0);
    fixture.run(&["guilds", "pause", &guild]).expect_success();
    fixture.cli.file("payload.yaml", "name: Gunners\nkey: gunners\n");
    let submit = |payload: &str, input: &str| {
        let args = ["ops", "submit", "--guild", &guild, "--kind", "create_role", "--payload", payload, "-o", "json"];
        let id = fixture.cli.run_with(&args, input).json()["id"].as_str().unwrap().to_owned();
        fixture.run(&["ops", "show", &id, "-o", "json"]).json()["payload"].clone()
    };
    assert_eq!(submit("@payload.yaml", ""), json!({"name": "Gunners", "key": "gunners"}));
    assert_eq!(submit("-", r#"{"name": "Cooks"}"#)["name"], "Cooks");
    let missing = ["ops", "submit", "--guild", &guild, "--kind", "create_role", "--payload", "@none.json"];
    assert!(fixture.run(&missing).expect_failure().contains("none.json cannot be read"));
}

#[test]
fn large_file_is_submitted_in_order_in_several_requests() {
    let fixture = DaemonFixture::start();
    let (first, second) = (fixture.guild(0), fixture.guild(1));
    fixture.run(&["guilds", "pause", &first, &second]).expect_success();
    // More than any version of the daemon takes in one request, with some for another guild in between.
    let operations: Vec<Value> = (0..1_250)
        .map(|n| {
            let mut one = json!({"kind": "create_role", "payload": {"name": format!("role {n}")}});
            if n % 50 == 7 {
                one["guild_id"] = second.clone().into();
            }
            one
        })
        .collect();
    fixture.cli.file("many.json", &json!(operations).to_string());
    let submit = ["ops", "submit", "--guild", &first, "-f", "many.json", "--idempotency-key", "run-1", "-o", "json"];
    let accepted = fixture.run(&submit).json();
    let accepted = accepted["operations"].as_array().unwrap();
    assert_eq!(accepted.len(), 1_250);
    let others = accepted.iter().filter(|one| one["guild_id"] == second.as_str()).count();
    assert_eq!(others, 25);

    let listed = fixture.run(&["ops", "list", "--guild", &first, "--all", "-o", "json"]).json();
    let mut listed = listed["operations"].as_array().unwrap().clone();
    assert_eq!(listed.len(), 1_225, "all pages");
    listed.sort_by_key(|one| one["seq"].as_u64().unwrap());
    let numbers: Vec<u32> = listed
        .iter()
        .map(|one| one["payload"]["name"].as_str().unwrap().rsplit(' ').next().unwrap().parse().unwrap())
        .collect();
    assert!(numbers.is_sorted(), "the order of the file is the order of the queue");
    let some = fixture.run(&["ops", "list", "--guild", &first, "--limit", "600", "-o", "json"]).json();
    assert_eq!(some["operations"].as_array().unwrap().len(), 600);
    assert!(some["next"].is_string());
    let result = fixture.run(&["ops", "list", "--guild", &first]);
    assert!(result.err.contains("first 50 entries") && result.err.contains("--all"), "{result:?}");

    // The same submission again has no effect.
    let repeated = fixture.run(&submit).json();
    let ids = |list: &[Value]| list.iter().map(|one| one["id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(repeated["operations"].as_array().unwrap()), ids(accepted));
    assert!(repeated["operations"].as_array().unwrap().iter().all(|one| one["replayed"] == true));
}

#[test]
fn errors_in_a_file_name_their_position() {
    let fixture = DaemonFixture::start();
    let (first, second) = (fixture.guild(0), fixture.guild(1));
    fixture.run(&["guilds", "pause", &first, &second]).expect_success();
    let file = format!(
        "- {{kind: create_role, payload: {{name: a}}}}\n\
         - {{kind: create_role, payload: {{name: b}}, guild_id: '{second}'}}\n\
         - {{kind: create_role, payload: {{name: c}}}}\n\
         - {{kind: create_role, payload: {{nam: d}}, guild_id: '{second}'}}\n"
    );
    fixture.cli.file("some.yaml", &file);
    let result = fixture.run(&["ops", "submit", "--guild", &first, "-f", "some.yaml"]);
    assert_eq!(result.out.lines().count(), 3, "the header, and the two of the first guild: {result:?}");
    let message = result.expect_failure();
    assert!(
        message.contains("2 of 4 operations were accepted") && message.contains("operations[3].payload.nam: "),
        "{message}"
    );
    let key = message.split("--idempotency-key ").nth(1).unwrap().split(' ').next().unwrap();
    fixture.cli.file("some.yaml", &file.replace("nam: d", "name: d"));
    let repeated = fixture
        .run(&["ops", "submit", "--guild", &first, "-f", "some.yaml", "--idempotency-key", key, "-o", "json"])
        .json();
    let replayed: Vec<_> =
        repeated["operations"].as_array().unwrap().iter().map(|one| one["replayed"] == true).collect();
    assert_eq!(replayed, [true, false, true, false], "it continues where it stopped: {repeated}");
    assert!(
        fixture
            .cli
            .run_with(&["ops", "submit", "-f", "-"], "[1]")
            .expect_failure()
            .contains("operations[0] must be an object")
    );
}

#[test]
fn failed_operation_sets_the_exit_code() {
    let fixture = DaemonFixture::start();
    let guild = fixture.guild(0);
    let file = format!(
        "guild_id: {guild}\noperations:\n- {{kind: create_role, payload: {{name: a, key: a}}}}\n\
         - {{kind: create_role, payload: {{name: b}}}}\n"
    );
    let done = fixture.cli.run_with(&["ops", "submit", "-f", "-", "--wait", "-o", "json"], &file).json();
    let states: Vec<_> = done["operations"].as_array().unwrap().iter().map(|one| one["state"].clone()).collect();
    assert_eq!(states, ["succeeded", "succeeded"], "{done}");
    assert!(done["operations"][0]["result"]["role_id"].is_string(), "{done}");

    let dead = fixture.submit_dead(&guild);
    let watched = fixture.run(&["ops", "watch", &dead, "-o", "json"]);
    assert_eq!(watched.code, 1, "{watched:?}");
    let line: Value = serde_json::from_str(watched.out.trim_end()).unwrap();
    assert_eq!(line["state"], "dead");

    fixture.run(&["guilds", "pause", &guild]).expect_success();
    let args = [
        "ops",
        "submit",
        "--guild",
        &guild,
        "--kind",
        "create_role",
        "--payload",
        ROLE,
        "--wait",
        "--wait-timeout",
        "300ms",
    ];
    let late = fixture.run(&args);
    assert!(late.out.contains("queued"), "{late:?}");
    let message = late.expect_failure();
    assert!(
        message.contains("timed out after 300ms: 1 of 1 operations still pending") && message.contains("ops watch"),
        "{message}"
    );
}

#[test]
fn operation_is_cancelled_expedited_or_redriven() {
    let fixture = DaemonFixture::start();
    let guild = fixture.guild(0);
    fixture.run(&["guilds", "pause", &guild]).expect_success();
    let submit = |delay: &str| {
        let args = [
            "ops",
            "submit",
            "--guild",
            &guild,
            "--kind",
            "create_role",
            "--payload",
            ROLE,
            "--delay",
            delay,
            "-o",
            "json",
        ];
        fixture.run(&args).json()["id"].as_str().unwrap().to_owned()
    };
    let (one, two) = (submit("1d"), submit("1h30m"));
    assert_eq!(fixture.run(&["ops", "retry", &one]).expect_success(), format!("{one} is due now\n"));
    assert_eq!(fixture.run(&["ops", "cancel", &one]).expect_success(), format!("{one} is cancelled\n"));
    assert_eq!(
        fixture.run(&["ops", "cancel", &one, &two]).expect_success(),
        format!("{one} is cancelled\n{two} is cancelled\n")
    );
    let listed = fixture.run(&["ops", "list", "--state", "cancelled", "-o", "json"]).json();
    assert_eq!(listed["operations"].as_array().unwrap().len(), 2);

    fixture.run(&["guilds", "resume", &guild]).expect_success();
    let dead = fixture.submit_dead(&guild);
    let repeated = fixture.run(&["ops", "retry", &dead, "--wait"]);
    assert!(repeated.code == 1 && repeated.out.contains(" dead "), "it fails again: {repeated:?}");
    let mixed = fixture.run(&["ops", "cancel", &dead, &two]);
    assert_eq!(
        (mixed.code, mixed.out),
        (1, format!("{two} is cancelled\n")),
        "a rejected operation does not stop the others"
    );
    assert!(mixed.err.contains("(409)") && mixed.err.contains(&dead), "{}", mixed.err);
    assert!(fixture.run(&["ops", "retry", &dead]).expect_failure().contains("(409)"));
}

#[test]
fn watch_follows_a_guild_over_the_stream() {
    let fixture = DaemonFixture::start();
    let (one, two) = (fixture.guild(0), fixture.guild(1));
    let mut command = fixture.cli.command(&["ops", "watch", "--guild", &one]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut message = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut message).unwrap();
    assert!(message.starts_with("Following"), "{message}");
    for guild in [&two, &one] {
        fixture
            .run(&["ops", "submit", "--guild", guild, "--kind", "create_role", "--payload", ROLE, "--wait"])
            .expect_success();
    }
    let mut lines = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        lines.push(line.unwrap());
        if lines.last().unwrap().contains("succeeded") {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(lines.iter().all(|line| line.contains(&one)), "{lines:?}");
    assert!(lines.last().is_some_and(|line| line.contains("succeeded  created role_id ")), "{lines:?}");
}

#[test]
fn watch_ends_when_the_operation_is_final() {
    let fixture = DaemonFixture::start();
    let guild = fixture.guild(0);
    fixture.run(&["guilds", "pause", &guild]).expect_success();
    let submit = ["ops", "submit", "--guild", &guild, "--kind", "create_role", "--payload", ROLE, "-o", "json"];
    let id = fixture.run(&submit).json()["id"].as_str().unwrap().to_owned();
    let mut command = fixture.cli.command(&["ops", "watch", &id]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("queued"));
    fixture.run(&["guilds", "resume", &guild]).expect_success();
    assert!(lines.map(Result::unwrap).last().unwrap().contains("succeeded"));
    assert!(child.wait().unwrap().success());
    let output = fixture.run(&["ops", "show", &id]).expect_success();
    assert!(
        output.contains("AT                    WHAT") && output.contains("accepted"),
        "it has a timeline: {output}"
    );
}

#[test]
fn dead_letters_are_filtered_and_discarded_in_bulk() {
    let fixture = DaemonFixture::start();
    let guild = fixture.guild(0);
    let (one, two) = (fixture.submit_dead(&guild), fixture.submit_dead(&guild));
    let listed = fixture.run(&["dlq", "list", "--reason", "UNKNOWN", "--died-after", "1h", "-o", "json"]).json();
    assert_eq!(listed["dead_letters"].as_array().unwrap().len(), 2, "{listed}");
    let none = fixture.run(&["dlq", "list", "--died-before", "1h", "-o", "json"]).json();
    assert_eq!(none["dead_letters"], json!([]));
    assert_eq!(
        fixture.run(&["dlq", "discard", "--reason", "nothing like it", "--yes"]).expect_success(),
        "0 discarded.\n"
    );
    assert_eq!(
        fixture.run(&["dlq", "discard", "--guild", &guild, "--kind", "assign_role", "--yes"]).expect_success(),
        "2 discarded.\n"
    );
    for id in [&one, &two] {
        assert!(fixture.run(&["dlq", "show", id]).expect_failure().contains("(404)"));
    }
    let listed = fixture.run(&["ops", "list", "--created-after", "1h", "--state", "dead", "-o", "json"]).json();
    assert_eq!(listed["operations"].as_array().unwrap().len(), 2, "{listed}");
}
