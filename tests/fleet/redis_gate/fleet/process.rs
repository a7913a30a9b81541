//! A process of a fleet, as the test controls it.

use std::{
    io::{BufRead as _, BufReader, Read, Write as _},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc, Mutex,
        mpsc::{self, Receiver},
    },
    thread,
    time::Duration,
};

use guildhall::settings::RedisUrl;
use serde::{Deserialize, Serialize};

use super::TEST_TIMEOUT;

/// Environment variable with the configuration of a process.
pub(crate) const DRIVER_CONFIG_ENV: &str = "GUILDHALL_TEST_FLEET_ORDERS";

/// The test that runs as a process of a fleet.
const DRIVER_TEST: &str = "redis_gate::driver::a_process_of_a_fleet";

/// What a process does. How it does it depends on its settings, which it reads as a daemon does.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DriverConfig {
    /// Content of its messages.
    pub(crate) name: String,
    /// The channels to write to, for each of its gates.
    pub(crate) gates: Vec<Vec<u64>>,
}

/// Status of one gate of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GateStatus {
    /// The member's id in the shared window.
    pub(crate) member: String,
    pub(crate) mode: String,
    pub(crate) share: u32,
    pub(crate) members: u32,
    pub(crate) live: u32,
    pub(crate) pool: u32,
    pub(crate) epoch: String,
    /// Its wall clock, in seconds since the Unix epoch.
    pub(crate) wall_clock: u64,
    /// Calls that got a response, that were not sent, and whose outcome is unknown.
    pub(crate) answered: u64,
    pub(crate) not_sent: u64,
    pub(crate) unknown: u64,
    /// Why the last call that was not sent was refused.
    pub(crate) refused: String,
}

/// How to start a process.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) name: String,
    pub(crate) gates: usize,
    /// Channels that each gate writes to.
    pub(crate) channels: usize,
    /// Redis URL, if not that of the fleet.
    pub(crate) redis: Option<RedisUrl>,
    /// Environment variables in addition to those of the fleet.
    pub(crate) settings: Vec<(String, String)>,
    /// A program that runs the process, and its arguments.
    pub(crate) wrapper: Vec<String>,
}

impl Launch {
    pub(crate) fn named(name: &str) -> Self {
        // A single gate sends fifty messages a second.
        Self { name: name.to_owned(), gates: 1, channels: 80, redis: None, settings: Vec::new(), wrapper: Vec::new() }
    }

    pub(crate) fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// A process of a fleet.
pub(crate) struct FleetProcess {
    pub(crate) name: String,
    child: Child,
    /// Taken to stop the process.
    stdin: Mutex<Option<ChildStdin>>,
    stdout: Mutex<Receiver<String>>,
    log: Arc<Mutex<Vec<String>>>,
}

impl FleetProcess {
    pub(super) fn start(launch: &Launch, gates: Vec<Vec<u64>>, settings: Vec<(String, String)>, folder: &Path) -> Self {
        let config = DriverConfig { name: launch.name.clone(), gates };
        let executable = std::env::current_exe().unwrap();
        let mut command_line = launch.wrapper.iter().map(AsRef::as_ref).chain([executable.as_os_str()]);
        let mut child = Command::new(command_line.next().unwrap())
            .args(command_line)
            .args(["--ignored", "--exact", DRIVER_TEST, "--nocapture"])
            .current_dir(folder)
            .env_clear()
            .envs(settings)
            .env(DRIVER_CONFIG_ENV, serde_json::to_string(&config).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, stdout) = mpsc::channel();
        read_lines(child.stdout.take().unwrap(), move |line| drop(sender.send(line)));
        let log = Arc::<Mutex<Vec<String>>>::default();
        let log_writer = Arc::clone(&log);
        read_lines(child.stderr.take().unwrap(), move |line| log_writer.lock().unwrap().push(line));
        let stdin = Mutex::new(child.stdin.take());
        Self { name: launch.name.clone(), child, stdin, stdout: Mutex::new(stdout), log }
    }

    /// Status of its gates.
    pub(crate) fn observe(&self) -> Vec<GateStatus> {
        self.try_observe(TEST_TIMEOUT)
            .unwrap_or_else(|| panic!("{} does not respond:\n{}", self.name, self.log().join("\n")))
    }

    /// Status of its gates, if it still responds.
    pub(super) fn try_observe(&self, timeout: Duration) -> Option<Vec<GateStatus>> {
        self.stdin.lock().unwrap().as_mut()?.write_all(b"observe\n").ok()?;
        let stdout = self.stdout.lock().unwrap();
        loop {
            let line = stdout.recv_timeout(timeout).ok()?;
            // Other lines are output of the test harness.
            if line.starts_with('[') {
                return Some(serde_json::from_str(&line).unwrap());
            }
        }
    }

    /// Status of its only gate.
    pub(crate) fn observe_single(&self) -> GateStatus {
        let mut all = self.observe();
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    /// Requests a graceful stop.
    pub(crate) fn request_stop(&mut self) {
        self.stdin.lock().unwrap().take();
    }

    /// Waits for its exit, which must be successful.
    pub(crate) fn wait_for_success(&mut self) {
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{} {status}:\n{}", self.name, self.log().join("\n"));
    }

    /// Kills it.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Suspends or resumes it: `STOP` and `CONT`.
    pub(crate) fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Its log so far.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }
}

impl Drop for FleetProcess {
    fn drop(&mut self) {
        // A failed test must not leave it running. After a normal exit both calls do nothing.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn read_lines(output: impl Read + Send + 'static, mut on_line: impl FnMut(String) + Send + 'static) {
    thread::spawn(move || BufReader::new(output).lines().map_while(Result::ok).for_each(&mut on_line));
}
