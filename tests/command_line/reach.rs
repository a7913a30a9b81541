//! Finding the daemon and the key, and the errors when either is missing.

use std::{net::TcpListener, os::unix::fs::PermissionsExt as _, process::Stdio};

use serde_json::json;

use super::{
    fake::{Fake, Reply, problem},
    stage::{Cli, Stage},
};

#[test]
fn the_daemons_own_key_is_found_beside_its_store_and_others_win_over_it() {
    let stage = Stage::start();
    let file = stage.folder().join("admin.key");
    let key = std::fs::read_to_string(&file).unwrap().trim().to_owned();
    let url = format!("http://{}", stage.address);

    stage.run(&["ops", "list"]).fine();
    let alone = Cli::new();
    let shown = file.to_str().unwrap();
    alone.run(&["ops", "list", "--api", &url, "--key-file", shown]).fine();
    alone.run(&["ops", "--api", &format!("{url}/v1/"), "--key", &key, "list"]).fine();
    Cli::new().env("GUILDHALL_API", &url).env("GUILDHALL_KEY", &key).run(&["ops", "list"]).fine();

    let says = alone.run(&["ops", "list", "--api", &url]).failed();
    assert!(
        says.contains("requires a key, and none was found") && says.contains("admin.key beside the store"),
        "{says}"
    );
    let says = alone.run(&["ops", "list", "--api", &url, "--key", "gh_not_this-one"]).failed();
    assert!(says.contains("rejected the key from --key") && !says.contains("this-one"), "{says}");
    let says = alone.run(&["ops", "list", "--api", &url, "--key-file", "none.key"]).failed();
    assert!(says.contains("cannot read the key in none.key"), "{says}");
    assert!(alone.run(&["ops", "list", "--key", "a", "--key-file", "b"]).misused().contains("cannot be used with"));

    // Only the owner may read the file.
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn the_key_of_this_machine_is_shown_to_no_other() {
    let cli = Cli::new().env("GUILDHALL__API__ADMIN_KEY", "gh_admin_of-this-machine");
    let says = cli.run(&["ops", "list", "--api", "https://guildhall.example:1"]).failed();
    assert!(says.contains("no API key for https://guildhall.example:1."), "{says}");
    let fake = Fake::says(200, json!({"operations": [], "next": null}));
    cli.run(&["ops", "list", "--api", &fake.url()]).fine();
    assert_eq!(fake.asked()[0].header("authorization"), Some("Bearer gh_admin_of-this-machine"));
    assert!(fake.asked()[0].header("user-agent").unwrap().starts_with("guildhall-cli/"));
}

#[test]
fn nobody_there_says_where_and_what_to_do() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let says = Cli::new().env("GUILDHALL__API__BIND", &free.to_string()).run(&["ops", "list"]).failed();
    for part in [&format!("cannot connect to http://{free}"), "guildhall serve", "--api URL", "GUILDHALL_API"] {
        assert!(says.contains(part), "no {part:?} in {says}");
    }
    assert_eq!(says.lines().count(), 1, "{says}");
    let any = Cli::new().env("GUILDHALL__API__BIND", "127.0.0.1:0").run(&["instances"]).failed();
    assert!(any.contains("port 0") && any.contains("--api"), "{any}");
    for (url, part) in
        [("localhost:8080", "http://HOST:PORT"), ("http://a:b@h", "user or a password"), ("http://h?x", "? or #")]
    {
        assert!(Cli::new().run(&["instances", "--api", url]).failed().contains(part), "{url}");
    }
}

#[test]
fn a_daemon_that_does_not_answer_is_left_in_time() {
    let silent = Fake::start(|_, _| Reply::Silence);
    let says = Cli::at(&silent.url()).run(&["instances", "--timeout", "200ms"]).failed();
    assert!(says.contains("did not respond within 200 ms") && !says.contains("may not have been made"), "{says}");
    let says = Cli::at(&silent.url()).run(&["guilds", "pause", "1", "--timeout", "200ms"]).failed();
    assert!(says.contains("may or may not have been made"), "{says}");
    assert!(Cli::at(&silent.url()).run(&["instances", "--timeout", "1h"]).misused().contains("10m"));
}

