//! The exit of a process because a part has ended: within a second, whatever else is stuck.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::{PartEnd, Registry, Shared, Supervision, lock};
use crate::failpoint::{self, Ender};
use crate::telemetry::emit;
use crate::telemetry::supervision::ProcessEnding;

/// Time limit of all exit hooks together.
pub(super) const EXIT_HOOKS_TIMEOUT: Duration = Duration::from_millis(600);

/// Time after which the watchdog ends the process, if nothing else has.
const WATCHDOG_TIMEOUT: Duration = Duration::from_millis(900);

/// How long to wait for a better explanation: the end of a part that waits for another one may be noticed first.
const ROOT_CAUSE_TIMEOUT: Duration = Duration::from_millis(20);

/// Capacity of the channels to the threads.
const END_CAPACITY: usize = 16;

/// Exit code of a process that a part has ended.
const EXIT_CODE: i32 = 1;

/// How the process exits.
#[derive(Clone)]
pub(super) struct Exit(Arc<dyn Fn(i32) + Send + Sync>);

impl Exit {
    pub(super) fn process() -> Self {
        Self(Arc::new(|code| std::process::exit(code)))
    }

    #[cfg(test)]
    pub(super) fn call(exit: impl Fn(i32) + Send + Sync + 'static) -> Self {
        Self(Arc::new(exit))
    }
}

impl Supervision {
    pub(super) fn start(exit: Exit) -> std::io::Result<Self> {
        let (reporter_sender, reporter_receiver) = sync_channel(END_CAPACITY);
        let (watchdog_sender, watchdog_receiver) = sync_channel(END_CAPACITY);
        let supervision = Self(Arc::new(Shared {
            registry: Mutex::new(Registry::default()),
            ends: [reporter_sender, watchdog_sender],
            end_listeners: Mutex::default(),
            exit_hooks: Mutex::default(),
        }));
        // Now, while file descriptors are available.
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (supervised, exit_process) = (supervision.clone(), exit.clone());
        #[expect(clippy::disallowed_methods, reason = "these threads watch all others")]
        thread::Builder::new().name("supervision".to_owned()).spawn(move || {
            run_exit(&supervised, &reporter_receiver, &runtime);
            exit_process.0(EXIT_CODE);
        })?;
        #[expect(clippy::disallowed_methods, reason = "these threads watch all others")]
        thread::Builder::new().name("watchdog".to_owned()).spawn(move || {
            if watchdog_receiver.recv().is_ok() {
                thread::sleep(WATCHDOG_TIMEOUT);
                failpoint::hold(Ender::Watchdog);
                exit.0(EXIT_CODE);
            }
        })?;
        Ok(supervision)
    }
}

/// Waits for the end of a part, then notifies the listeners and runs the exit hooks.
fn run_exit(supervision: &Supervision, ends: &Receiver<PartEnd>, runtime: &Runtime) {
    let Ok(first) = ends.recv() else { return };
    notify_listeners(supervision, &first);
    let end = find_root_cause(first.clone(), ends);
    if end != first {
        notify_listeners(supervision, &end);
    }
    emit(ProcessEnding { end: &end });
    failpoint::hold(Ender::Supervision);
    let hooks = std::mem::take(&mut *lock(&supervision.0.exit_hooks));
    let hooks = hooks.into_iter().map(|hook| hook(end.clone()));
    // A hook that panics counts as failed; the watchdog waits for none of them.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let hooks: Vec<_> = hooks.collect();
        runtime.block_on(async { timeout(EXIT_HOOKS_TIMEOUT, join_all(hooks)).await })
    }));
}

fn notify_listeners(supervision: &Supervision, end: &PartEnd) {
    for listener in &*lock(&supervision.0.end_listeners) {
        let _ = catch_unwind(AssertUnwindSafe(|| listener(end)));
    }
}

/// The first panic among the ends that are noticed together; otherwise the first end.
fn find_root_cause(first: PartEnd, ends: &Receiver<PartEnd>) -> PartEnd {
    let (mut best, until) = (first, Instant::now() + ROOT_CAUSE_TIMEOUT);
    loop {
        match ends.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(end) if end.explains_better_than(&best) => best = end,
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return best,
        }
    }
}
