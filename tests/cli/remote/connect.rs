//! Finding the daemon and the key, and the errors when either is missing.

use std::{net::TcpListener, os::unix::fs::PermissionsExt as _, process::Stdio};

use serde_json::json;

use super::{
    fake_server::{FakeServer, Reply, accepted, operation, problem},
    fixture::{Cli, DaemonFixture},
};

#[test]
fn generated_key_is_found_and_other_keys_take_precedence() {
    let fixture = DaemonFixture::start();
    let file = fixture.folder().join("admin.key");
    let key = std::fs::read_to_string(&file).unwrap().trim().to_owned();
    let url = format!("http://{}", fixture.address);

    fixture.run(&["ops", "list"]).expect_success();
    let alone = Cli::new();
    let path = file.to_str().unwrap();
    alone.run(&["ops", "list", "--api", &url, "--key-file", path]).expect_success();
    alone.run(&["ops", "--api", &format!("{url}/v1/"), "--key", &key, "list"]).expect_success();
    Cli::new().env("GUILDHALL_API", &url).env("GUILDHALL_KEY", &key).run(&["ops", "list"]).expect_success();

    let message = alone.run(&["ops", "list", "--api", &url]).expect_failure();
    assert!(
        message.contains("requires a key, and none was found") && message.contains("admin.key beside the store"),
        "{message}"
    );
    let message = alone.run(&["ops", "list", "--api", &url, "--key", "gh_not_this-one"]).expect_failure();
    assert!(message.contains("rejected the key from --key") && !message.contains("this-one"), "{message}");
    let message = alone.run(&["ops", "list", "--api", &url, "--key-file", "none.key"]).expect_failure();
    assert!(message.contains("cannot read the key in none.key"), "{message}");
    assert!(
        alone
            .run(&["ops", "list", "--key", "a", "--key-file", "b"])
            .expect_usage_error()
            .contains("cannot be used with")
    );

    // Only the owner may read the file.
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn local_key_is_not_sent_to_other_hosts() {
    let cli = Cli::new().env("GUILDHALL__API__ADMIN_KEY", "gh_admin_of-this-machine");
    let message = cli.run(&["ops", "list", "--api", "https://guildhall.example:1"]).expect_failure();
    assert!(message.contains("no API key for https://guildhall.example:1."), "{message}");
    let server = FakeServer::always(200, json!({"operations": [], "next": null}));
    cli.run(&["ops", "list", "--api", &server.url()]).expect_success();
    assert_eq!(server.requests()[0].header("authorization"), Some("Bearer gh_admin_of-this-machine"));
    assert!(server.requests()[0].header("user-agent").unwrap().starts_with("guildhall-cli/"));
}

#[test]
fn connection_failure_names_the_address_and_the_fix() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let message = Cli::new().env("GUILDHALL__API__BIND", &free.to_string()).run(&["ops", "list"]).expect_failure();
    for part in [&format!("cannot connect to http://{free}"), "guildhall serve", "--api URL", "GUILDHALL_API"] {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    assert_eq!(message.lines().count(), 1, "{message}");
    let any_port = Cli::new().env("GUILDHALL__API__BIND", "127.0.0.1:0").run(&["instances"]).expect_failure();
    assert!(any_port.contains("port 0") && any_port.contains("--api"), "{any_port}");
    for (url, part) in
        [("localhost:8080", "http://HOST:PORT"), ("http://a:b@h", "user or a password"), ("http://h?x", "? or #")]
    {
        assert!(Cli::new().run(&["instances", "--api", url]).expect_failure().contains(part), "{url}");
    }
}

#[test]
fn unresponsive_daemon_times_out() {
    let silent = FakeServer::start(|_, _| Reply::Silence);
    let message = Cli::at(&silent.url()).run(&["instances", "--timeout", "200ms"]).expect_failure();
    assert!(
        message.contains("did not respond within 200 ms") && !message.contains("may not have been made"),
        "{message}"
    );
    let message = Cli::at(&silent.url()).run(&["guilds", "pause", "1", "--timeout", "200ms"]).expect_failure();
    assert!(message.contains("may or may not have been made"), "{message}");
    assert!(Cli::at(&silent.url()).run(&["instances", "--timeout", "1h"]).expect_usage_error().contains("10m"));
}

#[test]
fn response_of_another_program_is_detected() {
    for reply in
        [|| Reply::Text(200, "<html>"), || Reply::Text(502, "<html>"), || Reply::Json(404, json!({"error": "x"}))]
    {
        let server = FakeServer::start(move |_, _| reply());
        let message = Cli::at(&server.url()).run(&["ops", "list"]).expect_failure();
        assert!(message.contains("not from Guildhall") && message.contains(&server.url()), "{message}");
    }
}

#[test]
fn only_idempotent_requests_are_retried() {
    let busy = |requests: usize| {
        if requests > 0 {
            return Reply::Json(200, json!({"instances": []}));
        }
        let Reply::Problem(status, _, body) = problem(503, "starting", "Not yet.", json!({})) else { unreachable!() };
        Reply::Problem(status, "Retry-After: 1\r\n", body)
    };
    let server = FakeServer::start(move |_, before| busy(before));
    Cli::at(&server.url()).run(&["instances"]).expect_success();
    assert_eq!(server.requests().len(), 2);

    // A submission has a key, so it may be sent again after the connection broke. A cancellation has none.
    let server =
        FakeServer::start(|_, before| if before == 0 { Reply::HangUp } else { Reply::Json(200, accepted("1", true)) });
    Cli::at(&server.url()).run(&["ops", "submit", "--guild", "1", "--kind", "create_role"]).expect_success();
    let requests = server.requests();
    assert_eq!((requests.len(), &requests[0].body), (2, &requests[1].body));
    assert!(requests[0].json()["key"].as_str().unwrap().starts_with("cli-"));
    let server = FakeServer::start(|_, _| Reply::HangUp);
    let message = Cli::at(&server.url()).run(&["ops", "cancel", "1"]).expect_failure();
    assert!(message.contains("failed") && message.contains("may or may not have been made"), "{message}");
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn rate_limit_error_says_when_to_retry() {
    let server = FakeServer::start(|_, _| {
        let more = json!({"pending": 10, "most": 10});
        let Reply::Problem(status, _, body) = problem(429, "queue-full", "The queue is full.", more) else {
            unreachable!()
        };
        Reply::Problem(status, "Retry-After: 60\r\n", body)
    });
    let message =
        Cli::at(&server.url()).run(&["ops", "submit", "--guild", "1", "--kind", "create_role"]).expect_failure();
    assert_eq!(message, "error: The queue is full (429); try again in 60 s\n");
    assert_eq!(server.requests().len(), 1, "it does not wait a minute");
}

#[test]
fn closed_output_pipe_is_not_an_error() {
    let operations: Vec<_> = (0..500).map(|n| operation(&n.to_string(), &"x".repeat(500))).collect();
    let server = FakeServer::always(200, json!({"operations": operations, "next": null}));
    let cli = Cli::at(&server.url());
    let mut child = cli.command(&["ops", "list"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn colours_are_for_terminals_only() {
    let server = FakeServer::always(200, json!({"operations": [operation("1", "dead")], "next": null}));
    let cli = Cli::at(&server.url());
    assert!(!cli.run(&["ops", "list"]).expect_success().contains('\u{1b}'));
    let on_terminal = |more: &[(&str, &str)]| {
        let command = format!("{} ops list", env!("CARGO_BIN_EXE_guildhall"));
        let mut script = std::process::Command::new("script");
        script.args(["-qec", &command, "/dev/null"]).env_clear().stdin(Stdio::null());
        script.env("PATH", std::env::var("PATH").unwrap()).env("GUILDHALL_API", server.url());
        script.env("GUILDHALL_KEY", "gh_test_0123456789").envs(more.iter().copied());
        String::from_utf8(script.output().unwrap().stdout).unwrap()
    };
    assert!(on_terminal(&[("TERM", "xterm")]).contains("\u{1b}[31mdead\u{1b}[0m"));
    assert!(!on_terminal(&[("TERM", "xterm"), ("NO_COLOR", "1")]).contains('\u{1b}'));
    assert!(!on_terminal(&[("TERM", "dumb")]).contains('\u{1b}'));
}
