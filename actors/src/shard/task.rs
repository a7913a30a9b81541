//! One shard: polls a connection until it must stop, and forwards its events in order.
//!
//! ```text
//!  connection ──text──▶ event::read ──▶ Backlog ──batches, while there is room──▶ ShardSender
//!                                        └─ full: close with 4000, wait for room, RESUME from the last accepted one
//! ```

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use guildhall_core::backoff::{Backoff, BackoffSequence};
use guildhall_core::event::{self, Event, EventClass, EventName, EventOrigin, Frame};
use guildhall_core::time::UnixMs;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::backlog::{BATCH_BYTES, BATCH_EVENTS, Backlog};
use super::connection_state::{ConnectionState, DisconnectClass, DisconnectReason};
use super::hello;
use super::observer::{SessionKind, ShardEvent, ShardObserver};
use super::status::ShardStatus;
use super::{FlowLimit, ShardEnd, ShardSender};
use crate::crash::EventScope;
use crate::guild::unread_event;
use crate::lease_guard::LeaseGuard;
use crate::ports::{GatewayConnection, GatewayItem, GatewayState, ShardState};
use crate::supervision::Part;
use crate::telemetry::shard::{
    EventCounters, EventsShed, FrameSkipped, ShardClosed, ShardClosedFatally, ShardConnected, ShardConnectionFailed,
    ShardDisconnected, ShardLeaseLost, ShardPaused, ShardRestarting, ShardStarted, ShardUnpaused,
};
use crate::telemetry::{FailureLog, emit};
use crate::wall_clock::WallClock;
use crate::{crash, failpoint};

/// Timeout of a graceful close. After it, the connection is dropped.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before a message is sent again that was not accepted although there was room.
const RESEND_DELAY: Duration = Duration::from_millis(20);

/// Reading may stop for the heartbeat interval divided by this.
const HOLD_DIVISOR: u32 = 4;
/// Heartbeat interval to assume if Discord has not sent one.
const DEFAULT_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(40);
/// How often a shard checks a lease that may end.
const LEASE_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Timeout of a graceful close after the lease is lost: soon after, another process owns the shard.
const LOST_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Configuration that all shards of a process share.
#[derive(Clone, Copy, Debug)]
pub struct ShardConfig {
    /// How much a shard buffers while there is no room.
    pub buffer: FlowLimit,
    /// Backoff between connection attempts.
    pub backoff: Backoff,
    /// Timeout for a connection and its HELLO.
    pub hello_timeout: Duration,
}

/// The loop of a shard.
pub(crate) struct ShardTask<C> {
    number: u32,
    connection: C,
    sender: ShardSender,
    observer: ShardObserver,
    clock: WallClock,
    config: ShardConfig,
    /// Ends before another process can own the shard.
    lease: LeaseGuard,
    /// Status that others read.
    status: Arc<ShardStatus>,
    /// Whether it waits before it reconnects.
    waiting: bool,
    /// Session id of Discord; empty before the first session.
    session: Arc<str>,
    /// Sequence number of the last accepted dispatch.
    last: u64,
    /// Sequence numbers of the first session whose frames are not parsed, because they crashed processes.
    unread: BTreeSet<u64>,
    backlog: Backlog,
    connection_state: ConnectionState,
    hello_deadline: Instant,
    hello_at: Instant,
    last_frame: Instant,
    last_dispatch: Instant,
    connected: bool,
    backoff: BackoffSequence,
    counters: EventCounters,
    skipped_frames: FailureLog,
    disconnects: FailureLog,
}

/// What the backlog waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlushStatus {
    /// It is empty.
    Nothing,
    /// Credit.
    Credit,
    /// Capacity in the receiver's channel.
    Channel,
    /// It is empty, but much of what was forwarded is not processed yet.
    Ease,
}

/// Result of not reading for a while.
enum HoldResult {
    /// There is room.
    Eased,
    /// There is no room, and reading cannot be delayed any longer.
    Full,
    /// The shard must stop.
    Stop,
}

/// Next action of the loop.
enum NextStep {
    Read,
    /// Wait before reconnecting.
    Wait,
    /// There is no room for more events.
    Hold,
    /// A restart was requested.
    Restart,
    End(ShardEnd),
}

/// Returns the guild whose roles or overwrites an event changes or may change.
fn permissions_changed(event: &Event) -> Option<u64> {
    match &event.name {
        EventName::Known(
            "role.create" | "role.update" | "role.delete" | "channel.create" | "channel.update" | "channel.delete"
            | "guild.create" | "guild.delete",
        ) => event.guild,
        EventName::Known(_) | EventName::Other(_) => None,
    }
}

