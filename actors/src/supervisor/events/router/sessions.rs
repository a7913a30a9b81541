//! The sessions of this process's shards: what came of each, and how far that is confirmed and kept.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use actix::{Context, Handler as Takes, Message, MessageResult};
use guildhall_core::event::EventOrigin;

use super::{AttachShard, EventRouter, ResumedSession};
use crate::crash::{CrashedInput, Input};
use crate::guild::events::context::EventContext;
use crate::guild::events::routed_event::GatewaySession;
use crate::ports::StoredSession;
use crate::shard::Credit;
use crate::telemetry::emit;
use crate::telemetry::events::{SessionLagMeasured, SessionsSaved};

/// The sessions of one shard.
struct ShardSessions {
    session: Arc<GatewaySession>,
    /// What it was confirmed to when it was last kept.
    kept: Option<u64>,
    /// Sessions before it whose events are not all done: until they are, a restart has to find the first of them.
    before: VecDeque<Arc<GatewaySession>>,
}

impl ShardSessions {
    /// Of all of them, this, summed up.
    fn sum<T: std::iter::Sum>(&self, of: impl Fn(&GatewaySession) -> T) -> T {
        self.before.iter().chain([&self.session]).map(|session| of(session)).sum()
    }

    /// How many events of its shard are with somebody.
    fn undone(&self) -> usize {
        self.sum(|session| session.ledger().undone())
    }
}

/// The sessions of this process's shards.
pub(super) struct SessionTable {
    context: Arc<EventContext>,
    credits: HashMap<u32, Arc<Credit>>,
    lines: HashMap<u32, ShardSessions>,
    /// Handlers that were done with events of a session before this process began, by session and number.
    done_before: HashMap<(Arc<str>, u64), Vec<Arc<str>>>,
    /// Events of a session that ended processes, by session and number.
    crashed: HashMap<(Arc<str>, u64), CrashedInput>,
    /// Shards whose lag was told.
    told_of: BTreeSet<u32>,
}

impl SessionTable {
    pub(super) fn new(context: Arc<EventContext>) -> Self {
        Self {
            context,
            credits: HashMap::new(),
            lines: HashMap::new(),
            done_before: HashMap::new(),
            crashed: HashMap::new(),
            told_of: BTreeSet::new(),
        }
    }

    /// A shard is this process's own from now on, with a session that may go on.
    pub(super) fn take(&mut self, AttachShard { shard, credit, resumed }: AttachShard) {
        self.credits.insert(shard, Arc::clone(&credit));
        let Some(ResumedSession { session: kept, handled, crashed }) = resumed else { return };
        for (seq, handler) in handled {
            self.done_before.entry((Arc::clone(&kept.session), seq)).or_default().push(handler);
        }
        for crashed in crashed {
            if let Input::Event { session, seq } = &crashed.input {
                self.crashed.insert((Arc::clone(session), *seq), crashed);
            }
        }
        self.context.ownership.has_session(shard, &kept.session);
        let StoredSession { session, resume_url, confirmed, .. } = kept;
        let session = GatewaySession::new(session, shard, resume_url, confirmed, credit);
        self.lines.insert(shard, ShardSessions { session, kept: Some(confirmed), before: VecDeque::new() });
    }

    /// It is not any more.
    pub(super) fn let_go(&mut self, shard: u32) {
        self.credits.remove(&shard);
        if let Some(line) = self.lines.remove(&shard) {
            self.done_before.retain(|(session, _), _| *session != line.session.id);
            self.crashed.retain(|(session, _), _| *session != line.session.id);
        }
    }

    /// A shard has a new session. The one before, if there was another.
    pub(super) fn begin(
        &mut self,
        shard: u32,
        id: Arc<str>,
        resume_url: Option<String>,
    ) -> Option<Arc<GatewaySession>> {
        let credit = self.credits.get(&shard)?;
        let session = GatewaySession::new(id, shard, resume_url, 0, Arc::clone(credit));
        self.context.ownership.has_session(shard, &session.id);
        let Some(line) = self.lines.get_mut(&shard) else {
            self.lines.insert(shard, ShardSessions { session, kept: None, before: VecDeque::new() });
            return None;
        };
        if line.session.id == session.id {
            return None;
        }
        let old = std::mem::replace(&mut line.session, session);
        line.kept = None;
        line.before.push_back(Arc::clone(&old));
        Some(old)
    }

    /// The session of a shard, if this is the one that it has.
    pub(super) fn current(&self, shard: u32, id: &str) -> Option<Arc<GatewaySession>> {
        self.lines.get(&shard).filter(|line| *line.session.id == *id).map(|line| Arc::clone(&line.session))
    }

    /// Whether a shard's session was never kept.
    pub(super) fn is_new(&self, shard: u32) -> bool {
        self.lines.get(&shard).is_some_and(|line| line.kept.is_none())
    }

