//! Runs the examples of docs/api.md as they are.

use std::process::{Command, Stdio};

use guildhall::api::{ControlConfig, PoliciesConfig};
use guildhall_actors::ports::{ChangeFeed as _, OperationStore as _};
use guildhall_core::{operation::OperationState, policy::Rate, response::ResponseClass};
use serde_json::Value;

use super::{
    GUILD, KEY,
    process_fixture::{ApiProcess, StoreLocation},
    run,
};

const PAGE: &str = include_str!("../../../docs/api.md");

/// Shell blocks of the page, each with the block of its expected response.
fn examples() -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut rest = PAGE;
    while let Some((_, after)) = rest.split_once("```") {
        let (block, after) = after.split_once("```").expect("a block is closed");
        let (kind, text) = block.split_once('\n').expect("a block has lines");
        blocks.push((kind.trim().to_owned(), text.to_owned()));
        rest = after;
    }
    let pairs = blocks.windows(2).filter(|pair| pair[0].0 == "sh" && pair[1].0 == "http");
    pairs.map(|pair| (pair[0].1.clone(), pair[1].1.clone())).collect()
}

/// Asserts that a response has the fields that the page shows. `…` stands for a value that varies.
fn assert_matches(expected: &Value, actual: &Value, path: &str) {
    match (expected, actual) {
        (Value::String(expected), _) if expected == "…" => assert!(!actual.is_null(), "{path}"),
        (Value::Object(expected), Value::Object(actual)) => {
            for (name, expected) in expected {
                let actual = actual.get(name).unwrap_or_else(|| panic!("no {path}.{name} in {actual:?}"));
                assert_matches(expected, actual, &format!("{path}.{name}"));
            }
        }
        (Value::Array(expected), Value::Array(actual)) => {
            assert!(actual.len() >= expected.len(), "{path}: {actual:?}");
            for (n, (expected, actual)) in expected.iter().zip(actual).enumerate() {
                assert_matches(expected, actual, &format!("{path}[{n}]"));
            }
        }
        _ => assert_eq!(expected, actual, "{path}"),
    }
}

#[test]
fn every_example_of_the_page_works() {
    let examples = examples();
    assert!(examples.len() >= 10, "the page has too few examples");
    run(async {
        let policies =
            PoliciesConfig { heavy: Rate::new(10, 30), light: Rate::new(100, 300), ..PoliciesConfig::default() };
        let config = ControlConfig { policies, ..ControlConfig::default() };
        let (api, services) = ApiProcess::with_hall(&StoreLocation::file(), config).await;
        // Two operations that the page assumes: one that is pending, and one that is dead.
        let waiting = api.create_role(GUILD, "waits").await;
        let dead = api.create_role(GUILD, "dead").await;
        api.set_state(&dead, OperationState::Dead).await;
        // And a call for the guild of the page.
        services.call(GUILD.parse().unwrap(), ResponseClass::Success).await;
        let address = api.address();
        let api = std::rc::Rc::new(api);
        let executor = actix_rt::spawn(execute_awaited(std::rc::Rc::clone(&api)));
        for (script, expected) in examples {
            let mut shell = Command::new("sh");
            shell
                .args(["-ec", &script])
                .env("GUILDHALL", format!("http://{address}"))
                .env("KEY", KEY)
                .env("OPERATION", &waiting)
                .env("LETTER", &dead)
                .stdin(Stdio::null());
            let output = tokio::task::spawn_blocking(move || shell.output()).await.unwrap().expect("cannot start sh");
            let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
            assert!(output.status.success(), "{script}: {out} {err}");
            let (head, body) = out.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{script}: {out}"));
            let mut lines = expected.split("\n\n");
            let (expected_head, expected_body) = (lines.next().unwrap(), lines.next().unwrap_or_default());
            for line in expected_head.lines() {
                let line = line.split('…').next().unwrap();
                let has = head.lines().any(|actual| actual.to_lowercase().starts_with(&line.trim().to_lowercase()));
                assert!(has, "{script}: no {line:?} in\n{head}\n{body}");
            }
            if !expected_body.trim().is_empty() {
                let expected: Value =
                    serde_json::from_str(expected_body).unwrap_or_else(|error| panic!("{error}: {expected_body}"));
                let actual: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"));
                assert_matches(&expected, &actual, "");
            }
        }
        executor.abort();
        api.store.close().await;
    });
}

/// Executes only the operation that the page waits for.
async fn execute_awaited(api: std::rc::Rc<ApiProcess>) {
    let mut ticks = api.store.ticks();
    loop {
        ticks.changed().await.unwrap();
        let filter = guildhall_actors::ports::OperationFilter { limit: 10, ..Default::default() };
        let listed = api.store.list(filter).await.unwrap();
        let is_awaited = |payload: &str| payload.contains("Ushers");
        for details in listed.iter().filter(|details| is_awaited(&details.stored.operation.payload)) {
            if !details.stored.state.is_final() {
                api.set_state(&details.stored.operation.id.to_string(), OperationState::Succeeded).await;
            }
        }
    }
}
