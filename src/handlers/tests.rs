//! Tests with handlers files as users write them.

use std::path::PathBuf;

use guildhall_core::time::UnixMs;
use serde_json::json;

use super::*;
use crate::settings::{SettingsSources, load as load_settings};

const SECRET: &str = "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0";

fn settings(file: Option<PathBuf>, shadow: bool) -> settings::HandlerSettings {
    // An empty file is named so that no file of the working folder is read.
    let empty = tempfile::NamedTempFile::new().unwrap();
    let sources = SettingsSources { file: Some(empty.path().to_owned()), ..SettingsSources::default() };
    settings::HandlerSettings { file, shadow, ..load_settings(sources).unwrap().settings.handlers }
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn problems(text: &str) -> Vec<String> {
    parse(text).unwrap_err().iter().map(ToString::to_string).collect()
}

fn sample(text: &str) -> Result<Sample, SampleError> {
    Sample::parse(text, UnixMs::new(5))
}

#[test]
fn shipped_example_is_valid() {
    let handlers = parse(include_str!("../../config/handlers.example.toml")).unwrap();
    let names: Vec<&str> = handlers.iter().map(|handler| &*handler.name).collect();
    assert_eq!(names, ["welcome-role", "hello", "brain"]);
    let frame = json!({"t": "GUILD_MEMBER_ADD", "d": {"guild_id": "1", "user": {"id": "2"}}}).to_string();
    let trial = DryRun::run(&handlers, &sample(&frame).unwrap());
    assert!(trial.is_ok(), "{trial:#?}");
    let Some(DryRunAction::Do { operations, .. }) = &trial.handlers[0].would else { panic!("{trial:#?}") };
    assert_eq!(operations[0]["payload"], json!({"user_id": "2", "role_id": "1100000000000000001"}));
    assert_eq!((&trial.handlers[1].matches, &trial.handlers[2].matches), (&None, &None));
}

#[test]
fn no_file_means_no_handlers_and_a_missing_file_is_an_error() {
    assert!(load(&settings(None, false)).unwrap().is_empty());
    let message = load(&settings(Some("/nowhere/handlers.toml".into()), false)).unwrap_err().to_string();
    assert!(message.contains("/nowhere/handlers.toml") && message.contains("handlers.file"), "{message}");
}

#[test]
fn settings_put_all_handlers_in_shadow() {
    let file = file("[[handlers]]\nname = 'a'\non = '#'\ndo = []\n");
    for shadow in [false, true] {
        let handlers = load(&settings(Some(file.path().to_owned()), shadow)).unwrap();
        assert_eq!(handlers.get(0).map(|handler| handler.shadow), Some(shadow));
    }
}

#[test]
fn all_errors_are_listed_with_the_file_name() {
    let file = file(
        "[[handlers]]\nname = 'a'\non = 'members.join'\ndo = []\n\
         [[handlers]]\nname = 'b'\non = '#'\nwebhook = { url = 'https://u:hunter2@b.example', secrets_file = '/nowhere/s' }\n",
    );
    let message = load(&settings(Some(file.path().to_owned()), false)).unwrap_err().to_string();
    let lines: Vec<&str> = message.lines().collect();
    assert!(
        lines[0].starts_with("3 errors in the handlers in") && lines[0].contains(file.path().to_str().unwrap()),
        "{message}"
    );
    for hint in ["`handlers[0].on`", "did you mean `member.join`?", "`handlers[1].webhook.url`", "\"/nowhere/s\""] {
        assert!(message.contains(hint), "{hint}: {message}");
    }
    assert!(!message.contains("hunter2"), "{message}");
}

#[test]
fn secrets_are_read_from_a_file_one_a_line() {
    let (other, mut text) = (SECRET.replace("c2Vj", "b3Ro"), String::new());
    let secrets_file = file(&format!("{SECRET}\n\n  {other}\n"));
    text.push_str(&format!(
        "[[handlers]]\nname = 'a'\non = '#'\nwebhook = {{ url = 'https://a.example', secrets_file = {:?} }}\n",
        secrets_file.path().to_str().unwrap()
    ));
    let handlers = parse(&text).unwrap();
    let secrets: Vec<String> = secrets(&handlers).iter().map(|secret| secret.expose().to_owned()).collect();
    assert_eq!(secrets, [SECRET.to_owned(), other]);
    assert!(!format!("{handlers:?}").contains("whsec_"), "secrets are never displayed");
    let twice = text.replace("secrets_file", &format!("secrets = ['{SECRET}'], secrets_file"));
    assert!(problems(&twice)[0].contains("use only one of them"));
    std::fs::write(secrets_file.path(), "\n").unwrap();
    assert!(problems(&text)[0].contains("is empty"));
    std::fs::write(secrets_file.path(), "hunter2\n").unwrap();
    let message = problems(&text);
    assert!(message.len() == 1 && message[0].contains("secrets[0]") && !message[0].contains("hunter2"), "{message:?}");
}

#[test]
fn invalid_urls_are_rejected() {
    let with = |url: &str| {
        problems(&format!(
            "[[handlers]]\nname = 'a'\non = '#'\nwebhook = {{ url = '{url}', secrets = ['{SECRET}'] }}\n"
        ))
    };
    for (url, hint) in [
        ("https://", "is not a valid URL"),
        ("https://a b/", "is not a valid URL"),
        ("ftp://a.example", "https://"),
        ("brain", "https://"),
        ("https://a.example/#x", "must not contain `#`"),
        ("https://a:b@c.example", "or a password"),
    ] {
        let message = with(url);
        assert!(message.len() == 1 && message[0].contains(hint), "{url}: {message:?}");
    }
}

#[test]
fn sample_is_a_frame_or_a_webhook_body() {
    let frame = sample(r#"{"t":"MESSAGE_CREATE","s":9,"op":0,"d":{"content":"hi","author":{"id":"7"}}}"#).unwrap();
    assert_eq!((frame.event.name.as_str(), frame.event.user), ("message.create", Some(7)));
    let short = sample(r#"{"t":"MESSAGE_CREATE","d":{"content":"hi"}}"#).unwrap();
    assert_eq!(short.event.origin.seq, 1);
    let body = guildhall_core::event::handler::body(&frame.event, &[("k".to_owned(), json!(1))].into());
    let back = sample(&body).unwrap();
    assert_eq!((back.event.name, back.state["k"].clone()), (frame.event.name, json!(1)));
    for (text, hint) in [
        ("", "a gateway frame"),
        ("[]", "a gateway frame"),
        ("{}", "a gateway frame"),
        (r#"{"op":10,"d":{}}"#, "op 10"),
        (r#"{"t":"MESSAGE_CREATE"}"#, "invalid frame"),
        (r#"{"event_type":"member.join"}"#, "missing field"),
    ] {
        let error = sample(text).unwrap_err().to_string();
        assert!(error.contains(hint), "{text}: {error}");
    }
}

#[test]
fn dry_run_reports_actions_and_problems() {
    let handlers = parse(&format!(
        "[[handlers]]\nname = 'rule'\non = 'message.*'\nneeds = ['k', 'other']\n\
         set = [{{ key = 'seen:{{user_id}}', value = '{{state.k}}', for_ms = 5 }}]\ncooldown = {{ key = 'x', for_ms = 7 }}\n\
         [[handlers.do]]\nkind = 'create_role'\npayload = {{ name = '{{data.content}}', color = '{{data.content}}' }}\n\
         [[handlers]]\nname = 'picky'\non = '#'\nwhen = {{ user = '8' }}\ndo = []\n\
         [[handlers]]\nname = 'deaf'\non = 'member.join'\ndo = []\n\
         [[handlers]]\nname = 'brain'\non = '#'\nneeds = ['other']\nshadow = true\n\
         webhook = {{ url = 'https://a.example/', secrets = ['{SECRET}'] }}\n\
         [[handlers]]\nname = 'lacking'\non = '#'\nset = [{{ key = 'k', value = '{{data.nothing}}' }}]\n"
    ))
    .unwrap();
    let mut sample =
        sample(r#"{"t":"MESSAGE_CREATE","d":{"content":"hi","guild_id":"1","author":{"id":"7"}}}"#).unwrap();
    sample.state.insert("k".to_owned(), json!(4));
    let trial = DryRun::run(&handlers, &sample);
    let [rule, picky, deaf, brain, lacking] = &trial.handlers[..] else { panic!("five") };
    assert_eq!(rule.matches.as_deref(), Some("message.*"));
    assert_eq!(
        rule.would,
        Some(DryRunAction::Do {
            operations: vec![json!({"kind": "create_role", "payload": {"name": "hi", "color": "hi"}})],
            reply: None,
            set: vec![json!({"key": "seen:7", "value": 4, "for_ms": 5})],
            cooldown: Some(json!({"key": "x", "for_ms": 7})),
        })
    );
    assert!(rule.problems.len() == 1 && rule.problems[0].contains("`do[0].payload.color`"), "{rule:?}");
    assert_eq!((picky.unmet, &picky.would), (Some("user"), &None));
    assert_eq!((deaf.matches.as_ref(), &deaf.would), (None, &None));
    let Some(DryRunAction::Ask { url, body }) = &brain.would else { panic!("{brain:?}") };
    assert_eq!(
        (url.as_str(), &body["event_type"], body.get("state")),
        ("https://a.example/", &json!("message.create"), None)
    );
    assert!(brain.shadow && brain.problems.is_empty());
    assert!(lacking.problems[0].contains("{data.nothing}"));
    assert!(!trial.is_ok(), "two handlers have errors");
    assert!(!serde_json::to_string(&trial).unwrap().contains(SECRET));
}
