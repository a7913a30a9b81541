//! A store, a Discord and a way to break both, for tests.

mod chaos;
mod discord;
mod members;
mod store;
mod tables;
mod world;

pub(super) use chaos::Fault;
pub(super) use discord::{Script, Search};
pub(super) use world::{World, paused};

/// A desk in front of a store that nobody looks into.
pub(crate) fn lone_desk(now: super::WallClock) -> std::sync::Arc<super::desk::Desk> {
    struct Nobody;

    impl super::desk::Hears for Nobody {
        fn wake(&self, _: guildhall_core::operation::Queue) {}
        fn cancelled(&self, _: guildhall_core::operation::OperationId, _: guildhall_core::operation::Queue) {}
        fn hastened(&self, _: guildhall_core::operation::OperationId, _: guildhall_core::operation::Queue) {}
        fn paused(&self, _: super::Pausable, _: bool) {}
    }

    let store = std::sync::Arc::new(store::Memory::new(std::sync::Arc::default()));
    let config = super::desk::DeskConfig::default();
    let now = std::sync::Arc::new(move || now.now());
    std::sync::Arc::new(super::desk::Desk::new(store, std::sync::Arc::new(Nobody), None, config, now))
}
