//! All sessions and connections. Pure: the time is passed in.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::Notify;

use super::close::Close;
use super::connection::{Action, Connection};
use super::faults::ActiveFaults;
use super::frame::{Control, Event};
use super::identify::{IdentifyBudget, SessionStarts};
use super::members::MemberRequests;
use super::score::{GatewayScore, GatewayScoreCounters};
use super::session::{Session, SessionAttachment, SessionKey};
use super::session_index::SessionIndex;
use crate::config::GatewayConfig;
use crate::id::Snowflake;
use crate::time::At;
use crate::world::World;

/// Internal id of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ConnectionId(pub(crate) u64);

/// All sessions and connections.
#[derive(Debug)]
pub(crate) struct GatewayState {
    pub(super) config: GatewayConfig,
    pub(super) connections: HashMap<ConnectionId, ConnectionEntry>,
    pub(super) sessions: HashMap<SessionKey, Session>,
    pub(super) by_id: HashMap<String, SessionKey>,
    pub(super) session_index: SessionIndex,
    pub(super) budget: IdentifyBudget,
    pub(super) member_requests: MemberRequests,
    pub(super) faults: ActiveFaults,
    pub(super) scores: GatewayScoreCounters,
    /// Sessions that lost their connection, in that order; some may have a connection again.
    detached: VecDeque<(At, SessionKey)>,
    connection_count: u64,
    pub(super) identify_count: u64,
    pub(super) session_count: u64,
}

/// A connection in the gateway state.
#[derive(Debug)]
pub(super) struct ConnectionEntry {
    pub(super) connection: Connection,
    /// Wakes the task of the connection.
    pub(super) wakeup: Arc<Notify>,
    /// Frames other than events that wait to be sent.
    pub(super) controls: Vec<Control>,
    pub(super) ending: Option<Ending>,
    /// When HELLO is due; `None` after it was sent.
    pub(super) hello_at: Option<At>,
    /// A fault made it silent; it stays open until the client disconnects.
    pub(super) zombie: bool,
}

/// How the gateway ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Close(Close),
    /// Without a close frame.
    Cut,
}

/// How a connection ended, as its task reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DisconnectReason {
    /// The client closed it first, with this code.
    ClosedByClient(u16),
    /// The gateway ended it.
    ClosedByGateway,
    /// The connection was lost.
    Lost,
}

/// What the task of a connection must send now, and when it must check again.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    pub(crate) controls: Vec<Control>,
    pub(crate) events: Vec<(u64, Event)>,
    pub(crate) ending: Option<Ending>,
    /// When the next timeout is due.
    pub(crate) due: At,
}

impl GatewayState {
    pub(crate) fn new(config: &GatewayConfig) -> Self {
        Self {
            config: config.clone(),
            connections: HashMap::new(),
            sessions: HashMap::new(),
            by_id: HashMap::new(),
            session_index: SessionIndex::default(),
            budget: IdentifyBudget::new(config),
            member_requests: MemberRequests::default(),
            faults: ActiveFaults::default(),
            scores: GatewayScoreCounters::default(),
            detached: VecDeque::new(),
            connection_count: 0,
            identify_count: 0,
            session_count: 0,
        }
    }

    /// Adds a connection; returns its id, and the notification that wakes its task.
    pub(crate) fn open(&mut self, now: At) -> (ConnectionId, Arc<Notify>) {
        self.end_expired(now);
        self.connection_count += 1;
        let id = ConnectionId(self.connection_count);
        let wakeup = Arc::new(Notify::new());
        let link = ConnectionEntry {
            connection: Connection::new(&self.config, now),
            wakeup: Arc::clone(&wakeup),
            controls: Vec::new(),
            ending: None,
            hello_at: Some(self.faults.hello_at(now)),
            zombie: false,
        };
        self.connections.insert(id, link);
        self.scores.record_connection();
        (id, wakeup)
    }

    /// Counts a connection that was refused before it was added.
    pub(crate) fn record_refused(&mut self, close: Close) {
        self.scores.record_close_sent(close.code);
    }

    /// Handles a frame of a connection. `url` is the URL to resume at.
    pub(crate) fn handle_frame(&mut self, world: &World, id: ConnectionId, frame: &[u8], url: &str, now: At) {
        let Some(link) = self.connections.get_mut(&id).filter(|link| !link.zombie) else { return };
        match link.connection.on_frame(frame, now) {
            None => {}
            Some(Action::AcknowledgeHeartbeat) => {
                link.controls.push(Control::HeartbeatAck);
                self.scores.score.heartbeats += 1;
            }
            Some(Action::Identify(identify)) => self.identify(world, id, &identify, url, now),
            Some(Action::Resume(resume)) => self.resume(world, id, &resume, now),
            Some(Action::RequestMembers(session, request)) => self.request_members(world, session, request, now),
            Some(Action::Close(close)) => self.end_connection(id, Ending::Close(close), now),
        }
    }

    /// Handles a WebSocket ping. Those to a zombie are counted too, because the WebSocket layer responds to them.
    pub(crate) fn handle_ping(&mut self, id: ConnectionId, now: At) {
        let link = self.connections.get_mut(&id);
        if let Some(Action::Close(close)) = link.and_then(|link| link.connection.on_ping(now)) {
            self.end_connection(id, Ending::Close(close), now);
        }
    }

