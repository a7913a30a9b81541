//! State shared by all connections: one world behind one lock, so that effects have one order.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ed25519_dalek::SigningKey;

use crate::config::SimConfig;
use crate::control;
use crate::fault::Faults;
use crate::gateway::Hub;
use crate::limit::{BanLedger, Gate};
use crate::score::ScoreKeeper;
use crate::time::{At, Clock};
use crate::world::World;

/// The simulator as its connections see it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: SimConfig,
    /// Address that it listens on.
    pub(crate) address: SocketAddr,
    /// Signs interactions that are posted to a URL.
    pub(crate) signing_key: SigningKey,
    clock: Clock,
    core: Mutex<Core>,
}

/// The state behind the lock. Never held across an await.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) world: World,
    pub(crate) hub: Hub,
    pub(crate) limits: Gate,
    pub(crate) bans: BanLedger,
    pub(crate) faults: Faults,
    pub(crate) score: ScoreKeeper,
}

impl Shared {
    pub(crate) fn new(config: SimConfig, address: SocketAddr) -> Self {
        let clock = Clock::start(config.clock_ahead_s);
        let core = Core::new(&config, address, clock.now());
        let signing_key = control::signing_key(config.seed);
        Self { config, address, signing_key, clock, core: Mutex::new(core) }
    }

    pub(crate) fn now(&self) -> At {
        self.clock.now()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        // A panic in a handler must not stop the whole simulator: the world stays as the handler left it.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Core {
    pub(crate) fn new(config: &SimConfig, address: SocketAddr, now: At) -> Self {
        let mut world = World::new(config, now);
        world.gateway_url = format!("ws://{address}");
        world.verify_key = control::public_key(&control::signing_key(config.seed));
        Self {
            world,
            hub: Hub::new(&config.gateway),
            limits: Gate::new(config.limits.clone()),
            bans: BanLedger::default(),
            faults: Faults::new(config.seed),
            score: ScoreKeeper::new(config.max_effects),
        }
    }

    /// Passes the events of the world to the sessions that receive them.
    pub(crate) fn deliver(&mut self, now: At) {
        let mut outbox = std::mem::take(&mut self.world.outbox);
        for dispatch in outbox.drain(..) {
            self.hub.dispatch(&self.world, &dispatch, now);
        }
        self.world.outbox = outbox;
    }
}
