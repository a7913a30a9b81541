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
fn die(seat: ProcessLock) -> String {
    seat.id
}

fn files(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path().join("42")).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn each_process_has_a_seat_and_an_id_of_its_own_and_only_its_user_sees_them() {
    let folder = folder();
    let seats: Vec<_> = (0..3).map(|_| take(&folder)).collect();
    assert_eq!(files(&folder), ["0.seat", "1.seat", "2.seat"]);
    let ids: HashSet<_> = seats.iter().map(ProcessLock::id).collect();
    let lives: HashSet<_> = seats.iter().map(ProcessLock::life).collect();
    assert_eq!((ids.len(), lives.len()), (3, 3));
    assert!(ids.iter().all(|id| is_id(id)), "{ids:?}");
    assert!(seats.iter().all(|seat| seat.dead().is_empty()));
    let mode = |path: &str| fs::metadata(folder.path().join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("42"), mode("42/0.seat")), (0o700, 0o600));
}

#[test]
fn the_dead_are_told_of_until_everybody_knows() {
    let folder = folder();
    let first = take(&folder);
    let mut second = take(&folder);
    let dead = [die(first)];
    assert_eq!(second.dead(), dead);
    assert_eq!(second.dead(), dead);
    second.forget(&dead);
    assert_eq!(second.dead(), [""; 0]);
    assert_eq!(files(&folder), ["1.seat"]);
}

#[test]
fn whoever_takes_a_dead_ones_seat_has_a_new_id_and_tells_of_the_old_one() {
    let folder = folder();
    let first = die(take(&folder));
    let mut second = take(&folder);
    assert_ne!(second.id(), first);
    assert_eq!(second.dead(), [&*first]);
    second.forget(&[first]);
    assert_eq!(second.dead(), [""; 0]);
    assert_eq!(files(&folder), ["0.seat"]);
}

#[test]
fn a_death_is_not_lost_with_the_one_that_should_have_told_of_it() {
    let folder = folder();
    let first = die(take(&folder));
    let second = die(take(&folder));
    let mut third = take(&folder);
    assert_eq!(third.dead(), [&*second, &*first]);
    third.forget(&[first]);
    assert_eq!(third.dead(), [&*second]);
    third.leave();
    assert_eq!(take(&folder).dead(), [second]);
}

#[test]
fn a_seat_holds_no_more_ids_than_its_bound() {
    let folder = folder();
    let ids: Vec<_> = (0..MOST_IDS + 5).map(|_| die(take(&folder))).collect();
    let seat = take(&folder);
    let newest: Vec<_> = ids.iter().rev().take(MOST_IDS - 1).cloned().collect();
    assert_eq!(seat.dead(), newest);
}

#[test]
fn whoever_says_goodbye_leaves_nothing() {
    let folder = folder();
    let stays = take(&folder);
    take(&folder).leave();
    assert_eq!(stays.dead(), [""; 0]);
    assert_eq!(files(&folder), ["0.seat"]);
}

#[test]
fn nobody_forgets_the_living() {
    let folder = folder();
    let first = take(&folder);
    let mut second = take(&folder);
    second.forget(&[first.id.clone(), second.id.clone()]);
    assert_eq!(files(&folder), ["0.seat", "1.seat"]);
    assert_eq!(second.dead(), [""; 0]);
    let first = die(first);
    assert_eq!(second.dead(), [first]);
}

#[test]
fn a_file_that_holds_no_id_is_nobodys_death() {
    let folder = folder();
    let seat = take(&folder);
    fs::write(folder.path().join("42/7.seat"), "none\n\u{0}\nABC\n").unwrap();
    fs::write(folder.path().join("42/note.txt"), "0123456789abcdef0123456789abcdef\n").unwrap();
    fs::create_dir(folder.path().join("42/8.seat")).unwrap();
    assert_eq!(seat.dead(), [""; 0]);
}

#[test]
fn a_seat_that_is_removed_while_somebody_sits_there_is_made_anew() {
    let folder = folder();
    let first = take(&folder);
    fs::remove_file(folder.path().join("42/0.seat")).unwrap();
    let second = take(&folder);
    assert_eq!(files(&folder), ["0.seat"]);
    die(first);
    assert_eq!(second.dead(), [""; 0]);
}

#[test]
fn all_seats_may_be_taken() {
    let folder = folder();
    let seats: Vec<_> = (0..SEATS).map(|_| take(&folder)).collect();
    let error = ProcessLock::take(&folder.path().join("42")).unwrap_err();
    assert!(matches!(error, ProcessLockError::Full { .. }), "{error}");
    drop(seats);
}

#[test]
fn a_folder_that_others_may_write_to_is_not_used() {
    let folder = folder();
    let open = folder.path().join("42");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let error = ProcessLock::take(&open).unwrap_err();
    assert!(matches!(error, ProcessLockError::Foreign { .. }), "{error}");

    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
    let about = fs::metadata(&open).unwrap();
    assert!(is_safe(&about, about.uid()));
    assert_eq!(is_safe(&about, about.uid() + 1), about.uid() == 0);
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
fn a_process_that_finds_no_seat_goes_on_without_and_says_so_once() {
    let folder = folder();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    let mut seat = tracing::subscriber::with_default(subscriber, || {
        let mut seat = ProcessLock::take_or_do_without(&file.join("42"));
        assert_eq!(seat.dead(), [""; 0]);
        seat.forget(&["0123456789abcdef0123456789abcdef".to_owned()]);
        seat
    });
    assert!(is_id(seat.id()));
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("redis.seat_dir") && text.contains(file.to_str().unwrap()), "{text}");
    seat.forget(&[]);
    seat.leave();
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
const CHILD: &str = "GUILDHALL_TEST_SEAT_FOLDER";

/// Not a test: a process with a lock file, until it is killed.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn child() {
    let Some(folder) = env::var_os(CHILD) else { return };
    let seat = ProcessLock::take(Path::new(&folder)).unwrap();
    println!("\nseat {}", seat.id());
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn spawn(folder: &TempDir) -> (Child, String) {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "redis::process_lock::tests::child", "--nocapture"])
        .env(CHILD, folder.path().join("42"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let id = lines.into_iter().find_map(|line| line.strip_prefix("seat ").map(str::to_owned)).unwrap();
    (child, id)
}

#[test]
fn a_process_that_is_killed_is_known_to_be_dead_at_once() {
    let folder = folder();
    let seat = take(&folder);
    let (mut one, one_id) = spawn(&folder);
    let (mut other, other_id) = spawn(&folder);
    assert_eq!(seat.dead(), [""; 0]);
    one.kill().unwrap();
    one.wait().unwrap();
    assert_eq!(seat.dead(), [&*one_id]);
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(seat.dead(), [one_id, other_id]);
}

#[test]
fn however_many_come_and_go_at_once_nobody_who_lives_is_told_dead() {
    let folder = folder();
    let living = Mutex::new(HashSet::new());
    let come_and_go = |number: usize| {
        for round in 0..60_usize {
            let mut seat = take(&folder);
            living.lock().unwrap().insert(seat.id.clone());
            let dead = seat.dead();
            {
                let living = living.lock().unwrap();
                assert!(dead.iter().all(|id| !living.contains(id)), "{dead:?} are not all dead: {living:?}");
            }
            if (round + number).is_multiple_of(3) {
                seat.forget(&dead);
            }
            living.lock().unwrap().remove(seat.id());
            if (round + number).is_multiple_of(2) {
                seat.leave();
            } else {
                die(seat);
            }
        }
    };
    thread::scope(|scope| {
        for number in 0..4 {
            scope.spawn(move || come_and_go(number));
        }
    });
}
