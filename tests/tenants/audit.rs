//! Every change leaves one audit row, visible to its tenant.

use serde_json::Value;

use super::{
    town::on_both,
    ways::{UNNOTED, rows},
};

on_both! {
    async fn every_way_that_changes_something_leaves_one_note_and_others_none(town) {
        for (number, (way, row)) in rows().into_iter().enumerate() {
            let changes = way.method != "GET" && !UNNOTED.contains(&way.path);
            assert_eq!(row.leaves.is_some(), changes, "{way:?}: a route that changes something leaves an audit row");
            let (ask, holder) = (row.ask(&town).await, row.key(way, &town));
            let (before, name) = (town.notes().len(), format!("request-{number}"));
            let answer = town.with_name(&name, holder.text(), way.method, &ask.path, &ask.body);
            assert!((200..300).contains(&answer.status), "{way:?}: {} {}", answer.status, answer.body);
            let notes = town.notes();
            let new: Vec<&Value> = notes[..notes.len() - before].iter().collect();
            let told = |note: &&Value| ["action", "key", "request_id"].map(|field| note[field].as_str().unwrap().to_owned());
            let told: Vec<_> = new.iter().map(told).collect();
            let expected: Vec<_> = row.leaves.iter().map(|action| [*action, holder.id(), &name].map(str::to_owned)).collect();
            assert_eq!(told, expected, "{way:?}: {new:?}");
            // A repeated request changes nothing, and leaves no second row.
            if matches!(way.method, "DELETE") && !way.path.starts_with("/state") || way.path.ends_with("/cancel") {
                let before = town.notes().len();
                town.with(holder.text(), way.method, &ask.path, &ask.body);
                assert_eq!(town.notes().len(), before, "{way:?}");
            }
        }
        let tenant = town.with(&town.owner.text, "GET", "/v1/audit?limit=500", &Value::Null).json();
        let seen = tenant["audit"].as_array().unwrap();
        assert!(!seen.is_empty() && seen.iter().all(|note| note["tenant"] == "acme"), "{seen:?}");
    }
}
