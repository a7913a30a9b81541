//! Jobs of the writer, and the requests that carry them.
//!
//! ```text
//!  Store::write(job) ──▶ Request<J>, as a JobRequest ──▶ batch: sorted by RunOrder, one kind after the other ──▶ commit
//!        ▲                                                                                                        │
//!        └───────────────────────────────── J::Output, by WriteJob::deliver ◀─────────────────────────────────────┘
//! ```

use std::any::{Any, TypeId};

use futures_util::future::BoxFuture;
use guildhall_actors::access::AuditRecord;
use guildhall_actors::crash::Input;
use guildhall_actors::ports::StoreError;
use tokio::sync::oneshot;

use super::{
    EngineError,
    batch::{BatchNeeds, WriteTx},
};
use crate::store::cluster::ProcessLease;

/// Channel for the result of a job.
pub(in crate::store) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// A change that the writer stores. A kind of job implements [`Self::run`], or [`Self::run_all`] if its jobs run
/// together.
pub(in crate::store) trait WriteJob: Send + Sync + Sized + 'static {
    /// Result of the job.
    type Output: Send + Sync + 'static;

    /// When jobs of this kind run in their transaction.
    const ORDER: RunOrder = RunOrder::AsRequested;

    /// Approximate number of rows and of text bytes that the job writes.
    fn size(&self) -> (usize, usize) {
        (1, 0)
    }

    /// The input that the job is for, if it is exactly one. Requests of callers, who can repeat them, have none.
    fn input(&self) -> Option<Input> {
        None
    }

    /// Adds what the transaction must read or lock before any of its jobs runs.
    fn prepare<'a>(&'a self, _needs: &mut BatchNeeds<'a>) {}

    /// Runs the job.
    fn run(&self, tx: &mut WriteTx<'_>) -> impl Future<Output = Result<Self::Output, EngineError>> + Send {
        async move {
            let output = Self::run_all(&[self], tx).await?.pop();
            Ok(output.expect("invariant: every job has a result"))
        }
    }

    /// Runs all jobs of this kind in a batch. Returns one result for each.
    fn run_all(
        jobs: &[&Self],
        tx: &mut WriteTx<'_>,
    ) -> impl Future<Output = Result<Vec<Self::Output>, EngineError>> + Send {
        async move {
            let mut outputs = Vec::with_capacity(jobs.len());
            for job in jobs {
                outputs.push(job.run(tx).await?);
            }
            Ok(outputs)
        }
    }

    /// Whether the job changed something: only then is the audit record of its request stored.
    fn is_change(_output: &Self::Output) -> bool {
        true
    }

    /// Replies, after the commit. Updates what this process owns before the caller can act on it.
    fn deliver(&self, output: Self::Output, reply: Reply<Self::Output>, _lease: &ProcessLease) -> ResultDelivery {
        // The caller may have stopped waiting.
        let _ = reply.send(Ok(output));
        ResultDelivery::Done
    }
}

/// When a job runs in its transaction. Jobs of a batch were requested concurrently, so they may run in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store) enum RunOrder {
    // First the kinds whose jobs run together, in this order.
    Record,
    Submit,
    Commit,
    Release,
    SetState,
    /// After the commits of handlers: everything up to the confirmed position of a session is in the store by then.
    StoreSessions,
    RecordInteractions,
    StoreSpend,
    Postpone,
    /// Alone, in the order of the requests.
    AsRequested,
    /// Alone. All processes take turns for these jobs, so no process waits for one that waits for another.
    Last,
}

impl RunOrder {
    /// Whether the jobs run together.
    pub(super) fn is_grouped(self) -> bool {
        self < Self::AsRequested
    }
}

/// What became of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum ResultDelivery {
    Done,
    /// The caller has stopped waiting: the store lists queues for this process that no part of it knows.
    ClaimsInDoubt,
}

