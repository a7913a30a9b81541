//! A Discord that does what it is told, and remembers what was done.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use guildhall_core::operation::payload::CreateRole;
use guildhall_core::operation::{Failure, FailureClass, ManagedKind, OperationId, Payload};
use tokio::sync::Notify;

use super::chaos::Chaos;
use crate::operations::{Binding, Done, Hold, Perform, PerformFuture, Performed, Reconciled, Work};

/// How long whoever has no right is told to wait.
const DENIED: Duration = Duration::from_secs(1);

/// What comes of doing an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::operations) enum Script {
    Do,
    Hold {
        wait: Option<Duration>,
        hold: Hold,
    },
    Fail(FailureClass),
    /// It happens, and nobody hears of it.
    DoUnheard,
    Panic,
    /// It is done when [`Discord::go_on`] says so.
    Wait,
}

/// What comes of looking for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::operations) enum Search {
    Look,
    Unclear,
    Hold(Duration),
    Panic,
}

#[derive(Debug, Default)]
struct Inner {
    scripts: HashMap<OperationId, VecDeque<Script>>,
    searches: HashMap<OperationId, VecDeque<Search>>,
    /// What was sent, in order, with its guild.
    sent: Vec<(Option<u64>, OperationId)>,
    /// How often it has happened.
    happened: HashMap<OperationId, u32>,
    busy: HashSet<Option<u64>>,
    works: Vec<Work>,
}

/// A Discord that does what it is told.
#[derive(Debug)]
pub(in crate::operations) struct Discord {
    inner: Mutex<Inner>,
    chaos: Arc<Chaos>,
    go_on: Notify,
    began: Notify,
}

/// Takes note when a call ends, also if it is cut short.
struct Call<'a>(&'a Discord, Option<u64>);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if let Ok(mut inner) = self.0.inner.lock() {
            inner.busy.remove(&self.1);
        }
    }
}

impl Discord {
    pub(super) fn new(chaos: Arc<Chaos>) -> Self {
        Self { inner: Mutex::default(), chaos, go_on: Notify::new(), began: Notify::new() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    pub(in crate::operations) fn script(&self, id: OperationId, scripts: impl IntoIterator<Item = Script>) {
        self.inner().scripts.entry(id).or_default().extend(scripts);
    }

    pub(in crate::operations) fn script_search(&self, id: OperationId, searches: impl IntoIterator<Item = Search>) {
        self.inner().searches.entry(id).or_default().extend(searches);
    }

    pub(in crate::operations) fn sent(&self) -> Vec<OperationId> {
        self.inner().sent.iter().map(|(_, id)| *id).collect()
    }

    pub(in crate::operations) fn sent_in(&self, guild: u64) -> Vec<OperationId> {
        self.inner().sent.iter().filter(|(of, _)| *of == Some(guild)).map(|(_, id)| *id).collect()
    }

    pub(in crate::operations) fn happened(&self, id: OperationId) -> u32 {
        self.inner().happened.get(&id).copied().unwrap_or(0)
    }

    pub(in crate::operations) fn works(&self) -> Vec<Work> {
        self.inner().works.clone()
    }

    pub(in crate::operations) fn go_on(&self) {
        self.go_on.notify_one();
    }

    /// Waits until one that waits has begun.
    pub(in crate::operations) async fn began(&self) {
        self.began.notified().await;
    }

    fn done(&self, work: &Work) -> Done {
        let made = u64::from_be_bytes(work.id.uuid().as_bytes()[8..].try_into().unwrap()) >> 8;
        let bind = match &work.payload {
            Payload::CreateRole(CreateRole { key: Some(key), .. }) => vec![Binding {
                kind: ManagedKind::Role,
                key: key.clone(),
                discord_id: made,
                channel: None,
                origin: "created",
            }],
            _ => Vec::new(),
        };
        Done { result: serde_json::json!({ "id": made.to_string() }), made: Some(made), bind, ..Done::default() }
    }
}

impl Perform for Discord {
    fn perform(&self, work: Work) -> PerformFuture<'_, Performed> {
        Box::pin(async move {
            let fault = self.chaos.before().await;
            if !work.right.holds() {
                let (reason, why) = ("lease_lost", "it is somebody else's".to_owned());
                return Performed::Held { retry_after: Some(DENIED), hold: Hold::All, reason, why, status: None };
            }
            let first = self.inner().busy.insert(work.guild);
            assert!(first, "two operations of {:?} at once", work.guild);
            let call = Call(self, work.guild);
            let script = {
                let mut inner = self.inner();
                inner.works.push(work.clone());
                inner.scripts.get_mut(&work.id).and_then(VecDeque::pop_front).unwrap_or(Script::Do)
            };
            if script == Script::Wait {
                self.began.notify_one();
                self.go_on.notified().await;
            }
            let performed = match script {
                Script::Do | Script::DoUnheard | Script::Wait => {
                    let mut inner = self.inner();
                    inner.sent.push((work.guild, work.id));
                    *inner.happened.entry(work.id).or_default() += 1;
                    drop(inner);
                    if script == Script::DoUnheard {
                        Performed::Failed(Failure::new(FailureClass::Ambiguous, "no answer"))
                    } else {
                        Performed::Done(self.done(&work))
                    }
                }
                Script::Hold { wait, hold } => Performed::Held {
                    retry_after: wait,
                    hold,
                    reason: "limit",
                    why: "a limit".to_owned(),
                    status: Some(429),
                },
                Script::Fail(class) => {
                    self.inner().sent.push((work.guild, work.id));
                    Performed::Failed(Failure::new(class, "it was told to"))
                }
                Script::Panic => panic!("this one breaks its guild"),
            };
            self.chaos.after(fault).await;
            drop(call);
            performed
        })
    }

    fn reconcile(&self, work: Work) -> PerformFuture<'_, Reconciled> {
        Box::pin(async move {
            let fault = self.chaos.before().await;
            if !work.right.holds() {
                let why = "it is somebody else's".to_owned();
                return Reconciled::Held { retry_after: DENIED, hold: Hold::All, why };
            }
            let search = {
                let mut inner = self.inner();
                inner.works.push(work.clone());
                inner.searches.get_mut(&work.id).and_then(VecDeque::pop_front).unwrap_or(Search::Look)
            };
            let reconciled = match search {
                Search::Look if self.happened(work.id) > 0 => Reconciled::Found(self.done(&work)),
                Search::Look => Reconciled::Absent,
                Search::Unclear => Reconciled::Unclear("two look alike".to_owned()),
                Search::Hold(retry_after) => {
                    Reconciled::Held { retry_after, hold: Hold::All, why: "the breaker is open".to_owned() }
                }
                Search::Panic => panic!("looking for this one breaks its guild, too"),
            };
            self.chaos.after(fault).await;
            reconciled
        })
    }
}
