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
use guildhall_core::event::{self, Event, EventClass, EventName, EventOrigin, Frame};
use guildhall_core::time::UnixMs;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::backlog::{BATCH_BYTES, BATCH_EVENTS, Backlog};
use super::connection_state::{ConnectionState, DisconnectReason};
use super::hello;
use super::observer::{SessionKind, ShardEvent, ShardObserver};
use super::reconnect_backoff::{BackoffConfig, ReconnectBackoff};
use super::status::ShardStatus;
use super::{FlowLimit, ShardEnd, ShardSender};
use crate::crash::EventScope;
use crate::guild::unread_event;
use crate::lease_guard::LeaseGuard;
use crate::ports::{GatewayConnection, GatewayItem, GatewayState, ShardState};
use crate::supervision::Part;
use crate::telemetry::emit;
use crate::telemetry::shard::{
    EventCounters, EventsShed, FrameSkipped, LogThrottle, ShardClosed, ShardClosedFatally, ShardConnected,
    ShardConnectionFailed, ShardDisconnected, ShardLeaseLost, ShardPaused, ShardRestarting, ShardStarted,
    ShardUnpaused,
};
use crate::wall_clock::WallClock;
use crate::{crash, failpoint};

/// Timeout of a graceful close. After it, the connection is dropped.
const GOODBYE_WITHIN: Duration = Duration::from_secs(5);
/// Delay before a message is sent again that was not accepted although there was room.
const TELLS_AGAIN: Duration = Duration::from_millis(20);

/// Reading may stop for the heartbeat interval divided by this.
const HOLDS_FOR: u32 = 4;
/// Heartbeat interval to assume if Discord has not sent one.
const HEARTBEATS: Duration = Duration::from_secs(40);
/// How often a shard checks a lease that may end.
const LOOKS_FOR_RIGHT: Duration = Duration::from_millis(200);
/// Timeout of a graceful close after the lease is lost: soon after, another process owns the shard.
const LOST_GOODBYE_WITHIN: Duration = Duration::from_secs(1);

/// Configuration that all shards of a process share.
#[derive(Clone, Copy, Debug)]
pub struct ShardConfig {
    /// How much a shard buffers while there is no room.
    pub buffer: FlowLimit,
    /// Backoff between connection attempts.
    pub reconnects: BackoffConfig,
    /// Timeout for a connection and its HELLO.
    pub hello_within: Duration,
}

/// The loop of a shard.
pub(crate) struct ShardTask<C> {
    number: u32,
    connection: C,
    feed: ShardSender,
    observer: ShardObserver,
    clock: WallClock,
    manners: ShardConfig,
    /// Ends before another process can own the shard.
    right: LeaseGuard,
    /// Status that others read.
    vitals: Arc<ShardStatus>,
    /// Whether it waits before it reconnects.
    rests: bool,
    /// Session id of Discord; empty before the first session.
    session: Arc<str>,
    /// Sequence number of the last accepted dispatch.
    last: u64,
    /// Sequence numbers of the first session whose frames are not parsed, because they crashed processes.
    unread: BTreeSet<u64>,
    backlog: Backlog,
    line: ConnectionState,
    greeted_by: Instant,
    greeted: Instant,
    last_frame: Instant,
    last_dispatch: Instant,
    connected: bool,
    patience: ReconnectBackoff,
    tally: EventCounters,
    skipped: LogThrottle,
}

/// What the backlog waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlushStatus {
    /// It is empty.
    Nothing,
    /// Credit.
    Credit,
    /// Capacity in the receiver's channel.
    Place,
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
    Told,
}

