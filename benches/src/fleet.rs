//! `gate --processes N`: one global limit, and several processes at full demand that share it over a Redis of the
//! benchmark's own.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use guildhall::app::{self, GateState, RestComponent};
use guildhall::settings::{self, SecretValue, Settings, SettingsSources};
use guildhall_core::limit::shared::SharingMode;
use guildhall_core::response::Credential;
use guildhall_sim::{Sim, SimConfig};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep};

use crate::pipeline::{TOKEN, call, delay, read};
use crate::redis_server::RedisServer;
use crate::stats::{Durations, per_second};

/// The hidden subcommand that a process of the fleet runs.
pub(crate) const SUBCOMMAND: &str = "drive";

/// As in a gate that is alone: 20 ms ± 20 ms in all.
const JITTER_MS: u64 = 20;

/// Before anything is counted: the others have been met, and the first burst is over.
const WARM_UP: Duration = Duration::from_secs(5);

/// What the processes do.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) processes: u32,
    pub(crate) pending: u32,
    pub(crate) guilds: u32,
}

/// What a process of the fleet is told on its command line.
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

/// A process of the fleet. It ends when this is dropped.
struct Process {
    child: Child,
    say: Option<ChildStdin>,
    hear: BufReader<ChildStdout>,
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
        let say = child.stdin.take();
        let hear = BufReader::new(child.stdout.take().context("a process of the fleet has no output")?);
        Ok(Self { child, say, hear })
    }

    fn say(&mut self, word: &str) -> anyhow::Result<()> {
        let say = self.say.as_mut().context("a process of the fleet hears nothing")?;
        writeln!(say, "{word}")?;
        Ok(say.flush()?)
    }

    fn hear(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        self.hear.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("a process of the fleet failed; it said {line:?}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.say.take());
        let _ = self.child.wait();
    }
}

pub(crate) async fn run(load: &Load, seconds: u64, quiet: bool) -> anyhow::Result<Value> {
    let Load { processes, pending, guilds } = *load;
    ensure!(guilds >= processes, "there must be at least one guild for each of the {processes} processes");
    let redis = RedisServer::start()?;
    let config = SimConfig { guilds, ..SimConfig::default() };
    let limit = config.limits.global.limit;
    let sim = Sim::start(config).await.context("cannot start the simulator")?;
    delay(&sim, 0, JITTER_MS)?;
    let all: Vec<String> = sim.guilds().iter().map(ToString::to_string).collect();
    let drive = |number: u32| Drive {
        api_url: sim.api_url(),
        redis_url: redis.url(),
        pending: pending.div_ceil(processes),
        guilds: all.iter().skip(number as usize).step_by(processes as usize).cloned().collect(),
    };
    let mut fleet: Vec<Process> =
        (0..processes).map(|number| Process::start(&drive(number))).collect::<Result<_, _>>()?;
    // In a thread of their own: they wait for the processes, and the simulator must go on meanwhile.
    let measured = spawn_blocking(move || -> anyhow::Result<_> {
        for process in &mut fleet {
            process.hear().context("it did not become a member")?;
        }
        std::thread::sleep(WARM_UP);
        fleet.iter_mut().try_for_each(|process| process.say("count"))?;
        let before = redis.scripts_run()?;
        let began = std::time::Instant::now();
        std::thread::sleep(Duration::from_secs(seconds));
        fleet.iter_mut().try_for_each(|process| process.say("tell"))?;
        let (took, after) = (began.elapsed(), redis.scripts_run()?);
        let told = fleet.iter_mut().map(Process::hear).collect::<anyhow::Result<Vec<Value>>>()?;
        Ok((told, took, after - before))
    });
    let (told, took, scripts) = measured.await??;
    let mut waits = Durations::default();
    let mut counts = Vec::new();
    for process in &told {
        let seen = process["waits_us"].as_array().context("a process of the fleet told no waits")?;
        counts.push(seen.len());
        seen.iter().filter_map(Value::as_u64).for_each(|micros| waits.push(Duration::from_micros(micros)));
    }
    waits.sort();
    let score = sim.score();
    let limited = score.rate_limited;
    let goodput = per_second(waits.len(), took);
    let total = waits.len().max(1) as f64;
    let least = counts.iter().copied().min().unwrap_or_default() as f64 / total;
    let round_trips = scripts as f64 / total;
    if !quiet {
        println!("{goodput:.1} calls/s answered of {limit} allowed; calls of each process: {counts:?}");
    }
    Ok(json!({
        "name": "gate",
        "seconds": seconds,
        "processes": processes,
        "limit": limit,
        "max_in_any_second": score.max_per_second.values().max(),
        "goodput_per_s": goodput,
        "http_429": limited.user + limited.shared + limited.global,
        "wait_ms_p50": waits.ms_at(0.5),
        "wait_ms_p99": waits.ms_at(0.99),
        "fairness_min_share": least,
        "redis_round_trips_per_grant": round_trips,
    }))
}

