//! A fleet: processes of one bot that share its limit over Redis, and a simulated Discord that checks all of them.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "fleet/judge.rs"]
mod judge;
#[path = "fleet/process.rs"]
mod process;

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use guildhall::settings::RedisUrl;
use guildhall_sim::{BotConfig, LimitConfig};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::{gate::World, redis::RedisServer};

pub(crate) use judge::{Arrival, Stretch};
pub(crate) use process::{Launch, ORDERS, Orders, Process, Seen};

/// A timeout that only a defect reaches; no test waits for it.
pub(crate) const STUCK: Duration = Duration::from_secs(60);

/// Interval between two checks of an awaited state.
const LOOK: Duration = Duration::from_millis(50);

/// Guilds, with one channel each. A channel accepts one message a second.
const GUILDS: u32 = 400;

/// The route of all requests that a fleet sends.
pub(crate) const ROUTE: &str = "POST /channels/{channel.id}/messages";

/// The limit that all processes share.
pub(crate) const LIMIT: u32 = 50;

/// How fast a fleet notices changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rules {
    /// The defaults of a daemon.
    Default,
    /// Half of the defaults, for tests that do not depend on them.
    Brisk,
}

impl Rules {
    fn settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Default => &[],
            Self::Brisk => &[
                ("GUILDHALL__REDIS__HEARTBEAT_MS", "300"),
                ("GUILDHALL__REDIS__SILENCE_MS", "1000"),
                ("GUILDHALL__REDIS__NEWCOMER_MS", "700"),
                ("GUILDHALL__REDIS__GUARD_MS", "500"),
            ],
        }
    }
}

/// Processes, the Redis that they share, and the simulated Discord that they call.
pub(crate) struct Fleet {
    pub(crate) redis: RedisServer,
    pub(crate) processes: Vec<Process>,
    pub(crate) world: World,
    settings: Vec<(String, String)>,
    channels: Vec<u64>,
    started: (Instant, u64),
    folder: TempDir,
    // Last, because it runs the simulator.
    _runtime: Runtime,
}

