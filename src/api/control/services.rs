//! Whom the API asks beside the desk: the gate, the shards and the budgets. Each is there as soon as it can answer.

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

/// The gate, and whose calls go through it.
#[derive(Clone, Debug)]
pub struct GateService {
    /// What every call to Discord goes through.
    pub gate: Arc<Gate>,
    /// The bot.
    pub credential: Credential,
}

/// The shards.
#[derive(Clone)]
pub struct ShardService {
    /// Those of this process.
    pub board: Arc<dyn ShardAdmin>,
    /// Where the sessions of all of them are kept.
    pub sessions: Arc<dyn EventStore>,
}

impl std::fmt::Debug for ShardService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardService").finish_non_exhaustive()
    }
}

/// All of them, each once it is there.
#[derive(Debug, Default)]
pub(super) struct Services {
    gate: OnceLock<GateService>,
    shards: OnceLock<ShardService>,
    budgets: OnceLock<Arc<BudgetService>>,
    erasure: OnceLock<ErasureHandle>,
    reload: OnceLock<ReloadHandle>,
}

/// What reloads the settings.
#[derive(Clone)]
struct ReloadHandle(Arc<dyn Reload>);

impl std::fmt::Debug for ReloadHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reloads")
    }
}

/// What erases stored data.
#[derive(Clone)]
struct ErasureHandle(Arc<dyn ErasureStore>);

impl std::fmt::Debug for ErasureHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Erasure")
    }
}

impl Control {
    /// From now on this is the gate. A second one changes nothing.
    pub fn open_gate(&self, gate: GateService) {
        drop(self.desks.gate.set(gate));
    }

    /// From now on these are the shards. Others change nothing.
    pub fn open_shards(&self, shards: ShardService) {
        drop(self.desks.shards.set(shards));
    }

    /// From now on these are the budgets. Others change nothing.
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

/// Where it is written down what somebody is about to do. To be asked within what is done, so that a caller that hangs up
/// cannot come between the two.
pub(super) struct AuditWriter(Arc<dyn KeyStore>);

impl AuditWriter {
    /// Writes it down, before it is done: what cannot be written down is not done.
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

    /// Asks the gate; nothing is answered by a process that is ending.
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

/// There is nobody left who could do it.
pub(super) fn ending() -> ProblemResponse {
    ProblemType::StoreUnavailable.says("The process is ending. Ask another one, or this one again in a while.")
}
