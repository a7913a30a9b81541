//! Options of commands: sub-commands, and values of many types.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{localized, read};
use crate::operation::payload::{
    field_reader::{FieldReader, object},
    validation::{FieldContext, truncated},
    value::{boolean, integer, list},
};

/// Maximum number of options of a command, sub-commands of a group, and choices of an option.
const MAX_ENTRIES: usize = 25;
/// Maximum length of a string value, or of the value of a choice.
const MAX_STRING_CHARS: u64 = 6000;
/// Larger integers are not exact in floating point.
const EXACT: f64 = 9_007_199_254_740_992.0;

const SUB_COMMAND: u8 = 1;
const GROUP: u8 = 2;
const STRING: u8 = 3;
const INTEGER: u8 = 4;
const CHANNEL: u8 = 7;
const NUMBER: u8 = 10;

const TYPES: &[(&str, u8)] = &[
    ("sub_command", SUB_COMMAND),
    ("sub_command_group", GROUP),
    ("string", STRING),
    ("integer", INTEGER),
    ("boolean", 5),
    ("user", 6),
    ("channel", CHANNEL),
    ("role", 8),
    ("mentionable", 9),
    ("number", NUMBER),
    ("attachment", 11),
];
const CHANNEL_TYPES: &[(&str, u8)] = &[
    ("guild_text", 0),
    ("dm", 1),
    ("guild_voice", 2),
    ("group_dm", 3),
    ("guild_category", 4),
    ("guild_announcement", 5),
    ("announcement_thread", 10),
    ("public_thread", 11),
    ("private_thread", 12),
    ("guild_stage_voice", 13),
    ("guild_directory", 14),
    ("guild_forum", 15),
    ("guild_media", 16),
];

/// Fields that only some types have, and which types those are.
const TYPE_SPECIFIC_FIELDS: [(&str, &[u8], &str); 8] = [
    ("choices", &[STRING, INTEGER, NUMBER], "string, integer and number options"),
    ("autocomplete", &[STRING, INTEGER, NUMBER], "string, integer and number options"),
    ("min_value", &[INTEGER, NUMBER], "integer and number options"),
    ("max_value", &[INTEGER, NUMBER], "integer and number options"),
    ("min_length", &[STRING], "string options"),
    ("max_length", &[STRING], "string options"),
    ("channel_types", &[CHANNEL], "channel options"),
    ("options", &[SUB_COMMAND, GROUP], "sub-commands and their groups"),
];

/// The parent of the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Command,
    Group,
    SubCommand,
}

/// Reads the options of a parent, in Discord's format.
pub(super) fn options(level: Level, value: &Value, at: &mut FieldContext<'_>) -> Option<Vec<Value>> {
    distinct(value, at);
    check_order(value, at);
    list(0, MAX_ENTRIES, |value, at| option(level, value, at))(value, at)
}

/// Checks that sub-commands are not mixed with values, and that required values come first. Uses the values as written,
/// so that this is reported even if there are other errors.
fn check_order(options: &Value, at: &mut FieldContext<'_>) {
    let options = || options.as_array().into_iter().flatten().take(MAX_ENTRIES).enumerate();
    let is_sub = |option: &Value| match option.get("type") {
        Some(Value::String(name)) => TYPES[..2].iter().any(|(type_name, _)| type_name.eq_ignore_ascii_case(name)),
        Some(number) => is_sub(number.as_u64()),
        None => false,
    };
    if options().any(|(_, option)| is_sub(option)) {
        for (n, _) in options().filter(|(_, option)| !is_sub(option)) {
            let message = "must be a sub-command or a group, like others here; a command has either sub-commands and \
                groups, or values";
            at.item(n).field("type").invalid::<()>(message);
        }
    }
    let mut optional = false;
    for (n, option) in options().filter(|(_, option)| !is_sub(option)) {
        let required = option.get("required").is_some_and(|required| *required == true);
        if required && optional {
            let message = "must not be true after an optional option; move required options to the front";
            at.item(n).field("required").invalid::<()>(message);
        }
        optional |= !required;
    }
}

fn is_sub(kind: Option<u64>) -> bool {
    kind.is_some_and(|kind| kind == u64::from(SUB_COMMAND) || kind == u64::from(GROUP))
}

fn distinct(items: &Value, at: &mut FieldContext<'_>) {
    let mut seen = HashSet::new();
    for (n, item) in items.as_array().into_iter().flatten().take(MAX_ENTRIES).enumerate() {
        let name = item.get("name").and_then(Value::as_str);
        if let Some(name) = name.filter(|name| !seen.insert(*name)) {
            let message =
                format!("is `{}`, which is the name of another entry in this list; use a unique name", truncated(name));
            at.item(n).field("name").invalid::<()>(message);
        }
    }
}

