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
    submit::SubmitBatch,
    sweep,
};
use crate::store::{cluster::Notification, rows::query};

/// The result of a batch.
#[derive(Debug)]
pub(super) struct BatchResult {
    pub(super) answers: Vec<JobResult>,
    /// Queues in which scheduled operations may join now because of a change in another queue.
    pub(super) woken: BTreeSet<i64>,
    /// Operations that ended processes. They were finished instead of being claimed.
    pub(super) set_aside: Vec<SetAsideOperation>,
}

/// Runs all jobs. They were requested concurrently, so they may run in any order; jobs of the same kind keep theirs.
pub(super) async fn carry_out(
    on: &DatabaseTransaction,
    context: &Context,
    asked: &[BatchJob<'_>],
) -> Result<BatchResult, EngineError> {
    let jobs: Vec<&Job> = asked.iter().map(|asked| asked.job).collect();
    let jobs = jobs.as_slice();
    let homes = GuildTenants::of(on, jobs).await?;
    let owners = if queues::is_shared(on) { lock(on, &homes, jobs).await? } else { HashMap::new() };
    let (mut woken, mut set_aside) = (BTreeSet::new(), Vec::new());
    let mut answers: Vec<Option<JobResult>> = jobs.iter().map(|_| None).collect();
    let mut put = |place: usize, answer: JobResult| answers[place] = Some(answer);

    let changes = pick(jobs, |job| match job {
        Job::Record(changes) => Some(changes.as_slice()),
        _ => None,
    });
    for (place, recorded) in record::all(on, context, &changes).await? {
        put(place, JobResult::Recorded(recorded));
    }
    let batches = pick(jobs, |job| match job {
        Job::Submit(batch) => Some(batch.as_slice()),
        _ => None,
    });
    let of = |place: usize| asked[place].tenant;
    let commits = pick(jobs, |job| match job {
        Job::Commit(done) => Some(done.as_slice()),
        _ => None,
    });
    let requests: Vec<_> =
        batches.iter().map(|(place, batch)| SubmitBatch { operations: batch, of: of(*place) }).collect();
    let done: Vec<&HandlerCommit> = commits.iter().flat_map(|(_, done)| done.iter()).collect();
    let (submitted, committed) = event_commit::all(on, context, &homes, &requests, &done, &mut woken).await?;
    for ((place, _), submitted) in batches.iter().zip(submitted) {
        put(*place, JobResult::Submitted(submitted));
    }
    let mut committed = committed.into_iter();
    for (place, done) in &commits {
        put(*place, JobResult::Committed(committed.by_ref().take(done.len()).collect()));
    }
    let releases = pick(jobs, |job| match job {
        Job::Release(queue, fence) => Some((*queue, *fence)),
        _ => None,
    });
    for (place, released) in queues::release(on, context, &releases).await? {
        put(place, JobResult::Released(released));
    }
    let values = pick(jobs, |job| match job {
        Job::SetState(set) => Some(set),
        _ => None,
    });
    state::set(on, values.iter().map(|(_, set)| *set)).await?;
    values.iter().for_each(|(place, _)| put(*place, JobResult::Kept));
    // After the commits of handlers: everything up to the confirmed position of a session is in the store by then.
    let sessions = pick(jobs, |job| match job {
        Job::KeepSessions(sessions) => Some(sessions.as_slice()),
        _ => None,
    });
    sessions::keep(on, context, sessions.iter().flat_map(|(_, sessions)| sessions.iter())).await?;
    sessions.iter().for_each(|(place, _)| put(*place, JobResult::Kept));
    let received = pick(jobs, |job| match job {
        Job::RecordInteractions(received) => Some(received.as_slice()),
        _ => None,
    });
    interactions::record(on, received.iter().flat_map(|(_, received)| received.iter())).await?;
    received.iter().for_each(|(place, _)| put(*place, JobResult::Kept));
    let sums = pick(jobs, |job| match job {
        Job::KeepSpend(process, sums) => Some((&**process, sums.as_slice())),
        _ => None,
    });
    let each: Vec<_> = sums.iter().map(|(_, sums)| *sums).collect();
    spend::keep(on, &each).await?;
    sums.iter().for_each(|(place, _)| put(*place, JobResult::Kept));
    let put_off = pick(jobs, |job| match job {
        Job::PutOff(key, later, now) => Some((key, later, *now)),
        _ => None,
    });
    for (place, found) in inbox::put_off(on, &put_off).await? {
        put(place, JobResult::Found(found));
    }
    for (place, job) in jobs.iter().enumerate() {
        match job {
            Job::Record(_)
            | Job::Submit(_)
            | Job::Release(..)
            | Job::SetState(_)
            | Job::Commit(_)
            | Job::KeepSessions(_)
            | Job::RecordInteractions(_)
            | Job::PutOff(..)
            | Job::KeepSpend(..)
            | Job::Identify(_) => {}
            Job::ClaimShards(wanted) => put(place, JobResult::Shards(shards::claim(on, context, *wanted).await?)),
            Job::ReleaseShards(claims) => {
                shards::release(on, context, claims).await?;
                put(place, JobResult::Kept);
            }
            Job::Redrive(batch) => {
                let redriven = dead_letters::redrive(on, context, &homes, batch, of(place), &mut woken).await?;
                put(place, JobResult::Redriven(redriven));
            }
            Job::Join(queue, now, limit) => {
                let joined = schedule::join(on, context, queue.number(), *now, *limit, &mut woken).await?;
                put(place, JobResult::Joined(joined));
            }
            Job::Claim(from) => {
                let claims = queues::claim(on, context, from).await?;
                set_aside.extend(crashes::set_aside(on, context, &claims).await?);
                put(place, JobResult::Claimed(claims));
            }
            Job::ReleaseHeld(now, limit) => {
                let due = queues::release_held(on, *now, *limit, &mut woken).await?;
                put(place, JobResult::MadeDue(due));
            }
            Job::Cancel(id, now) => {
                put(place, JobResult::Moved(cancel::cancel(on, context, *id, *now, of(place), &mut woken).await?));
            }
            Job::Hasten(id, now) => {
                put(place, JobResult::Moved(cancel::hasten(on, context, *id, *now, of(place), &mut woken).await?));
            }
            Job::Discard(filter) => {
                put(place, JobResult::Discarded(dead_letters::discard(on, context, filter, of(place)).await?));
            }
            Job::Pause(what, paused) => {
                queues::pause(on, context, *what, *paused, of(place)).await?;
                put(place, JobResult::Kept);
            }
            Job::Sweep(retention, now) => {
                put(place, JobResult::Swept(sweep::sweep(on, context, *retention, *now).await?));
            }
            Job::Revive(dead, now) => put(place, JobResult::Found(inbox::revive(on, *dead, *now).await?)),
            Job::SweepEvents(before) => put(place, JobResult::SweptEvents(sessions::sweep(on, *before).await?)),
            Job::AddKey(new) => put(place, JobResult::KeyAdded(access::add(on, context, new).await?)),
            Job::RevokeKey(id, now) => put(place, JobResult::KeyRevoked(access::revoke(on, *id, *now).await?)),
            Job::RotateKey { old, new, until } => {
                put(place, JobResult::KeyRotated(access::rotate(on, context, *old, new, *until).await?));
            }
            Job::Learn(location, guild) => {
                locations::learn(on, context, location, *guild).await?;
                put(place, JobResult::Kept);
            }
            Job::Note => put(place, JobResult::Kept),
            Job::SweepAccess(before) => put(place, JobResult::SweptEvents(access::sweep(on, context, *before).await?)),
            Job::SweepSpend(before) => put(place, JobResult::SweptEvents(spend::sweep(on, *before).await?)),
            Job::Erase(subject, from) => put(place, JobResult::Erased(erase::step(on, context, *subject, from).await?)),
            Job::ForgetCrashes(inputs) => {
                crashes::forget(on, inputs).await?;
                put(place, JobResult::Kept);
            }
        }
    }
    // Jobs for which all processes take turns come last, so that no process waits for one that waits for another.
    for (place, job) in jobs.iter().enumerate() {
        if let Job::Identify(ask) = job {
            put(place, JobResult::Identified(identify::ask(on, *ask).await?));
        }
    }
    let answered = answers.into_iter().map(|answer| answer.expect("invariant: every job has a result"));
    let answers: Vec<JobResult> = answered.collect();
    let notes = asked.iter().zip(&answers).filter(|(_, answer)| answer.is_change());
    access::note(on, context, notes.filter_map(|(asked, _)| asked.note)).await?;
    context.usage.flush(on).await?;
    if context.members.has_others() {
        let told = NotifyContext { homes: &homes, owners: &owners, woken: &woken };
        tell(on, context, jobs, &answers, told).await?;
    }
    Ok(BatchResult { answers, woken, set_aside })
}

/// Locks all queues that the jobs change, before anything else is locked. Returns the owner of each.
async fn lock(
    on: &DatabaseTransaction,
    homes: &GuildTenants,
    jobs: &[&Job],
) -> Result<HashMap<i64, Option<Uuid>>, EngineError> {
    let mut lines = Vec::new();
    let mut operations = Vec::new();
    for job in jobs {
        match job {
            Job::Record(changes) => lines.extend(changes.iter().map(|change| change.queue.number())),
            Job::Submit(_) | Job::Redrive(_) | Job::Commit(_) => {
                for new in job.operations() {
                    lines.push(homes.queue(new).number());
                    // Whether these operations are scheduled must not change during the transaction.
                    operations.extend(&new.refers_to);
                }
            }
            Job::Release(queue, _) | Job::Join(queue, ..) | Job::Pause(PauseTarget::Queue(queue), _) => {
                lines.push(queue.number());
            }
            Job::Cancel(id, _) | Job::Hasten(id, _) => operations.push(*id),
            Job::Claim(_)
            | Job::ReleaseHeld(..)
            | Job::Pause(PauseTarget::All, _)
            | Job::Discard(_)
            | Job::Sweep(..)
            | Job::SetState(_)
            | Job::KeepSessions(_)
            | Job::RecordInteractions(_)
            | Job::PutOff(..)
            | Job::Revive(..)
            | Job::SweepEvents(_)
            | Job::Identify(_)
            | Job::ClaimShards(_)
            | Job::ReleaseShards(_)
            | Job::RevokeKey(..)
            | Job::Learn(..)
            | Job::Note
            | Job::SweepAccess(_)
            | Job::KeepSpend(..)
            | Job::SweepSpend(_)
            | Job::Erase(..)
            | Job::ForgetCrashes(_) => {}
            Job::AddKey(new) | Job::RotateKey { new, .. } => lines.extend(access::lines(new)),
        }
    }
    lines.extend(queues::of_operations(on, operations).await?);
    queues::lock(on, lines).await
}

/// Data that is needed to notify the other processes.
#[derive(Clone, Copy)]
struct NotifyContext<'a> {
    homes: &'a GuildTenants,
    owners: &'a HashMap<i64, Option<Uuid>>,
    woken: &'a BTreeSet<i64>,
}

