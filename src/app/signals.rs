//! SIGTERM and Ctrl-C: the first asks for an orderly end, the second does not ask.

use std::{io, process, sync::mpsc, thread};

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

/// A signal that ends the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// What service managers send.
    Terminate,
}

impl Signal {
    /// Its usual name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        }
    }

    /// What a shell reports for a process that such a signal ended: 128 and the signal's number.
    fn exit_code(self) -> i32 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
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
    pub fn listen() -> io::Result<Self> {
        let (tell_first, first) = oneshot::channel();
        let (tell_started, started) = mpsc::sync_channel(1);
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(tell_started.send(Err(error))),
            };
            runtime.block_on(watch(&tell_started, tell_first));
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

async fn watch(tell_started: &mpsc::SyncSender<io::Result<()>>, tell_first: oneshot::Sender<Signal>) {
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
