//! What all connections share: one world behind one lock, so that effects have one order.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::config::SimConfig;
use crate::gateway::Hub;
use crate::time::{At, Clock};
use crate::world::World;

/// The simulator as its connections see it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: SimConfig,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    clock: Clock,
    core: Mutex<Core>,
}

/// What is behind the lock. Nothing waits while holding it.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) world: World,
    pub(crate) hub: Hub,
}

impl Shared {
    pub(crate) fn new(config: SimConfig, address: SocketAddr) -> Self {
        let clock = Clock::start();
        let core = Core::new(&config, address, clock.now());
        Self { config, address, clock, core: Mutex::new(core) }
    }

    pub(crate) fn now(&self) -> At {
        self.clock.now()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        // A panic in a handler must not take the whole simulator with it: the world stays as far as it came.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Core {
    fn new(config: &SimConfig, _address: SocketAddr, now: At) -> Self {
        let mut world = World::new(config, now);
        world.outbox.clear();
        Self { world, hub: Hub::new(&config.gateway) }
    }

    /// Hands the world's news to the sessions that should see it.
    pub(crate) fn deliver(&mut self, now: At) {
        let mut outbox = std::mem::take(&mut self.world.outbox);
        for dispatch in outbox.drain(..) {
            self.hub.dispatch(&self.world, &dispatch, now);
        }
        self.world.outbox = outbox;
    }
}
