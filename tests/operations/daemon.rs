//! The real program on a simulated Discord, controlled over its API.

use std::{net::SocketAddr, time::Duration, time::Instant};

use guildhall_sim::{SimHandle, Snowflake};
use guildhall_testkit::program::{CANARY, Guildhall, HttpResponse, RunningGuildhall, TEST_TIMEOUT, get, request};
use serde_json::{Value, json};
use tempfile::TempDir;

const KEY: &str = "gh_test_0123456789";

/// The program. Its store outlives it.
pub(crate) struct Daemon {
    running: RunningGuildhall,
    address: SocketAddr,
}

impl Daemon {
    pub(crate) fn start(sim: &SimHandle, folder: &TempDir) -> Self {
        Self::start_with(sim, folder, &[])
    }

    /// With these settings, as environment variables.
    pub(crate) fn start_with(sim: &SimHandle, folder: &TempDir, settings: &[(&str, &str)]) -> Self {
        Self::start_on(sim, &format!("sqlite:{}/guildhall.db", folder.path().display()), settings)
    }

    /// With this store and these settings.
    pub(crate) fn start_on(sim: &SimHandle, store: &str, settings: &[(&str, &str)]) -> Self {
        let program = Guildhall::serve(&sim.gateway_url())
            .env("GUILDHALL__DISCORD__TOKEN", CANARY)
            .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
            .env("GUILDHALL__STORE__URL", store)
            .env("GUILDHALL__API__ADMIN_KEY", KEY);
        let running = settings.iter().fold(program, |program, (name, value)| program.env(name, value)).spawn();
        let address = running.address();
        running.wait_for_log_line("\"part is ready\",\"part\":\"operations\"");
        Self { running, address }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next log line with this text.
    pub(crate) fn line_with(&self, text: &str) -> String {
        self.running.wait_for_log_line(text)
    }

    pub(crate) fn metrics(&self) -> String {
        get(self.address, "/metrics").body
    }

    pub(crate) fn stop(self) {
        self.running.signal("TERM");
        assert_eq!(self.running.wait_for_exit().code, Some(0));
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(self) {
        drop(self.running);
    }

    pub(crate) fn request(&self, method: &str, path: &str, body: &Value) -> HttpResponse {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        request(self.address, &head)
    }

    /// Submits a batch. Returns the ids of the operations.
    pub(crate) fn submit(&self, guild: Snowflake, operations: &Value) -> Vec<String> {
        let response =
            self.request("POST", &format!("/v1/guilds/{guild}/operations"), &json!({ "operations": operations }));
        assert_eq!(response.status, 202, "{}", response.body);
        let accepted = response.json();
        accepted["operations"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    }

    pub(crate) fn show(&self, id: &str) -> Value {
        self.request("GET", &format!("/v1/operations/{id}"), &Value::Null).json()
    }

    /// Polls an operation until it has this state.
    pub(crate) fn until(&self, id: &str, state: &str) -> Value {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let operation = self.show(id);
            if operation["state"] == state {
                return operation;
            }
            assert!(Instant::now() < deadline, "never {state}: {operation}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
