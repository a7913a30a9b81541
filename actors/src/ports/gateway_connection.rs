//! A connection to Discord's gateway.

use std::error::Error;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

/// Why a connection failed.
pub type GatewayError = Box<dyn Error + Send + Sync>;

/// What a connection yields.
#[derive(Debug)]
pub enum GatewayItem {
    /// A message.
    Text(String),
    /// The connection was closed. Unless the close is fatal, the next poll makes another connection.
    Closed {
        /// The close code, if there was one.
        code: Option<u16>,
    },
    /// No connection could be made.
    Unreachable(GatewayError),
    /// A message was malformed and skipped. The connection continues.
    Malformed(GatewayError),
    /// Received data could not be decoded. The next poll makes another connection.
    Undecodable(GatewayError),
    /// The connection was closed fatally before. Nothing follows.
    Ended,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatewayState {
    /// There is no connection.
    Disconnected,
    /// Connected; a new session is requested.
    Identifying,
    /// Connected; the session is being resumed.
    Resuming,
    /// The session receives events.
    Active,
    /// Discord rejected the shard. It never connects again.
    FatallyClosed,
}

/// A session, as its connection knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionPosition<'a> {
    /// Session id of Discord.
    pub id: &'a str,
    /// Sequence number of the last dispatch.
    pub sequence: u64,
}

/// The connection of one shard. It identifies, resumes, sends heartbeats and reconnects while it is polled.
pub trait GatewayConnection: Send + Unpin + 'static {
    /// Polls for the next item. Cancel safe: an item is lost only if it was returned.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<GatewayItem>;

    /// State of the connection.
    fn state(&self) -> GatewayState;

    /// The session to resume, if there is one.
    fn session(&self) -> Option<SessionPosition<'_>>;

    /// URL to resume the session at.
    fn resume_url(&self) -> Option<&str>;

    /// Latency of the last heartbeat.
    fn latency(&self) -> Option<Duration>;

    /// When the shard was permitted to identify; `None` while it waits for that.
    fn identify_granted_at(&self) -> Option<Instant>;

    /// Closes the connection with code 4000, so that the session stays resumable. The peer's response is polled for.
    fn close(&mut self);

    /// Drops the connection. The next poll makes another one, which resumes the session after `last`.
    fn reset(&mut self, last: u64);

    /// Uses the newest token, if it has changed and there is no connection. Resumes after `last`.
    fn renew_token(&mut self, last: u64);

    /// What to do about a fatal close with this code.
    fn advice(&self, code: u16) -> String;
}
