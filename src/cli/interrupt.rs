//! Ctrl-C in commands that wait: the command says what continues without it.

use std::{future::poll_fn, pin::pin, process::ExitCode, task::Poll};

/// Exit code of a command that Ctrl-C ended: as if the signal had ended it.
const INTERRUPTED: u8 = 130;

/// Runs work until it is done; `None` if Ctrl-C comes first. From the first call on, Ctrl-C no longer ends the process by
/// itself.
pub(super) async fn unless_interrupted<T>(work: impl Future<Output = T>) -> Option<T> {
    let mut interrupt = pin!(async {
        if tokio::signal::ctrl_c().await.is_err() {
            // The signal cannot be received: it ends the process.
            std::future::pending::<()>().await;
        }
    });
    // Listens before the work starts, so that what it prints is never followed by a signal that ends the process.
    if poll_fn(|context| Poll::Ready(interrupt.as_mut().poll(context))).await.is_ready() {
        return None;
    }
    tokio::select! {
        biased;
        done = work => Some(done),
        () = &mut interrupt => None,
    }
}

/// Prints what Ctrl-C interrupted, and returns the exit code.
pub(super) fn interrupted(message: &str) -> ExitCode {
    eprintln!("interrupted: {message}");
    ExitCode::from(INTERRUPTED)
}
