//! The mode of every file that the program creates, and the doctor's report on files with too wide a mode.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use guildhall_sim::SimConfig;
use guildhall_testkit::program::Guildhall;

use super::{DoctorReport, doctor, sim};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Everything below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            paths.extend(files_below(&path));
        }
        paths.push(path);
    }
    paths
}

/// Asserts that only the owner may read what is below a folder, and returns the names of the files.
#[track_caller]
fn private_files(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for path in files_below(folder) {
        assert_eq!(mode(&path), if path.is_dir() { 0o700 } else { 0o600 }, "{}", path.display());
        names.extend(path.is_file().then(|| path.file_name().unwrap().to_string_lossy().into_owned()));
    }
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_private_with_any_umask() {
    let sim = sim(SimConfig::default()).await;
    for umask in ["000", "022"] {
        let running = tokio::task::block_in_place(|| {
            let running = Guildhall::serve(&sim.gateway_url())
                .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
                .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
                .env("GUILDHALL__STORE__URL", "sqlite:data/inner/guildhall.db")
                .umask(umask)
                .spawn();
            running.wait_for_log_line("\"part is ready\",\"part\":\"gateway\"");
            running
        });
        let names = private_files(running.folder());
        let expected = ["admin.key", "guildhall.db", "guildhall.db-shm", "guildhall.db-wal", "guildhall.db.lock"];
        assert_eq!(names, expected, "umask {umask}");
        running.signal("TERM");
        assert_eq!(running.wait_for_exit().code, Some(0));
    }
}

#[test]
fn migrate_and_demo_create_private_files() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}/data/guildhall.db", folder.path().display());
    let migrated = Guildhall::new(&["migrate", "up"]).env("GUILDHALL__STORE__URL", &url).umask("000").output();
    assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
    assert_eq!(private_files(folder.path()), ["guildhall.db", "guildhall.db.lock"]);

    let folder = tempfile::tempdir().unwrap();
    let demo = Guildhall::new(&["demo", "--exit"]).env("TMPDIR", folder.path().to_str().unwrap());
    let demo = demo.env("GUILDHALL__API__BIND", "127.0.0.1:0").umask("000").spawn();
    demo.wait_for_stdout("Guildhall is at");
    let names = private_files(folder.path());
    assert!(names.contains(&"handlers.toml".to_owned()), "{names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_with_wide_modes_are_reported_with_a_fix() {
    let sim = sim(SimConfig::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}/guildhall.db", folder.path().display());
    let run_doctor = || DoctorReport::run(doctor(&sim, &["--guilds", "0"]).env("GUILDHALL__STORE__URL", &store));
    let file_findings = |report: &DoctorReport| -> Vec<(String, String, String)> {
        let checks = report.report["checks"].as_array().unwrap();
        let files = checks.iter().filter(|one| one["check"] == "files");
        let text = |one: &serde_json::Value, name: &str| one[name].as_str().unwrap_or_default().to_owned();
        files.map(|one| (text(one, "verdict"), text(one, "seen"), text(one, "advice"))).collect()
    };
    let migrated = Guildhall::new(&["migrate", "up"]).env("GUILDHALL__STORE__URL", &store).output();
    assert!(migrated.status.success());
    run_doctor().assert_check("files", "ok", "only their owner");

    let (database, key) = (folder.path().join("guildhall.db"), folder.path().join("admin.key"));
    fs::write(&key, "gh_admin_0123456789abcdef\n").unwrap();
    for (path, mode) in [(&database, 0o644), (&key, 0o640), (&folder.path().to_owned(), 0o770)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let report = run_doctor();
    let findings = file_findings(&report);
    assert_eq!(findings.len(), 3, "{findings:?}");
    let expected = [
        ("warn", format!("run: chmod 600 {}", database.display())),
        ("warn", format!("run: chmod 700 {}", folder.path().display())),
        ("fail", format!("run: chmod 600 {}", key.display())),
    ];
    for ((status, seen, advice), (expected_verdict, command)) in findings.iter().zip(&expected) {
        assert_eq!((status.as_str(), advice), (*expected_verdict, command), "{seen}");
    }
    assert_eq!(report.code, 1, "serve refuses such a key file");
    assert_eq!((mode(&database), mode(&key)), (0o644, 0o640), "the doctor changes nothing");
}
