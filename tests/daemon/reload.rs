//! Reloading a running daemon: by SIGHUP, over the API and by the command.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use guildhall_sim::{BotConfig, Fault, FaultAction, JoinSpec, Sim, SimConfig, SimHandle};
use guildhall_testkit::program::{Guildhall, HttpResponse, RunningGuildhall, TEST_TIMEOUT, get, request, text};
use serde_json::{Value, json};

const KEY: &str = "gh_test_0123456789";
const TOKENS: [&str; 2] = ["first-token", "second-token"];
/// A token of application 1000, and one of application 2000, which the simulator does not know.
const TOKENS_OF_TWO_APPLICATIONS: [&str; 2] = ["MTAwMA.first.token", "MjAwMA.other.token"];
/// Two tokens of application 1000.
const TOKENS_OF_ONE_APPLICATION: [&str; 2] = ["MTAwMA.first.token", "MTAwMA.second.token"];

/// A rule that creates a role for each member that joins. Its name stays the same; `pad` makes it a different rule.
fn welcome_handler(pad: &str) -> String {
    format!(
        "[[handlers]]\nname = \"welcome\"\non = [\"member.join\", \"message.{pad}\"]\n\
         do = [{{ kind = \"create_role\", payload = {{ name = \"{{event_id}}\" }} }}]\n"
    )
}

struct Daemon {
    running: RunningGuildhall,
    address: SocketAddr,
}

impl Daemon {
    fn start(sim: &SimHandle, settings: &str) -> Self {
        Self::start_with(TOKENS[0], sim, settings)
    }

    fn start_with(token: &str, sim: &SimHandle, settings: &str) -> Self {
        let running = Guildhall::serve(&sim.gateway_url())
            .env_remove("GUILDHALL__DISCORD__TOKEN")
            .env("GUILDHALL__DISCORD__TOKEN_FILE", "token")
            .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
            .env("GUILDHALL__GATEWAY__INTENTS", "guilds,guild_members")
            .env("GUILDHALL__API__ADMIN_KEY", KEY)
            .file("token", token)
            .file("config/guildhall.toml", settings)
            .file("handlers.toml", &welcome_handler("create"))
            .spawn();
        let address = running.address();
        running.wait_for_log_line("\"part is ready\",\"part\":\"gateway\"");
        Self { running, address }
    }

    fn write(&self, path: &str, text: &str) {
        replace_file(&self.running.folder().join(path), text);
    }

    fn post(&self, path: &str) -> HttpResponse {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\n\
             Content-Length: 0\r\n\r\n"
        );
        tokio::task::block_in_place(|| request(self.address, &head))
    }

    fn reload(&self) -> Value {
        let response = self.post("/v1/reload");
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()
    }

    async fn until(&self, label: &str, is_satisfied: impl Fn() -> bool) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while !is_satisfied() {
            assert!(Instant::now() < deadline, "timed out: {label}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn stop(self) {
        self.running.signal("TERM");
        let exit = self.running.wait_for_exit();
        assert_eq!(exit.code, Some(0), "{}", exit.stderr);
        assert!(
            TOKENS
                .iter()
                .chain(&TOKENS_OF_TWO_APPLICATIONS)
                .chain(&TOKENS_OF_ONE_APPLICATION)
                .all(|token| !exit.stderr.contains(token)),
            "a token is in the log"
        );
    }
}

