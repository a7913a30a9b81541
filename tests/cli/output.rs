//! The commands as a user runs them: output and exit codes.

use std::net::TcpListener;

use guildhall_testkit::program::{Guildhall, text};

#[test]
fn config_check_shows_each_setting_with_its_origin() {
    let output = Guildhall::new(&["config", "check", "--log-filter", "debug"])
        .file("config/guildhall.toml", "[gateway]\nshards = 3\n")
        .env("GUILDHALL__API__BIND", "127.0.0.1:9")
        .output();
    assert_eq!(output.status.code(), Some(0));
    let stdout = text(&output.stdout);
    let origin = |key: &str| stdout.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    let words: Vec<_> = origin("gateway.shards").split_whitespace().map(str::to_owned).collect();
    assert_eq!(words[..2], ["gateway.shards", "3"], "{stdout}");
    assert!(origin("gateway.shards").ends_with("config/guildhall.toml:2"), "{stdout}");
    assert!(origin("api.bind").ends_with("environment GUILDHALL__API__BIND"), "{stdout}");
    assert!(origin("log.filter").ends_with("flag --log-filter"), "{stdout}");
    assert!(origin("discord.token").contains("(not set)"), "{stdout}");
    assert!(origin("log.format").ends_with("default"), "{stdout}");
}

#[test]
fn config_check_prints_json_on_success_and_failure() {
    let valid = Guildhall::new(&["config", "check", "--json"]).output();
    let report: serde_json::Value = serde_json::from_slice(&valid.stdout).unwrap();
    assert_eq!((valid.status.code(), &report["ok"]), (Some(0), &true.into()));
    let shards = report["settings"].as_array().unwrap().iter().find(|one| one["key"] == "gateway.shards").unwrap();
    assert_eq!((&shards["value"], &shards["origin"]), (&0.into(), &"default".into()));

    let invalid = Guildhall::new(&["config", "check", "--json"])
        .env("GUILDHALL__GATEWAY__SHARDS", "many")
        .env("GUILDHALL__API__BNID", "127.0.0.1:9")
        .output();
    let report: serde_json::Value = serde_json::from_slice(&invalid.stdout).unwrap();
    assert_eq!((invalid.status.code(), &report["ok"]), (Some(1), &false.into()));
    assert_eq!(report["errors"].as_array().unwrap().len(), 2);
    let message = text(&invalid.stderr);
    assert!(
        message.contains("gateway.shards cannot be \"many\"") && message.contains("GUILDHALL__API__BIND"),
        "{message}"
    );
}

#[test]
fn named_settings_file_must_exist_and_replaces_the_default() {
    let missing = Guildhall::new(&["config", "check", "--config", "other.toml"]).output();
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("other.toml cannot be read"));

    let named = Guildhall::new(&["--config", "other.toml", "config", "check"])
        .file("config/guildhall.toml", "this is not even TOML")
        .file("other.toml", "[gateway]\nshards = 7\n")
        .output();
    assert_eq!(named.status.code(), Some(0), "{}", text(&named.stderr));
    assert!(text(&named.stdout).contains("other.toml:2"));
}

