//! Crash-only supervision: nothing that the daemon needs can end unnoticed.
//!
//! ```text
//!  actor, task, thread ── PartGuard ──drop──▶ Registry: expected? ──no──▶ supervision thread: not ready, one log line,
//!                                                                  │      lease released, exit code 1
//!                                                                  └────▶ watchdog thread: exit code 1 in any case
//! ```
//!
//! State is durable, so a restart of the process is the repair. A part registers when it starts, with a
//! [guard](PartGuard) that it owns: whether it returns, panics or is dropped, the guard notices. Only guild actors are
//! [restarted](Policy::Restart) within the process, by their own supervisors.
//!
//! Nothing is watched in a process that has not [installed](Supervision::install) this: tests and one-off commands.

mod exit;
mod panic_hook;
mod part;
mod registry;
mod spawn;

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

pub use self::panic_hook::record_panic;
pub use self::part::{Component, Part, Policy};
use self::registry::{EndAction, Registry};
pub use self::registry::{EndCause, PanicInfo, PartEnd};
pub use self::spawn::{
    arbiter, spawn, spawn_blocking_work, spawn_finite, spawn_finite_on, spawn_local, spawn_local_finite,
    spawn_local_work, spawn_work, spawn_work_on, thread,
};
use crate::telemetry::emit;
use crate::telemetry::supervision::PartsCounted;

/// The supervision of this process. The end of a process concerns all of it, as does its panic hook.
static INSTALLED: OnceLock<Supervision> = OnceLock::new();

/// Called before the process ends because of a part, for example to release its lease.
pub type ExitHook = Box<dyn FnOnce(PartEnd) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// Called as soon as the process ends because of a part. Must not block.
pub type EndListener = Box<dyn Fn(&PartEnd) + Send>;

/// Watches the parts of a process. Clones watch the same ones.
#[derive(Clone)]
pub struct Supervision(Arc<Shared>);

struct Shared {
    registry: Mutex<Registry>,
    /// To the supervision thread, and to the watchdog.
    ends: [SyncSender<PartEnd>; 2],
    end_listeners: Mutex<Vec<EndListener>>,
    exit_hooks: Mutex<Vec<ExitHook>>,
}

impl std::fmt::Debug for Supervision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervision").finish_non_exhaustive()
    }
}

impl Supervision {
    /// Watches all parts of this process that start from now on.
    ///
    /// # Errors
    ///
    /// When the operating system cannot start threads.
    pub fn install() -> std::io::Result<Self> {
        if let Some(installed) = INSTALLED.get() {
            return Ok(installed.clone());
        }
        let supervision = Self::start(exit::Exit::process())?;
        Ok(INSTALLED.get_or_init(|| supervision).clone())
    }

    /// The supervision of this process, if it has one.
    #[must_use]
    pub fn installed() -> Option<Self> {
        INSTALLED.get().cloned()
    }

    /// Starts an orderly shutdown: parts may end from now on.
    pub fn begin_shutdown(&self) {
        self.registry().on_stopping();
    }

    /// Reports how many parts run. Call it once metrics are recorded: parts start before that.
    pub fn report_counts(&self) {
        for (part, running) in self.registry().running() {
            emit(PartsCounted { part, running });
        }
    }

    /// Adds a listener that is called as soon as a part ends that must not.
    pub fn on_part_end(&self, listener: impl Fn(&PartEnd) + Send + 'static) {
        lock(&self.0.end_listeners).push(Box::new(listener));
    }

    /// Adds a hook that runs before the process ends because of a part. All hooks run concurrently, on a runtime of
    /// their own, and share one time limit.
    pub fn before_exit<F>(&self, hook: impl FnOnce(PartEnd) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        lock(&self.0.exit_hooks).push(Box::new(move |end| Box::pin(hook(end))));
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.0.registry)
    }

    fn on_started(&self, part: Part) {
        let running = self.registry().on_started(part);
        emit(PartsCounted { part, running });
    }

    fn on_finished(&self, part: Part) {
        let running = self.registry().on_finished(part);
        emit(PartsCounted { part, running });
    }

    fn on_ended(&self, end: &PartEnd) {
        match self.registry().on_ended(end.part) {
            EndAction::Expected => {}
            EndAction::EndProcess | EndAction::AlreadyEnding => {
                for ends in &self.0.ends {
                    // Only the first ones matter: if the channel is full, it is known that the process ends.
                    let _ = ends.try_send(end.clone());
                }
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a part may return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lifetime {
    /// As long as the process.
    Process,
    /// Until it is done; only a panic ends the process.
    Finite,
}

/// Owned by a part as long as it runs. A drop reports the end of the part.
///
/// As a field of an actor it must be the first: fields are dropped in order, and closing the others ends other parts.
#[derive(Debug)]
#[must_use = "a part without a guard is not watched"]
pub struct PartGuard {
    part: Part,
    lifetime: Lifetime,
    error: Option<Option<String>>,
    supervision: Option<Supervision>,
}

impl PartGuard {
    /// Guards a part that runs as long as the process does.
    pub fn new(part: Part) -> Self {
        Self::of(Supervision::installed(), part, Lifetime::Process)
    }

    /// Guards a part that may finish, but must not panic.
    pub fn finite(part: Part) -> Self {
        Self::of(Supervision::installed(), part, Lifetime::Finite)
    }

    fn of(supervision: Option<Supervision>, part: Part, lifetime: Lifetime) -> Self {
        if let Some(supervision) = &supervision {
            supervision.on_started(part);
        }
        Self { part, lifetime, error: None, supervision }
    }

    /// The part finished its work: no error.
    pub fn finish(mut self) {
        self.lifetime = Lifetime::Finite;
    }

    /// The part returned, with this error if it had one.
    pub fn returned(mut self, error: Option<String>) {
        self.error = Some(error);
    }
}

impl Drop for PartGuard {
    fn drop(&mut self) {
        let Some(supervision) = &self.supervision else { return };
        let panicked = panic_hook::current_panic();
        let cause = match (panicked, self.error.take()) {
            (Some(panic), _) => EndCause::Panicked(panic),
            (None, Some(error)) => EndCause::Returned(error),
            (None, None) => EndCause::Dropped,
        };
        match (&cause, self.lifetime) {
            (EndCause::Returned(_) | EndCause::Dropped, Lifetime::Finite) => supervision.on_finished(self.part),
            (EndCause::Panicked(_), _) | (_, Lifetime::Process) => {
                supervision.on_ended(&PartEnd { part: self.part, cause });
            }
        }
    }
}

#[cfg(test)]
mod tests;
