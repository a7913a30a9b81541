//! A gate that ends and one that starts at once: the calls in flight of the first and the calls of the second stay
//! within the limit together.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use guildhall_actors::gate::{CallOutcome, Gate, GateConfig, Rest as _, RestRequest};
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_core::lane::Lane;
use guildhall_core::response::Credential;
use guildhall_sim::{Fault, FaultAction, LimitConfig, RateLimitScore, Stage};
use guildhall_testkit::gate::{SimWorld, answered, run, transport};
use http::Method;

/// How often a gate is killed.
const KILLS: usize = 3;

/// Responses before a gate is killed: more than one window has, so that it is under full load.
const RESPONSES_BEFORE_KILL: usize = 60;

const TARGET: &str = "GUILDHALL_TEST_RESTART_TARGET";

/// A call that takes the next token, on a route without its own limit.
fn typing(bot: Credential, channel: u64) -> RestRequest {
    let mut request = RestRequest::new(Method::POST, format!("/channels/{channel}/typing"), bot, LeaseGuard::always());
    request.lane = Lane::Interactive;
    request
}

/// Keeps 200 calls waiting, and calls `each` after each response.
async fn flood(gate: &Gate, bot: Credential, channel: u64, mut on_response: impl FnMut() -> bool) {
    let mut calls: FuturesUnordered<_> = (0..200).map(|_| gate.call(typing(bot, channel))).collect();
    while let Some(outcome) = calls.next().await {
        if let CallOutcome::Answered(_) = outcome
            && !on_response()
        {
            return;
        }
        calls.push(gate.call(typing(bot, channel)));
    }
}

async fn start_slow_sim() -> SimWorld {
    let world = SimWorld::start(1, LimitConfig::default()).await;
    // Some calls of a gate arrive long after the next one has started.
    world.fault("*", FaultAction::Latency { fixed_ms: 0, jitter_ms: 300, at: Stage::Arrival });
    world
}

fn check_score(world: &SimWorld) {
    let score = world.score();
    println!("{} arrived, at most {:?} in a second", score.requests, score.max_per_second);
    assert!(world.max_per_second() <= 50, "{:?}", score.max_per_second);
    assert_eq!(score.rate_limited, RateLimitScore::default());
    assert!(score.requests >= (KILLS * RESPONSES_BEFORE_KILL) as u64);
}

#[test]
fn gate_restart_stays_within_the_global_limit() {
    run(async {
        let world = start_slow_sim().await;
        for _ in 0..KILLS {
            let gate = world.gate(GateConfig::default());
            let mut responses = 0;
            flood(&gate, world.bot, world.guilds[0].channel, || {
                responses += 1;
                responses < RESPONSES_BEFORE_KILL
            })
            .await;
        }
        let gate = world.gate(GateConfig::default());
        answered(gate.call(typing(world.bot, world.guilds[0].channel)).await);
        check_score(&world);
    });
}

#[test]
fn calls_in_flight_of_a_dropped_gate_count_for_the_next() {
    run(async {
        let world = SimWorld::start(1, LimitConfig::default()).await;
        // Of the first fifty all but two are still in flight when their gate is dropped; those of the next are fast.
        let action = FaultAction::Latency { fixed_ms: 300, jitter_ms: 0, at: Stage::Arrival };
        world.sim.add_fault(Fault { route: "*".into(), action, probability: 1.0, count: Some(48), skip: 1 }).unwrap();
        for responses in [2, 50] {
            let gate = world.gate(GateConfig::default());
            let mut remaining = responses;
            flood(&gate, world.bot, world.guilds[0].channel, || {
                remaining -= 1;
                remaining > 0
            })
            .await;
        }
        let score = world.score();
        println!("{} arrived, at most {:?} in a second", score.requests, score.max_per_second);
        assert!(score.requests >= 100, "both gates sent as much as they could");
        assert!(world.max_per_second() <= 50, "{:?}", score.max_per_second);
        assert_eq!(score.rate_limited, RateLimitScore::default());
    });
}

/// Floods the simulator until it is killed. The next test runs it in separate processes.
#[test]
fn helper_that_floods_until_it_is_killed() {
    let Ok(target) = std::env::var(TARGET) else { return };
    let mut parts = target.split(' ');
    let mut part = || parts.next().unwrap().to_owned();
    let (url, bot, channel) = (part(), part().parse().unwrap(), part().parse().unwrap());
    run(async move {
        let gate: Arc<Gate> =
            Gate::start(transport(url, Duration::from_secs(15)), GateConfig::default(), LeaseGuard::always());
        flood(&gate, Credential::Application(bot), channel, || {
            println!("answered");
            std::io::stdout().flush().is_ok()
        })
        .await;
    });
}

#[test]
fn process_restart_stays_within_the_global_limit() {
    run(async {
        let world = start_slow_sim().await;
        let Credential::Application(bot) = world.bot else { panic!("a bot has an application") };
        let target = format!("{} {bot} {}", world.sim.api_url(), world.guilds[0].channel);
        let kill_often = move || {
            for _ in 0..KILLS {
                let mut child = Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "restart::helper_that_floods_until_it_is_killed", "--nocapture"])
                    .env(TARGET, &target)
                    .stdout(Stdio::piped())
                    .spawn()
                    .unwrap();
                let lines = BufReader::new(child.stdout.take().unwrap()).lines();
                let responses =
                    lines.map_while(Result::ok).filter(|line| line.contains("answered")).take(RESPONSES_BEFORE_KILL);
                assert_eq!(responses.count(), RESPONSES_BEFORE_KILL);
                // SIGKILL.
                child.kill().unwrap();
                child.wait().unwrap();
            }
        };
        tokio::task::spawn_blocking(kill_often).await.unwrap();
        check_score(&world);
    });
}
