//! Gateway sessions of this process's shards: received events, confirmed positions, and which positions are stored.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use actix::{Context, Handler, Message, MessageResult};
use guildhall_core::event::EventOrigin;

use super::{AttachShard, EventRouter, ResumedSession};
use crate::crash::{CrashedInput, Input};
use crate::guild::events::context::EventContext;
use crate::guild::events::routed_event::GatewaySession;
use crate::ports::StoredSession;
use crate::shard::Credit;
use crate::telemetry::emit;
use crate::telemetry::events::{SessionLagMeasured, SessionsSaved};

/// Sessions of one shard.
struct ShardSessions {
    session: Arc<GatewaySession>,
    /// Confirmed position that was last stored.
    saved: Option<u64>,
    /// Older sessions with unfinished events. Until they are finished, a restart must find the first of them.
    unfinished: VecDeque<Arc<GatewaySession>>,
}

impl ShardSessions {
    /// Sum of `of` over all sessions.
    fn sum<T: std::iter::Sum>(&self, of: impl Fn(&GatewaySession) -> T) -> T {
        self.unfinished.iter().chain([&self.session]).map(|session| of(session)).sum()
    }

    /// Number of events of the shard that are not handled.
    fn pending(&self) -> usize {
        self.sum(|session| session.ledger().pending())
    }
}

/// Sessions of this process's shards.
pub(super) struct SessionTable {
    context: Arc<EventContext>,
    credits: HashMap<u32, Arc<Credit>>,
    shards: HashMap<u32, ShardSessions>,
    /// Handlers that finished with an event before this process started, by session and sequence number.
    handled_before: HashMap<(Arc<str>, u64), Vec<Arc<str>>>,
    /// Events that ended processes, by session and sequence number.
    crashed: HashMap<(Arc<str>, u64), CrashedInput>,
    /// Shards whose lag was reported.
    reported_shards: BTreeSet<u32>,
}

impl SessionTable {
    pub(super) fn new(context: Arc<EventContext>) -> Self {
        Self {
            context,
            credits: HashMap::new(),
            shards: HashMap::new(),
            handled_before: HashMap::new(),
            crashed: HashMap::new(),
            reported_shards: BTreeSet::new(),
        }
    }

    /// Adds a shard, with its session if there is one to resume.
    pub(super) fn attach(&mut self, AttachShard { shard, credit, resumed }: AttachShard) {
        self.credits.insert(shard, Arc::clone(&credit));
        let Some(ResumedSession { session: stored, handled, crashed }) = resumed else { return };
        for (seq, handler) in handled {
            self.handled_before.entry((Arc::clone(&stored.session), seq)).or_default().push(handler);
        }
        for crashed in crashed {
            if let Input::Event { session, seq } = &crashed.input {
                self.crashed.insert((Arc::clone(session), *seq), crashed);
            }
        }
        self.context.ownership.add_session(shard, &stored.session);
        let StoredSession { session, resume_url, confirmed, .. } = stored;
        let session = GatewaySession::new(session, shard, resume_url, confirmed, credit);
        self.shards.insert(shard, ShardSessions { session, saved: Some(confirmed), unfinished: VecDeque::new() });
    }

    /// Removes a shard.
    pub(super) fn detach(&mut self, shard: u32) {
        self.credits.remove(&shard);
        if let Some(entry) = self.shards.remove(&shard) {
            self.handled_before.retain(|(session, _), _| *session != entry.session.id);
            self.crashed.retain(|(session, _), _| *session != entry.session.id);
        }
    }

    /// Starts a new session of a shard. Returns the previous session, if it was another one.
    pub(super) fn start(
        &mut self,
        shard: u32,
        id: Arc<str>,
        resume_url: Option<String>,
    ) -> Option<Arc<GatewaySession>> {
        let credit = self.credits.get(&shard)?;
        let session = GatewaySession::new(id, shard, resume_url, 0, Arc::clone(credit));
        self.context.ownership.add_session(shard, &session.id);
        let Some(entry) = self.shards.get_mut(&shard) else {
            self.shards.insert(shard, ShardSessions { session, saved: None, unfinished: VecDeque::new() });
            return None;
        };
        if entry.session.id == session.id {
            return None;
        }
        let old = std::mem::replace(&mut entry.session, session);
        entry.saved = None;
        entry.unfinished.push_back(Arc::clone(&old));
        Some(old)
    }

    /// The session of a shard, if it has this id.
    pub(super) fn current(&self, shard: u32, id: &str) -> Option<Arc<GatewaySession>> {
        self.shards.get(&shard).filter(|entry| *entry.session.id == *id).map(|entry| Arc::clone(&entry.session))
    }

    /// Whether a shard's session was never stored.
    pub(super) fn is_unsaved(&self, shard: u32) -> bool {
        self.shards.get(&shard).is_some_and(|entry| entry.saved.is_none())
    }