/// A job, and the channel for its result.
pub(in crate::store) struct Request<J: WriteJob> {
    job: J,
    /// Audit record to store if the job changes something.
    audit_record: Option<AuditRecord>,
    /// Result of the last attempt.
    output: Option<J::Output>,
    reply: Reply<J::Output>,
}

/// A request for a job of any kind.
pub(in crate::store) type JobRequest = Box<dyn AnyRequest>;

impl<J: WriteJob> Request<J> {
    pub(in crate::store) fn boxed(job: J, audit_record: Option<AuditRecord>, reply: Reply<J::Output>) -> JobRequest {
        Box::new(Self { job, audit_record, output: None, reply })
    }
}

/// A [`Request`] whose kind of job is not known.
pub(in crate::store) trait AnyRequest: Any + Send + Sync {
    fn order(&self) -> RunOrder;
    fn size(&self) -> (usize, usize);
    fn input(&self) -> Option<Input>;
    fn prepare<'a>(&'a self, needs: &mut BatchNeeds<'a>);

    /// Runs the job together with others of the same kind.
    fn run_with<'a>(
        &'a mut self,
        others: &'a mut [JobRequest],
        tx: &'a mut WriteTx<'_>,
    ) -> BoxFuture<'a, Result<(), EngineError>>;

    /// The audit record to store, after the job has run.
    fn audit_record(&self) -> Option<&AuditRecord>;

    /// Replies, after the commit.
    fn deliver(self: Box<Self>, lease: &ProcessLease) -> ResultDelivery;

    /// Replies that the job failed.
    fn reject(self: Box<Self>, error: StoreError);
}

impl dyn AnyRequest {
    /// The kind of job.
    pub(super) fn kind(&self) -> TypeId {
        (self as &dyn Any).type_id()
    }

    /// Whether this is a request for this kind of job.
    pub(super) fn is_for<J: WriteJob>(&self) -> bool {
        self.kind() == TypeId::of::<Request<J>>()
    }
}

impl<J: WriteJob> AnyRequest for Request<J> {
    fn order(&self) -> RunOrder {
        J::ORDER
    }

    fn size(&self) -> (usize, usize) {
        self.job.size()
    }

    fn input(&self) -> Option<Input> {
        self.job.input()
    }

    fn prepare<'a>(&'a self, needs: &mut BatchNeeds<'a>) {
        self.job.prepare(needs);
    }

    fn run_with<'a>(
        &'a mut self,
        others: &'a mut [JobRequest],
        tx: &'a mut WriteTx<'_>,
    ) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let mut requests = vec![self];
            requests.extend(others.iter_mut().map(|other| {
                let other: &mut dyn Any = &mut **other;
                other.downcast_mut().expect("invariant: only jobs of one kind run together")
            }));
            let jobs: Vec<&J> = requests.iter().map(|request| &request.job).collect();
            let outputs = J::run_all(&jobs, tx).await?;
            debug_assert_eq!(outputs.len(), requests.len(), "every job has a result");
            for (request, output) in requests.into_iter().zip(outputs) {
                request.output = Some(output);
            }
            Ok(())
        })
    }

    fn audit_record(&self) -> Option<&AuditRecord> {
        self.audit_record.as_ref().filter(|_| self.output.as_ref().is_some_and(J::is_change))
    }

    fn deliver(self: Box<Self>, lease: &ProcessLease) -> ResultDelivery {
        let Self { job, output, reply, .. } = *self;
        job.deliver(output.expect("invariant: every job of a committed batch has a result"), reply, lease)
    }

    fn reject(self: Box<Self>, error: StoreError) {
        // The caller may have stopped waiting.
        let _ = self.reply.send(Err(error));
    }
}

/// Splits the results of items that several jobs have run together: as many for each job as it has items.
pub(super) fn split<T>(results: Vec<T>, sizes: impl Iterator<Item = usize>) -> Vec<Vec<T>> {
    let mut results = results.into_iter();
    sizes.map(|size| results.by_ref().take(size).collect()).collect()
}