impl Fleet {
    /// Starts a simulated Discord and a Redis, without processes.
    pub(crate) fn new(rules: Rules) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let started = (Instant::now(), unix_micros());
        let world = runtime.block_on(World::start(GUILDS, LimitConfig::default()));
        let channels = world.places.iter().map(|place| place.channel).collect();
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
        for (name, value) in rules.settings() {
            fleet.set(name, value);
        }
        let api = fleet.world.sim.api_url();
        let seats = fleet.folder.path().join("seats");
        fleet.set("GUILDHALL__DISCORD__API_URL", &api);
        fleet.set("GUILDHALL__DISCORD__TOKEN", &BotConfig::default().token);
        fleet.set("GUILDHALL__REDIS__SEAT_DIR", seats.to_str().unwrap());
        fleet.set("GUILDHALL__LOG__FORMAT", "json");
        fleet
    }

    /// Adds an environment variable for all processes that start from now on.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.settings.push((name.to_owned(), value.to_owned()));
    }

    /// Starts a process and returns its index.
    pub(crate) fn launch(&mut self, launch: &Launch) -> usize {
        let mut some = || self.channels.split_off(self.channels.len() - launch.channels);
        let channels = (0..launch.gates).map(|_| some()).collect();
        let url = launch.redis.clone().unwrap_or_else(|| self.redis.url());
        let mut settings = self.settings.clone();
        settings.push(("GUILDHALL__REDIS__URL".to_owned(), url.to_string()));
        settings.extend(launch.settings.iter().cloned());
        self.processes.push(Process::start(launch, channels, settings, self.folder.path()));
        self.processes.len() - 1
    }

    /// Starts a process that uses the fleet's own Redis.
    pub(crate) fn join(&mut self, name: &str) -> usize {
        self.launch(&Launch::named(name))
    }

    /// Starts a process that reaches the Redis at another URL.
    pub(crate) fn join_over(&mut self, name: &str, redis: RedisUrl) -> usize {
        self.launch(&Launch { redis: Some(redis), ..Launch::named(name) })
    }

    /// Three processes that share the limit and use it.
    pub(crate) fn of_three(rules: Rules) -> Self {
        let mut fleet = Self::new(rules);
        for name in ["a", "b", "c"] {
            fleet.join(name);
        }
        fleet.all_share(3);
        // They wait a little longer for the other processes' reports on invalid requests.
        fleet.until("all processes send", |fleet| fleet.processes.iter().all(|process| process.seen().answered > 0));
        fleet
    }

    /// Waits until all processes share the limit, know how many they are, and have all of it.
    pub(crate) fn all_share(&self, members: u32) {
        self.until(&format!("all processes share the limit and there are {members} members"), |fleet| {
            fleet.processes.iter().all(|process| {
                process
                    .observe()
                    .iter()
                    .all(|seen| seen.mode == "shared" && seen.members == members && seen.pool == LIMIT)
            })
        });
    }

    /// What a process may send without the others: a third of the limit for each of three, and one or two more for
    /// some, because the limit is not divisible by three.
    pub(crate) fn share(&self, name: &str) -> usize {
        let share = |process: &Process| process.observe().iter().map(|seen| seen.share).sum::<u32>();
        let all: BTreeMap<&str, u32> = self.processes.iter().map(|one| (one.name.as_str(), share(one))).collect();
        assert!(all.values().sum::<u32>() <= LIMIT, "{all:?}");
        let fair = LIMIT / u32::try_from(all.len()).unwrap();
        assert!((fair..=fair + 2).contains(&all[name]), "{all:?}");
        usize::try_from(all[name]).unwrap()
    }

    /// Waits until one process is in this mode.
    pub(crate) fn until_mode(&self, process: usize, mode: &str) {
        self.until(&format!("{} is {mode}", self.processes[process].name), |fleet| {
            fleet.processes[process].observe().iter().all(|seen| seen.mode == mode)
        });
    }

    /// Waits until all processes are in this mode.
    pub(crate) fn until_all(&self, mode: &str) {
        (0..self.processes.len()).for_each(|process| self.until_mode(process, mode));
    }

    /// Waits for a state. Nothing depends on how long that takes.
    pub(crate) fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + STUCK;
        while !holds(self) {
            assert!(Instant::now() < deadline, "timed out: {what}");
            thread::sleep(LOOK);
        }
    }

    /// Waits until this holds for the arrivals since then, and at most for the promised time.
    pub(crate) fn reach(
        &self,
        what: &str,
        since: Duration,
        within: Duration,
        holds: impl Fn(&Stretch) -> bool,
    ) -> Stretch {
        loop {
            let stretch = self.between(since, self.now());
            if holds(&stretch) {
                return stretch;
            }
            assert!(stretch.to < since + within, "not within {within:?}: {what}; {:?} arrived", stretch.by_process());
            thread::sleep(LOOK);
        }
    }

    /// Time since the start, by the simulator's clock.
    pub(crate) fn now(&self) -> Duration {
        self.started.0.elapsed()
    }

    /// Waits, and returns the arrivals in that time. The time is measured by the simulator's clock.
    pub(crate) fn pass(&self, time: Duration) -> Stretch {
        let from = self.now();
        thread::sleep(time);
        self.between(from, self.now())
    }

    /// The arrivals in a period.
    pub(crate) fn between(&self, from: Duration, to: Duration) -> Stretch {
        Stretch::new(from, to, self.arrivals())
    }

    /// All arrivals in order, by the simulator's clock since the start.
    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        let effects = self.world.score().effects;
        let mut arrivals: Vec<Arrival> = effects
            .into_values()
            .flatten()
            .map(|effect| Arrival {
                at: Duration::from_micros(effect.arrived.micros().saturating_sub(self.started.1)),
                by: effect.name,
            })
            .collect();
        arrivals.sort_by_key(|arrival| arrival.at);
        arrivals
    }

    /// Stops the processes in order, and checks the result.
    pub(crate) fn end(self) {
        self.end_after(0);
    }

    /// Stops the processes in order, and checks the result: the limit was kept, and there were only as many 429s as the
    /// test caused.
    pub(crate) fn end_after(mut self, told: u64) {
        self.processes.iter_mut().for_each(Process::hang_up);
        self.processes.iter_mut().for_each(Process::ended);
        let score = self.world.score();
        let most = self.world.most_in_a_second();
        println!("{} arrived, at most {most} in a second, 429s {:?}", score.requests, score.rate_limited);
        assert!(most <= LIMIT, "{most} in a second: {:?}", self.worst_second());
        assert!(score.rate_limited.global <= told, "429s of the global limit");
        let ours = &score.routes[ROUTE];
        assert_eq!(ours.statuses.get(&429).copied().unwrap_or(0), told, "429s of limits that are not shared: {ours:?}");
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if thread::panicking() {
            self.tell();
        }
    }
}

fn unix_micros() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}