/// What a process of the fleet does: as many calls as it may, until it is told to tell.
pub(crate) fn drive(drive: &Drive) -> anyhow::Result<()> {
    // The process starts as the daemon does, so that what is measured is what runs.
    let _ = rustls::crypto::ring::default_provider().install_default();
    app::block_on(follow(drive))?
}

fn settings_of(drive: &Drive) -> anyhow::Result<Settings> {
    let environment = [("GUILDHALL__DISCORD__API_URL", &drive.api_url), ("GUILDHALL__REDIS__URL", &drive.redis_url)];
    let environment = environment.map(|(name, value)| (name.into(), value.into())).into();
    // Not whatever file happens to lie in this folder.
    let nothing = tempfile::NamedTempFile::new()?;
    Ok(settings::load(SettingsSources { file: Some(nothing.path().to_owned()), environment, flags: Vec::new() })?
        .settings)
}

async fn follow(drive: &Drive) -> anyhow::Result<()> {
    let rest = RestComponent::start(&settings_of(drive)?, SecretValue::new(TOKEN), GateState::Forgetful)?;
    wait_for_membership(&rest, drive.pending).await?;
    println!("{}", json!({ "mode": "shared" }));
    std::io::stdout().flush()?;

    let (phase, counted) = watch::channel(false);
    let words = spawn_blocking(move || -> anyhow::Result<()> {
        for word in std::io::stdin().lines() {
            match word?.as_str() {
                "count" => drop(phase.send(true)),
                "tell" => break,
                other => bail!("{other:?} is nothing to do"),
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
                let asked = Instant::now();
                // The channel closes when it is time to tell.
                let mut end = counted.clone();
                tokio::select! {
                    answered = call(&gate, read(path, credential)) => drop(answered?),
                    () = async { while end.changed().await.is_ok() {} } => break,
                }
                if *counted.borrow() {
                    waits.push(u64::try_from(asked.elapsed().as_micros())?);
                }
            }
            anyhow::Ok(waits)
        });
    }
    words.await??;
    let mut waits: Vec<u64> = Vec::new();
    while let Some(seen) = workers.join_next().await {
        waits.extend(seen??);
    }
    println!("{}", json!({ "waits_us": waits }));
    std::io::stdout().flush()?;
    rest.leave().await;
    Ok(())
}

fn credential(rest: &RestComponent) -> anyhow::Result<Credential> {
    Ok(rest.calls.gateway_bot()?.request.credential)
}

/// Waits until the process shares the limit with others, and may have so many calls waiting.
async fn wait_for_membership(rest: &RestComponent, pending: u32) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while Instant::now() < deadline {
        let view = rest.gate.observe().await.context("the gate is gone")?;
        let is_member = view.limits.credentials.iter().any(|limit| {
            limit.shared.as_ref().is_some_and(|shared| shared.mode == SharingMode::Shared && shared.share > 0)
        });
        // Calls that wait count as calls that may come back invalid.
        let invalid = view.breakers.invalid_requests.shared;
        if is_member && invalid.is_some_and(|fleet| fleet.lent > u64::from(pending)) {
            return Ok(());
        }
        sleep(Duration::from_millis(20)).await;
    }
    bail!("the process did not become a member of the fleet")
}
