//! Ownership of shards.

use std::collections::HashSet;

use guildhall_actors::shard::{ClaimedShards, DesiredShards, ShardClaim};
use sea_orm::{DatabaseTransaction, QueryResult, Value};
use uuid::Uuid;

use super::{Context, EngineError, Reply, ResultDelivery, WriteJob, WriteTx, batch, queues, signed};
use crate::store::sql;
use crate::store::{
    cluster::{MemberPhase, Notification, ProcessLease},
    rows::{Columns, Rows, columns, query, row, with_rows},
};

const NUMBERS: Columns = columns![nth: Number];
const FENCED: Columns = columns![nth: Number, held: Number];
const HELD: Columns = columns![of_shards: Number, nth: Number, held: Number];

/// Number of attempts to take shards that another process is taking.
const TAKE_ATTEMPTS: usize = 3;

/// A requested shard, as stored.
struct KnownShard {
    shard: i64,
    fence: i64,
    owner: ShardOwner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShardOwner {
    Ours,
    /// Ours according to the store, but no part of this process knows it.
    Unknown,
    Other,
    Free,
    /// Free for at least the time of a lease.
    LongFree,
}

/// The share of this process among all processes.
struct FairShare {
    /// Number of shards that are its part.
    max: usize,
    /// Number of shards that other processes still need for their part.
    requested: u64,
}

/// Takes shards that have no owner.
impl WriteJob for DesiredShards {
    type Output = ClaimedShards;

    async fn run(&self, tx: &mut WriteTx<'_>) -> Result<ClaimedShards, EngineError> {
        claim(tx.on, tx.context, *self).await
    }

