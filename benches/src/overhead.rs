//! `overhead`: processor time of a call through the whole pipeline, compared with the same call made directly.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use bytes::Bytes;
use clap::Args;
use guildhall_actors::gate::{Gate, GateConfig};
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_core::limit::LimitConfig;
use guildhall_core::response::Credential;
use http::{Request, header};
use http_body_util::{BodyExt as _, Full};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde_json::{Value, json};
use tokio::task::{JoinSet, LocalSet};

use crate::cpu;
use crate::pipeline::{TOKEN, call, read_request, transport};
use crate::serve_sim::SimProcess;

/// The two sides alternate after this time, so that both see the same machine.
const SLICE: Duration = Duration::from_millis(500);

/// Load of both sides.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Number of calls in flight at any time.
    #[arg(long, default_value_t = 16)]
    pending: usize,
}

/// A direct client and a gate for the same simulator.
struct Clients {
    api_url: String,
    paths: Vec<String>,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    gate: Arc<Gate>,
    credential: Credential,
}

#[derive(Clone, Copy)]
enum CallPath {
    Direct,
    Pipeline,
}

/// Cost of the calls of one side.
#[derive(Default)]
struct Cost {
    calls: usize,
    cpu: Duration,
}

impl Cost {
    fn micros_per_call(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a mean needs no more digits than a double has")]
        let calls = self.calls as f64;
        self.cpu.as_secs_f64() * 1_000_000.0 / calls
    }
}

pub(crate) async fn run(arguments: &Arguments, seconds: u64, quiet: bool) -> anyhow::Result<Value> {
    let recorder = guildhall::metrics::install()?;
    LocalSet::new()
        .run_until(async {
            let sim = SimProcess::start()?;
            let clients = Arc::new(Clients::new(&sim)?);
            // Covers the quiet first window, the connections, and the first responses.
            for side in [CallPath::Pipeline, CallPath::Direct] {
                clients.load(side, arguments.pending, Duration::from_secs(2)).await?;
            }
            let (mut direct, mut pipeline) = (Cost::default(), Cost::default());
            let started = Instant::now();
            while started.elapsed() < Duration::from_secs(seconds) {
                for (side, cost) in [(CallPath::Direct, &mut direct), (CallPath::Pipeline, &mut pipeline)] {
                    let before = cpu::process_time()?;
                    cost.calls += clients.load(side, arguments.pending, SLICE).await?;
                    if matches!(side, CallPath::Pipeline) {
                        // The cost of metrics belongs to the pipeline.
                        recorder.run_upkeep();
                    }
                    cost.cpu += cpu::process_time()?.saturating_sub(before);
                }
            }
            if !quiet {
                println!(
                    "direct {:.1} µs in {} calls, pipeline {:.1} µs in {} calls",
                    direct.micros_per_call(),
                    direct.calls,
                    pipeline.micros_per_call(),
                    pipeline.calls
                );
            }
            Ok(json!({
                "name": "overhead",
                "seconds": seconds,
                "pending": arguments.pending,
                "direct_us": direct.micros_per_call(),
                "pipeline_us": pipeline.micros_per_call(),
                "ratio": pipeline.micros_per_call() / direct.micros_per_call(),
            }))
        })
        .await
}

impl Clients {
    fn new(sim: &SimProcess) -> anyhow::Result<Self> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        // The same connector as in the transport, so that the clients do not differ.
        let connector = HttpsConnectorBuilder::new()
            .with_provider_and_webpki_roots(Arc::new(rustls::crypto::ring::default_provider()))?
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        let limits = LimitConfig { global: 10_000_000, ..LimitConfig::default() };
        let gate = Gate::start(
            transport(sim.api_url.clone())?,
            GateConfig { limits, ..GateConfig::default() },
            LeaseGuard::always(),
        );
        Ok(Self {
            api_url: sim.api_url.clone(),
            paths: sim.guilds.iter().map(|guild| format!("/guilds/{guild}/roles")).collect(),
            client,
            gate,
            credential: Credential::Application(sim.application),
        })
    }

    /// Maintains the given number of calls in flight, and returns the number of responses.
    async fn load(self: &Arc<Self>, side: CallPath, pending: usize, time: Duration) -> anyhow::Result<usize> {
        let until = Instant::now() + time;
        let mut callers = JoinSet::new();
        for number in 0..pending {
            let clients = Arc::clone(self);
            callers.spawn(async move {
                let mut done = 0;
                while Instant::now() < until {
                    let path = &clients.paths[(number + done) % clients.paths.len()];
                    match side {
                        CallPath::Direct => clients.direct(path).await?,
                        CallPath::Pipeline => {
                            drop(call(&clients.gate, read_request(path.clone(), clients.credential)).await?);
                        }
                    }
                    done += 1;
                }
                Ok::<_, anyhow::Error>(done)
            });
        }
        let mut done = 0;
        while let Some(caller) = callers.join_next().await {
            done += caller??;
        }
        Ok(done)
    }

    async fn direct(&self, path: &str) -> anyhow::Result<()> {
        let request = Request::get(format!("{}{path}", self.api_url))
            .header(header::USER_AGENT, "DiscordBot (https://example.invalid/guildhall-bench, 0.1)")
            .header(header::AUTHORIZATION, format!("Bot {TOKEN}"))
            .body(Full::default())?;
        let response = self.client.request(request).await?;
        ensure!(response.status().is_success(), "returned {}", response.status());
        response.into_body().collect().await?;
        Ok(())
    }
}
