//! Divides the global limit among the processes of a store, if no Redis counts for all of them.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use guildhall_actors::gate::Gate;
use guildhall_actors::supervision;
use guildhall_actors::supervision::{Part, spawn_blocking_work};
use guildhall_core::limit::division::DivisionConfig;
use tokio::task::JoinHandle;

use super::fleet::{SharedProcessLock, report_dead};
use crate::{
    discord::application_id,
    redis::ProcessLock,
    settings::{SecretValue, Settings, StoreUrl},
    store::{DivisionRequest, LimitDivision, Store},
};

/// Membership of this process in the division; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct DivisionMembership {
    limit: LimitDivision,
    lock: SharedProcessLock,
    watch_task: JoinHandle<()>,
}

impl DivisionMembership {
    /// Joins the processes that share the store. `None` if Redis counts for them, or if no others can exist.
    pub(crate) fn join(settings: &Settings, token: &SecretValue, store: &Store) -> Option<Self> {
        if settings.redis.url.is_some() || matches!(settings.store.url, StoreUrl::Sqlite(_)) {
            return None;
        }
        let application = application_id(token).unwrap_or(1);
        let lock = ProcessLock::take_or_continue_without(&lock_folder(settings, application));
        let limits = &settings.gate.limits;
        let config = DivisionConfig {
            limit: limits.global,
            window: limits.window + limits.margin,
            settling: limits.settling,
            request_timeout: limits.request_timeout,
            lease: settings.store.lease.duration,
            ..DivisionConfig::default()
        };
        let scope = format!("application:{application}");
        let limit = store.divide_limit(DivisionRequest { config, scope, lock_name: lock.id().to_owned() })?;
        let lock: SharedProcessLock = Arc::new(Mutex::new(Some(lock)));
        let division = limit.clone();
        let period = settings.store.lease.heartbeat;
        let task = report_dead(Arc::clone(&lock), period, move |dead| division.report_dead(dead));
        let watch = supervision::spawn(Part::DeadProcesses, task);
        Some(Self { limit, lock, watch_task: watch })
    }

    /// The divided limit.
    pub(crate) fn limit(&self) -> &LimitDivision {
        &self.limit
    }

    /// Stops sending. The store is notified when it is closed.
    pub(crate) async fn leave(&self, gate: &Gate) {
        let view = gate.tokens().observe().await;
        let in_flight = view.map_or(u32::MAX, |view| view.credentials.iter().map(|limit| limit.in_flight).sum());
        self.limit.depart(in_flight);
        self.watch_task.abort();
        let lock = Arc::clone(&self.lock);
        // It accesses the disk. If the runtime is shutting down, the lock is released anyway.
        let released = spawn_blocking_work(move || {
            if let Some(lock) = lock.lock().unwrap_or_else(PoisonError::into_inner).take() {
                lock.release();
            }
        });
        drop(released.await);
    }
}

impl Drop for DivisionMembership {
    fn drop(&mut self) {
        self.watch_task.abort();
    }
}

/// The folder of the locks of this machine's processes that use one store. Processes of other stores have other
/// folders.
fn lock_folder(settings: &Settings, application: u64) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    settings.store.url.to_string().hash(&mut hasher);
    ProcessLock::folder(settings.redis.seat_dir.as_deref(), application).join(format!("store-{:016x}", hasher.finish()))
}
