//! `guildhall commands sync` against a simulated Discord: its output, and the commands that Discord then has.

use std::process::Output;

use guildhall_sim::{Fault, FaultAction, Scope, Sim, SimConfig, SimHandle};
use guildhall_testkit::program::{Guildhall, RunningGuildhall, request, text};
use serde_json::{Value, json};

const EXAMPLE: &str = include_str!("../../examples/commands.yaml");
const OVERWRITE: &str = "PUT /applications/{application.id}/commands";

async fn sim() -> SimHandle {
    Sim::start(SimConfig { guilds: 1, members: 1, channels: 1, ..SimConfig::default() }).await.unwrap()
}

/// Runs it with these commands in its file.
fn sync(sim: &SimHandle, commands: &str, flags: &[&str]) -> Output {
    let mut args = vec!["commands", "sync", "-f", "commands.yaml"];
    args.extend_from_slice(flags);
    let program = Guildhall::new(&args)
        .file("commands.yaml", commands)
        .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
        .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
        .env("GUILDHALL__LIMITS__SETTLING_MS", "0");
    tokio::task::block_in_place(|| program.output())
}

#[tokio::test(flavor = "multi_thread")]
async fn sim_flag_replaces_discord_and_a_token_is_not_needed() {
    let sim = sim().await;
    let args = ["commands", "sync", "-f", "commands.yaml", "--sim", &sim.url()];
    let program = Guildhall::new(&args).file("commands.yaml", EXAMPLE).env("GUILDHALL__LIMITS__SETTLING_MS", "0");
    expect_success(&tokio::task::block_in_place(|| program.output()));
    assert_eq!(overwrites(&sim), 1);

    let other = Guildhall::new(&[&args[..], &["--gateway-url", "ws://127.0.0.1:1"]].concat()).output();
    assert_eq!(other.status.code(), Some(2));
    let discord = Guildhall::new(&args[..4])
        .file("commands.yaml", EXAMPLE)
        .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
        .output();
    assert!(expect_failure(&discord).contains("add --sim"), "a simulator's token is not sent to Discord");
}

/// Its output if it succeeds.
#[track_caller]
fn expect_success(output: &Output) -> String {
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()), "{}", text(&output.stdout));
    text(&output.stdout)
}

/// Its error if it fails.
#[track_caller]
fn expect_failure(output: &Output) -> String {
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()), "{}", text(&output.stderr));
    text(&output.stderr)
}

/// The commands that the simulator has, with all localizations.
fn registered_commands(sim: &SimHandle, scope: &str) -> Vec<Value> {
    let application = sim.application("sim-bot-token").unwrap();
    let path = format!("/api/v10/applications/{application}{scope}/commands?with_localizations=true");
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bot sim-bot-token\r\n\
         User-Agent: DiscordBot (https://guildhall.example, 1)\r\n\r\n"
    );
    let response = tokio::task::block_in_place(|| request(sim.address(), &head));
    assert_eq!(response.status, 200, "{}", response.body);
    response.json().as_array().unwrap().clone()
}

fn overwrites(sim: &SimHandle) -> u64 {
    sim.score().routes.get(OVERWRITE).map_or(0, |route| route.requests)
}

