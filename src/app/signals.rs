//! SIGTERM and Ctrl-C: the first asks for an orderly end, the second does not ask. For a process that another one started
//! and that must not outlive it, the end of standard input asks as well.

use std::{
    io::{self, Read as _},
    process,
    sync::mpsc,
    thread,
};

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

/// What asks the process to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndsWith {
    /// Signals alone.
    #[default]
    Signals,
    /// Signals, and the end of standard input.
    Input,
}

/// A signal that ends the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// What service managers send.
    Terminate,
    /// Standard input has ended: whoever started the process is gone, or wants it to end.
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

    /// What a shell reports for a process that such a signal ended: 128 and the signal's number.
    fn exit_code(self) -> i32 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate | Self::InputEnded => 143,
        }
    }
}

/// Listens for signals on a thread of its own, so that a second signal ends the process even when everything else is
/// stuck.
#[derive(Debug)]
pub struct Signals {
    first: oneshot::Receiver<Signal>,
}

impl Signals {
    /// Starts listening. Signals that arrive after this has returned are not lost.
    ///
    /// # Errors
    ///
    /// When the operating system gives no thread or no signals.
    pub fn listen(ends_with: EndsWith) -> io::Result<Self> {
        let (tell_first, first) = oneshot::channel();
        let input = match ends_with {
            EndsWith::Signals => None,
            EndsWith::Input => Some(end_of_input()?),
        };
        let (tell_started, started) = mpsc::sync_channel(1);
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(tell_started.send(Err(error))),
            };
            runtime.block_on(watch(&tell_started, tell_first, input));
        })?;
        started.recv().map_err(|_| io::Error::other("the signal thread ended"))??;
        Ok(Self { first })
    }

    /// Waits for the first signal. Nothing is lost when the wait is cancelled.
    pub async fn first(&mut self) -> Signal {
        match (&mut self.first).await {
            Ok(signal) => signal,
            // The thread ends only with the process.
            Err(_) => std::future::pending().await,
        }
    }
}

/// Reads what nobody needs, until there is no more.
fn end_of_input() -> io::Result<oneshot::Receiver<()>> {
    let (tell_ended, ended) = oneshot::channel();
    thread::Builder::new().name("input".to_owned()).spawn(move || {
        let mut ignored = [0; 256];
        while io::stdin().read(&mut ignored).is_ok_and(|read| read > 0) {}
        let _ = tell_ended.send(());
    })?;
    Ok(ended)
}

/// Waits for the end of standard input, which is told once.
async fn ended(input: &mut Option<oneshot::Receiver<()>>) {
    match input {
        // The thread tells it before it ends.
        Some(ended) => drop(ended.await),
        None => std::future::pending().await,
    }
    *input = None;
}

async fn watch(
    tell_started: &mpsc::SyncSender<io::Result<()>>,
    tell_first: oneshot::Sender<Signal>,
    mut input: Option<oneshot::Receiver<()>>,
) {
    let streams = signal(SignalKind::interrupt()).and_then(|int| Ok((int, signal(SignalKind::terminate())?)));
    let (mut interrupt, mut terminate) = match streams {
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
        };
        match tell_first.take() {
            Some(first) => drop(first.send(signal)),
            None => {
                tracing::error!(signal = signal.name(), "a second signal: ending at once");
                process::exit(signal.exit_code());
            }
        }
    }
}
