//! The only ways to start a task, a thread or an arbiter. Clippy refuses the bare ones (`clippy.toml`), so that each
//! call site says what the end of the task means:
//!
//! | | may return | may panic |
//! |---|---|---|
//! | [`spawn`], [`spawn_local`], [`thread`], [`arbiter`]: a part | no | no |
//! | [`spawn_finite`] and the like: a part with an end | yes | no |
//! | [`spawn_work`] and the like: short-lived work that a caller waits for, or that may get lost | yes | yes |

#![expect(clippy::disallowed_methods, reason = "the wrappers that all other code uses")]

use std::future::Future;
use std::io;

use actix::{Arbiter, ArbiterHandle};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::{Part, PartGuard};
use crate::failpoint;

/// Runs a part that ends with the process.
///
/// The guard is dropped by the body, so that a panic still unwinds when it is. The task is boxed: a body that awaits
/// what it captured would have room for it twice.
fn guarded<F: Future>(part: Part, task: F) -> impl Future<Output = F::Output> {
    let guard = PartGuard::new(part);
    let task = Box::pin(task);
    async move {
        // Moves the whole guard here, so that it is dropped here.
        let guard = guard;
        let output = task.await;
        guard.returned(None);
        output
    }
}

fn finite<F: Future>(part: Part, task: F) -> impl Future<Output = F::Output> {
    let guard = PartGuard::finite(part);
    let task = Box::pin(task);
    async move {
        let guard = guard;
        failpoint::message(part);
        let output = task.await;
        guard.finish();
        output
    }
}

/// Starts a task that the process cannot continue without.
pub fn spawn<F>(part: Part, task: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(guarded(part, task))
}

/// The same on the thread of the caller, which must run an actix `System`, an arbiter or a `LocalSet`. The result is
/// the error of the task, if any.
pub fn spawn_local<E: std::fmt::Display + 'static>(
    part: Part,
    task: impl Future<Output = Result<(), E>> + 'static,
) -> JoinHandle<Result<(), E>> {
    let guard = PartGuard::new(part);
    let task = Box::pin(task);
    tokio::task::spawn_local(async move {
        let guard = guard;
        let output = failpoint::with_ticks(part, task).await;
        guard.returned(output.as_ref().err().map(ToString::to_string));
        output
    })
}

/// Starts a task that may finish, and whose panic ends the process.
pub fn spawn_finite<F>(part: Part, task: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(finite(part, task))
}

/// The same on this runtime.
pub fn spawn_finite_on<F>(runtime: &Handle, part: Part, task: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    runtime.spawn(finite(part, task))
}

/// The same on the thread of the caller.
pub fn spawn_local_finite<F>(part: Part, task: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    tokio::task::spawn_local(finite(part, task))
}

/// Starts short-lived work: its caller waits for it and handles its loss, or the loss does no harm.
pub fn spawn_work<F>(work: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(work)
}

/// The same on this runtime.
pub fn spawn_work_on<F>(runtime: &Handle, work: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    runtime.spawn(work)
}

/// The same on the thread of the caller.
pub fn spawn_local_work<F>(work: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    tokio::task::spawn_local(work)
}

/// The same on a thread that may block.
pub fn spawn_blocking_work<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    tokio::task::spawn_blocking(work)
}

/// Starts a thread that the process cannot continue without.
///
/// # Errors
///
/// When the operating system cannot start a thread.
pub fn thread(part: Part, name: String, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let guard = PartGuard::new(part);
    std::thread::Builder::new().name(name).spawn(move || {
        let guard = guard;
        work();
        guard.returned(None);
    })?;
    Ok(())
}

/// Starts an arbiter whose thread the process cannot continue without. Must be called within an actix `System`.
#[must_use]
pub fn arbiter(part: Part) -> Arbiter {
    let arbiter = Arbiter::new();
    watch_arbiter(part, &arbiter.handle());
    arbiter
}

fn watch_arbiter(part: Part, arbiter: &ArbiterHandle) {
    let guard = PartGuard::new(part);
    // If the arbiter has already stopped, the guard is dropped here and reports that.
    arbiter.spawn(async move {
        let _guard = guard;
        match failpoint::ticks(part).await {}
    });
}
