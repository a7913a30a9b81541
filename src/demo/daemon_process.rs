//! The daemon as a separate process, so that it can be killed while it is working.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use crate::{
    api::{self, BindError},
    settings::{SecretValue, environment_name},
};

/// Interval between two checks whether it has exited.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Ports that the system does not assign by itself, so that a free one stays free.
const PORTS: std::ops::Range<u16> = 30_000..32_000;
/// Maximum number of ports that are tried.
const MAX_TRIES: usize = 100;

/// The command line and settings of the daemon process, used for each start.
#[derive(Debug)]
pub(crate) struct DaemonCommand {
    program: PathBuf,
    file: Option<PathBuf>,
    /// Settings that override the environment of this process.
    settings: Vec<(String, SecretValue)>,
}

impl DaemonCommand {
    /// This program's own `serve`, with the settings file, if one was given.
    pub(crate) fn new(file: Option<PathBuf>) -> io::Result<Self> {
        Ok(Self { program: std::env::current_exe()?, file, settings: Vec::new() })
    }

    /// Sets a setting by its dotted path. The last value wins.
    pub(crate) fn set(&mut self, path: &str, value: impl Into<String>) {
        self.settings.push((environment_name(path), SecretValue::new(value)));
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["serve", "--until-input-ends"]);
        if let Some(file) = &self.file {
            command.arg("--config").arg(file);
        }
        for (name, value) in &self.settings {
            // A secret may be given as a value or as a file, but not as both.
            command.env_remove(format!("{name}_FILE")).env(name, value.expose());
        }
        // It exits when its input ends, so it does not outlive the demo, however the demo ends. It has its own process
        // group: Ctrl-C is for the demo, which then stops it in order.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        command
    }
}

/// The running daemon. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct DaemonProcess {
    daemon_command: DaemonCommand,
    child: Mutex<Child>,
}

impl DaemonProcess {
    pub(crate) fn start(daemon_command: DaemonCommand) -> io::Result<Self> {
        let child = Mutex::new(daemon_command.command().spawn()?);
        Ok(Self { daemon_command, child })
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child().id()
    }

    /// Its exit status, if it has exited.
    pub(crate) fn try_exit_status(&self) -> Option<ExitStatus> {
        self.child().try_wait().ok().flatten()
    }

    /// Kills it as `kill -9` does, and waits until it has exited.
    pub(crate) fn kill(&self) -> io::Result<()> {
        let mut child = self.child();
        child.kill()?;
        child.wait().map(drop)
    }

    /// Starts it again, with the same store.
    pub(crate) fn restart(&self) -> io::Result<()> {
        let child = self.daemon_command.command().spawn()?;
        *self.child() = child;
        Ok(())
    }

    /// Waits until it exits.
    pub(crate) async fn exit_status(&self) -> ExitStatus {
        loop {
            if let Some(status) = self.try_exit_status() {
                return status;
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Stops it in order; `None` if that takes too long, and it is killed.
    pub(crate) async fn stop(self, timeout: Duration) -> Option<ExitStatus> {
        drop(self.child().stdin.take());
        tokio::time::timeout_at(Instant::now() + timeout, self.exit_status()).await.ok()
    }
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        // After its exit, both do nothing.
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(child.kill());
        drop(child.wait());
    }
}

/// An address for the daemon: the given one, or a free port of it if the port is 0.
pub(crate) fn free_address(bind: SocketAddr) -> Result<SocketAddr, BindError> {
    if bind.port() != 0 {
        // Bound and released: if it is not available, the error is reported here, and not by the daemon process.
        return api::bind(bind).map(|_| bind);
    }
    for _ in 0..MAX_TRIES {
        let candidate = SocketAddr::new(bind.ip(), fastrand::u16(PORTS));
        if api::bind(candidate).is_ok() {
            return Ok(candidate);
        }
    }
    api::bind(bind).map(|bound| bound.address())
}

/// The address at which a listener can be reached: the loopback address, if it listens on all addresses.
pub(crate) fn reachable_address(bind: SocketAddr) -> SocketAddr {
    let ip = match bind.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, bind.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_overrides_both_forms_in_the_environment() {
        let mut daemon_command = DaemonCommand::new(Some("here.toml".into())).unwrap();
        daemon_command.set("redis.url", "redis://127.0.0.1");
        daemon_command.set("redis.url", "redis://127.0.0.2");
        let command = daemon_command.command();
        let set: Vec<_> = command.get_envs().map(|(name, value)| (name.to_str().unwrap(), value)).collect();
        assert_eq!(
            set,
            [("GUILDHALL__REDIS__URL", Some("redis://127.0.0.2".as_ref())), ("GUILDHALL__REDIS__URL_FILE", None)]
        );
        let args: Vec<_> = command.get_args().collect();
        assert_eq!(args, ["serve", "--until-input-ends", "--config", "here.toml"]);
        assert!(!format!("{daemon_command:?}").contains("127.0.0.2"), "a setting may be a secret");
    }

    #[test]
    fn used_port_is_an_error_and_port_zero_finds_a_free_one() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let error = free_address(taken.local_addr().unwrap()).unwrap_err();
        assert!(error.to_string().contains("another process holds that port"), "{error}");
        assert_ne!(free_address("127.0.0.1:0".parse().unwrap()).unwrap().port(), 0);
    }
}
