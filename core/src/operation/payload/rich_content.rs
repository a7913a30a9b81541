//! Parts of messages that are Discord's own objects: checked against its limits, otherwise left as they are.

use serde_json::Value;

use super::{
    field_reader::{FieldReader, object},
    format::{BOOLEAN, ID, Plain, choice, list},
    record::{Record, names, optional, record},
    schema::{PassedPart, ValueType},
    validation::FieldContext,
    value, write,
};

/// Maximum number of embeds of a message.
const MAX_EMBEDS: usize = 10;
/// Maximum text length of all embeds of a message together.
const MAX_EMBED_CHARS: usize = 6000;

/// Parts of an embed with limits.
const EMBED: PassedPart = PassedPart::Object(&[
    ("title", PassedPart::Text(256)),
    ("description", PassedPart::Text(4096)),
    ("footer", PassedPart::Object(&[("text", PassedPart::Text(2048))])),
    ("author", PassedPart::Object(&[("name", PassedPart::Text(256))])),
    (
        "fields",
        PassedPart::List(
            25,
            &PassedPart::Object(&[("name", PassedPart::Text(256)), ("value", PassedPart::Text(1024))]),
        ),
    ),
]);

/// Embeds.
pub(super) const EMBEDS: Plain<Vec<Value>> = Plain {
    read: embeds,
    write: |out, embeds| write::list(out, embeds, write::value),
    describe: || {
        let items = ValueType::Passed { name: "Embed", description: "An embed as defined by Discord.", part: &EMBED };
        ValueType::List { min: 0, max: MAX_EMBEDS, items: Box::new(items) }
    },
};

/// Allowed mentions.
pub(super) const ALLOWED_MENTIONS: Plain<Value> = Plain {
    read: |value, at| object(value, at, AllowedMentions::read).map(|_| value.clone()),
    write: write::value,
    describe: || ValueType::Object(AllowedMentions::describe()),
};

record! {
    /// Who may be mentioned.
    pub(super) struct AllowedMentions {
        /// All mentions of these types.
        parse: Option<Vec<MentionType>> = optional("parse", list(0, 3, choice())),
        /// These users; must be empty if `parse` contains `users`.
        users: Option<Vec<u64>> = optional("users", list(0, 100, ID)),
        /// These roles; must be empty if `parse` contains `roles`.
        roles: Option<Vec<u64>> = optional("roles", list(0, 100, ID)),
        /// The author of the message that this one replies to.
        replied_user: Option<bool> = optional("replied_user", BOOLEAN),
    }
    check = reject_ids_of_allowed_types;
}

names! {
    /// A type of mentions.
    pub enum MentionType {
        Roles = "roles",
        Users = "users",
        Everyone = "everyone",
    }
}

fn reject_ids_of_allowed_types(form: &mut FieldReader<'_, '_>) {
    let items = |name| form.valid(name).and_then(Value::as_array);
    let allows_all = |group| items("parse").is_some_and(|parse| parse.iter().any(|given| given == group));
    let conflicts = ["users", "roles"].map(|group| {
        let is_conflict = items(group).is_some_and(|named| !named.is_empty()) && allows_all(group);
        is_conflict.then_some(group)
    });
    for group in conflicts.into_iter().flatten() {
        form.invalid(group, format!("must be empty when `parse` contains `{group}`: list ids or allow all, not both"));
    }
}

fn embeds(value: &Value, at: &mut FieldContext<'_>) -> Option<Vec<Value>> {
    let mut total = 0;
    let embeds = value::list(0, MAX_EMBEDS, |value, at| {
        total += text_length(&EMBED, value, at)?;
        Some(value.clone())
    })(value, at)?;
    if total > MAX_EMBED_CHARS {
        return at
            .invalid(format!("must contain at most {MAX_EMBED_CHARS} characters of text in total; found {total}"));
    }
    Some(embeds)
}

/// Checks a part, and returns the length of its text. Errors within an object do not make the object invalid.
fn text_length(part: &PassedPart, value: &Value, at: &mut FieldContext<'_>) -> Option<usize> {
    match part {
        PassedPart::Text(max) => value::text(0, *max)(value, at).map(|text| text.chars().count()),
        PassedPart::List(max, items) => {
            let lengths = value::list(0, *max, |item, at| text_length(items, item, at))(value, at)?;
            Some(lengths.iter().sum())
        }
        PassedPart::Object(parts) => {
            let object = value.as_object().or_else(|| at.invalid("must be an object"))?;
            let given = parts.iter().filter_map(|(name, part)| Some((name, part, object.get(*name)?)));
            let lengths = given
                .filter(|(_, _, value)| !value.is_null())
                .map(|(name, part, value)| text_length(part, value, &mut at.field(name)).unwrap_or(0));
            Some(lengths.sum())
        }
    }
}
