//! The unit of `config/systemd`: its settings, paths and command are valid for this version.

use std::{fs, path::Path, process::Command};

use guildhall_testkit::program::{CANARY, Guildhall, executable};

const UNIT: &str = include_str!("../../config/systemd/guildhall.service");
const SETTINGS: &str = include_str!("../../config/guildhall.toml");
const SETTINGS_PATH: &str = "/etc/guildhall/guildhall.toml";

/// The values of a directive, in order.
fn values(name: &str) -> Vec<&'static str> {
    UNIT.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).collect()
}

/// The only value of a directive.
fn value(name: &str) -> &'static str {
    let values = values(name);
    assert_eq!(values.len(), 1, "{name}: {values:?}");
    values[0]
}

#[test]
fn unit_starts_the_daemon_with_valid_settings() {
    let command: Vec<&str> = value("ExecStart").split(' ').collect();
    assert_eq!(command[1..], ["--config", SETTINGS_PATH, "serve"], "docs/operating.md names them");
    let mut check = Guildhall::new(&["--config", "guildhall.toml", "config", "check"])
        .file("guildhall.toml", SETTINGS)
        .file("token", CANARY);
    let credentials = check.path("").display().to_string();
    for variable in values("Environment") {
        let (name, value) = variable.split_once('=').unwrap();
        check = check.env(name, &value.replace("%d", credentials.trim_end_matches('/')));
    }
    assert_eq!(value("LoadCredential"), "token:/etc/guildhall/token");
    let output = check.output();
    let (shown, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{errors}");
    for line in ["discord.token", "log.format"] {
        let line = shown.lines().find(|shown| shown.contains(line)).unwrap_or_else(|| panic!("no {line} in {shown}"));
        assert!(line.contains("GUILDHALL__"), "set by the unit: {line}");
    }
    assert!(!shown.contains(CANARY));
}

#[test]
fn unit_waits_longer_than_the_shutdown_and_always_restarts() {
    let seconds: u64 = value("TimeoutStopSec").parse().unwrap();
    let section = SETTINGS.split("[shutdown]").nth(1).unwrap();
    let timeout: u64 = section.lines().find_map(|line| line.strip_prefix("#timeout_ms = ")).unwrap().parse().unwrap();
    assert!(seconds * 1_000 > timeout, "{timeout} ms");
    assert_eq!(value("Restart"), "always");
    assert_eq!(value("WorkingDirectory"), format!("/var/lib/{}", value("StateDirectory")));
}

#[test]
fn unit_is_valid_for_systemd() {
    let has_systemd = ["/usr/bin", "/bin"].iter().any(|folder| Path::new(folder).join("systemd-analyze").exists());
    if !has_systemd {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("guildhall.service");
    // The installed program may not exist here.
    fs::write(&unit, UNIT.replace("/usr/local/bin/guildhall", executable().to_str().unwrap())).unwrap();
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    let own: Vec<&str> = errors.lines().filter(|line| line.contains("guildhall.service")).collect();
    assert!(own.is_empty(), "{errors}");
}
