use std::{
    collections::HashSet,
    io::{BufRead as _, BufReader, Read as _, Write},
    os::unix::fs::PermissionsExt as _,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use tempfile::TempDir;

use super::*;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn take(folder: &TempDir) -> ProcessLock {
    ProcessLock::take(&folder.path().join("42")).unwrap()
}

/// Releases a lock as the kernel does when its process dies. Returns its id.
fn release_as_dead(lock: ProcessLock) -> String {
    lock.id
}

fn files(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path().join("42")).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn each_process_has_its_own_private_lock_file_and_id() {
    let folder = folder();
    let locks: Vec<_> = (0..3).map(|_| take(&folder)).collect();
    assert_eq!(files(&folder), ["0.seat", "1.seat", "2.seat"]);
    let ids: HashSet<_> = locks.iter().map(ProcessLock::id).collect();
    let lives: HashSet<_> = locks.iter().map(ProcessLock::life).collect();
    assert_eq!((ids.len(), lives.len()), (3, 3));
    assert!(ids.iter().all(|id| is_id(id)), "{ids:?}");
    assert!(locks.iter().all(|lock| lock.dead_ids().is_empty()));
    let mode = |path: &str| fs::metadata(folder.path().join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("42"), mode("42/0.seat")), (0o700, 0o600));
}

#[test]
fn dead_ids_are_reported_until_forgotten() {
    let folder = folder();
    let first = take(&folder);
    let mut second = take(&folder);
    let dead = [release_as_dead(first)];
    assert_eq!(second.dead_ids(), dead);
    assert_eq!(second.dead_ids(), dead);
    second.forget(&dead);
    assert_eq!(second.dead_ids(), [""; 0]);
    assert_eq!(files(&folder), ["1.seat"]);
}

#[test]
fn reused_lock_file_has_a_new_id_and_reports_the_old_one() {
    let folder = folder();
    let first = release_as_dead(take(&folder));
    let mut second = take(&folder);
    assert_ne!(second.id(), first);
    assert_eq!(second.dead_ids(), [&*first]);
    second.forget(&[first]);
    assert_eq!(second.dead_ids(), [""; 0]);
    assert_eq!(files(&folder), ["0.seat"]);
}

#[test]
fn death_is_still_reported_if_its_reporter_dies() {
    let folder = folder();
    let first = release_as_dead(take(&folder));
    let second = release_as_dead(take(&folder));
    let mut third = take(&folder);
    assert_eq!(third.dead_ids(), [&*second, &*first]);
    third.forget(&[first]);
    assert_eq!(third.dead_ids(), [&*second]);
    third.release();
    assert_eq!(take(&folder).dead_ids(), [second]);
}

#[test]
fn lock_file_holds_at_most_the_maximum_of_ids() {
    let folder = folder();
    let ids: Vec<_> = (0..MAX_IDS + 5).map(|_| release_as_dead(take(&folder))).collect();
    let lock = take(&folder);
    let newest: Vec<_> = ids.iter().rev().take(MAX_IDS - 1).cloned().collect();
    assert_eq!(lock.dead_ids(), newest);
}

#[test]
fn released_lock_leaves_no_file() {
    let folder = folder();
    let stays = take(&folder);
    take(&folder).release();
    assert_eq!(stays.dead_ids(), [""; 0]);
    assert_eq!(files(&folder), ["0.seat"]);
}

#[test]
fn live_processes_are_never_forgotten() {
    let folder = folder();
    let first = take(&folder);
    let mut second = take(&folder);
    second.forget(&[first.id.clone(), second.id.clone()]);
    assert_eq!(files(&folder), ["0.seat", "1.seat"]);
    assert_eq!(second.dead_ids(), [""; 0]);
    let first = release_as_dead(first);
    assert_eq!(second.dead_ids(), [first]);
}

#[test]
fn file_without_an_id_reports_no_death() {
    let folder = folder();
    let lock = take(&folder);
    fs::write(folder.path().join("42/7.seat"), "none\n\u{0}\nABC\n").unwrap();
    fs::write(folder.path().join("42/note.txt"), "0123456789abcdef0123456789abcdef\n").unwrap();
    fs::create_dir(folder.path().join("42/8.seat")).unwrap();
    assert_eq!(lock.dead_ids(), [""; 0]);
}

