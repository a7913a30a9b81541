//! Whom the API asks beside the desk: the gate, the shards and the budgets. Each is there as soon as it can answer.

use std::{
    future::Future,
    sync::{Arc, OnceLock},
};

use guildhall_actors::{
    access::{ErasureStore, KeyStore, Note},
    budgets::Treasury,
    events::{EventStore, ShardBoard},
    rest::Gate,
};
use guildhall_core::answer::Credential;

use super::{Control, Keys, Reload, Served, refusal};
use crate::api::problem::{Problem, Told};

/// The gate, and whose calls go through it.
#[derive(Clone, Debug)]
pub struct GateDesk {
    /// What every call to Discord goes through.
    pub gate: Arc<Gate>,
    /// The bot.
    pub credential: Credential,
}

/// The shards.
#[derive(Clone)]
pub struct ShardDesk {
    /// Those of this process.
    pub board: Arc<dyn ShardBoard>,
    /// Where the sessions of all of them are kept.
    pub sessions: Arc<dyn EventStore>,
}

impl std::fmt::Debug for ShardDesk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardDesk").finish_non_exhaustive()
    }
}

/// All of them, each once it is there.
#[derive(Debug, Default)]
pub(super) struct Desks {
    gate: OnceLock<GateDesk>,
    shards: OnceLock<ShardDesk>,
    budgets: OnceLock<Arc<Treasury>>,
    erasure: OnceLock<Erasure>,
    reload: OnceLock<Reloads>,
}

/// What reloads the settings.
#[derive(Clone)]
struct Reloads(Arc<dyn Reload>);

impl std::fmt::Debug for Reloads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reloads")
    }
}

/// What erases stored data.
#[derive(Clone)]
struct Erasure(Arc<dyn ErasureStore>);

impl std::fmt::Debug for Erasure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Erasure")
    }
}

impl Control {
    /// From now on this is the gate. A second one changes nothing.
    pub fn open_gate(&self, gate: GateDesk) {
        drop(self.desks.gate.set(gate));
    }

    /// From now on these are the shards. Others change nothing.
    pub fn open_shards(&self, shards: ShardDesk) {
        drop(self.desks.shards.set(shards));
    }

    /// From now on these are the budgets. Others change nothing.
    pub fn open_budgets(&self, budgets: Arc<Treasury>) {
        drop(self.desks.budgets.set(budgets));
    }

    /// Sets what reloads the settings. Only the first call has an effect.
    pub fn open_reload(&self, reload: Arc<dyn Reload>) {
        drop(self.desks.reload.set(Reloads(reload)));
    }

    /// Sets what erases stored data. Only the first call has an effect.
    pub fn open_erasure(&self, store: Arc<dyn ErasureStore>) {
        drop(self.desks.erasure.set(Erasure(store)));
    }
}

/// Where it is written down what somebody is about to do. To be asked within what is done, so that a caller that hangs up
/// cannot come between the two.
pub(super) struct Book(Arc<dyn KeyStore>);

impl Book {
    /// Writes it down, before it is done: what cannot be written down is not done.
    pub(super) async fn note(&self, note: Note) -> Result<(), Told> {
        self.0.note(note).await.map_err(|error| refusal::of_store(&error))
    }
}

impl Served {
    pub(super) fn book(&self) -> Result<Book, Told> {
        let Keys(keys) = self.control.keys.get().ok_or(Problem::Starting)?;
        Ok(Book(Arc::clone(keys)))
    }

    pub(super) fn gate(&self) -> Result<GateDesk, Told> {
        Ok(self.control.desks.gate.get().ok_or(Problem::Starting)?.clone())
    }

    /// Asks the gate; nothing is answered by a process that is ending.
    pub(super) async fn ask_gate<T, F>(&self, question: impl FnOnce(GateDesk) -> F) -> Result<T, Told>
    where
        F: Future<Output = Option<T>> + Send + 'static,
        T: Send + 'static,
    {
        let desk = self.gate()?;
        self.run(|| question(desk)).await?.ok_or_else(ending)
    }

    pub(super) async fn ask_shards<T, F>(&self, question: impl FnOnce(ShardDesk) -> F) -> Result<T, Told>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let desk = self.control.desks.shards.get().ok_or(Problem::Starting)?.clone();
        self.run(|| question(desk)).await
    }

    pub(super) async fn ask_budgets<T, F>(&self, question: impl FnOnce(Arc<Treasury>) -> F) -> Result<T, Told>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let budgets = Arc::clone(self.control.desks.budgets.get().ok_or(Problem::Starting)?);
        self.run(|| question(budgets)).await
    }

    pub(super) async fn ask_reload<T, F>(&self, question: impl FnOnce(Arc<dyn Reload>) -> F) -> Result<T, Told>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let Reloads(reload) = self.control.desks.reload.get().ok_or(Problem::Starting)?.clone();
        self.run(|| question(reload)).await
    }

    pub(super) async fn ask_erasure<T, F>(&self, question: impl FnOnce(Arc<dyn ErasureStore>) -> F) -> Result<T, Told>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let Erasure(store) = self.control.desks.erasure.get().ok_or(Problem::Starting)?.clone();
        self.run(|| question(store)).await
    }
}

/// There is nobody left who could do it.
pub(super) fn ending() -> Told {
    Problem::StoreUnavailable.says("The process is ending. Ask another one, or this one again in a while.")
}
