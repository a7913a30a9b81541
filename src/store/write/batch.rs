//! A batch of jobs in one transaction.

use std::collections::{BTreeSet, HashMap};

use guildhall_actors::ports::NewOperation;
use guildhall_core::operation::{OperationId, Queue};
use sea_orm::DatabaseTransaction;
use uuid::Uuid;

use super::{
    Context, EngineError, JobRequest, access, crashes::SetAsideOperation, guild_tenants::GuildTenants, queues,
};
use crate::store::sql;
use crate::store::{cluster::Notification, rows::query};

/// What the jobs of a batch need before any of them runs.
#[derive(Debug, Default)]
pub(in crate::store) struct BatchNeeds<'a> {
    /// Operations to submit.
    operations: Vec<&'a NewOperation>,
    /// Queues to lock.
    queues: Vec<i64>,
    /// Operations whose queues to lock.
    in_queues: Vec<OperationId>,
}

impl<'a> BatchNeeds<'a> {
    /// The job submits these operations.
    pub(super) fn submit(&mut self, operations: &'a [NewOperation]) {
        self.operations.extend(operations);
    }

    /// The job changes these queues.
    pub(super) fn lock_queues(&mut self, queues: impl IntoIterator<Item = i64>) {
        self.queues.extend(queues);
    }

    /// The job changes the queue of this operation.
    pub(super) fn lock_queue_of(&mut self, operation: OperationId) {
        self.in_queues.push(operation);
    }

    /// Locks all queues that the jobs change, before anything else is locked. Returns the owner of each.
    async fn lock(
        mut self,
        on: &DatabaseTransaction,
        tenants: &GuildTenants,
    ) -> Result<HashMap<i64, Option<Uuid>>, EngineError> {
        for new in self.operations {
            self.queues.push(tenants.queue(new).number());
            // Whether these operations are scheduled must not change during the transaction.
            self.in_queues.extend(&new.refers_to);
        }
        self.queues.extend(queues::queues_of_operations(on, self.in_queues).await?);
        queues::lock(on, self.queues).await
    }
}

/// The transaction of a batch, and what its jobs have in common.
pub(in crate::store) struct WriteTx<'a> {
    pub(super) on: &'a DatabaseTransaction,
    pub(super) context: &'a Context,
    pub(super) tenants: GuildTenants,
    /// Owners of the locked queues.
    owners: HashMap<i64, Option<Uuid>>,
    /// Queues in which scheduled operations may join now because of a change in another queue.
    pub(super) woken: BTreeSet<i64>,
    /// Operations that ended processes. They were finished instead of being claimed.
    pub(super) set_aside: Vec<SetAsideOperation>,
    /// Whether operations may have changed, for change feeds.
    pub(super) operations_changed: bool,
    /// Queues of which the other processes are notified.
    changed_queues: BTreeSet<i64>,
    notification: Notification,
}

/// The result of a batch.
#[derive(Debug)]
pub(super) struct BatchResult {
    pub(super) woken: BTreeSet<i64>,
    pub(super) set_aside: Vec<SetAsideOperation>,
    pub(super) operations_changed: bool,
}

/// Runs all jobs, those of a kind together.
pub(super) async fn run_jobs(
    on: &DatabaseTransaction,
    context: &Context,
    requests: &mut [JobRequest],
) -> Result<BatchResult, EngineError> {
    let mut needs = BatchNeeds::default();
    requests.iter().for_each(|request| request.prepare(&mut needs));
    let tenants = GuildTenants::of(on, &needs.operations).await?;
    let owners = if queues::is_shared(on) { needs.lock(on, &tenants).await? } else { HashMap::new() };
    let mut tx = WriteTx {
        on,
        context,
        tenants,
        owners,
        woken: BTreeSet::new(),
        set_aside: Vec::new(),
        operations_changed: false,
        changed_queues: BTreeSet::new(),
        notification: Notification::default(),
    };
    requests.sort_by_key(|request| request.order());
    for group in requests.chunk_by_mut(|one, next| one.order().is_grouped() && one.kind() == next.kind()) {
        if let Some((first, others)) = group.split_first_mut() {
            first.run_with(others, &mut tx).await?;
        }
    }
    access::store_audit_records(on, context, requests.iter().filter_map(|request| request.audit_record())).await?;
    context.usage.flush(on).await?;
    tx.notify_others().await?;
    let WriteTx { woken, set_aside, operations_changed, .. } = tx;
    Ok(BatchResult { woken, set_aside, operations_changed })
}

impl WriteTx<'_> {
    /// Whether another process must be notified of a change in a queue.
    fn concerns_others(&self, queue: i64) -> bool {
        let members = &self.context.members;
        members.has_others()
            && match self.owners.get(&queue).copied().flatten() {
                Some(owner) => owner != members.id(),
                // Even a queue that should be ours: another process may have become its owner a moment ago, checked it
                // before this change, and will not check it again.
                None => true,
            }
    }

    /// Notifies the other processes that operations were added to queues.
    pub(super) fn notify_added(&mut self, operations: &[NewOperation]) {
        for new in operations {
            let queue = self.tenants.queue(new).number();
            if self.concerns_others(queue) {
                self.changed_queues.insert(queue);
            }
        }
    }

    /// Notifies the other processes that this one has released a queue, if it should have another owner.
    pub(super) fn notify_released(&mut self, queue: Queue) {
        if !self.context.members.is_ours(queue.number()) {
            self.changed_queues.insert(queue.number());
        }
    }

    /// Notifies the owner of the queue that an operation was cancelled.
    pub(super) fn notify_cancelled(&mut self, queue: Queue, id: OperationId) {
        if self.concerns_others(queue.number()) {
            self.notification.cancelled(queue.number(), id);
        }
    }

    /// Notifies the owner of the queue that an operation was expedited.
    pub(super) fn notify_expedited(&mut self, queue: Queue, id: OperationId) {
        if self.concerns_others(queue.number()) {
            self.notification.expedited(queue.number(), id);
        }
    }

    /// Notifies the other processes that something was paused or resumed.
    pub(super) fn notify_pauses(&mut self) {
        self.notification.pauses();
    }

    /// Notifies the other processes of changes in their queues. Notifications are sent by the commit.
    async fn notify_others(&mut self) -> Result<(), EngineError> {
        if !self.context.members.has_others() {
            return Ok(());
        }
        let woken: Vec<i64> = self.woken.iter().copied().filter(|queue| self.concerns_others(*queue)).collect();
        self.changed_queues.extend(woken);
        self.changed_queues.iter().for_each(|queue| self.notification.queue(*queue));
        if self.context.notifies_changes && self.operations_changed {
            self.notification.set_changes();
        }
        send_notification(self.on, self.context, &self.notification).await
    }
}

/// Sends a notification to the other processes when the transaction commits.
pub(super) async fn send_notification(
    on: &DatabaseTransaction,
    context: &Context,
    notification: &Notification,
) -> Result<(), EngineError> {
    if let Some(payload) = notification.payload() {
        query(on, sql::cluster::NOTIFY, vec![context.channel.clone().into(), payload.into()]).await?;
    }
    Ok(())
}
