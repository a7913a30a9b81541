//! The commands as a user runs them: output and exit codes.

mod support;

use std::net::TcpListener;

use support::{Guildhall, text};

#[test]
fn config_check_shows_each_setting_with_its_origin() {
    let output = Guildhall::new(&["config", "check", "--log-filter", "debug"])
        .file("config/guildhall.toml", "[gateway]\nshards = 3\n")
        .env("GUILDHALL__API__BIND", "127.0.0.1:9")
        .output();
    assert_eq!(output.status.code(), Some(0));
    let shown = text(&output.stdout);
    let origin = |key: &str| shown.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    let words: Vec<_> = origin("gateway.shards").split_whitespace().map(str::to_owned).collect();
    assert_eq!(words[..2], ["gateway.shards", "3"], "{shown}");
    assert!(origin("gateway.shards").ends_with("config/guildhall.toml:2"), "{shown}");
    assert!(origin("api.bind").ends_with("environment GUILDHALL__API__BIND"), "{shown}");
    assert!(origin("log.filter").ends_with("flag --log-filter"), "{shown}");
    assert!(origin("discord.token").contains("(not set)"), "{shown}");
    assert!(origin("log.format").ends_with("default"), "{shown}");
}

#[test]
fn config_check_speaks_json_in_both_cases() {
    let fine = Guildhall::new(&["config", "check", "--json"]).output();
    let shown: serde_json::Value = serde_json::from_slice(&fine.stdout).unwrap();
    assert_eq!((fine.status.code(), &shown["ok"]), (Some(0), &true.into()));
    let shards = shown["settings"].as_array().unwrap().iter().find(|one| one["key"] == "gateway.shards").unwrap();
    assert_eq!((&shards["value"], &shards["origin"]), (&0.into(), &"default".into()));

    let wrong = Guildhall::new(&["config", "check", "--json"])
        .env("GUILDHALL__GATEWAY__SHARDS", "many")
        .env("GUILDHALL__API__BNID", "127.0.0.1:9")
        .output();
    let shown: serde_json::Value = serde_json::from_slice(&wrong.stdout).unwrap();
    assert_eq!((wrong.status.code(), &shown["ok"]), (Some(1), &false.into()));
    assert_eq!(shown["errors"].as_array().unwrap().len(), 2);
    let says = text(&wrong.stderr);
    assert!(says.contains("gateway.shards cannot be \"many\"") && says.contains("GUILDHALL__API__BIND"), "{says}");
}

