//! The demo as a newcomer meets it: what it prints, how long it serves, and how it exits.

#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::net::SocketAddr;

use support::{Ended, Guildhall, Running, get, text};

/// The lines of the summary, each a step and its verdict.
fn steps(stdout: &str) -> Vec<(&str, &str)> {
    let table = stdout.lines().skip_while(|line| !line.trim_start().starts_with("expected")).skip(1);
    table
        .take_while(|line| !line.is_empty())
        .map(|line| (line[..32].trim_end(), line.rsplit(' ').next().unwrap_or_default()))
        .collect()
}

#[test]
fn the_demo_sees_every_step_happen_and_exits_with_zero() {
    let output = Guildhall::new(&["demo", "--exit"]).output();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}{stderr}");
    let seen = [
        "shards connected",
        "guilds arrived",
        "members joined",
        "commands received",
        "answers, by the simulator",
        "roles made, by the simulator",
        "identifies, by the simulator",
        "events, of those it sent",
    ];
    assert_eq!(steps(&stdout), seen.map(|step| (step, "ok")), "{stdout}");
    assert!(!stdout.contains("It goes on until"), "with --exit there is nothing to try: {stdout}");
    assert_eq!(stderr, "", "the demo tells its own story");
}

/// An address as the demo prints it.
fn address(demo: &Running, start: &str) -> SocketAddr {
    demo.says(start).split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn the_demo_serves_until_it_is_told_to_end() {
    for signal in ["TERM", "INT"] {
        let demo = Guildhall::new(&["demo"]).spawn();
        let sim = address(&demo, "The simulated Discord is at http://");
        let api = address(&demo, "Guildhall is at http://");
        demo.says("It goes on until Ctrl-C.");

        let ready = get(api, "/readyz");
        assert_eq!((ready.status, &ready.json()["parts"]["gateway"]["state"]), (200, &"ready".into()));
        assert!(get(api, "/metrics").body.contains("guildhall_gateway_shard_connected{shard=\"1\"} 1"));
        assert_eq!(get(sim, "/sim/state").json()["guild_count"], 10);
        let score = get(sim, "/sim/score?brief=true").json();
        assert_eq!(score["gateway"]["connections"], 2);

        demo.signal(signal);
        let Ended { code, stdout, stderr } = demo.end();
        assert_eq!(code, Some(0), "{stdout}{stderr}");
    }
}

#[test]
fn a_wrong_setting_is_told_before_anything_starts() {
    let output = Guildhall::new(&["demo", "--exit", "--log-format", "loud", "--api-bind", "nowhere"]).output();
    let says = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()));
    for mistake in ["2 settings are wrong", "log.format cannot be \"loud\"", "flag --log-format", "api.bind"] {
        assert!(says.contains(mistake), "no {mistake} in {says}");
    }
}

#[test]
fn an_unknown_flag_is_wrong_usage() {
    assert_eq!(Guildhall::new(&["demo", "--no-such-flag"]).output().status.code(), Some(2));
}
