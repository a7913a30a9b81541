//! The contract of the spend store.

use std::{collections::BTreeMap, sync::Arc};

use guildhall::store::Store;
use guildhall_actors::budget::{HourlySpend, SpendStore as _};
use guildhall_core::budget::{BudgetName, Hour, SpendRecord};

use crate::setup::{fresh, on_both};

fn name(name: &str) -> BudgetName {
    BudgetName::new(name).unwrap()
}

fn spend(of: &str, hour: u64, micros: u64, calls: u64) -> SpendRecord {
    SpendRecord { name: name(of), hour: Hour::new(hour), micros, calls }
}

async fn keep(store: &Store, process: &str, spend: Vec<SpendRecord>) {
    store.keep_spend(Arc::from(process), spend).await.unwrap();
}

async fn since(store: &Store, process: &str, of: &str, hour: u64) -> BTreeMap<u64, HourlySpend> {
    let found = store.spend_since(Arc::from(process), name(of), Hour::new(hour)).await.unwrap();
    found.into_iter().map(|(hour, spent)| (hour.number(), spent)).collect()
}

fn spent(own_micros: u64, own_calls: u64, other_micros: u64, other_calls: u64) -> HourlySpend {
    HourlySpend { own_micros, own_calls, other_micros, other_calls }
}

on_both! {
    async fn sums_take_the_place_of_smaller_ones_and_those_of_other_processes_stand_beside_them(engine) {
        let (store, _place) = fresh(engine).await;
        keep(&store, "one", vec![spend("shop", 100, 5, 1), spend("shop", 101, 7, 2), spend("rpc", 100, 1, 1)]).await;
        // Stored again, stored late, and increased.
        keep(&store, "one", vec![spend("shop", 100, 5, 1)]).await;
        keep(&store, "one", vec![spend("shop", 101, 3, 1), spend("shop", 100, 9, 3)]).await;
        keep(&store, "two", vec![spend("shop", 100, 20, 4)]).await;
        keep(&store, "three", vec![spend("shop", 100, 30, 1)]).await;
        let expected = BTreeMap::from([(100, spent(9, 3, 50, 5)), (101, spent(7, 2, 0, 0))]);
        assert_eq!(since(&store, "one", "shop", 0).await, expected);
        assert_eq!(since(&store, "two", "shop", 101).await, BTreeMap::from([(101, spent(0, 0, 7, 2))]));
        assert_eq!(since(&store, "one", "rpc", 0).await, BTreeMap::from([(100, spent(1, 1, 0, 0))]));
        assert!(since(&store, "one", "none", 0).await.is_empty());
        keep(&store, "one", Vec::new()).await;
        store.close().await;
    }

    async fn many_sums_go_in_one_write_and_old_hours_are_forgotten_in_small_batches(engine) {
        let (store, _place) = fresh(engine).await;
        keep(&store, "one", (0..1_200).map(|hour| spend("shop", hour, hour + 1, 1)).collect()).await;
        assert_eq!(since(&store, "one", "shop", 0).await.len(), 1_200);
        let mut swept = Vec::new();
        loop {
            match store.sweep_spend(Hour::new(1_199)).await.unwrap() {
                0 => break,
                rows => swept.push(rows),
            }
        }
        assert_eq!(swept, [500, 500, 199]);
        assert_eq!(since(&store, "one", "shop", 0).await, BTreeMap::from([(1_199, spent(1_200, 1, 0, 0))]));
        store.close().await;
    }
}
