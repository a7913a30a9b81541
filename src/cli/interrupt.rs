//! Ctrl-C in commands that wait: the command says what continues without it.

use std::process::ExitCode;

/// Exit code of a command that Ctrl-C ended: as if the signal had ended it.
const INTERRUPTED: u8 = 130;

/// Runs work until it is done; `None` if Ctrl-C comes first. From the first call on, Ctrl-C no longer ends the process by
/// itself.
pub(super) async fn unless_interrupted<T>(work: impl Future<Output = T>) -> Option<T> {
    let interrupt = async {
        if tokio::signal::ctrl_c().await.is_err() {
            // The signal cannot be received: it ends the process.
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = interrupt => None,
    }
}

/// Prints what Ctrl-C interrupted, and returns the exit code.
pub(super) fn interrupted(message: &str) -> ExitCode {
    eprintln!("interrupted: {message}");
    ExitCode::from(INTERRUPTED)
}
