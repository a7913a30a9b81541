//! A listener to shards: it records what it receives, and returns credit or holds it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use guildhall::discord::{SessionKind, ShardEvent};
use guildhall_actors::shard::{Credit, FlowLimit, ShardMessage, ShardSender};
use tokio::sync::{mpsc, watch};

/// A timeout that only a defect reaches; no test waits for it.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// What was received of one session, or of its rest.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedSession {
    pub(crate) shard: u32,
    pub(crate) id: Arc<str>,
    pub(crate) resume_url: Option<String>,
    /// Whether its start was received.
    pub(crate) started: bool,
    /// All sequence numbers, in the order of arrival.
    pub(crate) seqs: Vec<u64>,
    /// Number of events by name.
    pub(crate) events: BTreeMap<String, u64>,
}

impl ReceivedSession {
    pub(crate) fn last(&self) -> u64 {
        self.seqs.last().copied().unwrap_or_default()
    }

    /// Whether nothing is missing, duplicated or out of order from this number on.
    pub(crate) fn is_complete_from(&self, first: u64) -> bool {
        self.seqs.iter().copied().eq(first..=self.last())
    }
}

#[derive(Debug, Default)]
pub(crate) struct ListenerLog {
    /// In the order of their start.
    pub(crate) sessions: Vec<ReceivedSession>,
    pub(crate) connected: BTreeSet<u32>,
    /// How often each shard connected.
    pub(crate) connects: BTreeMap<u32, u64>,
    pub(crate) resumed: u64,
    pub(crate) out_of_identifies: Vec<Duration>,
    pub(crate) largest_batch: usize,
    /// Credit that was not returned: shard, number of events, and bytes.
    held: Option<Vec<(u32, usize, usize)>>,
}

impl ListenerLog {
    /// Number of events of a shard.
    pub(crate) fn events_of(&self, shard: u32) -> u64 {
        self.sessions
            .iter()
            .filter(|received| received.shard == shard)
            .flat_map(|received| received.events.values())
            .sum()
    }

    /// The shard's current session.
    pub(crate) fn latest(&self, shard: u32) -> Option<&ReceivedSession> {
        self.sessions.iter().rfind(|received| received.shard == shard)
    }

    fn session(&mut self, shard: u32, id: &Arc<str>) -> &mut ReceivedSession {
        let index = self.sessions.iter().rposition(|received| received.shard == shard && received.id == *id);
        let index = index.unwrap_or_else(|| {
            let (id, events) = (Arc::clone(id), BTreeMap::new());
            self.sessions.push(ReceivedSession {
                shard,
                id,
                resume_url: None,
                started: false,
                seqs: Vec::new(),
                events,
            });
            self.sessions.len() - 1
        });
        &mut self.sessions[index]
    }

    fn record(&mut self, message: ShardMessage) -> Option<(u32, usize, usize)> {
        match message {
            ShardMessage::SessionStarted { shard, session, resume_url } => {
                let received = self.session(shard, &session);
                assert!(received.seqs.is_empty() && !received.started, "a session starts once, before its events");
                (received.started, received.resume_url) = (true, resume_url);
                None
            }
            ShardMessage::Ended { .. } => None,
            ShardMessage::Skipped { shard, session, seq } => {
                self.session(shard, &session).seqs.push(seq);
                None
            }
            ShardMessage::Events(events) => {
                assert!(!events.is_empty());
                self.largest_batch = self.largest_batch.max(events.len());
                let bytes = events.iter().map(|event| event.text.bytes()).sum();
                for event in &events {
                    let received = self.session(event.origin.shard, &event.origin.session);
                    received.seqs.push(event.origin.seq);
                    *received.events.entry(event.name.to_string()).or_default() += 1;
                }
                Some((events[0].origin.shard, events.len(), bytes))
            }
        }
    }
}

pub(crate) struct ShardListener {
    sender: mpsc::Sender<ShardMessage>,
    log: Arc<Mutex<ListenerLog>>,
    credits: Arc<Mutex<BTreeMap<u32, Arc<Credit>>>>,
    changed: watch::Sender<()>,
    limit: FlowLimit,
}

