//! The contract of the inbox and of the sweep of events.

use guildhall::store::Store;
use guildhall_actors::access::{AuditAction, AuditRecord, Caller};
use guildhall_actors::ports::{
    CommitResult, EventStore as _, HandlerCommit, InboxDisposition, InboxEntry, OperationStore as _, StoredSession,
    SubmitError,
};
use guildhall_core::operation::Queue;

use crate::{
    events_setup::{commit, done, entry, gives, handled, key, seqs, session, set},
    setup::{GUILD, Place, accepted as accepted_at, at, fresh, in_guild, on_both},
};

/// Puts an event into the inbox.
async fn wait(store: &Store, seq: u64, lane: i64) {
    let item = HandlerCommit { inbox: Some(entry("s", seq, lane)), ..handled("s", seq, "h") };
    assert_eq!(commit(store, item).await, done());
}

async fn waiting(store: &Store) -> Vec<InboxEntry> {
    store.inbox(0, 99).await.unwrap()
}

fn numbers(entries: &[InboxEntry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.key.seq).collect()
}

fn dead(why: &str) -> InboxDisposition {
    InboxDisposition::Dead { attempts: 8, why: why.to_owned() }
}

fn from_inbox(seq: u64) -> HandlerCommit {
    HandlerCommit { from_inbox: true, ..handled("s", seq, "h") }
}

