//! All components that an operation passes through in the daemon, from the operation service to the transport,
//! assembled as in the daemon. Only Discord is replaced, and no limit delays a call.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use guildhall::api::Readiness;
use guildhall::daemon::OperationsComponent;
use guildhall::discord::executor::{DiscordExecutor, ExecutorConfig};
use guildhall::settings;
use guildhall::settings::{Settings, SettingsSources};
use guildhall::store::Store;
use guildhall_actors::access::{RoleCache, RoleCacheConfig};
use guildhall_actors::gate::{Gate, GateConfig};
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_actors::ports::OperationStore;
use guildhall_actors::submission::OperationService;
use guildhall_core::limit::LimitConfig;
use twilight_model::id::Id;

use super::upstream::{Upstream, UpstreamTransport};

/// More than any benchmark sends in a window.
const NO_LIMIT: u32 = 10_000_000;

/// Time limit for operations in flight to finish.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// The running components.
pub(crate) struct OperationsFixture {
    pub(crate) store: Store,
    component: OperationsComponent,
}

impl OperationsFixture {
    /// Opens the store and starts to execute its operations.
    pub(crate) async fn start(settings: &Settings, upstream: Arc<Upstream>) -> anyhow::Result<Self> {
        let store = Store::open(&settings.store).await?;
        Ok(Self::with_store(store, settings, upstream))
    }

    /// Starts to execute the operations of an open store.
    pub(crate) fn with_store(store: Store, settings: &Settings, upstream: Arc<Upstream>) -> Self {
        let limits = LimitConfig {
            global: NO_LIMIT,
            window: Duration::from_millis(1),
            margin: Duration::ZERO,
            settling: Duration::ZERO,
            ..settings.gate.limits.clone()
        };
        let gate = Gate::start(
            UpstreamTransport(upstream),
            GateConfig { limits, ..GateConfig::default() },
            LeaseGuard::always(),
        );
        let operation_store: Arc<dyn OperationStore> = Arc::new(store.clone());
        let executor = DiscordExecutor::new(gate, Id::new(1), Id::new(2), operation_store, ExecutorConfig::default());
        let readiness = Readiness::default().register("store");
        let roles = Arc::new(RoleCache::new(RoleCacheConfig::default()));
        let executor = executor.with_roles(Arc::clone(&roles));
        let component =
            OperationsComponent::start(settings, 1, store.clone(), Arc::new(executor), None, roles, readiness);
        Self { store, component }
    }

    /// Service that accepts operations.
    pub(crate) fn service(&self) -> &Arc<OperationService> {
        self.component.service()
    }

    /// Starts no more operations, waits until all results are stored, and releases every queue.
    pub(crate) async fn drain(&self) -> anyhow::Result<()> {
        ensure!(
            self.component.drain(DRAIN_TIMEOUT).await,
            "operations in flight did not finish within {DRAIN_TIMEOUT:?}"
        );
        Ok(())
    }

    /// Closes the store. Call `drain` first.
    pub(crate) async fn close(self) {
        self.component.close().await;
    }
}

/// Default settings of the daemon, with these overrides by environment variable name.
pub(crate) fn settings(store_url: &str, overrides: &[(&str, &str)]) -> anyhow::Result<Settings> {
    let to_os = |(name, value): (&str, &str)| (OsString::from(name), OsString::from(value));
    let url = ("GUILDHALL__STORE__URL", store_url);
    let environment = std::iter::once(url).chain(overrides.iter().copied()).map(to_os).collect();
    // An empty file, so that no settings file in the working directory is read.
    let empty_file = tempfile::NamedTempFile::new()?;
    Ok(settings::load(SettingsSources { file: Some(empty_file.path().to_owned()), environment, flags: Vec::new() })?
        .settings)
}
