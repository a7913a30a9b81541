//! The generated admin key of processes that share a PostgreSQL.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use guildhall_sim::{SimConfig, SimHandle};
use guildhall_testkit::{
    postgres,
    program::{Guildhall, HttpResponse, RunningGuildhall, request},
};
use tempfile::TempDir;

use super::{DoctorReport, doctor, sim};

/// A daemon without `api.admin_key` that runs in a folder.
fn start(sim: &SimHandle, store: &str, folder: &Path) -> RunningGuildhall {
    Guildhall::serve(&sim.gateway_url())
        .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
        .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
        .env("GUILDHALL__STORE__URL", store)
        .current_dir(folder)
        .spawn()
}

fn request_with(address: SocketAddr, key: &str) -> HttpResponse {
    let head = format!("GET /v1/operations HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {key}");
    request(address, &format!("{head}\r\n\r\n"))
}

/// Whether a key is accepted, also by a daemon that is not ready yet.
fn accepts(address: SocketAddr, key: &str) -> bool {
    let response = request_with(address, key);
    match response.status {
        200 | 503 => true,
        401 | 429 => false,
        _ => panic!("{}: {}", response.status, response.body),
    }
}

/// Waits until a process accepts the new key. Then it must refuse the old one.
fn wait_for_new_key(address: SocketAddr, old: &str, new: &str) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !accepts(address, new) {
        assert!(Instant::now() < deadline, "a new admin key is accepted within 5 s");
    }
    assert!(!accepts(address, old));
}

fn key_in(folder: &TempDir) -> Option<String> {
    fs::read_to_string(folder.path().join("data/admin.key")).ok().map(|key| key.trim().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_share_a_store_accept_one_generated_key() {
    let sim = sim(SimConfig::default()).await;
    let url = postgres::shared().create_database().await;
    tokio::task::block_in_place(|| {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let daemons = folders.each_ref().map(|folder| start(&sim, &url, folder.path()));
        let addresses = daemons.each_ref().map(RunningGuildhall::address);
        let lines = daemons.each_ref().map(|daemon| daemon.wait_for_log_line("api.admin_key is not set"));
        let keys = folders.each_ref().map(key_in);
        let owner = keys.iter().position(Option::is_some).unwrap();
        let other = 1 - owner;
        assert!(keys[other].is_none(), "one of them generates a key: {lines:?}");
        let key = keys[owner].clone().unwrap();
        assert!(addresses.iter().all(|address| accepts(*address, &key)));
        let file = fs::canonicalize(folders[owner].path()).unwrap().join("data/admin.key").display().to_string();
        assert!(lines[other].contains("by another process") && lines[other].contains(&file), "{}", lines[other]);
        let refused = request_with(addresses[other], "gh_admin_which-is-wrong");
        assert!(refused.status == 401 && refused.body.contains("api.admin_key_file"), "{}", refused.body);

        // A machine without the file.
        let found = DoctorReport::run(doctor(&sim, &["--guilds", "0"]).env("GUILDHALL__STORE__URL", &url));
        let (status, seen, advice) = found.check("admin key");
        assert!(status == "warn" && seen.contains(&file) && advice.contains("api.admin_key_file"), "{seen} {advice}");
        let on_owner =
            doctor(&sim, &["--guilds", "0"]).env("GUILDHALL__STORE__URL", &url).current_dir(folders[owner].path());
        DoctorReport::run(on_owner).assert_check("admin key", "ok", "shared by all processes");

        // Rotation: delete the file and restart.
        let mut daemons = daemons.map(Some);
        let stopped = daemons[owner].take().unwrap();
        stopped.signal("TERM");
        assert_eq!(stopped.wait_for_exit().code, Some(0));
        fs::remove_file(folders[owner].path().join("data/admin.key")).unwrap();
        let restarted = start(&sim, &url, folders[owner].path());
        let address = restarted.address();
        let new = key_in(&folders[owner]).unwrap();
        assert_ne!(new, key);
        assert!(accepts(address, &new) && !accepts(address, &key));
        wait_for_new_key(addresses[other], &key, &new);

        // Also without a restart, from any machine that reaches the store.
        let third = tempfile::tempdir().unwrap();
        let rotated = Guildhall::new(&["keys", "rotate-admin"])
            .env("GUILDHALL__STORE__URL", &url)
            .current_dir(third.path())
            .output();
        assert!(rotated.status.success(), "{}", String::from_utf8_lossy(&rotated.stderr));
        let newest = key_in(&third).unwrap();
        for address in [address, addresses[other]] {
            wait_for_new_key(address, &new, &newest);
        }
        // The outdated key file is reported by its process and by the doctor.
        let on_owner =
            doctor(&sim, &["--guilds", "0"]).env("GUILDHALL__STORE__URL", &url).current_dir(folders[owner].path());
        DoctorReport::run(on_owner).assert_check("admin key", "warn", "is not accepted");
        drop(restarted);
        let again = start(&sim, &url, folders[owner].path());
        let address = again.address();
        again.wait_for_log_line("admin key file ignored");
        assert!(accepts(address, &newest));
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn key_of_a_file_store_is_only_in_its_file() {
    let sim = sim(SimConfig::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}/guildhall.db", folder.path().display());
    tokio::task::block_in_place(|| {
        let run_doctor = || DoctorReport::run(doctor(&sim, &["--guilds", "0"]).env("GUILDHALL__STORE__URL", &url));
        run_doctor().assert_check("admin key", "ok", "generates one");
        let refused = Guildhall::new(&["keys", "rotate-admin"]).env("GUILDHALL__STORE__URL", &url).output();
        let message = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && message.contains("delete") && message.contains("admin.key"), "{message}");
        let set = doctor(&sim, &["--guilds", "0"]).env("GUILDHALL__API__ADMIN_KEY", "gh_test_0123456789");
        DoctorReport::run(set).assert_check("admin key", "ok", "api.admin_key is set");
    });
}
