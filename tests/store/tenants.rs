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

use crate::setup::{
    at, claim, new_attempt, new_id, on_both, open_new_store, operation, operation_update, queue_of, record, state_of,
};

/// A tenant with a guild and operations: one pending, one done and one dead.
pub(crate) struct Tenant {
    pub(crate) name: &'static str,
    pub(crate) guild: u64,
    pub(crate) pending: OperationId,
    pub(crate) dead: OperationId,
}

/// The store, limited to a tenant.
pub(crate) fn tenant_store(store: &Store, tenant: &str) -> Arc<dyn OperationStore> {
    OperationStore::for_tenant(Arc::new(store.clone()), Arc::from(tenant))
}

impl Tenant {
    /// Creates a tenant with a guild and a key, and submits operations as that tenant.
    pub(crate) async fn create(store: &Store, name: &'static str, guild: u64) -> Self {
        let grant = Grant::read(["operations:write", format!("guild:{guild}").as_str()]).unwrap();
        let key = NewApiKey {
            id: KeyId::from_random(u128::from(guild)),
            tenant: Arc::from(name),
            name: format!("the key of {name}"),
            digest: [1; 32],
            grant,
            created_at: at(0),
            expires_at: None,
        };
        let operator = Caller::operator();
        let added = store.add_key(key.clone(), operator.audit_record(AuditAction::KeysCreate, at(0))).await.unwrap();
        assert_eq!(added, AddKeyResult::Done);
        let new = |n: &str| NewOperation {
            tenant: Arc::from(name),
            idempotency: Some(IdempotencyKey { scope: Arc::from(key.id.as_str()), key: n.to_owned() }),
            ..operation(QueueKey::Guild(guild))
        };
        let (pending, done, dead) = (new("waits"), new("done"), new("dead"));
        let refers = NewOperation { refers_to: vec![pending.id], ..new("refers") };
        let caller = Caller { tenant: Some(Arc::from(name)), ..Caller::operator() };
        let recording = tenant_store(store, name)
            .with_audit(caller.audit_record(AuditAction::OperationsSubmit, at(0)).in_guild(Some(guild)));
        let batch = vec![pending.clone(), done.clone(), dead.clone(), refers];
        let submitted = recording.submit(batch.clone()).await.unwrap();
        assert!(submitted.iter().all(|one| matches!(one, SubmitResult::Accepted { .. })), "{submitted:?}");
        let repeated =
            tenant_store(store, name).submit(vec![NewOperation { id: new_id(), ..batch[1].clone() }]).await.unwrap();
        assert!(matches!(repeated[0], SubmitResult::Existing { .. }), "{repeated:?}");
        let fence = claim(store, Queue::Guild(guild)).await.fence;
        let channel = Binding {
            kind: ManagedKind::Channel,
            key: "rules".to_owned(),
            discord_id: guild + 1,
            channel: None,
            origin: "created",
        };
        let update = OperationUpdate {
            bind: vec![channel],
            attempt: Some(new_attempt(1)),
            ..operation_update(&done, fence, OperationState::Succeeded)
        };
        record(store, update).await;
        let failure = Failure::new(FailureClass::Forbidden, "no");
        let attempt = Attempt { class: "forbidden".to_owned(), ..new_attempt(1) };
        record(
            store,
            OperationUpdate {
                error: Some(failure),
                attempt: Some(attempt),
                ..operation_update(&dead, fence, OperationState::Dead)
            },
        )
        .await;
        assert!(store.release(Queue::Guild(guild), fence).await.unwrap());
        assert_eq!(store.record_location(Location::Channel(guild + 2), Some(guild)).await.unwrap().tenant, name);
        Self { name, guild, pending: pending.id, dead: dead.id }
    }
}

/// Two tenants in one store.
pub(crate) async fn create_two_tenants(store: &Store) -> (Tenant, Tenant) {
    (Tenant::create(store, "acme", 7_000).await, Tenant::create(store, "rival", 8_000).await)
}