    /// Takes what the task of a connection must send now; at most `room` events.
    pub(crate) fn take_outbound(&mut self, world: &World, id: ConnectionId, room: usize, out: &mut Outbound, now: At) {
        out.controls.clear();
        out.events.clear();
        let Some(link) = self.connections.get_mut(&id) else {
            out.ending = Some(Ending::Cut);
            return;
        };
        if let Some(hello) = link.hello_at.filter(|hello| *hello <= now) {
            link.hello_at = None;
            link.connection.on_hello_sent(now.max(hello));
            link.controls.push(Control::Hello(self.config.heartbeat_interval));
        }
        let is_late = !link.zombie && link.hello_at.is_none() && link.connection.check_timeout(now).is_some();
        if is_late {
            self.scores.score.heartbeat_timeouts += 1;
            match link.connection.session() {
                // Discord's meaning of this code: the session timed out, start a new one.
                Some(key) => self.close_session(key, Close::TIMED_OUT, now),
                None => self.end_connection(id, Ending::Close(Close::TIMED_OUT), now),
            }
        }
        let Some(link) = self.connections.get_mut(&id) else { return };
        out.ending = link.ending;
        out.due = link.hello_at.unwrap_or_else(|| link.connection.deadline());
        if link.zombie {
            // A zombie has no timeout; it ends when its client disconnects.
            out.due = now.after(self.config.session_life);
            return;
        }
        out.controls.append(&mut link.controls);
        if let Some(key) = link.connection.session().filter(|_| room > 0) {
            self.announce_next(world, key, now);
            if let Some(session) = self.sessions.get_mut(&key) {
                session.replay.take(room, &mut out.events);
            }
        }
    }

    /// Removes a connection whose task has ended.
    pub(crate) fn remove_connection(&mut self, id: ConnectionId, reason: DisconnectReason, now: At) {
        let Some(link) = self.connections.get(&id) else { return };
        let session = link.connection.session();
        self.detach_session(id, now);
        self.connections.remove(&id);
        self.scores.score.connections -= 1;
        match reason {
            DisconnectReason::ClosedByClient(code) => {
                self.scores.record_close_received(code);
                if matches!(code, 1000 | 1001) {
                    session.into_iter().for_each(|key| self.end_session(key));
                }
            }
            DisconnectReason::Lost => self.scores.score.connections_lost += 1,
            DisconnectReason::ClosedByGateway => {}
        }
        self.end_expired(now);
    }

    /// Ends a connection; its session stays for a RESUME.
    pub(super) fn end_connection(&mut self, id: ConnectionId, ending: Ending, now: At) {
        self.detach_session(id, now);
        let Some(link) = self.connections.get_mut(&id).filter(|link| link.ending.is_none()) else { return };
        link.connection.close();
        link.ending = Some(ending);
        link.zombie = false;
        if let Ending::Close(close) = ending {
            self.scores.record_close_sent(close.code);
        }
        self.wake(id);
    }

    /// Detaches the session from a connection and stores it for a RESUME.
    pub(super) fn detach_session(&mut self, id: ConnectionId, now: At) {
        let Some(link) = self.connections.get_mut(&id) else { return };
        let Some(key) = link.connection.session() else { return };
        link.connection.detach_session();
        if let Some(session) = self.sessions.get_mut(&key) {
            session.attachment = SessionAttachment::Detached(now);
            self.detached.push_back((now, key));
        }
    }

    /// Ends a session, and closes its connection.
    pub(super) fn close_session(&mut self, key: SessionKey, close: Close, now: At) {
        if let Some(SessionAttachment::Connection(id)) = self.sessions.get(&key).map(|session| session.attachment) {
            self.end_connection(id, Ending::Close(close), now);
        }
        self.end_session(key);
    }

    /// Ends a session: a RESUME of it is refused, and the client must identify.
    pub(super) fn end_session(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.remove(&key) else { return };
        self.by_id.remove(&session.id);
        self.session_index.remove(session.application, session.shard, key);
        self.scores.record_session_end(&session);
        if let SessionAttachment::Connection(id) = session.attachment
            && let Some(link) = self.connections.get_mut(&id)
        {
            link.connection.detach_session();
        }
    }

    /// Ends the sessions that have had no connection for too long.
    pub(super) fn end_expired(&mut self, now: At) {
        while let Some((since, key)) = self.detached.front().copied() {
            if now.since(since) < self.config.session_life {
                return;
            }
            self.detached.pop_front();
            // A session that was resumed in the meantime is further back in the queue, or not in it.
            if self.sessions.get(&key).is_some_and(|session| session.attachment == SessionAttachment::Detached(since)) {
                self.end_session(key);
            }
        }
    }

    /// Queues a frame other than an event on a connection.
    pub(super) fn send_control(&mut self, id: ConnectionId, control: Control) {
        if let Some(link) = self.connections.get_mut(&id) {
            link.controls.push(control);
            link.wakeup.notify_one();
        }
    }

    pub(super) fn wake(&self, id: ConnectionId) {
        if let Some(link) = self.connections.get(&id) {
            link.wakeup.notify_one();
        }
    }

    /// How many more events every session can take; `None` without any session.
    pub(crate) fn free_capacity(&self) -> Option<usize> {
        self.sessions.values().map(Session::free_capacity).min()
    }

    /// The `session_start_limit` of a bot in `/gateway/bot`.
    pub(crate) fn session_starts(&self, application: Snowflake, now: At) -> SessionStarts {
        self.budget.starts(application, now)
    }

    /// Whether the bot's token was reset, so that it is no longer valid.
    pub(crate) fn is_token_reset(&self, application: Snowflake) -> bool {
        self.budget.is_token_reset(application)
    }

    pub(crate) fn score(&self) -> GatewayScore {
        self.scores.report(self.sessions.values())
    }

    pub(crate) fn reset_score(&mut self) {
        self.scores.reset();
    }
}
