//! `gate --processes N`: one global limit that several processes at full demand share over a private Redis.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use guildhall::daemon::{GateState, RestComponent};
use guildhall::settings::{SecretValue, Settings, SettingsSources};
use guildhall::{daemon as app, settings};
use guildhall_core::limit::shared::SharingMode;
use guildhall_core::response::Credential;
use guildhall_sim::{Sim, SimConfig};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep};

use crate::pipeline::{TOKEN, add_latency, call, read_request};
use crate::redis_server::RedisServer;
use crate::stats::{Durations, per_second};

/// Hidden subcommand that a process of the fleet runs.
pub(crate) const SUBCOMMAND: &str = "drive";

/// As in the benchmark of a single gate: 20 ms ± 20 ms in total.
const JITTER_MS: u64 = 20;

/// Time before anything is counted: all members have joined, and the first burst has ended.
const WARM_UP: Duration = Duration::from_secs(5);

/// Load of the processes.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) processes: u32,
    pub(crate) pending: u32,
    pub(crate) guilds: u32,
}

/// Command line of a process of the fleet.
#[derive(Debug, Args)]
pub(crate) struct Drive {
    #[arg(long)]
    api_url: String,
    #[arg(long)]
    redis_url: String,
    #[arg(long)]
    pending: u32,
    #[arg(long, value_delimiter = ',')]
    guilds: Vec<String>,
}

/// A process of the fleet. Dropping it ends the process.
struct Process {
    child: Child,
    send: Option<ChildStdin>,
    receive: BufReader<ChildStdout>,
}

