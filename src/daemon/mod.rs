//! Assembles the daemon: the order in which components start, what stops them, and how the daemon shuts down.

pub mod admin_key;
pub(crate) mod api_component;
pub(crate) mod budgets_component;
pub(crate) mod command_gate;
pub(crate) mod commands;
pub(crate) mod daemon_gate;
pub(crate) mod discovery;
pub(crate) mod egress_component;
pub(crate) mod events_component;
pub(crate) mod fleet;
pub(crate) mod gate_component;
pub(crate) mod gateway_component;
pub(crate) mod identity;
pub(crate) mod interactions_component;
pub(crate) mod lifecycle;
pub(crate) mod limit_division;
pub(crate) mod operations_component;
pub(crate) mod redis_component;
pub(crate) mod reload;
pub(crate) mod rest_component;
pub(crate) mod restored_watch;
pub(crate) mod shards_component;
pub(crate) mod signals;
pub(crate) mod spans_component;
pub(crate) mod telemetry_component;

use std::{future::Future, io, panic::AssertUnwindSafe};

use futures_util::FutureExt as _;
use guildhall_actors::failpoint;
use guildhall_actors::supervision::{Part, PartGuard, Supervision};
use guildhall_core::event::handler::EventHandlers;

pub use self::admin_key::LocalAdminKey;
pub use self::api_component::ApiHandle;
pub use self::command_gate::CommandGateError;
pub use self::commands::{SyncError, SyncMode, SyncResult, sync};
pub use self::discovery::DiscoveryError;
pub(crate) use self::events_component::targets as webhook_targets;
pub use self::events_component::{EventsComponent, WebhookError};
pub use self::lifecycle::{Daemon, DaemonError, ShutdownTimeout, StartError};
pub use self::operations_component::OperationsComponent;
pub use self::reload::{ReadSettings, Reloader};
pub use self::rest_component::{GateState, LimitSharing, RestComponent, RestError};
pub use self::signals::{OnHangup, Signal, Signals, StopSource};
use crate::{
    events::{HandlerWarned, OpenFilesLimited, OpenFilesNotRaised, ShutdownFinished, ShutdownStarted, emit},
    handlers::{unreachable, warnings},
    settings::Settings,
};

/// Why `serve` failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The daemon could not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The daemon stopped because of a fatal error.
    #[error(transparent)]
    Ended(#[from] DaemonError),
    /// The shutdown did not finish in time.
    #[error(transparent)]
    Unfinished(#[from] ShutdownTimeout),
    /// The operating system does not allow it to supervise its parts.
    #[error("cannot start the threads that supervise the process: {0}")]
    Supervision(#[source] io::Error),
}

/// Runs the daemon with these handlers, whose API accepts this key, until a signal, another stop source or a fatal
/// error stops it. If a part ends that must not, the process exits with code 1.
///
/// # Errors
///
/// When it cannot start, stops because of a fatal error, or cannot shut down in time.
pub async fn serve(
    settings: &Settings,
    handlers: EventHandlers,
    key: &LocalAdminKey,
    signals: Signals,
    reloader: &Reloader,
) -> Result<(), ServeError> {
    // First, so that the end of any part is noticed.
    let supervision = Supervision::install().map_err(ServeError::Supervision)?;
    let main = async {
        let guard = PartGuard::new(Part::Main);
        // Boxed, as it is large and would be moved several times.
        let run = Box::pin(run(&supervision, settings, handlers, key, signals, reloader));
        let served = failpoint::with_ticks(Part::Main, run).await;
        supervision.begin_shutdown();
        guard.finish();
        served
    };
    match AssertUnwindSafe(main).catch_unwind().await {
        Ok(served) => served,
        // Returning would end the process before its lease is released. Supervision ends the process.
        Err(_) => std::future::pending().await,
    }
}

async fn run(
    supervision: &Supervision,
    settings: &Settings,
    handlers: EventHandlers,
    key: &LocalAdminKey,
    mut signals: Signals,
    reloader: &Reloader,
) -> Result<(), ServeError> {
    let unreachable = unreachable(&handlers, settings.gateway.intents);
    for warning in warnings(&handlers).iter().chain(&unreachable) {
        emit(HandlerWarned { warning });
    }
    let entrance = ApiHandle::default();
    let mut daemon = {
        // Boxed, so that its memory is freed once the daemon has started.
        let mut start = Box::pin(Daemon::start(settings, handlers, key, &entrance, reloader, |_| {}));
        tokio::select! {
            started = &mut start => started?,
            signal = signals.first() => {
                supervision.begin_shutdown();
                // No shard is connected yet, so only requests to the API have to be finished.
                entrance.drain();
                emit(ShutdownStarted { reason: signal.name() });
                entrance.close(settings.shutdown.timeout).await;
                emit(ShutdownFinished);
                return Ok(());
            }
        }
    };
    let hangups = signals.hangups();
    // A SIGHUP that arrived during the start takes effect now.
    let reloads = async {
        loop {
            hangups.notified().await;
            reloader.reload_by_signal().await;
        }
    };
    let ended = tokio::select! {
        () = reloads => unreachable!("invariant: the reload loop never returns"),
        ended = daemon.ended() => Some(ended),
        signal = signals.first() => {
            daemon.stopping();
            emit(ShutdownStarted { reason: signal.name() });
            None
        }
    };
    if let Some(ended) = &ended {
        emit(ShutdownStarted { reason: &ended.to_string() });
    }
    let finished = daemon.shutdown(settings.shutdown.timeout).await;
    if let Some(ended) = ended {
        return Err(ended.into());
    }
    finished?;
    emit(ShutdownFinished);
    Ok(())
}

/// Runs a future on a runtime that both actix and tokio can use: actix-web needs a `System` with a local task set for
/// its server, and shards need `tokio::spawn` onto all cores. A `System` over a multi-threaded runtime provides both;
/// `actix_web::main` would use a single thread, on which a busy shard delays the heartbeats of all others.
///
/// # Errors
///
/// When the operating system cannot create threads.
pub fn block_on<F: Future>(future: F) -> io::Result<F::Output> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("guildhall").build()?;
    Ok(actix_rt::System::with_tokio_rt(move || runtime).block_on(future))
}

/// Raises the limit of open files to the maximum that the system allows. A failure only means fewer shards.
pub fn raise_open_files() {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(limit) => emit(OpenFilesLimited { limit }),
        Err(error) => emit(OpenFilesNotRaised { error }),
    }
}
