//! A minimal gateway for a shard: HELLO, READY or RESUMED, heartbeats and closes, over real WebSockets.

use std::{sync::Arc, sync::mpsc as std_mpsc};

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, mpsc},
};
use tokio_websockets::{CloseCode, Message, ServerBuilder, WebSocketStream};

use crate::program::TEST_TIMEOUT;

/// What the gateway does with a shard that has identified.
#[derive(Clone)]
pub enum GatewayBehavior {
    /// Keeps the connection open, and answers a close.
    Normal,
    /// Keeps the connection open, and answers a close only after a notification.
    SlowClose(Arc<Notify>),
    /// Closes the connection with this code and reason instead of READY.
    CloseOnIdentify(u16, String),
    /// Closes the first session with 4000 after READY. Then behaves normally.
    DropFirstSession,
    /// Answers the first IDENTIFY with heartbeats only. Then behaves normally.
    IgnoreFirstIdentify,
    /// Sends the token back in every possible place, then closes with 4000. Then behaves normally.
    EchoToken,
}

/// A frame that the gateway received from a shard.
#[derive(Debug)]
pub enum ReceivedFrame {
    Identify(Value),
    Resume(Value),
    Closed(u16),
}

pub struct FakeGateway {
    pub url: String,
    next_frame: std_mpsc::Receiver<ReceivedFrame>,
}

impl FakeGateway {
    pub async fn start(behavior: GatewayBehavior) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let (sender, frames) = std_mpsc::channel();
        let (first_used, mut first_used_receiver) = mpsc::channel::<()>(1);
        let resume_url = url.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let is_repeat = first_used_receiver.try_recv().is_ok();
                let behavior = if is_repeat
                    && matches!(
                        behavior,
                        GatewayBehavior::DropFirstSession
                            | GatewayBehavior::EchoToken
                            | GatewayBehavior::IgnoreFirstIdentify
                    ) {
                    GatewayBehavior::Normal
                } else {
                    behavior.clone()
                };
                let session = FakeSession {
                    behavior,
                    url: resume_url.clone(),
                    frames: sender.clone(),
                    first_used: first_used.clone(),
                };
                tokio::spawn(session.run(stream));
            }
        });
        Self { url, next_frame: frames }
    }

    /// Waits for the next frame.
    pub fn next_frame(&self) -> ReceivedFrame {
        self.next_frame.recv_timeout(TEST_TIMEOUT).expect("the gateway received no more frames")
    }
}

struct FakeSession {
    behavior: GatewayBehavior,
    url: String,
    frames: std_mpsc::Sender<ReceivedFrame>,
    first_used: mpsc::Sender<()>,
}

impl FakeSession {
    async fn run(self, stream: TcpStream) {
        let Ok((_, mut socket)) = ServerBuilder::new().accept(stream).await else { return };
        send(&mut socket, &json!({"t": null, "s": null, "op": 10, "d": {"heartbeat_interval": 45_000}})).await;
        while let Some(Ok(message)) = socket.next().await {
            if let Some((code, _)) = message.as_close() {
                if let GatewayBehavior::SlowClose(close_allowed) = &self.behavior {
                    drop(self.frames.send(ReceivedFrame::Closed(code.into())));
                    // The answer is sent when the socket is read again.
                    close_allowed.notified().await;
                    continue;
                }
                drop(self.frames.send(ReceivedFrame::Closed(code.into())));
                continue;
            }
            let frame: Value = serde_json::from_str(message.as_text().unwrap()).unwrap();
            match frame["op"].as_u64() {
                Some(1) => send(&mut socket, &json!({"t": null, "s": null, "op": 11, "d": null})).await,
                Some(2) => {
                    drop(self.frames.send(ReceivedFrame::Identify(frame["d"].clone())));
                    self.on_identify(&mut socket, &frame["d"]).await;
                }
                Some(6) => {
                    drop(self.frames.send(ReceivedFrame::Resume(frame["d"].clone())));
                    send(&mut socket, &json!({"t": "RESUMED", "s": 9, "op": 0, "d": {}})).await;
                }
                _ => {}
            }
        }
    }

    async fn on_identify(&self, socket: &mut WebSocketStream<TcpStream>, identify: &Value) {
        if let GatewayBehavior::IgnoreFirstIdentify = &self.behavior {
            self.first_used.send(()).await.unwrap();
            return;
        }
        if let GatewayBehavior::CloseOnIdentify(code, reason) = &self.behavior {
            return close(socket, *code, reason).await;
        }
        let ready = json!({"session_id": "a-session", "resume_gateway_url": self.url, "v": 10});
        send(socket, &json!({"t": "READY", "s": 1, "op": 0, "d": ready})).await;
        send(socket, &json!({"t": "GUILD_CREATE", "s": 2, "op": 0, "d": {"id": "1"}})).await;
        send(socket, &json!({"t": "SOMETHING_NEW", "s": 3, "op": 0, "d": {}})).await;
        match self.behavior {
            GatewayBehavior::Normal
            | GatewayBehavior::SlowClose(_)
            | GatewayBehavior::CloseOnIdentify(..)
            | GatewayBehavior::IgnoreFirstIdentify => {}
            GatewayBehavior::DropFirstSession => {
                self.first_used.send(()).await.unwrap();
                close(socket, 4000, "").await;
            }
            GatewayBehavior::EchoToken => {
                self.first_used.send(()).await.unwrap();
                let token = identify["token"].as_str().unwrap();
                send(socket, &json!({"t": token, "s": 4, "op": 0, "d": identify})).await;
                send(socket, &json!({"t": "MESSAGE_CREATE", "s": 5, "op": 0, "d": {"content": token}})).await;
                socket.send(Message::text(format!("{{\"op\": 10, \"d\": \"{token}\"}}"))).await.unwrap();
                socket.send(Message::text(token.to_owned())).await.unwrap();
                close(socket, 4000, token).await;
            }
        }
    }
}

async fn send(socket: &mut WebSocketStream<TcpStream>, frame: &Value) {
    // A shard that has disconnected matters to the test, not to the gateway.
    drop(socket.send(Message::text(frame.to_string())).await);
}

async fn close(socket: &mut WebSocketStream<TcpStream>, code: u16, reason: &str) {
    drop(socket.send(Message::close(Some(CloseCode::try_from(code).unwrap()), reason)).await);
}
