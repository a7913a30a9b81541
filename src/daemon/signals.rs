//! SIGTERM and Ctrl-C: the first requests an orderly shutdown, the second exits immediately. For a process that was
//! started by another and must not outlive it, the end of standard input requests a shutdown as well. SIGHUP requests a
//! reload, and never stops a daemon.

use std::{
    io::{self, Read as _},
    process,
    sync::{Arc, mpsc},
    thread,
};

use guildhall_actors::supervision::Part;
use guildhall_actors::{failpoint, supervision};

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{Notify, oneshot},
};

use crate::events::{ExitedImmediately, ReloadIgnored, emit};

/// What requests the process to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StopSource {
    /// Signals only.
    #[default]
    Signals,
    /// Signals, and the end of standard input.
    Input,
}

/// A signal that stops the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// Sent by service managers.
    Terminate,
    /// Standard input has ended: the parent process has exited, or requests a shutdown.
    InputEnded,
}

impl Signal {
    /// Its usual name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
            Self::InputEnded => "the end of standard input",
        }
    }

    /// The exit code that a shell reports for a process that this signal ended: 128 plus the signal's number.
    fn exit_code(self) -> i32 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate | Self::InputEnded => 143,
        }
    }
}

/// Listens for signals on a thread of its own, so that a second signal ends the process even if everything else is
/// stuck.
#[derive(Debug)]
pub struct Signals {
    first: oneshot::Receiver<Signal>,
    hangups: Arc<Notify>,
}

/// What SIGHUP does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnHangup {
    /// Ends the process, as when a terminal is closed.
    Exit,
    /// Requests a reload.
    Reload,
}

impl Signals {
    /// Starts to listen. Signals that arrive after this has returned are not lost.
    ///
    /// # Errors
    ///
    /// When the operating system provides no thread or no signals.
    pub fn listen(stop_source: StopSource, on_hangup: OnHangup) -> io::Result<Self> {
        let (first_sender, first) = oneshot::channel();
        let hangups = Arc::new(Notify::new());
        let hangup_sender = (on_hangup == OnHangup::Reload).then(|| Arc::clone(&hangups));
        let input = match stop_source {
            StopSource::Signals => None,
            StopSource::Input => Some(watch_input()?),
        };
        let (started_sender, started) = mpsc::sync_channel(1);
        supervision::thread(Part::Signals, "signals".to_owned(), move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(started_sender.send(Err(error))),
            };
            let watch = watch(&started_sender, first_sender, input, hangup_sender);
            runtime.block_on(failpoint::with_ticks(Part::Signals, watch));
        })?;
        started.recv().map_err(|_| io::Error::other("the signal thread ended"))??;
        Ok(Self { first, hangups })
    }

    /// Notified once for any number of SIGHUPs since the last time.
    #[must_use]
    pub fn hangups(&self) -> Arc<Notify> {
        Arc::clone(&self.hangups)
    }

    /// Waits for the first signal. Cancel safe.
    pub async fn first(&mut self) -> Signal {
        match (&mut self.first).await {
            Ok(signal) => signal,
            // The thread ends only with the process.
            Err(_) => std::future::pending().await,
        }
    }
}

/// Reads and discards standard input until it ends.
#[expect(clippy::disallowed_methods, reason = "the end of this thread is what it reports")]
fn watch_input() -> io::Result<oneshot::Receiver<()>> {
    let (ended_sender, ended) = oneshot::channel();
    // Not supervised: its end is what it reports.
    thread::Builder::new().name("input".to_owned()).spawn(move || {
        let mut ignored = [0; 256];
        while io::stdin().read(&mut ignored).is_ok_and(|read| read > 0) {}
        let _ = ended_sender.send(());
    })?;
    Ok(ended)
}

/// Waits for the end of standard input, which is reported once.
async fn wait_for_input_end(input: &mut Option<oneshot::Receiver<()>>) {
    match input {
        // The thread reports it before it ends.
        Some(ended) => drop(ended.await),
        None => std::future::pending().await,
    }
    *input = None;
}

async fn wait_for_signal(stream: Option<&mut tokio::signal::unix::Signal>) {
    match stream {
        Some(stream) => drop(stream.recv().await),
        None => std::future::pending().await,
    }
}

async fn watch(
    started_sender: &mpsc::SyncSender<io::Result<()>>,
    first_sender: oneshot::Sender<Signal>,
    mut input: Option<oneshot::Receiver<()>>,
    hangup_sender: Option<Arc<Notify>>,
) {
    let hangups = || hangup_sender.as_ref().map(|_| signal(SignalKind::hangup())).transpose();
    let streams = signal(SignalKind::interrupt())
        .and_then(|interrupt| Ok((interrupt, signal(SignalKind::terminate())?, hangups()?)));
    let (mut interrupt, mut terminate, mut hangup) = match streams {
        Ok(streams) => streams,
        Err(error) => return drop(started_sender.send(Err(error))),
    };
    drop(started_sender.send(Ok(())));
    let mut first_sender = Some(first_sender);
    loop {
        let signal = tokio::select! {
            _ = interrupt.recv() => Signal::Interrupt,
            _ = terminate.recv() => Signal::Terminate,
            () = wait_for_input_end(&mut input) => Signal::InputEnded,
            () = wait_for_signal(hangup.as_mut()) => {
                match (&hangup_sender, &first_sender) {
                    (Some(reload), Some(_)) => reload.notify_one(),
                    (_, None) => emit(ReloadIgnored),
                    (None, Some(_)) => {}
                }
                continue;
            }
        };
        match first_sender.take() {
            Some(first) => drop(first.send(signal)),
            None => {
                emit(ExitedImmediately { signal: signal.name() });
                process::exit(signal.exit_code());
            }
        }
    }
}
