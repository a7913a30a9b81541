//! Configuration of gateway connections. A new token applies from the next connection on.

use std::sync::{
    PoisonError, RwLock,
    atomic::{AtomicU64, Ordering},
};

use twilight_gateway::Config;

use crate::settings::SecretValue;

/// Builds a configuration with a token.
type BuildConfig<Q> = Box<dyn Fn(&SecretValue) -> Config<Q> + Send + Sync>;

/// The configuration that all shards share. It contains the TLS context, so it is built once for each token.
pub(super) struct ConfigTemplate<Q> {
    current: RwLock<Config<Q>>,
    build: BuildConfig<Q>,
    /// Number of token changes.
    generation: AtomicU64,
}

impl<Q: Clone> ConfigTemplate<Q> {
    pub(super) fn new(token: &SecretValue, build: impl Fn(&SecretValue) -> Config<Q> + Send + Sync + 'static) -> Self {
        Self { current: RwLock::new(build(token)), build: Box::new(build), generation: AtomicU64::new(0) }
    }

    /// Sets the token of new connections.
    pub(super) fn set_token(&self, token: &SecretValue) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = (self.build)(token);
        self.generation.fetch_add(1, Ordering::Release);
    }

    pub(super) fn config(&self) -> Config<Q> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes whenever the token does.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}