/// Notifies the other processes of changes in their queues. Notifications are sent by the commit.
async fn tell(
    on: &DatabaseTransaction,
    context: &Context,
    jobs: &[&Job],
    answers: &[JobResult],
    NotifyContext { homes, owners, woken }: NotifyContext<'_>,
) -> Result<(), EngineError> {
    let members = &context.members;
    let concerns_others = |line: i64| match owners.get(&line).copied().flatten() {
        Some(owner) => owner != members.me(),
        // Even a queue that should be ours: another process may have become its owner a moment ago, checked it before
        // this change, and will not check it again.
        None => true,
    };
    let mut said = Notification::default();
    let mut new: BTreeSet<i64> = woken.iter().copied().filter(|line| concerns_others(*line)).collect();
    for (job, answer) in jobs.iter().zip(answers) {
        match (job, answer) {
            (Job::Submit(batch), JobResult::Submitted(Ok(_))) | (Job::Redrive(batch), JobResult::Redriven(Ok(_))) => {
                new.extend(batch.iter().map(|new| homes.queue(new).number()).filter(|line| concerns_others(*line)));
            }
            (Job::Commit(done), JobResult::Committed(committed)) => {
                let is_kept = |committed: &CommitResult| matches!(committed, CommitResult::Done(_));
                let kept = done.iter().zip(committed).filter(|(_, committed)| is_kept(committed));
                let lines = kept.flat_map(|(done, _)| &done.operations).map(|new| homes.queue(new).number());
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
                said.cancelled(queue.number(), *id);
            }
            (Job::Hasten(id, _), JobResult::Moved(Some((state, queue))))
                if state.waits() && concerns_others(queue.number()) =>
            {
                said.hastened(queue.number(), *id);
            }
            (Job::Pause(..), _) => said.pauses(),
            _ => {}
        }
    }
    new.into_iter().for_each(|line| said.queue(line));
    if context.says_changes && answers.iter().any(JobResult::touches_operations) {
        said.say_changes();
    }
    say(on, context, &said).await
}

/// Sends a notification to the other processes when the transaction commits.
pub(super) async fn say(on: &DatabaseTransaction, context: &Context, said: &Notification) -> Result<(), EngineError> {
    if let Some(payload) = said.payload() {
        query(on, "SELECT pg_notify($1, $2)", vec![context.channel.clone().into(), payload.into()]).await?;
    }
    Ok(())
}

/// The jobs of one kind, with their positions in the batch.
fn pick<'a, T>(jobs: &[&'a Job], of: impl Fn(&'a Job) -> Option<T>) -> Vec<(usize, T)> {
    jobs.iter().enumerate().filter_map(|(place, job)| of(job).map(|found| (place, found))).collect()
}
