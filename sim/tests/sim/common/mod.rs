//! A client for tests: one connection per call, no hidden behavior.

use std::net::SocketAddr;

use bytes::Bytes;
use guildhall_sim::{Sim, SimConfig, SimHandle};
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

pub(crate) const TOKEN: &str = "Bot sim-bot-token";
pub(crate) const AGENT: &str = "DiscordBot (https://example.invalid/tests, 1)";

/// Response to a call.
#[derive(Debug)]
pub(crate) struct TestResponse {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl TestResponse {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// A simulator, its first bot, and its first guild and channel.
pub(crate) struct Fixture {
    pub(crate) sim: SimHandle,
    pub(crate) guild: String,
    pub(crate) channel: String,
    pub(crate) application: String,
}

impl Fixture {
    pub(crate) async fn start(config: SimConfig) -> Self {
        let sim = Sim::start(config).await.unwrap();
        let state = call(sim.address(), Method::GET, "/sim/state", None).await.unwrap().json();
        let guild = state["guilds"][0]["id"].as_str().unwrap().to_owned();
        let channel = state["guilds"][0]["channels"][0]["id"].as_str().unwrap().to_owned();
        let application = state["bots"][0]["application_id"].as_str().unwrap().to_owned();
        Self { sim, guild, channel, application }
    }

    /// Calls the REST API with the bot's token.
    pub(crate) async fn api(&self, method: Method, path: &str, body: Option<Value>) -> TestResponse {
        self.try_api(method, path, body).await.unwrap()
    }

    pub(crate) async fn try_api(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<TestResponse, hyper::Error> {
        call(self.sim.address(), method, &format!("/api/v10{path}"), body).await
    }

    /// Calls `/sim`.
    pub(crate) async fn control(&self, method: Method, path: &str, body: Option<Value>) -> TestResponse {
        call(self.sim.address(), method, path, body).await.unwrap()
    }

    pub(crate) async fn fault(&self, fault: Value) {
        let answer = self.control(Method::POST, "/sim/faults", Some(fault)).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
}

pub(crate) async fn call(
    address: SocketAddr,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> Result<TestResponse, hyper::Error> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", address.to_string())
        .header("user-agent", AGENT)
        .header("authorization", TOKEN);
    let body = match body {
        Some(body) => {
            request = request.header("content-type", "application/json");
            Bytes::from(body.to_string())
        }
        None => Bytes::new(),
    };
    send(address, request.body(Full::new(body)).unwrap()).await
}

pub(crate) async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> Result<TestResponse, hyper::Error> {
    let socket = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
    let connection = tokio::spawn(connection);
    let answer = sender.send_request(request).await?;
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    let body = answer.into_body().collect().await?.to_bytes();
    connection.abort();
    Ok(TestResponse { status, headers, text: String::from_utf8_lossy(&body).into_owned() })
}
