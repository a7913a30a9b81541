//! A Discord that follows scripts, and records what was done.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use guildhall_core::operation::payload::CreateRole;
use guildhall_core::operation::{Failure, FailureClass, ManagedKind, OperationId, Payload, ProgressStep};
use tokio::sync::Notify;

use super::fault_injector::FaultInjector;
use crate::gate::NotSent;
use crate::ports::{
    Binding, Execution, ExecutionOutput, ExecutionResult, ExecutorFuture, HoldScope, OperationExecutor, ReconcileResult,
};

/// The retry delay of a call whose lease has ended.
const DENIED: Duration = Duration::from_secs(1);

/// Scripted result of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptedResult {
    Do,
    Hold {
        wait: Option<Duration>,
        hold: HoldScope,
    },
    /// The gate delays it for this time, with this reason.
    Gate {
        wait: Duration,
        hold: HoldScope,
        reason: &'static str,
        text: &'static str,
    },
    /// The same, but the refusal arrives when `resume` is called.
    GateLate {
        wait: Duration,
        hold: HoldScope,
        reason: &'static str,
        text: &'static str,
    },
    Fail(FailureClass),
    /// It takes effect, and the response is lost.
    DoUnheard,
    Panic,
    /// It is in flight until `resume` is called.
    Wait,
    /// It waits for its permit until `resume` is called.
    WaitForPermit,
    /// A first call sends a message; the second is delayed for this time.
    SendThenHold(Duration),
    /// A first call sends a message; the second waits for its permit until `resume` is called.
    SendThenWait,
}

/// Scripted result of a search for the effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScriptedSearch {
    Look,
    Unclear,
    Hold(Duration),
    Fail,
    /// The gate delays it, with this text.
    Gate(Duration, &'static str),
    Panic,
}

#[derive(Debug, Default)]
struct Inner {
    scripts: HashMap<OperationId, VecDeque<ScriptedResult>>,
    searches: HashMap<OperationId, VecDeque<ScriptedSearch>>,
    /// Sent operations in order, with their guilds.
    sent: Vec<(Option<u64>, OperationId)>,
    /// How often each operation took effect.
    happened: HashMap<OperationId, u32>,
    busy: HashSet<Option<u64>>,
    works: Vec<Execution>,
    /// Operations that were verified before they ended.
    verified: Vec<OperationId>,
}

/// A Discord that follows scripts.
#[derive(Debug)]
pub(crate) struct FakeDiscord {
    inner: Mutex<Inner>,
    chaos: Arc<FaultInjector>,
    go_on: Notify,
    began: Notify,
}

/// Records the end of a call, also if it is cancelled.
struct InFlightCall<'a>(&'a FakeDiscord, Option<u64>);

impl Drop for InFlightCall<'_> {
    fn drop(&mut self) {
        if let Ok(mut inner) = self.0.inner.lock() {
            inner.busy.remove(&self.1);
        }
    }
}

