use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use actix::{Actor, Context, Handler, Message};
use tokio::task::LocalSet;

use super::exit::Exit;
use super::*;

/// Long enough that only a defect takes longer.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A supervision that does not end the process, and its exit codes.
fn supervision() -> (Supervision, Receiver<i32>) {
    let (sender, exits) = channel();
    let exit = Exit::call(move |code| {
        let _ = sender.send(code);
    });
    (Supervision::start(exit).unwrap(), exits)
}

fn guard(supervision: &Supervision, part: Part) -> PartGuard {
    PartGuard::of(Some(supervision.clone()), part, Lifetime::Process)
}

/// The end that is reported last before the process exits.
fn last_announced(supervision: &Supervision) -> Arc<Mutex<Option<PartEnd>>> {
    let last = Arc::new(Mutex::new(None));
    let recorded = Arc::clone(&last);
    supervision.on_part_end(move |end| *lock(&recorded) = Some(end.clone()));
    last
}

#[test]
fn return_drop_and_panic_are_noticed_with_their_cause() {
    type End = fn(PartGuard);
    let cases: [(&str, End); 3] = [
        ("sweeper returned: no more work", |guard| guard.returned(Some("no more work".to_owned()))),
        ("sweeper was dropped", drop),
        ("sweeper panicked", |guard| {
            let thread = std::thread::spawn(move || {
                let _guard = guard;
                panic!("on purpose");
            });
            assert!(thread.join().is_err());
        }),
    ];
    for (expected, end) in cases {
        let (supervision, exits) = supervision();
        let last = last_announced(&supervision);
        end(guard(&supervision, Part::Sweeper));
        assert_eq!(exits.recv_timeout(TEST_TIMEOUT), Ok(1), "{expected}");
        let message = lock(&last).take().unwrap().to_string();
        assert!(message.starts_with(expected), "{message}, not {expected}");
    }
}

#[test]
fn orderly_shutdown_ends_parts_and_not_the_process() {
    let (supervision, exits) = supervision();
    let (forever, finite) = (
        guard(&supervision, Part::Sweeper),
        PartGuard::of(Some(supervision.clone()), Part::Identify, Lifetime::Finite),
    );
    drop(finite);
    supervision.begin_shutdown();
    drop(forever);
    guard(&supervision, Part::Budgets).finish();
    assert_eq!(supervision.registry().on_ended(Part::Main), EndAction::Expected, "nothing ends the process yet");
    assert!(exits.try_recv().is_err());
}

#[test]
fn a_finite_part_ends_the_process_only_by_a_panic() {
    let (supervision, exits) = supervision();
    let (sender, announced) = channel();
    supervision.on_part_end(move |end| {
        let _ = sender.send(end.clone());
    });
    let finite = || PartGuard::of(Some(supervision.clone()), Part::Identify, Lifetime::Finite);
    finite().returned(None);
    finite().finish();
    let panics = finite();
    let thread = std::thread::spawn(move || {
        let _guard = panics;
        panic!("on purpose");
    });
    assert!(thread.join().is_err());
    assert_eq!(exits.recv_timeout(TEST_TIMEOUT), Ok(1));
    let announced: Vec<_> = announced.try_iter().collect();
    assert!(matches!(&announced[..], [PartEnd { cause: EndCause::Panicked(_), .. }]), "{announced:?}");
}

#[test]
fn exit_hooks_run_before_the_exit_and_know_its_cause() {
    let (supervision, exits) = supervision();
    let (sender, steps) = channel();
    for step in 0..2 {
        let sender = sender.clone();
        supervision.before_exit(move |end| async move {
            let _ = sender.send((step, end.part));
        });
    }
    drop(guard(&supervision, Part::StoreWriter));
    assert_eq!(exits.recv_timeout(TEST_TIMEOUT), Ok(1));
    assert_eq!(steps.try_iter().collect::<Vec<_>>(), [(0, Part::StoreWriter), (1, Part::StoreWriter)]);
}

#[test]
fn exit_hook_that_hangs_or_panics_does_not_stop_the_exit() {
    let (supervision, exits) = supervision();
    supervision.before_exit(|_| std::future::pending());
    drop(guard(&supervision, Part::Heartbeat));
    assert_eq!(exits.recv_timeout(TEST_TIMEOUT), Ok(1));
    assert_eq!(exits.recv_timeout(TEST_TIMEOUT), Ok(1), "the watchdog does not depend on the other thread");

    let (supervision, exits) = self::supervision();
    supervision.on_part_end(|_| panic!("on purpose"));
    supervision.before_exit(|_| async { panic!("on purpose") });
    drop(guard(&supervision, Part::Heartbeat));
    assert_eq!(exits.recv_timeout(TEST_TIMEOUT), Ok(1));
}

#[test]
fn panic_is_reported_although_a_dependent_end_came_first() {
    let (supervision, exits) = supervision();
    let last = last_announced(&supervision);
    let (first, second) = (guard(&supervision, Part::GateSnapshot), guard(&supervision, Part::TokenBucket));
    let thread = std::thread::spawn(move || {
        let _guard = second;
        // While this thread unwinds, a part that waited for it returns.
        first.returned(None);
        panic!("on purpose");
    });
    assert!(thread.join().is_err());
    assert_eq!(exits.recv_timeout(TEST_TIMEOUT), Ok(1));
    assert_eq!(lock(&last).take().unwrap().part, Part::TokenBucket);
}

struct Fragile {
    _guard: PartGuard,
    handled: Arc<AtomicUsize>,
}

impl Actor for Fragile {
    type Context = Context<Self>;
}

#[derive(Message)]
#[rtype(result = "()")]
struct Break;

impl Handler<Break> for Fragile {
    type Result = ();

    fn handle(&mut self, _: Break, _: &mut Context<Self>) {
        self.handled.fetch_add(1, Ordering::SeqCst);
        panic!("on purpose");
    }
}

#[tokio::test]
async fn panic_of_an_actor_handler_is_noticed() {
    let (supervision, exits) = supervision();
    let last = last_announced(&supervision);
    let handled = Arc::new(AtomicUsize::new(0));
    let (_guard, counts) = (guard(&supervision, Part::Budgets), Arc::clone(&handled));
    LocalSet::new()
        .run_until(async move {
            let address = Fragile { _guard, handled: counts }.start();
            assert!(address.send(Break).await.is_err());
        })
        .await;
    assert_eq!((exits.recv_timeout(TEST_TIMEOUT), handled.load(Ordering::SeqCst)), (Ok(1), 1));
    let end = lock(&last).take().unwrap();
    assert!(matches!(end, PartEnd { part: Part::Budgets, cause: EndCause::Panicked(_) }), "{end}");
}
