//! The contract for a caller of one tenant: it sees and changes only what belongs to that tenant, whatever it requests.

use std::sync::Arc;

use guildhall::store::Store;
use guildhall_actors::access::{AuditAction, AuditFilter, Caller};
use guildhall_actors::ports::{
    AddKeyResult, Attempt, Binding, DeadLetterFilter, IdempotencyKey, KeyStore, NewApiKey, NewOperation,
    OperationFilter, OperationStore, OperationUpdate, PauseTarget, SubmitResult,
};
use guildhall_core::{
    access::{Grant, KeyId, Owner},
    operation::{Failure, FailureClass, ManagedKind, OperationId, OperationState, Queue, QueueKey, payload::Location},
};

use crate::setup::{at, change, claim, fresh, new_id, on_both, operation, queue_of, record, state_of, tried};

/// A tenant with a guild and operations: one pending, one done and one dead.
pub(crate) struct Tenant {
    pub(crate) name: &'static str,
    pub(crate) guild: u64,
    pub(crate) waits: OperationId,
    pub(crate) dead: OperationId,
}

/// The store, limited to a tenant.
pub(crate) fn seen_by(store: &Store, tenant: &str) -> Arc<dyn OperationStore> {
    OperationStore::within(Arc::new(store.clone()), Arc::from(tenant))
}

impl Tenant {
    /// Creates a tenant with a guild and a key, and submits operations as that tenant.
    pub(crate) async fn settle(store: &Store, name: &'static str, guild: u64) -> Self {
        let grant = Grant::read(["operations:write", format!("guild:{guild}").as_str()]).unwrap();
        let key = NewApiKey {
            id: KeyId::from_chance(u128::from(guild)),
            tenant: Arc::from(name),
            name: format!("the key of {name}"),
            digest: [1; 32],
            grant,
            created_at: at(0),
            expires_at: None,
        };
        let operator = Caller::operator();
        let added = store.add_key(key.clone(), operator.note(AuditAction::KeysCreate, at(0))).await.unwrap();
        assert_eq!(added, AddKeyResult::Done);
        let new = |n: &str| NewOperation {
            tenant: Arc::from(name),
            idempotency: Some(IdempotencyKey { scope: Arc::from(key.id.as_str()), key: n.to_owned() }),
            ..operation(QueueKey::Guild(guild))
        };
        let (waits, done, dead) = (new("waits"), new("done"), new("dead"));
        let refers = NewOperation { refers_to: vec![waits.id], ..new("refers") };
        let caller = Caller { tenant: Some(Arc::from(name)), ..Caller::operator() };
        let errand =
            seen_by(store, name).noting(caller.note(AuditAction::OperationsSubmit, at(0)).in_guild(Some(guild)));
        let batch = vec![waits.clone(), done.clone(), dead.clone(), refers];
        let submitted = errand.submit(batch.clone()).await.unwrap();
        assert!(submitted.iter().all(|one| matches!(one, SubmitResult::Accepted { .. })), "{submitted:?}");
        let again = seen_by(store, name).submit(vec![NewOperation { id: new_id(), ..batch[1].clone() }]).await.unwrap();
        assert!(matches!(again[0], SubmitResult::Existing { .. }), "{again:?}");
        let fence = claim(store, Queue::Guild(guild)).await.fence;
        let channel = Binding {
            kind: ManagedKind::Channel,
            key: "rules".to_owned(),
            discord_id: guild + 1,
            channel: None,
            origin: "created",
        };
        let made = OperationUpdate {
            bind: vec![channel],
            attempt: Some(tried(1)),
            ..change(&done, fence, OperationState::Succeeded)
        };
        record(store, made).await;
        let why = Failure::new(FailureClass::Forbidden, "no");
        let attempt = Attempt { class: "forbidden".to_owned(), ..tried(1) };
        record(
            store,
            OperationUpdate { error: Some(why), attempt: Some(attempt), ..change(&dead, fence, OperationState::Dead) },
        )
        .await;
        assert!(store.release(Queue::Guild(guild), fence).await.unwrap());
        assert_eq!(store.learn(Location::Channel(guild + 2), Some(guild)).await.unwrap().tenant, name);
        Self { name, guild, waits: waits.id, dead: dead.id }
    }
}