on_both! {
    async fn unfiltered_list_contains_only_its_tenant(engine) {
        let (store, _place) = open_new_store(engine).await;
        let (acme, rival) = create_two_tenants(&store).await;
        for (own, other) in [(&acme, &rival), (&rival, &acme)] {
            let seen = tenant_store(&store, own.name);
            let all = seen.list(OperationFilter { limit: 100, ..OperationFilter::default() }).await.unwrap();
            assert_eq!(all.len(), 4);
            assert!(all.iter().all(|shown| &*shown.stored.operation.tenant == own.name), "{all:?}");
            let theirs = OperationFilter { tenant: Some(Arc::from(other.name)), limit: 100, ..OperationFilter::default() };
            assert!(seen.list(theirs).await.unwrap().is_empty(), "not even with an explicit filter");
            assert!(seen.get(own.pending).await.unwrap().is_some() && seen.get(other.pending).await.unwrap().is_none());
            assert_eq!(seen.get(own.dead).await.unwrap().unwrap().attempts.len(), 1);
            assert_eq!(seen.load(Queue::Guild(own.guild), 0, 9).await.unwrap().operations.len(), 2);
            assert!(seen.load(Queue::Guild(other.guild), 0, 9).await.unwrap().operations.is_empty());
            let letters = seen.dead_letters(DeadLetterFilter { limit: 9, ..DeadLetterFilter::default() }).await.unwrap();
            assert_eq!(letters.iter().map(|letter| letter.id).collect::<Vec<_>>(), [own.dead]);
            let keys = KeyStore::for_tenant(Arc::new(store.clone()), Arc::from(own.name));
            let rows = keys.audit(AuditFilter { limit: 9, ..AuditFilter::default() }).await.unwrap();
            assert_eq!(rows.iter().map(|row| row.record.guild).collect::<Vec<_>>(), [Some(own.guild)]);
        }
        assert_eq!(store.list(OperationFilter { limit: 100, ..OperationFilter::default() }).await.unwrap().len(), 8, );
    }

    async fn data_of_another_tenant_cannot_be_changed_by_id(engine) {
        let (store, _place) = open_new_store(engine).await;
        let (acme, rival) = create_two_tenants(&store).await;
        let seen = tenant_store(&store, acme.name);
        assert_eq!(seen.cancel(rival.pending, at(20)).await.unwrap(), None);
        assert_eq!(seen.expedite(rival.pending, at(20)).await.unwrap(), None);
        assert_eq!(state_of(&store, rival.pending).await, OperationState::Queued);
        let by_id = DeadLetterFilter { id: Some(rival.dead), limit: 1, ..DeadLetterFilter::default() };
        assert_eq!(seen.discard(by_id).await.unwrap(), 0);
        let again = NewOperation { tenant: Arc::from("rival"), redrive_of: Some(rival.dead), ..operation(QueueKey::Guild(rival.guild)) };
        assert!(seen.redrive(vec![again]).await.unwrap().is_empty(), "the dead letter is not visible");
        // All dead letters that this tenant can see: its own.
        assert_eq!(seen.discard(DeadLetterFilter { limit: 100, ..DeadLetterFilter::default() }).await.unwrap(), 1);
        let left = store.dead_letters(DeadLetterFilter { limit: 9, ..DeadLetterFilter::default() }).await.unwrap();
        assert_eq!(left.iter().map(|letter| letter.id).collect::<Vec<_>>(), [rival.dead]);
        let _ = seen.pause(PauseTarget::Queue(Queue::Guild(rival.guild)), true).await;
        assert_eq!(store.paused().await.unwrap(), (false, vec![]));
        for theirs in ["rival", ""] {
            let foreign = NewOperation { tenant: Arc::from(theirs), ..operation(QueueKey::Guild(rival.guild)) };
            assert!(seen.submit(vec![foreign]).await.is_err(), "{theirs:?}");
        }
        assert_eq!(store.load(Queue::Guild(rival.guild), 0, 9).await.unwrap().operations.len(), 2);
    }

    async fn tenant_can_change_its_own_data(engine) {
        let (store, _place) = open_new_store(engine).await;
        let (acme, rival) = create_two_tenants(&store).await;
        let seen = tenant_store(&store, acme.name);
        seen.pause(PauseTarget::Queue(Queue::Guild(acme.guild)), true).await.unwrap();
        assert_eq!(seen.paused().await.unwrap(), (false, vec![Queue::Guild(acme.guild)]));
        assert_eq!(tenant_store(&store, rival.name).paused().await.unwrap(), (false, vec![]), "the other tenant does not \
            see it");
        let later = NewOperation { tenant: Arc::from("acme"), eligible_at: at(900), ..operation(QueueKey::Guild(acme.guild)) };
        seen.submit(vec![later.clone()]).await.unwrap();
        assert_eq!(seen.expedite(later.id, at(20)).await.unwrap(), Some((OperationState::Queued, Queue::Guild(acme.guild))));
        assert_eq!(seen.cancel(later.id, at(20)).await.unwrap(), Some((OperationState::Cancelled, Queue::Guild(acme.guild))));
        let again = NewOperation { tenant: Arc::from("acme"), redrive_of: Some(acme.dead), ..operation(QueueKey::Guild(acme.guild)) };
        assert_eq!(seen.redrive(vec![again.clone()]).await.unwrap(), [again.id]);
        let letter = seen.dead_letters(DeadLetterFilter { limit: 9, ..DeadLetterFilter::default() }).await.unwrap().remove(0);
        assert_eq!(letter.redriven_as, Some(again.id));
        // Each tenant has its own queue for a user.
        for (tenant, guild) in [(acme.name, acme.guild), (rival.name, rival.guild)] {
            let dm = NewOperation { tenant: Arc::from(tenant), guild: Some(guild), ..operation(QueueKey::user(5)) };
            let seen = tenant_store(&store, tenant);
            seen.submit(vec![dm.clone()]).await.unwrap();
            let page = seen.load(queue_of(&dm), 0, 9).await.unwrap();
            assert_eq!(page.operations.iter().map(|stored| stored.operation.id).collect::<Vec<_>>(), [dm.id]);
        }
        let theirs = QueueKey::user(5).queue(rival.name);
        assert!(seen.load(theirs, 0, 9).await.unwrap().operations.is_empty());
    }

    async fn owner_of_a_channel_is_stored_until_it_is_deleted(engine) {
        let (store, _place) = open_new_store(engine).await;
        let (acme, _) = create_two_tenants(&store).await;
        let (channel, keyed, unknown) = (Location::Channel(7_002), Location::Channel(7_001), Location::Channel(1));
        let guilds = [Location::Guild(7_000), Location::Guild(9_999)];
        let own = Some(Owner { guild: Some(7_000), tenant: "acme".to_owned() });
        let objects = vec![channel.clone(), keyed, unknown, guilds[0].clone(), guilds[1].clone()];
        let unclaimed = Some(Owner { guild: Some(9_999), tenant: "default".to_owned() });
        assert_eq!(store.owners(objects).await.unwrap(), [own.clone(), own.clone(), None, own.clone(), unclaimed]);
        let private = Location::Channel(3);
        assert_eq!(store.record_location(private.clone(), None).await.unwrap().guild, None);
        assert_eq!(store.owners(vec![private]).await.unwrap()[0].as_ref().unwrap().guild, None);
        // A webhook with the same id is another object.
        let hook = Location::Webhook(7_002, Some("token".to_owned()));
        assert_eq!(store.owners(vec![hook.clone()]).await.unwrap(), [None]);
        store.record_location(hook.clone(), Some(8_000)).await.unwrap();
        assert_eq!(store.owners(vec![hook]).await.unwrap()[0].as_ref().unwrap().tenant, "rival");
        let delete = NewOperation { tenant: Arc::from("acme"), ..operation(QueueKey::Guild(acme.guild)) };
        store.submit(vec![delete.clone()]).await.unwrap();
        let fence = claim(&store, Queue::Guild(acme.guild)).await.fence;
        let deleted = OperationUpdate { unbind: vec![(ManagedKind::Channel, 7_002)], ..operation_update(&delete, fence, OperationState::Succeeded) };
        record(&store, deleted).await;
        assert_eq!(store.owners(vec![channel]).await.unwrap(), [None]);
    }
}