    fn deliver(&self, claimed: ClaimedShards, reply: Reply<ClaimedShards>, lease: &ProcessLease) -> ResultDelivery {
        claimed.claims.iter().for_each(|claim| lease.add_shard(claim));
        if let Err(Ok(claimed)) = reply.send(Ok(claimed)) {
            // The caller has stopped waiting. Only the store lists these shards; they are taken at the next request.
            claimed.claims.iter().for_each(|claim| lease.remove_shard(claim));
        }
        ResultDelivery::Done
    }
}

async fn claim(
    on: &DatabaseTransaction,
    context: &Context,
    desired: DesiredShards,
) -> Result<ClaimedShards, EngineError> {
    let among_others = queues::is_shared(on);
    let count = desired.last.saturating_sub(desired.first) + 1;
    if among_others && !queues::is_alive(on, context.members.id()).await? {
        return Ok(ClaimedShards { elsewhere: count, ..ClaimedShards::default() });
    }
    let share =
        if among_others && desired.shared { Some(fair_share(on, context, desired.shards).await?) } else { None };
    let mut claims: Vec<ShardClaim> = Vec::new();
    let (mut shards, mut attempts) = (read_shards(on, context, desired, &claims).await?, 0);
    if shards.len() < count as usize {
        insert_missing(on, context, desired).await?;
        shards = read_shards(on, context, desired, &claims).await?;
    }
    loop {
        let chosen = choose(&shards, share.as_ref().map(|share| share.max), fastrand::usize(..));
        let taken = take(on, context, desired, &chosen).await?;
        let all = taken.len() == chosen.len();
        claims.extend(taken);
        shards = read_shards(on, context, desired, &claims).await?;
        attempts += 1;
        if all || attempts >= TAKE_ATTEMPTS {
            break;
        }
    }
    let ours = shards.iter().filter(|shards| shards.owner == ShardOwner::Ours).count();
    let too_many = share.as_ref().map_or(0, |share| (ours.saturating_sub(share.max) as u64).min(share.requested));
    if among_others {
        let seeks = share.map_or(0, |share| share.max.saturating_sub(ours)).min(shards.len() - ours);
        publish_demand(on, context, signed(seeks as u64)).await?;
    }
    claims.sort_unstable();
    let small = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Ok(ClaimedShards {
        claims,
        elsewhere: small(shards.len() - ours),
        too_many: u32::try_from(too_many).unwrap_or(u32::MAX),
    })
}

/// Chooses shards to take: free ones up to this process's part, and all that have been free for long. Processes that
/// choose at the same time start at different positions.
fn choose(shards: &[KnownShard], max: Option<usize>, offset: usize) -> Vec<(i64, i64)> {
    let owned = shards.iter().filter(|shards| shards.owner == ShardOwner::Ours).count();
    let mut room = max.map_or(usize::MAX, |max| max.saturating_sub(owned));
    let start = offset % shards.len().max(1);
    let mut chosen = Vec::new();
    for one in shards[start..].iter().chain(&shards[..start]) {
        let takes = match one.owner {
            ShardOwner::Ours | ShardOwner::Other => false,
            ShardOwner::Unknown | ShardOwner::Free => room > 0,
            ShardOwner::LongFree => true,
        };
        if takes {
            room = room.saturating_sub(1);
            chosen.push((one.shard, one.fence));
        }
    }
    chosen.sort_unstable();
    chosen
}

/// The part of this process among those that are alive and not leaving.
async fn fair_share(on: &DatabaseTransaction, context: &Context, shards: u32) -> Result<FairShare, EngineError> {
    let values = vec![context.members.id().into(), MemberPhase::Leaving.number().into()];
    let rows = query(on, &sql::shards::live(), values).await?;
    let row =
        rows.first().ok_or_else(|| super::connection_error("PostgreSQL did not return the number of processes"))?;
    let (live, requested): (i64, i64) = (row.try_get("", "live")?, row.try_get("", "requested")?);
    let live = usize::try_from(live).unwrap_or(1).max(1);
    Ok(FairShare { max: (shards as usize).div_ceil(live), requested: requested.max(0).unsigned_abs() })
}

/// Publishes how many more shards this process needs.
async fn publish_demand(on: &DatabaseTransaction, context: &Context, seeks: i64) -> Result<(), EngineError> {
    let changed = query(on, sql::shards::SEEK, vec![context.members.id().into(), seeks.into()]).await?;
    if seeks > 0 && !changed.is_empty() {
        notify_shards(on, context).await?;
    }
    Ok(())
}

/// Notifies the other processes that shards were freed, or are requested.
async fn notify_shards(on: &DatabaseTransaction, context: &Context) -> Result<(), EngineError> {
    batch::send_notification(on, context, &Notification::shards()).await
}

async fn insert_missing(
    on: &DatabaseTransaction,
    context: &Context,
    desired: DesiredShards,
) -> Result<(), EngineError> {
    let rows = Rows::of(desired.first..=desired.last);
    let values = vec![i64::from(desired.shards).into(), context.first_fence().into()];
    with_rows(on, &for_engine(on, context, sql::shards::CREATE), NUMBERS, rows, values).await?;
    Ok(())
}

async fn read_shards(
    on: &DatabaseTransaction,
    context: &Context,
    desired: DesiredShards,
    taken: &[ShardClaim],
) -> Result<Vec<KnownShard>, EngineError> {
    let number = |number: u32| Value::from(i64::from(number));
    let lease = i64::try_from(context.lease.as_millis()).unwrap_or(i64::MAX);
    let values = vec![number(desired.shards), number(desired.first), number(desired.last), lease.into()];
    let taken: HashSet<(i64, i64)> = taken.iter().map(|claim| (i64::from(claim.shard), signed(claim.fence))).collect();
    let parse_row = |row: &QueryResult| {
        let (shard, fence): (i64, i64) = (row.try_get("", "shard")?, row.try_get("", "fence")?);
        let (owner, overdue): (Option<Uuid>, i64) = (row.try_get("", "owner")?, row.try_get("", "overdue")?);
        let shard_owner = match owner {
            Some(owner) if owner == context.members.id() => {
                let which = (desired.shards, u32::try_from(shard).unwrap_or(u32::MAX));
                let ours = taken.contains(&(shard, fence)) || context.members.process_lease().has_shard(which, fence);
                if ours { ShardOwner::Ours } else { ShardOwner::Unknown }
            }
            Some(_) => ShardOwner::Other,
            None if overdue != 0 => ShardOwner::LongFree,
            None => ShardOwner::Free,
        };
        Ok(KnownShard { shard, fence, owner: shard_owner })
    };
    query(on, &for_engine(on, context, sql::shards::SELECT_SHARDS), values).await?.iter().map(parse_row).collect()
}

/// Takes the shards that have not changed since they were read; another process has taken the others.
async fn take(
    on: &DatabaseTransaction,
    context: &Context,
    desired: DesiredShards,
    chosen: &[(i64, i64)],
) -> Result<Vec<ShardClaim>, EngineError> {
    let mut rows = Rows::new();
    for (shard, fence) in chosen {
        rows.push(row! { *shard, *fence });
    }
    let sql = if queues::is_shared(on) { sql::shards::TAKE_SHARED } else { sql::shards::TAKE };
    let values = vec![context.members.id().into(), i64::from(desired.shards).into()];
    let claim = |row: &QueryResult| {
        let (shard, fence): (i64, i64) = (row.try_get("", "shard")?, row.try_get("", "fence")?);
        let shard = u32::try_from(shard).unwrap_or(u32::MAX);
        Ok(ShardClaim { shards: desired.shards, shard, fence: fence.unsigned_abs() })
    };
    with_rows(on, sql, FENCED, rows, values).await?.iter().map(claim).collect()
}

/// Releases shards.
pub(in crate::store) struct ReleaseShards(pub(in crate::store) Vec<ShardClaim>);

impl WriteJob for ReleaseShards {
    type Output = ();