impl FakeDiscord {
    pub(crate) fn new(chaos: Arc<FaultInjector>) -> Self {
        Self { inner: Mutex::default(), chaos, go_on: Notify::new(), began: Notify::new() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    pub(crate) fn script(&self, id: OperationId, scripts: impl IntoIterator<Item = ScriptedResult>) {
        self.inner().scripts.entry(id).or_default().extend(scripts);
    }

    pub(crate) fn script_search(&self, id: OperationId, searches: impl IntoIterator<Item = ScriptedSearch>) {
        self.inner().searches.entry(id).or_default().extend(searches);
    }

    pub(crate) fn sent(&self) -> Vec<OperationId> {
        self.inner().sent.iter().map(|(_, id)| *id).collect()
    }

    pub(crate) fn sent_in(&self, guild: u64) -> Vec<OperationId> {
        self.inner().sent.iter().filter(|(of, _)| *of == Some(guild)).map(|(_, id)| *id).collect()
    }

    pub(crate) fn happened(&self, id: OperationId) -> u32 {
        self.inner().happened.get(&id).copied().unwrap_or(0)
    }

    pub(crate) fn verified(&self) -> Vec<OperationId> {
        self.inner().verified.clone()
    }

    pub(crate) fn works(&self) -> Vec<Execution> {
        self.inner().works.clone()
    }

    pub(crate) fn go_on(&self) {
        self.go_on.notify_one();
    }

    /// Waits until a waiting call has started.
    pub(crate) async fn began(&self) {
        self.began.notified().await;
    }

    async fn wait_for_permit(&self, work: &Execution) {
        work.journal.on_read();
        self.began.notify_one();
        self.go_on.notified().await;
    }

    fn done(&self, work: &Execution) -> ExecutionOutput {
        let made = made_by(work);
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
        ExecutionOutput {
            result: serde_json::json!({ "id": made.to_string() }),
            made: Some(made),
            bind,
            ..ExecutionOutput::default()
        }
    }
}

/// A limit delays a call.
fn held(retry_after: Option<Duration>, hold: HoldScope) -> ExecutionResult {
    ExecutionResult::Held { retry_after, hold, reason: "limit", why: "a limit".to_owned(), status: Some(429) }
}

/// The gate refuses a call.
fn refused(wait: Duration, hold: HoldScope, reason: &'static str, text: &str) -> ExecutionResult {
    ExecutionResult::Held { retry_after: Some(wait), hold, reason, why: text.to_owned(), status: None }
}

/// Commits a call that has its permit.
async fn commit(work: &Execution) -> Result<(), ExecutionResult> {
    let hook = work.journal.hook();
    let Some(by) = hook.get() else { return Ok(()) };
    let NotSent { why, reason, .. } = match by.commit().await {
        Ok(()) => return Ok(()),
        Err(not_sent) => not_sent,
    };
    Err(ExecutionResult::Held { retry_after: None, hold: HoldScope::All, reason, why, status: None })
}

/// The message that the first call of an operation sends.
fn sent_message(work: &Execution) -> ProgressStep {
    ProgressStep::MessageSent { channel_id: 1, message_id: made_by(work), key: Some("rules".to_owned()) }
}

fn made_by(work: &Execution) -> u64 {
    u64::from_be_bytes(work.id.uuid().as_bytes()[8..].try_into().unwrap()) >> 8
}

impl OperationExecutor for FakeDiscord {
    fn perform(&self, work: Execution) -> ExecutorFuture<'_, ExecutionResult> {
        Box::pin(async move {
            let first = self.inner().busy.insert(work.guild);
            assert!(first, "two operations of {:?} at once", work.guild);
            let call = InFlightCall(self, work.guild);
            let script = {
                let mut inner = self.inner();
                inner.works.push(work.clone());
                inner.scripts.get(&work.id).and_then(VecDeque::front).copied().unwrap_or(ScriptedResult::Do)
            };
            let is_followed = || {
                let _ = self.inner().scripts.get_mut(&work.id).and_then(VecDeque::pop_front);
            };
            if let ScriptedResult::WaitForPermit | ScriptedResult::GateLate { .. } = script {
                is_followed();
                self.wait_for_permit(&work).await;
            }
            if let ScriptedResult::GateLate { wait, hold, reason, text } = script {
                return refused(wait, hold, reason, text);
            }
            if let Err(held) = commit(&work).await {
                return held;
            }
            let fault = self.chaos.before().await;
            if !work.right.holds() {
                let (reason, why) = ("lease_lost", "another process owns the queue".to_owned());
                return ExecutionResult::Held {
                    retry_after: Some(DENIED),
                    hold: HoldScope::All,
                    reason,
                    why,
                    status: None,
                };
            }
            // A call that never arrives follows no script.
            if script != ScriptedResult::WaitForPermit {
                is_followed();
            }
            if script == ScriptedResult::Wait {
                self.began.notify_one();
                self.go_on.notified().await;
            }
            if let ScriptedResult::SendThenHold(_) | ScriptedResult::SendThenWait = script {
                self.inner().sent.push((work.guild, work.id));
                *self.inner().happened.entry(work.id).or_default() += 1;
                work.journal.step(sent_message(&work));
                if script == ScriptedResult::SendThenWait {
                    self.wait_for_permit(&work).await;
                }
                if let Err(held) = commit(&work).await {
                    return held;
                }
            }
            let performed = match script {
                ScriptedResult::SendThenWait => ExecutionResult::Done(self.done(&work)),
                ScriptedResult::Do
                | ScriptedResult::DoUnheard
                | ScriptedResult::Wait
                | ScriptedResult::WaitForPermit => {
                    let mut inner = self.inner();
                    inner.sent.push((work.guild, work.id));
                    // Completed steps are not repeated.
                    if work.progress.is_empty() {
                        *inner.happened.entry(work.id).or_default() += 1;
                    }
                    drop(inner);
                    if script == ScriptedResult::DoUnheard {
                        ExecutionResult::Unknown(Failure::new(FailureClass::Ambiguous, "no response"))
                    } else {
                        ExecutionResult::Done(self.done(&work))
                    }
                }
                ScriptedResult::SendThenHold(wait) => held(Some(wait), HoldScope::Route),
                ScriptedResult::Hold { wait, hold } => held(wait, hold),
                ScriptedResult::Gate { wait, hold, reason, text }
                | ScriptedResult::GateLate { wait, hold, reason, text } => refused(wait, hold, reason, text),
                ScriptedResult::Fail(class) => {
                    self.inner().sent.push((work.guild, work.id));
                    let failure = Failure::new(class, "scripted failure");
                    match class {
                        FailureClass::Transient | FailureClass::Ambiguous => ExecutionResult::Unknown(failure),
                        _ => ExecutionResult::Failed(failure),
                    }
                }
                ScriptedResult::Panic => panic!("scripted panic"),
            };
            self.chaos.after(fault).await;
            drop(call);
            performed
        })
    }

    fn reconcile(&self, work: Execution) -> ExecutorFuture<'_, ReconcileResult> {
        Box::pin(async move {
            let fault = self.chaos.before().await;
            if !work.right.holds() {
                let why = "another process owns the queue".to_owned();
                return ReconcileResult::Held { retry_after: DENIED, hold: HoldScope::All, why };
            }
            let search = {
                let mut inner = self.inner();
                inner.works.push(work.clone());
                inner.searches.get_mut(&work.id).and_then(VecDeque::pop_front).unwrap_or(ScriptedSearch::Look)
            };
            let reconciled = match search {
                ScriptedSearch::Look if self.happened(work.id) > 0 => ReconcileResult::Found(self.done(&work)),
                ScriptedSearch::Look => ReconcileResult::Absent,
                ScriptedSearch::Unclear => ReconcileResult::Unclear("two candidates".to_owned()),
                ScriptedSearch::Hold(retry_after) => {
                    ReconcileResult::Held { retry_after, hold: HoldScope::All, why: "the breaker is open".to_owned() }
                }
                ScriptedSearch::Fail => ReconcileResult::Failed("503".to_owned()),
                ScriptedSearch::Gate(retry_after, text) => {
                    ReconcileResult::Held { retry_after, hold: HoldScope::All, why: text.to_owned() }
                }
                ScriptedSearch::Panic => panic!("scripted panic during the search"),
            };
            self.chaos.after(fault).await;
            reconciled
        })
    }

    fn verify(&self, work: Execution) -> ExecutorFuture<'_, ReconcileResult> {
        self.inner().verified.push(work.id);
        self.reconcile(work)
    }
}