impl<C: GatewayConnection> ShardTask<C> {
    /// Creates the loop of a shard. Its connection has a session to resume, if there is one. Frames of that session with the
    /// sequence numbers in `unread` are forwarded without being parsed.
    #[expect(clippy::too_many_arguments, reason = "called once")]
    pub(crate) fn new(
        number: u32,
        connection: C,
        unread: BTreeSet<u64>,
        sender: ShardSender,
        observer: ShardObserver,
        clock: WallClock,
        config: ShardConfig,
        lease: LeaseGuard,
        status: Arc<ShardStatus>,
    ) -> Self {
        let (session, last) = connection.session().map_or(("", 0), |session| (session.id, session.sequence));
        let session: Arc<str> = session.into();
        if !session.is_empty() {
            status.set_session(&session);
        }
        Self {
            number,
            connection,
            status,
            waiting: false,
            session,
            last,
            unread,
            backlog: Backlog::new(number, config.buffer),
            sender,
            observer,
            clock,
            connection_state: ConnectionState::new(),
            hello_deadline: Instant::now() + config.hello_timeout,
            hello_at: Instant::now(),
            last_frame: Instant::now(),
            last_dispatch: Instant::now(),
            connected: false,
            backoff: BackoffSequence::new(config.backoff),
            config,
            lease,
            counters: EventCounters::default(),
            skipped_frames: FailureLog::new("gateway frames"),
            disconnects: FailureLog::new("gateway connection"),
        }
    }

    /// Waits for the next item of the connection.
    async fn next(connection: &mut C) -> GatewayItem {
        poll_fn(|cx| connection.poll_next(cx)).await
    }

