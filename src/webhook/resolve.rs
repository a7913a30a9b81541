//! From a name to addresses.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

/// A lookup under way.
pub type Lookup = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// Whoever knows where a name leads. What it says is not trusted: each address is looked at before it is called.
pub trait Resolve: Send + Sync + 'static {
    /// The addresses of a name, those to be tried first at the front.
    fn resolve(&self, name: &str, port: u16) -> Lookup;
}

/// The system's own.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, name: &str, port: u16) -> Lookup {
        let name = name.to_owned();
        Box::pin(async move { Ok(tokio::net::lookup_host((name, port)).await?.collect()) })
    }
}
