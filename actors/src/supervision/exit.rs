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
pub(super) const LAST_STEPS_WITHIN: Duration = Duration::from_millis(600);

/// Time after which the watchdog ends the process, if nothing else has.
const ENDS_WITHIN: Duration = Duration::from_millis(900);

/// How long to wait for a better explanation: the end of a part that waits for another one may be noticed first.
const EXPLAINED_WITHIN: Duration = Duration::from_millis(20);

/// Capacity of the channels to the threads.
const ENDS: usize = 16;

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
        let (tell_reporter, reported) = sync_channel(ENDS);
        let (tell_watchdog, watched) = sync_channel(ENDS);
        let supervision = Self(Arc::new(Shared {
            registry: Mutex::new(Registry::default()),
            ends: [tell_reporter, tell_watchdog],
            announce: Mutex::default(),
            last_steps: Mutex::default(),
        }));
        // Now, while file descriptors are available.
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (own, its_exit) = (supervision.clone(), exit.clone());
        #[expect(clippy::disallowed_methods, reason = "these threads watch all others")]
        thread::Builder::new().name("supervision".to_owned()).spawn(move || {
            end_in_order(&own, &reported, &runtime);
            its_exit.0(EXIT_CODE);
        })?;
        #[expect(clippy::disallowed_methods, reason = "these threads watch all others")]
        thread::Builder::new().name("watchdog".to_owned()).spawn(move || {
            if watched.recv().is_ok() {
                thread::sleep(ENDS_WITHIN);
                failpoint::hold(Ender::Watchdog);
                exit.0(EXIT_CODE);
            }
        })?;
        Ok(supervision)
    }
}

/// Waits for the end of a part, then notifies the listeners and runs the exit hooks.
fn end_in_order(supervision: &Supervision, ends: &Receiver<PartEnd>, runtime: &Runtime) {
    let Ok(first) = ends.recv() else { return };
    announce(supervision, &first);
    let end = best_explanation(first.clone(), ends);
    if end != first {
        announce(supervision, &end);
    }
    emit(ProcessEnding { end: &end });
    failpoint::hold(Ender::Supervision);
    let steps = std::mem::take(&mut *lock(&supervision.0.last_steps));
    let steps = steps.into_iter().map(|step| step(end.clone()));
    // A hook that panics counts as failed; the watchdog waits for none of them.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let steps: Vec<_> = steps.collect();
        runtime.block_on(async { timeout(LAST_STEPS_WITHIN, join_all(steps)).await })
    }));
}

fn announce(supervision: &Supervision, end: &PartEnd) {
    for announce in &*lock(&supervision.0.announce) {
        let _ = catch_unwind(AssertUnwindSafe(|| announce(end)));
    }
}

/// The first panic among the ends that are noticed together; otherwise the first end.
fn best_explanation(first: PartEnd, ends: &Receiver<PartEnd>) -> PartEnd {
    let (mut best, until) = (first, Instant::now() + EXPLAINED_WITHIN);
    loop {
        match ends.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(end) if end.explains_better_than(&best) => best = end,
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return best,
        }
    }
}
