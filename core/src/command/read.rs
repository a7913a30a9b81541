//! Reads commands and reports all errors at once.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{
    Command, CommandKind, Commands, FieldError,
    canonical::ADDED_BY_DISCORD,
    localized,
    option::{self, Level},
};
use crate::operation::payload::{
    field_reader::{FieldReader, object},
    validation::{ErrorCollector, FieldContext, NullHandling, truncated},
    value::{boolean, list},
};

/// Maximum number of commands; each kind has a lower limit.
const MAX_COMMANDS: usize = 200;
/// Maximum number of characters in a command's names, descriptions and values.
const MAX_CHARACTERS: usize = 8000;

const KINDS: &[(&str, u8)] = &[("chat_input", 1), ("user", 2), ("message", 3), ("primary_entry_point", 4)];
const CONTEXTS: &[(&str, u8)] = &[("guild", 0), ("bot_dm", 1), ("private_channel", 2)];
const INSTALLS: &[(&str, u8)] = &[("guild_install", 0), ("user_install", 1)];
const HANDLERS: &[(&str, u8)] = &[("app_handler", 1), ("discord_launch_activity", 2)];

impl Commands {
    /// Reads commands: a list, or `{"commands": […]}`. Fields are Discord's; types and similar numbers may be given by
    /// name.
    ///
    /// # Errors
    ///
    /// All errors at once, at most 50.
    pub fn read(value: &Value) -> Result<Self, Vec<FieldError>> {
        let mut findings = ErrorCollector::new(NullHandling::Omitted);
        let read = match value {
            Value::Array(_) => read_all(value, &mut findings.top().field("commands")),
            Value::Object(_) => object(value, &mut findings.top(), |form| form.required("commands", read_all)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                findings.top().field("commands").invalid(
                    "is missing: write a list of commands, or `commands:` followed by a list; use [] for no commands",
                )
            }
        };
        match read {
            Some(commands) if findings.is_empty() => Ok(Self(commands)),
            Some(_) | None => Err(findings.into_invalid().errors),
        }
    }
}

fn read_all(value: &Value, at: &mut FieldContext<'_>) -> Option<Vec<Command>> {
    distinct(value, at);
    let read = list(0, MAX_COMMANDS, command)(value, at)?;
    for kind in CommandKind::ALL {
        let count = read.iter().filter(|command| command.kind == kind).count();
        if count > kind.max_count() {
            let (max_count, kind_name) = (kind.max_count(), kind.plural());
            at.invalid::<()>(format!(
                "must contain at most {max_count} {kind_name}, found {count}; group some as sub-commands"
            ));
        }
    }
    Some(read)
}

/// Compares the names as written, so that duplicates are reported even if there are other errors.
fn distinct(commands: &Value, at: &mut FieldContext<'_>) {
    let mut seen = HashSet::new();
    for (n, command) in commands.as_array().into_iter().flatten().take(MAX_COMMANDS).enumerate() {
        let kind = match command.get("type") {
            Some(Value::String(name)) => KINDS.iter().find(|(kind_name, _)| kind_name.eq_ignore_ascii_case(name)),
            Some(number) => KINDS.iter().find(|(_, kind_name)| number.as_u64() == Some(u64::from(*kind_name))),
            None => None,
        };
        let kind = kind.map_or(CommandKind::ChatInput.number(), |(_, number)| *number);
        let name = command.get("name").and_then(Value::as_str);
        if let Some(name) = name.filter(|name| !seen.insert((kind, *name))) {
            let message = format!(
                "is `{}`, which is the name of another command of this type; use a unique name",
                truncated(name)
            );
            at.item(n).field("name").invalid::<()>(message);
        }
    }
}

