//! In-memory store, fake Discord and fault injection, for tests.

mod fake_discord;
mod fault_injector;
mod memory_store;
mod ownership;
mod tables;
mod test_cluster;

pub(crate) use fake_discord::{ScriptedResult, ScriptedSearch};
pub(crate) use fault_injector::Fault;
pub(crate) use test_cluster::{TestCluster, paused};

/// A service whose store no supervisor reads.
pub(crate) fn isolated_service(
    now: crate::wall_clock::WallClock,
) -> std::sync::Arc<crate::submission::OperationService> {
    struct NullNotifier;

    impl crate::submission::QueueNotifier for NullNotifier {
        fn wake(&self, _: guildhall_core::operation::Queue) {}
        fn cancelled(&self, _: guildhall_core::operation::OperationId, _: guildhall_core::operation::Queue) {}
        fn expedited(&self, _: guildhall_core::operation::OperationId, _: guildhall_core::operation::Queue) {}
        fn paused(&self, _: crate::ports::PauseTarget, _: bool) {}
    }

    let store = std::sync::Arc::new(memory_store::MemoryStore::new(std::sync::Arc::default()));
    let config = crate::submission::SubmissionConfig::default();
    let now = std::sync::Arc::new(move || now.now());
    std::sync::Arc::new(crate::submission::OperationService::new(
        store,
        std::sync::Arc::new(NullNotifier),
        None,
        config,
        now,
    ))
}
