//! The token is never displayed: not in the log at its most verbose level, not in errors, metrics or command output.

mod support;

use support::{
    CANARY, Guildhall,
    gateway::{Gateway, Manner, Seen},
    get, text,
};

fn has_no_token(what: &str, text: &str) {
    assert!(!text.contains(CANARY), "the token is in {what}:\n{text}");
}

/// Runs a daemon that logs everything against a gateway that echoes the token. Returns all its output.
async fn everything_written(daemon: Guildhall, gateway: &Gateway) -> String {
    let daemon = daemon.env("GUILDHALL__LOG__FILTER", "trace").spawn();
    let address = daemon.address();
    let Seen::Identify(identify) = gateway.seen() else { panic!("no IDENTIFY") };
    assert_eq!(identify["token"], format!("Bot {CANARY}"), "the token is in use");
    // Twice: before and after the gateway has echoed the token and closed.
    daemon.lines_with("\"part is ready\",\"part\":\"gateway\"", 2);
    for path in ["/metrics", "/readyz", "/livez", "/startupz", "/elsewhere"] {
        let answer = get(address, path);
        has_no_token(path, &format!("{}{}", answer.head, answer.body));
    }
    daemon.signal("TERM");
    let ended = daemon.end();
    assert_eq!(ended.code, Some(0));
    assert!(ended.stderr.contains("\"TRACE\"") && ended.stderr.contains("twilight_gateway"), "libraries log too");
    ended.stdout + &ended.stderr
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_from_the_environment_is_never_logged_even_when_the_gateway_repeats_it() {
    let gateway = Gateway::start(Manner::Echo).await;
    let written = everything_written(Guildhall::serve(&gateway.url), &gateway).await;
    has_no_token("the log", &written);
    assert!(written.contains("(redacted)"), "the gateway's frames must be in the log:\n{written}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_from_a_file_is_never_logged() {
    let gateway = Gateway::start(Manner::Echo).await;
    let daemon = Guildhall::serve(&gateway.url)
        .without("GUILDHALL__DISCORD__TOKEN")
        .file("secret", &format!("{CANARY}\n"))
        .env("GUILDHALL__DISCORD__TOKEN_FILE", "secret");
    has_no_token("the log", &everything_written(daemon, &gateway).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_from_the_settings_file_is_never_logged() {
    let gateway = Gateway::start(Manner::Echo).await;
    let daemon = Guildhall::serve(&gateway.url)
        .without("GUILDHALL__DISCORD__TOKEN")
        .file("config/guildhall.toml", &format!("[discord]\ntoken = \"{CANARY}\"\n"));
    has_no_token("the log", &everything_written(daemon, &gateway).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_token_is_not_in_the_error() {
    let gateway = Gateway::start(Manner::Close(4004, CANARY.to_owned())).await;
    for format in ["json", "pretty"] {
        let daemon = Guildhall::serve(&gateway.url).env("GUILDHALL__LOG__FORMAT", format);
        let ended = daemon.env("GUILDHALL__LOG__FILTER", "trace").spawn().end();
        assert_eq!(ended.code, Some(1));
        has_no_token("the log", &(ended.stdout + &ended.stderr));
    }
}

#[test]
fn no_command_shows_a_token_wherever_it_came_from_and_however_it_is_wrong() {
    let right = format!("[discord]\ntoken = \"{CANARY}\"\n");
    let in_file = |line: String| format!("[discord]\n{line}\n[gateway]\nshards = 20000\n");
    let wrong = [
        in_file(format!("token = {CANARY}")),
        in_file(format!("token = \"{CANARY}")),
        in_file(format!("token = \"{CANARY}\" \"{CANARY}\"")),
        in_file(format!("tokn = \"{CANARY}\"")),
        in_file(format!("token = [\"{CANARY}\"]")),
        in_file(format!("token = \"Bot {CANARY}\"")),
    ];
    for args in [&["config", "check"][..], &["config", "check", "--json"], &["serve"], &["healthcheck"]] {
        for (number, file) in wrong.iter().enumerate() {
            let output = Guildhall::new(args).file("config/guildhall.toml", file).output();
            assert_eq!(output.status.code(), Some(1), "{args:?} with invalid file {number}");
            has_no_token(&format!("{args:?}"), &(text(&output.stdout) + &text(&output.stderr)));
        }
    }
    for args in [&["config", "check"][..], &["config", "check", "--json"]] {
        let from_file = Guildhall::new(args).file("config/guildhall.toml", &right);
        let from_env = Guildhall::new(args).env("GUILDHALL__DISCORD__TOKEN", CANARY);
        let from_secret = Guildhall::new(args).file("s", CANARY).env("GUILDHALL__DISCORD__TOKEN_FILE", "s");
        for command in [from_file, from_env, from_secret] {
            let output = command.output();
            let shown = text(&output.stdout) + &text(&output.stderr);
            assert!(output.status.success() && shown.contains("(redacted)"), "{shown}");
            has_no_token(&format!("{args:?}"), &shown);
        }
    }
}
