//! A daemon with guilds of several tenants, and keys of several kinds.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::Mutex,
    time::{Duration, Instant},
};

use guildhall_core::access::Scope;
use guildhall_sim::{BotConfig, FireSpec, LimitConfig, Sim, SimConfig, SimHandle, Snowflake};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::block_in_place;

use super::{
    postgres,
    support::{Answer, CANARY, Guildhall, Running, STUCK, request},
};

/// The admin key of the settings.
pub(crate) const ADMIN: &str = "gh_admin_of-a-town";

/// A handler that always fails, so that there are dead events.
const HANDLERS: &str = r#"
[[handlers]]
name = "broken"
on = "interaction.command.broken"
reply = "{data.nowhere}"
"#;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Engine {
    Sqlite,
    Postgres,
}

/// An API key and its id.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) text: String,
    pub(crate) id: String,
}

impl Key {
    /// The secret part of the key.
    pub(crate) fn secret(&self) -> &str {
        self.text.rsplit_once(&self.id).unwrap().1
    }
}

/// A daemon and its tenants: `acme` has two guilds, `rival` has one, and one guild belongs to no tenant.
pub(crate) struct Town {
    pub(crate) sim: SimHandle,
    running: Running,
    address: SocketAddr,
    _folder: TempDir,
    /// All responses so far, each with its request.
    answers: Mutex<Vec<(String, String)>>,
    pub(crate) made: Mutex<Vec<Key>>,
    pub(crate) acme: Snowflake,
    pub(crate) acmes_other: Snowflake,
    pub(crate) rivals: Snowflake,
    pub(crate) nobodys: Snowflake,
    /// Key for the first guild of `acme`, with all scopes that a key of a guild can have.
    pub(crate) owner: Key,
    /// Key for everything of the tenant `default`, except keys.
    pub(crate) fleet: Key,
}

/// Scopes that a key of a guild, or of any tenant, can have.
pub(crate) fn scopes_of_tenants() -> Vec<&'static str> {
    Scope::ALL.into_iter().filter(|scope| !scope.is_everywhere()).map(Scope::name).collect()
}

impl Town {
    pub(crate) async fn open(engine: Engine) -> Self {
        Self::open_with(engine, &[]).await
    }

    /// The same with more settings, as environment variables.
    pub(crate) async fn open_with(engine: Engine, settings: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = match engine {
            Engine::Sqlite => format!("sqlite:{}/guildhall.db", folder.path().display()),
            Engine::Postgres => postgres::shared().database_of("CREATEROLE").await.0,
        };
        let required = match engine {
            Engine::Sqlite => "auto",
            Engine::Postgres => "required",
        };
        let bot = BotConfig { token: CANARY.to_owned(), ..BotConfig::default() };
        let limits = LimitConfig::off();
        let config = SimConfig { bots: vec![bot], guilds: 4, members: 1, channels: 2, limits, ..SimConfig::default() };
        let sim = Sim::start(config).await.unwrap();
        let guildhall = Guildhall::serve(&sim.gateway_url());
        let guildhall = settings.iter().fold(guildhall, |guildhall, (name, value)| guildhall.env(name, value));
        let running = guildhall
            .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
            .env("GUILDHALL__STORE__URL", &url)
            .env("GUILDHALL__STORE__ROW_SECURITY", required)
            .env("GUILDHALL__API__ADMIN_KEY", ADMIN)
            // Every route is requested with every key, without a pause.
            .env("GUILDHALL__API__POLICIES__HEAVY_PER_SECOND", "0")
            .env("GUILDHALL__API__POLICIES__LIGHT_PER_SECOND", "0")
            .env("GUILDHALL__API__POLICIES__FAILED_PER_SECOND", "0")
            .env("GUILDHALL__BUDGETS__NAMED", "upstream=10/1")
            .env("GUILDHALL__LOG__FILTER", "trace")
            .file("handlers.toml", HANDLERS)
            .env("GUILDHALL__HANDLERS__FILE", "handlers.toml")
            .spawn();
        let address = block_in_place(|| {
            let address = running.address();
            running.lines_with("\"part is ready\",\"part\":\"operations\"", 1);
            running.lines_with("\"part is ready\",\"part\":\"gateway\"", 1);
            address
        });
        let guilds = sim.guilds();
        let nobody = Key { text: String::new(), id: String::new() };
        let mut town = Self {
            running,
            address,
            _folder: folder,
            answers: Mutex::default(),
            made: Mutex::default(),
            acme: guilds[0],
            acmes_other: guilds[1],
            rivals: guilds[2],
            nobodys: guilds[3],
            sim,
            owner: nobody.clone(),
            fleet: nobody,
        };
        let (mut own, mut whole) = (scopes_of_tenants(), Scope::ALL.map(Scope::name).to_vec());
        whole.retain(|scope| *scope != Scope::Admin.name());
        let guild = format!("guild:{}", town.acme);
        own.push(&guild);
        town.owner = town.key("acme", &own);
        town.fleet = town.key("default", &whole);
        // A guild belongs to the tenant of the first key that names it.
        for (tenant, guild) in [("acme", town.acmes_other), ("rival", town.rivals)] {
            town.key(tenant, &["operations:read", &format!("guild:{guild}")]);
        }
        town
    }

