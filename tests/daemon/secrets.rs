//! The token is never displayed: not in the log at its most verbose level, not in errors, metrics or command output.

use guildhall_testkit::{
    gateway::{FakeGateway, GatewayBehavior, ReceivedFrame},
    program::{CANARY, Guildhall, get, text},
};

fn assert_no_token(source: &str, text: &str) {
    assert!(!text.contains(CANARY), "the token is in {source}:\n{text}");
}

/// Runs a daemon that logs everything against a gateway that echoes the token. Returns all its output.
async fn run_and_collect_output(daemon: Guildhall, gateway: &FakeGateway) -> String {
    let daemon = daemon.env("GUILDHALL__LOG__FILTER", "trace").spawn();
    let address = daemon.address();
    let ReceivedFrame::Identify(identify) = gateway.next_frame() else { panic!("no IDENTIFY") };
    assert_eq!(identify["token"], format!("Bot {CANARY}"), "the token is in use");
    // Twice: before and after the gateway has echoed the token and closed.
    daemon.wait_for_log_lines("\"part is ready\",\"part\":\"gateway\"", 2);
    for path in ["/metrics", "/readyz", "/livez", "/startupz", "/elsewhere"] {
        let response = get(address, path);
        assert_no_token(path, &format!("{}{}", response.head, response.body));
    }
    daemon.signal("TERM");
    let exited = daemon.wait_for_exit();
    assert_eq!(exited.code, Some(0));
    assert!(exited.stderr.contains("\"TRACE\"") && exited.stderr.contains("twilight_gateway"), "libraries log too");
    exited.stdout + &exited.stderr
}

#[tokio::test(flavor = "multi_thread")]
async fn token_from_the_environment_is_never_logged_even_if_echoed() {
    let gateway = FakeGateway::start(GatewayBehavior::EchoToken).await;
    let written = run_and_collect_output(Guildhall::serve(&gateway.url), &gateway).await;
    assert_no_token("the log", &written);
    assert!(written.contains("(redacted)"), "the gateway's frames must be in the log:\n{written}");
}

#[tokio::test(flavor = "multi_thread")]
async fn token_from_a_file_is_never_logged() {
    let gateway = FakeGateway::start(GatewayBehavior::EchoToken).await;
    let daemon = Guildhall::serve(&gateway.url)
        .env_remove("GUILDHALL__DISCORD__TOKEN")
        .file("secret", &format!("{CANARY}\n"))
        .env("GUILDHALL__DISCORD__TOKEN_FILE", "secret");
    assert_no_token("the log", &run_and_collect_output(daemon, &gateway).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn token_from_the_settings_file_is_never_logged() {
    let gateway = FakeGateway::start(GatewayBehavior::EchoToken).await;
    let daemon = Guildhall::serve(&gateway.url)
        .env_remove("GUILDHALL__DISCORD__TOKEN")
        .file("config/guildhall.toml", &format!("[discord]\ntoken = \"{CANARY}\"\n"));
    assert_no_token("the log", &run_and_collect_output(daemon, &gateway).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_token_is_not_in_the_error() {
    let gateway = FakeGateway::start(GatewayBehavior::CloseOnIdentify(4004, CANARY.to_owned())).await;
    for format in ["json", "pretty"] {
        let daemon = Guildhall::serve(&gateway.url).env("GUILDHALL__LOG__FORMAT", format);
        let exited = daemon.env("GUILDHALL__LOG__FILTER", "trace").spawn().wait_for_exit();
        assert_eq!(exited.code, Some(1));
        assert_no_token("the log", &(exited.stdout + &exited.stderr));
    }
}

#[test]
fn no_command_displays_a_token_from_any_source() {
    let valid = format!("[discord]\ntoken = \"{CANARY}\"\n");
    let in_file = |line: String| format!("[discord]\n{line}\n[gateway]\nshards = 20000\n");
    let invalid = [
        in_file(format!("token = {CANARY}")),
        in_file(format!("token = \"{CANARY}")),
        in_file(format!("token = \"{CANARY}\" \"{CANARY}\"")),
        in_file(format!("tokn = \"{CANARY}\"")),
        in_file(format!("token = [\"{CANARY}\"]")),
        in_file(format!("token = \"Bot {CANARY}\"")),
    ];
    for args in [&["config", "check"][..], &["config", "check", "--json"], &["serve"], &["healthcheck"]] {
        for (number, file) in invalid.iter().enumerate() {
            let output = Guildhall::new(args).file("config/guildhall.toml", file).output();
            assert_eq!(output.status.code(), Some(1), "{args:?} with invalid file {number}");
            assert_no_token(&format!("{args:?}"), &(text(&output.stdout) + &text(&output.stderr)));
        }
    }
    for args in [&["config", "check"][..], &["config", "check", "--json"]] {
        let from_file = Guildhall::new(args).file("config/guildhall.toml", &valid);
        let from_env = Guildhall::new(args).env("GUILDHALL__DISCORD__TOKEN", CANARY);
        let from_secret = Guildhall::new(args).file("s", CANARY).env("GUILDHALL__DISCORD__TOKEN_FILE", "s");
        for command in [from_file, from_env, from_secret] {
            let output = command.output();
            let text = text(&output.stdout) + &text(&output.stderr);
            assert!(output.status.success() && text.contains("(redacted)"), "{text}");
            assert_no_token(&format!("{args:?}"), &text);
        }
    }
}