    /// Whether a resumable session was never stored.
    pub(super) fn has_unsaved(&self) -> bool {
        let is_new = |entry: &ShardSessions| entry.saved.is_none() && entry.session.ledger().confirmed() > 0;
        self.shards.values().any(|entry| entry.unfinished.is_empty() && is_new(entry))
    }

    /// Credit of a shard.
    pub(super) fn credit(&self, shard: u32) -> Option<&Arc<Credit>> {
        self.credits.get(&shard)
    }

    /// Takes the handlers that finished with an event before this process started.
    pub(super) fn handled_before(&mut self, session: &Arc<str>, seq: u64) -> Vec<usize> {
        if self.handled_before.is_empty() {
            return Vec::new();
        }
        let done = self.handled_before.remove(&(Arc::clone(session), seq)).unwrap_or_default();
        // By name: the handlers may have been replaced since the store was read.
        done.iter().filter_map(|handler| self.context.handlers.number(handler)).collect()
    }

    /// Takes the crash record of an event, if the event must be set aside.
    pub(super) fn crashed(&mut self, origin: &EventOrigin) -> Option<CrashedInput> {
        if self.crashed.is_empty() {
            return None;
        }
        self.crashed.remove(&(Arc::clone(&origin.session), origin.seq))
    }

    /// Confirmed positions that have changed since they were stored.
    pub(super) fn unsaved(&mut self) -> Vec<StoredSession> {
        let (shards, at) = (self.context.config.shards, self.context.clock.now());
        let mut sessions = Vec::new();
        for entry in self.shards.values_mut() {
            while let Some(old) = entry.unfinished.pop_front_if(|old| old.ledger().pending() == 0) {
                self.context.ownership.remove_session(&old.id);
            }
            // Until all events of the previous session are handled, a restart must find that one.
            let session = entry.unfinished.front().unwrap_or(&entry.session);
            let confirmed = session.ledger().confirmed();
            // A session cannot be resumed before its READY.
            if !entry.unfinished.is_empty() || entry.saved == Some(confirmed) || confirmed == 0 {
                continue;
            }
            sessions.push(StoredSession {
                shard: session.shard,
                shards,
                session: Arc::clone(&session.id),
                resume_url: session.resume_url.clone(),
                confirmed,
                at,
                fence: self.context.ownership.fence(session.shard),
            });
        }
        sessions
    }

    /// Records that these positions are stored.
    pub(super) fn on_saved(&mut self, sessions: &[StoredSession]) {
        emit(SessionsSaved { sessions: sessions.len() });
        for stored in sessions {
            if let Some(entry) = self.shards.get_mut(&stored.shard).filter(|entry| entry.session.id == stored.session) {
                entry.saved = Some(stored.confirmed);
            }
        }
    }

    /// Confirmed position of each shard's session, by shard.
    fn views(&self) -> Vec<SessionView> {
        let view = |(shard, entry): (&u32, &ShardSessions)| {
            let confirmed = entry.session.ledger().confirmed();
            SessionView { shard: *shard, session: Arc::clone(&entry.session.id), confirmed }
        };
        let mut views: Vec<_> = self.shards.iter().map(view).collect();
        views.sort_unstable_by_key(|view| view.shard);
        views
    }

    /// Number of events that are not handled.
    pub(super) fn pending(&self) -> usize {
        self.shards.values().map(ShardSessions::pending).sum()
    }

    /// Number of events of a shard that are not handled.
    pub(super) fn pending_of(&self, shard: u32) -> usize {
        self.shards.get(&shard).map_or(0, ShardSessions::pending)
    }

    /// Number of events that shards hold back.
    pub(super) fn held(&self) -> usize {
        self.credits.values().map(|credit| credit.held()).sum()
    }

    /// Reports the lag of sessions, including events that shards hold back.
    pub(super) fn report_lags(&mut self) {
        for (shard, entry) in &self.shards {
            let held = self.credits.get(shard).map_or(0, |credit| credit.held() as u64);
            let behind = entry.sum(|session| {
                let ledger = session.ledger();
                ledger.received() - ledger.confirmed()
            });
            emit(SessionLagMeasured { shard: *shard, lag: held + behind });
        }
        // Resets the metric of shards that left, which would keep its last value.
        let shards: BTreeSet<u32> = self.shards.keys().copied().collect();
        for gone in self.reported_shards.difference(&shards) {
            emit(SessionLagMeasured { shard: *gone, lag: 0 });
        }
        self.reported_shards = shards;
    }
}

/// Returns the confirmed position of each session.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Vec<SessionView>")]
pub(crate) struct ObserveSessions;

/// Confirmed position of a shard's session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// Number of the shard.
    pub shard: u32,
    /// Session id.
    pub session: Arc<str>,
    /// Every event up to this sequence number was handled.
    pub confirmed: u64,
}

impl Handler<ObserveSessions> for EventRouter {
    type Result = MessageResult<ObserveSessions>;

    fn handle(&mut self, _: ObserveSessions, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.sessions.views())
    }
}