    /// Whether a session could be resumed that was never kept.
    pub(super) fn have_new(&self) -> bool {
        let is_new = |line: &ShardSessions| line.kept.is_none() && line.session.ledger().confirmed() > 0;
        self.lines.values().any(|line| line.before.is_empty() && is_new(line))
    }

    /// How much a shard may have on its way.
    pub(super) fn credit(&self, shard: u32) -> Option<&Arc<Credit>> {
        self.credits.get(&shard)
    }

    /// The handlers that were done with an event before this process began. To be asked once.
    pub(super) fn done_before(&mut self, session: &Arc<str>, seq: u64) -> Vec<usize> {
        if self.done_before.is_empty() {
            return Vec::new();
        }
        let done = self.done_before.remove(&(Arc::clone(session), seq)).unwrap_or_default();
        // By name: the handlers may have been replaced since the store was asked.
        done.iter().filter_map(|handler| self.context.handlers.number(handler)).collect()
    }

    /// How often an event ended processes, if it is to be set aside. To be asked once.
    pub(super) fn crashed(&mut self, origin: &EventOrigin) -> Option<CrashedInput> {
        if self.crashed.is_empty() {
            return None;
        }
        self.crashed.remove(&(Arc::clone(&origin.session), origin.seq))
    }

    /// How far sessions are confirmed, as far as that has changed since it was kept.
    pub(super) fn unkept(&mut self) -> Vec<StoredSession> {
        let (shards, at) = (self.context.config.shards, self.context.clock.now());
        let mut sessions = Vec::new();
        for line in self.lines.values_mut() {
            while let Some(old) = line.before.pop_front_if(|old| old.ledger().undone() == 0) {
                self.context.ownership.forget_session(&old.id);
            }
            // Until all events of the session before are done, a restart has to find that one.
            let session = line.before.front().unwrap_or(&line.session);
            let confirmed = session.ledger().confirmed();
            // And nothing can be resumed before its READY.
            if !line.before.is_empty() || line.kept == Some(confirmed) || confirmed == 0 {
                continue;
            }
            sessions.push(StoredSession {
                shard: session.shard,
                shards,
                session: Arc::clone(&session.id),
                resume_url: session.resume_url.clone(),
                confirmed,
                at,
                under: self.context.ownership.fence(session.shard),
            });
        }
        sessions
    }

    /// This was kept.
    pub(super) fn on_kept(&mut self, sessions: &[StoredSession]) {
        emit(SessionsSaved { sessions: sessions.len() });
        for kept in sessions {
            if let Some(line) = self.lines.get_mut(&kept.shard).filter(|line| line.session.id == kept.session) {
                line.kept = Some(kept.confirmed);
            }
        }
    }

    /// How far each shard's session is, by shard.
    fn views(&self) -> Vec<SessionView> {
        let view = |(shard, line): (&u32, &ShardSessions)| {
            let confirmed = line.session.ledger().confirmed();
            SessionView { shard: *shard, session: Arc::clone(&line.session.id), confirmed }
        };
        let mut views: Vec<_> = self.lines.iter().map(view).collect();
        views.sort_unstable_by_key(|view| view.shard);
        views
    }

    /// How many events are with somebody.
    pub(super) fn undone(&self) -> usize {
        self.lines.values().map(ShardSessions::undone).sum()
    }

    /// How many of one shard are.
    pub(super) fn undone_of(&self, shard: u32) -> usize {
        self.lines.get(&shard).map_or(0, ShardSessions::undone)
    }

    /// How many events shards hold back.
    pub(super) fn held(&self) -> usize {
        self.credits.values().map(|credit| credit.held()).sum()
    }

    /// Tells how far sessions are behind, what shards hold back included.
    pub(super) fn tell_lags(&mut self) {
        for (shard, line) in &self.lines {
            let held = self.credits.get(shard).map_or(0, |credit| credit.held() as u64);
            let behind = line.sum(|session| {
                let ledger = session.ledger();
                ledger.received() - ledger.confirmed()
            });
            emit(SessionLagMeasured { shard: *shard, lag: held + behind });
        }
        // What was last told of a shard that is not here any more would be told for ever.
        let shards: BTreeSet<u32> = self.lines.keys().copied().collect();
        for gone in self.told_of.difference(&shards) {
            emit(SessionLagMeasured { shard: *gone, lag: 0 });
        }
        self.told_of = shards;
    }
}

/// Show how far sessions are.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Vec<SessionView>")]
pub(crate) struct ObserveSessions;

/// How far a shard's session is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// Which shard.
    pub shard: u32,
    /// What Discord calls its session.
    pub session: Arc<str>,
    /// Every event up to this one was handled.
    pub confirmed: u64,
}

impl Takes<ObserveSessions> for EventRouter {
    type Result = MessageResult<ObserveSessions>;

    fn handle(&mut self, _: ObserveSessions, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.sessions.views())
    }
}
