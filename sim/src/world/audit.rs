//! The audit log of a guild.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{World, intents};
use crate::dispatch::Dispatch;
use crate::id::Snowflake;
use crate::time::At;

pub(crate) const CHANNEL_CREATE: u16 = 10;
pub(crate) const CHANNEL_UPDATE: u16 = 11;
pub(crate) const CHANNEL_DELETE: u16 = 12;
pub(crate) const OVERWRITE_CREATE: u16 = 13;
pub(crate) const OVERWRITE_UPDATE: u16 = 14;
pub(crate) const OVERWRITE_DELETE: u16 = 15;
pub(crate) const MEMBER_KICK: u16 = 20;
pub(crate) const MEMBER_UPDATE: u16 = 24;
pub(crate) const MEMBER_ROLE_UPDATE: u16 = 25;
pub(crate) const ROLE_CREATE: u16 = 30;
pub(crate) const ROLE_UPDATE: u16 = 31;
pub(crate) const ROLE_DELETE: u16 = 32;
pub(crate) const MESSAGE_DELETE: u16 = 72;
pub(crate) const MESSAGE_BULK_DELETE: u16 = 73;
pub(crate) const MESSAGE_PIN: u16 = 74;
pub(crate) const MESSAGE_UNPIN: u16 = 75;

/// How long Discord stores entries.
pub(crate) const RETENTION: Duration = Duration::from_secs(45 * 24 * 60 * 60);
/// Maximum number of entries in a guild; the oldest are removed first.
const MAX_ENTRIES: usize = 10_000;

/// One entry; its JSON is Discord's audit log entry object.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) id: Snowflake,
    pub(crate) action_type: u16,
    pub(crate) user_id: Snowflake,
    pub(crate) target_id: Option<Snowflake>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) changes: Vec<Change>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) options: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

/// One field that an action changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Change {
    pub(crate) key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) old_value: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) new_value: Option<Value>,
}

/// An entry before it has its id.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) action: u16,
    pub(crate) by: Snowflake,
    pub(crate) target: Option<Snowflake>,
    pub(crate) changes: Vec<Change>,
    pub(crate) options: Option<Value>,
    pub(crate) reason: Option<String>,
}

impl Draft {
    pub(crate) fn new(action: u16, by: Snowflake, target: Snowflake, reason: Option<String>) -> Self {
        Self { action, by, target: Some(target), changes: Vec::new(), options: None, reason }
    }

    pub(crate) fn changes(mut self, changes: Vec<Change>) -> Self {
        self.changes = changes;
        self
    }

    pub(crate) fn options(mut self, options: Value) -> Self {
        self.options = Some(options);
        self
    }
}

/// The changes between two states of an object, for the fields in `keys`; `None` stands for before its creation or
/// after its deletion. An absent field counts as null, and null is omitted.
pub(crate) fn changes<T: Serialize>(old: Option<&T>, new: Option<&T>, keys: &[&str]) -> Vec<Change> {
    let fields = |object: Option<&T>| {
        object.map_or(Value::Null, |object| {
            serde_json::to_value(object).expect("invariant: the simulator's own objects are plain JSON")
        })
    };
    let (mut old, mut new) = (fields(old), fields(new));
    let mut take = |key: &str| {
        let value = |object: &mut Value| object.get_mut(key).map(Value::take).filter(|value| !value.is_null());
        (value(&mut old), value(&mut new))
    };
    keys.iter()
        .filter_map(|key| {
            let (old_value, new_value) = take(key);
            (old_value != new_value).then(|| Change { key: (*key).to_owned(), old_value, new_value })
        })
        .collect()
}

/// The log of a guild, oldest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct AuditLog {
    entries: VecDeque<Entry>,
}

/// Filter and page of a query.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuditQuery {
    pub(crate) user: Option<Snowflake>,
    pub(crate) action: Option<u16>,
    pub(crate) before: Option<Snowflake>,
    pub(crate) after: Option<Snowflake>,
    pub(crate) limit: usize,
}

