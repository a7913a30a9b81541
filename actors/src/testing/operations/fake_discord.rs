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
    DoWithLostResponse,
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
    Search,
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
    faults: Arc<FaultInjector>,
    resume: Notify,
    started: Notify,
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
    pub(crate) fn new(faults: Arc<FaultInjector>) -> Self {
        Self { inner: Mutex::default(), faults, resume: Notify::new(), started: Notify::new() }
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

    /// The effect of an operation exists already.
    pub(crate) fn set_happened(&self, id: OperationId) {
        self.inner().happened.insert(id, 1);
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

    pub(crate) fn executions(&self) -> Vec<Execution> {
        self.inner().works.clone()
    }

    pub(crate) fn resume(&self) {
        self.resume.notify_one();
    }

    /// Waits until a waiting call has started.
    pub(crate) async fn started(&self) {
        self.started.notified().await;
    }

    async fn wait_for_permit(&self, execution: &Execution) {
        execution.journal.on_read();
        self.started.notify_one();
        self.resume.notified().await;
    }

    fn output(&self, execution: &Execution) -> ExecutionOutput {
        let created = created_id(execution);
        let bind = match &execution.payload {
            Payload::CreateRole(CreateRole { key: Some(key), .. }) => vec![Binding {
                kind: ManagedKind::Role,
                key: key.clone(),
                discord_id: created,
                channel: None,
                origin: "created",
            }],
            _ => Vec::new(),
        };
        ExecutionOutput {
            result: serde_json::json!({ "id": created.to_string() }),
            created: Some(created),
            bind,
            ..ExecutionOutput::default()
        }
    }
}

/// A limit delays a call.
fn held(retry_after: Option<Duration>, hold: HoldScope) -> ExecutionResult {
    ExecutionResult::Held {
        retry_after,
        scope: hold,
        reason: "limit",
        message: "a limit".to_owned(),
        status: Some(429),
    }
}

/// The gate refuses a call.
fn refused(wait: Duration, hold: HoldScope, reason: &'static str, text: &str) -> ExecutionResult {
    ExecutionResult::Held { retry_after: Some(wait), scope: hold, reason, message: text.to_owned(), status: None }
}

/// Commits a call that has its permit.
async fn commit(execution: &Execution) -> Result<(), ExecutionResult> {
    let hook = execution.journal.hook();
    let Some(before_send) = hook.get() else { return Ok(()) };
    let NotSent { message, reason, .. } = match before_send.commit().await {
        Ok(()) => return Ok(()),
        Err(not_sent) => not_sent,
    };
    Err(ExecutionResult::Held { retry_after: None, scope: HoldScope::All, reason, message, status: None })
}

/// The message that the first call of an operation sends.
fn sent_message(execution: &Execution) -> ProgressStep {
    ProgressStep::MessageSent { channel_id: 1, message_id: created_id(execution), key: Some("rules".to_owned()) }
}

fn created_id(execution: &Execution) -> u64 {
    u64::from_be_bytes(execution.id.uuid().as_bytes()[8..].try_into().unwrap()) >> 8
}

impl OperationExecutor for FakeDiscord {
    fn execute(&self, execution: Execution) -> ExecutorFuture<'_, ExecutionResult> {
        Box::pin(async move {
            let first = self.inner().busy.insert(execution.guild);
            assert!(first, "two operations of {:?} at once", execution.guild);
            let call = InFlightCall(self, execution.guild);
            let script = {
                let mut inner = self.inner();
                inner.works.push(execution.clone());
                inner.scripts.get(&execution.id).and_then(VecDeque::front).copied().unwrap_or(ScriptedResult::Do)
            };
            let consume_script = || {
                let _ = self.inner().scripts.get_mut(&execution.id).and_then(VecDeque::pop_front);
            };
            if let ScriptedResult::WaitForPermit | ScriptedResult::GateLate { .. } = script {
                consume_script();
                self.wait_for_permit(&execution).await;
            }
            if let ScriptedResult::GateLate { wait, hold, reason, text } = script {
                return refused(wait, hold, reason, text);
            }
            if let Err(held) = commit(&execution).await {
                return held;
            }
            let fault = self.faults.before().await;
            if !execution.lease.holds() {
                let (reason, message) = ("lease_lost", "another process owns the queue".to_owned());
                return ExecutionResult::Held {
                    retry_after: Some(DENIED),
                    scope: HoldScope::All,
                    reason,
                    message,
                    status: None,
                };
            }
            // A call that never arrives follows no script.
            if script != ScriptedResult::WaitForPermit {
                consume_script();
            }
            if script == ScriptedResult::Wait {
                self.started.notify_one();
                self.resume.notified().await;
            }
            if let ScriptedResult::SendThenHold(_) | ScriptedResult::SendThenWait = script {
                self.inner().sent.push((execution.guild, execution.id));
                *self.inner().happened.entry(execution.id).or_default() += 1;
                execution.journal.add_step(sent_message(&execution));
                if script == ScriptedResult::SendThenWait {
                    self.wait_for_permit(&execution).await;
                }
                if let Err(held) = commit(&execution).await {
                    return held;
                }
            }
            let result = match script {
                ScriptedResult::SendThenWait => ExecutionResult::Done(self.output(&execution)),
                ScriptedResult::Do
                | ScriptedResult::DoWithLostResponse
                | ScriptedResult::Wait
                | ScriptedResult::WaitForPermit => {
                    let mut inner = self.inner();
                    inner.sent.push((execution.guild, execution.id));
                    // Completed steps are not repeated.
                    if execution.progress.is_empty() {
                        *inner.happened.entry(execution.id).or_default() += 1;
                    }
                    drop(inner);
                    if script == ScriptedResult::DoWithLostResponse {
                        ExecutionResult::Unknown(Failure::new(FailureClass::Ambiguous, "no response"))
                    } else {
                        ExecutionResult::Done(self.output(&execution))
                    }
                }
                ScriptedResult::SendThenHold(wait) => held(Some(wait), HoldScope::Route),
                ScriptedResult::Hold { wait, hold } => held(wait, hold),
                ScriptedResult::Gate { wait, hold, reason, text }
                | ScriptedResult::GateLate { wait, hold, reason, text } => refused(wait, hold, reason, text),
                ScriptedResult::Fail(class) => {
                    self.inner().sent.push((execution.guild, execution.id));
                    let failure = Failure::new(class, "scripted failure");
                    match class {
                        FailureClass::Transient | FailureClass::Ambiguous => ExecutionResult::Unknown(failure),
                        _ => ExecutionResult::Failed(failure),
                    }
                }
                ScriptedResult::Panic => panic!("scripted panic"),
            };
            self.faults.after(fault).await;
            drop(call);
            result
        })
    }

    fn reconcile(&self, execution: Execution) -> ExecutorFuture<'_, ReconcileResult> {
        Box::pin(async move {
            let fault = self.faults.before().await;
            if !execution.lease.holds() {
                let message = "another process owns the queue".to_owned();
                return ReconcileResult::Held { retry_after: DENIED, scope: HoldScope::All, message };
            }
            let search = {
                let mut inner = self.inner();
                inner.works.push(execution.clone());
                inner.searches.get_mut(&execution.id).and_then(VecDeque::pop_front).unwrap_or(ScriptedSearch::Search)
            };
            let result = match search {
                ScriptedSearch::Search if self.happened(execution.id) > 0 => {
                    ReconcileResult::Found(self.output(&execution))
                }
                ScriptedSearch::Search => ReconcileResult::Absent,
                ScriptedSearch::Unclear => ReconcileResult::Unclear("two candidates".to_owned()),
                ScriptedSearch::Hold(retry_after) => ReconcileResult::Held {
                    retry_after,
                    scope: HoldScope::All,
                    message: "the breaker is open".to_owned(),
                },
                ScriptedSearch::Fail => ReconcileResult::Failed("503".to_owned()),
                ScriptedSearch::Gate(retry_after, text) => {
                    ReconcileResult::Held { retry_after, scope: HoldScope::All, message: text.to_owned() }
                }
                ScriptedSearch::Panic => panic!("scripted panic during the search"),
            };
            self.faults.after(fault).await;
            result
        })
    }

    fn verify(&self, execution: Execution) -> ExecutorFuture<'_, ReconcileResult> {
        self.inner().verified.push(execution.id);
        self.reconcile(execution)
    }
}
