//! `guildhall doctor`, with a simulated Discord, real engines and a real Redis.

mod admin_key;
mod discord;
mod files;
mod handlers;
mod storage;

use std::process::Output;

use guildhall_sim::{Sim, SimConfig, SimHandle};
use guildhall_testkit::program::Guildhall;
use serde_json::Value;

/// A simulated Discord.
async fn sim(config: SimConfig) -> SimHandle {
    Sim::start(config).await.unwrap()
}

/// The doctor, with a token that this Discord accepts, and no running daemon.
fn doctor(sim: &SimHandle, args: &[&str]) -> Guildhall {
    Guildhall::new(&[&["doctor", "-o", "json"], args].concat())
        .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
        .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
        .env("GUILDHALL__API__BIND", "127.0.0.1:1")
}

/// The report of the doctor.
struct DoctorReport {
    code: i32,
    report: Value,
    raw: String,
}

impl DoctorReport {
    fn from_output(output: &Output) -> Self {
        let raw = String::from_utf8(output.stdout.clone()).unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        let report = serde_json::from_str(&raw).unwrap_or_else(|error| panic!("{error}: {raw} {stderr}"));
        Self { code: output.status.code().unwrap(), report, raw }
    }

    fn run(program: Guildhall) -> Self {
        Self::from_output(&tokio::task::block_in_place(|| program.output()))
    }

    /// The first finding of a check: its verdict, what was seen, and the advice.
    #[track_caller]
    fn check(&self, name: &str) -> (&str, &str, &str) {
        let checks = self.report["checks"].as_array().unwrap();
        let finding =
            checks.iter().find(|one| one["check"] == name).unwrap_or_else(|| panic!("no {name} in {}", self.raw));
        let text = |field: &str| finding[field].as_str().unwrap_or_default();
        (text("verdict"), text("seen"), text("advice"))
    }

    #[track_caller]
    fn assert_check(&self, name: &str, status: &str, seen: &str) {
        let (actual, actual_seen, _) = self.check(name);
        assert!(actual == status && actual_seen.contains(seen), "{name}: {actual}, {actual_seen}");
    }
}