impl AuditLog {
    fn push(&mut self, entry: Entry) {
        if self.entries.len() == MAX_ENTRIES {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }

    /// Newest first; with `after`, oldest first from there.
    pub(crate) fn find(&self, query: &AuditQuery, now: At) -> Vec<&Entry> {
        let matches = |entry: &&Entry| {
            query.user.is_none_or(|user| entry.user_id == user)
                && query.action.is_none_or(|action| entry.action_type == action)
                && query.before.is_none_or(|before| entry.id < before)
                && now.since(entry.id.created_at()) < RETENTION
        };
        match query.after {
            Some(after) => {
                let start = self.entries.partition_point(|entry| entry.id <= after);
                self.entries.range(start..).filter(matches).take(query.limit).collect()
            }
            None => self.entries.iter().rev().filter(matches).take(query.limit).collect(),
        }
    }
}

impl World {
    /// Writes an entry, and queues its event.
    pub(crate) fn audit(&mut self, guild: Snowflake, draft: Draft, now: At) {
        #[derive(Serialize)]
        struct Event<'a> {
            guild_id: Snowflake,
            #[serde(flatten)]
            entry: &'a Entry,
        }

        let Some(guild_state) = self.guilds.get_mut(&guild) else { return };
        let Draft { action, by, target, changes, options, reason } = draft;
        let id = self.mint.generate(now);
        let entry = Entry { id, action_type: action, user_id: by, target_id: target, changes, options, reason };
        let event = Event { guild_id: guild, entry: &entry };
        self.dispatches.push(Dispatch::guild("GUILD_AUDIT_LOG_ENTRY_CREATE", guild, intents::GUILD_MODERATION, &event));
        guild_state.audit.push(entry);
    }
}

/// The `options` of entries about an overwrite: the role or member it applies to.
pub(crate) fn overwrite_options(id: Snowflake, role_name: Option<&str>) -> Value {
    match role_name {
        Some(name) => json!({ "id": id, "type": "0", "role_name": name }),
        None => json!({ "id": id, "type": "1" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(count: u64) -> AuditLog {
        let mut log = AuditLog::default();
        for number in 0..count {
            log.push(Entry {
                id: Snowflake::new(number),
                action_type: if number % 2 == 0 { ROLE_CREATE } else { CHANNEL_CREATE },
                user_id: Snowflake::new(number % 3),
                target_id: None,
                changes: Vec::new(),
                options: None,
                reason: None,
            });
        }
        log
    }

    fn ids(found: &[&Entry]) -> Vec<u64> {
        found.iter().map(|entry| entry.id.get()).collect()
    }

    const NOW: At = At::from_micros(1_420_070_400_000_000);

    #[test]
    fn newest_come_first_except_with_after() {
        let log = log(10);
        let query = AuditQuery { limit: 3, ..AuditQuery::default() };
        assert_eq!(ids(&log.find(&query, NOW)), [9, 8, 7]);
        let query = AuditQuery { after: Some(Snowflake::new(4)), limit: 3, ..AuditQuery::default() };
        assert_eq!(ids(&log.find(&query, NOW)), [5, 6, 7]);
        let query = AuditQuery { before: Some(Snowflake::new(4)), limit: 2, ..AuditQuery::default() };
        assert_eq!(ids(&log.find(&query, NOW)), [3, 2]);
    }

    #[test]
    fn filters_are_combined() {
        let query = AuditQuery {
            user: Some(Snowflake::new(0)),
            action: Some(ROLE_CREATE),
            limit: 100,
            ..AuditQuery::default()
        };
        assert_eq!(ids(&log(13).find(&query, NOW)), [12, 6, 0]);
    }

    #[test]
    fn entry_expires_after_45_days() {
        let query = AuditQuery { limit: 100, ..AuditQuery::default() };
        assert!(log(10).find(&query, NOW.after(RETENTION)).is_empty());
    }

    #[test]
    fn full_log_drops_its_oldest_entry() {
        let log = log(MAX_ENTRIES as u64 + 5);
        assert_eq!(log.entries.len(), MAX_ENTRIES);
        assert_eq!(log.entries.front().unwrap().id.get(), 5);
    }

    #[test]
    fn changes_list_the_fields_that_differ() {
        let old = json!({ "name": "red", "color": 1, "topic": null });
        let new = json!({ "name": "blue", "color": 1, "topic": null });
        let found = changes(Some(&old), Some(&new), &["name", "color", "topic"]);
        assert_eq!(
            found,
            [Change { key: "name".into(), old_value: Some("red".into()), new_value: Some("blue".into()) }]
        );
        assert_eq!(changes(None, Some(&new), &["name", "color", "topic"]).len(), 2);
    }
}
