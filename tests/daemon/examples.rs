//! The examples as `examples/README.md` describes them: a brain, the daemon with the example files, and a simulated
//! Discord that shows the effects.

use std::{
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use guildhall_sim::{FireSpec, JoinSpec, Sim, SimConfig, SimHandle, Snowflake};
use guildhall_testkit::program::{Guildhall, TEST_TIMEOUT, request};
use ring::hmac;
use serde_json::{Value, json};

const KEY: &[u8] = b"012345678901234567890123456789";
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
const HANDLERS: &str = include_str!("../../examples/handlers.toml");
const SETTINGS: &str = include_str!("../../examples/sim.toml");

/// A running brain in another language.
struct ExampleBrain {
    child: Child,
    address: SocketAddr,
}

impl ExampleBrain {
    fn start(program: &str, file: &str, secret: &Path) -> Self {
        let mut child = Command::new(program)
            .arg(format!("{EXAMPLES}/{file}"))
            .arg(secret)
            .arg("0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{program} is required, and cannot be started: {error}"));
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").unwrap().parse().unwrap();
        Self { child, address }
    }

    /// The status of the response to a request with these headers.
    fn status_of(&self, id: &str, at: u64, signature: &str, body: &str) -> u16 {
        let head = format!(
            "POST /events HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {}\r\nwebhook-id: {id}\r\n\
             webhook-timestamp: {at}\r\nwebhook-signature: {signature}\r\n\r\n{body}",
            body.len()
        );
        request(self.address, &head).status
    }
}

impl Drop for ExampleBrain {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn signed(id: &str, at: u64, body: &str) -> String {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, KEY), format!("{id}.{at}.{body}").as_bytes());
    format!("v1,{}", STANDARD.encode(tag))
}

/// A resource of the simulator's REST API.
fn get_resource(sim: &SimHandle, path: &str) -> Option<Value> {
    let head = format!(
        "GET /api/v10{path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bot sim-bot-token\r\n\
         User-Agent: DiscordBot (https://guildhall.example, 1)\r\n\r\n"
    );
    let response = tokio::task::block_in_place(|| request(sim.address(), &head));
    (response.status == 200).then(|| response.json())
}

async fn wait_for<T>(description: &str, poll: impl Fn() -> Option<T>) -> T {
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(Instant::now() < deadline, "timed out: {description}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// How often an object of this kind and name was created in a guild.
fn created_count(sim: &SimHandle, guild: Snowflake, label: &str) -> u32 {
    sim.score().created.get(&guild.to_string()).and_then(|names| names.get(label).copied()).unwrap_or(0)
}

async fn check_example(program: &str, file: &str) {
    let sim = Sim::start(SimConfig::default()).await.unwrap();
    let guild = sim.guilds()[0];
    let secret = format!("whsec_{}\n", STANDARD.encode(KEY));
    let daemon = Guildhall::new(&["serve", "--config", "examples/sim.toml"])
        .file("examples/sim.toml", SETTINGS)
        .file("examples/brain.secret", &secret)
        .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
        .env("GUILDHALL__API__BIND", "127.0.0.1:0")
        .env("GUILDHALL__LOG__FORMAT", "json");
    let brain = ExampleBrain::start(program, file, &daemon.path("examples/brain.secret"));
    assert!(HANDLERS.contains("//127.0.0.1:9100/"), "the default address of a brain");
    assert!(HANDLERS.contains("answers = \"signed\""), "only signed responses have an effect below");
    let handlers = HANDLERS.replace("127.0.0.1:9100", &brain.address.to_string());
    let daemon = daemon.file("examples/handlers.toml", &handlers).spawn();
    daemon.wait_for_log_line("\"part is ready\",\"part\":\"gateway\"");

    let spec = JoinSpec { count: 2, name: Some("ada".into()), ..JoinSpec::default() };
    let joined = sim.join(guild, spec).await.unwrap().ids;
    let fired = sim.fire(FireSpec::command(guild, "hello")).await.unwrap();
    let application = sim.application("sim-bot-token").unwrap();
    let original = format!("/webhooks/{application}/{}/messages/@original", fired.token.unwrap());
    let reply =
        wait_for("the command is answered", || get_resource(&sim, &original).filter(|reply| reply["content"] != ""))
            .await;
    assert_eq!(reply["content"], "Hello yourself!");
    let command_user = &reply["interaction_metadata"]["user"]["id"];
    let command_user = command_user.as_str().unwrap_or_else(|| panic!("the reply names its user: {reply}"));
    let greeting = format!("<@{command_user}> says hello to everybody.");
    let greeted = format!("message {greeting}");
    wait_for("the greeting is sent", || (created_count(&sim, guild, &greeted) > 0).then_some(())).await;

    // These requests are under the bot's limits as well.
    let resource = async |path: String| wait_for("the resource is visible", || get_resource(&sim, &path)).await;
    // A command does not wait for other events of its guild, so it may be answered first.
    for user in &joined {
        let path = format!("/guilds/{guild}/members/{user}");
        let has_role = |member: &Value| member["roles"].as_array().is_some_and(|roles| !roles.is_empty());
        wait_for("new members have a role", || get_resource(&sim, &path).filter(has_role)).await;
    }
    let roles = resource(format!("/guilds/{guild}/roles")).await;
    let roles: Vec<&Value> = roles.as_array().unwrap().iter().filter(|role| role["name"] == "Newcomer").collect();
    let [role] = &roles[..] else { panic!("one role for all new members, not {roles:?}") };
    for user in &joined {
        let member = resource(format!("/guilds/{guild}/members/{user}")).await;
        assert_eq!(member["roles"], json!([role["id"]]));
    }
    let channel = reply["channel_id"].as_str().unwrap();
    let messages = resource(format!("/channels/{channel}/messages")).await;
    let greetings = messages.as_array().unwrap().iter().filter(|message| message["content"] == greeting.as_str());
    assert_eq!(greetings.count(), 1, "{messages}");

    // It exits when all that it has started is done.
    daemon.signal("TERM");
    let exited = daemon.wait_for_exit();
    assert_eq!(exited.code, Some(0), "{}", exited.stderr);
    let score = sim.score();
    assert_eq!((score.duplicates, score.interactions.answered, score.interactions.doubled), (0, 1, 0));
    assert_eq!((created_count(&sim, guild, "role Newcomer"), created_count(&sim, guild, &greeted)), (1, 1));

    let (now, body) =
        (SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs(), r#"{"event_type":"member.leave"}"#);
    assert_eq!(brain.status_of("a", now, &signed("a", now, body), body), 200);
    assert_eq!(
        brain.status_of("a", now, &format!("v1,x {}", signed("a", now, body)), body),
        200,
        "one of the signatures \
        matches"
    );
    assert_eq!(brain.status_of("b", now, &signed("a", now, body), body), 401, "signature of another event");
    assert_eq!(brain.status_of("a", now - 330, &signed("a", now - 330, body), body), 401, "replayed too late");
    assert_eq!(brain.status_of("a", now, &signed("a", now, body), "{}"), 401, "another body");
    assert_eq!(brain.status_of("a", now, "", body), 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn python_brain_assigns_roles_responds_and_checks_signatures() {
    check_example("python3", "brain.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_brain_assigns_roles_responds_and_checks_signatures() {
    check_example("node", "brain.mjs").await;
}
