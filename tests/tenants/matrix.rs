//! Every route × every kind of caller.

use guildhall_core::access::Scope;
use serde_json::Value;

use super::{
    support::Answer,
    town::on_both,
    ways::{About, rows},
};

#[track_caller]
fn is_problem(answer: &Answer, status: u16, name: &str, what: &str) {
    assert_eq!(answer.status, status, "{what}: {}", answer.body);
    assert_eq!(answer.json()["type"], format!("urn:guildhall:problem:{name}"), "{what}");
}

on_both! {
    async fn nobody_comes_in_without_a_key_that_is_good(town) {
        let revoked = town.key("default", &["admin"]);
        assert_eq!(town.admin("DELETE", &format!("/v1/keys/{}", revoked.id), &Value::Null).status, 204);
        let other_secret = {
            let (head, tail) = town.owner.text.split_at(town.owner.text.len() - 1);
            format!("{head}{}", if tail == "A" { "B" } else { "A" })
        };
        for (way, row) in rows() {
            let ask = row.ask(&town).await;
            for (who, key) in [("no key", ""), ("a revoked key", &*revoked.text), ("another secret", &other_secret), ("a malformed key", "gh_x")] {
                let answer = town.with(key, way.method, &ask.path, &ask.body);
                is_problem(&answer, 401, "unauthorized", &format!("{way:?} by {who}"));
                assert!(answer.head.contains("www-authenticate"), "{way:?}");
            }
        }
    }

    async fn a_key_is_good_for_its_scopes_and_nothing_else(town) {
        let keys: Vec<_> = Scope::ALL.into_iter().map(|scope| (scope, town.key("default", &[scope.name()]))).collect();
        for (way, row) in rows() {
            for (scope, key) in &keys {
                let ask = row.ask(&town).await;
                let answer = town.with(&key.text, way.method, &ask.path, &ask.body);
                let what = format!("{way:?} with {}", scope.name());
                if !scope.covers(way.needs) {
                    is_problem(&answer, 403, "forbidden", &what);
                    assert_eq!(answer.json()["needs"], way.needs.name(), "{what}");
                } else if row.also.is_some_and(|also| !scope.covers(also)) {
                    is_problem(&answer, 403, "forbidden", &what);
                } else {
                    assert!(![401, 403, 405].contains(&answer.status), "{what}: {} {}", answer.status, answer.body);
                }
            }
        }
    }

    async fn who_has_no_business_with_a_guild_finds_nothing_of_it(town) {
        let strangers = town.strangers();
        let own = town.acme.to_string();
        for (way, row) in rows() {
            for (who, stranger) in &strangers {
                let ask = row.ask(&town).await;
                let before = town.notes().len();
                let answer = town.with(&stranger.text, way.method, &ask.path, &ask.body);
                let what = format!("{way:?} by a key of {who}");
                match row.about {
                    About::Something => is_problem(&answer, 404, "not-found", &what),
                    About::Several => {
                        assert_eq!(answer.status, 200, "{what}: {}", answer.body);
                        assert!(!answer.body.contains(&own), "{what}: {}", answer.body);
                        assert!(!answer.body.contains(&town.owner.id), "{what}: {}", answer.body);
                    }
                    About::Everything => is_problem(&answer, 403, "forbidden", &what),
                }
                // The rejection may be in the audit, with this key. Nothing else happened.
                let notes = town.notes();
                let new = &notes[..notes.len() - before];
                assert!(new.iter().all(|note| note["action"] == "refused"), "{what}: {new:?}");
            }
            // The request succeeds with a key that has access.
            let (ask, holder) = (row.ask(&town).await, row.key(way, &town));
            let answer = town.with(holder.text(), way.method, &ask.path, &ask.body);
            assert!((200..300).contains(&answer.status), "{way:?}: {} {}", answer.status, answer.body);
        }
    }
}
