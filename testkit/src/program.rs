//! The real program as a child process, and HTTP requests to it.

use std::{
    cell::RefCell,
    io::{BufRead as _, BufReader, Read, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::mpsc::{Receiver, channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// A timeout that only a defect reaches; no test waits for it.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A token that appears in no other text.
pub const CANARY: &str = "MTk4NjIyNDgzNDcxOTI1MjQ4.canary.ZnCjm1XVW7vRze4b7Cq4se7kKWs";

/// Path of the program.
///
/// Cargo sets the variable for tests. A test binary that is started without cargo uses the program next to its directory.
pub fn executable() -> PathBuf {
    std::env::var_os("CARGO_BIN_EXE_guildhall").map_or_else(
        || std::env::current_exe().unwrap().parent().and_then(Path::parent).unwrap().join("guildhall"),
        PathBuf::from,
    )
}

/// The program, with an empty environment and its own working directory.
pub struct Guildhall {
    command: Command,
    folder: TempDir,
}

impl Guildhall {
    pub fn new(args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(executable());
        command.args(args).current_dir(folder.path()).env_clear();
        Self { command, folder }
    }

    /// Starts the program with this umask instead of the tests' umask.
    pub fn umask(mut self, umask: &str) -> Self {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("umask {umask} && exec \"$0\" \"$@\"")]);
        command.arg(self.command.get_program()).args(self.command.get_args());
        command.current_dir(self.folder.path()).env_clear();
        for (name, value) in self.command.get_envs() {
            command.env(name, value.unwrap());
        }
        self.command = command;
        self
    }

    /// `serve` with a token, a gateway, a free port and a JSON log.
    pub fn serve(gateway: &str) -> Self {
        Self::new(&["serve"])
            .env("GUILDHALL__DISCORD__TOKEN", CANARY)
            .env("GUILDHALL__DISCORD__GATEWAY_URL", gateway)
            .env("GUILDHALL__API__BIND", "127.0.0.1:0")
            .env("GUILDHALL__LOG__FORMAT", "json")
    }

    /// Runs it in this directory instead of its own.
    pub fn current_dir(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn env_remove(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    pub fn file(self, path: &str, text: &str) -> Self {
        let path = self.folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// Runs it until it exits.
    pub fn output(mut self) -> Output {
        self.command.output().unwrap()
    }

    pub fn spawn(mut self) -> RunningGuildhall {
        let mut child = self.command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = OutputLines::spawn_reader(child.stdout.take().unwrap());
        let stderr = OutputLines::spawn_reader(child.stderr.take().unwrap());
        RunningGuildhall { child, stdout, stderr, folder: self.folder }
    }
}

/// What the program writes to one of its outputs, line by line.
struct OutputLines {
    lines: Receiver<String>,
    seen_lines: RefCell<Vec<String>>,
    reader: Option<JoinHandle<String>>,
}

impl OutputLines {
    fn spawn_reader(output: impl Read + Send + 'static) -> Self {
        let (send, lines) = channel();
        let reader = std::thread::spawn(move || {
            let mut all = String::new();
            for line in BufReader::new(output).lines() {
                let line = line.unwrap();
                all.push_str(&line);
                all.push('\n');
                drop(send.send(line));
            }
            all
        });
        Self { lines, seen_lines: RefCell::default(), reader: Some(reader) }
    }

    fn wait(&self, description: &str, matches: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let line = self
                .lines
                .recv_timeout(remaining)
                .unwrap_or_else(|_| panic!("no line with {description:?} in\n{}", self.seen_lines.borrow().join("\n")));
            self.seen_lines.borrow_mut().push(line.clone());
            if matches(&line) {
                return line;
            }
        }
    }

    /// The complete output, after the program has exited.
    fn full_text(&mut self) -> String {
        self.reader.take().unwrap().join().unwrap()
    }
}

/// The running program.
pub struct RunningGuildhall {
    child: Child,
    stdout: OutputLines,
    stderr: OutputLines,
    folder: TempDir,
}

/// Exit code and complete output.
pub struct ExitedGuildhall {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl RunningGuildhall {
    /// Its working directory.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Waits for the next log line that contains this text.
    pub fn wait_for_log_line(&self, text: &str) -> String {
        self.stderr.wait(text, |line| line.contains(text))
    }

    /// Waits for the next line of standard output with this prefix, and returns the rest of that line.
    pub fn wait_for_stdout(&self, start: &str) -> String {
        let line = self.stdout.wait(start, |line| line.starts_with(start));
        line[start.len()..].to_owned()
    }

    /// Waits until the complete log has so many lines with this text.
    pub fn wait_for_log_lines(&self, text: &str, count: usize) {
        let matching = || self.stderr.seen_lines.borrow().iter().filter(|line| line.contains(text)).count();
        if matching() < count {
            self.stderr.wait(text, |_| matching() >= count);
        }
    }

    /// The address that it listens on, from its log.
    pub fn address(&self) -> SocketAddr {
        let line: serde_json::Value = serde_json::from_str(&self.wait_for_log_line("\"listening\"")).unwrap();
        line["address"].as_str().unwrap().parse().unwrap()
    }

    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Its resident memory in bytes, as Linux reports it.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1_024
    }

    /// Waits until it exits.
    pub fn wait_for_exit(mut self) -> ExitedGuildhall {
        let code = self.child.wait().unwrap().code();
        ExitedGuildhall { code, stdout: self.stdout.full_text(), stderr: self.stderr.full_text() }
    }
}

impl Drop for RunningGuildhall {
    fn drop(&mut self) {
        // A failed test must not leave it running. After a normal exit both calls do nothing.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// An HTTP response.
pub struct HttpResponse {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl HttpResponse {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

pub fn get(address: SocketAddr, path: &str) -> HttpResponse {
    request(address, &format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"))
}

/// Sends this text and reads until the server closes the connection.
pub fn request(address: SocketAddr, text: &str) -> HttpResponse {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).unwrap();
    let response = String::from_utf8(response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    HttpResponse { status, head: head.to_lowercase(), body: body.to_owned() }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs one ignored test of this test binary in a process of its own, for a test that measures its process. The name does
/// not contain the name of the binary.
pub fn run_in_its_own_process(test: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", test, "--ignored", "--nocapture"]).output().unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && stdout.contains("1 passed"), "{test}: {stdout}{stderr}");
}
