//! A batch of jobs in one transaction. Jobs of the same kind run together.

use std::collections::{BTreeSet, HashMap};

use guildhall_actors::ports::{CommitResult, HandlerCommit, PauseTarget};
use guildhall_core::operation::OperationState;
use sea_orm::DatabaseTransaction;
use uuid::Uuid;

use super::{
    BatchJob, Context, EngineError, Job, JobResult, access, cancel,
    crashes::{self, SetAsideOperation},
    dead_letters, erase, event_commit,
    guild_tenants::GuildTenants,
    identify, inbox, interactions, locations, queues, record, schedule, sessions, shards, spend, state,
    submit::{self, SubmitBatch},
    sweep,
};
use crate::store::{cluster::Notification, rows::query};

/// The result of a batch.
#[derive(Debug)]
pub(super) struct BatchResult {
    pub(super) results: Vec<JobResult>,
    /// Queues in which scheduled operations may join now because of a change in another queue.
    pub(super) woken: BTreeSet<i64>,
    /// Operations that ended processes. They were finished instead of being claimed.
    pub(super) set_aside: Vec<SetAsideOperation>,
}

/// Runs all jobs. They were requested concurrently, so they may run in any order; jobs of the same kind keep theirs.
pub(super) async fn run_jobs(
    on: &DatabaseTransaction,
    context: &Context,
    batch_jobs: &[BatchJob<'_>],
) -> Result<BatchResult, EngineError> {
    let jobs: Vec<&Job> = batch_jobs.iter().map(|batch_jobs| batch_jobs.job).collect();
    let jobs = jobs.as_slice();
    let tenants = GuildTenants::of(on, jobs).await?;
    let owners = if queues::is_shared(on) { lock(on, &tenants, jobs).await? } else { HashMap::new() };
    let (mut woken, mut set_aside) = (BTreeSet::new(), Vec::new());
    let mut results: Vec<Option<JobResult>> = jobs.iter().map(|_| None).collect();
    let mut set_result = |index: usize, answer: JobResult| results[index] = Some(answer);

    let changes = pick(jobs, |job| match job {
        Job::Record(changes) => Some(changes.as_slice()),
        _ => None,
    });
    for (index, recorded) in record::record_updates(on, context, &changes).await? {
        set_result(index, JobResult::Recorded(recorded));
    }
    let batches = pick(jobs, |job| match job {
        Job::Submit(batch) => Some(batch.as_slice()),
        _ => None,
    });
    let tenant_of = |index: usize| batch_jobs[index].tenant;
    let commits = pick(jobs, |job| match job {
        Job::Commit(done) => Some(done.as_slice()),
        _ => None,
    });
    let requests: Vec<_> =
        batches.iter().map(|(index, batch)| SubmitBatch { operations: batch, tenant: tenant_of(*index) }).collect();
    let submitted = submit::submit_batches(on, context, &tenants, &requests, &mut woken).await?;
    for ((index, _), submitted) in batches.iter().zip(submitted) {
        set_result(*index, JobResult::Submitted(submitted));
    }
    let done: Vec<&HandlerCommit> = commits.iter().flat_map(|(_, done)| done.iter()).collect();
    let committed = event_commit::commit_batch(on, context, &tenants, &done, &mut woken).await?;
    let mut committed = committed.into_iter();
    for (index, done) in &commits {
        set_result(*index, JobResult::Committed(committed.by_ref().take(done.len()).collect()));
    }
    let releases = pick(jobs, |job| match job {
        Job::Release(queue, fence) => Some((*queue, *fence)),
        _ => None,
    });
    for (index, released) in queues::release(on, context, &releases).await? {
        set_result(index, JobResult::Released(released));
    }
    let values = pick(jobs, |job| match job {
        Job::SetState(set) => Some(set),
        _ => None,
    });
    state::set(on, values.iter().map(|(_, set)| *set)).await?;
    values.iter().for_each(|(index, _)| set_result(*index, JobResult::Stored));
    // After the commits of handlers: everything up to the confirmed position of a session is in the store by then.
    let sessions = pick(jobs, |job| match job {
        Job::StoreSessions(sessions) => Some(sessions.as_slice()),
        _ => None,
    });
    sessions::store_sessions(on, context, sessions.iter().flat_map(|(_, sessions)| sessions.iter())).await?;
    sessions.iter().for_each(|(index, _)| set_result(*index, JobResult::Stored));
    let received = pick(jobs, |job| match job {
        Job::RecordInteractions(received) => Some(received.as_slice()),
        _ => None,
    });
    interactions::record(on, received.iter().flat_map(|(_, received)| received.iter())).await?;
    received.iter().for_each(|(index, _)| set_result(*index, JobResult::Stored));
    let sums = pick(jobs, |job| match job {
        Job::StoreSpend(process, sums) => Some((&**process, sums.as_slice())),
        _ => None,
    });
    let each: Vec<_> = sums.iter().map(|(_, sums)| *sums).collect();
    spend::store_spend(on, &each).await?;
    sums.iter().for_each(|(index, _)| set_result(*index, JobResult::Stored));
    let postponed = pick(jobs, |job| match job {
        Job::Postpone(key, later, now) => Some((key, later, *now)),
        _ => None,
    });
    for (index, found) in inbox::postpone(on, &postponed).await? {
        set_result(index, JobResult::Found(found));
    }
    for (index, job) in jobs.iter().enumerate() {
        match job {
            Job::Record(_)
            | Job::Submit(_)
            | Job::Release(..)
            | Job::SetState(_)
            | Job::Commit(_)
            | Job::StoreSessions(_)
            | Job::RecordInteractions(_)
            | Job::Postpone(..)
            | Job::StoreSpend(..)
            | Job::Identify(_) => {}
            Job::ClaimShards(desired) => {
                set_result(index, JobResult::Shards(shards::claim(on, context, *desired).await?));
            }
            Job::ReleaseShards(claims) => {
                shards::release(on, context, claims).await?;
                set_result(index, JobResult::Stored);
            }
            Job::Redrive(batch) => {
                let redriven =
                    dead_letters::redrive(on, context, &tenants, batch, tenant_of(index), &mut woken).await?;
                set_result(index, JobResult::Redriven(redriven));
            }
            Job::Join(queue, now, limit) => {
                let joined = schedule::join(on, context, queue.number(), *now, *limit, &mut woken).await?;
                set_result(index, JobResult::Joined(joined));
            }
            Job::Claim(from) => {
                let claims = queues::claim(on, context, from).await?;
                set_aside.extend(crashes::set_aside(on, context, &claims).await?);
                set_result(index, JobResult::Claimed(claims));
            }
            Job::ReleaseHeld(now, limit) => {
                let due = queues::release_held(on, *now, *limit, &mut woken).await?;
                set_result(index, JobResult::MadeDue(due));
            }
            Job::Cancel(id, now) => {
                set_result(
                    index,
                    JobResult::Moved(cancel::cancel(on, context, *id, *now, tenant_of(index), &mut woken).await?),
                );
            }
            Job::Expedite(id, now) => {
                set_result(
                    index,
                    JobResult::Moved(cancel::expedite(on, context, *id, *now, tenant_of(index), &mut woken).await?),
                );
            }
            Job::Discard(filter) => {
                set_result(
                    index,
                    JobResult::Discarded(dead_letters::discard(on, context, filter, tenant_of(index)).await?),
                );
            }
            Job::Pause(what, paused) => {
                queues::pause(on, context, *what, *paused, tenant_of(index)).await?;
                set_result(index, JobResult::Stored);
            }
            Job::Sweep(retention, now) => {
                set_result(index, JobResult::Swept(sweep::sweep(on, context, *retention, *now).await?));
            }
            Job::Revive(dead, now) => set_result(index, JobResult::Found(inbox::revive(on, *dead, *now).await?)),
            Job::SweepEvents(before) => set_result(index, JobResult::SweptEvents(sessions::sweep(on, *before).await?)),
            Job::AddKey(new) => set_result(index, JobResult::KeyAdded(access::add(on, context, new).await?)),
            Job::RevokeKey(id, now) => set_result(index, JobResult::KeyRevoked(access::revoke(on, *id, *now).await?)),
            Job::RotateKey { old, new, until } => {
                set_result(index, JobResult::KeyRotated(access::rotate(on, context, *old, new, *until).await?));
            }
            Job::StoreLocation(location, guild) => {
                locations::store_guild(on, context, location, *guild).await?;
                set_result(index, JobResult::Stored);
            }
            Job::AuditOnly => set_result(index, JobResult::Stored),
            Job::SweepAccess(before) => {
                set_result(index, JobResult::SweptEvents(access::sweep(on, context, *before).await?));
            }
            Job::SweepSpend(before) => set_result(index, JobResult::SweptEvents(spend::sweep(on, *before).await?)),
            Job::Erase(subject, from) => {
                set_result(index, JobResult::Erased(erase::step(on, context, *subject, from).await?));
            }
            Job::ForgetCrashes(inputs) => {
                crashes::forget(on, inputs).await?;
                set_result(index, JobResult::Stored);
            }
        }
    }
    // Jobs for which all processes take turns come last, so that no process waits for one that waits for another.
    for (index, job) in jobs.iter().enumerate() {
        if let Job::Identify(request) = job {
            set_result(index, JobResult::Identified(identify::decide(on, *request).await?));
        }
    }
    let answered = results.into_iter().map(|answer| answer.expect("invariant: every job has a result"));
    let results: Vec<JobResult> = answered.collect();
    let notes = batch_jobs.iter().zip(&results).filter(|(_, answer)| answer.is_change());
    access::store_audit_records(on, context, notes.filter_map(|(batch_jobs, _)| batch_jobs.audit_record)).await?;
    context.usage.flush(on).await?;
    if context.members.has_others() {
        let notify_context = NotifyContext { tenants: &tenants, owners: &owners, woken: &woken };
        notify_others(on, context, jobs, &results, notify_context).await?;
    }
    Ok(BatchResult { results, woken, set_aside })
}

/// Locks all queues that the jobs change, before anything else is locked. Returns the owner of each.
async fn lock(
    on: &DatabaseTransaction,
    tenants: &GuildTenants,
    jobs: &[&Job],
) -> Result<HashMap<i64, Option<Uuid>>, EngineError> {
    let mut queue_numbers = Vec::new();
    let mut operations = Vec::new();
    for job in jobs {
        match job {
            Job::Record(changes) => queue_numbers.extend(changes.iter().map(|change| change.queue.number())),
            Job::Submit(_) | Job::Redrive(_) | Job::Commit(_) => {
                for new in job.operations() {
                    queue_numbers.push(tenants.queue(new).number());
                    // Whether these operations are scheduled must not change during the transaction.
                    operations.extend(&new.refers_to);
                }
            }
            Job::Release(queue, _) | Job::Join(queue, ..) | Job::Pause(PauseTarget::Queue(queue), _) => {
                queue_numbers.push(queue.number());
            }
            Job::Cancel(id, _) | Job::Expedite(id, _) => operations.push(*id),
            Job::Claim(_)
            | Job::ReleaseHeld(..)
            | Job::Pause(PauseTarget::All, _)
            | Job::Discard(_)
            | Job::Sweep(..)
            | Job::SetState(_)
            | Job::StoreSessions(_)
            | Job::RecordInteractions(_)
            | Job::Postpone(..)
            | Job::Revive(..)
            | Job::SweepEvents(_)
            | Job::Identify(_)
            | Job::ClaimShards(_)
            | Job::ReleaseShards(_)
            | Job::RevokeKey(..)
            | Job::StoreLocation(..)
            | Job::AuditOnly
            | Job::SweepAccess(_)
            | Job::StoreSpend(..)
            | Job::SweepSpend(_)
            | Job::Erase(..)
            | Job::ForgetCrashes(_) => {}
            Job::AddKey(new) | Job::RotateKey { new, .. } => queue_numbers.extend(access::guild_queues(new)),
        }
    }
    queue_numbers.extend(queues::queues_of_operations(on, operations).await?);
    queues::lock(on, queue_numbers).await
}

/// Data that is needed to notify the other processes.
#[derive(Clone, Copy)]
struct NotifyContext<'a> {
    tenants: &'a GuildTenants,
    owners: &'a HashMap<i64, Option<Uuid>>,
    woken: &'a BTreeSet<i64>,
}