    /// Polls the shard until it must stop or is rejected. Heartbeats, identifies and reconnects happen while it is
    /// polled.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>, mut restarts: watch::Receiver<()>) -> ShardEnd {
        let resumes_from = self.connection.session().map(|session| session.sequence);
        emit(ShardStarted { shard: self.number, resumes_from });
        self.hello_deadline = Instant::now() + self.config.hello_timeout;
        loop {
            // Must be checked before every reconnect: otherwise two processes would take the session from each other
            // endlessly.
            if !self.lease.holds() {
                return self.close_lost().await;
            }
            self.connection.renew_token(self.last);
            let blocked_on = self.flush();
            let session_deadline = self.session_deadline();
            let next = tokio::select! {
                biased;
                () = stop_requested(&mut stop) => return self.close().await,
                () = restart_requested(&mut restarts) => NextStep::Restart,
                item = Self::next(&mut self.connection) => self.process_items(item),
                () = wait_for_room(&self.sender, blocked_on) => NextStep::Read,
                () = sleep_until(self.hello_deadline), if self.connection_state.is_dialling() => self.on_silence(),
                () = sleep_until_some(session_deadline) => self.on_silence(),
                () = sleep(LEASE_CHECK_INTERVAL), if self.lease.may_end() => NextStep::Read,
            };
            let continues = match next {
                NextStep::Read => true,
                NextStep::Wait => {
                    let until = Instant::now() + self.backoff.next_delay(fastrand::f64());
                    let rested = self.wait(&mut stop, Some(until)).await;
                    self.hello_deadline = Instant::now() + self.config.hello_timeout;
                    rested
                }
                NextStep::Hold => match self.hold(&mut stop).await {
                    HoldResult::Eased => true,
                    HoldResult::Stop => false,
                    HoldResult::Full => self.pause(&mut stop).await,
                },
                NextStep::Restart => {
                    self.restart().await;
                    true
                }
                NextStep::End(end) => return end,
            };
            if !continues {
                return if self.lease.holds() { self.close().await } else { self.close_lost().await };
            }
            // Yields to other tasks, however much there is to read.
            tokio::task::consume_budget().await;
        }
    }

    /// Forwards what can be forwarded, and publishes how much remains.
    fn flush(&mut self) -> FlushStatus {
        let blocked_on = self.forward();
        self.sender.credit().set_held(self.backlog.held().events);
        self.status.update(self.state(), self.last, self.connection.latency());
        blocked_on
    }

    fn state(&self) -> ShardState {
        match self.connection.state() {
            _ if self.waiting => ShardState::Waiting,
            GatewayState::Active if self.connected => ShardState::Connected,
            GatewayState::Identifying => ShardState::Identifying,
            GatewayState::Resuming => ShardState::Resuming,
            GatewayState::Active | GatewayState::Disconnected | GatewayState::FatallyClosed => ShardState::Connecting,
        }
    }

    fn forward(&mut self) -> FlushStatus {
        loop {
            let room = self.sender.credit().has_room();
            let Some(message) = self.backlog.next(room) else {
                return if room { FlushStatus::Nothing } else { FlushStatus::Credit };
            };
            if let Err(message) = self.sender.send(message) {
                self.backlog.put_back(message);
                return FlushStatus::Channel;
            }
        }
    }

    /// Processes an item, and all further text that is ready.
    fn process_items(&mut self, item: GatewayItem) -> NextStep {
        let (mut item, mut frames, mut bytes) = (item, 0, 0);
        // Items that are ready together get the same time: reading the clock for each would take longer than parsing
        // it.
        let at = self.now();
        // A copy of the session id for this batch only, so that its reference count is touched by one thread at a time.
        self.session = Arc::from(&*self.session);
        let mut session = Arc::clone(&self.session);
        let scope = crash::enter_events(&session);
        loop {
            let GatewayItem::Text(text) = item else { return self.process_other(item) };
            frames += 1;
            bytes += text.len();
            self.process_frame(text, at, &scope);
            if !Arc::ptr_eq(&session, &self.session) {
                session = Arc::clone(&self.session);
                scope.set_session(&session);
            }
            if self.backlog.must_pause() {
                self.flush();
                if self.backlog.must_pause() {
                    return NextStep::Hold;
                }
            }
            if frames >= BATCH_EVENTS || bytes >= BATCH_BYTES {
                return NextStep::Read;
            }
            match Self::next(&mut self.connection).now_or_never() {
                Some(more) => item = more,
                None => return NextStep::Read,
            }
        }
    }

    /// Processes an item that is not text.
    fn process_other(&mut self, item: GatewayItem) -> NextStep {
        match item {
            GatewayItem::Closed { code } => {
                if self.connection.state() == GatewayState::FatallyClosed {
                    return NextStep::End(self.on_rejected(code.unwrap_or_default()));
                }
                let quiet = self.last_frame.elapsed();
                let reason = self.connection_state.on_closed(code, quiet);
                self.report_disconnect(reason);
                self.reconnect()
            }
            GatewayItem::Unreachable(error) => {
                self.report_failure(&*error);
                let reason = self.connection_state.on_gone(DisconnectReason::Unreachable);
                self.report_disconnect(reason);
                // The connection would wait by itself, and without jitter; a new one does not.
                self.connection.reset(self.last);
                self.connection_state.take_useless(Instant::now());
                NextStep::Wait
            }
            GatewayItem::Malformed(error) => {
                self.report_skipped(&*error);
                NextStep::Read
            }
            GatewayItem::Undecodable(error) => {
                self.report_failure(&*error);
                let reason = self.connection_state.on_ending(DisconnectReason::Unreadable);
                self.report_disconnect(reason);
                NextStep::Read
            }
            // Only after a fatal close, which was handled above. Without a code there is no better advice.
            GatewayItem::Ended => NextStep::End(self.on_rejected(0)),
            GatewayItem::Text(text) => {
                let scope = crash::enter_events(&self.session);
                self.process_frame(text, self.now(), &scope);
                NextStep::Read
            }
        }
    }

    /// A connection that ended before it was useful, or right after its session was resumed, is not made again at once.
    /// The connection waits only when it cannot connect at all; otherwise it would reconnect as fast as the network allows.
    fn reconnect(&mut self) -> NextStep {
        if self.connection_state.take_useless(Instant::now()) {
            return NextStep::Wait;
        }
        self.backoff.reset();
        self.hello_deadline = Instant::now() + self.config.hello_timeout;
        NextStep::Read
    }

    /// The time by which a pending RESUME or IDENTIFY must be answered. Replayed dispatches count as an answer. Before
    /// the shard may identify, which can take long, there is nothing to answer.
    fn session_deadline(&self) -> Option<Instant> {
        let requested = match self.connection.state() {
            GatewayState::Resuming => self.hello_at,
            GatewayState::Identifying => self.connection.identify_granted_at()?,
            GatewayState::Active | GatewayState::Disconnected | GatewayState::FatallyClosed => return None,
        };
        let last_activity = self.last_dispatch.max(self.hello_at).max(requested);
        self.connection_state.awaits_session().then(|| last_activity + self.config.hello_timeout)
    }

    /// A gateway that accepts connections and sends nothing would make the connection wait forever.
    fn on_silence(&mut self) -> NextStep {
        let reason = self.connection_state.on_gone(DisconnectReason::Silent);
        self.report_disconnect(reason);
        self.connection.reset(self.last);
        self.reconnect()
    }

    fn now(&self) -> (Instant, UnixMs) {
        (Instant::now(), self.clock.now())
    }

    /// Processes a frame. The scope records its session and number: if processing crashes the shard, this frame is the
    /// cause.
    fn process_frame(&mut self, text: String, at: (Instant, UnixMs), scope: &EventScope) {
        failpoint::message(Part::Shard);
        let seq = self.new_number();
        seq.inspect(|seq| scope.set_event(*seq));
        self.last_frame = at.0;
        self.connection_state.on_dispatch();
        match seq.filter(|seq| self.unread.remove(seq)) {
            Some(seq) => {
                let origin = EventOrigin { session: Arc::clone(&self.session), shard: self.number, seq };
                self.process_event(unread_event(text, origin, at.1), at.0);
            }
            None => {
                failpoint::input(Part::Shard, || text.as_str());
                self.parse_frame(text, at);
            }
        }
        scope.clear_event();
    }

    /// Returns the number of the frame that the connection has just read, if it is an event of the current session.
    fn new_number(&self) -> Option<u64> {
        let session = self.connection.session()?;
        (session.sequence != self.last && *session.id == *self.session).then_some(session.sequence)
    }

    fn parse_frame(&mut self, text: String, (read_at, at): (Instant, UnixMs)) {
        // The first frame of a connection is HELLO. The connection's state shows a new connection whose predecessor ended
        // without notice.
        let is_new = self.connection_state.is_dialling() || self.connection.state() != GatewayState::Active;
        let hello = if is_new { hello::heartbeat_interval(&text) } else { None };
        match event::read(text, self.number, &self.session, at) {
            Ok(Frame::Event(event)) => self.process_event(event, read_at),
            Ok(Frame::Control { op }) => self.process_control(op, hello),
            Err(malformed) => {
                self.report_skipped(&malformed);
                self.skip_number();
            }
        }
    }

    fn process_event(&mut self, event: Event, read_at: Instant) {
        let (shard, seq) = (self.number, event.origin.seq);
        // At once, because operations are checked against the cached roles.
        if let Some(guild) = permissions_changed(&event) {
            (self.observer)(ShardEvent::PermissionsChanged { guild });
        }
        if let Some(guilds) = event.shard_guilds() {
            (self.observer)(ShardEvent::GuildsListed(guilds));
        }
        if let Some(change) = event.guild_change() {
            (self.observer)(ShardEvent::GuildChanged(change));
        }
        self.counters.count(shard, &event);
        self.last = seq;
        self.last_dispatch = self.last_frame;
        match (event.class, event.name.as_str()) {
            (EventClass::Gateway, "gateway.ready") => self.on_ready(seq),
            (EventClass::Gateway, "gateway.resumed") => {
                self.backlog.push_skipped(&self.session, seq);
                self.connected(SessionKind::Resumed);
            }
            (
                EventClass::Fleeting
                | EventClass::Chatter
                | EventClass::Change
                | EventClass::Interaction
                | EventClass::Gateway,
                _,
            ) => {
                // Forward first, so that nothing is dropped that can be forwarded.
                if self.backlog.is_full() {
                    self.flush();
                }
                for (class, count) in self.backlog.push_event(Arc::new(event), read_at) {
                    emit(EventsShed { shard, class, count });
                }
            }
        }
    }

    /// The connection has read READY, and knows the session.
    fn on_ready(&mut self, seq: u64) {
        let Some(session) = self.connection.session() else { return };
        self.session = session.id.into();
        // They are numbers of the previous session.
        self.unread.clear();
        self.status.set_session(&self.session);
        self.backlog.push_session_start(Arc::clone(&self.session), self.connection.resume_url().map(str::to_owned));
        self.backlog.push_skipped(&self.session, seq);
        self.connected(SessionKind::New);
    }

    fn process_control(&mut self, op: u8, hello: Option<Duration>) {
        let reason = match (op, hello) {
            (10, interval) => {
                self.hello_at = self.last_frame;
                self.connection_state.on_hello(interval.unwrap_or(Duration::MAX))
            }
            (7, _) => self.connection_state.on_ending(DisconnectReason::ReconnectRequested),
            (9, _) if self.connection.session().is_some() => {
                self.connection_state.on_ending(DisconnectReason::InvalidSessionResumable)
            }
            (9, _) => self.connection_state.on_ending(DisconnectReason::InvalidSession),
            (_, _) => None,
        };
        self.report_disconnect(reason);
    }

    fn report_skipped(&mut self, error: &(dyn std::error::Error + 'static)) {
        let summary = self.skipped_frames.on_isolated_failure();
        emit(FrameSkipped { shard: self.number, error, summary });
    }

    /// A malformed frame has a number too, if the connection could read that.
    fn skip_number(&mut self) {
        let Some(session) = self.connection.session() else { return };
        let seq = session.sequence;
        if *session.id != *self.session {
            self.last = seq;
            self.on_ready(seq);
        } else if seq != self.last {
            self.last = seq;
            self.backlog.push_skipped(&self.session, seq);
        }
    }

    fn connected(&mut self, session: SessionKind) {
        let shard = self.number;
        self.connection_state.on_session(Instant::now());
        // A resume from further back may replay an earlier RESUMED.
        if std::mem::replace(&mut self.connected, true) {
            return;
        }
        let how = match session {
            SessionKind::New => {
                self.status.count_identify();
                "ready"
            }
            SessionKind::Resumed => {
                self.status.count_resume();
                "resumed"
            }
        };
        emit(ShardConnected { shard, how, recovery: self.disconnects.take_recovery() });
        (self.observer)(ShardEvent::Connected { shard, session });
    }

    fn report_failure(&self, error: &(dyn std::error::Error + 'static)) {
        emit(ShardConnectionFailed { shard: self.number, error, summary: self.disconnects.on_failure() });
    }

    /// Reports the end of the connection, if it was not reported before.
    fn report_disconnect(&mut self, reason: Option<DisconnectReason>) {
        let Some(reason) = reason else { return };
        let summary = (reason.class() == DisconnectClass::Lost).then(|| self.disconnects.on_failure()).flatten();
        emit(ShardDisconnected { shard: self.number, reason, summary });
        self.on_disconnected();
    }

    fn on_disconnected(&mut self) {
        if std::mem::take(&mut self.connected) {
            (self.observer)(ShardEvent::Disconnected { shard: self.number });
        }
    }

    fn on_rejected(&mut self, code: u16) -> ShardEnd {
        emit(ShardClosedFatally { shard: self.number, code, advice: &self.connection.advice(code) });
        self.on_disconnected();
        ShardEnd::Refused { code }
    }

    /// Stops reading for a while, so that Discord waits, too: closing and resuming costs both sides more. Heartbeats
    /// also wait, so it must be short.
    async fn hold(&mut self, stop: &mut watch::Receiver<bool>) -> HoldResult {
        let until = Instant::now()
            + self.connection_state.known_heartbeat_interval().unwrap_or(DEFAULT_HEARTBEAT_INTERVAL) / HOLD_DIVISOR;
        loop {
            let blocked_on = self.flush();
            if self.backlog.has_eased() {
                return HoldResult::Eased;
            }
            tokio::select! {
                biased;
                () = stop_requested(stop) => return HoldResult::Stop,
                () = wait_for_room(&self.sender, blocked_on) => {}
                () = sleep_until(until) => return HoldResult::Full,
            }
        }
    }

    /// Closes the connection until there is room again; Discord replays what is missed. Returns `false` if the shard
    /// must stop.
    async fn pause(&mut self, stop: &mut watch::Receiver<bool>) -> bool {
        let (shard, started) = (self.number, Instant::now());
        emit(ShardPaused { shard, held: self.backlog.held() });
        self.connection.close();
        // Discarding text is safe: it comes after the number that is resumed from.
        drop(timeout(CLOSE_TIMEOUT, async { while self.next_while_closing().await.is_some() {} }).await);
        self.connection.reset(self.last);
        let reason = self.connection_state.on_gone(DisconnectReason::Paused);
        self.report_disconnect(reason);
        let continues = self.wait(stop, None).await;
        if continues {
            emit(ShardUnpaused { shard, paused: started.elapsed() });
            self.hello_deadline = Instant::now() + self.config.hello_timeout;
        }
        continues
    }

    /// Returns the next text of a shard that is closing; `None` when it has closed.
    async fn next_while_closing(&mut self) -> Option<String> {
        let GatewayItem::Text(text) = Self::next(&mut self.connection).await else { return None };
        match self.connection.state() {
            // A READY or RESUMED that was in flight makes it active once more. Dropping a READY would waste the
            // session.
            GatewayState::Disconnected | GatewayState::Active => Some(text),
            // The peer vanished instead of responding, and there is another connection.
            GatewayState::Identifying | GatewayState::Resuming | GatewayState::FatallyClosed => None,
        }
    }

    /// Does not connect until `until`, or until the whole backlog is forwarded and half of it is processed. It
    /// continues to forward. Returns `false` if the shard must stop.
    async fn wait(&mut self, stop: &mut watch::Receiver<bool>, until: Option<Instant>) -> bool {
        self.waiting = true;
        let continues = self.wait_until_ready(stop, until).await;
        self.waiting = false;
        continues
    }

    async fn wait_until_ready(&mut self, stop: &mut watch::Receiver<bool>, until: Option<Instant>) -> bool {
        loop {
            let blocked_on = self.flush();
            // With less room it would have to pause again at once.
            let eased = self.backlog.is_empty() && self.sender.credit().is_half_free();
            if until.is_none() && eased {
                return true;
            }
            let blocked_on =
                if until.is_none() && blocked_on == FlushStatus::Nothing { FlushStatus::Ease } else { blocked_on };
            tokio::select! {
                biased;
                () = stop_requested(stop) => return false,
                () = sleep_until_some(until) => return true,
                () = wait_for_room(&self.sender, blocked_on) => {}
                () = sleep(LEASE_CHECK_INTERVAL), if self.lease.may_end() => {}
            }
            if !self.lease.holds() {
                return false;
            }
        }
    }

    /// Closes with 4000 and reconnects, as requested. Forwards what still arrives, as [`Self::close`] does.
    async fn restart(&mut self) {
        emit(ShardRestarting { shard: self.number, resumable: self.connection.session().is_some() });
        drop(timeout(CLOSE_TIMEOUT, self.close_connection()).await);
        self.connection.reset(self.last);
        let reason = self.connection_state.on_gone(DisconnectReason::Restarted);
        self.report_disconnect(reason);
        self.hello_deadline = Instant::now() + self.config.hello_timeout;
    }

    /// Closes as [`Self::close`] does, but with a short timeout: another process continues the session.
    async fn close_lost(self) -> ShardEnd {
        emit(ShardLeaseLost { shard: self.number });
        let (shard, observer, connected) = (self.number, Arc::clone(&self.observer), self.connected);
        if timeout(LOST_CLOSE_TIMEOUT, self.close()).await.is_err() && connected {
            observer(ShardEvent::Disconnected { shard });
        }
        ShardEnd::Lost
    }

    /// Closes with 4000, so that the session stays resumable, and waits for the response. What arrives until then is
    /// forwarded as long as there is room. The rest is never confirmed, and is replayed.
    async fn close(mut self) -> ShardEnd {
        let shard = self.number;
        self.close_connection().await;
        self.on_disconnected();
        emit(ShardClosed { shard, resumable: self.connection.session().is_some() });
        ShardEnd::Closed
    }

    /// Closes the connection with 4000, if there is one, and reads what still arrives.
    async fn close_connection(&mut self) {
        // Not connected: there is nothing to close.
        if self.connection.state() == GatewayState::Disconnected {
            return;
        }
        self.connection.close();
        let mut has_room = true;
        while let Some(text) = self.next_while_closing().await {
            has_room = has_room && !self.backlog.must_pause();
            if has_room {
                let scope = crash::enter_events(&self.session);
                self.process_frame(text, self.now(), &scope);
                drop(scope);
                self.flush();
            }
        }
    }
}

/// Waits until a restart is requested. Never returns if the sender is gone.
async fn restart_requested(restarts: &mut watch::Receiver<()>) {
    if restarts.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Waits until the shard must stop. A dropped sender means the same.
async fn stop_requested(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

/// Waits until it is worth trying to forward again.
async fn wait_for_room(sender: &ShardSender, blocked_on: FlushStatus) {
    match blocked_on {
        FlushStatus::Nothing => std::future::pending().await,
        FlushStatus::Credit => sender.credit().wait_for_room().await,
        FlushStatus::Ease => sender.credit().wait_until_half_free().await,
        FlushStatus::Channel => sleep(RESEND_DELAY).await,
    }
}

async fn sleep_until_some(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}
