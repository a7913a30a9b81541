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
pub(crate) const STUCK: Duration = Duration::from_secs(60);

/// What was received of one session, or of its rest.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) shard: u32,
    pub(crate) id: Arc<str>,
    pub(crate) resume_url: Option<String>,
    /// Whether its start was received.
    pub(crate) began: bool,
    /// All sequence numbers, in the order of arrival.
    pub(crate) numbers: Vec<u64>,
    /// Number of events by name.
    pub(crate) events: BTreeMap<String, u64>,
}

impl Heard {
    pub(crate) fn last(&self) -> u64 {
        self.numbers.last().copied().unwrap_or_default()
    }

    /// Whether nothing is missing, duplicated or out of order from this number on.
    pub(crate) fn is_whole_from(&self, first: u64) -> bool {
        self.numbers.iter().copied().eq(first..=self.last())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// In the order of their start.
    pub(crate) sessions: Vec<Heard>,
    pub(crate) connected: BTreeSet<u32>,
    /// How often each shard connected.
    pub(crate) connects: BTreeMap<u32, u64>,
    pub(crate) resumed: u64,
    pub(crate) out_of_identifies: Vec<Duration>,
    pub(crate) largest_batch: usize,
    /// Credit that was not returned: shard, number of events, and bytes.
    held: Option<Vec<(u32, usize, usize)>>,
}

impl Notes {
    /// Number of events of a shard.
    pub(crate) fn events_of(&self, shard: u32) -> u64 {
        self.sessions.iter().filter(|heard| heard.shard == shard).flat_map(|heard| heard.events.values()).sum()
    }

    /// The shard's current session.
    pub(crate) fn latest(&self, shard: u32) -> Option<&Heard> {
        self.sessions.iter().rfind(|heard| heard.shard == shard)
    }

    fn session(&mut self, shard: u32, id: &Arc<str>) -> &mut Heard {
        let at = self.sessions.iter().rposition(|heard| heard.shard == shard && heard.id == *id);
        let at = at.unwrap_or_else(|| {
            let (id, events) = (Arc::clone(id), BTreeMap::new());
            self.sessions.push(Heard { shard, id, resume_url: None, began: false, numbers: Vec::new(), events });
            self.sessions.len() - 1
        });
        &mut self.sessions[at]
    }

    fn write(&mut self, told: ShardMessage) -> Option<(u32, usize, usize)> {
        match told {
            ShardMessage::Began { shard, session, resume_url } => {
                let heard = self.session(shard, &session);
                assert!(heard.numbers.is_empty() && !heard.began, "a session starts once, before its events");
                (heard.began, heard.resume_url) = (true, resume_url);
                None
            }
            ShardMessage::Ended { .. } => None,
            ShardMessage::Passed { shard, session, seq } => {
                self.session(shard, &session).numbers.push(seq);
                None
            }
            ShardMessage::Events(events) => {
                assert!(!events.is_empty());
                self.largest_batch = self.largest_batch.max(events.len());
                let bytes = events.iter().map(|event| event.text.bytes()).sum();
                for event in &events {
                    let heard = self.session(event.origin.shard, &event.origin.session);
                    heard.numbers.push(event.origin.seq);
                    *heard.events.entry(event.name.to_string()).or_default() += 1;
                }
                Some((events[0].origin.shard, events.len(), bytes))
            }
        }
    }
}

pub(crate) struct Ear {
    tell: mpsc::Sender<ShardMessage>,
    notes: Arc<Mutex<Notes>>,
    credits: Arc<Mutex<BTreeMap<u32, Arc<Credit>>>>,
    changed: watch::Sender<()>,
    allowance: FlowLimit,
}

impl Ear {
    pub(crate) fn new(allowance: FlowLimit) -> Self {
        let (tell, mut told) = mpsc::channel(64);
        let (notes, credits) = (Arc::new(Mutex::new(Notes::default())), Arc::new(Mutex::new(BTreeMap::new())));
        let (changed, _) = watch::channel(());
        let ear = Self {
            tell,
            notes: Arc::clone(&notes),
            credits: Arc::clone(&credits),
            changed: changed.clone(),
            allowance,
        };
        tokio::spawn(async move {
            while let Some(told) = told.recv().await {
                let mut notes = notes.lock().unwrap();
                if let Some((shard, events, bytes)) = notes.write(told) {
                    match &mut notes.held {
                        Some(held) => held.push((shard, events, bytes)),
                        None => give_back(&credits.lock().unwrap(), shard, events, bytes),
                    }
                }
                drop(notes);
                changed.send_replace(());
            }
        });
        ear
    }

