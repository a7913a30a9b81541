//! A fleet: processes of one bot that share its limit over Redis, and a simulated Discord that checks all of them.

#![expect(clippy::unwrap_used, reason = "tests")]

mod arrivals;
mod process;

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use guildhall::settings::RedisUrl;
use guildhall_sim::{BotConfig, LimitConfig};
use guildhall_testkit::{gate::SimWorld, redis::RedisServer};
use tempfile::TempDir;
use tokio::runtime::Runtime;

pub(crate) use arrivals::{Arrival, ArrivalWindow};
pub(crate) use process::{DRIVER_CONFIG_ENV, DriverConfig, FleetProcess, GateStatus, Launch};

/// A timeout that only a defect reaches; no test waits for it.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval between two checks of an awaited state.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Guilds, with one channel each. A channel accepts one message a second.
const GUILDS: u32 = 400;

/// The route of all requests that a fleet sends.
pub(crate) const ROUTE: &str = "POST /channels/{channel.id}/messages";

/// The limit that all processes share.
pub(crate) const LIMIT: u32 = 50;

/// How fast a fleet notices changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FleetTiming {
    /// The defaults of a daemon.
    Default,
    /// Half of the defaults, for tests that do not depend on them.
    Fast,
}

impl FleetTiming {
    fn settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Default => &[],
            Self::Fast => &[
                ("GUILDHALL__REDIS__HEARTBEAT_MS", "300"),
                ("GUILDHALL__REDIS__SILENCE_MS", "1000"),
                ("GUILDHALL__REDIS__NEWCOMER_MS", "700"),
                ("GUILDHALL__REDIS__GUARD_MS", "500"),
            ],
        }
    }
}

/// Processes, the Redis that they share, and the simulated Discord that they call.
pub(crate) struct ProcessFleet {
    pub(crate) redis: RedisServer,
    pub(crate) processes: Vec<FleetProcess>,
    pub(crate) world: SimWorld,
    settings: Vec<(String, String)>,
    channels: Vec<u64>,
    started: (Instant, u64),
    folder: TempDir,
    // Last, because it runs the simulator.
    _runtime: Runtime,
}

