//! `proxy`: processor time and latency of a call through the REST proxy, compared with a plain pass-through and with
//! twilight's http-proxy. All run in processes of their own, so that their time is counted alone.

mod passthrough;
mod twilight;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use clap::Args;
use http::uri::Authority;
use http::{Method, Uri};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::{JoinSet, block_in_place};

use self::passthrough::Passthrough;
pub(crate) use self::passthrough::{Arguments as PassthroughArguments, SUBCOMMAND, serve as serve_passthrough};
use self::twilight::TwilightProxy;
use crate::daemon::Daemon;
use crate::disk;
use crate::http_client::Connection;
use crate::processes::TOKEN;
use crate::serve_sim::SimProcess;
use crate::stats::{Durations, per_second};

/// The sides alternate after this time, so that all see the same machine.
const SLICE: Duration = Duration::from_millis(500);

/// Time before anything is counted: the quiet first window, the connections, and the first responses.
const WARM_UP: Duration = Duration::from_secs(3);

/// Calls of one side in a row while latencies are measured.
const LATENCY_CALLS: usize = 100;

/// Load of each side.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Number of connections, each with one call in flight.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    connections: u32,
}

/// What calls go through.
enum Proxy {
    /// Nothing: the simulator is called directly.
    None,
    Passthrough(Passthrough),
    Guildhall(Daemon),
    Twilight(TwilightProxy),
}

impl Proxy {
    fn cpu_time(&self) -> anyhow::Result<Duration> {
        match self {
            Self::None => Ok(Duration::ZERO),
            Self::Passthrough(passthrough) => passthrough.cpu_time(),
            Self::Guildhall(daemon) => daemon.cpu_time(),
            Self::Twilight(proxy) => proxy.cpu_time(),
        }
    }
}

/// A proxy, the connections to it, and what its calls cost.
struct Side {
    proxy: Proxy,
    connections: Vec<Arc<Mutex<Connection>>>,
    paths: Arc<Vec<String>>,
    calls: usize,
    cpu: Duration,
    time: Duration,
    latencies: Durations,
}

impl Side {
    async fn open(proxy: Proxy, address: SocketAddr, paths: &Arc<Vec<String>>, count: u32) -> anyhow::Result<Self> {
        let mut connections = Vec::new();
        for _ in 0..count {
            connections.push(Arc::new(Mutex::new(Connection::open(address).await?)));
        }
        Ok(Self {
            proxy,
            connections,
            paths: Arc::clone(paths),
            calls: 0,
            cpu: Duration::ZERO,
            time: Duration::ZERO,
            latencies: Durations::default(),
        })
    }

