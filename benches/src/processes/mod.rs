//! `processes`: operations per second of one, two and four daemons that share a PostgreSQL. Every call to Discord takes
//! 20 ms, and no limit delays a call.

mod sim_fixture;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use clap::Args;
use http::Method;
use sea_orm::{ConnectionTrait as _, Database, DatabaseConnection, DbBackend, Statement};
use serde_json::{Value, json};
use tokio::task::{JoinSet, block_in_place};
use tokio::time::sleep;

pub(crate) use self::sim_fixture::TOKEN;
use self::sim_fixture::{Guild, SimFixture};
use crate::daemon::{API_KEY, Daemon};
use crate::disk;
use crate::http_client::Connection;
use crate::postgres_server::PostgresServer;
use crate::stats::per_second;

/// Number of daemons, and the JSON key of the figure.
const SIZES: [(usize, &str); 3] = [(1, "per_s_1"), (2, "per_s_2"), (4, "per_s_4")];

/// Time limit of one turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(120);

/// Operations per request.
const BATCH_SIZE: usize = 100;

/// Number of concurrent callers.
const CALLERS: usize = 8;

/// Number of guilds, operations and turns.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Number of guilds, all active at the same time.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=2_000))]
    guilds: u32,
    /// Number of operations of each guild, executed in order.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=900))]
    per_guild: u32,
    /// Number of turns for each number of daemons. The figure is the median.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    turns: u32,
}

pub(crate) async fn run(arguments: &Arguments, quiet: bool) -> anyhow::Result<Value> {
    // PostgreSQL stores its data on the same disk.
    let folder = disk::temp_dir()?;
    let server = block_in_place(PostgresServer::start)?;
    let mut rates: [Vec<f64>; SIZES.len()] = Default::default();
    let mut violations = 0;
    // Turns alternate between the numbers of daemons, so that other load on the machine affects all of them.
    for turn in 0..arguments.turns {
        for ((count, _), rates) in SIZES.iter().zip(&mut rates) {
            let url = block_in_place(|| server.create_database(&format!("with_{count}_{turn}")))?;
            let result = measure(arguments, *count, &url, folder.path()).await;
            let (per_s, out_of_order) = result.with_context(|| format!("with {count} daemons"))?;
            if !quiet {
                println!("{count} daemons: {per_s:.0} operations/s, {out_of_order} out of order");
            }
            rates.push(per_s);
            violations += out_of_order;
        }
    }
    let mut figures = json!({
        "name": "processes",
        "guilds": arguments.guilds,
        "per_guild": arguments.per_guild,
        "turns": arguments.turns,
        "order_violations": violations,
    });
    for ((_, key), mut rates) in SIZES.into_iter().zip(rates) {
        rates.sort_unstable_by(f64::total_cmp);
        figures[key] = rates.get(rates.len() / 2).copied().into();
    }
    Ok(figures)
}

/// Measures from the first submission until the store has recorded the result of the last operation. Returns operations
/// per second and the number of calls out of order.
async fn measure(
    arguments: &Arguments,
    daemons: usize,
    url: &str,
    folder: &std::path::Path,
) -> anyhow::Result<(f64, usize)> {
    let fixture = SimFixture::start(arguments.guilds, arguments.per_guild).await?;
    let (api, gateway) = (fixture.sim.api_url(), fixture.sim.gateway_url());
    let settings = [
        ("DISCORD__TOKEN", TOKEN),
        ("DISCORD__API_URL", &api),
        ("DISCORD__GATEWAY_URL", &gateway),
        ("STORE__URL", url),
    ];
    let daemons = (0..daemons)
        .map(|_| block_in_place(|| Daemon::start(&settings, folder)))
        .collect::<anyhow::Result<Vec<Daemon>>>()?;
    for daemon in &daemons {
        daemon.wait_until_ready().await?;
    }
    let count = fixture.guilds.iter().map(|guild| guild.members.len()).sum();
    let addresses: Vec<SocketAddr> = daemons.iter().map(|daemon| daemon.address).collect();
    let store = Database::connect(url).await?;
    let started = Instant::now();
    submit(&fixture.guilds, &addresses).await?;
    while !have_all_succeeded(&store, count).await? {
        ensure!(started.elapsed() < TURN_TIMEOUT, "not all of {count} operations finished within {TURN_TIMEOUT:?}");
        sleep(Duration::from_millis(5)).await;
    }
    let elapsed = started.elapsed();
    store.close().await?;
    let violations = fixture.violations();
    block_in_place(|| drop(daemons));
    fixture.sim.stop().await;
    Ok((per_second(count, elapsed), violations))
}

/// Submits all operations. Each caller has a connection to each daemon, and consecutive parts of a guild go to
/// different daemons.
async fn submit(guilds: &[Guild], daemons: &[SocketAddr]) -> anyhow::Result<()> {
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let guilds: Vec<Guild> = guilds.iter().skip(caller).step_by(CALLERS).cloned().collect();
        let daemons = daemons.to_vec();
        callers.spawn(async move {
            let mut connections = Vec::new();
            for address in daemons {
                connections.push(Connection::open(address).await?);
            }
            for (nth, guild) in guilds.iter().enumerate() {
                for (part, members) in guild.members.chunks(BATCH_SIZE).enumerate() {
                    let daemon = (nth + part) % connections.len();
                    submit_batch(&mut connections[daemon], guild, members).await?;
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(result) = callers.join_next().await {
        result??;
    }
    Ok(())
}

/// Submits operations that give the guild's role to these members.
async fn submit_batch(daemon: &mut Connection, guild: &Guild, members: &[String]) -> anyhow::Result<()> {
    let operation =
        |user: &String| json!({ "kind": "assign_role", "payload": { "user_id": user, "role_id": guild.role } });
    let operations: Vec<Value> = members.iter().map(operation).collect();
    let body = Bytes::from(json!({ "operations": operations }).to_string());
    let path = format!("/v1/guilds/{}/operations", guild.id);
    let (status, response) = daemon.call(Method::POST, &path, &format!("Bearer {API_KEY}"), body).await?;
    ensure!(status == 202, "a daemon returned {status}: {}", String::from_utf8_lossy(&response));
    Ok(())
}

/// Returns whether all operations have succeeded, according to the store. Fails if one has ended otherwise.
async fn have_all_succeeded(store: &DatabaseConnection, count: usize) -> anyhow::Result<bool> {
    const COUNT_SQL: &str =
        "SELECT COUNT(*) FILTER (WHERE state = 'succeeded'), COUNT(*) FILTER (WHERE state <> 'succeeded')
        FROM operations WHERE finished_at IS NOT NULL";
    let row = store.query_one_raw(Statement::from_string(DbBackend::Postgres, COUNT_SQL)).await?;
    let row = row.context("the count query returned no row")?;
    let (succeeded, others): (i64, i64) = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
    ensure!(others == 0, "{others} operations did not succeed");
    Ok(usize::try_from(succeeded)? == count)
}
