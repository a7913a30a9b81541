//! Each part of the daemon panics under load in turn: the process notices it and ends, and the next one continues.

use std::{collections::BTreeSet, time::Duration};

use futures_util::future::join_all;
use guildhall_actors::supervision::{Part, Policy};
use guildhall_sim::{FireSpec, Snowflake};
use http::Method;
use serde_json::json;
use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};

use crate::{
    asker::{Asker, asks},
    caller::{Accepted, STUCK, Unanswered},
    ended::{ended_by, failpoint},
    errand::Sort,
    judge::judge,
    killed,
    redis::RedisServer,
    stage::{ADMIN_KEY, Engine, Furniture, Stage},
};

const ROOM: Furniture = Furniture { guilds: 4, roles: 4, doomed: 0, permissions: None };

/// Operations that may be submitted while a process runs that a part ends.
const LOAD: usize = 12;

const SORTS: [Sort; 5] =
    [Sort::CreateRole, Sort::SendMessage, Sort::AssignRole, Sort::EnsureMessage, Sort::CreateChannel];

/// Interval between API calls other than submissions.
const EVERY: Duration = Duration::from_millis(30);

/// Submits messages to a guild and waits until each is finished.
async fn submits_and_waits(stage: &Stage, mut asker: Asker, permits: &Semaphore) -> Vec<Accepted> {
    let mut accepted = Vec::new();
    while let Ok(permit) = permits.acquire().await {
        permit.forget();
        let errand = asker.next(Sort::SendMessage, stage).await;
        let body = json!({ "kind": errand.kind, "payload": errand.payload });
        let path = format!("/v1/guilds/{}/operations", asker.place.guild);
        let bearer = format!("Bearer {ADMIN_KEY}");
        let headers = [("Authorization", bearer.as_str()), ("Idempotency-Key", &errand.key), ("Prefer", "wait=1")];
        let answer = loop {
            let url = format!("http://{}{path}", stage.anywhere().await);
            match stage.http.call(Method::POST, &url, &headers, Some(&body)).await {
                Ok((200 | 202, answer)) => break answer,
                Ok((408 | 503, _)) | Err(Unanswered) => sleep(EVERY).await,
                Ok((status, answer)) => panic!("{}: {status} {answer}", errand.key),
            }
        };
        accepted.push(Accepted::new(errand, &answer));
    }
    accepted
}

/// Uses parts that operations do not use: budgets, API keys, interactions. Their responses are lost with the process.
async fn visits(stage: &Stage) {
    let guild = Snowflake::new(stage.places[0].guild);
    let cost = json!({ "cost": 1, "max_wait_ms": 0 });
    for visit in 0_u64.. {
        let address = stage.anywhere().await;
        let unknown = format!("Bearer gh_{visit:012x}_{}", "0".repeat(43));
        let url = format!("http://{address}/v1/operations");
        let _ = stage.sim.fire(FireSpec::command(guild, "hello")).await;
        let _ = stage.ask_at(address, Method::POST, "/v1/budgets/shop/acquire", None, Some(&cost)).await;
        let _ = stage.http.call(Method::GET, &url, &[("Authorization", &unknown)], None).await;
        sleep(EVERY).await;
    }
}

