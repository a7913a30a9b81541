//! Recording received interactions.

use std::collections::BTreeMap;

use guildhall_core::{
    interaction::{ReceivedInteraction, TokenDigest},
    time::UnixMs,
};
use sea_orm::DatabaseTransaction;

use super::{EngineError, RunOrder, WriteJob, WriteTx, signed};
use crate::store::rows::{Columns, Rows, columns, query, query_scalar, row, with_rows};
use crate::store::sql;

/// Maximum number of rows that one sweep removes for one reason.
const SWEEP: i64 = 500;

/// Maximum number of recorded interactions. Beyond it a sweep removes the oldest: about 1,100 interactions a second for
/// 15 minutes.
const MAX_RECORDED: i64 = 1_000_000;

pub(in crate::store) const RECORDED: Columns = columns![
    its_token: Bytes, its_id: Number, its_application: Number, its_guild: Number, its_receipt: Number,
    its_expiry: Number,
];

/// Number of interactions that a sweep removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SweptInteractions {
    pub(super) expired: u64,
    /// Removed before they expired.
    pub(super) dropped: u64,
}

/// Records received interactions. An interaction that is already recorded stays unchanged.
pub(in crate::store) struct RecordInteractions(pub(in crate::store) Vec<ReceivedInteraction>);

impl WriteJob for RecordInteractions {
    type Output = ();

    const ORDER: RunOrder = RunOrder::RecordInteractions;

    fn size(&self) -> (usize, usize) {
        (self.0.len(), 0)
    }

    async fn run_all(jobs: &[&Self], tx: &mut WriteTx<'_>) -> Result<Vec<()>, EngineError> {
        record(tx.on, jobs.iter().flat_map(|job| &job.0)).await?;
        Ok(vec![(); jobs.len()])
    }
}

async fn record<'a>(
    on: &DatabaseTransaction,
    received: impl Iterator<Item = &'a ReceivedInteraction>,
) -> Result<(), EngineError> {
    // Sorted, so that two processes that record the same interactions do not deadlock.
    let received: BTreeMap<TokenDigest, &ReceivedInteraction> = received.map(|one| (one.token, one)).collect();
    let mut rows = Rows::new();
    for (token, one) in &received {
        rows.push(row! {
            &token.0, one.id.cast_signed(), one.application.cast_signed(), one.guild.unwrap_or(0).cast_signed(),
            one.received_at, one.expires_at,
        });
    }
    with_rows(on, sql::interactions::RECORD, RECORDED, rows, Vec::new()).await?;
    Ok(())
}

/// Removes expired interactions and those beyond the limit, a small batch of each.
pub(super) async fn sweep(on: &DatabaseTransaction, now: UnixMs) -> Result<SweptInteractions, EngineError> {
    let expired =
        query(on, sql::interactions::SWEEP_EXPIRED, vec![signed(now.millis()).into(), SWEEP.into()]).await?.len();
    let dropped = drop_past(on, MAX_RECORDED).await?;
    Ok(SweptInteractions { expired: expired as u64, dropped })
}

async fn drop_past(on: &DatabaseTransaction, bound: i64) -> Result<u64, EngineError> {
    let past: Option<i64> = query_scalar(on, sql::interactions::PAST_BOUND, vec![bound.into()]).await?;
    let Some(until) = past else { return Ok(0) };
    Ok(query(on, sql::interactions::SWEEP_EXPIRED, vec![until.into(), SWEEP.into()]).await?.len() as u64)
}

#[cfg(test)]
mod tests {
    use sea_orm::TransactionTrait as _;

    use super::*;
    use crate::store::{Store, connect, query_plan_tests::settings};

    #[tokio::test]
    async fn oldest_interactions_past_the_bound_are_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(&format!("sqlite:{}/guildhall.db", folder.path().display()));
        Store::open(&settings).await.unwrap().close().await;
        let connection = connect::open_writer(&settings).await.unwrap();
        let on = connection.begin().await.unwrap();
        let received: Vec<_> = (1..=10)
            .map(|n: u64| ReceivedInteraction {
                token: TokenDigest::of(&n.to_string()),
                id: n,
                application: 1,
                guild: None,
                received_at: UnixMs::new(n),
                expires_at: UnixMs::new(100 + n),
            })
            .collect();
        record(&on, received.iter()).await.unwrap();
        assert_eq!(drop_past(&on, 10).await.unwrap(), 0);
        assert_eq!(drop_past(&on, 7).await.unwrap(), 3);
        assert_eq!(drop_past(&on, 7).await.unwrap(), 0);
        let first: Option<i64> = query_scalar(&on, "SELECT MIN(id) FROM received_interactions", vec![]).await.unwrap();
        let count: Option<i64> = query_scalar(&on, "SELECT COUNT(*) FROM received_interactions", vec![]).await.unwrap();
        assert_eq!((first, count), (Some(4), Some(7)));
        assert_eq!(sweep(&on, UnixMs::new(105)).await.unwrap(), SweptInteractions { expired: 2, dropped: 0 });
    }
}
