//! Support for tests of the real program: the program as a child process, and a gateway for it.

#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(dead_code, reason = "each test file uses its own part of this")]

pub(crate) mod gateway;

use std::{
    cell::RefCell,
    io::{BufRead as _, BufReader, Read, Write as _},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    sync::mpsc::{Receiver, channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// A timeout that only a defect reaches; no test waits for it.
pub(crate) const STUCK: Duration = Duration::from_secs(60);

/// A token that appears in no other text.
pub(crate) const CANARY: &str = "MTk4NjIyNDgzNDcxOTI1MjQ4.canary.ZnCjm1XVW7vRze4b7Cq4se7kKWs";

/// The program, with an empty environment and its own working directory.
pub(crate) struct Guildhall {
    command: Command,
    folder: TempDir,
}

impl Guildhall {
    pub(crate) fn new(args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_guildhall"));
        command.args(args).current_dir(folder.path()).env_clear();
        Self { command, folder }
    }

    /// Starts the program with this umask instead of the tests' umask.
    pub(crate) fn umask(mut self, umask: &str) -> Self {
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
    pub(crate) fn serve(gateway: &str) -> Self {
        Self::new(&["serve"])
            .env("GUILDHALL__DISCORD__TOKEN", CANARY)
            .env("GUILDHALL__DISCORD__GATEWAY_URL", gateway)
            .env("GUILDHALL__API__BIND", "127.0.0.1:0")
            .env("GUILDHALL__LOG__FORMAT", "json")
    }

    /// Runs it in this directory instead of its own.
    pub(crate) fn within(mut self, folder: &std::path::Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    pub(crate) fn file(self, path: &str, text: &str) -> Self {
        let path = self.folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// Runs it until it exits.
    pub(crate) fn output(mut self) -> Output {
        self.command.output().unwrap()
    }

    pub(crate) fn spawn(mut self) -> Running {
        let mut child = self.command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = Lines::of(child.stdout.take().unwrap());
        let stderr = Lines::of(child.stderr.take().unwrap());
        Running { child, stdout, stderr, folder: self.folder }
    }
}

/// What the program writes to one of its outputs, line by line.
struct Lines {
    lines: Receiver<String>,
    read: RefCell<Vec<String>>,
    reader: Option<JoinHandle<String>>,
}

impl Lines {
    fn of(output: impl Read + Send + 'static) -> Self {
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
        Self { lines, read: RefCell::default(), reader: Some(reader) }
    }

    fn wait(&self, what: &str, enough: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + STUCK;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self
                .lines
                .recv_timeout(left)
                .unwrap_or_else(|_| panic!("no line with {what:?} in\n{}", self.read.borrow().join("\n")));
            self.read.borrow_mut().push(line.clone());
            if enough(&line) {
                return line;
            }
        }
    }

    /// The complete output, after the program has exited.
    fn whole(&mut self) -> String {
        self.reader.take().unwrap().join().unwrap()
    }
}

/// The running program.
pub(crate) struct Running {
    child: Child,
    stdout: Lines,
    stderr: Lines,
    folder: TempDir,
}

/// Exit code and complete output.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Running {
    /// Its working directory.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Waits for the next log line that contains this text.
    pub(crate) fn line_with(&self, text: &str) -> String {
        self.stderr.wait(text, |line| line.contains(text))
    }

    /// Waits for the next line of standard output with this prefix, and returns the rest of that line.
    pub(crate) fn says(&self, start: &str) -> String {
        let line = self.stdout.wait(start, |line| line.starts_with(start));
        line[start.len()..].to_owned()
    }

    /// Waits until the complete log has so many lines with this text.
    pub(crate) fn lines_with(&self, text: &str, count: usize) {
        let held = || self.stderr.read.borrow().iter().filter(|line| line.contains(text)).count();
        if held() < count {
            self.stderr.wait(text, |_| held() >= count);
        }
    }

    /// The address that it listens on, from its log.
    pub(crate) fn address(&self) -> SocketAddr {
        let line: serde_json::Value = serde_json::from_str(&self.line_with("\"listening\"")).unwrap();
        line["address"].as_str().unwrap().parse().unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Waits until it exits.
    pub(crate) fn end(mut self) -> Ended {
        let code = self.child.wait().unwrap().code();
        Ended { code, stdout: self.stdout.whole(), stderr: self.stderr.whole() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A failed test must not leave it running. After a normal exit both calls do nothing.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// An HTTP response.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Answer {
    request(address, &format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"))
}

/// Sends this text and reads until the server closes the connection.
pub(crate) fn request(address: SocketAddr, text: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(STUCK)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
