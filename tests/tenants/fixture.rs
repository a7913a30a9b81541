//! A daemon with guilds of several tenants, and keys of several kinds.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::Mutex,
    time::{Duration, Instant},
};

use guildhall_core::access::Scope;
use guildhall_sim::{BotConfig, FireSpec, LimitConfig, Sim, SimConfig, SimHandle, Snowflake};
use guildhall_testkit::{
    postgres,
    program::{CANARY, Guildhall, HttpResponse, RunningGuildhall, TEST_TIMEOUT, request},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::block_in_place;

/// The admin key of the settings.
pub(crate) const ADMIN: &str = "gh_admin_of-a-fixture";

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
pub(crate) struct MultiTenantFixture {
    pub(crate) sim: SimHandle,
    running: RunningGuildhall,
    address: SocketAddr,
    _folder: TempDir,
    /// All responses so far, each with its request.
    responses: Mutex<Vec<(String, String)>>,
    pub(crate) created_keys: Mutex<Vec<Key>>,
    pub(crate) acme_guild: Snowflake,
    pub(crate) acme_second_guild: Snowflake,
    pub(crate) rival_guild: Snowflake,
    pub(crate) unowned_guild: Snowflake,
    /// Key for the first guild of `acme`, with all scopes that a key of a guild can have.
    pub(crate) owner_key: Key,
    /// Key for everything of the tenant `default`, except keys.
    pub(crate) fleet_key: Key,
}

/// Scopes that a key of a guild, or of any tenant, can have.
pub(crate) fn tenant_scopes() -> Vec<&'static str> {
    Scope::ALL.into_iter().filter(|scope| !scope.applies_to_all_guilds()).map(Scope::name).collect()
}

impl MultiTenantFixture {
    pub(crate) async fn open(engine: Engine) -> Self {
        Self::open_with(engine, &[]).await
    }

