//! `guildhall ops` on a real daemon.

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
};

use serde_json::{Value, json};

use super::stage::Stage;

const ROLE: &str = r#"{"name": "Pilots", "key": "pilots"}"#;

#[test]
fn an_operation_is_submitted_waited_for_and_shown() {
    let stage = Stage::start();
    let guild = stage.guild(0);
    let submit = ["ops", "submit", "--guild", &guild, "--kind", "create_role", "--payload", ROLE];
    let done = stage.run(&[&submit[..], &["--idempotency-key", "k-1", "--reason", "a crew", "--wait"]].concat()).fine();
    assert!(done.starts_with("ID ") && done.contains("succeeded") && done.contains("created role_id "), "{done}");

    // Again, as a client would that never received the response.
    let again = stage.run(&[&submit[..], &["--idempotency-key", "k-1", "-o", "json"]].concat()).json();
    assert_eq!((&again["replayed"], &again["state"]), (&json!(true), &json!("succeeded")), "{again}");
    let id = again["id"].as_str().unwrap();

    let shown = stage.run(&["ops", "show", id]).fine();
    for part in
        [&format!("id        {id}"), "state     succeeded", "reason    a crew", "key       k-1", "\"name\":\"Pilots\""]
    {
        assert!(shown.contains(part), "no {part:?} in\n{shown}");
    }
    let yaml = stage.run(&["ops", "show", id, "-o", "yaml"]).fine();
    assert!(yaml.contains("state: succeeded\n") && yaml.contains(&format!("guild_id: '{guild}'\n")), "{yaml}");

    // Without a key one is generated, so this is another operation.
    let other = stage.run(&[&submit[..], &["-o", "json"]].concat()).json();
    assert!(other["replayed"] == json!(false) && other["id"] != again["id"], "{other}");
    let listed = stage.run(&["ops", "list", "--guild", &guild, "--kind", "create_role", "-o", "json"]).json();
    assert_eq!(listed["operations"].as_array().unwrap().len(), 2, "{listed}");
    let watched = stage.run(&["ops", "watch", id, other["id"].as_str().unwrap()]).fine();
    assert_eq!(watched.lines().filter(|line| line.contains("succeeded")).count(), 2, "{watched}");
}

