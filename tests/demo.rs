//! The demo as a new user runs it: its output, how long it serves, its exit code, and that it leaves no process behind.

#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    process::Command,
};

use support::{Ended, Guildhall, Running, get, request, text};

/// The lines of the summary: each step and its result.
fn steps(stdout: &str) -> Vec<(&str, &str)> {
    let table = stdout.lines().skip_while(|line| !line.trim_start().starts_with("expected")).skip(1);
    table
        .take_while(|line| !line.is_empty())
        .map(|line| (line[..32].trim(), line.rsplit(' ').next().unwrap_or_default()))
        .collect()
}

/// The number at the start of a text.
fn number(text: &str) -> u32 {
    text.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

/// The number after these words.
fn number_after(stdout: &str, words: &str) -> u32 {
    number(stdout.split_once(words).unwrap_or_else(|| panic!("no {words:?} in {stdout}")).1)
}

/// Whether a process with this id exists.
fn lives(process: u32) -> bool {
    Command::new("sh").args(["-c", &format!("kill -0 {process} 2>/dev/null")]).status().unwrap().success()
}

#[test]
fn the_demo_survives_its_own_kill_and_exits_with_zero() {
    let folder = tempfile::tempdir().unwrap();
    let demo = Guildhall::new(&["demo", "--exit"]).env("TMPDIR", folder.path().to_str().unwrap());
    let output = demo.output();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}{stderr}");
    let seen = [
        "shards connected",
        "guilds received",
        "members joined",
        "roles assigned (simulator)",
        "commands received",
        "commands deferred (simulator)",
        "commands answered (simulator)",
        "events received, of those sent",
        "kill -9 during the burst",
        "resubmitted and deduplicated",
        "some messages sent while down",
        "messages received by the brain",
        "operations accepted",
        "succeeded",
        "failed or needs review",
        "missing or pending",
        "operations from handlers",
        "effects (simulator)",
        "lost",
        "duplicates",
        "out of order in their guild",
        "429 responses",
        "most calls in any second",
        "identifies (simulator)",
    ];
    assert_eq!(steps(&stdout), seen.map(|step| (step, "ok")), "{stdout}");
    assert!(!stdout.contains("The demo runs until"), "with --exit there is nothing to try: {stdout}");
    assert_eq!(stderr, "", "no log output by default");

    let (first, second) =
        (number_after(&stdout, "running as process "), number_after(&stdout, "Restarted as process "));
    assert_eq!(number_after(&stdout, "kill -9 "), first, "{stdout}");
    assert!(first != second && !lives(first) && !lives(second), "{stdout}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "its store was removed");
}

/// The commands that the demo prints to try, in order.
fn tries(demo: &Running) -> Vec<String> {
    demo.says("The demo runs until Ctrl-C.");
    let mut tries: Vec<String> = Vec::new();
    loop {
        let line = demo.says("");
        let Some(command) = line.strip_prefix("  ") else { continue };
        match tries.last_mut().filter(|last| last.ends_with('\\')) {
            Some(last) => *last = format!("{last}\n{command}"),
            None => tries.push(command.to_owned()),
        }
        if line.ends_with(" instances") {
            return tries;
        }
    }
}

#[test]
fn whatever_the_demo_says_to_try_works_as_it_is_printed() {
    let demo = Guildhall::new(&["demo"]).spawn();
    let tries = tries(&demo);
    let count = |what: &str| tries.iter().filter(|line| line.contains(what)).count();
    assert!(count("curl -s ") >= 9 && count(" ops ") >= 2, "{tries:?}");
    // One shell for all, as a user has it. A status that is not a success makes curl fail.
    let mut script = "set -e\ncurl() { command curl -fS --max-time 60 \"$@\"; }\n".to_owned();
    for (n, line) in tries.iter().enumerate() {
        script += &format!("{line}\necho \"did {n}\"\n");
    }
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let done = out.lines().filter(|line| line.contains("did ")).count();
    assert!(output.status.success() && done == tries.len(), "after {done} of {tries:#?}\n{out}\n{err}");
    assert!(out.contains("\ngh_") && out.contains("create_role"), "{out}");
    demo.signal("TERM");
    assert_eq!(demo.end().code, Some(0));
}

/// An address that the demo prints.
fn address(demo: &Running, start: &str) -> SocketAddr {
    demo.says(start).split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn the_demo_serves_until_it_is_told_to_end() {
    let demo = Guildhall::new(&["demo"]).spawn();
    let sim = address(&demo, "The simulated Discord is at http://");
    let api = address(&demo, "Guildhall is at http://");
    let worker = number(&demo.says("Restarted as process "));
    let key = demo.says("  KEY='");
    let key = key.trim_end_matches('\'');

    let ready = get(api, "/readyz");
    assert_eq!((ready.status, &ready.json()["parts"]["gateway"]["state"]), (200, &"ready".into()));
    assert!(get(api, "/metrics").body.contains("guildhall_gateway_shard_connected{shard=\"1\"} 1"));
    assert_eq!(get(sim, "/sim/state").json()["guild_count"], 10);
    assert_eq!(get(sim, "/sim/score?brief=true").json()["gateway"]["connections"], 2);
    assert_eq!(get(sim, "/sim/faults").json(), serde_json::json!([]), "no faults are left");
    let place = demo.says(&format!("  curl -s -X POST http://{api}"));
    let body = demo.says("    -d '");
    let (place, body) = (place.trim_end_matches(" \\"), body.trim_end_matches('\''));
    let head = format!("{key}\r\nHost: test\r\nConnection: close\r\nContent-Type: application/json");
    let length = body.len();
    let asked = format!("POST {place} HTTP/1.1\r\n{head}\r\nContent-Length: {length}\r\n\r\n{body}");
    assert_eq!(request(api, &asked).status, 202, "the printed request works: {asked}");
    assert_eq!(get(api, "/v1/operations").status, 401, "nothing is visible without the key");

    demo.signal("TERM");
    let Ended { code, stdout, stderr } = demo.end();
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    assert!(!lives(worker), "{stdout}");
}

#[test]
fn a_demo_that_is_interrupted_ends_its_daemon_in_order() {
    // The settings of the user are passed on, except those that the demo sets itself: the user's own data is not
    // touched.
    let demo = Guildhall::new(&["demo", "--log-filter", "info", "--config", "mine.toml"])
        .file("mine.toml", "[log]\nformat = \"json\"\n[store]\nurl = \"sqlite:/nowhere/at/all.db\"\n")
        .file("token", "somebody.elses.token")
        .env("GUILDHALL__DISCORD__TOKEN_FILE", "token")
        .spawn();
    let says = demo.says("Guildhall is at http://");
    let (api, worker) = (says.split(' ').next().unwrap().to_owned(), number_after(&says, "running as process "));
    assert_eq!(demo.address().to_string(), api, "its log follows the settings");
    demo.says("2 shards are connected");
    demo.signal("INT");
    let Ended { code, stdout, stderr } = demo.end();
    assert_eq!(code, Some(1), "the scenario did not finish: {stdout}{stderr}");
    assert!(stderr.contains("the end of standard input") && stderr.contains("\"shut down\""), "{stderr}");
    assert!(!lives(worker), "{stdout}");
}

#[test]
fn a_demo_that_is_killed_leaves_no_daemon_behind() {
    let folder = tempfile::tempdir().unwrap();
    let demo = Guildhall::new(&["demo"]).env("TMPDIR", folder.path().to_str().unwrap()).spawn();
    let api = address(&demo, "Guildhall is at http://");
    demo.says("2 shards are connected");
    assert_eq!(get(api, "/livez").status, 200);
    demo.signal("KILL");
    // Its daemon holds the output pipes as well, so this returns when both have ended.
    assert_eq!(demo.end().code, None);
    assert!(TcpStream::connect(api).is_err(), "the port is closed");
}

#[test]
fn a_port_that_is_taken_is_told_before_anything_starts() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let output = Guildhall::new(&["demo", "--exit", "--api-bind", &taken.local_addr().unwrap().to_string()]).output();
    let says = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()), "{says}");
    assert!(says.contains("another process holds that port") && says.contains("--api-bind"), "{says}");
}

#[test]
fn a_wrong_setting_is_told_before_anything_starts() {
    let output = Guildhall::new(&["demo", "--exit", "--log-format", "loud", "--api-bind", "nowhere"]).output();
    let says = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()));
    for mistake in ["2 settings are invalid", "log.format cannot be \"loud\"", "flag --log-format", "api.bind"] {
        assert!(says.contains(mistake), "no {mistake} in {says}");
    }
}

#[test]
fn an_unknown_flag_is_wrong_usage() {
    assert_eq!(Guildhall::new(&["demo", "--no-such-flag"]).output().status.code(), Some(2));
}