/// Kills these parts in turn while operations are submitted, then waits until everything is finished.
async fn killed_in_turn(engine: Engine, parts: &[(Part, u64)], environment: &[(&str, &str)]) {
    let environment = [environment, &[("GUILDHALL__BUDGETS__NAMED", "shop=1000/50")]].concat();
    let stage = Stage::new(engine, ROOM).await;
    let permits = Semaphore::new(0);
    let (patient, places) = stage.places.split_last().unwrap();
    let patient = submits_and_waits(&stage, Asker::new(patient.clone()), &permits);
    let askers = places.iter().zip(1..);
    let askers: Vec<_> =
        askers.map(|(place, seed)| asks(&stage, Asker::new(place.clone()), &SORTS, &permits, seed)).collect();
    let lives = async {
        for (part, messages) in parts {
            permits.add_permits(LOAD);
            let kills = failpoint(*part, *messages);
            let mut life = stage.begin_with(&[&environment[..], &[("GUILDHALL_FAILPOINT", &kills)]].concat());
            tokio::select! {
                () = ended_by(&mut life, *part) => {}
                () = visits(&stage) => {}
            }
        }
        permits.close();
        stage.begin_with(&environment)
    };
    let (accepted, waited, life) = tokio::join!(join_all(askers), patient, lives);
    let accepted: Vec<Accepted> = accepted.into_iter().flatten().chain(waited).collect();
    assert!(accepted.len() >= LOAD, "there was no load");
    let became = stage.all_became(&accepted).await;
    let last = parts.last().unwrap().0.name();
    let previous = life.lines_with("previous process was ended by a part");
    assert!(previous.len() == 1 && previous[0]["part"] == last, "{previous:?}, not {last}\n{}", life.last_words());
    let finding = judge(&stage.sim.score(), &accepted, &became);
    if !finding.wrong.is_empty() {
        eprintln!("{}", life.last_words());
    }
    finding.holds(engine.name());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_of_gate_or_operations_that_panics_loses_and_doubles_nothing() {
    killed_in_turn(Engine::Sqlite, killed::GATE_AND_OPERATIONS, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_of_store_or_gateway_that_panics_loses_and_doubles_nothing() {
    killed_in_turn(Engine::Sqlite, killed::STORE_AND_GATEWAY, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_of_redis_that_panics_loses_and_doubles_nothing() {
    let (redis, seats) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let url = redis.url().to_string();
    let environment = [
        ("GUILDHALL__REDIS__URL", url.as_str()),
        ("GUILDHALL__REDIS__SEAT_DIR", seats.path().to_str().unwrap()),
        ("GUILDHALL__REDIS__HEARTBEAT_MS", "300"),
        ("GUILDHALL__REDIS__SILENCE_MS", "1000"),
        ("GUILDHALL__REDIS__NEWCOMER_MS", "700"),
        ("GUILDHALL__REDIS__GUARD_MS", "500"),
    ];
    killed_in_turn(Engine::Sqlite, killed::REDIS, &environment).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ending_process_is_not_ready_and_says_which_part_ended() {
    let stage = Stage::new(Engine::Sqlite, ROOM).await;
    let goes_on = stage.file("goes-on");
    let hold = format!("supervision,watchdog:{}", goes_on.display());
    let kills = failpoint(Part::StoreHealth, 0);
    let mut life = stage.begin_with(&[("GUILDHALL_FAILPOINT", &kills), ("GUILDHALL_FAILPOINT_HOLD", &hold)]);
    let url = format!("http://{}/readyz", life.listens().await.unwrap());
    let ending = async {
        loop {
            match stage.http.call(Method::GET, &url, &[], None).await {
                Ok((503, report)) if report["stopping"] == true => return report,
                Ok(_) | Err(Unanswered) => sleep(EVERY).await,
            }
        }
    };
    let report = timeout(STUCK, ending).await.unwrap();
    let reason = report["parts"]["store"]["reason"].as_str().unwrap();
    assert!(reason.starts_with("store_health panicked at"), "{report}");
    std::fs::write(goes_on, "").unwrap();
    ended_by(&mut life, Part::StoreHealth).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_watchdog_ends_a_process_whose_last_steps_are_stuck() {
    let stage = Stage::new(Engine::Sqlite, ROOM).await;
    let hold = format!("supervision:{}", stage.file("never").display());
    let kills = failpoint(Part::StoreHealth, 0);
    let mut life = stage.begin_with(&[("GUILDHALL_FAILPOINT", &kills), ("GUILDHALL_FAILPOINT_HOLD", &hold)]);
    ended_by(&mut life, Part::StoreHealth).await;
}

/// Parts that no test kills, and the reason.
const NOT_KILLED: [(Part, &str); 3] = [
    (
        Part::InteractionsListener,
        "runs only with a public key, and is started by the same function as the API's listener",
    ),
    (Part::Certificates, "runs only with TLS, and is spawned like any task"),
    (Part::SpanExporter, "runs only with a collector, and is spawned like any task"),
];

#[test]
fn every_part_that_ends_the_process_is_killed_or_says_why_not() {
    let lists = [killed::GATE_AND_OPERATIONS, killed::STORE_AND_GATEWAY, killed::REDIS, killed::FLEET, killed::EVENTS];
    let killed: BTreeSet<Part> = lists.concat().into_iter().map(|(part, _)| part).collect();
    let reasons: BTreeSet<Part> = NOT_KILLED.iter().map(|(part, _)| *part).collect();
    assert!(killed.is_disjoint(&reasons), "listed here but killed: {:?}", killed.intersection(&reasons));
    let ends = Part::ALL.iter().copied().filter(|part| part.policy() == Policy::EndProcess);
    let missing: Vec<Part> = ends.filter(|part| !killed.contains(part) && !reasons.contains(part)).collect();
    assert!(missing.is_empty(), "in no list of tests/crash/killed_parts.rs, and without a reason here: {missing:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guild_that_panics_is_restarted_and_the_process_goes_on() {
    let stage = Stage::new(Engine::Sqlite, ROOM).await;
    let permits = Semaphore::new(30);
    let mut life = stage.begin_with(&[("GUILDHALL_FAILPOINT", &failpoint(Part::OperationGuild, 5))]);
    let askers = stage.places.iter().zip(1..);
    let askers: Vec<_> =
        askers.map(|(place, seed)| asks(&stage, Asker::new(place.clone()), &SORTS, &permits, seed)).collect();
    let done = async {
        assert!(timeout(STUCK, stage.effects_in_all(20)).await.is_ok(), "{}", life.last_words());
        permits.close();
    };
    let (accepted, ()) = tokio::join!(join_all(askers), done);
    let accepted: Vec<Accepted> = accepted.into_iter().flatten().collect();
    let became = stage.all_became(&accepted).await;
    judge(&stage.sim.score(), &accepted, &became).holds("guild restarted");
    assert_eq!(life.lines_with("failpoint of operation_guild").len(), 1, "{}", life.last_words());
    assert_eq!(life.ended(), None, "{}", life.last_words());
}
