//! From a name to addresses.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

/// A lookup under way.
pub type LookupFuture = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// Whoever knows where a name leads. What it says is not trusted: each address is looked at before it is called.
pub trait Resolver: Send + Sync + 'static {
    /// The addresses of a name, those to be tried first at the front.
    fn resolve(&self, name: &str, port: u16) -> LookupFuture;
}

/// The system's own.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve(&self, name: &str, port: u16) -> LookupFuture {
        let name = name.to_owned();
        Box::pin(async move { Ok(tokio::net::lookup_host((name, port)).await?.collect()) })
    }
}
