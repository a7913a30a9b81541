//! Parts of messages that are Discord's own objects: checked against its limits, otherwise left as they are.

use serde_json::Value;

use super::{
    field_reader::object,
    validation::FieldContext,
    value::{boolean, choice, id, list, text},
};

/// Maximum text length of all embeds of a message together.
const MAX_EMBED_CHARS: usize = 6000;

/// Reads embeds.
pub(super) fn embeds(value: &Value, at: &mut FieldContext<'_>) -> Option<Vec<Value>> {
    let mut total = 0;
    let embeds = list(0, 10, |value, at| {
        let embed = any_object(value, at)?;
        total += embed_text(&embed, at);
        Some(embed)
    })(value, at)?;
    if total > MAX_EMBED_CHARS {
        return at
            .invalid(format!("must contain at most {MAX_EMBED_CHARS} characters of text in total; found {total}"));
    }
    Some(embeds)
}

/// Reports texts that are too long, and returns the text length of an embed.
fn embed_text(embed: &Value, at: &mut FieldContext<'_>) -> usize {
    let mut total = 0;
    for (path, max_length) in
        [(&["title"][..], 256), (&["description"], 4096), (&["footer", "text"], 2048), (&["author", "name"], 256)]
    {
        total += part_length(embed, path, max_length, at);
    }
    if let Some(given) = embed.get("fields").filter(|given| !given.is_null()) {
        let read = list(0, 25, |field, at| {
            let field = any_object(field, at)?;
            Some(part_length(&field, &["name"], 256, at) + part_length(&field, &["value"], 1024, at))
        });
        total += read(given, &mut at.field("fields")).map_or(0, |lengths| lengths.iter().sum());
    }
    total
}

/// Length of a part; 0 if it is missing.
fn part_length(of: &Value, path: &[&str], max_length: usize, at: &mut FieldContext<'_>) -> usize {
    let [name, rest @ ..] = path else { return 0 };
    let Some(value) = of.get(*name).filter(|value| !value.is_null()) else { return 0 };
    let mut at = at.field(name);
    if rest.is_empty() {
        return text(0, max_length)(value, &mut at).map_or(0, |text| text.chars().count());
    }
    if value.is_object() {
        return part_length(value, rest, max_length, &mut at);
    }
    at.invalid::<()>("must be an object");
    0
}

/// Reads components.
pub(super) fn components(value: &Value, at: &mut FieldContext<'_>) -> Option<Vec<Value>> {
    list(0, 40, any_object)(value, at)
}

/// Reads allowed mentions.
pub(super) fn allowed_mentions(value: &Value, at: &mut FieldContext<'_>) -> Option<Value> {
    object(value, at, |form| {
        let parse = form
            .optional("parse", list(0, 3, choice(&[("roles", "roles"), ("users", "users"), ("everyone", "everyone")])));
        for group in ["users", "roles"] {
            let named = form.optional(group, list(0, 100, id)).is_some_and(|named| !named.is_empty());
            if named && parse.as_ref().is_some_and(|parse| parse.contains(&group)) {
                form.invalid(
                    group,
                    format!("must be empty when `parse` contains `{group}`: list ids or allow all, not both"),
                );
            }
        }
        form.optional("replied_user", boolean);
        Some(value.clone())
    })
}

fn any_object(value: &Value, at: &mut FieldContext<'_>) -> Option<Value> {
    if value.is_object() { Some(value.clone()) } else { at.invalid("must be an object") }
}