/// Notifies the other processes of changes in their queues. Notifications are sent by the commit.
async fn notify_others(
    on: &DatabaseTransaction,
    context: &Context,
    jobs: &[&Job],
    results: &[JobResult],
    NotifyContext { tenants, owners, woken }: NotifyContext<'_>,
) -> Result<(), EngineError> {
    let members = &context.members;
    let concerns_others = |line: i64| match owners.get(&line).copied().flatten() {
        Some(owner) => owner != members.id(),
        // Even a queue that should be ours: another process may have become its owner a moment ago, checked it before
        // this change, and will not check it again.
        None => true,
    };
    let mut notification = Notification::default();
    let mut new: BTreeSet<i64> = woken.iter().copied().filter(|line| concerns_others(*line)).collect();
    for (job, answer) in jobs.iter().zip(results) {
        match (job, answer) {
            (Job::Submit(batch), JobResult::Submitted(Ok(_))) | (Job::Redrive(batch), JobResult::Redriven(Ok(_))) => {
                new.extend(batch.iter().map(|new| tenants.queue(new).number()).filter(|line| concerns_others(*line)));
            }
            (Job::Commit(done), JobResult::Committed(committed)) => {
                let is_stored = |committed: &CommitResult| matches!(committed, CommitResult::Done(_));
                let stored = done.iter().zip(committed).filter(|(_, committed)| is_stored(committed));
                let lines = stored.flat_map(|(done, _)| &done.operations).map(|new| tenants.queue(new).number());
                new.extend(lines.filter(|line| concerns_others(*line)));
            }
            // This process owned the queue until now.
            (Job::Release(queue, _), JobResult::Released(true)) if !members.is_ours(queue.number()) => {
                new.insert(queue.number());
            }
            // An operation that was not cancelled or expedited continues as before: its owner must not be notified.
            (Job::Cancel(id, _), JobResult::Moved(Some((OperationState::Cancelled, queue))))
                if concerns_others(queue.number()) =>
            {
                notification.cancelled(queue.number(), *id);
            }
            (Job::Expedite(id, _), JobResult::Moved(Some((state, queue))))
                if state.is_waiting() && concerns_others(queue.number()) =>
            {
                notification.expedited(queue.number(), *id);
            }
            (Job::Pause(..), _) => notification.pauses(),
            _ => {}
        }
    }
    new.into_iter().for_each(|line| notification.queue(line));
    if context.notifies_changes && results.iter().any(JobResult::touches_operations) {
        notification.set_changes();
    }
    send_notification(on, context, &notification).await
}

/// Sends a notification to the other processes when the transaction commits.
pub(super) async fn send_notification(
    on: &DatabaseTransaction,
    context: &Context,
    notification: &Notification,
) -> Result<(), EngineError> {
    if let Some(payload) = notification.payload() {
        query(on, "SELECT pg_notify($1, $2)", vec![context.channel.clone().into(), payload.into()]).await?;
    }
    Ok(())
}

/// The jobs of one kind, with their positions in the batch.
fn pick<'a, T>(jobs: &[&'a Job], matcher: impl Fn(&'a Job) -> Option<T>) -> Vec<(usize, T)> {
    jobs.iter().enumerate().filter_map(|(index, job)| matcher(job).map(|found| (index, found))).collect()
}
