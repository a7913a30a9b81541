//! The contract of keys and audit records.

use std::sync::Arc;

use guildhall_actors::access::{AuditAction, AuditFilter, AuditRecord, Caller};
use guildhall_actors::ports::{
    AddKeyResult, DeadLetterFilter, KeyFilter, KeyStore as _, NewApiKey, NewOperation, OperationStore, PauseTarget,
    RevokeResult, RotateResult, SubmitError,
};
use guildhall_core::{
    access::{Grant, KeyId},
    operation::{Queue, QueueKey},
};

use crate::setup::{
    GUILD, accepted, at, guild_operation, new_id, on_both, open_new_store, operation, operation_with_key, submit,
    submit_error,
};

pub(crate) fn key(n: u128, tenant: &str, scopes: &[&str]) -> NewApiKey {
    NewApiKey {
        id: KeyId::from_random(n),
        tenant: Arc::from(tenant),
        name: format!("key {n}"),
        digest: [u8::try_from(n).unwrap(); 32],
        grant: Grant::read(scopes.iter().copied()).unwrap(),
        created_at: at(u64::try_from(n).unwrap()),
        expires_at: None,
    }
}

pub(crate) fn audit_record(action: AuditAction) -> AuditRecord {
    Caller::operator().audit_record(action, at(9)).with_target(&"it")
}

async fn actions(store: &guildhall::store::Store) -> Vec<AuditAction> {
    let filter = AuditFilter { limit: 100, ..AuditFilter::default() };
    let mut rows = store.audit(filter).await.unwrap();
    rows.reverse();
    rows.into_iter().map(|row| row.record.action).collect()
}

fn operation_of(tenant: &str) -> NewOperation {
    NewOperation { tenant: Arc::from(tenant), ..guild_operation() }
}

