//! Implements the port for budget spend on [`Store`].

use std::{collections::BTreeMap, sync::Arc};

use guildhall_actors::budget::{HourlySpend, SpendStore};
use guildhall_actors::ports::StoreFuture;
use guildhall_core::budget::{BudgetName, Hour, SpendRecord};

use crate::store::Store;
use crate::store::ports::operations::answer;
use crate::store::read::spend;
use crate::store::write::{Job, JobResult};

impl SpendStore for Store {
    fn save_spend(&self, process: Arc<str>, spend: Vec<SpendRecord>) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.write(Job::StoreSpend(process, spend)).await.map(drop) })
    }

    fn spend_since(
        &self,
        process: Arc<str>,
        name: BudgetName,
        since: Hour,
    ) -> StoreFuture<'_, BTreeMap<Hour, HourlySpend>> {
        Box::pin(async move { self.read(spend::since(&self.shared.reading, &process, &name, since)).await })
    }

    fn sweep_spend(&self, before: Hour) -> StoreFuture<'_, u64> {
        Box::pin(async move { Ok(answer!(self, Job::SweepSpend(before), SweptEvents)) })
    }
}
