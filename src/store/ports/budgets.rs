//! Implements the port for budget spend on [`Store`].

use std::{collections::BTreeMap, sync::Arc};

use guildhall_actors::budget::{HourlySpend, SpendStore};
use guildhall_actors::ports::StoreFuture;
use guildhall_core::budget::{BudgetName, Hour, SpendRecord};

use crate::store::Store;
use crate::store::read::spend;
use crate::store::write::spend::{StoreSpend, SweepSpend};

impl SpendStore for Store {
    fn save_spend(&self, process: Arc<str>, sums: Vec<SpendRecord>) -> StoreFuture<'_, ()> {
        Box::pin(self.write(StoreSpend { process, sums }))
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
        Box::pin(self.write(SweepSpend(before)))
    }
}