on_both! {
    async fn key_is_stored_and_listed_newest_first(engine) {
        let (store, _place) = open_new_store(engine).await;
        let keys = [key(1, "default", &["operations:write"]), key(2, "acme", &["operations:read", "guild:7", "guild:8"])];
        for new in &keys {
            assert_eq!(store.add_key(new.clone(), audit_record(AuditAction::KeysCreate)).await.unwrap(), AddKeyResult::Done);
        }
        let found = store.key(keys[1].id).await.unwrap().unwrap();
        assert_eq!((&found.key, found.revoked_at, found.rotated_to), (&keys[1], None, None));
        assert_eq!(store.key(KeyId::from_random(3)).await.unwrap(), None);
        let listed = async |filter: KeyFilter| {
            let listed = store.keys(filter).await.unwrap();
            listed.into_iter().map(|key| key.key.id).collect::<Vec<_>>()
        };
        let all = KeyFilter { limit: 9, ..KeyFilter::default() };
        assert_eq!(listed(all.clone()).await, [keys[1].id, keys[0].id]);
        let before = Some((keys[1].created_at, keys[1].id));
        assert_eq!(listed(KeyFilter { before, ..all.clone() }).await, [keys[0].id]);
        assert_eq!(listed(KeyFilter { tenant: Some(Arc::from("acme")), ..all }).await, [keys[1].id]);
    }

    async fn key_is_revoked_once_and_rotated_once(engine) {
        let (store, _place) = open_new_store(engine).await;
        let (old, new, other) = (key(1, "acme", &["audit", "guild:7"]), key(2, "acme", &["audit", "guild:7"]), key(3, "acme", &["audit"]));
        store.add_key(old.clone(), audit_record(AuditAction::KeysCreate)).await.unwrap();
        let rotated = store.rotate_key(old.id, new.clone(), at(50), audit_record(AuditAction::KeysRotate)).await.unwrap();
        assert_eq!(rotated, RotateResult::Done);
        let found = store.key(old.id).await.unwrap().unwrap();
        assert_eq!((found.revoked_at, found.rotated_to), (Some(at(50)), Some(new.id)));
        assert!(found.is_valid(at(49)) && !found.is_valid(at(50)));
        let again = store.rotate_key(old.id, other.clone(), at(60), audit_record(AuditAction::KeysRotate)).await.unwrap();
        assert_eq!(again, RotateResult::NotValid);
        assert_eq!(store.rotate_key(other.id, new.clone(), at(60), audit_record(AuditAction::KeysRotate)).await.unwrap(), RotateResult::Unknown);
        assert_eq!(store.revoke_key(old.id, audit_record(AuditAction::KeysRevoke)).await.unwrap(), RevokeResult::Revoked, "earlier \
            than its end");
        assert_eq!(store.revoke_key(old.id, audit_record(AuditAction::KeysRevoke)).await.unwrap(), RevokeResult::AlreadyRevoked);
        assert_eq!(store.revoke_key(other.id, audit_record(AuditAction::KeysRevoke)).await.unwrap(), RevokeResult::Unknown);
        assert_eq!(actions(&store).await, [AuditAction::KeysCreate, AuditAction::KeysRotate, AuditAction::KeysRevoke]);
    }

    async fn guild_belongs_to_the_tenant_of_its_first_key(engine) {
        let (store, _place) = open_new_store(engine).await;
        let guild = format!("guild:{GUILD}");
        assert_eq!(store.tenant(GUILD).await.unwrap(), None);
        let foreign = operation_of("acme");
        assert!(matches!(submit_error(&store, vec![foreign]).await, SubmitError::ForeignGuild { index: 0 }));
        let scopes = ["operations:write", guild.as_str()];
        assert_eq!(store.add_key(key(1, "acme", &scopes), audit_record(AuditAction::KeysCreate)).await.unwrap(), AddKeyResult::Done);
        assert_eq!(store.tenant(GUILD).await.unwrap().as_deref(), Some("acme"));
        let taken = store.add_key(key(2, "other", &scopes), audit_record(AuditAction::KeysCreate)).await.unwrap();
        assert_eq!(taken, AddKeyResult::GuildTaken(GUILD));
        assert_eq!(store.key(KeyId::from_random(2)).await.unwrap(), None);
        assert_eq!(submit(&store, &operation_of("acme")).await, accepted(1));
        assert!(matches!(submit_error(&store, vec![operation_of("other")]).await, SubmitError::ForeignGuild { index: 0 }));
        // An operation of the operator belongs to the tenant of its guild.
        let by_operator = operation_of("");
        submit(&store, &by_operator).await;
        assert_eq!(&*store.get(by_operator.id).await.unwrap().unwrap().stored.operation.tenant, "acme");
        let elsewhere = NewOperation { tenant: Arc::from(""), ..operation(QueueKey::user(4)) };
        submit(&store, &elsewhere).await;
        assert_eq!(&*store.get(elsewhere.id).await.unwrap().unwrap().stored.operation.tenant, "default");
    }

    async fn only_a_change_leaves_an_audit_record(engine) {
        let (store, _place) = open_new_store(engine).await;
        let audited = |action| Arc::clone(&(Arc::new(store.clone()) as Arc<dyn OperationStore>)).with_audit(audit_record(action));
        let (one, two) = (operation_with_key("a"), guild_operation());
        let submitting = audited(AuditAction::OperationsSubmit);
        submitting.submit(vec![one.clone(), two.clone()]).await.unwrap();
        submitting.submit(vec![guild_operation()]).await.unwrap();
        assert_eq!(actions(&store).await, [AuditAction::OperationsSubmit], "one record per context");
        audited(AuditAction::OperationsSubmit).submit(vec![one.clone()]).await.unwrap();
        audited(AuditAction::OperationsCancel).cancel(new_id(), at(1)).await.unwrap();
        audited(AuditAction::DeadLettersDiscard).discard(DeadLetterFilter { limit: 5, ..DeadLetterFilter::default() }).await.unwrap();
        assert_eq!(actions(&store).await, [AuditAction::OperationsSubmit], "nothing was changed");
        audited(AuditAction::OperationsCancel).cancel(two.id, at(1)).await.unwrap();
        audited(AuditAction::GuildsPause).pause(PauseTarget::Queue(Queue::Guild(GUILD)), true).await.unwrap();
        audited(AuditAction::StatePut).set_state("a", Some("1".to_owned()), None).await.unwrap();
        let expected = [AuditAction::OperationsSubmit, AuditAction::OperationsCancel, AuditAction::GuildsPause, AuditAction::StatePut];
        assert_eq!(actions(&store).await, expected);
        assert!(audited(AuditAction::OperationsCancel).submit(vec![NewOperation { refers_to: vec![new_id()], ..guild_operation() }]).await.is_err());
        assert_eq!(actions(&store).await, expected, "a refused submission leaves no record");
    }

    async fn guild_action_is_recorded_for_the_tenant_of_the_guild(engine) {
        let (store, _place) = open_new_store(engine).await;
        let scopes = ["operations:write", &format!("guild:{GUILD}")];
        store.add_key(key(1, "acme", &scopes), audit_record(AuditAction::KeysCreate).with_tenant(&Arc::from("acme"))).await.unwrap();
        store.add_audit_record(audit_record(AuditAction::GuildsPause).in_guild(Some(GUILD))).await.unwrap();
        store.add_audit_record(audit_record(AuditAction::GuildsPause).in_guild(Some(GUILD + 1))).await.unwrap();
        store.add_audit_record(audit_record(AuditAction::FleetPause)).await.unwrap();
        let audit_of = async |tenant: &str| {
            let filter = AuditFilter { tenant: Some(Arc::from(tenant)), limit: 9, ..AuditFilter::default() };
            let rows = store.audit(filter).await.unwrap();
            rows.into_iter().map(|row| (row.record.action, row.record.guild)).collect::<Vec<_>>()
        };
        assert_eq!(audit_of("acme").await, [(AuditAction::GuildsPause, Some(GUILD)), (AuditAction::KeysCreate, None)]);
        assert_eq!(audit_of("default").await, [(AuditAction::FleetPause, None), (AuditAction::GuildsPause, Some(GUILD + 1))]);
    }

    async fn audit_records_are_filtered_and_expire(engine) {
        let (store, _place) = open_new_store(engine).await;
        for n in 0..4_u64 {
            let mut note = audit_record(if n % 2 == 0 { AuditAction::Refused } else { AuditAction::KeysCreate }).in_guild(Some(n / 2 + 1)).with_detail("why");
            (note.key, note.at) = (Arc::from(format!("k{n}")), at(n * 10));
            store.add_audit_record(note).await.unwrap();
        }
        let keys_in_audit = async |filter: AuditFilter| {
            let rows = store.audit(AuditFilter { limit: 9, ..filter }).await.unwrap();
            rows.into_iter().map(|row| row.record.key.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(keys_in_audit(AuditFilter::default()).await, ["k3", "k2", "k1", "k0"]);
        assert_eq!(keys_in_audit(AuditFilter { key: Some("k1".to_owned()), ..AuditFilter::default() }).await, ["k1"]);
        assert_eq!(keys_in_audit(AuditFilter { action: Some(AuditAction::Refused), ..AuditFilter::default() }).await, ["k2", "k0"]);
        assert_eq!(keys_in_audit(AuditFilter { guilds: Some(vec![2, 7]), ..AuditFilter::default() }).await, ["k3", "k2"]);
        assert_eq!(keys_in_audit(AuditFilter { guilds: Some(vec![]), ..AuditFilter::default() }).await, [""; 0]);
        assert_eq!(keys_in_audit(AuditFilter { tenant: Some(Arc::from("acme")), ..AuditFilter::default() }).await, [""; 0]);
        let rows = store.audit(AuditFilter { limit: 9, ..AuditFilter::default() }).await.unwrap();
        assert_eq!((rows[0].record.target.as_str(), rows[0].record.detail.as_str()), ("it", "why"));
        assert_eq!(keys_in_audit(AuditFilter { before: Some(rows[1].position), ..AuditFilter::default() }).await, ["k1", "k0"]);
        let (expired, valid) = (NewApiKey { expires_at: Some(at(5)), ..key(1, "default", &["audit"]) }, key(2, "default", &["audit"]));
        for key in [&expired, &valid] {
            store.add_key(key.clone(), audit_record(AuditAction::KeysCreate)).await.unwrap();
        }
        while store.sweep_access(at(20)).await.unwrap() > 0 {}
        assert_eq!(keys_in_audit(AuditFilter { action: Some(AuditAction::Refused), ..AuditFilter::default() }).await, [""; 0]);
        assert_eq!(keys_in_audit(AuditFilter { key: Some("k3".to_owned()), ..AuditFilter::default() }).await, ["k3"]);
        assert!(store.key(expired.id).await.unwrap().is_none() && store.key(valid.id).await.unwrap().is_some());
    }
}
