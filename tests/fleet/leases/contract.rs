//! The contract of leases, on every backend.

use std::time::Duration;

use futures_util::future::join_all;
use guildhall_actors::ports::{Lease, LeaseToken};
use tokio::time::Instant;

use super::backends::{LONG, SHORT, acquire_after_expiry, acquire_free, is_free, lease_name, with_all};

with_all! {
    async fn only_one_of_fifty_concurrent_requests_acquires_it(pair) {
        let lease = lease_name("1");
        let requests = (0..50).map(|nth| {
            let leases = if nth % 2 == 0 { &pair.one } else { &pair.two };
            leases.acquire(&lease, "one of fifty", LONG)
        });
        let got: Vec<_> = join_all(requests).await.into_iter().filter_map(Result::unwrap).collect();
        assert_eq!(got.len(), 1, "{got:?}");
    }

    async fn released_lease_can_be_acquired_by_the_next(pair) {
        let first = acquire_free(&*pair.one, "1", LONG).await;
        assert_eq!(pair.two.acquire(&lease_name("1"), "two", LONG).await, Ok(None));
        assert_eq!(pair.one.acquire(&lease_name("1"), "one again", LONG).await, Ok(None), "not even by its own holder");
        assert_eq!(pair.one.release(&first).await, Ok(true));
        assert_eq!(pair.one.release(&first).await, Ok(false), "it was released before");
        let second = acquire_free(&*pair.two, "1", LONG).await;
        assert!(second.fence > first.fence && second.token != first.token, "{first:?} {second:?}");
    }

    async fn fences_grow_over_releases_expiries_and_processes(pair) {
        let mut last = acquire_free(&*pair.one, "1", LONG).await;
        for nth in 0..40 {
            let (leases, after) = if nth % 2 == 0 { (&pair.two, &pair.one) } else { (&pair.one, &pair.two) };
            if nth % 3 == 0 {
                assert!(after.renew(&last, SHORT).await.unwrap().is_some());
            } else {
                assert_eq!(after.release(&last).await, Ok(true));
            }
            let next = acquire_after_expiry(&**leases, "1").await;
            assert!(next.fence > last.fence, "{next:?} after {last:?}");
            last = next;
        }
    }

    async fn expired_lease_is_neither_renewed_nor_released(pair) {
        let ended = acquire_free(&*pair.one, "1", SHORT).await;
        let next = acquire_after_expiry(&*pair.two, "1").await;
        assert_eq!(pair.one.renew(&ended, LONG).await, Ok(None));
        assert_eq!(pair.one.release(&ended).await, Ok(false));
        assert!(pair.two.renew(&next, LONG).await.unwrap().is_some(), "its holder still has it");
        assert_eq!(pair.two.release(&next).await, Ok(true));

        let ended = acquire_free(&*pair.one, "2", SHORT).await;
        let lease = acquire_after_expiry(&*pair.two, "2").await;
        assert_eq!(pair.two.release(&lease).await, Ok(true));
        assert_eq!(pair.one.renew(&ended, LONG).await, Ok(None), "it is free, but still lost for its first holder");
        assert!(is_free(&*pair.one, "2").await);
    }

    async fn stale_token_changes_nothing(pair) {
        let held = acquire_free(&*pair.one, "1", LONG).await;
        let stale = Lease { token: LeaseToken::new([9; 16]), ..held.clone() };
        assert_eq!(pair.two.release(&stale).await, Ok(false));
        assert_eq!(pair.two.renew(&stale, SHORT).await, Ok(None));
        assert!(!is_free(&*pair.two, "1").await);
        assert!(pair.one.renew(&held, LONG).await.unwrap().is_some());
        let unknown = Lease { name: lease_name("unheard-of"), ..held };
        assert_eq!(pair.one.release(&unknown).await, Ok(false));
    }

    async fn leases_with_different_names_are_independent(pair) {
        let (one, two) = (acquire_free(&*pair.one, "1", LONG).await, acquire_free(&*pair.two, "1:fence", LONG).await);
        let crossed = Lease { name: two.name.clone(), ..one.clone() };
        assert_eq!(pair.one.release(&crossed).await, Ok(false));
        assert_eq!(pair.one.release(&one).await, Ok(true));
        assert!(!is_free(&*pair.one, "1:fence").await);
        assert_eq!(pair.two.release(&two).await, Ok(true));
    }

    async fn expiry_counts_from_before_the_call_and_moves_on_renewal(pair) {
        let before = Instant::now();
        let lease = acquire_free(&*pair.one, "1", LONG).await;
        let after = Instant::now();
        assert!((before + LONG..=after + LONG).contains(&lease.until), "{lease:?}");
        let longer = LONG + Duration::from_secs(60);
        let renewed = pair.two.renew(&lease, longer).await.unwrap().unwrap();
        assert!((after + longer..=Instant::now() + longer).contains(&renewed.until), "{renewed:?}");
        assert_eq!((renewed.token, renewed.fence, &renewed.name), (lease.token, lease.fence, &lease.name));
        // The backend has the new expiry too: the lease does not expire at the old one.
        assert!(pair.one.renew(&lease, SHORT).await.unwrap().is_some());
        acquire_after_expiry(&*pair.two, "1").await;
    }

    async fn any_holder_name_and_any_duration_is_accepted(pair) {
        for (nth, holder) in ["", "two words", "null\0 'quote\" ünïcode", &"x".repeat(5_000)].iter().enumerate() {
            let text = nth.to_string();
            let lease = pair.one.acquire(&lease_name(&text), holder, Duration::MAX).await.unwrap().unwrap();
            assert!(lease.until <= Instant::now() + Lease::MAX_TTL);
            let renewed = pair.one.renew(&lease, Duration::MAX).await.unwrap().unwrap();
            assert!(pair.one.renew(&renewed, Duration::ZERO).await.unwrap().is_some());
            acquire_after_expiry(&*pair.two, &text).await;
        }
    }
}
