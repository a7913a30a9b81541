//! The services that the API calls.
//!
//! What exists before the listener starts (keys, erasure, the gate) is given to [`Control`](super::Control) when it is built. The others
//! are published once each: [`Services`] when operations run, [`GatewayServices`] when the gateway is known.

use std::{future::Future, sync::Arc};

use guildhall_actors::access::{AuditRecord, ErasureStore};
use guildhall_actors::budget::BudgetService;
use guildhall_actors::gate::Gate;
use guildhall_actors::ports::{ChangeFeed, EventStore, KeyStore, ShardAdmin};
use guildhall_actors::submission::OperationService;
use guildhall_core::response::Credential;

use super::app_state::AppState;
use super::errors;
use super::handlers::reload::Reload;
use super::handlers::state::StateService;
use super::problem::{ProblemResponse, ProblemType};

/// The gate, and the credential of its calls.
#[derive(Clone, Debug)]
pub struct GateService {
    /// The gate that every call to Discord passes.
    pub gate: Arc<Gate>,
    /// The bot's credential.
    pub credential: Credential,
}

/// The shards.
#[derive(Clone)]
pub struct ShardService {
    /// Shards of this process.
    pub admin: Arc<dyn ShardAdmin>,
    /// Sessions of all shards.
    pub sessions: Arc<dyn EventStore>,
}

impl std::fmt::Debug for ShardService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardService").finish_non_exhaustive()
    }
}

/// Services that exist once operations run. Requests for one that is missing are answered 503.
#[derive(Clone, Default)]
pub struct Services {
    /// Submits and shows operations.
    pub operations: Option<Arc<OperationService>>,
    /// Changes of operations, for streams and for requests that wait.
    pub changes: Option<Arc<dyn ChangeFeed>>,
    /// Budgets of other upstreams.
    pub budgets: Option<Arc<BudgetService>>,
}

impl std::fmt::Debug for Services {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Services").finish_non_exhaustive()
    }
}

/// Services that exist once the gateway is known. Requests for one that is missing are answered 503.
#[derive(Clone, Default)]
pub struct GatewayServices {
    /// Stored values and dead events.
    pub state: Option<Arc<StateService>>,
    /// The shards.
    pub shards: Option<ShardService>,
    /// Reloads the settings.
    pub reload: Option<Arc<dyn Reload>>,
}

impl std::fmt::Debug for GatewayServices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GatewayServices").finish_non_exhaustive()
    }
}

/// Writes audit records. Call this within the work that it records, so that a caller that closes its connection cannot
/// separate the two.
pub(crate) struct AuditWriter(Arc<dyn KeyStore>);

impl AuditWriter {
    /// Stores a record before the work is done. If it cannot be stored, the work must not be done.
    pub(crate) async fn write(&self, note: AuditRecord) -> Result<(), ProblemResponse> {
        self.0.add_audit_record(note).await.map_err(|error| errors::store_problem(&error))
    }
}

impl AppState {
    pub(crate) fn audit_writer(&self) -> Result<AuditWriter, ProblemResponse> {
        Ok(AuditWriter(self.key_store()?))
    }

    /// Calls the gate.
    pub(crate) async fn with_gate<T, F>(&self, question: impl FnOnce(GateService) -> F) -> Result<T, ProblemResponse>
    where
        F: Future<Output = Option<T>> + Send + 'static,
        T: Send + 'static,
    {
        let gate = self.gate()?;
        self.run(|| question(gate)).await?.ok_or_else(shutting_down)
    }

    /// Calls the service of operations, on the runtime that it belongs to: a caller that closes its connection does not stop
    /// it half way.
    pub(crate) async fn with_operations<T, F>(
        &self,
        question: impl FnOnce(Arc<OperationService>) -> F,
    ) -> Result<T, ProblemResponse>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let service = published(self.services().and_then(|services| services.operations.clone()))?;
        self.run(|| question(service)).await
    }

    pub(crate) async fn with_budgets<T, F>(
        &self,
        question: impl FnOnce(Arc<BudgetService>) -> F,
    ) -> Result<T, ProblemResponse>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let service = published(self.services().and_then(|services| services.budgets.clone()))?;
        self.run(|| question(service)).await
    }

    pub(crate) async fn with_state<T, F>(
        &self,
        question: impl FnOnce(Arc<StateService>) -> F,
    ) -> Result<T, ProblemResponse>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let service = published(self.gateway_services().and_then(|services| services.state.clone()))?;
        self.run(|| question(service)).await
    }

    pub(crate) async fn with_shards<T, F>(&self, question: impl FnOnce(ShardService) -> F) -> Result<T, ProblemResponse>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let service = published(self.gateway_services().and_then(|services| services.shards.clone()))?;
        self.run(|| question(service)).await
    }

    pub(crate) async fn with_reload<T, F>(
        &self,
        question: impl FnOnce(Arc<dyn Reload>) -> F,
    ) -> Result<T, ProblemResponse>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let service = published(self.gateway_services().and_then(|services| services.reload.clone()))?;
        self.run(|| question(service)).await
    }

    pub(crate) async fn with_erasure<T, F>(
        &self,
        question: impl FnOnce(Arc<dyn ErasureStore>) -> F,
    ) -> Result<T, ProblemResponse>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let service = self.erasure()?;
        self.run(|| question(service)).await
    }
}

fn published<T>(service: Option<T>) -> Result<T, ProblemResponse> {
    service.ok_or_else(|| ProblemType::Starting.into())
}

/// The process is shutting down, and cannot do it any more.
pub(crate) fn shutting_down() -> ProblemResponse {
    ProblemType::StoreUnavailable.with_detail(
        "The process is shutting down. Retry with another process, or with this one \
        later.",
    )
}
