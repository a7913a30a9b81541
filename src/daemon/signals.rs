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
    Ends,
    /// Requests a reload.
    Reloads,
}

impl Signals {
    /// Starts to listen. Signals that arrive after this has returned are not lost.
    ///
    /// # Errors
    ///
    /// When the operating system provides no thread or no signals.
    pub fn listen(ends_with: StopSource, on_hangup: OnHangup) -> io::Result<Self> {
        let (tell_first, first) = oneshot::channel();
        let hangups = Arc::new(Notify::new());
        let tell_hangup = (on_hangup == OnHangup::Reloads).then(|| Arc::clone(&hangups));
        let input = match ends_with {
            StopSource::Signals => None,
            StopSource::Input => Some(end_of_input()?),
        };
        let (tell_started, started) = mpsc::sync_channel(1);
        supervision::thread(Part::Signals, "signals".to_owned(), move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(tell_started.send(Err(error))),
            };
            let watch = watch(&tell_started, tell_first, input, tell_hangup);
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
fn end_of_input() -> io::Result<oneshot::Receiver<()>> {
    let (tell_ended, ended) = oneshot::channel();
    // Not supervised: its end is what it reports.
    thread::Builder::new().name("input".to_owned()).spawn(move || {
        let mut ignored = [0; 256];
        while io::stdin().read(&mut ignored).is_ok_and(|read| read > 0) {}
        let _ = tell_ended.send(());
    })?;
    Ok(ended)
}

/// Waits for the end of standard input, which is reported once.
async fn ended(input: &mut Option<oneshot::Receiver<()>>) {
    match input {
        // The thread reports it before it ends.
        Some(ended) => drop(ended.await),
        None => std::future::pending().await,
    }
    *input = None;
}

async fn received(stream: Option<&mut tokio::signal::unix::Signal>) {
    match stream {
        Some(stream) => drop(stream.recv().await),
        None => std::future::pending().await,
    }
}

async fn watch(
    tell_started: &mpsc::SyncSender<io::Result<()>>,
    tell_first: oneshot::Sender<Signal>,
    mut input: Option<oneshot::Receiver<()>>,
    tell_hangup: Option<Arc<Notify>>,
) {
    let hangups = || tell_hangup.as_ref().map(|_| signal(SignalKind::hangup())).transpose();
    let streams = signal(SignalKind::interrupt())
        .and_then(|interrupt| Ok((interrupt, signal(SignalKind::terminate())?, hangups()?)));
    let (mut interrupt, mut terminate, mut hangup) = match streams {
        Ok(streams) => streams,
        Err(error) => return drop(tell_started.send(Err(error))),
    };
    drop(tell_started.send(Ok(())));
    let mut tell_first = Some(tell_first);
    loop {
        let signal = tokio::select! {
            _ = interrupt.recv() => Signal::Interrupt,
            _ = terminate.recv() => Signal::Terminate,
            () = ended(&mut input) => Signal::InputEnded,
            () = received(hangup.as_mut()) => {
                match (&tell_hangup, &tell_first) {
                    (Some(reload), Some(_)) => reload.notify_one(),
                    (_, None) => tracing::info!("reload ignored: the process is stopping"),
                    (None, Some(_)) => {}
                }
                continue;
            }
        };
        match tell_first.take() {
            Some(first) => drop(first.send(signal)),
            None => {
                tracing::error!(signal = signal.name(), "second signal received; exiting immediately");
                process::exit(signal.exit_code());
            }
        }
    }
}