    /// The same with more settings, as environment variables.
    pub(crate) async fn open_with(engine: Engine, settings: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = match engine {
            Engine::Sqlite => format!("sqlite:{}/guildhall.db", folder.path().display()),
            Engine::Postgres => postgres::shared().create_database_with_owner("CREATEROLE").await.0,
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
            running.wait_for_log_lines("\"part is ready\",\"part\":\"operations\"", 1);
            running.wait_for_log_lines("\"part is ready\",\"part\":\"gateway\"", 1);
            address
        });
        let guilds = sim.guilds();
        let no_key = Key { text: String::new(), id: String::new() };
        let mut fixture = Self {
            running,
            address,
            _folder: folder,
            responses: Mutex::default(),
            created_keys: Mutex::default(),
            acme_guild: guilds[0],
            acme_second_guild: guilds[1],
            rival_guild: guilds[2],
            unowned_guild: guilds[3],
            sim,
            owner_key: no_key.clone(),
            fleet_key: no_key,
        };
        let (mut owner_scopes, mut fleet_scopes) = (tenant_scopes(), Scope::ALL.map(Scope::name).to_vec());
        fleet_scopes.retain(|scope| *scope != Scope::Admin.name());
        let guild = format!("guild:{}", fixture.acme_guild);
        owner_scopes.push(&guild);
        fixture.owner_key = fixture.create_key("acme", &owner_scopes);
        fixture.fleet_key = fixture.create_key("default", &fleet_scopes);
        // A guild belongs to the tenant of the first key that names it.
        for (tenant, guild) in [("acme", fixture.acme_second_guild), ("rival", fixture.rival_guild)] {
            fixture.create_key(tenant, &["operations:read", &format!("guild:{guild}")]);
        }
        fixture
    }

    /// Creates a key.
    pub(crate) fn create_key(&self, tenant: &str, scopes: &[&str]) -> Key {
        let created =
            self.request_as_admin("POST", "/v1/keys", &json!({"name": "a test", "tenant": tenant, "scopes": scopes}));
        assert_eq!(created.status, 201, "{}", created.body);
        let (text, id) = (created.json()["key"].clone(), created.json()["id"].clone());
        let key = Key { text: text.as_str().unwrap().to_owned(), id: id.as_str().unwrap().to_owned() };
        self.created_keys.lock().unwrap().push(key.clone());
        key
    }

    /// Keys without access to the first guild of `acme`: of the tenant `default`, of another tenant, and of the same
    /// tenant for another guild.
    pub(crate) fn keys_without_access(&self) -> Vec<(&'static str, Key)> {
        let scopes = tenant_scopes();
        let elsewhere = format!("guild:{}", self.acme_second_guild);
        vec![
            ("the tenant default", self.create_key("default", &scopes)),
            ("another tenant", self.create_key("rival", &scopes)),
            ("another guild", self.create_key("acme", &[&scopes[..], &[&elsewhere]].concat())),
        ]
    }

    pub(crate) fn request_as_admin(&self, method: &str, path: &str, body: &Value) -> HttpResponse {
        self.request_with(ADMIN, method, path, body)
    }

    /// Sends a request with a key, or without one if it is empty. `name` is the request id, if it is not empty.
    pub(crate) fn request_with_id(
        &self,
        request_id: &str,
        key: &str,
        method: &str,
        path: &str,
        body: &Value,
    ) -> HttpResponse {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let key = if key.is_empty() { String::new() } else { format!("Authorization: Bearer {key}\r\n") };
        let request_id = if request_id.is_empty() { String::new() } else { format!("X-Request-Id: {request_id}\r\n") };
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{key}{request_id}Content-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        // A stream does not end by itself. Its first bytes are enough.
        let send = if path.ends_with("/stream") { read_first_part } else { request };
        let response = block_in_place(|| send(self.address, &head));
        self.responses
            .lock()
            .unwrap()
            .push((format!("{method} {path}"), format!("{}\n{}", response.head, response.body)));
        response
    }

    pub(crate) fn request_with(&self, key: &str, method: &str, path: &str, body: &Value) -> HttpResponse {
        self.request_with_id("", key, method, path, body)
    }

    /// Repeats a request until the response satisfies the condition.
    pub(crate) fn poll_until(&self, path: &str, is_satisfied: impl Fn(&HttpResponse) -> bool) -> HttpResponse {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let response = self.request_as_admin("GET", path, &Value::Null);
            if is_satisfied(&response) {
                return response;
            }
            assert!(Instant::now() < deadline, "timed out: {path}: {} {}", response.status, response.body);
            block_in_place(|| std::thread::sleep(Duration::from_millis(20)));
        }
    }

    /// Reads metrics until they satisfy the condition.
    pub(crate) fn poll_metrics_until(&self, is_satisfied: impl Fn(&str) -> bool) {
        self.poll_until("/metrics", |response| is_satisfied(&response.body));
    }

    /// Submits an operation. Returns its id.
    pub(crate) fn submit(&self, key: &str, guild: Snowflake, operation: &Value) -> String {
        let response = self.request_with(key, "POST", &format!("/v1/guilds/{guild}/operations"), operation);
        assert_eq!(response.status, 202, "{}", response.body);
        response.json()["id"].as_str().unwrap().to_owned()
    }

    /// Submits an operation of the first guild of `acme` with a delay of an hour.
    pub(crate) fn submit_delayed(&self) -> String {
        let later = json!({"kind": "create_role", "payload": {"name": "Later"}, "delay_ms": 3_600_000});
        self.submit(&self.owner_key.text, self.acme_guild, &later)
    }

    /// Submits an operation of the first guild of `acme` that fails, and waits for its dead letter. It is in the queue
    /// of a user, because an operation that waits in the queue of the guild would block it.
    pub(crate) fn submit_dead(&self) -> String {
        let direct_message = json!({"kind": "send_dm", "payload": {"user_id": "5", "content": "is anybody there?"}});
        let id = self.submit(&self.owner_key.text, self.acme_guild, &direct_message);
        self.poll_until(&format!("/v1/dead-letters/{id}"), |response| response.status == 200);
        id
    }

    /// Position of an event whose handler failed.
    pub(crate) async fn create_dead_event(&self) -> String {
        self.sim.fire(FireSpec::command(self.acme_guild, "broken")).await.unwrap();
        let listed = self.poll_until("/v1/events/dead", |response| {
            response.json()["events"].as_array().is_some_and(|events| !events.is_empty())
        });
        listed.json()["events"][0]["place"].as_str().unwrap().to_owned()
    }

    /// Audit rows, newest first.
    pub(crate) fn audit_rows(&self) -> Vec<Value> {
        let response = self.request_as_admin("GET", "/v1/audit?limit=500", &Value::Null);
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()["audit"].as_array().unwrap().clone()
    }

    /// A text channel of a guild.
    pub(crate) fn find_channel(&self, guild: Snowflake) -> String {
        let read = json!({"kind": "read", "payload": {"path": format!("/guilds/{guild}/channels")}});
        let id = self.submit(ADMIN, guild, &read);
        let operation =
            self.poll_until(&format!("/v1/operations/{id}"), |response| response.json()["state"] == "succeeded");
        let channels = operation.json()["result"].as_array().unwrap().clone();
        let text = channels.iter().find(|channel| channel["type"] == 0).unwrap();
        text["id"].as_str().unwrap().to_owned()
    }

    /// Stops the daemon. Returns all responses and everything that it logged.
    pub(crate) fn stop(self) -> (Vec<(String, String)>, String) {
        self.running.signal("TERM");
        let exit = block_in_place(|| self.running.wait_for_exit());
        assert_eq!(exit.code, Some(0), "{}", exit.stderr);
        (self.responses.into_inner().unwrap(), exit.stdout + &exit.stderr)
    }
}

/// Sends a request and reads the first part of the response: the whole of a rejection, or the start of a stream.
fn read_first_part(address: SocketAddr, text: &str) -> HttpResponse {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut response = String::new();
    let mut piece = [0; 4_096];
    // A rejection has a Content-Length; a stream has started once its head has arrived.
    let is_whole = |response: &str| {
        response.split_once("\r\n\r\n").is_some_and(|(head, body)| {
            let length =
                head.to_lowercase().lines().find_map(|line| line.strip_prefix("content-length: ").map(str::to_owned));
            length.is_none_or(|length| body.len() >= length.trim().parse::<usize>().unwrap())
        })
    };
    while !is_whole(&response) {
        let read = stream.read(&mut piece).unwrap();
        assert!(read > 0, "the connection ended before the response: {response:?}");
        response.push_str(std::str::from_utf8(&piece[..read]).unwrap());
    }
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    HttpResponse { status, head: head.to_lowercase(), body: body.to_owned() }
}

/// Runs a test on both engines.
macro_rules! on_both {
    ($($(#[$attribute:meta])* async fn $name:ident($fixture:ident) $body:block)*) => {$(
        mod $name {
            #[allow(unused_imports, reason = "not every test needs all")]
            use super::*;

            $(#[$attribute])*
            async fn run($fixture: crate::fixture::MultiTenantFixture) $body

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                run(crate::fixture::MultiTenantFixture::open(crate::fixture::Engine::Sqlite).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                run(crate::fixture::MultiTenantFixture::open(crate::fixture::Engine::Postgres).await).await;
            }
        }
    )*};
}
pub(crate) use on_both;