#[test]
fn something_else_that_listens_there_is_told_apart() {
    for reply in
        [|| Reply::Text(200, "<html>"), || Reply::Text(502, "<html>"), || Reply::Json(404, json!({"error": "x"}))]
    {
        let fake = Fake::start(move |_, _| reply());
        let says = Cli::at(&fake.url()).run(&["ops", "list"]).failed();
        assert!(says.contains("not from Guildhall") && says.contains(&fake.url()), "{says}");
    }
}

#[test]
fn what_may_be_asked_twice_is_asked_again_and_nothing_else() {
    let busy = |asked: usize| {
        if asked > 0 {
            return Reply::Json(200, json!({"instances": []}));
        }
        let Reply::Problem(status, _, body) = problem(503, "starting", "Not yet.", json!({})) else { unreachable!() };
        Reply::Problem(status, "Retry-After: 1\r\n", body)
    };
    let fake = Fake::start(move |_, before| busy(before));
    Cli::at(&fake.url()).run(&["instances"]).fine();
    assert_eq!(fake.asked().len(), 2);

    // A submission has a key, so it may be sent again after the connection broke. A cancellation has none.
    let accepted = json!({"id": "1", "kind": "create_role", "state": "queued", "replayed": true});
    let fake =
        Fake::start(move |_, before| if before == 0 { Reply::HangUp } else { Reply::Json(200, accepted.clone()) });
    Cli::at(&fake.url()).run(&["ops", "submit", "--guild", "1", "--kind", "create_role"]).fine();
    let asked = fake.asked();
    assert_eq!((asked.len(), &asked[0].body), (2, &asked[1].body));
    assert!(asked[0].json()["key"].as_str().unwrap().starts_with("cli-"));
    let fake = Fake::start(|_, _| Reply::HangUp);
    let says = Cli::at(&fake.url()).run(&["ops", "cancel", "1"]).failed();
    assert!(says.contains("failed") && says.contains("may or may not have been made"), "{says}");
    assert_eq!(fake.asked().len(), 1);
}

#[test]
fn a_limit_says_when_to_come_back() {
    let fake = Fake::start(|_, _| {
        let more = json!({"pending": 10, "most": 10});
        let Reply::Problem(status, _, body) = problem(429, "queue-full", "The queue is full.", more) else {
            unreachable!()
        };
        Reply::Problem(status, "Retry-After: 60\r\n", body)
    });
    let says = Cli::at(&fake.url()).run(&["ops", "submit", "--guild", "1", "--kind", "create_role"]).failed();
    assert_eq!(says, "error: The queue is full (429); try again in 60 s\n");
    assert_eq!(fake.asked().len(), 1, "it does not wait a minute");
}

#[test]
fn whoever_has_read_enough_is_not_told_an_error() {
    let operations: Vec<_> = (0..500).map(|n| json!({"id": n.to_string(), "kind": "x".repeat(500)})).collect();
    let fake = Fake::says(200, json!({"operations": operations, "next": null}));
    let cli = Cli::at(&fake.url());
    let mut child = cli.command(&["ops", "list"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn colours_are_for_terminals_alone_and_only_if_wanted() {
    let dead = json!({"id": "1", "kind": "create_role", "state": "dead"});
    let fake = Fake::says(200, json!({"operations": [dead], "next": null}));
    let cli = Cli::at(&fake.url());
    assert!(!cli.run(&["ops", "list"]).fine().contains('\u{1b}'));
    let on_terminal = |more: &[(&str, &str)]| {
        let command = format!("{} ops list", env!("CARGO_BIN_EXE_guildhall"));
        let mut script = std::process::Command::new("script");
        script.args(["-qec", &command, "/dev/null"]).env_clear().stdin(Stdio::null());
        script.env("PATH", std::env::var("PATH").unwrap()).env("GUILDHALL_API", fake.url());
        script.env("GUILDHALL_KEY", "gh_test_0123456789").envs(more.iter().copied());
        String::from_utf8(script.output().unwrap().stdout).unwrap()
    };
    assert!(on_terminal(&[("TERM", "xterm")]).contains("\u{1b}[31mdead\u{1b}[0m"));
    assert!(!on_terminal(&[("TERM", "xterm"), ("NO_COLOR", "1")]).contains('\u{1b}'));
    assert!(!on_terminal(&[("TERM", "dumb")]).contains('\u{1b}'));
}
