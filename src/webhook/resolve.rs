//! Resolves names to addresses.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

/// A lookup in progress.
pub type LookupFuture = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// Resolves names. Results are not trusted: each address is checked before it is used.
pub trait Resolver: Send + Sync + 'static {
    /// Returns the addresses of a name in order of preference.
    fn resolve(&self, name: &str, port: u16) -> LookupFuture;
}

/// The system's resolver.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve(&self, name: &str, port: u16) -> LookupFuture {
        let name = name.to_owned();
        Box::pin(async move { Ok(tokio::net::lookup_host((name, port)).await?.collect()) })
    }
}
