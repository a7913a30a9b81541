//! The contract of the inbox and of the sweep of events.

use guildhall::store::Store;
use guildhall_actors::access::{AuditAction, AuditRecord, Caller};
use guildhall_actors::ports::{
    CommitResult, EventStore as _, HandlerCommit, InboxDisposition, InboxEntry, OperationStore as _, PostponeResult,
    StoredSession, SubmitError,
};
use guildhall_core::operation::Queue;

use crate::{
    events_setup::{commit, done, entry, handled, handled_seqs, handled_with_operations, key, session, state_write},
    setup::{GUILD, StoreLocation, accepted as accepted_at, at, guild_operation, on_both, open_new_store},
};

/// Puts an event into the inbox.
async fn put_into_inbox(store: &Store, seq: u64, lane: i64) {
    let item = HandlerCommit { inbox: Some(entry("s", seq, lane)), ..handled("s", seq, "h") };
    assert_eq!(commit(store, item).await, done());
}

async fn pending_entries(store: &Store) -> Vec<InboxEntry> {
    store.inbox(0, 99).await.unwrap()
}

fn entry_seqs(entries: &[InboxEntry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.key.seq).collect()
}

fn dead_disposition(reason: &str) -> InboxDisposition {
    InboxDisposition::Dead { attempts: 8, reason: reason.to_owned() }
}

fn commit_from_inbox(seq: u64) -> HandlerCommit {
    HandlerCommit { from_inbox: true, ..handled("s", seq, "h") }
}