#[test]
fn a_named_settings_file_must_exist_and_is_used_instead_of_the_usual_one() {
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
fn the_printed_template_is_a_settings_file_that_changes_nothing() {
    let template = Guildhall::new(&["config", "template"]).output();
    let check = |file: &str| {
        let output = Guildhall::new(&["config", "check"]).file("config/guildhall.toml", file).output();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert_eq!(check(&text(&template.stdout)), check(""));
}

#[test]
fn serve_without_a_token_says_what_to_set_and_where_to_look_without_one() {
    let output = Guildhall::new(&["serve"]).output();
    assert_eq!(output.status.code(), Some(1));
    let says = text(&output.stderr);
    for hint in ["GUILDHALL__DISCORD__TOKEN", "GUILDHALL__DISCORD__TOKEN_FILE", "token_file", "guildhall demo"] {
        assert!(says.contains(hint), "no {hint} in {says}");
    }
}

#[test]
fn wrong_usage_exits_with_two() {
    for args in [&["serve", "--no-such-flag"][..], &["no-such-command"], &["completions", "no-such-shell"], &[]] {
        assert_eq!(Guildhall::new(args).output().status.code(), Some(2), "{args:?}");
    }
    assert_eq!(Guildhall::new(&["--version"]).output().status.code(), Some(0));
}

#[test]
fn there_are_completions_for_the_usual_shells() {
    for shell in ["bash", "zsh", "fish"] {
        let output = Guildhall::new(&["completions", shell]).output();
        // Some shells escape colons.
        let script = text(&output.stdout).replace("\\:", ":");
        // Commands, options, and names of scopes.
        let known = ["healthcheck", "doctor", "redrive", "idempotency-key", "operations:write"];
        assert!(output.status.success() && known.iter().all(|word| script.contains(word)), "{shell}");
    }
}

#[test]
fn a_health_check_fails_in_one_line_when_nobody_answers() {
    // A port that was free a moment ago, and one with a listener that never responds.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let refused = Guildhall::new(&["healthcheck"]).env("GUILDHALL__API__BIND", &free).output();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let unanswered = Guildhall::new(&["healthcheck", "--url", &url, "--timeout-ms", "50"]).output();
    for (output, why) in [(refused, free.as_str()), (unanswered, "no response within 50 ms")] {
        let says = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        assert!(says.contains(why) && says.lines().count() == 1, "{says}");
    }
}

const HANDLERS: &str = "[[handlers]]\nname = 'welcome'\non = 'member.join'\nwhen = { guild = '1' }\n\
    do = [{ kind = 'assign_role', payload = { user_id = '{user_id}', role_id = '8' } }]\n\
    [[handlers]]\nname = 'brain'\non = 'member.#'\n\
    webhook = { url = 'https://brain.example/', secrets = ['whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0'] }\n";

fn handlers(args: &[&str]) -> Guildhall {
    Guildhall::new(&[&["handlers"], args].concat())
        .env("GUILDHALL__HANDLERS__FILE", "handlers.toml")
        .file("handlers.toml", HANDLERS)
        .file("join.json", r#"{"t": "GUILD_MEMBER_ADD", "d": {"guild_id": "1", "user": {"id": "2"}}}"#)
        .file("message.json", r#"{"t": "MESSAGE_CREATE", "d": {"guild_id": "1"}}"#)
}

#[test]
fn handlers_check_shows_what_each_listens_to_or_all_that_is_wrong() {
    let fine = handlers(&["check"]).output();
    assert_eq!(fine.status.code(), Some(0), "{}", text(&fine.stderr));
    let shown = text(&fine.stdout);
    assert!(shown.contains("welcome  on member.join: rule"), "{shown}");
    assert!(
        shown.contains("brain    on member.#: webhook https://brain.example/") && !shown.contains("whsec_"),
        "{shown}"
    );

    let wrong = handlers(&["check"]).file("handlers.toml", &HANDLERS.replace("role_id", "rle_id")).output();
    let says = text(&wrong.stderr);
    assert_eq!(wrong.status.code(), Some(1));
    for hint in
        ["2 errors in the handlers", "handlers.toml", "`handlers[0].do[0].payload.rle_id`", "did you mean `role_id`?"]
    {
        assert!(says.contains(hint), "no {hint} in {says}");
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
        let says = text(&checked.stderr);
        assert_eq!(checked.status.code(), Some(0), "{says}");
        assert_eq!(says.starts_with("warning: handler brain: "), !warning.is_empty(), "{url} {answers}: {says}");
        assert!(says.contains(warning) && !says.contains("/key"), "{url} {answers}: {says}");
    }

    for (file, hint) in [("", "GUILDHALL__HANDLERS__FILE"), ("nowhere.toml", "nowhere.toml: ")] {
        let none = handlers(&["check"]).env("GUILDHALL__HANDLERS__FILE", file).output();
        assert_eq!(none.status.code(), Some(1));
        assert!(text(&none.stderr).contains(hint), "{}", text(&none.stderr));
    }
}

#[test]
fn handlers_test_shows_what_would_be_done_with_an_event() {
    let wanted = handlers(&["test", "join.json"]).output();
    let shown = text(&wanted.stdout);
    assert_eq!(wanted.status.code(), Some(0), "{shown}{}", text(&wanted.stderr));
    assert!(
        shown.contains(r#"would submit {"kind":"assign_role","payload":{"role_id":"8","user_id":"2"}}"#),
        "{shown}"
    );
    assert!(shown.contains("would POST to https://brain.example/") && !shown.contains("whsec_"), "{shown}");

    let json = handlers(&["test", "join.json", "--json"]).output();
    let shown: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let body = &shown["handlers"][1]["would"]["ask"]["body"];
    assert_eq!((&body["event_type"], &body["data"]["user"]["id"]), (&"member.join".into(), &"2".into()), "{shown}");

    let unwanted = handlers(&["test", "message.json"]).output();
    assert_eq!(unwanted.status.code(), Some(1));
    assert!(text(&unwanted.stdout).contains("No handler handles this event."), "{}", text(&unwanted.stdout));
    let no_event = handlers(&["test", "handlers.toml"]).output();
    assert_eq!(no_event.status.code(), Some(1));
    assert!(text(&no_event.stderr).contains("handlers.toml: not an event"), "{}", text(&no_event.stderr));
}
