//! The number of series does not grow with the bot.

use std::collections::BTreeSet;

use guildhall_sim::{GuildsSpec, LimitConfig, Sim, SimConfig};
use guildhall_testkit::program::{Guildhall, get};

use super::daemon::wait_for_metrics;

const GUILDS: u32 = 10_000;
/// Guilds at the start: enough for every series that an event and an operation create.
const INITIAL_GUILDS: u32 = 20;
/// Guilds that are added in one step.
const GUILDS_PER_STEP: u32 = 500;
/// Series that may appear only under load, such as those of waits and delays. A series for each guild would add ten
/// thousand.
const MAX_NEW_SERIES: usize = 60;

/// Each new guild is an event, and leads to an operation with one call.
const HANDLERS: &str = r#"
[[handlers]]
name = "furnishes"
on = "guild.create"
do = [{ kind = "read", payload = { path = "/guilds/{guild_id}" } }]
"#;

/// The exported series, without their values.
fn exported_series(address: std::net::SocketAddr) -> BTreeSet<String> {
    let text = tokio::task::block_in_place(|| get(address, "/metrics")).body;
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn number_of_series_does_not_grow_with_guilds() {
    let config = SimConfig {
        guilds: INITIAL_GUILDS,
        members: 1,
        channels: 1,
        limits: LimitConfig::off(),
        ..SimConfig::default()
    };
    let sim = Sim::start(config).await.unwrap();
    let daemon = Guildhall::serve(&sim.gateway_url())
        .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
        .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
        .env("GUILDHALL__LIMITS__GLOBAL", "10000")
        .env("GUILDHALL__LOG__FILTER", "warn,guildhall=info")
        .file("handlers.toml", HANDLERS)
        .env("GUILDHALL__HANDLERS__FILE", "handlers.toml")
        .spawn();
    let address = daemon.address();
    let completed_line = |count: u32| format!("guildhall_operations_completed_total{{kind=\"read\"}} {count}");
    wait_for_metrics(address, &[&completed_line(INITIAL_GUILDS)]).await;
    let few = exported_series(address);

    let spec = |count| GuildsSpec { count: Some(count), members: Some(1), channels: Some(1), ..GuildsSpec::default() };
    for all in (INITIAL_GUILDS..GUILDS).step_by(GUILDS_PER_STEP as usize).skip(1).chain([GUILDS]) {
        // A bot does not get all guilds on one day.
        let current = u32::try_from(sim.guilds().len()).unwrap();
        sim.create_guilds(&spec(all - current)).unwrap();
        wait_for_metrics(address, &[&completed_line(all)]).await;
    }
    let many = exported_series(address);
    let new: Vec<_> = many.difference(&few).collect();
    assert!(new.len() <= MAX_NEW_SERIES, "{} series became {} with {GUILDS} guilds: {new:?}", few.len(), many.len());
    let ids: Vec<String> = sim.guilds().iter().map(ToString::to_string).collect();
    let of_a_guild = many.iter().find(|series| ids.iter().take(50).any(|id| series.contains(id.as_str())));
    assert_eq!(of_a_guild, None);
    daemon.signal("TERM");
    assert_eq!(daemon.wait_for_exit().code, Some(0));
}