impl Process {
    fn start(drive: &Drive) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([SUBCOMMAND, "--api-url", &drive.api_url, "--redis-url", &drive.redis_url])
            .args(["--pending", &drive.pending.to_string(), "--guilds", &drive.guilds.join(",")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a process of the fleet")?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().context("a process of the fleet has no stdout")?);
        Ok(Self { child, send: stdin, receive: stdout })
    }

    fn send(&mut self, command: &str) -> anyhow::Result<()> {
        let stdin = self.send.as_mut().context("a process of the fleet has no stdin")?;
        writeln!(stdin, "{command}")?;
        Ok(stdin.flush()?)
    }

    fn receive(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        self.receive.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("a process of the fleet failed; its output was {line:?}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.send.take());
        let _ = self.child.wait();
    }
}

pub(crate) async fn run(load: &Load, seconds: u64, quiet: bool) -> anyhow::Result<Value> {
    let Load { processes, pending, guilds } = *load;
    ensure!(guilds >= processes, "--guilds must be at least the number of processes ({processes})");
    let redis = RedisServer::start()?;
    let config = SimConfig { guilds, ..SimConfig::default() };
    let limit = config.limits.global.limit;
    let sim = Sim::start(config).await.context("cannot start the simulator")?;
    add_latency(&sim, 0, JITTER_MS)?;
    let all: Vec<String> = sim.guilds().iter().map(ToString::to_string).collect();
    let drive = |number: u32| Drive {
        api_url: sim.api_url(),
        redis_url: redis.url(),
        pending: pending.div_ceil(processes),
        guilds: all.iter().skip(number as usize).step_by(processes as usize).cloned().collect(),
    };
    let mut fleet: Vec<Process> =
        (0..processes).map(|number| Process::start(&drive(number))).collect::<Result<_, _>>()?;
    // On a blocking thread: this waits for the processes while the simulator must continue.
    let measured = spawn_blocking(move || -> anyhow::Result<_> {
        for process in &mut fleet {
            process.receive().context("a process of the fleet did not become a member")?;
        }
        std::thread::sleep(WARM_UP);
        fleet.iter_mut().try_for_each(|process| process.send("count"))?;
        let before = redis.script_calls()?;
        let started = std::time::Instant::now();
        std::thread::sleep(Duration::from_secs(seconds));
        fleet.iter_mut().try_for_each(|process| process.send("tell"))?;
        let (elapsed, after) = (started.elapsed(), redis.script_calls()?);
        let reports = fleet.iter_mut().map(Process::receive).collect::<anyhow::Result<Vec<Value>>>()?;
        Ok((reports, elapsed, after - before))
    });
    let (reports, elapsed, scripts) = measured.await??;
    let mut waits = Durations::default();
    let mut counts = Vec::new();
    for process in &reports {
        let process_waits = process["waits_us"].as_array().context("a process of the fleet reported no waits")?;
        counts.push(process_waits.len());
        process_waits.iter().filter_map(Value::as_u64).for_each(|micros| waits.push(Duration::from_micros(micros)));
    }
    waits.sort();
    let score = sim.score();
    let limited = score.rate_limited;
    let goodput = per_second(waits.len(), elapsed);
    let total = waits.len().max(1) as f64;
    let min_share = counts.iter().copied().min().unwrap_or_default() as f64 / total;
    let round_trips = scripts as f64 / total;
    if !quiet {
        println!("{goodput:.1} calls/s answered, {limit} allowed; calls per process: {counts:?}");
    }
    Ok(json!({
        "name": "gate",
        "seconds": seconds,
        "processes": processes,
        "limit": limit,
        "max_in_any_second": score.max_per_second.values().max(),
        "goodput_per_s": goodput,
        "http_429": limited.user + limited.shared + limited.global,
        "wait_ms_p50": waits.quantile_ms(0.5),
        "wait_ms_p99": waits.quantile_ms(0.99),
        "fairness_min_share": min_share,
        "redis_round_trips_per_grant": round_trips,
    }))
}

/// Main function of a process of the fleet: calls at full demand until the parent requests the result.
pub(crate) fn drive(drive: &Drive) -> anyhow::Result<()> {
    // Starts like the daemon, so that the real code is measured.
    let _ = rustls::crypto::ring::default_provider().install_default();
    app::block_on(run_process(drive))?
}

fn load_settings(drive: &Drive) -> anyhow::Result<Settings> {
    let environment = [("GUILDHALL__DISCORD__API_URL", &drive.api_url), ("GUILDHALL__REDIS__URL", &drive.redis_url)];
    let environment = environment.map(|(name, value)| (name.into(), value.into())).into();
    // An empty file, so that no settings file in the working directory is read.
    let empty_file = tempfile::NamedTempFile::new()?;
    Ok(settings::load(SettingsSources { file: Some(empty_file.path().to_owned()), environment, flags: Vec::new() })?
        .settings)
}

async fn run_process(drive: &Drive) -> anyhow::Result<()> {
    let rest = RestComponent::start(&load_settings(drive)?, SecretValue::new(TOKEN), GateState::Volatile)?;
    wait_for_membership(&rest, drive.pending).await?;
    println!("{}", json!({ "mode": "shared" }));
    std::io::stdout().flush()?;

    let (phase, counted) = watch::channel(false);
    let commands = spawn_blocking(move || -> anyhow::Result<()> {
        for command in std::io::stdin().lines() {
            match command?.as_str() {
                "count" => drop(phase.send(true)),
                "tell" => break,
                other => bail!("unknown command {other:?}"),
            }
        }
        Ok(())
    });
    let mut workers = JoinSet::new();
    for turn in 0..drive.pending as usize {
        let (gate, credential) = (std::sync::Arc::clone(&rest.gate), credential(&rest)?);
        let (guilds, counted) = (drive.guilds.clone(), counted.clone());
        workers.spawn(async move {
            let mut waits: Vec<u64> = Vec::new();
            for turn in turn.. {
                let path = format!("/guilds/{}/roles", guilds[turn % guilds.len()]);
                let started = Instant::now();
                // The channel closes when the parent requests the result.
                let mut end = counted.clone();
                tokio::select! {
                    answered = call(&gate, read_request(path, credential)) => drop(answered?),
                    () = async { while end.changed().await.is_ok() {} } => break,
                }
                if *counted.borrow() {
                    waits.push(u64::try_from(started.elapsed().as_micros())?);
                }
            }
            anyhow::Ok(waits)
        });
    }
    commands.await??;
    let mut waits: Vec<u64> = Vec::new();
    while let Some(result) = workers.join_next().await {
        waits.extend(result??);
    }
    println!("{}", json!({ "waits_us": waits }));
    std::io::stdout().flush()?;
    rest.leave().await;
    Ok(())
}

fn credential(rest: &RestComponent) -> anyhow::Result<Credential> {
    Ok(rest.calls.gateway_bot()?.request.credential)
}

/// Waits until the process shares the limit with the others and is permitted enough waiting calls.
async fn wait_for_membership(rest: &RestComponent, pending: u32) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while Instant::now() < deadline {
        let view = rest.gate.observe().await.context("the gate has stopped")?;
        let is_member = view.limits.credentials.iter().any(|limit| {
            limit.shared.as_ref().is_some_and(|shared| shared.mode == SharingMode::Shared && shared.share > 0)
        });
        // Each waiting call reserves one possible invalid request.
        let invalid = view.breakers.invalid_requests.shared;
        if is_member && invalid.is_some_and(|fleet| fleet.lent > u64::from(pending)) {
            return Ok(());
        }
        sleep(Duration::from_millis(20)).await;
    }
    bail!("the process did not become a member of the fleet in time")
}