    /// Returns credit for one event at a time, each after a delay.
    pub(crate) fn slow(allowance: FlowLimit, each: Duration) -> Self {
        let ear = Self::new(allowance);
        ear.hold();
        let (notes, credits) = (Arc::clone(&ear.notes), Arc::clone(&ear.credits));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(each).await;
                let mut notes = notes.lock().unwrap();
                let Some(first) = notes.held.as_mut().and_then(|held| held.first_mut()) else { continue };
                let (shard, bytes) = (first.0, first.2 / first.1);
                (first.1, first.2) = (first.1 - 1, first.2 - bytes);
                if first.1 == 0 {
                    notes.held.as_mut().unwrap().remove(0);
                }
                drop(notes);
                give_back(&credits.lock().unwrap(), shard, 1, bytes);
            }
        });
        ear
    }

    /// With more credit than any test uses.
    pub(crate) fn patient() -> Self {
        Self::new(FlowLimit { events: 100_000, bytes: 1 << 30 })
    }

    pub(crate) fn feed(&self, shard: u32) -> ShardSender {
        let credit = Credit::new(self.allowance);
        self.credits.lock().unwrap().insert(shard, Arc::clone(&credit));
        ShardSender::new(self.tell.clone(), credit)
    }

    pub(crate) fn observer(&self) -> impl Fn(ShardEvent) + Send + Sync + 'static {
        let (notes, changed) = (Arc::clone(&self.notes), self.changed.clone());
        move |event| {
            let mut notes = notes.lock().unwrap();
            match event {
                ShardEvent::Connected { shard, session } => {
                    assert!(notes.connected.insert(shard), "reported once");
                    *notes.connects.entry(shard).or_default() += 1;
                    notes.resumed += u64::from(session == SessionKind::Resumed);
                }
                ShardEvent::Disconnected { shard } => assert!(notes.connected.remove(&shard), "reported once"),
                ShardEvent::PermissionsChanged { .. } => {}
                ShardEvent::OutOfIdentifies { again_in, .. } => notes.out_of_identifies.push(again_in),
            }
            drop(notes);
            changed.send_replace(());
        }
    }

    /// Returns no credit from now on.
    pub(crate) fn hold(&self) {
        self.notes.lock().unwrap().held = Some(Vec::new());
    }

    /// Returns the held credit, and from now on returns credit at once.
    pub(crate) fn release(&self) {
        let held = self.notes.lock().unwrap().held.take().unwrap();
        let credits = self.credits.lock().unwrap();
        for (shard, events, bytes) in held {
            give_back(&credits, shard, events, bytes);
        }
    }

    pub(crate) fn used(&self, shard: u32) -> FlowLimit {
        self.credits.lock().unwrap()[&shard].used()
    }

    pub(crate) fn notes<T>(&self, look: impl FnOnce(&Notes) -> T) -> T {
        look(&self.notes.lock().unwrap())
    }

    /// Waits until a condition on the log holds.
    pub(crate) async fn until(&self, what: &str, mut holds: impl FnMut(&Notes) -> bool) {
        let mut changed = self.changed.subscribe();
        let heard = tokio::time::timeout(STUCK, async {
            while !self.notes(&mut holds) {
                changed.changed().await.unwrap();
            }
        });
        if heard.await.is_err() {
            let short = self.notes(|notes| {
                let sessions: Vec<_> =
                    notes.sessions.iter().map(|h| (h.shard, h.id.clone(), h.numbers.len(), h.last())).collect();
                format!("{sessions:?}, connected {:?}", notes.connected)
            });
            panic!("timed out: {what}; received {short}");
        }
    }
}

fn give_back(credits: &BTreeMap<u32, Arc<Credit>>, shard: u32, events: usize, bytes: usize) {
    credits[&shard].give_back(events, bytes);
}
