//! A daemon as a child process.

use std::{
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    os::unix::process::ExitStatusExt as _,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
};

use tokio::sync::watch;

/// Number of log lines that are stored for diagnostics.
const KEPT: usize = 400;

const KILL: i32 = 9;

/// Status of a daemon, as its log shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Nothing,
    Listening(SocketAddr),
    Ended,
}

/// A running daemon. It is killed on drop.
pub(crate) struct Life {
    child: Child,
    heard: watch::Receiver<Heard>,
    log: Arc<Mutex<Vec<String>>>,
    /// Reads its log to the end.
    reader: Option<JoinHandle<()>>,
}

impl Life {
    /// Starts it. `observe` is called for each change that its log shows, and for the last time before [`Self::kill`]
    /// returns.
    pub(crate) fn begin(mut command: Command, mut observe: impl FnMut(Heard) + Send + 'static) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (tell, heard) = watch::channel(Heard::Nothing);
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = Arc::clone(&log);
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if line.contains("panicked") {
                    eprintln!("{line}");
                }
                if let Some(address) = listening(&line) {
                    observe(Heard::Listening(address));
                    tell.send_replace(Heard::Listening(address));
                }
                let mut kept = kept.lock().unwrap();
                if kept.len() == KEPT {
                    kept.remove(0);
                }
                kept.push(line);
            }
            observe(Heard::Ended);
            tell.send_replace(Heard::Ended);
        });
        Self { child, heard, log, reader: Some(reader) }
    }

    /// Subscribes to its status.
    pub(crate) fn heard(&self) -> watch::Receiver<Heard> {
        self.heard.clone()
    }

    /// Waits until it listens. Returns `None` if it exits before that.
    pub(crate) async fn listens(&self) -> Option<SocketAddr> {
        let mut heard = self.heard();
        let heard = *heard.wait_for(|heard| *heard != Heard::Nothing).await.unwrap();
        match heard {
            Heard::Listening(address) => Some(address),
            Heard::Nothing | Heard::Ended => None,
        }
    }

    /// Waits until it has exited by itself.
    pub(crate) async fn ends(&self) {
        let mut heard = self.heard();
        heard.wait_for(|heard| *heard == Heard::Ended).await.unwrap();
    }

    /// Kills it if it still runs. Returns its exit status.
    pub(crate) fn kill(&mut self) -> ExitStatus {
        drop(self.child.kill());
        let status = self.child.wait().unwrap();
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        status
    }

    /// Its exit status, if it has exited.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Sends it a signal: `STOP`, `CONT` or `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success(), "no process to signal");
    }

    /// Lines of its log that contain this text.
    pub(crate) fn lines_with(&self, text: &str) -> Vec<serde_json::Value> {
        let log = self.log.lock().unwrap();
        log.iter().filter(|line| line.contains(text)).map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The last lines of its log.
    pub(crate) fn last_words(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether it was killed, and did not exit by itself.
pub(crate) fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(KILL)
}

fn listening(line: &str) -> Option<SocketAddr> {
    if !line.contains("\"listening\"") {
        return None;
    }
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    line["address"].as_str()?.parse().ok()
}
