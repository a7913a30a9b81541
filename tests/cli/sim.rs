//! The simulator as a separate program.

use std::net::{SocketAddr, TcpListener};

use guildhall_testkit::program::{Guildhall, RunningGuildhall, get, request, text};

fn address(sim: &RunningGuildhall) -> SocketAddr {
    sim.wait_for_stdout("listening on http://").parse().unwrap()
}

#[test]
fn sim_prints_its_address_serves_and_stops_on_a_signal() {
    for signal in ["TERM", "INT"] {
        let sim = Guildhall::new(&["sim", "--guilds", "3", "--members", "0", "--channels", "1"]).spawn();
        let address = address(&sim);
        let offered = get(address, "/sim").json();
        assert!(offered.as_array().unwrap().iter().any(|one| one["endpoint"] == "POST /sim/guilds"), "{offered}");
        let state = get(address, "/sim/state").json();
        assert_eq!((&state["guild_count"], &state["guilds"][0]["member_count"]), (&3.into(), &2.into()));
        sim.signal(signal);
        let exited = sim.wait_for_exit();
        assert_eq!((exited.code, exited.stderr.as_str()), (Some(0), ""));
    }
}

/// A call of the REST API by a bot.
fn call(address: SocketAddr, token: &str) -> u16 {
    let head = "User-Agent: DiscordBot (https://example.invalid/tests, 1)\r\nHost: test\r\nConnection: close\r\n";
    request(address, &format!("GET /api/v10/users/@me HTTP/1.1\r\n{head}Authorization: Bot {token}\r\n\r\n")).status
}

#[test]
fn each_bot_has_its_token_and_limits_can_be_disabled() {
    let sim = Guildhall::new(&["sim", "--token", "first", "--token", "second", "--no-limits"]).spawn();
    let address = address(&sim);
    assert_eq!([call(address, "first"), call(address, "second"), call(address, "third")], [200, 200, 401]);
    assert_eq!((0..20).map(|_| call(address, "first")).find(|status| *status != 200), None);
    sim.signal("TERM");
    assert_eq!(sim.wait_for_exit().code, Some(0));
}

#[test]
fn two_bots_cannot_have_one_token() {
    let output = Guildhall::new(&["sim", "--token", "one", "--token", "other", "--token", "one"]).output();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(message.lines().count() == 1 && message.contains("--token one is given twice"), "{message}");
}

#[test]
fn public_address_must_be_allowed() {
    for bind in ["0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:0"] {
        let output = Guildhall::new(&["sim", "--bind", bind]).output();
        let message = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()), "{bind}");
        assert!(message.lines().count() == 1 && message.contains("--allow-public"), "{message}");
    }
}

#[test]
fn port_in_use_is_reported_in_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let bind = taken.local_addr().unwrap().to_string();
    let output = Guildhall::new(&["sim", "--bind", &bind]).output();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(message.lines().count() == 1 && message.contains(&bind), "{message}");
}

#[test]
fn invalid_usage_exits_with_two() {
    for args in [
        &["sim", "--no-such-flag"][..],
        &["sim", "--bind", "nowhere"],
        &["sim", "--guilds", "-1"],
        &["sim", "--guilds", "100001"],
        &["sim", "--shards", "0"],
        &["sim", "--heartbeat-interval-ms", "1"],
        &["sim", "--token"],
        &["sim", "--token", ""],
        &["sim", "--token", "Bot sim-bot-token"],
    ] {
        assert_eq!(Guildhall::new(args).output().status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn documentation_names_every_flag() {
    let page = include_str!("../../docs/simulator.md");
    let help = text(&Guildhall::new(&["sim", "--help"]).output().stdout);
    let flags = help.lines().filter_map(|line| line.trim_start().strip_prefix("--")?.split(' ').next());
    // This one belongs to all commands, and is not about the simulator.
    let own: Vec<_> = flags.filter(|flag| *flag != "config").collect();
    assert_eq!(own.len(), 16, "{own:?}");
    for flag in own {
        let named = page.contains(&format!("| `--{flag}` ")) || page.contains(&format!("| `--{flag} "));
        assert!(named, "docs/simulator.md does not mention --{flag}");
    }
}

#[test]
fn tls_writes_the_certificate_that_clients_must_trust() {
    let sim = Guildhall::new(&["sim", "--tls", "sim.pem"]).spawn();
    let _: SocketAddr = sim.wait_for_stdout("listening on https://").parse().unwrap();
    let pem = std::fs::read_to_string(sim.folder().join("sim.pem")).unwrap();
    assert!(pem.starts_with("-----BEGIN CERTIFICATE-----") && !pem.contains("PRIVATE"), "{pem}");
    assert_eq!(sim.wait_for_stdout("certificate in "), "sim.pem");
    sim.signal("TERM");
    assert_eq!(sim.wait_for_exit().code, Some(0));

    let output = Guildhall::new(&["sim", "--tls", "missing/sim.pem"]).output();
    let message = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()));
    assert!(
        message.lines().count() == 1 && message.contains("cannot write the certificate to missing/sim.pem"),
        "{message}"
    );
}

#[test]
fn required_user_agent_is_an_option() {
    let sim = Guildhall::new(&["sim", "--require-user-agent"]).spawn();
    let address = address(&sim);
    let call =
        "GET /api/v10/users/@me HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bot sim-bot-token\r\n";
    assert_eq!(request(address, &format!("{call}\r\n")).status, 403);
    assert_eq!(
        request(address, &format!("{call}User-Agent: DiscordBot (https://example.invalid, 1)\r\n\r\n")).status,
        200
    );
    sim.signal("TERM");
    assert_eq!(sim.wait_for_exit().code, Some(0));
}

#[test]
fn demo_uses_no_other_simulator() {
    let output = Guildhall::new(&["demo", "--sim", "http://127.0.0.1:1"]).output();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("remove --sim"), "{}", text(&output.stderr));
}
