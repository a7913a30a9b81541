//! A process of a fleet, as the test sees it: what it is told, and what it says.

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

/// Where a process finds its orders.
pub(crate) const ORDERS: &str = "GUILDHALL_TEST_FLEET_ORDERS";

/// The test that is such a process.
const ENTRY: &str = "driver::a_process_of_a_fleet";

/// What a process is to do. How it does it is up to its settings, which it finds where a daemon finds its own.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Orders {
    /// What its messages say.
    pub(crate) name: String,
    /// For each of its gates, the channels to write to.
    pub(crate) gates: Vec<Vec<u64>>,
}

/// What is to be seen of one gate of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// The member's name, as the others know it.
    pub(crate) member: String,
    pub(crate) mode: String,
    pub(crate) share: u32,
    pub(crate) members: u32,
    pub(crate) live: u32,
    pub(crate) pool: u32,
    pub(crate) epoch: String,
    /// What its wall clock shows, in seconds since the Unix epoch.
    pub(crate) wall_clock: u64,
    /// Calls that were answered, were not sent, and of which nobody knows.
    pub(crate) answered: u64,
    pub(crate) not_sent: u64,
    pub(crate) unknown: u64,
    /// Why the last that was not sent was not.
    pub(crate) refused: String,
}

/// How to start a process.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) name: String,
    pub(crate) gates: usize,
    /// Channels that each gate writes to.
    pub(crate) channels: usize,
    /// Where it meets the others, if not where all do.
    pub(crate) redis: Option<RedisUrl>,
    /// Its environment beside what all have.
    pub(crate) settings: Vec<(String, String)>,
    /// A program that runs it, and that program's arguments.
    pub(crate) under: Vec<String>,
}

impl Launch {
    pub(crate) fn named(name: &str) -> Self {
        // A gate that is alone sends fifty messages a second.
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
    /// Taken when it is told to end.
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

    /// What is to be seen of its gates.
    pub(crate) fn observe(&self) -> Vec<Seen> {
        self.asked(STUCK).unwrap_or_else(|| panic!("{} does not answer:\n{}", self.name, self.log().join("\n")))
    }

    /// The same, if it still answers.
    pub(super) fn asked(&self, within: Duration) -> Option<Vec<Seen>> {
        self.stdin.lock().unwrap().as_mut()?.write_all(b"observe\n").ok()?;
        let says = self.says.lock().unwrap();
        loop {
            let line = says.recv_timeout(within).ok()?;
            // What the test harness says stands on lines of its own.
            if line.starts_with('[') {
                return Some(serde_json::from_str(&line).unwrap());
            }
        }
    }

    /// What is to be seen of its only gate.
    pub(crate) fn seen(&self) -> Seen {
        let mut all = self.observe();
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    /// Tells it to say goodbye and end.
    pub(crate) fn hang_up(&mut self) {
        self.stdin.lock().unwrap().take();
    }

    /// Waits for its end, which has to be a good one.
    pub(crate) fn ended(&mut self) {
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{} {status}:\n{}", self.name, self.log().join("\n"));
    }

    /// Ends it without warning.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Holds it still, or lets it go on: `STOP` and `CONT`.
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
        // A test that failed must not leave it behind. After a proper end both do nothing.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn lines_of(output: impl Read + Send + 'static, mut each: impl FnMut(String) + Send + 'static) {
    thread::spawn(move || BufReader::new(output).lines().map_while(Result::ok).for_each(&mut each));
}
