//! State shared by all connections: one world behind one lock, so that effects have one order.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ed25519_dalek::SigningKey;

use crate::config::SimConfig;
use crate::control;
use crate::fault::Faults;
use crate::gateway::GatewayState;
use crate::limit::{BanLedger, Gate};
use crate::score::ScoreCounters;
use crate::time::{At, Clock};
use crate::world::World;

/// The simulator as its connections see it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: SimConfig,
    /// Address that it listens on.
    pub(crate) address: SocketAddr,
    pub(crate) urls: Urls,
    /// Signs interactions that are posted to a URL.
    pub(crate) signing_key: SigningKey,
    clock: Clock,
    core: Mutex<Core>,
}

/// The URLs that it is reached by.
#[derive(Clone, Debug)]
pub(crate) struct Urls {
    /// Such as `http://127.0.0.1:port`.
    pub(crate) http: String,
    /// Such as `ws://127.0.0.1:port`.
    pub(crate) gateway: String,
}

impl Urls {
    fn new(address: SocketAddr, tls: bool) -> Self {
        let s = if tls { "s" } else { "" };
        Self { http: format!("http{s}://{address}"), gateway: format!("ws{s}://{address}") }
    }
}

/// The state behind the lock. Never held across an await.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) world: World,
    pub(crate) gateway: GatewayState,
    pub(crate) limits: Gate,
    pub(crate) bans: BanLedger,
    pub(crate) faults: Faults,
    pub(crate) score: ScoreCounters,
}

impl Shared {
    pub(crate) fn new(config: SimConfig, address: SocketAddr) -> Self {
        let clock = Clock::start(config.clock_ahead_s);
        Self::with_clock(config, address, clock)
    }

    pub(crate) fn with_clock(config: SimConfig, address: SocketAddr, clock: Clock) -> Self {
        let urls = Urls::new(address, config.tls);
        let core = Core::new(&config, &urls, clock.now());
        let signing_key = control::signing_key(config.seed);
        Self { config, address, urls, signing_key, clock, core: Mutex::new(core) }
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
    pub(crate) fn new(config: &SimConfig, urls: &Urls, now: At) -> Self {
        let mut world = World::new(config, now);
        world.set_http_url(&urls.http);
        world.gateway_url.clone_from(&urls.gateway);
        world.verify_key = control::public_key(&control::signing_key(config.seed));
        Self {
            world,
            gateway: GatewayState::new(&config.gateway),
            limits: Gate::new(config.limits.clone()),
            bans: BanLedger::default(),
            faults: Faults::new(config.seed),
            score: ScoreCounters::new(config.max_effects),
        }
    }

    /// Passes the events of the world to the sessions that receive them.
    pub(crate) fn deliver(&mut self, now: At) {
        let mut dispatches = std::mem::take(&mut self.world.dispatches);
        for dispatch in dispatches.drain(..) {
            self.gateway.dispatch(&self.world, &dispatch, now);
        }
        self.world.dispatches = dispatches;
    }
}
