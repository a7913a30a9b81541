//! A shard over a scripted connection.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use actix::Actor as _;
use guildhall_core::backoff::Backoff;
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;
use tokio::time::{Instant, timeout};

use super::*;
use crate::ports::{GatewayItem, GatewayState, SessionPosition, ShardState};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const SHARD: u32 = 3;

/// What a test makes the connection yield, and what the shard did with it.
#[derive(Default)]
struct Script {
    items: VecDeque<GatewayItem>,
    waker: Option<Waker>,
    closed: bool,
    resets: Vec<u64>,
}

/// A connection that yields what a test pushes.
#[derive(Clone, Default)]
struct ScriptedConnection {
    script: Arc<Mutex<Script>>,
    session: Option<(String, u64)>,
    fatal: bool,
}

impl ScriptedConnection {
    fn push(&self, item: GatewayItem) {
        let mut script = self.script.lock().unwrap();
        script.items.push_back(item);
        script.waker.take().into_iter().for_each(Waker::wake);
    }

    fn ready(&self) {
        self.push(GatewayItem::Text(r#"{"op":10,"d":{"heartbeat_interval":41250}}"#.to_owned()));
        self.push(GatewayItem::Text(r#"{"op":0,"s":1,"t":"READY","d":{"session_id":"session"}}"#.to_owned()));
    }

    fn message(&self, seq: u64) {
        let text = format!(
            r#"{{"op":0,"s":{seq},"t":"MESSAGE_CREATE","d":{{"id":"{seq}","channel_id":"2","guild_id":"1","content":""}}}}"#
        );
        self.push(GatewayItem::Text(text));
    }
}

impl GatewayConnection for ScriptedConnection {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<GatewayItem> {
        let mut script = self.script.lock().unwrap();
        match script.items.pop_front() {
            Some(item) => {
                if let GatewayItem::Text(text) = &item
                    && let Some(seq) =
                        text.split(r#""s":"#).nth(1).and_then(|rest| rest.split(',').next()?.parse().ok())
                {
                    self.session = Some(("session".to_owned(), seq));
                }
                self.fatal |= matches!(item, GatewayItem::Closed { code: Some(4004) });
                Poll::Ready(item)
            }
            // A peer that is asked to close responds at once.
            None if std::mem::take(&mut script.closed) => Poll::Ready(GatewayItem::Closed { code: Some(4000) }),
            None => {
                script.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn state(&self) -> GatewayState {
        match (&self.session, self.fatal) {
            (_, true) => GatewayState::FatallyClosed,
            (Some(_), false) => GatewayState::Active,
            (None, false) => GatewayState::Identifying,
        }
    }

    fn session(&self) -> Option<SessionPosition<'_>> {
        self.session.as_ref().map(|(id, sequence)| SessionPosition { id, sequence: *sequence })
    }

    fn resume_url(&self) -> Option<&str> {
        Some("ws://resume")
    }

    fn latency(&self) -> Option<Duration> {
        None
    }

    fn identify_granted_at(&self) -> Option<Instant> {
        None
    }

    fn close(&mut self) {
        self.script.lock().unwrap().closed = true;
    }

    fn reset(&mut self, last: u64) {
        let mut script = self.script.lock().unwrap();
        script.resets.push(last);
        script.closed = false;
    }

    fn renew_token(&mut self, _: u64) {}

    fn advice(&self, code: u16) -> String {
        format!("advice for {code}")
    }
}

/// A shard that runs in the current local set.
struct RunningShard {
    connection: ScriptedConnection,
    handle: ShardHandle,
    messages: mpsc::Receiver<ShardMessage>,
    credit: Arc<Credit>,
    exit: oneshot::Receiver<ShardEnd>,
}

impl RunningShard {
    fn start(limit: FlowLimit) -> Self {
        let connection = ScriptedConnection::default();
        let (tx, messages) = mpsc::channel(64);
        let (exited, exit) = oneshot::channel();
        let credit = Credit::new(limit);
        let second = Duration::from_secs(1);
        let (handle, start) = Shard::prepare(ShardSpec {
            number: SHARD,
            connection: connection.clone(),
            unread: BTreeSet::new(),
            sender: ShardSender::new(tx, Arc::clone(&credit)),
            observer: Arc::new(|_| {}),
            clock: WallClock::system(),
            config: ShardConfig {
                buffer: FlowLimit { events: 100, bytes: 1 << 20 },
                backoff: Backoff::up_to(second, second),
                hello_timeout: Duration::from_secs(10),
            },
            lease: LeaseGuard::always(),
            on_exit: Box::new(move |end| {
                let _ = exited.send(end);
            }),
        });
        start();
        Self { connection, handle, messages, credit, exit }
    }

    async fn next(&mut self) -> ShardMessage {
        timeout(TEST_TIMEOUT, self.messages.recv()).await.unwrap().unwrap()
    }

    /// Numbers of the next batch of events; skips other messages.
    async fn next_events(&mut self) -> Vec<u64> {
        loop {
            if let ShardMessage::Events(batch) = self.next().await {
                return batch.events.iter().map(|event| event.origin.seq).collect();
            }
        }
    }

    async fn end(self) -> ShardEnd {
        timeout(TEST_TIMEOUT, self.exit).await.unwrap().unwrap()
    }
}

const LARGE: FlowLimit = FlowLimit { events: 100, bytes: 1 << 20 };

#[tokio::test(start_paused = true)]
async fn forwards_a_session_and_its_events_in_order() {
    let test = async {
        let mut shard = RunningShard::start(LARGE);
        shard.connection.ready();
        (2..=4).for_each(|seq| shard.connection.message(seq));
        let first = shard.next().await;
        let ShardMessage::SessionStarted { shard: SHARD, session, resume_url } = first else { panic!("{first:?}") };
        assert_eq!((&*session, resume_url.as_deref()), ("session", Some("ws://resume")));
        assert!(matches!(shard.next().await, ShardMessage::Skipped { seq: 1, .. }));
        assert_eq!(shard.next_events().await, [2, 3, 4]);
        let view = shard.handle.view();
        assert_eq!((view.shard, view.state, view.identifies), (SHARD, ShardState::Connected, 1));
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn forwards_no_event_without_credit() {
    let test = async {
        let mut shard = RunningShard::start(FlowLimit { events: 1, bytes: 1 << 20 });
        shard.connection.ready();
        shard.connection.message(2);
        assert_eq!(shard.next_events().await, [2]);
        shard.connection.message(3);
        let waited = timeout(Duration::from_secs(5), shard.next_events()).await;
        assert!(waited.is_err(), "{waited:?}");
        assert_eq!(shard.credit.held(), 1);
        let used = shard.credit.used();
        shard.credit.release(used.events, used.bytes);
        assert_eq!(shard.next_events().await, [3]);
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn close_forwards_what_still_arrives_and_ends_the_shard() {
    let test = async {
        let mut shard = RunningShard::start(LARGE);
        shard.connection.ready();
        shard.connection.message(2);
        assert_eq!(shard.next_events().await, [2]);
        shard.connection.message(3);
        shard.handle.close();
        assert_eq!(shard.next_events().await, [3]);
        assert_eq!(shard.end().await, ShardEnd::Closed);
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn restart_resumes_after_the_last_event() {
    let test = async {
        let mut shard = RunningShard::start(LARGE);
        shard.connection.ready();
        shard.connection.message(2);
        assert_eq!(shard.next_events().await, [2]);
        shard.handle.restart();
        shard.connection.message(3);
        assert_eq!(shard.next_events().await, [3]);
        assert_eq!(shard.connection.script.lock().unwrap().resets, [3]);
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn abort_ends_the_shard_at_once() {
    let test = async {
        let shard = RunningShard::start(LARGE);
        shard.connection.ready();
        shard.handle.abort();
        assert_eq!(shard.end().await, ShardEnd::Closed);
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn fatal_close_ends_the_shard_with_its_code() {
    let test = async {
        let shard = RunningShard::start(LARGE);
        shard.connection.ready();
        shard.connection.push(GatewayItem::Closed { code: Some(4004) });
        assert_eq!(shard.end().await, ShardEnd::Refused { code: 4004 });
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_cannot_be_started_reports_its_end() {
    let (exited, exit) = oneshot::channel();
    let (tx, _messages) = mpsc::channel(1);
    let second = Duration::from_secs(1);
    let (_handle, start) = Shard::prepare(ShardSpec {
        number: SHARD,
        connection: ScriptedConnection::default(),
        unread: BTreeSet::new(),
        sender: ShardSender::new(tx, Credit::new(LARGE)),
        observer: Arc::new(|_| {}),
        clock: WallClock::system(),
        config: ShardConfig { buffer: LARGE, backoff: Backoff::up_to(second, second), hello_timeout: second },
        lease: LeaseGuard::always(),
        on_exit: Box::new(move |end| {
            let _ = exited.send(end);
        }),
    });
    drop(start);
    assert_eq!(exit.await.unwrap(), ShardEnd::Panicked);
}

#[tokio::test(start_paused = true)]
async fn observe_returns_the_status() {
    let test = async {
        let status = ShardStatus::new();
        status.set_session(&"session".into());
        let shard: Shard<ScriptedConnection> = Shard {
            exit: ExitReport { guard: None, end: ShardEnd::Closed, on_exit: None },
            number: SHARD,
            status,
            stop: watch::Sender::new(false),
            restart: watch::Sender::new(()),
            task: None,
        };
        #[expect(clippy::disallowed_methods, reason = "a test")]
        let addr = shard.start();
        let view = addr.send(ObserveShard).await.unwrap();
        assert_eq!((view.shard, view.session.as_deref()), (SHARD, Some("session")));
    };
    LocalSet::new().run_until(test).await;
}
