//! Every route × every kind of caller.

use guildhall_core::access::Scope;
use guildhall_testkit::program::HttpResponse;
use serde_json::Value;

use super::{
    fixture::on_both,
    routes::{Subject, expectations},
};

#[track_caller]
fn assert_problem(response: &HttpResponse, status: u16, name: &str, label: &str) {
    assert_eq!(response.status, status, "{label}: {}", response.body);
    assert_eq!(response.json()["type"], format!("urn:guildhall:problem:{name}"), "{label}");
}

on_both! {
    async fn every_route_rejects_missing_and_invalid_keys(fixture) {
        let revoked = fixture.create_key("default", &["admin"]);
        assert_eq!(fixture.request_as_admin("DELETE", &format!("/v1/keys/{}", revoked.id), &Value::Null).status, 204);
        let other_secret = {
            let (head, tail) = fixture.owner_key.text.split_at(fixture.owner_key.text.len() - 1);
            format!("{head}{}", if tail == "A" { "B" } else { "A" })
        };
        for (way, row) in expectations() {
            let ask = row.prepare_request(&fixture).await;
            for (who, key, problem) in [
                ("no key", "", "unauthorized"),
                ("a revoked key", &*revoked.text, "key-revoked"),
                ("another secret", &other_secret, "key-invalid"),
                ("a malformed key", "gh_x", "key-invalid"),
            ] {
                let answer = fixture.request_with(key, way.method, &ask.path, &ask.body);
                assert_problem(&answer, 401, problem, &format!("{way:?} by {who}"));
                assert!(answer.head.contains("www-authenticate"), "{way:?}");
            }
        }
    }

    async fn guilds_are_listed_for_their_tenant_only(fixture) {
        // The gateway has reported all of them.
        let all = fixture.poll_until("/v1/guilds", |answer| {
            let guilds = answer.json()["guilds"].as_array().cloned().unwrap_or_default();
            guilds.len() == 4 && guilds.iter().all(|guild| guild["name"].is_string())
        });
        let own: Vec<String> = [fixture.acme_guild, fixture.acme_second_guild].map(|id| id.to_string()).to_vec();
        let listed = |key: &str| -> Vec<String> {
            let answer = fixture.request_with(key, "GET", "/v1/guilds", &Value::Null);
            assert_eq!(answer.status, 200, "{}", answer.body);
            let guilds = answer.json()["guilds"].as_array().unwrap().clone();
            guilds.iter().map(|guild| guild["id"].as_str().unwrap().to_owned()).collect()
        };
        let tenant_of = |id: &str| {
            let all = all.json()["guilds"].clone();
            all.as_array().unwrap().iter().find(|guild| guild["id"] == *id).unwrap()["tenant"].clone()
        };
        assert!(own.iter().all(|id| tenant_of(id) == "acme"), "{}", all.body);
        let mut whole = listed(&fixture.create_key("acme", &["guilds:read"]).text);
        whole.sort();
        let mut expected = own.clone();
        expected.sort();
        assert_eq!(whole, expected);
        assert_eq!(listed(&fixture.owner_key.text), [own[0].clone()], "a key for one guild");
        let of_default = listed(&fixture.create_key("default", &["guilds:read"]).text);
        assert_eq!(of_default, [fixture.unowned_guild.to_string()]);
        assert_eq!(listed(&fixture.create_key("rival", &["guilds:read"]).text), [fixture.rival_guild.to_string()]);
    }

    async fn every_route_requires_its_scope(fixture) {
        let keys: Vec<_> = Scope::ALL.into_iter().map(|scope| (scope, fixture.create_key("default", &[scope.name()]))).collect();
        for (way, row) in expectations() {
            for (scope, key) in &keys {
                let ask = row.prepare_request(&fixture).await;
                let answer = fixture.request_with(&key.text, way.method, &ask.path, &ask.body);
                let what = format!("{way:?} with {}", scope.name());
                if !scope.covers(way.needs) {
                    assert_problem(&answer, 403, "forbidden", &what);
                    assert_eq!(answer.json()["needs"], way.needs.name(), "{what}");
                } else if row.extra_scope.is_some_and(|also| !scope.covers(also)) {
                    assert_problem(&answer, 403, "forbidden", &what);
                } else {
                    assert!(![401, 403, 405].contains(&answer.status), "{what}: {} {}", answer.status, answer.body);
                }
            }
        }
    }

    async fn guild_is_hidden_from_keys_without_access(fixture) {
        let strangers = fixture.keys_without_access();
        let own = fixture.acme_guild.to_string();
        for (way, row) in expectations() {
            for (who, stranger) in &strangers {
                let ask = row.prepare_request(&fixture).await;
                let before = fixture.audit_rows().len();
                let answer = fixture.request_with(&stranger.text, way.method, &ask.path, &ask.body);
                let what = format!("{way:?} by a key of {who}");
                match row.subject {
                    Subject::Object => assert_problem(&answer, 404, "not-found", &what),
                    Subject::List => {
                        assert_eq!(answer.status, 200, "{what}: {}", answer.body);
                        assert!(!answer.body.contains(&own), "{what}: {}", answer.body);
                        assert!(!answer.body.contains(&fixture.owner_key.id), "{what}: {}", answer.body);
                    }
                    Subject::Global => assert_problem(&answer, 403, "forbidden", &what),
                }
                // The rejection may be in the audit, with this key. Nothing else happened.
                let notes = fixture.audit_rows();
                let new = &notes[..notes.len() - before];
                assert!(new.iter().all(|note| note["action"] == "refused"), "{what}: {new:?}");
            }
            // The request succeeds with a key that has access.
            let (ask, holder) = (row.prepare_request(&fixture).await, row.allowed_key(way, &fixture));
            let answer = fixture.request_with(holder.text(), way.method, &ask.path, &ask.body);
            assert!((200..300).contains(&answer.status), "{way:?}: {} {}", answer.status, answer.body);
        }
    }
}