impl ProcessFleet {
    /// Starts a simulated Discord and a Redis, without processes.
    pub(crate) fn new(timing: FleetTiming) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let started = (Instant::now(), unix_micros());
        let world = runtime.block_on(SimWorld::start(GUILDS, LimitConfig::default()));
        let channels = world.guilds.iter().map(|ids| ids.channel).collect();
        let mut fleet = Self {
            redis: RedisServer::start(),
            processes: Vec::new(),
            world,
            settings: Vec::new(),
            channels,
            started,
            folder: tempfile::tempdir().unwrap(),
            _runtime: runtime,
        };
        for (name, value) in timing.settings() {
            fleet.set(name, value);
        }
        let api = fleet.world.sim.api_url();
        let lock_dir = fleet.folder.path().join("seats");
        fleet.set("GUILDHALL__DISCORD__API_URL", &api);
        fleet.set("GUILDHALL__DISCORD__TOKEN", &BotConfig::default().token);
        fleet.set("GUILDHALL__REDIS__SEAT_DIR", lock_dir.to_str().unwrap());
        fleet.set("GUILDHALL__LOG__FORMAT", "json");
        fleet
    }

    /// Adds an environment variable for all processes that start from now on.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.settings.push((name.to_owned(), value.to_owned()));
    }

    /// Starts a process and returns its index.
    pub(crate) fn launch(&mut self, launch: &Launch) -> usize {
        let mut take_channels = || self.channels.split_off(self.channels.len() - launch.channels);
        let channels = (0..launch.gates).map(|_| take_channels()).collect();
        let url = launch.redis.clone().unwrap_or_else(|| self.redis.url());
        let mut settings = self.settings.clone();
        settings.push(("GUILDHALL__REDIS__URL".to_owned(), url.to_string()));
        settings.extend(launch.settings.iter().cloned());
        self.processes.push(FleetProcess::start(launch, channels, settings, self.folder.path()));
        self.processes.len() - 1
    }

    /// Starts a process that uses the fleet's own Redis.
    pub(crate) fn join(&mut self, name: &str) -> usize {
        self.launch(&Launch::named(name))
    }

    /// Starts a process that reaches the Redis at another URL.
    pub(crate) fn join_through(&mut self, name: &str, redis: RedisUrl) -> usize {
        self.launch(&Launch { redis: Some(redis), ..Launch::named(name) })
    }

    /// Three processes that share the limit and use it.
    pub(crate) fn with_three_processes(timing: FleetTiming) -> Self {
        let mut fleet = Self::new(timing);
        for name in ["a", "b", "c"] {
            fleet.join(name);
        }
        fleet.wait_until_shared(3);
        // They wait a little longer for the other processes' reports on invalid requests.
        fleet.wait_until("all processes send", |fleet| {
            fleet.processes.iter().all(|process| process.observe_single().answered > 0)
        });
        fleet
    }

    /// Waits until all processes share the limit, know how many they are, and have all of it.
    pub(crate) fn wait_until_shared(&self, members: u32) {
        self.wait_until(&format!("all processes share the limit and there are {members} members"), |fleet| {
            fleet.processes.iter().all(|process| {
                process
                    .observe()
                    .iter()
                    .all(|status| status.mode == "shared" && status.members == members && status.pool == LIMIT)
            })
        });
    }

    /// What a process may send without the others: a third of the limit for each of three, and one or two more for
    /// some, because the limit is not divisible by three.
    pub(crate) fn share(&self, name: &str) -> usize {
        let share = |process: &FleetProcess| process.observe().iter().map(|seen| seen.share).sum::<u32>();
        let all: BTreeMap<&str, u32> = self.processes.iter().map(|one| (one.name.as_str(), share(one))).collect();
        assert!(all.values().sum::<u32>() <= LIMIT, "{all:?}");
        let fair = LIMIT / u32::try_from(all.len()).unwrap();
        assert!((fair..=fair + 2).contains(&all[name]), "{all:?}");
        usize::try_from(all[name]).unwrap()
    }

    /// Waits until one process is in this mode.
    pub(crate) fn wait_for_mode(&self, process: usize, mode: &str) {
        self.wait_until(&format!("{} is {mode}", self.processes[process].name), |fleet| {
            fleet.processes[process].observe().iter().all(|status| status.mode == mode)
        });
    }

    /// Waits until all processes are in this mode.
    pub(crate) fn wait_until_all_in_mode(&self, mode: &str) {
        (0..self.processes.len()).for_each(|process| self.wait_for_mode(process, mode));
    }

    /// Waits for a state. Nothing depends on how long that takes.
    pub(crate) fn wait_until(&self, description: &str, condition: impl Fn(&Self) -> bool) {
        // Fifty processes start at once, while other tests run.
        let deadline = Instant::now() + TEST_TIMEOUT * 3;
        while !condition(self) {
            assert!(Instant::now() < deadline, "timed out: {description}");
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits until this holds for the arrivals since then, and at most for the promised time.
    pub(crate) fn wait_for_arrivals(
        &self,
        description: &str,
        since: Duration,
        timeout: Duration,
        condition: impl Fn(&ArrivalWindow) -> bool,
    ) -> ArrivalWindow {
        loop {
            let window = self.arrivals_between(since, self.now());
            if condition(&window) {
                return window;
            }
            assert!(
                window.to < since + timeout,
                "not within {timeout:?}: {description}; {:?} arrived",
                window.by_process()
            );
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Time since the start, by the simulator's clock.
    pub(crate) fn now(&self) -> Duration {
        self.started.0.elapsed()
    }

    /// Waits, and returns the arrivals in that time. The time is measured by the simulator's clock.
    pub(crate) fn observe_for(&self, time: Duration) -> ArrivalWindow {
        let from = self.now();
        thread::sleep(time);
        self.arrivals_between(from, self.now())
    }

    /// The arrivals in a period.
    pub(crate) fn arrivals_between(&self, from: Duration, to: Duration) -> ArrivalWindow {
        ArrivalWindow::new(from, to, self.arrivals())
    }

    /// All arrivals in order, by the simulator's clock since the start.
    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        let effects = self.world.score().effects;
        let mut arrivals: Vec<Arrival> = effects
            .into_values()
            .flatten()
            .map(|effect| Arrival {
                at: Duration::from_micros(effect.arrived.micros().saturating_sub(self.started.1)),
                process: effect.name,
            })
            .collect();
        arrivals.sort_by_key(|arrival| arrival.at);
        arrivals
    }

    /// Stops the processes in order, and checks the result.
    pub(crate) fn stop_and_check(self) {
        self.stop_and_check_429s(0);
    }

    /// Stops the processes in order, and checks the result: the limit was kept, and there were only as many 429s as the
    /// test caused.
    pub(crate) fn stop_and_check_429s(mut self, expected_429s: u64) {
        self.processes.iter_mut().for_each(FleetProcess::request_stop);
        self.processes.iter_mut().for_each(FleetProcess::wait_for_success);
        let score = self.world.score();
        let max_per_second = self.world.max_per_second();
        println!("{} arrived, at most {max_per_second} in a second, 429s {:?}", score.requests, score.rate_limited);
        assert!(max_per_second <= LIMIT, "{max_per_second} in a second: {:?}", self.worst_second());
        assert!(score.rate_limited.global <= expected_429s, "429s of the global limit");
        let route = &score.routes[ROUTE];
        assert_eq!(
            route.statuses.get(&429).copied().unwrap_or(0),
            expected_429s,
            "429s of limits that are not shared: {route:?}"
        );
    }
}

impl Drop for ProcessFleet {
    fn drop(&mut self) {
        if thread::panicking() {
            self.print_diagnostics();
        }
    }
}

fn unix_micros() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}