    /// Keeps one call in flight on each connection, and returns the number of responses.
    async fn load(&self, time: Duration) -> anyhow::Result<usize> {
        let until = Instant::now() + time;
        let mut callers = JoinSet::new();
        for (number, connection) in self.connections.iter().enumerate() {
            let (connection, paths) = (Arc::clone(connection), Arc::clone(&self.paths));
            callers.spawn(async move {
                let mut connection = connection.lock().await;
                let mut done = 0;
                while Instant::now() < until {
                    call(&mut connection, &paths[(number + done) % paths.len()]).await?;
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

    async fn measure_cost(&mut self) -> anyhow::Result<()> {
        let (before, started) = (self.proxy.cpu_time()?, Instant::now());
        self.calls += self.load(SLICE).await?;
        self.time += started.elapsed();
        self.cpu += self.proxy.cpu_time()?.saturating_sub(before);
        Ok(())
    }

    /// Makes calls one after the other.
    async fn measure_latency(&mut self) -> anyhow::Result<()> {
        let mut connection = self.connections[0].lock().await;
        for number in 0..LATENCY_CALLS {
            let started = Instant::now();
            call(&mut connection, &self.paths[number % self.paths.len()]).await?;
            self.latencies.push(started.elapsed());
        }
        Ok(())
    }

    fn cpu_us(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a mean needs no more digits than a double has")]
        let calls = self.calls as f64;
        self.cpu.as_secs_f64() * 1_000_000.0 / calls
    }
}

async fn call(connection: &mut Connection, path: &str) -> anyhow::Result<()> {
    let (status, body) = connection.call(Method::GET, path, &format!("Bot {TOKEN}"), Bytes::new()).await?;
    ensure!(status == 200, "{path} returned {status}: {}", String::from_utf8_lossy(&body));
    Ok(())
}

pub(crate) async fn run(arguments: &Arguments, seconds: u64, quiet: bool) -> anyhow::Result<Value> {
    let sim = block_in_place(|| SimProcess::start_with_token(TOKEN))?;
    let authority: Authority =
        sim.api_url.parse::<Uri>()?.into_parts().authority.context("the simulator has no address")?;
    let upstream: SocketAddr = authority.as_str().parse()?;
    let folder = disk::temp_dir()?;
    let store = format!("sqlite:{}", folder.path().join("proxy.db").display());
    let settings = [
        ("DISCORD__TOKEN", TOKEN),
        ("DISCORD__API_URL", &sim.api_url),
        ("DISCORD__GATEWAY_URL", &sim.gateway_url),
        ("STORE__URL", &store),
        ("EGRESS__ENABLED", "true"),
        ("EGRESS__BIND", "127.0.0.1:0"),
    ];
    let daemon = block_in_place(|| Daemon::start(&settings, folder.path()))?;
    let egress = block_in_place(|| daemon.wait_for_egress())?;
    daemon.wait_until_ready().await?;
    let passthrough = block_in_place(|| Passthrough::start(&authority))?;
    let passthrough_address = passthrough.address;

    let paths: Arc<Vec<String>> =
        Arc::new(sim.guilds.iter().map(|guild| format!("/api/v10/guilds/{guild}/roles")).collect());
    let count = arguments.connections;
    let mut sides = vec![
        Side::open(Proxy::None, upstream, &paths, count).await?,
        Side::open(Proxy::Passthrough(passthrough), passthrough_address, &paths, count).await?,
        Side::open(Proxy::Guildhall(daemon), egress, &paths, count).await?,
    ];
    if let Some(proxy) = block_in_place(|| TwilightProxy::start(authority.as_str()))? {
        let address = proxy.address;
        sides.push(Side::open(Proxy::Twilight(proxy), address, &paths, count).await?);
    } else if !quiet {
        println!("twilight's http-proxy is not built; build it with scripts/bench-peers http-proxy");
    }
    for side in &sides {
        side.load(WARM_UP).await?;
    }
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(seconds) {
        for side in &mut sides[1..] {
            side.measure_cost().await?;
        }
    }
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(seconds) / 2 {
        for side in &mut sides {
            side.measure_latency().await?;
        }
    }
    sides.iter_mut().for_each(|side| side.latencies.sort());
    let figures = figures(&sides, seconds, count);
    if !quiet {
        println!("{figures:#}");
    }
    // The daemon shuts down gracefully.
    block_in_place(|| drop(sides));
    Ok(figures)
}

fn figures(sides: &[Side], seconds: u64, connections: u32) -> Value {
    let [direct, passthrough, proxy, ..] = sides else { unreachable!("invariant: three sides are always measured") };
    let twilight = sides.get(3);
    let added = |side: &Side, share: f64| side.latencies.quantile_ms(share) - direct.latencies.quantile_ms(share);
    json!({
        "name": "proxy",
        "seconds": seconds,
        "connections": connections,
        "passthrough_cpu_us": passthrough.cpu_us(),
        "proxy_cpu_us": proxy.cpu_us(),
        "ratio": proxy.cpu_us() / passthrough.cpu_us(),
        "added_ms_p50": added(proxy, 0.5),
        "added_ms_p99": added(proxy, 0.99),
        "passthrough_added_ms_p50": added(passthrough, 0.5),
        "passthrough_added_ms_p99": added(passthrough, 0.99),
        "passthrough_per_s": per_second(passthrough.calls, passthrough.time),
        "proxy_per_s": per_second(proxy.calls, proxy.time),
        "twilight_proxy_cpu_us": twilight.map(Side::cpu_us),
        "twilight_proxy_added_ms_p50": twilight.map(|side| added(side, 0.5)),
        "twilight_proxy_added_ms_p99": twilight.map(|side| added(side, 0.99)),
    })
}