    /// Creates a key.
    pub(crate) fn key(&self, tenant: &str, scopes: &[&str]) -> Key {
        let made = self.admin("POST", "/v1/keys", &json!({"name": "a test", "tenant": tenant, "scopes": scopes}));
        assert_eq!(made.status, 201, "{}", made.body);
        let (text, id) = (made.json()["key"].clone(), made.json()["id"].clone());
        let key = Key { text: text.as_str().unwrap().to_owned(), id: id.as_str().unwrap().to_owned() };
        self.made.lock().unwrap().push(key.clone());
        key
    }

    /// Keys without access to the first guild of `acme`: of the tenant `default`, of another tenant, and of the same
    /// tenant for another guild.
    pub(crate) fn strangers(&self) -> Vec<(&'static str, Key)> {
        let scopes = scopes_of_tenants();
        let elsewhere = format!("guild:{}", self.acmes_other);
        vec![
            ("the tenant default", self.key("default", &scopes)),
            ("another tenant", self.key("rival", &scopes)),
            ("another guild", self.key("acme", &[&scopes[..], &[&elsewhere]].concat())),
        ]
    }

    pub(crate) fn admin(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.with(ADMIN, method, path, body)
    }

    /// Sends a request with a key, or without one if it is empty. `name` is the request id, if it is not empty.
    pub(crate) fn with_name(&self, name: &str, key: &str, method: &str, path: &str, body: &Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let key = if key.is_empty() { String::new() } else { format!("Authorization: Bearer {key}\r\n") };
        let name = if name.is_empty() { String::new() } else { format!("X-Request-Id: {name}\r\n") };
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{key}{name}Content-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        // A stream does not end by itself. Its first bytes are enough.
        let asks = if path.ends_with("/stream") { glance } else { request };
        let answer = block_in_place(|| asks(self.address, &head));
        self.answers.lock().unwrap().push((format!("{method} {path}"), format!("{}\n{}", answer.head, answer.body)));
        answer
    }

    pub(crate) fn with(&self, key: &str, method: &str, path: &str, body: &Value) -> Answer {
        self.with_name("", key, method, path, body)
    }

    /// Repeats a request until the response satisfies the condition.
    pub(crate) fn until(&self, path: &str, is_so: impl Fn(&Answer) -> bool) -> Answer {
        let deadline = Instant::now() + STUCK;
        loop {
            let answer = self.admin("GET", path, &Value::Null);
            if is_so(&answer) {
                return answer;
            }
            assert!(Instant::now() < deadline, "timed out: {path}: {} {}", answer.status, answer.body);
            block_in_place(|| std::thread::sleep(Duration::from_millis(20)));
        }
    }

    /// Reads metrics until they satisfy the condition.
    pub(crate) fn until_metrics(&self, is_so: impl Fn(&str) -> bool) {
        self.until("/metrics", |answer| is_so(&answer.body));
    }