/// Two tenants in one store.
pub(crate) async fn two(store: &Store) -> (Tenant, Tenant) {
    (Tenant::settle(store, "acme", 7_000).await, Tenant::settle(store, "rival", 8_000).await)
}

on_both! {
    async fn a_list_without_any_filter_is_of_its_tenant_alone(engine) {
        let (store, _place) = fresh(engine).await;
        let (acme, rival) = two(&store).await;
        for (own, other) in [(&acme, &rival), (&rival, &acme)] {
            let seen = seen_by(&store, own.name);
            let all = seen.list(OperationFilter { limit: 100, ..OperationFilter::default() }).await.unwrap();
            assert_eq!(all.len(), 4);
            assert!(all.iter().all(|shown| &*shown.stored.operation.tenant == own.name), "{all:?}");
            let theirs = OperationFilter { tenant: Some(Arc::from(other.name)), limit: 100, ..OperationFilter::default() };
            assert!(seen.list(theirs).await.unwrap().is_empty(), "not even with an explicit filter");
            assert!(seen.show(own.waits).await.unwrap().is_some() && seen.show(other.waits).await.unwrap().is_none());
            assert_eq!(seen.show(own.dead).await.unwrap().unwrap().attempts.len(), 1);
            assert_eq!(seen.load(Queue::Guild(own.guild), 0, 9).await.unwrap().operations.len(), 2);
            assert!(seen.load(Queue::Guild(other.guild), 0, 9).await.unwrap().operations.is_empty());
            let letters = seen.letters(DeadLetterFilter { limit: 9, ..DeadLetterFilter::default() }).await.unwrap();
            assert_eq!(letters.iter().map(|letter| letter.id).collect::<Vec<_>>(), [own.dead]);
            let keys = KeyStore::within(Arc::new(store.clone()), Arc::from(own.name));
            let rows = keys.audit(AuditFilter { limit: 9, ..AuditFilter::default() }).await.unwrap();
            assert_eq!(rows.iter().map(|row| row.note.guild).collect::<Vec<_>>(), [Some(own.guild)]);
        }
        assert_eq!(store.list(OperationFilter { limit: 100, ..OperationFilter::default() }).await.unwrap().len(), 8, );
    }

    async fn what_is_another_tenants_cannot_be_changed_by_its_name(engine) {
        let (store, _place) = fresh(engine).await;
        let (acme, rival) = two(&store).await;
        let seen = seen_by(&store, acme.name);
        assert_eq!(seen.cancel(rival.waits, at(20)).await.unwrap(), None);
        assert_eq!(seen.hasten(rival.waits, at(20)).await.unwrap(), None);
        assert_eq!(state_of(&store, rival.waits).await, OperationState::Queued);
        let by_id = DeadLetterFilter { id: Some(rival.dead), limit: 1, ..DeadLetterFilter::default() };
        assert_eq!(seen.discard(by_id).await.unwrap(), 0);
        let again = NewOperation { tenant: Arc::from("rival"), redrive_of: Some(rival.dead), ..operation(QueueKey::Guild(rival.guild)) };
        assert!(seen.redrive(vec![again]).await.unwrap().is_empty(), "the dead letter is not visible");
        // All dead letters that this tenant can see: its own.
        assert_eq!(seen.discard(DeadLetterFilter { limit: 100, ..DeadLetterFilter::default() }).await.unwrap(), 1);
        let left = store.letters(DeadLetterFilter { limit: 9, ..DeadLetterFilter::default() }).await.unwrap();
        assert_eq!(left.iter().map(|letter| letter.id).collect::<Vec<_>>(), [rival.dead]);
        let _ = seen.pause(PauseTarget::Queue(Queue::Guild(rival.guild)), true).await;
        assert_eq!(store.paused().await.unwrap(), (false, vec![]));
        for theirs in ["rival", ""] {
            let foreign = NewOperation { tenant: Arc::from(theirs), ..operation(QueueKey::Guild(rival.guild)) };
            assert!(seen.submit(vec![foreign]).await.is_err(), "{theirs:?}");
        }
        assert_eq!(store.load(Queue::Guild(rival.guild), 0, 9).await.unwrap().operations.len(), 2);
    }

    async fn a_tenant_does_with_its_own_what_it_could_before(engine) {
        let (store, _place) = fresh(engine).await;
        let (acme, rival) = two(&store).await;
        let seen = seen_by(&store, acme.name);
        seen.pause(PauseTarget::Queue(Queue::Guild(acme.guild)), true).await.unwrap();
        assert_eq!(seen.paused().await.unwrap(), (false, vec![Queue::Guild(acme.guild)]));
        assert_eq!(seen_by(&store, rival.name).paused().await.unwrap(), (false, vec![]), "the other tenant does not \
            see it");
        let later = NewOperation { tenant: Arc::from("acme"), eligible_at: at(900), ..operation(QueueKey::Guild(acme.guild)) };
        seen.submit(vec![later.clone()]).await.unwrap();
        assert_eq!(seen.hasten(later.id, at(20)).await.unwrap(), Some((OperationState::Queued, Queue::Guild(acme.guild))));
        assert_eq!(seen.cancel(later.id, at(20)).await.unwrap(), Some((OperationState::Cancelled, Queue::Guild(acme.guild))));
        let again = NewOperation { tenant: Arc::from("acme"), redrive_of: Some(acme.dead), ..operation(QueueKey::Guild(acme.guild)) };
        assert_eq!(seen.redrive(vec![again.clone()]).await.unwrap(), [again.id]);
        let letter = seen.letters(DeadLetterFilter { limit: 9, ..DeadLetterFilter::default() }).await.unwrap().remove(0);
        assert_eq!(letter.redriven_as, Some(again.id));
        // Each tenant has its own queue for a user.
        for (tenant, guild) in [(acme.name, acme.guild), (rival.name, rival.guild)] {
            let dm = NewOperation { tenant: Arc::from(tenant), guild: Some(guild), ..operation(QueueKey::user(5)) };
            let seen = seen_by(&store, tenant);
            seen.submit(vec![dm.clone()]).await.unwrap();
            let page = seen.load(queue_of(&dm), 0, 9).await.unwrap();
            assert_eq!(page.operations.iter().map(|stored| stored.operation.id).collect::<Vec<_>>(), [dm.id]);
        }
        let theirs = QueueKey::user(5).queue(rival.name);
        assert!(seen.load(theirs, 0, 9).await.unwrap().operations.is_empty());
    }

    async fn where_a_channel_belongs_is_kept_until_it_is_gone(engine) {
        let (store, _place) = fresh(engine).await;
        let (acme, _) = two(&store).await;
        let (channel, keyed, unknown) = (Location::Channel(7_002), Location::Channel(7_001), Location::Channel(1));
        let guilds = [Location::Guild(7_000), Location::Guild(9_999)];
        let own = Some(Owner { guild: Some(7_000), tenant: "acme".to_owned() });
        let asked = vec![channel.clone(), keyed, unknown, guilds[0].clone(), guilds[1].clone()];
        let unclaimed = Some(Owner { guild: Some(9_999), tenant: "default".to_owned() });
        assert_eq!(store.whose(asked).await.unwrap(), [own.clone(), own.clone(), None, own.clone(), unclaimed]);
        let private = Location::Channel(3);
        assert_eq!(store.learn(private.clone(), None).await.unwrap().guild, None);
        assert_eq!(store.whose(vec![private]).await.unwrap()[0].as_ref().unwrap().guild, None);
        // A webhook with the same id is another object.
        let hook = Location::Webhook(7_002, Some("token".to_owned()));
        assert_eq!(store.whose(vec![hook.clone()]).await.unwrap(), [None]);
        store.learn(hook.clone(), Some(8_000)).await.unwrap();
        assert_eq!(store.whose(vec![hook]).await.unwrap()[0].as_ref().unwrap().tenant, "rival");
        let delete = NewOperation { tenant: Arc::from("acme"), ..operation(QueueKey::Guild(acme.guild)) };
        store.submit(vec![delete.clone()]).await.unwrap();
        let fence = claim(&store, Queue::Guild(acme.guild)).await.fence;
        let gone = OperationUpdate { unbind: vec![(ManagedKind::Channel, 7_002)], ..change(&delete, fence, OperationState::Succeeded) };
        record(&store, gone).await;
        assert_eq!(store.whose(vec![channel]).await.unwrap(), [None]);
    }
}