fn find_command<'a>(commands: &'a [Value], name: &str) -> &'a Value {
    commands.iter().find(|command| command["name"] == name).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn sync_registers_the_file_and_a_second_run_sends_nothing() {
    let sim = sim().await;
    let dry_run = expect_success(&sync(&sim, EXAMPLE, &["--dry-run"]));
    assert!(dry_run.contains("+ /hello\n+ /remind\n+ user command Greet\n3 created"), "{dry_run}");
    assert!(dry_run.ends_with("Nothing was sent (--dry-run).\n"), "{dry_run}");
    assert!(registered_commands(&sim, "").is_empty() && overwrites(&sim) == 0);

    let first = expect_success(&sync(&sim, EXAMPLE, &[]));
    assert!(first.ends_with("3 created, 0 changed, 0 removed, 0 unchanged. Registered with Discord.\n"), "{first}");
    let before = registered_commands(&sim, "");
    assert_eq!(before.len(), 3);
    let remind = find_command(&before, "remind");
    assert_eq!(remind["options"][0]["type"], json!(3));
    assert_eq!(remind["options"][1]["choices"][0], json!({ "name": "an hour", "value": 60 }));
    assert_eq!(find_command(&before, "hello")["name_localizations"], json!({ "de": "hallo" }));
    assert_eq!(find_command(&before, "Greet")["type"], json!(2));

    let second = expect_success(&sync(&sim, EXAMPLE, &[]));
    assert!(second.contains("= /hello\n= /remind\n= user command Greet\n"), "{second}");
    assert!(second.ends_with("Discord is up to date; nothing was sent.\n"), "{second}");
    assert_eq!(overwrites(&sim), 1);

    let other = "
- {name: hello, description: Says it, name_localizations: {de: hallo, fr: bonjour}, contexts: [guild]}
- {name: bye, description: Takes leave}
";
    let third = expect_success(&sync(&sim, other, &[]));
    assert!(
        third.contains("~ /hello: description, name_localizations.fr\n+ /bye\n- /remind\n- user command Greet\n"),
        "{third}"
    );
    assert!(third.ends_with("1 created, 1 changed, 2 removed, 0 unchanged. Registered with Discord.\n"), "{third}");
    let after = registered_commands(&sim, "");
    assert_eq!(after.len(), 2);
    assert_eq!(find_command(&after, "hello")["id"], find_command(&before, "hello")["id"], "the same command");
    assert!(expect_success(&sync(&sim, "[]", &[])).contains("- /hello\n- /bye\n"));
    assert!(registered_commands(&sim, "").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn guild_has_its_own_commands_and_an_unknown_guild_is_reported() {
    let sim = sim().await;
    let guild = sim.guilds()[0].to_string();
    let first = expect_success(&sync(&sim, EXAMPLE, &["--guild", &guild]));
    assert!(first.contains("+ /hello\n"), "{first}");
    assert_eq!(
        (registered_commands(&sim, &format!("/guilds/{guild}")).len(), registered_commands(&sim, "").len()),
        (3, 0)
    );
    let second = expect_success(&sync(&sim, EXAMPLE, &["--guild", &guild]));
    assert!(second.ends_with("nothing was sent.\n"), "{second}");
    let unknown_guild = expect_failure(&sync(&sim, EXAMPLE, &["--guild", "7"]));
    assert!(unknown_guild.contains("in guild 7") && unknown_guild.contains("check --guild"), "{unknown_guild}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_errors_of_a_file_are_reported_without_calling_discord() {
    let sim = sim().await;
    let invalid = "
- {name: Big Words, description: x}
- name: fine
  description: x
  options:
  - {type: string, name: maybe, description: x}
  - {type: text, name: maybe, description: x, required: true}
";
    let message = expect_failure(&sync(&sim, invalid, &[]));
    for error in [
        "4 errors in the commands in commands.yaml:",
        "`commands[0].name` must contain only letters, digits",
        "`commands[1].options[1].type` must be one of",
        "`commands[1].options[1].name` is `maybe`, which is the name of another entry",
        "`commands[1].options[1].required` must not be true after",
    ] {
        assert!(message.contains(error), "no {error} in {message}");
    }
    assert_eq!(sim.score().requests, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn rate_limits_are_waited_for_and_refusals_have_advice() {
    let sim = sim().await;
    let once = |action| Fault { route: OVERWRITE.to_owned(), action, probability: 1.0, count: Some(1), skip: 0 };
    sim.add_fault(once(FaultAction::RateLimit { scope: Scope::User, retry_after_ms: 1100 })).unwrap();
    sim.add_fault(once(FaultAction::Status { status: 503, code: 0 })).unwrap();
    let output = sync(&sim, EXAMPLE, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("it returned 429"), "it reports why it waits: {}", text(&output.stderr));
    assert_eq!((registered_commands(&sim, "").len(), overwrites(&sim)), (3, 3));

    sim.add_fault(once(FaultAction::Status { status: 400, code: 30034 })).unwrap();
    let message = expect_failure(&sync(&sim, "[]", &[]));
    assert!(message.contains("200 new commands a day") && message.contains("tomorrow"), "{message}");
    assert_eq!(registered_commands(&sim, "").len(), 3);

    let output = Guildhall::new(&["commands", "sync", "-f", "commands.json", "--log-filter", "off"])
        .file("commands.json", "[]")
        .env("GUILDHALL__DISCORD__TOKEN", "some-other-token")
        .env("GUILDHALL__DISCORD__API_URL", &sim.api_url());
    let message = expect_failure(&tokio::task::block_in_place(|| output.output()));
    assert!(message.contains("Discord refused the token (401)"), "{message}");
}

/// A daemon that uses a store, and the command to run next to it.
fn start_daemon_and_command(sim: &SimHandle, store: &str) -> (RunningGuildhall, Guildhall) {
    let running = Guildhall::serve(&sim.gateway_url())
        .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
        .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
        .env("GUILDHALL__STORE__URL", store)
        .env("GUILDHALL__API__ADMIN_KEY", "gh_test_0123456789")
        .spawn();
    let address = tokio::task::block_in_place(|| running.address());
    tokio::task::block_in_place(|| running.wait_for_log_line("\"part is ready\",\"part\":\"gateway\""));
    let program = Guildhall::new(&["commands", "sync", "-f", "commands.yaml"])
        .file("commands.yaml", EXAMPLE)
        .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
        // Only the daemon can reach Discord.
        .env("GUILDHALL__DISCORD__API_URL", "http://127.0.0.1:9/api/v10")
        .env("GUILDHALL__STORE__URL", store)
        .env("GUILDHALL__API__BIND", &address.to_string());
    (running, program)
}

fn stop_daemon(running: RunningGuildhall) {
    running.signal("TERM");
    tokio::task::block_in_place(|| running.wait_for_exit());
}

#[tokio::test(flavor = "multi_thread")]
async fn sync_goes_through_the_gate_of_a_running_daemon() {
    let (sim, folder) = (sim().await, tempfile::tempdir().unwrap());
    let store = format!("sqlite:{}/guildhall.db", folder.path().display());
    let (running, program) = start_daemon_and_command(&sim, &store);
    let program = program.env("GUILDHALL__API__ADMIN_KEY", "gh_test_0123456789");
    let output = tokio::task::block_in_place(|| program.output());
    assert!(expect_success(&output).contains("Registered with Discord."), "{}", text(&output.stdout));
    assert_eq!(overwrites(&sim), 1);
    stop_daemon(running);
}

#[tokio::test(flavor = "multi_thread")]
async fn sync_sends_nothing_beside_a_daemon_that_refuses_its_key() {
    let (sim, folder) = (sim().await, tempfile::tempdir().unwrap());
    let store = format!("sqlite:{}/guildhall.db", folder.path().display());
    let (running, program) = start_daemon_and_command(&sim, &store);
    let program = program
        .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
        .env("GUILDHALL__API__ADMIN_KEY", "gh_test_of_another_daemon");
    let output = tokio::task::block_in_place(|| program.output());
    let message = expect_failure(&output);
    assert!(message.contains("a daemon uses sqlite:") && message.contains("GUILDHALL_KEY"), "{message}");
    assert_eq!(overwrites(&sim), 0);
    stop_daemon(running);
}

#[test]
fn missing_token_or_file_is_reported() {
    let message = expect_failure(&Guildhall::new(&["commands", "sync", "-f", "none.yaml"]).output());
    assert!(message.contains("cannot read the commands in none.yaml"), "{message}");
    let program = Guildhall::new(&["commands", "sync", "-f", "none.yaml"]).file("none.yaml", "[]");
    assert!(expect_failure(&program.output()).contains("there is no bot token"));
    assert_eq!(Guildhall::new(&["commands", "sync"]).output().status.code(), Some(2));
}
