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
const LOG_TAIL_LINES: usize = 400;

const SIGKILL: i32 = 9;

/// Status of a daemon, as its log shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonStatus {
    Starting,
    Listening(SocketAddr),
    Exited,
}

/// A running daemon. It is killed on drop.
pub struct DaemonProcess {
    child: Child,
    status: watch::Receiver<DaemonStatus>,
    log: Arc<Mutex<Vec<String>>>,
    /// Reads its log to the end.
    reader: Option<JoinHandle<()>>,
}

impl DaemonProcess {
    /// Starts it. `observe` is called for each change that its log shows, and for the last time before [`Self::kill`]
    /// returns.
    pub fn spawn(mut command: Command, mut observe: impl FnMut(DaemonStatus) + Send + 'static) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (status_sender, status) = watch::channel(DaemonStatus::Starting);
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let stored_lines = Arc::clone(&log);
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if line.contains("panicked") {
                    eprintln!("{line}");
                }
                if let Some(address) = listening_address(&line) {
                    observe(DaemonStatus::Listening(address));
                    status_sender.send_replace(DaemonStatus::Listening(address));
                }
                let mut stored_lines = stored_lines.lock().unwrap();
                if stored_lines.len() == LOG_TAIL_LINES {
                    stored_lines.remove(0);
                }
                stored_lines.push(line);
            }
            observe(DaemonStatus::Exited);
            status_sender.send_replace(DaemonStatus::Exited);
        });
        Self { child, status, log, reader: Some(reader) }
    }

    /// Subscribes to its status.
    pub fn status(&self) -> watch::Receiver<DaemonStatus> {
        self.status.clone()
    }

    /// Waits until it listens. Returns `None` if it exits before that.
    pub async fn wait_until_listening(&self) -> Option<SocketAddr> {
        let mut status = self.status();
        let status = *status.wait_for(|status| *status != DaemonStatus::Starting).await.unwrap();
        match status {
            DaemonStatus::Listening(address) => Some(address),
            DaemonStatus::Starting | DaemonStatus::Exited => None,
        }
    }

    /// Waits until it has exited by itself.
    pub async fn wait_for_exit(&self) {
        let mut status = self.status();
        status.wait_for(|status| *status == DaemonStatus::Exited).await.unwrap();
    }

    /// Kills it if it still runs. Returns its exit status.
    pub fn kill(&mut self) -> ExitStatus {
        drop(self.child.kill());
        let status = self.child.wait().unwrap();
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        status
    }

    /// Its exit status, if it has exited.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Sends it a signal: `STOP`, `CONT` or `TERM`.
    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success(), "no process to signal");
    }

    /// Lines of its log that contain this text.
    pub fn log_lines_with(&self, text: &str) -> Vec<serde_json::Value> {
        let log = self.log.lock().unwrap();
        log.iter().filter(|line| line.contains(text)).map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether it was killed, and did not exit by itself.
pub fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(SIGKILL)
}

fn listening_address(line: &str) -> Option<SocketAddr> {
    if !line.contains("\"listening\"") {
        return None;
    }
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    line["address"].as_str()?.parse().ok()
}
