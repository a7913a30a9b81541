//! Options of commands: sub-commands, and values of many types.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{localized, read};
use crate::operation::payload::{
    field_reader::{FieldReader, object},
    validation::{FieldContext, shown},
    value::{boolean, integer, list},
};

/// Maximum number of options of a command, sub-commands of a group, and choices of an option.
const SEVERAL: usize = 25;
/// Maximum length of a string value, or of the value of a choice.
const LONGEST: u64 = 6000;
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
const FOR_SOME: [(&str, &[u8], &str); 8] = [
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
    in_order(value, at);
    list(0, SEVERAL, |value, at| option(level, value, at))(value, at)
}

/// Checks that sub-commands are not mixed with values, and that required values come first. Uses the values as written,
/// so that this is reported even if there are other errors.
fn in_order(options: &Value, at: &mut FieldContext<'_>) {
    let options = || options.as_array().into_iter().flatten().take(SEVERAL).enumerate();
    let is_sub = |option: &Value| match option.get("type") {
        Some(Value::String(name)) => TYPES[..2].iter().any(|(known, _)| known.eq_ignore_ascii_case(name)),
        Some(number) => is_sub(number.as_u64()),
        None => false,
    };
    if options().any(|(_, option)| is_sub(option)) {
        for (n, _) in options().filter(|(_, option)| !is_sub(option)) {
            let says = "must be a sub-command or a group, like others here; a command has either sub-commands and \
                groups, or values";
            at.item(n).field("type").wrong::<()>(says);
        }
    }
    let mut optional = false;
    for (n, option) in options().filter(|(_, option)| !is_sub(option)) {
        let required = option.get("required").is_some_and(|required| *required == true);
        if required && optional {
            let says = "must not be true after an optional option; move required options to the front";
            at.item(n).field("required").wrong::<()>(says);
        }
        optional |= !required;
    }
}

fn is_sub(kind: Option<u64>) -> bool {
    kind.is_some_and(|kind| kind == u64::from(SUB_COMMAND) || kind == u64::from(GROUP))
}

fn distinct(items: &Value, at: &mut FieldContext<'_>) {
    let mut seen = HashSet::new();
    for (n, item) in items.as_array().into_iter().flatten().take(SEVERAL).enumerate() {
        let name = item.get("name").and_then(Value::as_str);
        if let Some(name) = name.filter(|name| !seen.insert(*name)) {
            let says =
                format!("is `{}`, which is the name of another entry in this list; use a unique name", shown(name));
            at.item(n).field("name").wrong::<()>(says);
        }
    }
}

fn option(level: Level, value: &Value, at: &mut FieldContext<'_>) -> Option<Value> {
    let mut said = Map::new();
    object(value, at, |form| {
        for name in ["name_localized", "description_localized"] {
            form.optional(name, |_, _| Some(()));
        }
        let kind = form.required("type", localized::word(TYPES));
        if let Some(kind) = kind {
            said.insert("type".to_owned(), kind.into());
            place(level, kind, form);
        }
        read::named(form, &mut said, localized::typed);
        read::describes(form, &mut said);
        if let Some(required) = form.optional("required", boolean) {
            if required && is_sub(kind.map(u64::from)) {
                form.wrong("required", "applies only to values; a sub-command is never required: remove it");
            }
            said.insert("required".to_owned(), required.into());
        }
        bounds(form, kind, &mut said);
        choices(form, kind, &mut said);
        if let Some(types) = form.optional("channel_types", list(0, SEVERAL, localized::word(CHANNEL_TYPES))) {
            said.insert("channel_types".to_owned(), types.into());
        }
        let below = if kind == Some(GROUP) { Level::Group } else { Level::SubCommand };
        if let Some(options) = form.optional("options", |value, at| options(below, value, at)) {
            said.insert("options".to_owned(), options.into());
        }
        for (field, kinds, whose) in FOR_SOME {
            let empty =
                said.get(field).is_some_and(|value| value == &Value::from(false) || value == &Value::Array(vec![]));
            if kind.is_some_and(|kind| !kinds.contains(&kind)) && form.says(field) && !empty {
                form.wrong(field, format!("applies only to {whose}; remove it, or change `type`"));
            }
        }
        Some(())
    })?;
    Some(Value::Object(said))
}

