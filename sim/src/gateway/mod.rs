//! The gateway.

use std::sync::Arc;

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_websockets::WebSocketStream;

use crate::config::GatewayConfig;
use crate::dispatch::Dispatch;
use crate::state::Shared;
use crate::time::At;
use crate::world::World;

/// All sessions.
#[derive(Debug)]
pub(crate) struct Hub {}

impl Hub {
    pub(crate) fn new(_config: &GatewayConfig) -> Self {
        Self {}
    }

    pub(crate) fn dispatch(&mut self, _world: &World, _dispatch: &Dispatch, _now: At) {}
}

/// Serves one gateway connection until it ends.
pub(crate) async fn serve(_shared: Arc<Shared>, _socket: WebSocketStream<TokioIo<Upgraded>>, _query: &str) {}
