//! The guilds that the bot is in: names, tenants and pages.

use std::sync::Arc;

use guildhall::store::Store;
use guildhall_actors::access::{DataSubject, ErasureCursor, ErasureStore as _};
use guildhall_actors::ports::{GuildFilter, GuildStore as _, OperationStore as _};
use guildhall_core::event::{GuildChange, ShardGuilds};
use guildhall_core::operation::QueueKey;

use crate::{
    setup::{on_both, open_new_store, operation},
    tenants::{Tenant, tenant_store},
};

const MANY: usize = 1_000;

fn named(guild: u64, name: &str) -> GuildChange {
    GuildChange::Named { guild, name: name.into() }
}

/// Ids and names of a page, and where the next one starts.
async fn page(store: &Store, filter: GuildFilter) -> (Vec<(u64, Option<String>)>, Option<u64>) {
    let page = store
        .guilds(GuildFilter { limit: if filter.limit == 0 { 100 } else { filter.limit }, ..filter })
        .await
        .unwrap();
    (page.guilds.into_iter().map(|guild| (guild.id, guild.name)).collect(), page.next)
}

async fn ids(store: &Store, filter: GuildFilter) -> Vec<u64> {
    page(store, filter).await.0.into_iter().map(|(id, _)| id).collect()
}

async fn submit_in(store: &Store, guild: u64) {
    store.submit(vec![operation(QueueKey::Guild(guild))]).await.unwrap();
}

on_both! {
    async fn names_are_recorded_changed_and_removed(engine) {
        let (store, _place) = open_new_store(engine).await;
        store.record_guilds(vec![named(1, "One"), named(2, "Two")], MANY).await.unwrap();
        let later = vec![named(1, "Won"), named(1, "One again"), GuildChange::Left { guild: 2 }, named(3, "nul\0")];
        store.record_guilds(later, MANY).await.unwrap();
        let (guilds, next) = page(&store, GuildFilter::default()).await;
        assert_eq!((guilds[0].clone(), guilds.len(), next), ((1, Some("One again".to_owned())), 2, None));
        assert_eq!(guilds[1].0, 3);
        store.close().await;
    }

    async fn no_more_names_are_stored_than_permitted(engine) {
        let (store, _place) = open_new_store(engine).await;
        store.record_guilds((1..=5).map(|id| named(id, "first")).collect(), 3).await.unwrap();
        assert_eq!(ids(&store, GuildFilter::default()).await, [1, 2, 3]);
        // A stored one can change; another takes the place of one that was left.
        store.record_guilds(vec![named(3, "changed"), named(4, "new")], 3).await.unwrap();
        store.record_guilds(vec![GuildChange::Left { guild: 1 }, named(5, "new")], 3).await.unwrap();
        let (guilds, _) = page(&store, GuildFilter::default()).await;
        let guilds: Vec<_> = guilds.iter().map(|(id, name)| (*id, name.as_deref().unwrap())).collect();
        assert_eq!(guilds, [(2, "first"), (3, "changed"), (5, "new")]);
        store.close().await;
    }

    async fn guilds_that_a_new_session_does_not_list_are_removed(engine) {
        let (store, _place) = open_new_store(engine).await;
        // The first two belong to shard 0 of 2, the others to shard 1.
        let guilds = [0, 2, 1, 3].map(|n: u64| (n << 22) + 5);
        store.record_guilds(guilds.map(|id| named(id, "a")).to_vec(), MANY).await.unwrap();
        store.retain_guilds(ShardGuilds { shard: 0, shards: 2, guilds: vec![guilds[1], 77] }).await.unwrap();
        assert_eq!(ids(&store, GuildFilter::default()).await, [guilds[2], guilds[1], guilds[3]]);
        store.close().await;
    }

    async fn guilds_with_a_name_and_with_a_queue_are_paged_together(engine) {
        let (store, _place) = open_new_store(engine).await;
        store.record_guilds([1, 2, 4, 6, 7].map(|id| named(id, "a")).to_vec(), MANY).await.unwrap();
        for id in [2, 3, 5, 8] {
            submit_in(&store, id).await;
        }
        store.submit(vec![operation(QueueKey::user(9))]).await.unwrap();
        for limit in 1..=9 {
            let (mut found, mut after, mut pages) = (Vec::new(), 0, 0);
            loop {
                let (guilds, next) = page(&store, GuildFilter { after, limit, ..GuildFilter::default() }).await;
                assert!(guilds.len() <= limit, "{guilds:?}");
                found.extend(guilds.into_iter().map(|(id, _)| id));
                pages += 1;
                assert!(pages < 20, "{found:?}");
                let Some(next) = next else { break };
                assert!(next > after, "a cursor must advance");
                after = next;
            }
            assert_eq!(found, (1..=8).collect::<Vec<_>>(), "pages of {limit}");
        }
        store.close().await;
    }

    async fn tenant_sees_its_own_guilds_and_default_the_unclaimed_ones(engine) {
        let (store, _place) = open_new_store(engine).await;
        store.record_guilds((1..=4).map(|id| named(id, "a")).collect(), MANY).await.unwrap();
        Tenant::create(&store, "acme", 2).await;
        submit_in(&store, 3).await;
        let of = |tenant: &str| GuildFilter { tenant: Some(Arc::from(tenant)), ..GuildFilter::default() };
        assert_eq!(ids(&store, of("acme")).await, [2]);
        assert_eq!(ids(&store, of("default")).await, [1, 3, 4]);
        assert_eq!(ids(&store, of("rival")).await, Vec::<u64>::new());
        assert_eq!(ids(&store, GuildFilter { guilds: Some(vec![2, 4]), ..of("default") }).await, [4]);
        assert_eq!(page(&store, GuildFilter { guilds: Some(vec![2]), ..of("acme") }).await.0, [(2, Some("a".to_owned()))]);
        // A store of a tenant drops the guilds of others, whatever the filter says.
        let acme = tenant_store(&store, "acme");
        let all = acme.guilds(GuildFilter { limit: 10, ..GuildFilter::default() }).await.unwrap();
        assert_eq!(all.guilds.iter().map(|guild| guild.id).collect::<Vec<_>>(), [2]);
        store.close().await;
    }

    async fn erasing_a_guild_removes_its_name(engine) {
        let (store, _place) = open_new_store(engine).await;
        store.record_guilds(vec![named(1, "One"), named(12, "Twelve")], MANY).await.unwrap();
        let mut from = Some(ErasureCursor::default());
        let mut removed = 0;
        while let Some(cursor) = from {
            let step = store.erase(DataSubject::Guild(1), cursor, None).await.unwrap();
            removed += step.removed.get("guild_names").copied().unwrap_or_default();
            from = step.next;
        }
        assert_eq!((removed, ids(&store, GuildFilter::default()).await), (1, vec![12]));
        store.close().await;
    }
}
