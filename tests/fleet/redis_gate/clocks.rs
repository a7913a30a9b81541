//! Wrong clocks: those of the processes do not matter, and a jump of Redis's clock starts a new epoch.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, Command, Stdio},
    time::{SystemTime, UNIX_EPOCH},
};

use guildhall::settings::RedisUrl;
use guildhall_testkit::movable_clock::MovableClock;

use super::{
    assert_all_take_part,
    fleet::{FleetTiming, Launch, ProcessFleet},
    run_concurrently, secs, wait_for_full_rate,
};

const HOUR: i64 = 3_600;
const DAY: &str = "86400";

/// Runs a command in a time namespace with a different uptime. Not all systems support that.
const TIME_NAMESPACE: [&str; 6] = ["unshare", "--time", "--monotonic", DAY, "--boottime", DAY];

/// Seconds since the system started, as seen by a process under this command.
fn uptime(under: &[&str]) -> Option<f64> {
    let args = [under, &["cat", "/proc/uptime"]].concat();
    let output = Command::new(args[0]).args(&args[1..]).output().ok()?;
    String::from_utf8(output.stdout).unwrap().split(' ').next()?.parse().ok()
}

fn supports_time_namespaces() -> bool {
    let day: f64 = DAY.parse().unwrap();
    uptime(&TIME_NAMESPACE).is_some_and(|there| uptime(&[]).unwrap() + day / 2.0 < there)
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn move_process_clocks() {
    let clock = MovableClock::compile();
    let mut fleet = ProcessFleet::new(FleetTiming::Fast);
    fleet.join("a");
    let jumpy = clock.environment().iter().fold(Launch::named("b"), |launch, (name, value)| launch.set(name, value));
    let jumpy = fleet.launch(&jumpy);
    let mut elsewhere = Launch::named("c");
    if supports_time_namespaces() {
        elsewhere.wrapper = TIME_NAMESPACE.map(str::to_owned).to_vec();
    } else {
        println!("time namespaces are not supported here: only wall clocks are moved");
    }
    fleet.launch(&elsewhere);
    fleet.wait_until_shared(3);

    let start = fleet.now();
    for hours in [1, -1, 24, 0, -24, 1] {
        clock.set_offset(hours * HOUR, 0);
        fleet.wait_until("its clock has jumped", |fleet| {
            let wall_clock = i64::try_from(fleet.processes[jumpy].observe_single().wall_clock).unwrap();
            (wall_clock - i64::try_from(unix_seconds()).unwrap() - hours * HOUR).abs() < HOUR / 2
        });
        let jumped = fleet.observe_for(secs(1));
        assert!(
            fleet.processes.iter().all(|process| process.observe_single().mode == "shared"),
            "{:?}",
            jumped.by_process()
        );
    }
    assert_all_take_part(&fleet.arrivals_between(start, fleet.now()));
    wait_for_full_rate(&fleet);
    fleet.stop_and_check();
}

/// A `redis-server` whose wall clock can be moved.
struct JumpyRedis {
    child: Child,
    port: u16,
}

impl JumpyRedis {
    fn start(clock: &MovableClock) -> Self {
        (0..20).find_map(|_| Self::try_start(clock)).expect("redis-server did not start")
    }

    fn try_start(clock: &MovableClock) -> Option<Self> {
        let port = fastrand::u16(20_000..30_000);
        let mut child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .current_dir(clock.path(""))
            .envs(clock.environment())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| {
                panic!(
                    "cannot run redis-server ({error}); install it with: apt-get install \
                redis-server"
                )
            });
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut redis = Self { child, port };
        let mut line = String::new();
        while lines.read_line(&mut line).unwrap() > 0 {
            if line.contains("Ready to accept connections") {
                // Reads to the end: a server whose output pipe is full blocks.
                std::thread::spawn(move || lines.read_to_end(&mut Vec::new()));
                return Some(redis);
            }
            line.clear();
        }
        // Its port was taken.
        redis.child.wait().unwrap();
        None
    }

    fn url(&self) -> RedisUrl {
        format!("redis://127.0.0.1:{}", self.port).parse().unwrap()
    }
}

impl Drop for JumpyRedis {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn move_redis_clock() {
    let clock = MovableClock::compile();
    let redis = JumpyRedis::start(&clock);
    let mut fleet = ProcessFleet::new(FleetTiming::Fast);
    for name in ["a", "b", "c"] {
        fleet.join_through(name, redis.url());
    }
    fleet.wait_until_shared(3);
    wait_for_full_rate(&fleet);
    for (seconds, millis) in [(30, 0), (-30, 0), (-30, 400)] {
        let before = fleet.processes[0].observe_single().epoch;
        clock.set_offset(seconds, millis);
        fleet.wait_until("a new epoch", |fleet| {
            fleet.processes.iter().all(|process| process.observe_single().epoch != before)
        });
        fleet.wait_until_shared(3);
        wait_for_full_rate(&fleet);
    }
    fleet.stop_and_check();
}

#[test]
fn process_clocks_do_not_matter_and_redis_jumps_start_an_epoch() {
    run_concurrently(&[("processes", &move_process_clocks), ("Redis", &move_redis_clock)]);
}
