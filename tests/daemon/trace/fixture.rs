//! The daemon against the simulator, with a recording proxy between them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use guildhall_sim::{Sim, SimConfig, SimHandle, Snowflake};
use guildhall_testkit::program::{Guildhall, RunningGuildhall, TEST_TIMEOUT, request};
use serde_json::Value;

use super::recording_proxy::RecordingProxy;

const KEY: &str = "gh_test_0123456789";

/// A rule and a webhook for members who join.
pub(crate) fn handlers(brain: &str) -> String {
    format!(
        r#"
[[handlers]]
name = "brain"
on = "member.join"
[handlers.webhook]
url = "{brain}"
secrets = ["whsec_ZXhhbXBsZS1vbmx5LW1ha2UteW91ci1vd24tc2VjcmV0"]
allow_private = true

[[handlers]]
name = "rule"
on = "member.join"
do = [{{ kind = "create_role", payload = {{ name = "by a rule" }} }}]
"#
    )
}

pub(crate) struct TraceFixture {
    pub(crate) sim: SimHandle,
    pub(crate) guild: Snowflake,
    pub(crate) proxy: RecordingProxy,
    daemon: RunningGuildhall,
    address: SocketAddr,
}

impl TraceFixture {
    pub(crate) async fn start(handlers: &str, settings: &[(&str, &str)]) -> Self {
        let sim = Sim::start(SimConfig { guilds: 1, members: 1, channels: 1, ..SimConfig::default() }).await.unwrap();
        let proxy = RecordingProxy::start(sim.address());
        let mut daemon = Guildhall::serve(&sim.gateway_url())
            .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
            .env("GUILDHALL__DISCORD__API_URL", &format!("http://{}/api/v10", proxy.address))
            .env("GUILDHALL__GATEWAY__INTENTS", "guilds,guild_members,guild_messages")
            .env("GUILDHALL__API__ADMIN_KEY", KEY)
            .env("GUILDHALL__LOG__FILTER", "debug")
            .file("handlers.toml", handlers)
            .env("GUILDHALL__HANDLERS__FILE", if handlers.is_empty() { "" } else { "handlers.toml" });
        for (name, value) in settings {
            daemon = daemon.env(name, value);
        }
        let daemon = daemon.spawn();
        let address = daemon.address();
        daemon.wait_for_log_line("\"part is ready\",\"part\":\"gateway\"");
        Self { guild: sim.guilds()[0], sim, proxy, daemon, address }
    }

    #[cfg(feature = "otel")]
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, Value) {
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let text = format!(
            "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n{headers}\r\n{body}",
            body.len()
        );
        let response = tokio::task::block_in_place(|| request(self.address, &text));
        (response.status, response.json())
    }

    /// Replaces the handlers file and reloads.
    #[cfg(feature = "otel")]
    pub(crate) fn reload(&self, handlers: &str) -> Value {
        std::fs::write(self.daemon.folder().join("handlers.toml"), handlers).unwrap();
        let (status, report) = self.call("POST", "/v1/reload", &[], "");
        assert_eq!(status, 200, "{report}");
        report
    }

    /// Lists operations in a request with this id.
    #[cfg(feature = "otel")]
    pub(crate) fn list_with_request_id(&self, request_id: &str) {
        let (status, response) = self.call("GET", "/v1/operations", &[("X-Request-Id", request_id)], "");
        assert_eq!(status, 200, "{response}");
    }

    /// Submits an operation in the guild. Returns its id.
    pub(crate) fn submit(&self, operation: &Value, headers: &[(&str, &str)]) -> String {
        let path = format!("/v1/guilds/{}/operations", self.guild);
        let (status, response) = self.call("POST", &path, headers, &operation.to_string());
        assert_eq!(status, 202, "{response}");
        response["id"].as_str().unwrap().to_owned()
    }

    /// An operation, as the API returns it.
    pub(crate) fn get_operation(&self, id: &str) -> Value {
        let (status, response) = self.call("GET", &format!("/v1/operations/{id}"), &[], "");
        assert_eq!(status, 200, "{response}");
        response
    }

    /// Waits until an operation has succeeded.
    pub(crate) fn until_done(&self, id: &str) -> Value {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let operation = self.get_operation(id);
            if operation["state"] == "succeeded" {
                return operation;
            }
            assert!(Instant::now() < deadline, "it never succeeded: {operation}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until this many operations have succeeded.
    pub(crate) fn until_all_done(&self, count: usize) -> Vec<Value> {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let (_, listed) = self.call("GET", "/v1/operations?state=succeeded", &[], "");
            let listed = listed["operations"].as_array().unwrap().clone();
            if listed.len() >= count {
                return listed.iter().map(|one| self.get_operation(one["id"].as_str().unwrap())).collect();
            }
            assert!(Instant::now() < deadline, "too few succeeded: {listed:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Shuts the daemon down. Returns its whole log.
    pub(crate) fn stop(self) -> String {
        self.daemon.signal("TERM");
        let exit = self.daemon.wait_for_exit();
        assert_eq!(exit.code, Some(0), "{}", exit.stderr);
        exit.stderr
    }
}
