//! Received interactions: a recorded one is found by its token until it is swept.

use std::time::Duration;

use guildhall_actors::ports::{EventStore as _, OperationStore as _, Retention, SweepSummary};
use guildhall_core::{
    interaction::{ReceivedInteraction, TokenDigest},
    time::UnixMs,
};

use crate::setup::{at, on_both, open_new_store};

const FOREVER: Duration = Duration::from_secs(1 << 32);
const RETENTION: Retention =
    Retention { completed: FOREVER, failed: FOREVER, dead_letters: FOREVER, idempotency: FOREVER };

fn received(token: &str, id: u64, expires_at: UnixMs) -> ReceivedInteraction {
    let token = TokenDigest::of(token);
    ReceivedInteraction { token, id, application: 9, guild: Some(42), received_at: at(1), expires_at }
}

on_both! {
    async fn recorded_interaction_is_found_by_its_token_after_a_restart(engine) {
        let (store, place) = open_new_store(engine).await;
        let (one, other) = (received("one", 1, at(900)), ReceivedInteraction { guild: None, ..received("other", u64::MAX, at(900)) });
        store.record_interactions(vec![one, other, one]).await.unwrap();
        store.record_interactions(vec![ReceivedInteraction { id: 7, ..one }]).await.unwrap();
        store.close().await;
        let store = place.open().await;
        let tokens = ["one", "made up", "other"].map(TokenDigest::of).to_vec();
        let mut found = store.received_interactions(tokens).await.unwrap();
        found.sort_by_key(|received| received.id);
        assert_eq!(found, [one, other], "the first record of an interaction stays");
        assert_eq!(store.received_interactions(Vec::new()).await.unwrap(), []);
    }

    async fn many_interactions_are_recorded_and_looked_up_at_once(engine) {
        let (store, _place) = open_new_store(engine).await;
        let all: Vec<_> = (0..1_500).map(|n| received(&n.to_string(), n, at(900))).collect();
        store.record_interactions(all.clone()).await.unwrap();
        let tokens = all.iter().map(|received| received.token).collect();
        assert_eq!(store.received_interactions(tokens).await.unwrap().len(), 1_500);
    }

    async fn expired_interactions_are_swept_in_small_batches(engine) {
        let (store, _place) = open_new_store(engine).await;
        let old = (0..700).map(|n| received(&n.to_string(), n, at(100)));
        store.record_interactions(old.chain([received("live", 1, at(101))]).collect()).await.unwrap();
        let mut swept = Vec::new();
        loop {
            let SweepSummary { interactions, interactions_dropped, .. } = store.sweep(RETENTION, at(100)).await.unwrap();
            assert_eq!(interactions_dropped, 0);
            if interactions == 0 {
                break;
            }
            swept.push(interactions);
        }
        assert_eq!(swept, [500, 200]);
        let tokens = ["0", "live"].map(TokenDigest::of).to_vec();
        assert_eq!(store.received_interactions(tokens).await.unwrap(), [received("live", 1, at(101))]);
    }
}