#[test]
fn removed_lock_file_is_created_again() {
    let folder = folder();
    let first = take(&folder);
    fs::remove_file(folder.path().join("42/0.seat")).unwrap();
    let second = take(&folder);
    assert_eq!(files(&folder), ["0.seat"]);
    release_as_dead(first);
    assert_eq!(second.dead_ids(), [""; 0]);
}

#[test]
fn taking_a_lock_fails_if_all_files_are_taken() {
    let folder = folder();
    let locks: Vec<_> = (0..MAX_LOCK_FILES).map(|_| take(&folder)).collect();
    let error = ProcessLock::take(&folder.path().join("42")).unwrap_err();
    assert!(matches!(error, ProcessLockError::Full { .. }), "{error}");
    drop(locks);
}

#[test]
fn folder_writable_by_others_is_rejected() {
    let folder = folder();
    let open = folder.path().join("42");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let error = ProcessLock::take(&open).unwrap_err();
    assert!(matches!(error, ProcessLockError::Foreign { .. }), "{error}");

    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
    let metadata = fs::metadata(&open).unwrap();
    assert!(is_safe(&metadata, metadata.uid()));
    assert_eq!(is_safe(&metadata, metadata.uid() + 1), metadata.uid() == 0);
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn process_without_a_lock_file_continues_and_warns_once() {
    let folder = folder();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    let mut lock = tracing::subscriber::with_default(subscriber, || {
        let mut lock = ProcessLock::take_or_continue_without(&file.join("42"));
        assert_eq!(lock.dead_ids(), [""; 0]);
        lock.forget(&["0123456789abcdef0123456789abcdef".to_owned()]);
        lock
    });
    assert!(is_id(lock.id()));
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("redis.seat_dir") && text.contains(file.to_str().unwrap()), "{text}");
    lock.forget(&[]);
    lock.release();
}

#[test]
fn a_folder_belongs_to_one_application_and_one_user() {
    assert_eq!(ProcessLock::folder(Some(Path::new("/var/lib/seats")), 42), Path::new("/var/lib/seats/42"));
    let default = ProcessLock::folder(None, 42);
    assert!(default.starts_with(env::temp_dir()) && default.ends_with("42"), "{}", default.display());
    assert_ne!(default, ProcessLock::folder(None, 43));
    assert!(default.parent().unwrap().ends_with(format!("guildhall-seats-{}", user())));
}

/// Names the folder in which a child takes its lock file.
const CHILD_FOLDER_VARIABLE: &str = "GUILDHALL_TEST_SEAT_FOLDER";

/// Not a test: a process with a lock file, until it is killed.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn child() {
    let Some(folder) = env::var_os(CHILD_FOLDER_VARIABLE) else { return };
    let lock = ProcessLock::take(Path::new(&folder)).unwrap();
    println!("\nseat {}", lock.id());
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn spawn(folder: &TempDir) -> (Child, String) {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "redis::process_lock::tests::child", "--nocapture"])
        .env(CHILD_FOLDER_VARIABLE, folder.path().join("42"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let id = lines.into_iter().find_map(|line| line.strip_prefix("seat ").map(str::to_owned)).unwrap();
    (child, id)
}

#[test]
fn killed_process_is_detected_as_dead_at_once() {
    let folder = folder();
    let lock = take(&folder);
    let (mut one, one_id) = spawn(&folder);
    let (mut other, other_id) = spawn(&folder);
    assert_eq!(lock.dead_ids(), [""; 0]);
    one.kill().unwrap();
    one.wait().unwrap();
    assert_eq!(lock.dead_ids(), [&*one_id]);
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(lock.dead_ids(), [one_id, other_id]);
}

#[test]
fn live_processes_are_never_reported_dead_under_contention() {
    let folder = folder();
    let living = Mutex::new(HashSet::new());
    let come_and_go = |number: usize| {
        for round in 0..60_usize {
            let mut lock = take(&folder);
            living.lock().unwrap().insert(lock.id.clone());
            let dead = lock.dead_ids();
            {
                let living = living.lock().unwrap();
                assert!(dead.iter().all(|id| !living.contains(id)), "{dead:?} are not all dead: {living:?}");
            }
            if (round + number).is_multiple_of(3) {
                lock.forget(&dead);
            }
            living.lock().unwrap().remove(lock.id());
            if (round + number).is_multiple_of(2) {
                lock.release();
            } else {
                release_as_dead(lock);
            }
        }
    };
    thread::scope(|scope| {
        for number in 0..4 {
            scope.spawn(move || come_and_go(number));
        }
    });
}