fn option(level: Level, value: &Value, at: &mut FieldContext<'_>) -> Option<Value> {
    let mut fields = Map::new();
    object(value, at, |form| {
        for name in ["name_localized", "description_localized"] {
            form.optional(name, |_, _| Some(()));
        }
        let kind = form.required("type", localized::named_number(TYPES));
        if let Some(kind) = kind {
            fields.insert("type".to_owned(), kind.into());
            check_nesting(level, kind, form);
        }
        read::read_name(form, &mut fields, localized::typed_name);
        read::read_description(form, &mut fields);
        if let Some(required) = form.optional("required", boolean) {
            if required && is_sub(kind.map(u64::from)) {
                form.invalid("required", "applies only to values; a sub-command is never required: remove it");
            }
            fields.insert("required".to_owned(), required.into());
        }
        bounds(form, kind, &mut fields);
        choices(form, kind, &mut fields);
        if let Some(types) =
            form.optional("channel_types", list(0, MAX_ENTRIES, localized::named_number(CHANNEL_TYPES)))
        {
            fields.insert("channel_types".to_owned(), types.into());
        }
        let below = if kind == Some(GROUP) { Level::Group } else { Level::SubCommand };
        if let Some(options) = form.optional("options", |value, at| options(below, value, at)) {
            fields.insert("options".to_owned(), options.into());
        }
        for (field, kinds, types) in TYPE_SPECIFIC_FIELDS {
            let empty =
                fields.get(field).is_some_and(|value| value == &Value::from(false) || value == &Value::Array(vec![]));
            if kind.is_some_and(|kind| !kinds.contains(&kind)) && form.has_value(field) && !empty {
                form.invalid(field, format!("applies only to {types}; remove it, or change `type`"));
            }
        }
        Some(())
    })?;
    Some(Value::Object(fields))
}

/// Checks the nesting: groups in commands, sub-commands in both, values in anything without sub-commands.
fn check_nesting(level: Level, kind: u8, form: &mut FieldReader<'_, '_>) {
    match level {
        Level::Command => {}
        Level::Group if kind == SUB_COMMAND => {}
        Level::Group => form.invalid("type", "must be `sub_command`: a group contains only sub-commands"),
        Level::SubCommand if is_sub(Some(kind.into())) => {
            form.invalid("type", "must be a value type: a sub-command cannot contain sub-commands");
        }
        Level::SubCommand => {}
    }
}

fn bounds(form: &mut FieldReader<'_, '_>, kind: Option<u8>, fields: &mut Map<String, Value>) {
    for (name, lowest) in [("min_length", 0), ("max_length", 1)] {
        if let Some(length) = form.optional(name, integer::<u64>(lowest, MAX_STRING_CHARS)) {
            fields.insert(name.to_owned(), length.into());
        }
    }
    for name in ["min_value", "max_value"] {
        if let Some(value) = form.optional(name, |value, at| number(kind, value, at)) {
            fields.insert(name.to_owned(), value);
        }
    }
    for (min_field, max_field) in [("min_length", "max_length"), ("min_value", "max_value")] {
        let of = |name: &str| fields.get(name).and_then(Value::as_f64);
        if let (Some(low), Some(high)) = (of(min_field), of(max_field))
            && low > high
        {
            form.invalid(max_field, format!("must not be less than `{min_field}`"));
        }
    }
}

/// Reads a number that fits the option's type.
fn number(kind: Option<u8>, value: &Value, at: &mut FieldContext<'_>) -> Option<Value> {
    match kind {
        Some(INTEGER) => match value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() <= EXACT) {
            Some(_) => Some(value.clone()),
            None => at.invalid("must be a whole number from -2^53 to 2^53"),
        },
        _ if value.is_number() => Some(value.clone()),
        _ => at.invalid("must be a number"),
    }
}

fn choices(form: &mut FieldReader<'_, '_>, kind: Option<u8>, fields: &mut Map<String, Value>) {
    let choices = form.optional("choices", |value, at| {
        distinct(value, at);
        list(0, MAX_ENTRIES, |value, at| choice(kind, value, at))(value, at)
    });
    let autocomplete = form.optional("autocomplete", boolean);
    if autocomplete == Some(true) && choices.as_ref().is_some_and(|choices| !choices.is_empty()) {
        form.invalid("autocomplete", "must not be true together with `choices`; remove one of them");
    }
    if let Some(choices) = choices {
        fields.insert("choices".to_owned(), choices.into());
    }
    if let Some(autocomplete) = autocomplete {
        fields.insert("autocomplete".to_owned(), autocomplete.into());
    }
}

fn choice(kind: Option<u8>, value: &Value, at: &mut FieldContext<'_>) -> Option<Value> {
    let mut fields = Map::new();
    object(value, at, |form| {
        form.optional("name_localized", |_, _| Some(()));
        read::read_name(form, &mut fields, localized::short_text);
        let value = form.required("value", |value, at| match kind {
            Some(STRING) => match value.as_str().map(|text| text.chars().count() as u64) {
                Some(length) if length <= MAX_STRING_CHARS => Some(value.clone()),
                Some(_) | None => {
                    at.invalid(format!("must be a string of at most {MAX_STRING_CHARS} characters; quote numbers"))
                }
            },
            Some(INTEGER | NUMBER) => number(kind, value, at),
            Some(_) | None => Some(value.clone()),
        });
        fields.insert("value".to_owned(), value?);
        Some(())
    })?;
    Some(Value::Object(fields))
}