/// Next action of the loop.
enum NextStep {
    Read,
    /// Wait before reconnecting.
    Rest,
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
        feed: ShardSender,
        observer: ShardObserver,
        clock: WallClock,
        manners: ShardConfig,
        right: LeaseGuard,
        vitals: Arc<ShardStatus>,
    ) -> Self {
        let (session, last) = connection.session().map_or(("", 0), |session| (session.id, session.sequence));
        let session: Arc<str> = session.into();
        if !session.is_empty() {
            vitals.has_session(&session);
        }
        Self {
            number,
            connection,
            vitals,
            rests: false,
            session,
            last,
            unread,
            backlog: Backlog::new(number, manners.buffer),
            feed,
            observer,
            clock,
            line: ConnectionState::new(),
            greeted_by: Instant::now() + manners.hello_within,
            greeted: Instant::now(),
            last_frame: Instant::now(),
            last_dispatch: Instant::now(),
            connected: false,
            patience: ReconnectBackoff::new(manners.reconnects),
            manners,
            right,
            tally: EventCounters::default(),
            skipped: LogThrottle::default(),
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
        self.greeted_by = Instant::now() + self.manners.hello_within;
        loop {
            // Must be checked before every reconnect: otherwise two processes would take the session from each other
            // endlessly.
            if !self.right.holds() {
                return self.leave().await;
            }
            self.connection.renew_token(self.last);
            let waits = self.flush();
            let answered_by = self.answered_by();
            let next = tokio::select! {
                biased;
                () = told(&mut stop) => return self.close().await,
                () = asked(&mut restarts) => NextStep::Restart,
                item = Self::next(&mut self.connection) => self.take(item),
                () = room(&self.feed, waits) => NextStep::Read,
                () = sleep_until(self.greeted_by), if self.line.is_dialling() => self.nobody_answers(),
                () = due(answered_by) => self.nobody_answers(),
                () = sleep(LOOKS_FOR_RIGHT), if self.right.may_end() => NextStep::Read,
            };
            let went_on = match next {
                NextStep::Read => true,
                NextStep::Rest => {
                    let until = Instant::now() + self.patience.wait_after_useless(fastrand::f64());
                    let rested = self.rest(&mut stop, Some(until)).await;
                    self.greeted_by = Instant::now() + self.manners.hello_within;
                    rested
                }
                NextStep::Hold => match self.hold(&mut stop).await {
                    HoldResult::Eased => true,
                    HoldResult::Told => false,
                    HoldResult::Full => self.pause(&mut stop).await,
                },
                NextStep::Restart => {
                    self.restart().await;
                    true
                }
                NextStep::End(end) => return end,
            };
            if !went_on {
                return if self.right.holds() { self.close().await } else { self.leave().await };
            }
            // Yields to other tasks, however much there is to read.
            tokio::task::consume_budget().await;
        }
    }

    /// Forwards what can be forwarded, and publishes how much remains.
    fn flush(&mut self) -> FlushStatus {
        let waits = self.tell_on();
        self.feed.credit().hold(self.backlog.held().events);
        self.vitals.tell(self.does(), self.last, self.connection.latency());
        waits
    }

    fn does(&self) -> ShardState {
        match self.connection.state() {
            _ if self.rests => ShardState::Waiting,
            GatewayState::Active if self.connected => ShardState::Connected,
            GatewayState::Identifying => ShardState::Identifying,
            GatewayState::Resuming => ShardState::Resuming,
            GatewayState::Active | GatewayState::Disconnected | GatewayState::FatallyClosed => ShardState::Connecting,
        }
    }

    fn tell_on(&mut self) -> FlushStatus {
        loop {
            let room = self.feed.credit().has_room();
            let Some(told) = self.backlog.next(room) else {
                return if room { FlushStatus::Nothing } else { FlushStatus::Credit };
            };
            if let Err(told) = self.feed.tell(told) {
                self.backlog.put_back(told);
                return FlushStatus::Place;
            }
        }
    }

    /// Processes an item, and all further text that is ready.
    fn take(&mut self, item: GatewayItem) -> NextStep {
        let (mut item, mut frames, mut bytes) = (item, 0, 0);
        // Items that are ready together get the same time: reading the clock for each would take longer than parsing
        // it.
        let at = self.now();
        // A copy of the session id for this batch only, so that its reference count is touched by one thread at a time.
        self.session = Arc::from(&*self.session);
        let mut session = Arc::clone(&self.session);
        let scope = crash::enter_events(&session);
        loop {
            let GatewayItem::Text(text) = item else { return self.other(item) };
            frames += 1;
            bytes += text.len();
            self.frame(text, at, &scope);
            if !Arc::ptr_eq(&session, &self.session) {
                session = Arc::clone(&self.session);
                scope.begin(&session);
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
    fn other(&mut self, item: GatewayItem) -> NextStep {
        match item {
            GatewayItem::Closed { code } => {
                if self.connection.state() == GatewayState::FatallyClosed {
                    return NextStep::End(self.refused(code.unwrap_or_default()));
                }
                let quiet = self.last_frame.elapsed();
                let why = self.line.closed(code, quiet);
                self.lost(why);
                self.dial_again()
            }
            GatewayItem::Unreachable(error) => {
                emit(ShardConnectionFailed { shard: self.number, error: &*error });
                let why = self.line.gone(DisconnectReason::Unreachable);
                self.lost(why);
                // The connection would wait by itself, and without jitter; a new one does not.
                self.connection.reset(self.last);
                self.line.was_useless(Instant::now());
                NextStep::Rest
            }
            GatewayItem::Malformed(error) => {
                self.skip(&*error);
                NextStep::Read
            }
            GatewayItem::Undecodable(error) => {
                emit(ShardConnectionFailed { shard: self.number, error: &*error });
                let why = self.line.ends(DisconnectReason::Unreadable);
                self.lost(why);
                NextStep::Read
            }
            // Only after a fatal close, which was handled above. Without a code there is no better advice.
            GatewayItem::Ended => NextStep::End(self.refused(0)),
            GatewayItem::Text(text) => {
                let scope = crash::enter_events(&self.session);
                self.frame(text, self.now(), &scope);
                NextStep::Read
            }
        }
    }

    /// A connection that ended before it was useful, or right after its session was resumed, is not made again at once.
    /// The connection waits only when it cannot connect at all; otherwise it would reconnect as fast as the network allows.
    fn dial_again(&mut self) -> NextStep {
        if self.line.was_useless(Instant::now()) {
            return NextStep::Rest;
        }
        self.patience.proved();
        self.greeted_by = Instant::now() + self.manners.hello_within;
        NextStep::Read
    }

    /// The time by which a pending RESUME or IDENTIFY must be answered. Replayed dispatches count as an answer. Before
    /// the shard may identify, which can take long, there is nothing to answer.
    fn answered_by(&self) -> Option<Instant> {
        let asked = match self.connection.state() {
            GatewayState::Resuming => self.greeted,
            GatewayState::Identifying => self.connection.identify_granted_at()?,
            GatewayState::Active | GatewayState::Disconnected | GatewayState::FatallyClosed => return None,
        };
        let heard = self.last_dispatch.max(self.greeted).max(asked);
        self.line.awaits_session().then(|| heard + self.manners.hello_within)
    }

    /// A gateway that accepts connections and sends nothing would make the connection wait forever.
    fn nobody_answers(&mut self) -> NextStep {
        let why = self.line.gone(DisconnectReason::Silent);
        self.lost(why);
        self.connection.reset(self.last);
        self.dial_again()
    }

    fn now(&self) -> (Instant, UnixMs) {
        (Instant::now(), self.clock.now())
    }

    /// Processes a frame. The scope records its session and number: if processing crashes the shard, this frame is the
    /// cause.
    fn frame(&mut self, text: String, at: (Instant, UnixMs), scope: &EventScope) {
        failpoint::message(Part::Shard);
        let seq = self.new_number();
        seq.inspect(|seq| scope.at(*seq));
        self.last_frame = at.0;
        self.line.carries();
        match seq.filter(|seq| self.unread.remove(seq)) {
            Some(seq) => {
                let origin = EventOrigin { session: Arc::clone(&self.session), shard: self.number, seq };
                self.event(unread_event(text, origin, at.1), at.0);
            }
            None => {
                failpoint::input(Part::Shard, || text.as_str());
                self.read(text, at);
            }
        }
        scope.rest();
    }

    /// Returns the number of the frame that the connection has just read, if it is an event of the current session.
    fn new_number(&self) -> Option<u64> {
        let session = self.connection.session()?;
        (session.sequence != self.last && *session.id == *self.session).then_some(session.sequence)
    }

    fn read(&mut self, text: String, (read_at, at): (Instant, UnixMs)) {
        // The first frame of a connection is HELLO. The connection's state shows a new connection whose predecessor ended
        // without notice.
        let is_new = self.line.is_dialling() || self.connection.state() != GatewayState::Active;
        let hello = if is_new { hello::heartbeats_of(&text) } else { None };
        match event::read(text, self.number, &self.session, at) {
            Ok(Frame::Event(event)) => self.event(event, read_at),
            Ok(Frame::Control { op }) => self.control(op, hello),
            Err(malformed) => {
                self.skip(&malformed);
                self.skip_number();
            }
        }
    }

    fn event(&mut self, event: Event, read_at: Instant) {
        let (shard, seq) = (self.number, event.origin.seq);
        // At once, because operations are checked against the cached roles.
        if let Some(guild) = permissions_changed(&event) {
            (self.observer)(ShardEvent::PermissionsChanged { guild });
        }
        self.tally.count(shard, &event);
        self.last = seq;
        self.last_dispatch = self.last_frame;
        match (event.class, event.name.as_str()) {
            (EventClass::Gateway, "gateway.ready") => self.began(seq),
            (EventClass::Gateway, "gateway.resumed") => {
                self.backlog.passed(&self.session, seq);
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
                for (class, count) in self.backlog.event(Arc::new(event), read_at) {
                    emit(EventsShed { shard, class, count });
                }
            }
        }
    }

    /// The connection has read READY, and knows the session.
    fn began(&mut self, seq: u64) {
        let Some(session) = self.connection.session() else { return };
        self.session = session.id.into();
        // They are numbers of the previous session.
        self.unread.clear();
        self.vitals.has_session(&self.session);
        self.backlog.began(Arc::clone(&self.session), self.connection.resume_url().map(str::to_owned));
        self.backlog.passed(&self.session, seq);
        self.connected(SessionKind::New);
    }

    fn control(&mut self, op: u8, hello: Option<Duration>) {
        let why = match (op, hello) {
            (10, every) => {
                self.greeted = self.last_frame;
                self.line.greeted(every.unwrap_or(Duration::MAX))
            }
            (7, _) => self.line.ends(DisconnectReason::Asked),
            (9, _) if self.connection.session().is_some() => self.line.ends(DisconnectReason::InvalidSessionResumable),
            (9, _) => self.line.ends(DisconnectReason::InvalidSession),
            (_, _) => None,
        };
        self.lost(why);
    }

    fn skip(&mut self, error: &(dyn std::error::Error + 'static)) {
        let since = self.skipped.now(Instant::now());
        emit(FrameSkipped { shard: self.number, error, since });
    }

    /// A malformed frame has a number too, if the connection could read that.
    fn skip_number(&mut self) {
        let Some(session) = self.connection.session() else { return };
        let seq = session.sequence;
        if *session.id != *self.session {
            self.last = seq;
            self.began(seq);
        } else if seq != self.last {
            self.last = seq;
            self.backlog.passed(&self.session, seq);
        }
    }

    fn connected(&mut self, session: SessionKind) {
        let shard = self.number;
        self.line.has_session(Instant::now());
        // A resume from further back may replay an earlier RESUMED.
        if std::mem::replace(&mut self.connected, true) {
            return;
        }
        let how = match session {
            SessionKind::New => {
                self.vitals.identified();
                "ready"
            }
            SessionKind::Resumed => {
                self.vitals.resumed();
                "resumed"
            }
        };
        emit(ShardConnected { shard, how });
        (self.observer)(ShardEvent::Connected { shard, session });
    }

    /// Reports the end of the connection, if it was not reported before.
    fn lost(&mut self, why: Option<DisconnectReason>) {
        let Some(why) = why else { return };
        emit(ShardDisconnected { shard: self.number, why });
        self.disconnected();
    }

    fn disconnected(&mut self) {
        if std::mem::take(&mut self.connected) {
            (self.observer)(ShardEvent::Disconnected { shard: self.number });
        }
    }

    fn refused(&mut self, code: u16) -> ShardEnd {
        emit(ShardClosedFatally { shard: self.number, code, advice: &self.connection.advice(code) });
        self.disconnected();
        ShardEnd::Refused { code }
    }

    /// Stops reading for a while, so that Discord waits, too: closing and resuming costs both sides more. Heartbeats
    /// also wait, so it must be short.
    async fn hold(&mut self, stop: &mut watch::Receiver<bool>) -> HoldResult {
        let until = Instant::now() + self.line.heartbeats().unwrap_or(HEARTBEATS) / HOLDS_FOR;
        loop {
            let waits = self.flush();
            if self.backlog.has_eased() {
                return HoldResult::Eased;
            }
            tokio::select! {
                biased;
                () = told(stop) => return HoldResult::Told,
                () = room(&self.feed, waits) => {}
                () = sleep_until(until) => return HoldResult::Full,
            }
        }
    }

    /// Closes the connection until there is room again; Discord replays what is missed. Returns `false` if the shard
    /// must stop.
    async fn pause(&mut self, stop: &mut watch::Receiver<bool>) -> bool {
        let (shard, began) = (self.number, Instant::now());
        emit(ShardPaused { shard, held: self.backlog.held() });
        self.connection.close();
        // Discarding text is safe: it comes after the number that is resumed from.
        drop(timeout(GOODBYE_WITHIN, async { while self.reads_on().await.is_some() {} }).await);
        self.connection.reset(self.last);
        let why = self.line.gone(DisconnectReason::Paused);
        self.lost(why);
        let went_on = self.rest(stop, None).await;
        if went_on {
            emit(ShardUnpaused { shard, paused: began.elapsed() });
            self.greeted_by = Instant::now() + self.manners.hello_within;
        }
        went_on
    }

    /// Returns the next text of a shard that is closing; `None` when it has closed.
    async fn reads_on(&mut self) -> Option<String> {
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
    async fn rest(&mut self, stop: &mut watch::Receiver<bool>, until: Option<Instant>) -> bool {
        self.rests = true;
        let went_on = self.waits(stop, until).await;
        self.rests = false;
        went_on
    }

    async fn waits(&mut self, stop: &mut watch::Receiver<bool>, until: Option<Instant>) -> bool {
        loop {
            let waits = self.flush();
            // With less room it would have to pause again at once.
            let eased = self.backlog.is_empty() && self.feed.credit().has_eased();
            if until.is_none() && eased {
                return true;
            }
            let waits = if until.is_none() && waits == FlushStatus::Nothing { FlushStatus::Ease } else { waits };
            tokio::select! {
                biased;
                () = told(stop) => return false,
                () = due(until) => return true,
                () = room(&self.feed, waits) => {}
                () = sleep(LOOKS_FOR_RIGHT), if self.right.may_end() => {}
            }
            if !self.right.holds() {
                return false;
            }
        }
    }

    /// Closes with 4000 and reconnects, as requested. Forwards what still arrives, as [`Self::close`] does.
    async fn restart(&mut self) {
        emit(ShardRestarting { shard: self.number, resumable: self.connection.session().is_some() });
        drop(timeout(GOODBYE_WITHIN, self.say_goodbye()).await);
        self.connection.reset(self.last);
        let why = self.line.gone(DisconnectReason::Restarted);
        self.lost(why);
        self.greeted_by = Instant::now() + self.manners.hello_within;
    }

    /// Closes as [`Self::close`] does, but with a short timeout: another process continues the session.
    async fn leave(self) -> ShardEnd {
        emit(ShardLeaseLost { shard: self.number });
        let (shard, observer, connected) = (self.number, Arc::clone(&self.observer), self.connected);
        if timeout(LOST_GOODBYE_WITHIN, self.close()).await.is_err() && connected {
            observer(ShardEvent::Disconnected { shard });
        }
        ShardEnd::Lost
    }

    /// Closes with 4000, so that the session stays resumable, and waits for the response. What arrives until then is
    /// forwarded as long as there is room. The rest is never confirmed, and is replayed.
    async fn close(mut self) -> ShardEnd {
        let shard = self.number;
        self.say_goodbye().await;
        self.disconnected();
        emit(ShardClosed { shard, resumable: self.connection.session().is_some() });
        ShardEnd::Closed
    }

    /// Closes the connection with 4000, if there is one, and reads what still arrives.
    async fn say_goodbye(&mut self) {
        // Not connected: there is nothing to close.
        if self.connection.state() == GatewayState::Disconnected {
            return;
        }
        self.connection.close();
        let mut keeps = true;
        while let Some(text) = self.reads_on().await {
            keeps = keeps && !self.backlog.must_pause();
            if keeps {
                let scope = crash::enter_events(&self.session);
                self.frame(text, self.now(), &scope);
                drop(scope);
                self.flush();
            }
        }
    }
}

/// Waits until a restart is requested. Never returns if the sender is gone.
async fn asked(restarts: &mut watch::Receiver<()>) {
    if restarts.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Waits until the shard must stop. A dropped sender means the same.
async fn told(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

/// Waits until it is worth trying to forward again.
async fn room(feed: &ShardSender, waits: FlushStatus) {
    match waits {
        FlushStatus::Nothing => std::future::pending().await,
        FlushStatus::Credit => feed.credit().room().await,
        FlushStatus::Ease => feed.credit().ease().await,
        FlushStatus::Place => sleep(TELLS_AGAIN).await,
    }
}

async fn due(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}