impl ShardListener {
    pub(crate) fn new(limit: FlowLimit) -> Self {
        let (sender, mut messages) = mpsc::channel(64);
        let (log, credits) = (Arc::new(Mutex::new(ListenerLog::default())), Arc::new(Mutex::new(BTreeMap::new())));
        let (changed, _) = watch::channel(());
        let listener =
            Self { sender, log: Arc::clone(&log), credits: Arc::clone(&credits), changed: changed.clone(), limit };
        tokio::spawn(async move {
            while let Some(messages) = messages.recv().await {
                let mut log = log.lock().unwrap();
                if let Some((shard, events, bytes)) = log.record(messages) {
                    match &mut log.held {
                        Some(held) => held.push((shard, events, bytes)),
                        None => return_credit(&credits.lock().unwrap(), shard, events, bytes),
                    }
                }
                drop(log);
                changed.send_replace(());
            }
        });
        listener
    }

    /// Returns credit for one event at a time, each after a delay.
    pub(crate) fn slow(limit: FlowLimit, delay: Duration) -> Self {
        let listener = Self::new(limit);
        listener.hold();
        let (log, credits) = (Arc::clone(&listener.log), Arc::clone(&listener.credits));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(delay).await;
                let mut log = log.lock().unwrap();
                let Some(first) = log.held.as_mut().and_then(|held| held.first_mut()) else { continue };
                let (shard, bytes) = (first.0, first.2 / first.1);
                (first.1, first.2) = (first.1 - 1, first.2 - bytes);
                if first.1 == 0 {
                    log.held.as_mut().unwrap().remove(0);
                }
                drop(log);
                return_credit(&credits.lock().unwrap(), shard, 1, bytes);
            }
        });
        listener
    }

    /// With more credit than any test uses.
    pub(crate) fn unlimited() -> Self {
        Self::new(FlowLimit { events: 100_000, bytes: 1 << 30 })
    }

    pub(crate) fn shard_sender(&self, shard: u32) -> ShardSender {
        let credit = Credit::new(self.limit);
        self.credits.lock().unwrap().insert(shard, Arc::clone(&credit));
        ShardSender::new(self.sender.clone(), credit)
    }

    pub(crate) fn observer(&self) -> impl Fn(ShardEvent) + Send + Sync + 'static {
        let (log, changed) = (Arc::clone(&self.log), self.changed.clone());
        move |event| {
            let mut log = log.lock().unwrap();
            match event {
                ShardEvent::Connected { shard, session } => {
                    assert!(log.connected.insert(shard), "reported once");
                    *log.connects.entry(shard).or_default() += 1;
                    log.resumed += u64::from(session == SessionKind::Resumed);
                }
                ShardEvent::Disconnected { shard } => assert!(log.connected.remove(&shard), "reported once"),
                ShardEvent::PermissionsChanged { .. } | ShardEvent::GuildChanged(_) | ShardEvent::GuildsListed(_) => {}
                ShardEvent::OutOfIdentifies { retry_in: again_in, .. } => log.out_of_identifies.push(again_in),
            }
            drop(log);
            changed.send_replace(());
        }
    }

    /// Returns no credit from now on.
    pub(crate) fn hold(&self) {
        self.log.lock().unwrap().held = Some(Vec::new());
    }

    /// Returns the held credit, and from now on returns credit at once.
    pub(crate) fn release(&self) {
        let held = self.log.lock().unwrap().held.take().unwrap();
        let credits = self.credits.lock().unwrap();
        for (shard, events, bytes) in held {
            return_credit(&credits, shard, events, bytes);
        }
    }

    pub(crate) fn used(&self, shard: u32) -> FlowLimit {
        self.credits.lock().unwrap()[&shard].used()
    }

    pub(crate) fn log<T>(&self, inspect: impl FnOnce(&ListenerLog) -> T) -> T {
        inspect(&self.log.lock().unwrap())
    }

    /// Waits until a condition on the log holds.
    pub(crate) async fn wait_until(&self, description: &str, mut condition: impl FnMut(&ListenerLog) -> bool) {
        let mut changed = self.changed.subscribe();
        let received = tokio::time::timeout(TEST_TIMEOUT, async {
            while !self.log(&mut condition) {
                changed.changed().await.unwrap();
            }
        });
        if received.await.is_err() {
            let summary = self.log(|log| {
                let sessions: Vec<_> =
                    log.sessions.iter().map(|h| (h.shard, h.id.clone(), h.seqs.len(), h.last())).collect();
                format!("{sessions:?}, connected {:?}", log.connected)
            });
            panic!("timed out: {description}; received {summary}");
        }
    }
}

fn return_credit(credits: &BTreeMap<u32, Arc<Credit>>, shard: u32, events: usize, bytes: usize) {
    credits[&shard].release(events, bytes);
}