    /// Submits an operation. Returns its id.
    pub(crate) fn submit(&self, key: &str, guild: Snowflake, operation: &Value) -> String {
        let answer = self.with(key, "POST", &format!("/v1/guilds/{guild}/operations"), operation);
        assert_eq!(answer.status, 202, "{}", answer.body);
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    /// Submits an operation of the first guild of `acme` with a delay of an hour.
    pub(crate) fn waiting(&self) -> String {
        let later = json!({"kind": "create_role", "payload": {"name": "Later"}, "delay_ms": 3_600_000});
        self.submit(&self.owner.text, self.acme, &later)
    }

    /// Submits an operation of the first guild of `acme` that fails, and waits for its dead letter. It is in the queue
    /// of a user, because an operation that waits in the queue of the guild would block it.
    pub(crate) fn dead(&self) -> String {
        let nobody = json!({"kind": "send_dm", "payload": {"user_id": "5", "content": "is anybody there?"}});
        let id = self.submit(&self.owner.text, self.acme, &nobody);
        self.until(&format!("/v1/dead-letters/{id}"), |answer| answer.status == 200);
        id
    }

    /// Position of an event whose handler failed.
    pub(crate) async fn dead_event(&self) -> String {
        self.sim.fire(FireSpec::command(self.acme, "broken")).await.unwrap();
        let listed = self.until("/v1/events/dead", |answer| {
            answer.json()["events"].as_array().is_some_and(|events| !events.is_empty())
        });
        listed.json()["events"][0]["place"].as_str().unwrap().to_owned()
    }

    /// Audit rows, newest first.
    pub(crate) fn notes(&self) -> Vec<Value> {
        let answer = self.admin("GET", "/v1/audit?limit=500", &Value::Null);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()["audit"].as_array().unwrap().clone()
    }

    /// A text channel of a guild.
    pub(crate) fn channel(&self, guild: Snowflake) -> String {
        let read = json!({"kind": "read", "payload": {"path": format!("/guilds/{guild}/channels")}});
        let id = self.submit(ADMIN, guild, &read);
        let shown = self.until(&format!("/v1/operations/{id}"), |answer| answer.json()["state"] == "succeeded");
        let channels = shown.json()["result"].as_array().unwrap().clone();
        let text = channels.iter().find(|channel| channel["type"] == 0).unwrap();
        text["id"].as_str().unwrap().to_owned()
    }

    /// Stops the daemon. Returns all responses and everything that it logged.
    pub(crate) fn close(self) -> (Vec<(String, String)>, String) {
        self.running.signal("TERM");
        let ended = block_in_place(|| self.running.end());
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        (self.answers.into_inner().unwrap(), ended.stdout + &ended.stderr)
    }
}

/// Sends a request and reads the first part of the response: the whole of a rejection, or the start of a stream.
fn glance(address: SocketAddr, text: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(STUCK)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    let mut piece = [0; 4_096];
    // A rejection has a Content-Length; a stream has started once its head has arrived.
    let is_whole = |answer: &str| {
        answer.split_once("\r\n\r\n").is_some_and(|(head, body)| {
            let said =
                head.to_lowercase().lines().find_map(|line| line.strip_prefix("content-length: ").map(str::to_owned));
            said.is_none_or(|said| body.len() >= said.trim().parse::<usize>().unwrap())
        })
    };
    while !is_whole(&answer) {
        let read = stream.read(&mut piece).unwrap();
        assert!(read > 0, "the connection ended before the response: {answer:?}");
        answer.push_str(std::str::from_utf8(&piece[..read]).unwrap());
    }
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

/// Runs a test on both engines.
macro_rules! on_both {
    ($($(#[$attribute:meta])* async fn $name:ident($town:ident) $body:block)*) => {$(
        mod $name {
            #[allow(unused_imports, reason = "not every test needs all")]
            use super::*;

            $(#[$attribute])*
            async fn run($town: crate::town::Town) $body

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                run(crate::town::Town::open(crate::town::Engine::Sqlite).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                run(crate::town::Town::open(crate::town::Engine::Postgres).await).await;
            }
        }
    )*};
}
pub(crate) use on_both;