#[test]
fn what_is_wrong_with_an_operation_is_told_by_its_field() {
    let stage = Stage::start();
    let guild = stage.guild(0);
    let submit = |kind: &str, payload: &str| {
        stage.run(&["ops", "submit", "--guild", &guild, "--kind", kind, "--payload", payload])
    };
    let says = submit("delete_role", r#"{"role_id": 5, "nme": 1}"#).failed();
    assert!(
        says.contains("(422)") && says.contains("\n  payload.role_id: ") && says.contains("\n  payload.nme: "),
        "{says}"
    );
    assert!(submit("make_role", "{}").failed().contains("\n  kind: "));
    let says = submit("create_role", "{name: x}").failed();
    assert!(says.contains("--payload is not valid JSON") && says.contains("@FILE"), "{says}");
    assert!(stage.run(&["ops", "show", "nonsense"]).failed().contains("id: "));
    let nowhere = "01981a3b-0000-7000-8000-000000000000";
    assert!(stage.run(&["ops", "show", nowhere]).failed().contains(nowhere));
    assert!(stage.run(&["ops", "list", "--state", "odd"]).failed().contains("state: must be one of "));
    assert!(stage.run(&["ops", "submit", "--guild", "1"]).misused().contains("--kind"));
    assert_eq!(stage.run(&["ops", "submit", "--kind", "a", "-f", "x.yaml"]).code, 2);
    // An invalid guild id.
    let says = stage.run(&["ops", "submit", "--guild", "../keys", "--kind", "create_role"]).failed();
    assert!(says.contains("guild_id"), "{says}");
}

#[test]
fn a_payload_may_come_from_a_file_or_from_standard_input() {
    let stage = Stage::start();
    let guild = stage.guild(0);
    stage.run(&["guilds", "pause", &guild]).fine();
    stage.cli.file("payload.yaml", "name: Gunners\nkey: gunners\n");
    let submit = |payload: &str, input: &str| {
        let args = ["ops", "submit", "--guild", &guild, "--kind", "create_role", "--payload", payload, "-o", "json"];
        let id = stage.cli.run_with(&args, input).json()["id"].as_str().unwrap().to_owned();
        stage.run(&["ops", "show", &id, "-o", "json"]).json()["payload"].clone()
    };
    assert_eq!(submit("@payload.yaml", ""), json!({"name": "Gunners", "key": "gunners"}));
    assert_eq!(submit("-", r#"{"name": "Cooks"}"#)["name"], "Cooks");
    let missing = ["ops", "submit", "--guild", &guild, "--kind", "create_role", "--payload", "@none.json"];
    assert!(stage.run(&missing).failed().contains("none.json cannot be read"));
}

#[test]
fn a_file_of_many_goes_in_order_in_as_many_requests_as_it_needs() {
    let stage = Stage::start();
    let (first, second) = (stage.guild(0), stage.guild(1));
    stage.run(&["guilds", "pause", &first, &second]).fine();
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
    stage.cli.file("many.json", &json!(operations).to_string());
    let submit = ["ops", "submit", "--guild", &first, "-f", "many.json", "--idempotency-key", "run-1", "-o", "json"];
    let accepted = stage.run(&submit).json();
    let accepted = accepted["operations"].as_array().unwrap();
    assert_eq!(accepted.len(), 1_250);
    let others = accepted.iter().filter(|one| one["guild_id"] == second.as_str()).count();
    assert_eq!(others, 25);

    let listed = stage.run(&["ops", "list", "--guild", &first, "--all", "-o", "json"]).json();
    let mut listed = listed["operations"].as_array().unwrap().clone();
    assert_eq!(listed.len(), 1_225, "all pages");
    listed.sort_by_key(|one| one["seq"].as_u64().unwrap());
    let numbers: Vec<u32> = listed
        .iter()
        .map(|one| one["payload"]["name"].as_str().unwrap().rsplit(' ').next().unwrap().parse().unwrap())
        .collect();
    assert!(numbers.is_sorted(), "the order of the file is the order of the queue");
    let some = stage.run(&["ops", "list", "--guild", &first, "--limit", "600", "-o", "json"]).json();
    assert_eq!(some["operations"].as_array().unwrap().len(), 600);
    assert!(some["next"].is_string());
    let told = stage.run(&["ops", "list", "--guild", &first]);
    assert!(told.err.contains("first 50 entries") && told.err.contains("--all"), "{told:?}");

    // The same submission again has no effect.
    let again = stage.run(&submit).json();
    let ids = |list: &[Value]| list.iter().map(|one| one["id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(again["operations"].as_array().unwrap()), ids(accepted));
    assert!(again["operations"].as_array().unwrap().iter().all(|one| one["replayed"] == true));
}

#[test]
fn mistakes_in_a_file_are_told_by_their_place_in_it_and_what_was_accepted_too() {
    let stage = Stage::start();
    let (first, second) = (stage.guild(0), stage.guild(1));
    stage.run(&["guilds", "pause", &first, &second]).fine();
    let file = format!(
        "- {{kind: create_role, payload: {{name: a}}}}\n\
         - {{kind: create_role, payload: {{name: b}}, guild_id: '{second}'}}\n\
         - {{kind: create_role, payload: {{name: c}}}}\n\
         - {{kind: create_role, payload: {{nam: d}}, guild_id: '{second}'}}\n"
    );
    stage.cli.file("some.yaml", &file);
    let ran = stage.run(&["ops", "submit", "--guild", &first, "-f", "some.yaml"]);
    assert_eq!(ran.out.lines().count(), 3, "the header, and the two of the first guild: {ran:?}");
    let says = ran.failed();
    assert!(says.contains("2 of 4 operations were accepted") && says.contains("operations[3].payload.nam: "), "{says}");
    let key = says.split("--idempotency-key ").nth(1).unwrap().split(' ').next().unwrap();
    stage.cli.file("some.yaml", &file.replace("nam: d", "name: d"));
    let again = stage
        .run(&["ops", "submit", "--guild", &first, "-f", "some.yaml", "--idempotency-key", key, "-o", "json"])
        .json();
    let replayed: Vec<_> = again["operations"].as_array().unwrap().iter().map(|one| one["replayed"] == true).collect();
    assert_eq!(replayed, [true, false, true, false], "it continues where it stopped: {again}");
    assert!(
        stage.cli.run_with(&["ops", "submit", "-f", "-"], "[1]").failed().contains("operations[0] must be an object")
    );
}

#[test]
fn many_are_waited_for_and_one_that_fails_is_told_by_the_exit_code() {
    let stage = Stage::start();
    let guild = stage.guild(0);
    let file = format!(
        "guild_id: {guild}\noperations:\n- {{kind: create_role, payload: {{name: a, key: a}}}}\n\
         - {{kind: create_role, payload: {{name: b}}}}\n"
    );
    let done = stage.cli.run_with(&["ops", "submit", "-f", "-", "--wait", "-o", "json"], &file).json();
    let states: Vec<_> = done["operations"].as_array().unwrap().iter().map(|one| one["state"].clone()).collect();
    assert_eq!(states, ["succeeded", "succeeded"], "{done}");
    assert!(done["operations"][0]["result"]["role_id"].is_string(), "{done}");

    let dead = stage.dead(&guild);
    let watched = stage.run(&["ops", "watch", &dead, "-o", "json"]);
    assert_eq!(watched.code, 1, "{watched:?}");
    let line: Value = serde_json::from_str(watched.out.trim_end()).unwrap();
    assert_eq!(line["state"], "dead");

    stage.run(&["guilds", "pause", &guild]).fine();
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
    let late = stage.run(&args);
    assert!(late.out.contains("queued"), "{late:?}");
    let says = late.failed();
    assert!(
        says.contains("timed out after 300ms: 1 of 1 operations still pending") && says.contains("ops watch"),
        "{says}"
    );
}

#[test]
fn an_operation_is_taken_back_made_due_or_done_again() {
    let stage = Stage::start();
    let guild = stage.guild(0);
    stage.run(&["guilds", "pause", &guild]).fine();
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
        stage.run(&args).json()["id"].as_str().unwrap().to_owned()
    };
    let (one, two) = (submit("1d"), submit("1h30m"));
    assert_eq!(stage.run(&["ops", "retry", &one]).fine(), format!("{one} is due now\n"));
    assert_eq!(stage.run(&["ops", "cancel", &one]).fine(), format!("{one} is cancelled\n"));
    assert_eq!(stage.run(&["ops", "cancel", &one, &two]).fine(), format!("{one} is cancelled\n{two} is cancelled\n"));
    let listed = stage.run(&["ops", "list", "--state", "cancelled", "-o", "json"]).json();
    assert_eq!(listed["operations"].as_array().unwrap().len(), 2);

    stage.run(&["guilds", "resume", &guild]).fine();
    let dead = stage.dead(&guild);
    let again = stage.run(&["ops", "retry", &dead, "--wait"]);
    assert!(again.code == 1 && again.out.contains(" dead "), "it fails again: {again:?}");
    let mixed = stage.run(&["ops", "cancel", &dead, &two]);
    assert_eq!(
        (mixed.code, mixed.out),
        (1, format!("{two} is cancelled\n")),
        "a rejected operation does not stop the others"
    );
    assert!(mixed.err.contains("(409)") && mixed.err.contains(&dead), "{}", mixed.err);
    assert!(stage.run(&["ops", "retry", &dead]).failed().contains("(409)"));
}

#[test]
fn all_of_a_guild_is_followed_over_the_daemons_own_stream() {
    let stage = Stage::start();
    let (one, two) = (stage.guild(0), stage.guild(1));
    let mut command = stage.cli.command(&["ops", "watch", "--guild", &one]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut says = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut says).unwrap();
    assert!(says.starts_with("Following"), "{says}");
    for guild in [&two, &one] {
        stage.run(&["ops", "submit", "--guild", guild, "--kind", "create_role", "--payload", ROLE, "--wait"]).fine();
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
fn whoever_waits_hears_of_the_end_over_the_stream() {
    let stage = Stage::start();
    let guild = stage.guild(0);
    stage.run(&["guilds", "pause", &guild]).fine();
    let submit = ["ops", "submit", "--guild", &guild, "--kind", "create_role", "--payload", ROLE, "-o", "json"];
    let id = stage.run(&submit).json()["id"].as_str().unwrap().to_owned();
    let mut command = stage.cli.command(&["ops", "watch", &id]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("queued"));
    stage.run(&["guilds", "resume", &guild]).fine();
    assert!(lines.map(Result::unwrap).last().unwrap().contains("succeeded"));
    assert!(child.wait().unwrap().success());
    let shown = stage.run(&["ops", "show", &id]).fine();
    assert!(shown.contains("AT                    WHAT") && shown.contains("accepted"), "it has a timeline: {shown}");
}

#[test]
fn dead_letters_are_found_by_their_words_and_thrown_away_together() {
    let stage = Stage::start();
    let guild = stage.guild(0);
    let (one, two) = (stage.dead(&guild), stage.dead(&guild));
    let listed = stage.run(&["dlq", "list", "--reason", "UNKNOWN", "--died-after", "1h", "-o", "json"]).json();
    assert_eq!(listed["dead_letters"].as_array().unwrap().len(), 2, "{listed}");
    let none = stage.run(&["dlq", "list", "--died-before", "1h", "-o", "json"]).json();
    assert_eq!(none["dead_letters"], json!([]));
    assert_eq!(stage.run(&["dlq", "discard", "--reason", "nothing like it"]).fine(), "0 discarded.\n");
    assert_eq!(stage.run(&["dlq", "discard", "--guild", &guild, "--kind", "assign_role"]).fine(), "2 discarded.\n");
    for id in [&one, &two] {
        assert!(stage.run(&["dlq", "show", id]).failed().contains("(404)"));
    }
    let listed = stage.run(&["ops", "list", "--created-after", "1h", "--state", "dead", "-o", "json"]).json();
    assert_eq!(listed["operations"].as_array().unwrap().len(), 2, "{listed}");
}