fn command(value: &Value, at: &mut FieldContext<'_>) -> Option<Command> {
    let mut fields = Map::new();
    let read = object(value, at, |form| {
        for name in ADDED_BY_DISCORD {
            form.optional(name, |_, _| Some(()));
        }
        let kind = form.optional("type", localized::named_number(KINDS));
        let invalid_kind = form.is_invalid("type");
        let kind = kind.and_then(|number| CommandKind::from_number(number.into())).unwrap_or(CommandKind::ChatInput);
        fields.insert("type".to_owned(), kind.number().into());
        read_name(
            form,
            &mut fields,
            if kind.is_typed() || invalid_kind { localized::typed_name } else { localized::menu_name },
        );
        read_description_of_kind(form, &mut fields, kind);
        let options = form.optional("options", |value, at| option::options(Level::Command, value, at));
        if let Some(options) = options {
            if !options.is_empty() && kind != CommandKind::ChatInput && !invalid_kind {
                form.invalid(
                    "options",
                    format!("are only for slash commands; {} have none: remove them", kind.plural()),
                );
            }
            fields.insert("options".to_owned(), options.into());
        }
        if let Some(bits) = form.optional("default_member_permissions", permissions) {
            fields.insert("default_member_permissions".to_owned(), bits.into());
        }
        if let Some(nsfw) = form.optional("nsfw", boolean) {
            fields.insert("nsfw".to_owned(), nsfw.into());
        }
        for (name, names) in [("contexts", CONTEXTS), ("integration_types", INSTALLS)] {
            if let Some(set) = form.optional(name, list(1, names.len(), localized::named_number(names))) {
                fields.insert(name.to_owned(), set.into());
            }
        }
        if let Some(handler) = form.optional("handler", localized::named_number(HANDLERS)) {
            if kind != CommandKind::EntryPoint {
                form.invalid("handler", "is only for entry points (`type: primary_entry_point`); remove it");
            }
            fields.insert("handler".to_owned(), handler.into());
        }
        let direct = form.optional("dm_permission", boolean);
        if direct == Some(false) && !form.has_value("contexts") {
            form.invalid("dm_permission", "is deprecated by Discord; write `contexts: [guild]` instead");
        }
        Some(())
    });
    read?;
    let characters = characters(&fields);
    if characters > MAX_CHARACTERS {
        at.invalid::<()>(format!(
            "must have at most {MAX_CHARACTERS} characters in its names, descriptions and values, found {characters}; \
             shorten some, or split the command"
        ));
    }
    Command::from_fields(&fields)
}

/// Reads a name and its localizations.
pub(super) fn read_name(
    form: &mut FieldReader<'_, '_>,
    fields: &mut Map<String, Value>,
    read: fn(&Value, &mut FieldContext<'_>) -> Option<String>,
) {
    if let Some(name) = form.required("name", read) {
        fields.insert("name".to_owned(), name.into());
    }
    if let Some(texts) = form.optional("name_localizations", localized::localizations(read)) {
        fields.insert("name_localizations".to_owned(), texts.into());
    }
}

fn read_description_of_kind(form: &mut FieldReader<'_, '_>, fields: &mut Map<String, Value>, kind: CommandKind) {
    if kind.is_typed() {
        return read_description(form, fields);
    }
    let text = form.optional("description", |value, _| Some(value.as_str() != Some("")));
    if text == Some(true) {
        form.invalid("description", format!("must be omitted: {} have none", kind.plural()));
    }
    if form.optional("description_localizations", |value, _| value.as_object().map(|texts| !texts.is_empty()))
        == Some(true)
    {
        form.invalid("description_localizations", format!("must be omitted: {} have no description", kind.plural()));
    }
}

/// Reads a description and its localizations.
pub(super) fn read_description(form: &mut FieldReader<'_, '_>, fields: &mut Map<String, Value>) {
    if let Some(text) = form.required("description", localized::short_text) {
        fields.insert("description".to_owned(), text.into());
    }
    if let Some(texts) = form.optional("description_localizations", localized::localizations(localized::short_text)) {
        fields.insert("description_localizations".to_owned(), texts.into());
    }
}

/// Reads permissions, as a string or as a number: YAML loses no bits.
fn permissions(value: &Value, at: &mut FieldContext<'_>) -> Option<String> {
    let bits = match value {
        Value::String(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse::<u64>().ok(),
        Value::Number(number) => number.as_u64(),
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => None,
    };
    let message = "must be permission bits as one number, such as \"8\" for ADMINISTRATOR; use \"0\" for administrators \
        only, and null for everyone";
    bits.map(|bits| bits.to_string()).or_else(|| at.invalid(message))
}

/// Characters of names, descriptions and values; for each, the longest over all languages.
fn characters(fields: &Map<String, Value>) -> usize {
    let length = |value: &Value| value.as_str().map_or(0, |text| text.chars().count());
    let longest = |name: &str| {
        let own = fields.get(name).map_or(0, length);
        let others = fields.get(&format!("{name}_localizations")).and_then(Value::as_object);
        others.into_iter().flat_map(Map::values).map(length).fold(own, usize::max)
    };
    let below = ["options", "choices"].iter().filter_map(|name| fields.get(*name)?.as_array()).flatten();
    let below: usize = below.filter_map(Value::as_object).map(characters).sum();
    longest("name") + longest("description") + fields.get("value").map_or(0, length) + below
}
