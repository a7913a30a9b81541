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

use super::STUCK;

/// Environment variable with the configuration of a process.
pub(crate) const ORDERS: &str = "GUILDHALL_TEST_FLEET_ORDERS";

/// The test that runs as a process of a fleet.
const ENTRY: &str = "driver::a_process_of_a_fleet";

/// What a process does. How it does it depends on its settings, which it reads as a daemon does.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Orders {
    /// Content of its messages.
    pub(crate) name: String,
    /// The channels to write to, for each of its gates.
    pub(crate) gates: Vec<Vec<u64>>,
}

/// Status of one gate of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Seen {
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
    pub(crate) under: Vec<String>,
}

impl Launch {
    pub(crate) fn named(name: &str) -> Self {
        // A single gate sends fifty messages a second.
        Self { name: name.to_owned(), gates: 1, channels: 80, redis: None, settings: Vec::new(), under: Vec::new() }
    }

    pub(crate) fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// A process of a fleet.
pub(crate) struct Process {
    pub(crate) name: String,
    child: Child,
    /// Taken to stop the process.
    stdin: Mutex<Option<ChildStdin>>,
    says: Mutex<Receiver<String>>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Process {
    pub(super) fn start(launch: &Launch, gates: Vec<Vec<u64>>, settings: Vec<(String, String)>, folder: &Path) -> Self {
        let orders = Orders { name: launch.name.clone(), gates };
        let own = std::env::current_exe().unwrap();
        let mut words = launch.under.iter().map(AsRef::as_ref).chain([own.as_os_str()]);
        let mut child = Command::new(words.next().unwrap())
            .args(words)
            .args(["--ignored", "--exact", ENTRY, "--nocapture"])
            .current_dir(folder)
            .env_clear()
            .envs(settings)
            .env(ORDERS, serde_json::to_string(&orders).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (send, says) = mpsc::channel();
        lines_of(child.stdout.take().unwrap(), move |line| drop(send.send(line)));
        let log = Arc::<Mutex<Vec<String>>>::default();
        let kept = Arc::clone(&log);
        lines_of(child.stderr.take().unwrap(), move |line| kept.lock().unwrap().push(line));
        let stdin = Mutex::new(child.stdin.take());
        Self { name: launch.name.clone(), child, stdin, says: Mutex::new(says), log }
    }

    /// Status of its gates.
    pub(crate) fn observe(&self) -> Vec<Seen> {
        self.asked(STUCK).unwrap_or_else(|| panic!("{} does not respond:\n{}", self.name, self.log().join("\n")))
    }

    /// Status of its gates, if it still responds.
    pub(super) fn asked(&self, within: Duration) -> Option<Vec<Seen>> {
        self.stdin.lock().unwrap().as_mut()?.write_all(b"observe\n").ok()?;
        let says = self.says.lock().unwrap();
        loop {
            let line = says.recv_timeout(within).ok()?;
            // Other lines are output of the test harness.
            if line.starts_with('[') {
                return Some(serde_json::from_str(&line).unwrap());
            }
        }
    }

    /// Status of its only gate.
    pub(crate) fn seen(&self) -> Seen {
        let mut all = self.observe();
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    /// Requests a graceful stop.
    pub(crate) fn hang_up(&mut self) {
        self.stdin.lock().unwrap().take();
    }

    /// Waits for its exit, which must be successful.
    pub(crate) fn ended(&mut self) {
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

impl Drop for Process {
    fn drop(&mut self) {
        // A failed test must not leave it running. After a normal exit both calls do nothing.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn lines_of(output: impl Read + Send + 'static, mut each: impl FnMut(String) + Send + 'static) {
    thread::spawn(move || BufReader::new(output).lines().map_while(Result::ok).for_each(&mut each));
}
