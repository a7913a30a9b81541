//! A Discord that responds at once and checks that the operations of each guild arrive one at a time and in order.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;
use guildhall_actors::gate::{ClearedRequest, RawResponse, SendFuture, Transport, TransportError};
use guildhall_core::response::ResponseClass;
use http::{HeaderMap, StatusCode};
use tokio::sync::Notify;
use tokio::time::timeout;

/// Accepts `PUT /guilds/<guild>/members/<user>/roles/<role>`. The users of a guild are numbered from 1, in the order in
/// which they should get the role.
#[derive(Debug)]
pub(crate) struct Upstream {
    expected: usize,
    seen: Mutex<UpstreamState>,
    all: Notify,
}

#[derive(Debug, Default)]
struct UpstreamState {
    guilds: HashMap<u64, Guild>,
    answered: usize,
    violations: usize,
}

#[derive(Debug, Default)]
struct Guild {
    last: u64,
    busy: bool,
}

impl Upstream {
    /// Creates an upstream that expects this number of calls.
    pub(crate) fn new(expected: usize) -> Arc<Self> {
        Arc::new(Self { expected, seen: Mutex::default(), all: Notify::new() })
    }

    /// Waits until all calls were answered, or until the timeout.
    pub(crate) async fn wait_until_answered(&self, max_wait: Duration) -> anyhow::Result<()> {
        if timeout(max_wait, self.all.notified()).await.is_err() {
            bail!("only {} of {} operations were executed within {max_wait:?}", self.seen().answered, self.expected);
        }
        Ok(())
    }

    /// Number of calls that arrived out of order, twice, or while another call of their guild was in flight.
    pub(crate) fn violations(&self) -> usize {
        self.seen().violations
    }

    fn begin(&self, guild: u64, user: u64) {
        let mut seen = self.seen();
        let entry = seen.guilds.entry(guild).or_default();
        let in_order = !entry.busy && user == entry.last + 1;
        (entry.busy, entry.last) = (true, user);
        seen.violations += usize::from(!in_order);
    }

    fn end(&self, guild: u64) {
        let mut seen = self.seen();
        seen.guilds.entry(guild).or_default().busy = false;
        seen.answered += 1;
        if seen.answered == self.expected {
            self.all.notify_one();
        }
    }

    fn seen(&self) -> MutexGuard<'_, UpstreamState> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Transport to an [`Upstream`].
#[derive(Debug)]
pub(crate) struct UpstreamTransport(pub(crate) Arc<Upstream>);

impl Transport for UpstreamTransport {
    fn send(&self, call: ClearedRequest) -> SendFuture<'_> {
        Box::pin(async move {
            let path = call.into_request().path;
            let Some((guild, user)) = parse_path(&path) else {
                return Err(TransportError::Malformed(format!("unexpected path {path}")));
            };
            self.0.begin(guild, user);
            // Gives a concurrent second call of the guild the chance to arrive.
            tokio::task::yield_now().await;
            self.0.end(guild);
            Ok(RawResponse {
                status: StatusCode::NO_CONTENT,
                headers: HeaderMap::new(),
                body: Bytes::new(),
                stream: None,
                upload: Duration::ZERO,
                class: ResponseClass::Success,
                code: None,
                rate: None,
            })
        })
    }
}

/// Returns the guild and the user of a path.
fn parse_path(path: &str) -> Option<(u64, u64)> {
    let (guild, rest) = path.strip_prefix("/guilds/")?.split_once("/members/")?;
    let (user, _) = rest.split_once("/roles/")?;
    Some((guild.parse().ok()?, user.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unordered_or_concurrent_calls_are_violations() {
        let upstream = Upstream::new(4);
        let call = |guild, user| {
            upstream.begin(guild, user);
            upstream.end(guild);
        };
        call(1, 1);
        call(2, 1);
        call(1, 2);
        assert_eq!(upstream.violations(), 0);
        call(1, 4);
        assert_eq!(upstream.violations(), 1, "3 is missing");
        upstream.begin(2, 2);
        upstream.begin(2, 3);
        assert_eq!(upstream.violations(), 2, "2 is in flight");
    }

    #[test]
    fn path_contains_guild_and_user() {
        assert_eq!(parse_path("/guilds/12/members/3/roles/4"), Some((12, 3)));
        assert_eq!(parse_path("/guilds/12/roles"), None);
    }
}