#[test]
fn printed_template_changes_no_setting() {
    let template = Guildhall::new(&["config", "template"]).output();
    let check = |file: &str| {
        let output = Guildhall::new(&["config", "check"]).file("config/guildhall.toml", file).output();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert_eq!(check(&text(&template.stdout)), check(""));
}

#[test]
fn serve_without_a_token_names_the_settings_and_the_demo() {
    let output = Guildhall::new(&["serve"]).output();
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    for hint in ["GUILDHALL__DISCORD__TOKEN", "GUILDHALL__DISCORD__TOKEN_FILE", "token_file", "guildhall demo"] {
        assert!(message.contains(hint), "no {hint} in {message}");
    }
}

#[test]
fn invalid_usage_exits_with_two() {
    for args in [&["serve", "--no-such-flag"][..], &["no-such-command"], &["completions", "no-such-shell"], &[]] {
        assert_eq!(Guildhall::new(args).output().status.code(), Some(2), "{args:?}");
    }
    assert_eq!(Guildhall::new(&["--version"]).output().status.code(), Some(0));
}

#[test]
fn completions_exist_for_common_shells() {
    for shell in ["bash", "zsh", "fish"] {
        let output = Guildhall::new(&["completions", shell]).output();
        // Some shells escape colons.
        let script = text(&output.stdout).replace("\\:", ":");
        // Commands, options, and names of scopes.
        let expected = ["healthcheck", "doctor", "redrive", "idempotency-key", "operations:write"];
        assert!(output.status.success() && expected.iter().all(|word| script.contains(word)), "{shell}");
    }
}

#[test]
fn healthcheck_fails_with_one_line_without_a_response() {
    // A port that was free a moment ago, and one with a listener that never responds.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let refused = Guildhall::new(&["healthcheck"]).env("GUILDHALL__API__BIND", &free).output();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let unanswered = Guildhall::new(&["healthcheck", "--url", &url, "--timeout-ms", "50"]).output();
    for (output, expected) in [(refused, free.as_str()), (unanswered, "no response within 50 ms")] {
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        assert!(message.contains(expected) && message.lines().count() == 1, "{message}");
    }
}

const HANDLERS: &str = "[[handlers]]\nname = 'welcome'\non = 'member.join'\nwhen = { guild = '1' }\n\
    do = [{ kind = 'assign_role', payload = { user_id = '{user_id}', role_id = '8' } }]\n\
    [[handlers]]\nname = 'brain'\non = 'member.#'\n\
    webhook = { url = 'https://brain.example/', secrets = ['whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0'] }\n";

fn handlers(args: &[&str]) -> Guildhall {
    Guildhall::new(&[&["handlers"], args].concat())
        .env("GUILDHALL__HANDLERS__FILE", "handlers.toml")
        .env("GUILDHALL__GATEWAY__INTENTS", "guilds,guild_members")
        .file("handlers.toml", HANDLERS)
        .file("join.json", r#"{"t": "GUILD_MEMBER_ADD", "d": {"guild_id": "1", "user": {"id": "2"}}}"#)
        .file("message.json", r#"{"t": "MESSAGE_CREATE", "d": {"guild_id": "1"}}"#)
}

#[test]
fn handlers_check_lists_handlers_or_all_errors() {
    let valid = handlers(&["check"]).output();
    assert_eq!(valid.status.code(), Some(0), "{}", text(&valid.stderr));
    let stdout = text(&valid.stdout);
    assert!(stdout.contains("welcome  on member.join: rule"), "{stdout}");
    assert!(
        stdout.contains("brain    on member.#: webhook https://brain.example/") && !stdout.contains("whsec_"),
        "{stdout}"
    );

    let invalid = handlers(&["check"]).file("handlers.toml", &HANDLERS.replace("role_id", "rle_id")).output();
    let message = text(&invalid.stderr);
    assert_eq!(invalid.status.code(), Some(1));
    for hint in
        ["2 errors in the handlers", "handlers.toml", "`handlers[0].do[0].payload.rle_id`", "did you mean `role_id`?"]
    {
        assert!(message.contains(hint), "no {hint} in {message}");
    }

    for (url, answers, warning) in [
        ("http://brain.example/key", "secure", "plain http from brain.example are rejected unless they are signed"),
        ("http://brain.example/key", "any", "accepts unsigned responses over plain http from brain.example"),
        ("http://brain.example/key", "signed", ""),
        ("https://brain.example/key", "any", ""),
        ("http://127.0.0.1:9100/key", "secure", ""),
    ] {
        let webhook = format!("url = '{url}', answers = '{answers}', allow_private = true");
        let file = HANDLERS.replace("url = 'https://brain.example/'", &webhook);
        let checked = handlers(&["check"]).file("handlers.toml", &file).output();
        let message = text(&checked.stderr);
        assert_eq!(checked.status.code(), Some(0), "{message}");
        assert_eq!(message.starts_with("warning: handler brain: "), !warning.is_empty(), "{url} {answers}: {message}");
        assert!(message.contains(warning) && !message.contains("/key"), "{url} {answers}: {message}");
    }

    for (file, hint) in [("", "GUILDHALL__HANDLERS__FILE"), ("nowhere.toml", "nowhere.toml: ")] {
        let missing = handlers(&["check"]).env("GUILDHALL__HANDLERS__FILE", file).output();
        assert_eq!(missing.status.code(), Some(1));
        assert!(text(&missing.stderr).contains(hint), "{}", text(&missing.stderr));
    }
}

#[test]
fn handlers_check_fails_for_events_that_discord_does_not_send() {
    let mixed = format!("{HANDLERS}[[handlers]]\nname = 'any'\non = ['message.#', 'interaction.#']\nset = []\n");
    let checked = handlers(&["check"])
        .file("handlers.toml", &mixed)
        .env("GUILDHALL__GATEWAY__INTENTS", "guilds,guild_messages")
        .output();
    let message = text(&checked.stderr);
    assert_eq!(checked.status.code(), Some(1), "{message}");
    assert!(text(&checked.stdout).contains("welcome  on member.join: rule"), "the handlers are listed all the same");
    for (handler, pattern) in [("welcome", "member.join"), ("brain", "member.#")] {
        let error = format!(
            "error: handler {handler}: Discord sends no event for `{pattern}` with the configured intents; add \
             `guild_members` to gateway.intents (GUILDHALL__GATEWAY__INTENTS), and enable Server Members Intent"
        );
        assert!(message.contains(&error), "no {error} in {message}");
    }
    assert!(!message.contains("handler any"), "{message}");
    let enough = handlers(&["check"])
        .file("handlers.toml", &mixed)
        .env("GUILDHALL__GATEWAY__INTENTS", "guild_members,direct_messages")
        .output();
    assert_eq!(enough.status.code(), Some(0), "{}", text(&enough.stderr));
}

#[test]
fn handlers_test_shows_the_result_for_an_event() {
    let handled = handlers(&["test", "join.json"]).output();
    let stdout = text(&handled.stdout);
    assert_eq!(handled.status.code(), Some(0), "{stdout}{}", text(&handled.stderr));
    assert!(
        stdout.contains(r#"would submit {"kind":"assign_role","payload":{"role_id":"8","user_id":"2"}}"#),
        "{stdout}"
    );
    assert!(stdout.contains("would POST to https://brain.example/") && !stdout.contains("whsec_"), "{stdout}");

    let json = handlers(&["test", "join.json", "--json"]).output();
    let stdout: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let body = &stdout["handlers"][1]["would"]["ask"]["body"];
    assert_eq!((&body["event_type"], &body["data"]["user"]["id"]), (&"member.join".into(), &"2".into()), "{stdout}");

    let unhandled = handlers(&["test", "message.json"]).output();
    assert_eq!(unhandled.status.code(), Some(1));
    assert!(text(&unhandled.stdout).contains("No handler handles this event."), "{}", text(&unhandled.stdout));
    let not_an_event = handlers(&["test", "handlers.toml"]).output();
    assert_eq!(not_an_event.status.code(), Some(1));
    assert!(text(&not_an_event.stderr).contains("handlers.toml: not an event"), "{}", text(&not_an_event.stderr));
}