    fn size(&self) -> (usize, usize) {
        (self.0.len(), 0)
    }

    async fn run(&self, WriteTx { on, context, .. }: &mut WriteTx<'_>) -> Result<(), EngineError> {
        let mut rows = Rows::new();
        for claim in &self.0 {
            rows.push(row! { claim.shards, claim.shard, signed(claim.fence) });
        }
        let values = vec![context.members.id().into()];
        let released = with_rows(*on, &for_engine(on, context, sql::shards::RELEASE), HELD, rows, values).await?;
        if queues::is_shared(on) && !released.is_empty() {
            notify_shards(on, context).await?;
        }
        Ok(())
    }

    fn deliver(&self, (): (), reply: Reply<()>, lease: &ProcessLease) -> ResultDelivery {
        self.0.iter().for_each(|claim| lease.remove_shard(claim));
        let _ = reply.send(Ok(()));
        ResultDelivery::Done
    }
}

/// Claims that permit writes: this process counts as alive until the transaction ends, and has not lost them.
pub(super) async fn valid_claims(
    on: &DatabaseTransaction,
    context: &Context,
    claims: impl IntoIterator<Item = ShardClaim>,
) -> Result<HashSet<ShardClaim>, EngineError> {
    let claims: HashSet<ShardClaim> = claims.into_iter().collect();
    // A file belongs to one process.
    if claims.is_empty() || !queues::is_shared(on) {
        return Ok(claims);
    }
    if !queues::is_alive(on, context.members.id()).await? {
        return Ok(HashSet::new());
    }
    // After the check that the process is alive: a process that was considered dead forgets its claims before it renews
    // its lease.
    let lease = context.members.process_lease();
    Ok(claims.into_iter().filter(|it| lease.has_shard((it.shards, it.shard), signed(it.fence))).collect())
}

fn for_engine(on: &DatabaseTransaction, context: &Context, statement: &str) -> String {
    if queues::is_shared(on) {
        statement.replace("{now}", sql::cluster::NOW)
    } else {
        statement.replace("{now}", &context.now().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(owners: &[ShardOwner]) -> Vec<KnownShard> {
        owners.iter().zip(0..).map(|(owners, shard)| KnownShard { shard, fence: 10 + shard, owner: *owners }).collect()
    }

    #[test]
    fn process_takes_its_share_of_free_and_all_long_free_shards() {
        use ShardOwner::{Free, LongFree, Other, Ours, Unknown};
        let chosen = |owners: &[ShardOwner], max| {
            let chosen = choose(&all(owners), max, 0);
            chosen.into_iter().map(|(shard, _)| shard).collect::<Vec<_>>()
        };
        assert_eq!(chosen(&[Free; 4], None), [0, 1, 2, 3]);
        assert_eq!(chosen(&[Free; 4], Some(2)), [0, 1]);
        assert_eq!(chosen(&[Ours, Other, Free, Free], Some(2)), [2]);
        assert_eq!(chosen(&[Ours, Ours, Free, LongFree], Some(2)), [3]);
        assert_eq!(chosen(&[Unknown, Other, Other, Ours], Some(2)), [0]);
        assert_eq!(chosen(&[], Some(2)), Vec::<i64>::new());
        assert_eq!(choose(&all(&[Free; 4]), Some(2), 7), [(0, 10), (3, 13)], "other processes start elsewhere");
    }
}