/// Replaces a file atomically, since it may be read at any time.
fn replace_file(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

async fn sim(guilds: u32) -> SimHandle {
    let bots = [TOKENS[0], TOKENS[1], TOKENS_OF_ONE_APPLICATION[0], TOKENS_OF_ONE_APPLICATION[1]];
    let bots = bots.map(|token| BotConfig { token: token.to_owned(), name: token.to_owned() }).to_vec();
    Sim::start(SimConfig { bots, guilds, members: 1, channels: 1, ..SimConfig::default() }).await.unwrap()
}

fn item_names(report: &Value, list: &str) -> Vec<String> {
    report[list].as_array().unwrap().iter().map(|item| item["what"].as_str().unwrap().to_owned()).collect()
}

/// The names of all roles that were created.
fn created_roles(sim: &SimHandle) -> Vec<String> {
    let score = sim.score();
    let effects = score.effects.values().flatten();
    effects
        .filter(|effect| effect.verb == "create" && effect.kind == "role")
        .map(|effect| effect.name.clone())
        .collect()
}

async fn add_members(sim: &SimHandle, count: u64) {
    for guild in sim.guilds() {
        sim.join(guild, JoinSpec { count, per_second: 0.0, ..JoinSpec::default() }).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reload_applies_changes_and_lists_what_needs_a_restart() {
    let sim = sim(1).await;
    let daemon = Daemon::start(&sim, "[gateway]\nshards = 1\n");
    let report_without_changes = daemon.reload();
    assert_eq!(
        (item_names(&report_without_changes, "changed"), item_names(&report_without_changes, "needs_restart")),
        (vec![], vec![]),
        "{report_without_changes}"
    );
    assert!(
        report_without_changes["unchanged"].as_array().unwrap().contains(&json!("log.filter")),
        "{report_without_changes}"
    );

    daemon.write(
        "config/guildhall.toml",
        "[gateway]\nshards = 2\n[log]\nfilter = \"debug\"\n[handlers]\nfile = \"handlers.toml\"\n\
         [api.policies]\nfailed_per_second = 1\nfailed_burst = 1\n",
    );
    let report = daemon.reload();
    let changed = item_names(&report, "changed");
    for expected in ["log.filter", "handlers.file", "api.policies.failed_burst", "handler welcome"] {
        assert!(changed.iter().any(|one| one == expected), "{expected} in {report}");
    }
    assert_eq!(report["needs_restart"], json!([{ "what": "gateway.shards", "old": 1, "new": 2 }]));
    // Each of them has an effect.
    daemon.running.wait_for_log_line("\"level\":\"DEBUG\"");
    add_members(&sim, 1).await;
    daemon.until("the handler works", || created_roles(&sim).len() == 1).await;
    let unauthorized = "GET /v1/operations HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
    let statuses = [0; 3].map(|_| request(daemon.address, unauthorized).status);
    assert_eq!(statuses[1..], [429, 429], "one is allowed at once: {statuses:?}");
    // Changes that need a restart are still listed.
    assert_eq!(item_names(&daemon.reload(), "needs_restart"), ["gateway.shards"]);

    // A new token is used from the next connection on. Another bot cannot resume its session.
    daemon.write("token", TOKENS[1]);
    let report = daemon.reload();
    assert_eq!(report["changed"], json!([{ "what": "discord.token", "old": "(redacted)", "new": "(redacted)" }]));
    let before = sim.score().gateway.identifies;
    assert_eq!(daemon.post("/v1/shards/0/restart").status, 202);
    daemon.until("it identifies with the new token", || sim.score().gateway.identifies > before).await;
    let audit = format!(
        "GET /v1/audit?action=reload HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\n\r\n"
    );
    assert_eq!(request(daemon.address, &audit).json()["audit"].as_array().unwrap().len(), 4);
    assert!(get(daemon.address, "/metrics").body.contains("guildhall_reloads_total{result=\"applied\"} 4"));
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn handler_for_events_that_no_intent_delivers_is_a_warning_of_a_reload() {
    let sim = sim(1).await;
    let daemon = Daemon::start(&sim, "[handlers]\nfile = \"handlers.toml\"\n");
    let presence = welcome_handler("create").replace("\"member.join\", \"message.create\"", "\"presence.update\"");
    daemon.write("handlers.toml", &presence);
    assert_eq!(item_names(&daemon.reload(), "changed"), ["handler welcome"]);
    let line = daemon.running.wait_for_log_line("presence.update");
    assert!(line.contains("\"WARN\"") && line.contains("add `guild_presences` to gateway.intents"), "{line}");
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn token_of_another_application_needs_a_restart_and_changes_nothing() {
    let sim = sim(1).await;
    let daemon = Daemon::start_with(TOKENS_OF_TWO_APPLICATIONS[0], &sim, "[handlers]\nfile = \"handlers.toml\"\n");
    daemon.write("token", TOKENS_OF_TWO_APPLICATIONS[1]);
    for _ in 0..2 {
        // It is listed until the process is restarted with it.
        let report = daemon.reload();
        let (old, new) = ("a token of application 1000", "a token of application 2000");
        assert_eq!(report["needs_restart"], json!([{ "what": "discord.token", "old": old, "new": new }]));
        assert_eq!(report["changed"], json!([]));
    }
    assert!(!daemon.running.wait_for_log_line("settings reloaded").contains(TOKENS_OF_TWO_APPLICATIONS[1]));
    // Neither the gateway nor a call could use the other token.
    assert_eq!(daemon.post("/v1/shards/0/restart").status, 202);
    daemon.until("the session is resumed", || sim.score().gateway.resumes == 1).await;
    add_members(&sim, 1).await;
    daemon.until("calls are made as before", || created_roles(&sim).len() == 1).await;
    daemon.write("token", TOKENS_OF_TWO_APPLICATIONS[0]);
    let report = daemon.reload();
    assert_eq!((item_names(&report, "changed"), item_names(&report, "needs_restart")), (vec![], vec![]), "{report}");
    daemon.stop();
}

/// Discord rejects a token in the middle of an operation; a reload with another one continues it.
async fn assert_new_token_continues(tokens: [&str; 2]) {
    const CREATE: &str = "POST /guilds/{id}/roles";
    let sim = sim(1).await;
    let daemon = Daemon::start_with(tokens[0], &sim, "[handlers]\nfile = \"handlers.toml\"\n");
    let action = FaultAction::Status { status: 401, code: 0 };
    sim.add_fault(Fault { route: CREATE.to_owned(), action, probability: 1.0, count: Some(1), skip: 0 }).unwrap();
    add_members(&sim, 1).await;
    daemon.running.wait_for_log_line("\"why\":\"unauthorized\"");
    let key = format!("Authorization: Bearer {KEY}");
    let list = format!("GET /v1/operations?state=delayed HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{key}\r\n\r\n");
    let delayed = || request(daemon.address, &list).json()["operations"].as_array().unwrap().len();
    daemon.until("the operation is delayed", || delayed() == 1).await;
    assert_eq!(created_roles(&sim).len(), 0);
    daemon.write("token", tokens[1]);
    assert_eq!(item_names(&daemon.reload(), "changed"), ["discord.token"]);
    daemon.until("the operation has continued", || created_roles(&sim).len() == 1).await;
    let metrics = get(daemon.address, "/metrics").body;
    let released = metrics.lines().find(|line| line.starts_with("guildhall_operations_released_total"));
    assert!(released.is_some_and(|line| line.ends_with(" 1")), "it continued by itself: {released:?}");
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn reload_with_a_new_token_continues_what_a_401_stopped() {
    assert_new_token_continues(TOKENS_OF_ONE_APPLICATION).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reload_with_a_token_that_names_no_application_continues_too() {
    assert_new_token_continues(TOKENS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_files_change_nothing_and_all_errors_are_listed() {
    let sim = sim(1).await;
    let daemon = Daemon::start(&sim, "[handlers]\nfile = \"handlers.toml\"\n");
    daemon.write("config/guildhall.toml", "[gateway]\nshards = 99999\n[log]\nfilter = \"debug\"\nformta = \"json\"\n");
    daemon.write("handlers.toml", "[[handlers]]\nname = \"welcome\"\non = \"member.join\"\nwhen = 7\n");
    let refused = daemon.post("/v1/reload");
    assert_eq!(
        (refused.status, refused.json()["type"].clone()),
        (422, json!("urn:guildhall:problem:invalid-settings"))
    );
    for message in ["gateway.shards cannot be 99999", "did you mean `log.format`", "when"] {
        assert!(refused.json()["errors"].to_string().contains(message), "{message} in {}", refused.body);
    }
    let api = daemon.address.to_string();
    let command = Guildhall::new(&["reload", "--api", &format!("http://{api}"), "--key", KEY]).output();
    let message = text(&command.stderr);
    assert_eq!(command.status.code(), Some(1), "{message}");
    assert!(message.contains("gateway.shards") && message.contains("log.format"), "{message}");

    daemon.running.signal("HUP");
    let line = daemon.running.wait_for_log_line("reload failed: nothing was applied");
    assert!(line.contains("gateway.shards") && line.contains("log.format"), "{line}");
    add_members(&sim, 1).await;
    daemon.until("the handler works as before", || created_roles(&sim).len() == 1).await;
    daemon.write("config/guildhall.toml", "[handlers]\nfile = \"handlers.toml\"\n");
    daemon.write("handlers.toml", &welcome_handler("create"));
    assert_eq!(item_names(&daemon.reload(), "changed"), Vec::<String>::new(), "an invalid change is never applied");
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_reloads_under_load_lose_nothing() {
    const EACH: u64 = 12;
    let sim = sim(4).await;
    let daemon = Daemon::start(&sim, "[handlers]\nfile = \"handlers.toml\"\n");
    let storm = async {
        for n in 0..40 {
            // Each time another rule with the same effect. A broken file is an error that changes nothing.
            let text = if n % 5 == 4 {
                "broken = ".to_owned()
            } else {
                welcome_handler(if n % 2 == 0 { "delete" } else { "update" })
            };
            daemon.write("handlers.toml", &text);
            daemon.running.signal("HUP");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let load = async {
        for _ in 0..EACH {
            add_members(&sim, 1).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::join!(storm, load);
    let all = usize::try_from(EACH).unwrap() * sim.guilds().len();
    daemon.until("every member is welcomed", || created_roles(&sim).len() >= all).await;
    assert!(get(daemon.address, "/metrics").body.contains("guildhall_reloads_total{result=\"applied\"}"));
    daemon.stop();
    let created = created_roles(&sim);
    assert_eq!((created.len(), created.iter().collect::<BTreeSet<_>>().len()), (all, all), "lost or doubled");
}

#[tokio::test(flavor = "multi_thread")]
async fn reload_during_startup_is_done_after_it() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let daemon = Guildhall::serve(&format!("ws://{}", unused.local_addr().unwrap()))
        .file("config/guildhall.toml", "")
        .env("GUILDHALL__SHUTDOWN__TIMEOUT_MS", "500")
        .spawn();
    // The API listens before the daemon has started.
    let address = daemon.address();
    daemon.signal("HUP");
    daemon.wait_for_log_line("settings reloaded");
    daemon.signal("HUP");
    daemon.wait_for_log_line("settings reloaded");
    assert_eq!(get(address, "/livez").status, 200);
    daemon.signal("TERM");
    assert!(daemon.wait_for_exit().code.is_some(), "no signal has killed it");
}
