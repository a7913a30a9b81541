//! Every change leaves one audit row, visible to its tenant.

use serde_json::Value;

use super::{
    fixture::on_both,
    routes::{UNAUDITED, expectations},
};

on_both! {
    async fn every_change_leaves_one_audit_row_and_reads_leave_none(fixture) {
        for (number, (way, row)) in expectations().into_iter().enumerate() {
            let changes = way.method != "GET" && !UNAUDITED.contains(&way.path);
            assert_eq!(row.audit_action.is_some(), changes, "{way:?}: a route that changes something leaves an audit row");
            let (ask, holder) = (row.prepare_request(&fixture).await, row.allowed_key(way, &fixture));
            let (before, name) = (fixture.audit_rows().len(), format!("request-{number}"));
            let answer = fixture.request_with_id(&name, holder.text(), way.method, &ask.path, &ask.body);
            assert!((200..300).contains(&answer.status), "{way:?}: {} {}", answer.status, answer.body);
            let notes = fixture.audit_rows();
            let new: Vec<&Value> = notes[..notes.len() - before].iter().collect();
            let summary = |note: &&Value| ["action", "key", "request_id"].map(|field| note[field].as_str().unwrap().to_owned());
            let recorded: Vec<_> = new.iter().map(summary).collect();
            let expected: Vec<_> = row.audit_action.iter().map(|action| [*action, holder.id(), &name].map(str::to_owned)).collect();
            assert_eq!(recorded, expected, "{way:?}: {new:?}");
            // A repeated request changes nothing, and leaves no second row.
            if matches!(way.method, "DELETE") && !way.path.starts_with("/state") || way.path.ends_with("/cancel") {
                let before = fixture.audit_rows().len();
                fixture.request_with(holder.text(), way.method, &ask.path, &ask.body);
                assert_eq!(fixture.audit_rows().len(), before, "{way:?}");
            }
        }
        let tenant = fixture.request_with(&fixture.owner_key.text, "GET", "/v1/audit?limit=500", &Value::Null).json();
        let seen = tenant["audit"].as_array().unwrap();
        assert!(!seen.is_empty() && seen.iter().all(|note| note["tenant"] == "acme"), "{seen:?}");
    }
}