on_both! {
    async fn inbox_returns_events_complete_and_in_order(engine) {
        let (store, _place) = open_new_store(engine).await;
        let words = InboxEntry { event: "{\"ü\":\"\\u0000\\\"'\"}".to_owned(), ..entry("s", 1, -4) };
        let first = HandlerCommit { inbox: Some(words.clone()), ..handled("s", 1, "h") };
        assert_eq!(commit(&store, first.clone()).await, done());
        assert_eq!(commit(&store, first).await, CommitResult::Skipped);
        for (seq, lane) in [(2, 8), (3, -4)] {
            put_into_inbox(&store, seq, lane).await;
        }
        let found = pending_entries(&store).await;
        assert_eq!(entry_seqs(&found), [1, 2, 3]);
        assert_eq!(found[0], InboxEntry { position: found[0].position, ..words });
        assert!(found.is_sorted_by(|one, next| one.position < next.position));
        assert_eq!(entry_seqs(&store.inbox(found[0].position, 1).await.unwrap()), [2]);
        assert_eq!(handled_seqs(&store, "s", 0).await, [1, 2, 3], "the session does not wait for the inbox");
    }

    async fn event_from_the_inbox_is_committed_once_and_removed(engine) {
        let (store, _place) = open_new_store(engine).await;
        store.save_sessions(vec![session(0, "s", 0)]).await.unwrap();
        put_into_inbox(&store, 1, 0).await;
        put_into_inbox(&store, 2, 0).await;
        // The session advances meanwhile, and the row is removed.
        store.save_sessions(vec![session(0, "s", 2)]).await.unwrap();
        let item = HandlerCommit { operations: vec![guild_operation()], set: vec![state_write("k", Some("1"))], ..commit_from_inbox(1) };
        let again = HandlerCommit { operations: vec![guild_operation()], ..commit_from_inbox(1) };
        let accepted = CommitResult::Done(vec![accepted_at(1)]);
        assert_eq!(store.commit(vec![item, again.clone()]).await.unwrap(), [accepted, CommitResult::Skipped]);
        assert_eq!(commit(&store, again).await, CommitResult::Skipped);
        assert_eq!(entry_seqs(&pending_entries(&store).await), [2]);
        assert_eq!(store.load(Queue::Guild(GUILD), 0, 9).await.unwrap().operations.len(), 1);
        assert_eq!(store.state("k").await.unwrap().as_deref(), Some("1"));
    }

    async fn refused_event_stays_in_the_inbox(engine) {
        let mut place = StoreLocation::new(engine).await;
        place.settings.max_queued = 1;
        let store = place.open().await;
        put_into_inbox(&store, 1, 0).await;
        let too_much = HandlerCommit { operations: vec![guild_operation(), guild_operation()], ..commit_from_inbox(1) };
        assert!(matches!(commit(&store, too_much).await, CommitResult::Refused(SubmitError::Full { .. })));
        assert_eq!(entry_seqs(&pending_entries(&store).await), [1]);
        assert_eq!(handled_seqs(&store, "s", 0).await, [1], "the row stays too");
        assert_eq!(commit(&store, commit_from_inbox(1)).await, done());
    }

    async fn fallback_is_stored_with_what_became_of_the_event(engine) {
        let (store, _place) = open_new_store(engine).await;
        for seq in 1..=3 {
            put_into_inbox(&store, seq, 0).await;
        }
        let fallback = || Some(Box::new(guild_operation()));
        let finished = HandlerCommit { fallback: fallback(), operations: vec![guild_operation()], ..commit_from_inbox(1) };
        assert_eq!(commit(&store, finished.clone()).await, CommitResult::Done(vec![accepted_at(1), accepted_at(2)]));
        assert_eq!(commit(&store, finished).await, CommitResult::Skipped);
        let again = InboxDisposition::Retry { at: at(5_000), attempts: 1, reason: "500".to_owned() };
        let postponed = store.postpone(key("s", 2, "h"), again, fallback(), at(20)).await.unwrap();
        assert_eq!(postponed, PostponeResult { exists: true, fallback: Some(accepted_at(3)) });
        let unknown = store.postpone(key("s", 9, "h"), dead_disposition("no"), fallback(), at(20)).await.unwrap();
        assert_eq!(unknown, PostponeResult { exists: false, fallback: None });
        let dead = store.postpone(key("s", 3, "h"), dead_disposition("no"), fallback(), at(20)).await.unwrap();
        assert_eq!(dead.fallback, Some(accepted_at(4)));
        assert_eq!(store.load(Queue::Guild(GUILD), 0, 9).await.unwrap().operations.len(), 4);
    }

    async fn refused_fallback_changes_nothing_else(engine) {
        let mut place = StoreLocation::new(engine).await;
        place.settings.max_queued = 1;
        let store = place.open().await;
        for seq in 1..=2 {
            put_into_inbox(&store, seq, 0).await;
        }
        let fallback = || Some(Box::new(guild_operation()));
        let finished = HandlerCommit { fallback: fallback(), operations: vec![guild_operation()], ..commit_from_inbox(1) };
        assert_eq!(commit(&store, finished).await, CommitResult::Done(vec![accepted_at(1)]));
        let dead = store.postpone(key("s", 2, "h"), dead_disposition("no"), fallback(), at(20)).await.unwrap();
        assert_eq!(dead, PostponeResult { exists: true, fallback: None });
        assert!(pending_entries(&store).await.is_empty());
        assert_eq!(store.load(Queue::Guild(GUILD), 0, 9).await.unwrap().operations.len(), 1);
    }

    async fn event_in_the_inbox_is_not_handled_again_without_its_row(engine) {
        let (store, _place) = open_new_store(engine).await;
        store.save_sessions(vec![session(0, "s", 0)]).await.unwrap();
        put_into_inbox(&store, 1, 0).await;
        store.save_sessions(vec![session(0, "t", 0)]).await.unwrap();
        assert!(handled_seqs(&store, "s", 0).await.is_empty());
        assert_eq!(commit(&store, handled_with_operations("s", 1, vec![guild_operation()])).await, CommitResult::Skipped);
        assert_eq!(entry_seqs(&pending_entries(&store).await), [1]);
    }

    async fn entry_is_postponed_and_then_dead(engine) {
        let (store, _place) = open_new_store(engine).await;
        for seq in 1..=3 {
            put_into_inbox(&store, seq, 0).await;
        }
        let again = |attempts| InboxDisposition::Retry { at: at(5_000), attempts, reason: "500".to_owned() };
        assert!(store.postpone(key("s", 2, "h"), again(4), None, at(20)).await.unwrap().exists);
        assert!(!store.postpone(key("s", 2, "other"), again(4), None, at(20)).await.unwrap().exists);
        assert!(!store.postpone(key("s", 9, "h"), dead_disposition("gone"), None, at(20)).await.unwrap().exists);
        let found = pending_entries(&store).await;
        assert_eq!((found[1].attempts, found[1].eligible_at, &found[1].dead), (4, at(5_000), &None));
        assert_eq!(entry_seqs(&found), [1, 2, 3], "it stays at its position");
        for _ in 0..2 {
            assert!(store.postpone(key("s", 2, "h"), dead_disposition("it hangs"), None, at(30)).await.unwrap().exists, "marking as dead is \
                idempotent");
        }
        assert!(!store.postpone(key("s", 2, "h"), again(5), None, at(31)).await.unwrap().exists, "a late update");
        assert!(store.postpone(key("s", 1, "h"), dead_disposition("410"), None, at(30)).await.unwrap().exists);
        assert_eq!(entry_seqs(&pending_entries(&store).await), [3]);
        let given_up = store.dead_events(None, 9).await.unwrap();
        assert_eq!(entry_seqs(&given_up), [2, 1], "newest first");
        assert_eq!(store.depths().await.unwrap()["dead_events"], 2);
        assert_eq!((given_up[0].dead.as_deref(), given_up[0].attempts), (Some("it hangs"), 8));
        assert_eq!(entry_seqs(&store.dead_events(Some(given_up[0].position), 9).await.unwrap()), [1]);
        assert_eq!(entry_seqs(&store.dead_events(None, 1).await.unwrap()), [2]);
    }

    async fn many_entries_are_postponed_concurrently(engine) {
        let (store, _place) = open_new_store(engine).await;
        for seq in 1..=20 {
            put_into_inbox(&store, seq, 0).await;
        }
        let callers: Vec<_> = (1..=40).map(|seq| {
            let store = store.clone();
            tokio::spawn(async move { (seq, store.postpone(key("s", seq, "h"), dead_disposition("no"), None, at(1)).await.unwrap().exists) })
        }).collect();
        for caller in callers {
            let (seq, found) = caller.await.unwrap();
            assert_eq!(found, seq <= 20);
        }
        assert_eq!(store.dead_events(None, 99).await.unwrap().len(), 20);
    }

    async fn event_may_be_dead_at_once(engine) {
        let (store, _place) = open_new_store(engine).await;
        let poison = InboxEntry { dead: Some("it makes a guild panic".to_owned()), ..entry("s", 1, 0) };
        assert_eq!(commit(&store, HandlerCommit { inbox: Some(poison), at: at(50), ..handled("s", 1, "h") }).await, done());
        assert!(pending_entries(&store).await.is_empty());
        assert_eq!(entry_seqs(&store.dead_events(None, 9).await.unwrap()), [1]);
        assert_eq!(store.sweep_events(at(50)).await.unwrap(), 0);
        assert_eq!(store.sweep_events(at(51)).await.unwrap(), 2, "with its row, because no shard has its session");
    }

    async fn revived_entry_waits_at_the_end(engine) {
        let (store, _place) = open_new_store(engine).await;
        for seq in 1..=3 {
            put_into_inbox(&store, seq, 0).await;
        }
        assert!(!store.revive(pending_entries(&store).await[0].position, revive_record()).await.unwrap(), "it is not dead");
        for seq in [1, 3] {
            store.postpone(key("s", seq, "h"), dead_disposition("no"), None, at(30)).await.unwrap();
        }
        let given_up = store.dead_events(None, 9).await.unwrap();
        assert_eq!(entry_seqs(&given_up), [3, 1]);
        assert!(store.revive(given_up[1].position, revive_record()).await.unwrap());
        assert!(!store.revive(given_up[1].position, revive_record()).await.unwrap(), "it was revived already");
        let found = pending_entries(&store).await;
        assert_eq!(entry_seqs(&found), [2, 1]);
        assert!(found[1].position > given_up[0].position, "positions are not reused");
        let revived = InboxEntry { position: found[1].position, attempts: 0, eligible_at: at(40), ..entry("s", 1, 0) };
        assert_eq!(found[1], revived);
        assert_eq!(commit(&store, commit_from_inbox(1)).await, done());
        assert_eq!(entry_seqs(&store.dead_events(None, 9).await.unwrap()), [3]);
    }

    async fn only_dead_entries_can_be_discarded(engine) {
        let (store, _place) = open_new_store(engine).await;
        for seq in 1..=2 {
            put_into_inbox(&store, seq, 0).await;
        }
        store.postpone(key("s", 1, "h"), dead_disposition("no"), None, at(30)).await.unwrap();
        let dead = store.dead_events(None, 9).await.unwrap()[0].position;
        let waiting = pending_entries(&store).await[0].position;
        let record = || Caller::operator().audit_record(AuditAction::EventsDiscard, at(40));
        assert!(!store.discard_event(waiting, record()).await.unwrap(), "it is not dead");
        assert!(store.discard_event(dead, record()).await.unwrap());
        assert!(!store.discard_event(dead, record()).await.unwrap(), "it was discarded already");
        assert!(store.dead_events(None, 9).await.unwrap().is_empty());
        assert_eq!(entry_seqs(&pending_entries(&store).await), [2]);
    }

    async fn sweep_removes_only_old_data_without_a_session(engine) {
        let (store, _place) = open_new_store(engine).await;
        store.save_sessions(vec![session(0, "ours", 0)]).await.unwrap();
        let unused = StoredSession { shards: 9, at: at(0), ..session(0, "unused", 0) };
        let fresh_one = StoredSession { at: at(500), ..session(0, "ours", 0) };
        store.save_sessions(vec![unused, fresh_one.clone()]).await.unwrap();
        let young = HandlerCommit { at: at(600), ..handled("http", 700, "h") };
        let rows = vec![
            handled("ours", 1, "h"), handled("unused", 1, "h"), handled("http", 600, "h"), young, handled("lost", 4, "h"),
        ];
        store.commit(rows).await.unwrap();
        for seq in 1..=2 {
            put_into_inbox(&store, seq, 0).await;
        }
        store.postpone(key("s", 1, "h"), dead_disposition("no"), None, at(100)).await.unwrap();
        // A dead event, a session, and rows: of that session, of HTTP, of an unknown session, and two of `s`.
        assert_eq!(store.sweep_events(at(400)).await.unwrap(), 7);
        assert_eq!(store.sweep_events(at(400)).await.unwrap(), 0);
        assert_eq!(store.sessions().await.unwrap(), [fresh_one]);
        assert_eq!((handled_seqs(&store, "ours", 0).await, handled_seqs(&store, "http", 0).await), (vec![1], vec![700]));
        assert!(handled_seqs(&store, "unused", 0).await.is_empty() && handled_seqs(&store, "lost", 0).await.is_empty());
        assert_eq!(entry_seqs(&pending_entries(&store).await), [2], "pending events are never swept");
        assert!(store.dead_events(None, 9).await.unwrap().is_empty());
    }
}

fn revive_record() -> AuditRecord {
    Caller::operator().audit_record(AuditAction::EventsRevive, at(40))
}
