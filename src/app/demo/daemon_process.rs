//! The daemon as a process of its own, so that it can be killed in the middle of its work.

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

/// How often somebody looks whether it has ended.
const LOOK: Duration = Duration::from_millis(20);
/// Ports that the system gives to nobody who does not ask for them, so that one which is free now still is in a moment.
const PORTS: std::ops::Range<u16> = 30_000..32_000;
/// How many of them are tried.
const TRIES: usize = 100;

/// How the worker is started, each time.
#[derive(Debug)]
pub(super) struct DaemonCommand {
    program: PathBuf,
    file: Option<PathBuf>,
    /// Settings that it is given, whatever this process's own environment says.
    settings: Vec<(String, SecretValue)>,
}

impl DaemonCommand {
    /// This program's own `serve`, with the settings file that was named, if one was.
    pub(super) fn new(file: Option<PathBuf>) -> io::Result<Self> {
        Ok(Self { program: std::env::current_exe()?, file, settings: Vec::new() })
    }

    /// Sets a setting, a dotted path. The last word counts.
    pub(super) fn set(&mut self, path: &str, value: impl Into<String>) {
        self.settings.push((environment_name(path), SecretValue::new(value)));
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["serve", "--until-input-ends"]);
        if let Some(file) = &self.file {
            command.arg("--config").arg(file);
        }
        for (name, value) in &self.settings {
            // A secret may be given as itself or as a file, and not as both.
            command.env_remove(format!("{name}_FILE")).env(name, value.expose());
        }
        // It ends when its input does, so it does not outlive whoever started it, however that one ends. A group of its own:
        // Ctrl-C is for the demo, which then ends it in order.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        command
    }
}

/// The running worker. Dropping it kills it.
#[derive(Debug)]
pub(super) struct DaemonProcess {
    recipe: DaemonCommand,
    child: Mutex<Child>,
}

impl DaemonProcess {
    pub(super) fn start(recipe: DaemonCommand) -> io::Result<Self> {
        let child = Mutex::new(recipe.command().spawn()?);
        Ok(Self { recipe, child })
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn id(&self) -> u32 {
        self.child().id()
    }

    /// How it ended, if it has.
    pub(super) fn ended(&self) -> Option<ExitStatus> {
        self.child().try_wait().ok().flatten()
    }

    /// Kills it as `kill -9` does, and waits until it is gone.
    pub(super) fn kill(&self) -> io::Result<()> {
        let mut child = self.child();
        child.kill()?;
        child.wait().map(drop)
    }

    /// Starts it again, with what its store holds.
    pub(super) fn start_again(&self) -> io::Result<()> {
        let fresh = self.recipe.command().spawn()?;
        *self.child() = fresh;
        Ok(())
    }

    /// Waits until it ends.
    pub(super) async fn end(&self) -> ExitStatus {
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            sleep(LOOK).await;
        }
    }

    /// Lets it end in order; `None` if that takes too long, and it is killed.
    pub(super) async fn stop(self, within: Duration) -> Option<ExitStatus> {
        drop(self.child().stdin.take());
        tokio::time::timeout_at(Instant::now() + within, self.end()).await.ok()
    }
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        // After its end, both do nothing.
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(child.kill());
        drop(child.wait());
    }
}

/// An address that the worker can have: the one that is set, with a free port if any will do.
pub(super) fn free_address(bind: SocketAddr) -> Result<SocketAddr, BindError> {
    if bind.port() != 0 {
        // Taken and let go of: if it cannot be had, that is said here, and not by a process that nobody asked for.
        return api::bind(bind).map(|_| bind);
    }
    for _ in 0..TRIES {
        let candidate = SocketAddr::new(bind.ip(), fastrand::u16(PORTS));
        if api::bind(candidate).is_ok() {
            return Ok(candidate);
        }
    }
    api::bind(bind).map(|bound| bound.address())
}

/// Where a process that listens there can be reached: over the loopback address, if it listens on every one.
pub(super) fn reachable(bind: SocketAddr) -> SocketAddr {
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
    fn a_setting_wins_over_both_forms_in_the_environment() {
        let mut recipe = DaemonCommand::new(Some("here.toml".into())).unwrap();
        recipe.set("redis.url", "redis://127.0.0.1");
        recipe.set("redis.url", "redis://127.0.0.2");
        let command = recipe.command();
        let set: Vec<_> = command.get_envs().map(|(name, value)| (name.to_str().unwrap(), value)).collect();
        assert_eq!(
            set,
            [("GUILDHALL__REDIS__URL", Some("redis://127.0.0.2".as_ref())), ("GUILDHALL__REDIS__URL_FILE", None)]
        );
        let args: Vec<_> = command.get_args().collect();
        assert_eq!(args, ["serve", "--until-input-ends", "--config", "here.toml"]);
        assert!(!format!("{recipe:?}").contains("127.0.0.2"), "a setting may be a secret");
    }

    #[test]
    fn a_port_that_is_taken_is_refused_and_any_other_will_do() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let error = free_address(taken.local_addr().unwrap()).unwrap_err();
        assert!(error.to_string().contains("another process holds that port"), "{error}");
        assert_ne!(free_address("127.0.0.1:0".parse().unwrap()).unwrap().port(), 0);
    }
}
