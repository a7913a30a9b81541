//! A minimal gateway for a shard: HELLO, READY or RESUMED, heartbeats and closes, over real WebSockets.

use std::{sync::Arc, sync::mpsc as std_mpsc};

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, mpsc},
};
use tokio_websockets::{CloseCode, Message, ServerBuilder, WebSocketStream};

use super::STUCK;

/// What the gateway does with a shard that has identified.
#[derive(Clone)]
pub(crate) enum Manner {
    /// Keeps the connection open, and answers a close.
    Kind,
    /// Keeps the connection open, and answers a close only after a notification.
    Slow(Arc<Notify>),
    /// Closes the connection with this code and reason instead of READY.
    Close(u16, String),
    /// Closes the first session with 4000 after READY. Then behaves normally.
    Drop,
    /// Answers the first IDENTIFY with heartbeats only. Then behaves normally.
    Mute,
    /// Sends the token back in every possible place, then closes with 4000. Then behaves normally.
    Echo,
}

/// A frame that the gateway received from a shard.
#[derive(Debug)]
pub(crate) enum Seen {
    Identify(Value),
    Resume(Value),
    Closed(u16),
}

pub(crate) struct Gateway {
    pub(crate) url: String,
    seen: std_mpsc::Receiver<Seen>,
}

impl Gateway {
    pub(crate) async fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let (tell, seen) = std_mpsc::channel();
        let (used, mut first) = mpsc::channel::<()>(1);
        let resume_url = url.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let again = first.try_recv().is_ok();
                let manner = if again && matches!(manner, Manner::Drop | Manner::Echo | Manner::Mute) {
                    Manner::Kind
                } else {
                    manner.clone()
                };
                let session = Session { manner, url: resume_url.clone(), tell: tell.clone(), used: used.clone() };
                tokio::spawn(session.run(stream));
            }
        });
        Self { url, seen }
    }

    /// Waits for the next frame.
    pub(crate) fn seen(&self) -> Seen {
        self.seen.recv_timeout(STUCK).expect("the gateway received no more frames")
    }
}

struct Session {
    manner: Manner,
    url: String,
    tell: std_mpsc::Sender<Seen>,
    used: mpsc::Sender<()>,
}

impl Session {
    async fn run(self, stream: TcpStream) {
        let Ok((_, mut socket)) = ServerBuilder::new().accept(stream).await else { return };
        send(&mut socket, &json!({"t": null, "s": null, "op": 10, "d": {"heartbeat_interval": 45_000}})).await;
        while let Some(Ok(message)) = socket.next().await {
            if let Some((code, _)) = message.as_close() {
                if let Manner::Slow(answer) = &self.manner {
                    drop(self.tell.send(Seen::Closed(code.into())));
                    // The answer is sent when the socket is read again.
                    answer.notified().await;
                    continue;
                }
                drop(self.tell.send(Seen::Closed(code.into())));
                continue;
            }
            let frame: Value = serde_json::from_str(message.as_text().unwrap()).unwrap();
            match frame["op"].as_u64() {
                Some(1) => send(&mut socket, &json!({"t": null, "s": null, "op": 11, "d": null})).await,
                Some(2) => {
                    drop(self.tell.send(Seen::Identify(frame["d"].clone())));
                    self.identified(&mut socket, &frame["d"]).await;
                }
                Some(6) => {
                    drop(self.tell.send(Seen::Resume(frame["d"].clone())));
                    send(&mut socket, &json!({"t": "RESUMED", "s": 9, "op": 0, "d": {}})).await;
                }
                _ => {}
            }
        }
    }

    async fn identified(&self, socket: &mut WebSocketStream<TcpStream>, told: &Value) {
        if let Manner::Mute = &self.manner {
            self.used.send(()).await.unwrap();
            return;
        }
        if let Manner::Close(code, reason) = &self.manner {
            return close(socket, *code, reason).await;
        }
        let ready = json!({"session_id": "a-session", "resume_gateway_url": self.url, "v": 10});
        send(socket, &json!({"t": "READY", "s": 1, "op": 0, "d": ready})).await;
        send(socket, &json!({"t": "GUILD_CREATE", "s": 2, "op": 0, "d": {"id": "1"}})).await;
        send(socket, &json!({"t": "SOMETHING_NEW", "s": 3, "op": 0, "d": {}})).await;
        match self.manner {
            Manner::Kind | Manner::Slow(_) | Manner::Close(..) | Manner::Mute => {}
            Manner::Drop => {
                self.used.send(()).await.unwrap();
                close(socket, 4000, "").await;
            }
            Manner::Echo => {
                self.used.send(()).await.unwrap();
                let token = told["token"].as_str().unwrap();
                send(socket, &json!({"t": token, "s": 4, "op": 0, "d": told})).await;
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