on_both! {
    async fn events_wait_in_order_with_all_their_parts(engine) {
        let (store, _place) = fresh(engine).await;
        let words = InboxEntry { event: "{\"ü\":\"\\u0000\\\"'\"}".to_owned(), ..entry("s", 1, -4) };
        let first = HandlerCommit { inbox: Some(words.clone()), ..handled("s", 1, "h") };
        assert_eq!(commit(&store, first.clone()).await, done());
        assert_eq!(commit(&store, first).await, CommitResult::Before);
        for (seq, lane) in [(2, 8), (3, -4)] {
            wait(&store, seq, lane).await;
        }
        let found = waiting(&store).await;
        assert_eq!(numbers(&found), [1, 2, 3]);
        assert_eq!(found[0], InboxEntry { place: found[0].place, ..words });
        assert!(found.is_sorted_by(|one, next| one.place < next.place));
        assert_eq!(numbers(&store.inbox(found[0].place, 1).await.unwrap()), [2]);
        assert_eq!(seqs(&store, "s", 0).await, [1, 2, 3], "the session does not wait for the inbox");
    }

    async fn what_comes_from_the_inbox_is_kept_once_and_removed_there(engine) {
        let (store, _place) = fresh(engine).await;
        store.keep_sessions(vec![session(0, "s", 0)]).await.unwrap();
        wait(&store, 1, 0).await;
        wait(&store, 2, 0).await;
        // The session advances meanwhile, and the row is removed.
        store.keep_sessions(vec![session(0, "s", 2)]).await.unwrap();
        let item = HandlerCommit { operations: vec![in_guild()], set: vec![set("k", Some("1"))], ..from_inbox(1) };
        let again = HandlerCommit { operations: vec![in_guild()], ..from_inbox(1) };
        let accepted = CommitResult::Done(vec![accepted_at(1)]);
        assert_eq!(store.commit(vec![item, again.clone()]).await.unwrap(), [accepted, CommitResult::Before]);
        assert_eq!(commit(&store, again).await, CommitResult::Before);
        assert_eq!(numbers(&waiting(&store).await), [2]);
        assert_eq!(store.load(Queue::Guild(GUILD), 0, 9).await.unwrap().operations.len(), 1);
        assert_eq!(store.state("k").await.unwrap().as_deref(), Some("1"));
    }

    async fn what_comes_from_the_inbox_and_is_refused_stays_there(engine) {
        let mut place = Place::new(engine).await;
        place.settings.max_queued = 1;
        let store = place.open().await;
        wait(&store, 1, 0).await;
        let too_much = HandlerCommit { operations: vec![in_guild(), in_guild()], ..from_inbox(1) };
        assert!(matches!(commit(&store, too_much).await, CommitResult::Refused(SubmitError::Full { .. })));
        assert_eq!(numbers(&waiting(&store).await), [1]);
        assert_eq!(seqs(&store, "s", 0).await, [1], "the row stays too");
        assert_eq!(commit(&store, from_inbox(1)).await, done());
    }

    async fn an_event_that_waits_is_not_begun_anew_when_its_row_is_gone(engine) {
        let (store, _place) = fresh(engine).await;
        store.keep_sessions(vec![session(0, "s", 0)]).await.unwrap();
        wait(&store, 1, 0).await;
        store.keep_sessions(vec![session(0, "t", 0)]).await.unwrap();
        assert!(seqs(&store, "s", 0).await.is_empty());
        assert_eq!(commit(&store, gives("s", 1, vec![in_guild()])).await, CommitResult::Before);
        assert_eq!(numbers(&waiting(&store).await), [1]);
    }

    async fn an_entry_is_put_off_and_given_up(engine) {
        let (store, _place) = fresh(engine).await;
        for seq in 1..=3 {
            wait(&store, seq, 0).await;
        }
        let again = |attempts| InboxDisposition::Again { at: at(5_000), attempts, why: "500".to_owned() };
        assert!(store.put_off(key("s", 2, "h"), again(4), at(20)).await.unwrap());
        assert!(!store.put_off(key("s", 2, "other"), again(4), at(20)).await.unwrap());
        assert!(!store.put_off(key("s", 9, "h"), dead("gone"), at(20)).await.unwrap());
        let found = waiting(&store).await;
        assert_eq!((found[1].attempts, found[1].eligible_at, &found[1].dead), (4, at(5_000), &None));
        assert_eq!(numbers(&found), [1, 2, 3], "it stays at its position");
        for _ in 0..2 {
            assert!(store.put_off(key("s", 2, "h"), dead("it hangs"), at(30)).await.unwrap(), "marking as dead is \
                idempotent");
        }
        assert!(!store.put_off(key("s", 2, "h"), again(5), at(31)).await.unwrap(), "a late update");
        assert!(store.put_off(key("s", 1, "h"), dead("410"), at(30)).await.unwrap());
        assert_eq!(numbers(&waiting(&store).await), [3]);
        let given_up = store.dead_events(None, 9).await.unwrap();
        assert_eq!(numbers(&given_up), [2, 1], "newest first");
        assert_eq!(store.depths().await.unwrap()["dead_events"], 2);
        assert_eq!((given_up[0].dead.as_deref(), given_up[0].attempts), (Some("it hangs"), 8));
        assert_eq!(numbers(&store.dead_events(Some(given_up[0].place), 9).await.unwrap()), [1]);
        assert_eq!(numbers(&store.dead_events(None, 1).await.unwrap()), [2]);
    }

    async fn many_entries_are_put_off_at_one_time(engine) {
        let (store, _place) = fresh(engine).await;
        for seq in 1..=20 {
            wait(&store, seq, 0).await;
        }
        let callers: Vec<_> = (1..=40).map(|seq| {
            let store = store.clone();
            tokio::spawn(async move { (seq, store.put_off(key("s", seq, "h"), dead("no"), at(1)).await.unwrap()) })
        }).collect();
        for caller in callers {
            let (seq, found) = caller.await.unwrap();
            assert_eq!(found, seq <= 20);
        }
        assert_eq!(store.dead_events(None, 99).await.unwrap().len(), 20);
    }

    async fn an_event_may_die_at_once(engine) {
        let (store, _place) = fresh(engine).await;
        let poison = InboxEntry { dead: Some("it makes a guild panic".to_owned()), ..entry("s", 1, 0) };
        assert_eq!(commit(&store, HandlerCommit { inbox: Some(poison), at: at(50), ..handled("s", 1, "h") }).await, done());
        assert!(waiting(&store).await.is_empty());
        assert_eq!(numbers(&store.dead_events(None, 9).await.unwrap()), [1]);
        assert_eq!(store.sweep_events(at(50)).await.unwrap(), 0);
        assert_eq!(store.sweep_events(at(51)).await.unwrap(), 2, "with its row, because no shard has its session");
    }

    async fn a_dead_entry_that_is_revived_waits_at_the_end(engine) {
        let (store, _place) = fresh(engine).await;
        for seq in 1..=3 {
            wait(&store, seq, 0).await;
        }
        assert!(!store.revive(waiting(&store).await[0].place, revived()).await.unwrap(), "it is not dead");
        for seq in [1, 3] {
            store.put_off(key("s", seq, "h"), dead("no"), at(30)).await.unwrap();
        }
        let given_up = store.dead_events(None, 9).await.unwrap();
        assert_eq!(numbers(&given_up), [3, 1]);
        assert!(store.revive(given_up[1].place, revived()).await.unwrap());
        assert!(!store.revive(given_up[1].place, revived()).await.unwrap(), "it was revived already");
        let found = waiting(&store).await;
        assert_eq!(numbers(&found), [2, 1]);
        assert!(found[1].place > given_up[0].place, "positions are not reused");
        let revived = InboxEntry { place: found[1].place, attempts: 0, eligible_at: at(40), ..entry("s", 1, 0) };
        assert_eq!(found[1], revived);
        assert_eq!(commit(&store, from_inbox(1)).await, done());
        assert_eq!(numbers(&store.dead_events(None, 9).await.unwrap()), [3]);
    }

    async fn what_is_old_and_nobodys_is_swept_and_nothing_else(engine) {
        let (store, _place) = fresh(engine).await;
        store.keep_sessions(vec![session(0, "ours", 0)]).await.unwrap();
        let unused = StoredSession { shards: 9, at: at(0), ..session(0, "unused", 0) };
        let fresh_one = StoredSession { at: at(500), ..session(0, "ours", 0) };
        store.keep_sessions(vec![unused, fresh_one.clone()]).await.unwrap();
        let young = HandlerCommit { at: at(600), ..handled("http", 700, "h") };
        let rows = vec![
            handled("ours", 1, "h"), handled("unused", 1, "h"), handled("http", 600, "h"), young, handled("lost", 4, "h"),
        ];
        store.commit(rows).await.unwrap();
        for seq in 1..=2 {
            wait(&store, seq, 0).await;
        }
        store.put_off(key("s", 1, "h"), dead("no"), at(100)).await.unwrap();
        // A dead event, a session, and rows: of that session, of HTTP, of an unknown session, and two of `s`.
        assert_eq!(store.sweep_events(at(400)).await.unwrap(), 7);
        assert_eq!(store.sweep_events(at(400)).await.unwrap(), 0);
        assert_eq!(store.sessions().await.unwrap(), [fresh_one]);
        assert_eq!((seqs(&store, "ours", 0).await, seqs(&store, "http", 0).await), (vec![1], vec![700]));
        assert!(seqs(&store, "unused", 0).await.is_empty() && seqs(&store, "lost", 0).await.is_empty());
        assert_eq!(numbers(&waiting(&store).await), [2], "pending events are never swept");
        assert!(store.dead_events(None, 9).await.unwrap().is_empty());
    }
}

fn revived() -> AuditRecord {
    Caller::operator().note(AuditAction::EventsRevive, at(40))
}
