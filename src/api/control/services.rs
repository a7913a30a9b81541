//! The services of the API beside operations: the gate, the shards and the budgets. Each is set as soon as it is
//! available.

use std::{
    future::Future,
    sync::{Arc, OnceLock},
};

use guildhall_actors::access::{AuditRecord, ErasureStore};
use guildhall_actors::budget::BudgetService;
use guildhall_actors::gate::Gate;
use guildhall_actors::ports::{EventStore, KeyStore, ShardAdmin};
use guildhall_core::response::Credential;

use super::{AppState, Control, KeyStoreHandle, Reload, errors};
use crate::api::problem::{ProblemResponse, ProblemType};

/// The gate, and the bot that uses it.
#[derive(Clone, Debug)]
pub struct GateService {
    /// All calls to Discord go through it.
    pub gate: Arc<Gate>,
    /// The bot.
    pub credential: Credential,
}

/// The shards.
#[derive(Clone)]
pub struct ShardService {
    /// The shards of this process.
    pub board: Arc<dyn ShardAdmin>,
    /// The stored sessions of all shards.
    pub sessions: Arc<dyn EventStore>,
}

impl std::fmt::Debug for ShardService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardService").finish_non_exhaustive()
    }
}

/// All services, each set once it is available.
#[derive(Debug, Default)]
pub(super) struct Services {
    gate: OnceLock<GateService>,
    shards: OnceLock<ShardService>,
    budgets: OnceLock<Arc<BudgetService>>,
    erasure: OnceLock<ErasureHandle>,
    reload: OnceLock<ReloadHandle>,
}

/// Reloads the settings.
#[derive(Clone)]
struct ReloadHandle(Arc<dyn Reload>);

impl std::fmt::Debug for ReloadHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reloads")
    }
}

/// Erases stored data.
#[derive(Clone)]
struct ErasureHandle(Arc<dyn ErasureStore>);

impl std::fmt::Debug for ErasureHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Erasure")
    }
}

impl Control {
    /// Sets the gate. Only the first call has an effect.
    pub fn open_gate(&self, gate: GateService) {
        drop(self.desks.gate.set(gate));
    }

    /// Sets the shards. Only the first call has an effect.
    pub fn open_shards(&self, shards: ShardService) {
        drop(self.desks.shards.set(shards));
    }

    /// Sets the budgets. Only the first call has an effect.
    pub fn open_budgets(&self, budgets: Arc<BudgetService>) {
        drop(self.desks.budgets.set(budgets));
    }

    /// Sets what reloads the settings. Only the first call has an effect.
    pub fn open_reload(&self, reload: Arc<dyn Reload>) {
        drop(self.desks.reload.set(ReloadHandle(reload)));
    }

    /// Sets what erases stored data. Only the first call has an effect.
    pub fn open_erasure(&self, store: Arc<dyn ErasureStore>) {
        drop(self.desks.erasure.set(ErasureHandle(store)));
    }
}

/// Writes audit records. To be used in the same task as the change, so that a closed connection cannot separate the
/// two.
pub(super) struct AuditWriter(Arc<dyn KeyStore>);

impl AuditWriter {
    /// Writes a record before the change is made: without a record there is no change.
    pub(super) async fn note(&self, note: AuditRecord) -> Result<(), ProblemResponse> {
        self.0.note(note).await.map_err(|error| errors::of_store(&error))
    }
}

impl AppState {
    pub(super) fn book(&self) -> Result<AuditWriter, ProblemResponse> {
        let KeyStoreHandle(keys) = self.control.keys.get().ok_or(ProblemType::Starting)?;
        Ok(AuditWriter(Arc::clone(keys)))
    }

    pub(super) fn gate(&self) -> Result<GateService, ProblemResponse> {
        Ok(self.control.desks.gate.get().ok_or(ProblemType::Starting)?.clone())
    }

    /// Runs a call of the gate; an error while the process is shutting down.
    pub(super) async fn ask_gate<T, F>(&self, question: impl FnOnce(GateService) -> F) -> Result<T, ProblemResponse>
    where
        F: Future<Output = Option<T>> + Send + 'static,
        T: Send + 'static,
    {
        let desk = self.gate()?;
        self.run(|| question(desk)).await?.ok_or_else(ending)
    }

    pub(super) async fn ask_shards<T, F>(&self, question: impl FnOnce(ShardService) -> F) -> Result<T, ProblemResponse>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let desk = self.control.desks.shards.get().ok_or(ProblemType::Starting)?.clone();
        self.run(|| question(desk)).await
    }

    pub(super) async fn ask_budgets<T, F>(
        &self,
        question: impl FnOnce(Arc<BudgetService>) -> F,
    ) -> Result<T, ProblemResponse>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let budgets = Arc::clone(self.control.desks.budgets.get().ok_or(ProblemType::Starting)?);
        self.run(|| question(budgets)).await
    }

    pub(super) async fn ask_reload<T, F>(
        &self,
        question: impl FnOnce(Arc<dyn Reload>) -> F,
    ) -> Result<T, ProblemResponse>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let ReloadHandle(reload) = self.control.desks.reload.get().ok_or(ProblemType::Starting)?.clone();
        self.run(|| question(reload)).await
    }

    pub(super) async fn ask_erasure<T, F>(
        &self,
        question: impl FnOnce(Arc<dyn ErasureStore>) -> F,
    ) -> Result<T, ProblemResponse>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let ErasureHandle(store) = self.control.desks.erasure.get().ok_or(ProblemType::Starting)?.clone();
        self.run(|| question(store)).await
    }
}

/// The process is shutting down, so the call cannot run.
pub(super) fn ending() -> ProblemResponse {
    ProblemType::StoreUnavailable.says(
        "The process is shutting down. Retry with another process, or with this one \
        later.",
    )
}
