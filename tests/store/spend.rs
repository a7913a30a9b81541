//! The contract of the spend store.

use std::{collections::BTreeMap, sync::Arc};

use guildhall::store::Store;
use guildhall_actors::budget::{HourlySpend, SpendStore as _};
use guildhall_core::budget::{BudgetName, Hour, SpendRecord};

use crate::setup::{on_both, open_new_store};

fn name(name: &str) -> BudgetName {
    BudgetName::new(name).unwrap()
}

fn spend(budget: &str, hour: u64, micros: u64, calls: u64) -> SpendRecord {
    SpendRecord { name: name(budget), hour: Hour::new(hour), micros, calls }
}

async fn store_spend(store: &Store, process: &str, spend: Vec<SpendRecord>) {
    store.save_spend(Arc::from(process), spend).await.unwrap();
}

async fn spend_since(store: &Store, process: &str, budget: &str, hour: u64) -> BTreeMap<u64, HourlySpend> {
    let found = store.spend_since(Arc::from(process), name(budget), Hour::new(hour)).await.unwrap();
    found.into_iter().map(|(hour, spent)| (hour.number(), spent)).collect()
}

fn hourly_spend(own_micros: u64, own_calls: u64, other_micros: u64, other_calls: u64) -> HourlySpend {
    HourlySpend { own_micros, own_calls, other_micros, other_calls }
}

on_both! {
    async fn larger_sums_replace_smaller_ones_of_the_same_process(engine) {
        let (store, _place) = open_new_store(engine).await;
        store_spend(&store, "one", vec![spend("shop", 100, 5, 1), spend("shop", 101, 7, 2), spend("rpc", 100, 1, 1)]).await;
        // Stored again, stored late, and increased.
        store_spend(&store, "one", vec![spend("shop", 100, 5, 1)]).await;
        store_spend(&store, "one", vec![spend("shop", 101, 3, 1), spend("shop", 100, 9, 3)]).await;
        store_spend(&store, "two", vec![spend("shop", 100, 20, 4)]).await;
        store_spend(&store, "three", vec![spend("shop", 100, 30, 1)]).await;
        let expected = BTreeMap::from([(100, hourly_spend(9, 3, 50, 5)), (101, hourly_spend(7, 2, 0, 0))]);
        assert_eq!(spend_since(&store, "one", "shop", 0).await, expected);
        assert_eq!(spend_since(&store, "two", "shop", 101).await, BTreeMap::from([(101, hourly_spend(0, 0, 7, 2))]));
        assert_eq!(spend_since(&store, "one", "rpc", 0).await, BTreeMap::from([(100, hourly_spend(1, 1, 0, 0))]));
        assert!(spend_since(&store, "one", "none", 0).await.is_empty());
        store_spend(&store, "one", Vec::new()).await;
        store.close().await;
    }

    async fn many_sums_are_written_at_once_and_old_hours_swept_in_batches(engine) {
        let (store, _place) = open_new_store(engine).await;
        store_spend(&store, "one", (0..1_200).map(|hour| spend("shop", hour, hour + 1, 1)).collect()).await;
        assert_eq!(spend_since(&store, "one", "shop", 0).await.len(), 1_200);
        let mut swept = Vec::new();
        loop {
            match store.sweep_spend(Hour::new(1_199)).await.unwrap() {
                0 => break,
                rows => swept.push(rows),
            }
        }
        assert_eq!(swept, [500, 500, 199]);
        assert_eq!(spend_since(&store, "one", "shop", 0).await, BTreeMap::from([(1_199, hourly_spend(1_200, 1, 0, 0))]));
        store.close().await;
    }
}
