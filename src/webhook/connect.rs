//! Connections to checked addresses.
//!
//! ```text
//!  name ──▶ lookup, once ──▶ each address: public, or allowed? ──▶ connect to that very address ──▶ TLS, by the name
//! ```
//!
//! The name is not looked up a second time, so a name server cannot return one address for the check and another for
//! the connection.

use std::error::Error;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use guildhall_actors::supervision::spawn_work;
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};
use tower_service::Service;
use url::Host;

use super::Resolver;
use super::address::not_public;

/// Maximum number of addresses of a name that are tried.
const MAX_ADDRESSES: usize = 8;
/// Maximum number of concurrent lookups of one webhook's name. A lookup cannot be cancelled, only abandoned; so a name
/// server that hangs occupies at most this many threads.
const MAX_LOOKUPS: usize = 4;

type BoxError = Box<dyn Error + Send + Sync>;
type ConnectFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// Error of a connection attempt.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("{host} resolves to {address}, {description}, which is not permitted")]
    NotPublic { host: String, address: std::net::IpAddr, description: &'static str },
    #[error("cannot look up the name {host}")]
    Lookup {
        host: String,
        #[source]
        source: io::Error,
    },
    #[error("the name {0} has no address")]
    NoAddress(String),
    #[error("cannot connect to {address}")]
    Refused {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("no connection within {} ms", .0.as_millis())]
    TimedOut(Duration),
}

/// Which addresses a webhook may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressPolicy {
    /// Any address.
    Anywhere,
    /// Public addresses only.
    Public,
}

/// Connects to the host of one webhook, whatever URI is requested.
#[derive(Clone)]
pub(super) struct WebhookConnector {
    host: Host<String>,
    port: u16,
    address_policy: AddressPolicy,
    /// Timeout of the lookup and all connection attempts together.
    timeout: Duration,
    resolver: Arc<dyn Resolver>,
    lookups: Arc<Semaphore>,
}

impl WebhookConnector {
    pub(super) fn new(
        host: Host<String>,
        port: u16,
        reach: AddressPolicy,
        timeout: Duration,
        resolve: Arc<dyn Resolver>,
    ) -> Self {
        Self {
            host,
            port,
            address_policy: reach,
            timeout,
            resolver: resolve,
            lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)),
        }
    }

    async fn connect(self) -> Result<TcpStream, ConnectError> {
        let deadline = Instant::now() + self.timeout;
        let addresses = self.addresses(deadline).await?;
        let mut failed = ConnectError::NoAddress(self.host.to_string());
        for (at, address) in addresses.iter().enumerate() {
            if let Err(refused) = self.check(*address) {
                // An address that could not be reached is the better error, since that may change.
                if matches!(failed, ConnectError::NoAddress(_)) {
                    failed = refused;
                }
                continue;
            }
            // The remaining time is divided, so that a dead address does not use up the time of the others.
            let remaining = deadline.saturating_duration_since(Instant::now());
            let share = remaining / u32::try_from(addresses.len() - at).unwrap_or(u32::MAX);
            match timeout(share, TcpStream::connect(*address)).await {
                Ok(Ok(stream)) => {
                    // Only an optimization.
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Ok(Err(source)) => failed = ConnectError::Refused { address: *address, source },
                Err(_) => failed = ConnectError::Refused { address: *address, source: timed_out() },
            }
        }
        Err(failed)
    }

    fn check(&self, address: SocketAddr) -> Result<(), ConnectError> {
        match (self.address_policy, not_public(address.ip())) {
            (AddressPolicy::Anywhere, _) | (AddressPolicy::Public, None) => Ok(()),
            (AddressPolicy::Public, Some(description)) => {
                Err(ConnectError::NotPublic { host: self.host.to_string(), address: address.ip(), description })
            }
        }
    }

    async fn addresses(&self, deadline: Instant) -> Result<Vec<SocketAddr>, ConnectError> {
        let name = match &self.host {
            Host::Ipv4(address) => return Ok(vec![SocketAddr::from((*address, self.port))]),
            Host::Ipv6(address) => return Ok(vec![SocketAddr::from((*address, self.port))]),
            Host::Domain(name) => name.clone(),
        };
        let (resolver, lookups, port) = (self.resolver.clone(), self.lookups.clone(), self.port);
        let lookup = async {
            let permit = lookups.acquire_owned().await.expect("invariant: the semaphore is never closed");
            let name = name.clone();
            // In a task of its own, so that its permit is held until the lookup has ended, even if no caller waits for
            // it.
            let task = spawn_work(async move {
                let found = resolver.resolve(&name, port).await;
                drop(permit);
                found
            });
            task.await.unwrap_or_else(|_| Err(io::Error::other("the lookup was cancelled")))
        };
        let found = timeout_at(deadline, lookup)
            .await
            .map_err(|_| ConnectError::Lookup { host: name.clone(), source: timed_out() })?;
        let mut addresses = found.map_err(|source| ConnectError::Lookup { host: name.clone(), source })?;
        addresses.truncate(MAX_ADDRESSES);
        Ok(addresses)
    }
}

fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "timed out")
}

impl Service<Uri> for WebhookConnector {
    type Response = TokioIo<TcpStream>;
    type Error = ConnectError;
    type Future = ConnectFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let dialler = self.clone();
        Box::pin(async move { dialler.connect().await.map(TokioIo::new) })
    }
}

/// Limits the time to connect, including TLS.
#[derive(Clone)]
pub(super) struct TimeoutConnector<C> {
    pub(super) inner: C,
    pub(super) timeout: Duration,
}

impl<C> Service<Uri> for TimeoutConnector<C>
where
    C: Service<Uri, Error: Into<BoxError>>,
    C::Future: Send + 'static,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = ConnectFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, limit) = (self.inner.call(uri), self.timeout);
        Box::pin(async move {
            match timeout(limit, connecting).await {
                Ok(made) => made.map_err(Into::into),
                Err(_) => Err(ConnectError::TimedOut(limit).into()),
            }
        })
    }
}
