//! The demo as a new user runs it: its output, how long it serves, its exit code, and that it leaves no process behind.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    process::Command,
};

use guildhall_testkit::program::{ExitedGuildhall, Guildhall, RunningGuildhall, get, request, text};

/// The lines of the summary: each step and its result.
fn steps(stdout: &str) -> Vec<(&str, &str)> {
    let table = stdout.lines().skip_while(|line| !line.trim_start().starts_with("expected")).skip(1);
    table
        .take_while(|line| !line.is_empty())
        .map(|line| (line[..32].trim(), line.rsplit(' ').next().unwrap_or_default()))
        .collect()
}

/// The number at the start of a text.
fn leading_number(text: &str) -> u32 {
    text.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

/// The number after these words.
fn number_after(stdout: &str, prefix: &str) -> u32 {
    leading_number(stdout.split_once(prefix).unwrap_or_else(|| panic!("no {prefix:?} in {stdout}")).1)
}

/// Whether a process with this id exists.
fn is_running(pid: u32) -> bool {
    Command::new("sh").args(["-c", &format!("kill -0 {pid} 2>/dev/null")]).status().unwrap().success()
}

#[test]
fn demo_survives_its_own_kill_and_exits_with_zero() {
    let folder = tempfile::tempdir().unwrap();
    let demo = Guildhall::new(&["demo", "--exit"]).env("TMPDIR", folder.path().to_str().unwrap());
    let output = demo.output();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}{stderr}");
    let expected_steps = [
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
    assert_eq!(steps(&stdout), expected_steps.map(|step| (step, "ok")), "{stdout}");
    assert!(!stdout.contains("The demo runs until"), "with --exit there is nothing to try: {stdout}");
    assert_eq!(stderr, "", "no log output by default");

    let (first, second) =
        (number_after(&stdout, "running as process "), number_after(&stdout, "Restarted as process "));
    assert_eq!(number_after(&stdout, "kill -9 "), first, "{stdout}");
    assert!(first != second && !is_running(first) && !is_running(second), "{stdout}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "its store was removed");
}

/// The commands that the demo prints to try, in order.
fn printed_commands(demo: &RunningGuildhall) -> Vec<String> {
    demo.wait_for_stdout("The demo runs until Ctrl-C.");
    let mut commands: Vec<String> = Vec::new();
    loop {
        let line = demo.wait_for_stdout("");
        let Some(command) = line.strip_prefix("  ") else { continue };
        match commands.last_mut().filter(|last| last.ends_with('\\')) {
            Some(last) => *last = format!("{last}\n{command}"),
            None => commands.push(command.to_owned()),
        }
        if line.ends_with(" instances") {
            return commands;
        }
    }
}

#[test]
fn commands_printed_by_the_demo_work() {
    let demo = Guildhall::new(&["demo"]).spawn();
    let commands = printed_commands(&demo);
    let count = |part: &str| commands.iter().filter(|line| line.contains(part)).count();
    assert!(count("curl -s ") >= 9 && count(" ops ") >= 2, "{commands:?}");
    // One shell for all, as a user has it. A status that is not a success makes curl fail.
    let mut script = "set -e\ncurl() { command curl -fS --max-time 60 \"$@\"; }\n".to_owned();
    for (n, line) in commands.iter().enumerate() {
        script += &format!("{line}\necho \"did {n}\"\n");
    }
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let done = out.lines().filter(|line| line.contains("did ")).count();
    assert!(output.status.success() && done == commands.len(), "after {done} of {commands:#?}\n{out}\n{err}");
    assert!(out.contains("\ngh_") && out.contains("create_role"), "{out}");
    demo.signal("TERM");
    assert_eq!(demo.wait_for_exit().code, Some(0));
}

/// An address that the demo prints.
fn address(demo: &RunningGuildhall, start: &str) -> SocketAddr {
    demo.wait_for_stdout(start).split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn demo_serves_until_a_signal() {
    let demo = Guildhall::new(&["demo"]).spawn();
    let sim = address(&demo, "The simulated Discord is at http://");
    let api = address(&demo, "Guildhall is at http://");
    let worker = leading_number(&demo.wait_for_stdout("Restarted as process "));
    let key = demo.wait_for_stdout("  KEY='");
    let key = key.trim_end_matches('\'');

    let ready = get(api, "/readyz");
    assert_eq!((ready.status, &ready.json()["parts"]["gateway"]["state"]), (200, &"ready".into()));
    assert!(get(api, "/metrics").body.contains("guildhall_gateway_shard_connected{shard=\"1\"} 1"));
    assert_eq!(get(sim, "/sim/state").json()["guild_count"], 10);
    assert_eq!(get(sim, "/sim/score?brief=true").json()["gateway"]["connections"], 2);
    assert_eq!(get(sim, "/sim/faults").json(), serde_json::json!([]), "no faults are left");
    let path = demo.wait_for_stdout(&format!("  curl -s -X POST http://{api}"));
    let body = demo.wait_for_stdout("    -d '");
    let (path, body) = (path.trim_end_matches(" \\"), body.trim_end_matches('\''));
    let head = format!("{key}\r\nHost: test\r\nConnection: close\r\nContent-Type: application/json");
    let length = body.len();
    let request_text = format!("POST {path} HTTP/1.1\r\n{head}\r\nContent-Length: {length}\r\n\r\n{body}");
    assert_eq!(request(api, &request_text).status, 202, "the printed request works: {request_text}");
    assert_eq!(get(api, "/v1/operations").status, 401, "nothing is visible without the key");

    demo.signal("TERM");
    let ExitedGuildhall { code, stdout, stderr } = demo.wait_for_exit();
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    assert!(!is_running(worker), "{stdout}");
}

#[test]
fn interrupted_demo_stops_its_daemon_gracefully() {
    // The settings of the user are passed on, except those that the demo sets itself: the user's own data is not
    // touched.
    let demo = Guildhall::new(&["demo", "--log-filter", "info", "--config", "mine.toml"])
        .file("mine.toml", "[log]\nformat = \"json\"\n[store]\nurl = \"sqlite:/nowhere/at/all.db\"\n")
        .file("token", "somebody.elses.token")
        .env("GUILDHALL__DISCORD__TOKEN_FILE", "token")
        .spawn();
    let message = demo.wait_for_stdout("Guildhall is at http://");
    let (api, worker) = (message.split(' ').next().unwrap().to_owned(), number_after(&message, "running as process "));
    assert_eq!(demo.address().to_string(), api, "its log follows the settings");
    demo.wait_for_stdout("2 shards are connected");
    demo.signal("INT");
    let ExitedGuildhall { code, stdout, stderr } = demo.wait_for_exit();
    assert_eq!(code, Some(1), "the scenario did not finish: {stdout}{stderr}");
    assert!(stderr.contains("the end of standard input") && stderr.contains("\"shut down\""), "{stderr}");
    assert!(!is_running(worker), "{stdout}");
}

#[test]
fn killed_demo_leaves_no_daemon_behind() {
    let folder = tempfile::tempdir().unwrap();
    let demo = Guildhall::new(&["demo"]).env("TMPDIR", folder.path().to_str().unwrap()).spawn();
    let api = address(&demo, "Guildhall is at http://");
    demo.wait_for_stdout("2 shards are connected");
    assert_eq!(get(api, "/livez").status, 200);
    demo.signal("KILL");
    // Its daemon holds the output pipes as well, so this returns when both have ended.
    assert_eq!(demo.wait_for_exit().code, None);
    assert!(TcpStream::connect(api).is_err(), "the port is closed");
}

#[test]
fn port_in_use_is_reported_before_anything_starts() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let output = Guildhall::new(&["demo", "--exit", "--api-bind", &taken.local_addr().unwrap().to_string()]).output();
    let message = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()), "{message}");
    assert!(message.contains("another process holds that port") && message.contains("--api-bind"), "{message}");
}

#[test]
fn invalid_setting_is_reported_before_anything_starts() {
    let output = Guildhall::new(&["demo", "--exit", "--log-format", "loud", "--api-bind", "nowhere"]).output();
    let message = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()));
    for error in ["2 settings are invalid", "log.format cannot be \"loud\"", "flag --log-format", "api.bind"] {
        assert!(message.contains(error), "no {error} in {message}");
    }
}

#[test]
fn unknown_flag_is_invalid_usage() {
    assert_eq!(Guildhall::new(&["demo", "--no-such-flag"]).output().status.code(), Some(2));
}