/// Checks the nesting: groups in commands, sub-commands in both, values in anything without sub-commands.
fn place(level: Level, kind: u8, form: &mut FieldReader<'_, '_>) {
    match level {
        Level::Command => {}
        Level::Group if kind == SUB_COMMAND => {}
        Level::Group => form.wrong("type", "must be `sub_command`: a group contains only sub-commands"),
        Level::SubCommand if is_sub(Some(kind.into())) => {
            form.wrong("type", "must be a value type: a sub-command cannot contain sub-commands");
        }
        Level::SubCommand => {}
    }
}

fn bounds(form: &mut FieldReader<'_, '_>, kind: Option<u8>, said: &mut Map<String, Value>) {
    for (name, lowest) in [("min_length", 0), ("max_length", 1)] {
        if let Some(length) = form.optional(name, integer::<u64>(lowest, LONGEST)) {
            said.insert(name.to_owned(), length.into());
        }
    }
    for name in ["min_value", "max_value"] {
        if let Some(value) = form.optional(name, |value, at| number(kind, value, at)) {
            said.insert(name.to_owned(), value);
        }
    }
    for (least, most) in [("min_length", "max_length"), ("min_value", "max_value")] {
        let of = |name: &str| said.get(name).and_then(Value::as_f64);
        if let (Some(low), Some(high)) = (of(least), of(most))
            && low > high
        {
            form.wrong(most, format!("must not be less than `{least}`"));
        }
    }
}

/// Reads a number that fits the option's type.
fn number(kind: Option<u8>, value: &Value, at: &mut FieldContext<'_>) -> Option<Value> {
    match kind {
        Some(INTEGER) => match value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() <= EXACT) {
            Some(_) => Some(value.clone()),
            None => at.wrong("must be a whole number from -2^53 to 2^53"),
        },
        _ if value.is_number() => Some(value.clone()),
        _ => at.wrong("must be a number"),
    }
}

fn choices(form: &mut FieldReader<'_, '_>, kind: Option<u8>, said: &mut Map<String, Value>) {
    let choices = form.optional("choices", |value, at| {
        distinct(value, at);
        list(0, SEVERAL, |value, at| choice(kind, value, at))(value, at)
    });
    let autocomplete = form.optional("autocomplete", boolean);
    if autocomplete == Some(true) && choices.as_ref().is_some_and(|choices| !choices.is_empty()) {
        form.wrong("autocomplete", "must not be true together with `choices`; remove one of them");
    }
    if let Some(choices) = choices {
        said.insert("choices".to_owned(), choices.into());
    }
    if let Some(autocomplete) = autocomplete {
        said.insert("autocomplete".to_owned(), autocomplete.into());
    }
}

fn choice(kind: Option<u8>, value: &Value, at: &mut FieldContext<'_>) -> Option<Value> {
    let mut said = Map::new();
    object(value, at, |form| {
        form.optional("name_localized", |_, _| Some(()));
        read::named(form, &mut said, localized::line);
        let value = form.required("value", |value, at| match kind {
            Some(STRING) => match value.as_str().map(|text| text.chars().count() as u64) {
                Some(length) if length <= LONGEST => Some(value.clone()),
                Some(_) | None => at.wrong(format!("must be a string of at most {LONGEST} characters; quote numbers")),
            },
            Some(INTEGER | NUMBER) => number(kind, value, at),
            Some(_) | None => Some(value.clone()),
        });
        said.insert("value".to_owned(), value?);
        Some(())
    })?;
    Some(Value::Object(said))
}
