//! A batch of jobs in one transaction: all that are alike go together.

use sea_orm::DatabaseTransaction;

use super::{Answer, Context, Job, Trouble, letters, queues, record, single, submit, sweep};

/// Does all jobs. They were asked at one time, so in any order; those that are alike keep theirs.
pub(super) async fn carry_out(
    on: &DatabaseTransaction,
    context: &Context,
    jobs: &[&Job],
) -> Result<Vec<Answer>, Trouble> {
    let mut answers: Vec<Option<Answer>> = jobs.iter().map(|_| None).collect();
    let mut put = |place: usize, answer: Answer| answers[place] = Some(answer);

    let changes = pick(jobs, |job| match job {
        Job::Record(changes) => Some(changes.as_slice()),
        _ => None,
    });
    for (place, recorded) in record::all(on, context, &changes).await? {
        put(place, Answer::Recorded(recorded));
    }
    let batches = pick(jobs, |job| match job {
        Job::Submit(batch) => Some(batch.as_slice()),
        _ => None,
    });
    let accepted = submit::all(on, context, &batches.iter().map(|(_, batch)| *batch).collect::<Vec<_>>()).await?;
    for ((place, _), submitted) in batches.iter().zip(accepted) {
        put(*place, Answer::Submitted(submitted));
    }
    let releases = pick(jobs, |job| match job {
        Job::Release(queue, fence) => Some((*queue, *fence)),
        _ => None,
    });
    for (place, released) in queues::release(on, context, &releases).await? {
        put(place, Answer::Released(released));
    }
    for (place, job) in jobs.iter().enumerate() {
        match job {
            Job::Record(_) | Job::Submit(_) | Job::Release(..) => {}
            Job::Redrive(batch) => put(place, Answer::Redriven(letters::redrive(on, context, batch).await?)),
            Job::Claim(from) => put(place, Answer::Claimed(queues::claim(on, context, from).await?)),
            Job::Cancel(id, now) => put(place, Answer::Moved(single::cancel(on, context, *id, *now).await?)),
            Job::Hasten(id, now) => put(place, Answer::Moved(single::hasten(on, *id, *now).await?)),
            Job::Discard(filter) => put(place, Answer::Discarded(letters::discard(on, filter).await?)),
            Job::Pause(what, paused) => {
                queues::pause(on, context, *what, *paused).await?;
                put(place, Answer::Kept);
            }
            Job::Sweep(retention, now) => put(place, Answer::Swept(sweep::sweep(on, *retention, *now).await?)),
            Job::SetState { key, value, expires_at } => {
                single::set_state(on, key, value.as_deref(), *expires_at).await?;
                put(place, Answer::Kept);
            }
        }
    }
    let answered = answers.into_iter().map(|answer| answer.expect("invariant: every job has its answer"));
    Ok(answered.collect())
}

/// The jobs of one kind, with their places.
fn pick<'a, T>(jobs: &[&'a Job], of: impl Fn(&'a Job) -> Option<T>) -> Vec<(usize, T)> {
    jobs.iter().enumerate().filter_map(|(place, job)| of(job).map(|found| (place, found))).collect()
}
