//! Runs the examples of docs/api.md as they are.

use std::process::{Command, Stdio};

use guildhall::api::{ControlConfig, PoliciesConfig};
use guildhall_actors::ports::{ChangeFeed as _, OperationStore as _};
use guildhall_core::{operation::OperationState, policy::Rate, response::ResponseClass};
use serde_json::Value;

use super::{
    GUILD, KEY,
    real::{Place, Real},
    run,
};

const PAGE: &str = include_str!("../../docs/api.md");

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
fn fits(shown: &Value, given: &Value, place: &str) {
    match (shown, given) {
        (Value::String(shown), _) if shown == "…" => assert!(!given.is_null(), "{place}"),
        (Value::Object(shown), Value::Object(given)) => {
            for (name, shown) in shown {
                let given = given.get(name).unwrap_or_else(|| panic!("no {place}.{name} in {given:?}"));
                fits(shown, given, &format!("{place}.{name}"));
            }
        }
        (Value::Array(shown), Value::Array(given)) => {
            assert!(given.len() >= shown.len(), "{place}: {given:?}");
            for (n, (shown, given)) in shown.iter().zip(given).enumerate() {
                fits(shown, given, &format!("{place}[{n}]"));
            }
        }
        _ => assert_eq!(shown, given, "{place}"),
    }
}

#[test]
fn every_example_of_the_page_does_what_it_says() {
    let examples = examples();
    assert!(examples.len() >= 10, "the page has too few examples");
    run(async {
        let policies =
            PoliciesConfig { heavy: Rate::new(10, 30), light: Rate::new(100, 300), ..PoliciesConfig::default() };
        let config = ControlConfig { policies, ..ControlConfig::default() };
        let (api, hall) = Real::with_hall(&Place::file(), config).await;
        // Two operations that the page assumes: one that is pending, and one that is dead.
        let waiting = api.create_role(GUILD, "waits").await;
        let dead = api.create_role(GUILD, "dead").await;
        api.becomes(&dead, OperationState::Dead).await;
        // And a call for the guild of the page.
        hall.call(GUILD.parse().unwrap(), ResponseClass::Success).await;
        let address = api.address();
        let api = std::rc::Rc::new(api);
        let carrier = actix_rt::spawn(carries_out_one(std::rc::Rc::clone(&api)));
        for (script, shown) in examples {
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
            let mut lines = shown.split("\n\n");
            let (shown_head, shown_body) = (lines.next().unwrap(), lines.next().unwrap_or_default());
            for line in shown_head.lines() {
                let line = line.split('…').next().unwrap();
                let has = head.lines().any(|given| given.to_lowercase().starts_with(&line.trim().to_lowercase()));
                assert!(has, "{script}: no {line:?} in\n{head}\n{body}");
            }
            if !shown_body.trim().is_empty() {
                let shown: Value =
                    serde_json::from_str(shown_body).unwrap_or_else(|error| panic!("{error}: {shown_body}"));
                let given: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"));
                fits(&shown, &given, "");
            }
        }
        carrier.abort();
        api.store.close().await;
    });
}

/// Executes only the operation that the page waits for.
async fn carries_out_one(api: std::rc::Rc<Real>) {
    let mut ticks = api.store.ticks();
    loop {
        ticks.changed().await.unwrap();
        let filter = guildhall_actors::ports::OperationFilter { limit: 10, ..Default::default() };
        let listed = api.store.list(filter).await.unwrap();
        let awaited = |payload: &str| payload.contains("Ushers");
        for shown in listed.iter().filter(|shown| awaited(&shown.stored.operation.payload)) {
            if !shown.stored.state.is_final() {
                api.becomes(&shown.stored.operation.id.to_string(), OperationState::Succeeded).await;
            }
        }
    }
}
