//! Reads commands and reports all errors at once.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{
    Command, CommandKind, Commands, FieldError,
    canonical::ADDED,
    localized,
    option::{self, Level},
};
use crate::operation::payload::{
    field_reader::{FieldReader, object},
    validation::{ErrorCollector, FieldContext, NullHandling, shown},
    value::{boolean, list},
};

/// Maximum number of commands; each kind has a lower limit.
const COMMANDS: usize = 200;
/// Maximum number of characters in a command's names, descriptions and values.
const CHARACTERS: usize = 8000;

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
        let mut findings = ErrorCollector::new(NullHandling::NotSaid);
        let read = match value {
            Value::Array(_) => all(value, &mut findings.top().field("commands")),
            Value::Object(_) => object(value, &mut findings.top(), |form| form.required("commands", all)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                findings.top().field("commands").wrong(
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

fn all(value: &Value, at: &mut FieldContext<'_>) -> Option<Vec<Command>> {
    distinct(value, at);
    let read = list(0, COMMANDS, command)(value, at)?;
    for kind in CommandKind::ALL {
        let count = read.iter().filter(|command| command.kind == kind).count();
        if count > kind.most() {
            let (most, what) = (kind.most(), kind.plural());
            at.wrong::<()>(format!("must contain at most {most} {what}, found {count}; group some as sub-commands"));
        }
    }
    Some(read)
}

/// Compares the names as written, so that duplicates are reported even if there are other errors.
fn distinct(commands: &Value, at: &mut FieldContext<'_>) {
    let mut seen = HashSet::new();
    for (n, command) in commands.as_array().into_iter().flatten().take(COMMANDS).enumerate() {
        let kind = match command.get("type") {
            Some(Value::String(name)) => KINDS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)),
            Some(number) => KINDS.iter().find(|(_, known)| number.as_u64() == Some(u64::from(*known))),
            None => None,
        };
        let kind = kind.map_or(CommandKind::ChatInput.number(), |(_, number)| *number);
        let name = command.get("name").and_then(Value::as_str);
        if let Some(name) = name.filter(|name| !seen.insert((kind, *name))) {
            let says =
                format!("is `{}`, which is the name of another command of this type; use a unique name", shown(name));
            at.item(n).field("name").wrong::<()>(says);
        }
    }
}

fn command(value: &Value, at: &mut FieldContext<'_>) -> Option<Command> {
    let mut said = Map::new();
    let read = object(value, at, |form| {
        for name in ADDED {
            form.optional(name, |_, _| Some(()));
        }
        let kind = form.optional("type", localized::word(KINDS));
        let wrong_kind = form.was_wrong("type");
        let kind = kind.and_then(|number| CommandKind::of(number.into())).unwrap_or(CommandKind::ChatInput);
        said.insert("type".to_owned(), kind.number().into());
        named(form, &mut said, if kind.is_typed() || wrong_kind { localized::typed } else { localized::shown_name });
        described(form, &mut said, kind);
        let options = form.optional("options", |value, at| option::options(Level::Command, value, at));
        if let Some(options) = options {
            if !options.is_empty() && kind != CommandKind::ChatInput && !wrong_kind {
                form.wrong("options", format!("are only for slash commands; {} have none: remove them", kind.plural()));
            }
            said.insert("options".to_owned(), options.into());
        }
        if let Some(bits) = form.optional("default_member_permissions", permissions) {
            said.insert("default_member_permissions".to_owned(), bits.into());
        }
        if let Some(nsfw) = form.optional("nsfw", boolean) {
            said.insert("nsfw".to_owned(), nsfw.into());
        }
        for (name, names) in [("contexts", CONTEXTS), ("integration_types", INSTALLS)] {
            if let Some(set) = form.optional(name, list(1, names.len(), localized::word(names))) {
                said.insert(name.to_owned(), set.into());
            }
        }
        if let Some(handler) = form.optional("handler", localized::word(HANDLERS)) {
            if kind != CommandKind::EntryPoint {
                form.wrong("handler", "is only for entry points (`type: primary_entry_point`); remove it");
            }
            said.insert("handler".to_owned(), handler.into());
        }
        let direct = form.optional("dm_permission", boolean);
        if direct == Some(false) && !form.says("contexts") {
            form.wrong("dm_permission", "is deprecated by Discord; write `contexts: [guild]` instead");
        }
        Some(())
    });
    read?;
    let characters = characters(&said);
    if characters > CHARACTERS {
        at.wrong::<()>(format!(
            "must have at most {CHARACTERS} characters in its names, descriptions and values, found {characters}; \
             shorten some, or split the command"
        ));
    }
    Command::of(&said)
}

/// Reads a name and its localizations.
pub(super) fn named(
    form: &mut FieldReader<'_, '_>,
    said: &mut Map<String, Value>,
    read: fn(&Value, &mut FieldContext<'_>) -> Option<String>,
) {
    if let Some(name) = form.required("name", read) {
        said.insert("name".to_owned(), name.into());
    }
    if let Some(texts) = form.optional("name_localizations", localized::localizations(read)) {
        said.insert("name_localizations".to_owned(), texts.into());
    }
}

fn described(form: &mut FieldReader<'_, '_>, said: &mut Map<String, Value>, kind: CommandKind) {
    if kind.is_typed() {
        return describes(form, said);
    }
    let text = form.optional("description", |value, _| Some(value.as_str() != Some("")));
    if text == Some(true) {
        form.wrong("description", format!("must be omitted: {} have none", kind.plural()));
    }
    if form.optional("description_localizations", |value, _| value.as_object().map(|texts| !texts.is_empty()))
        == Some(true)
    {
        form.wrong("description_localizations", format!("must be omitted: {} have no description", kind.plural()));
    }
}

/// Reads a description and its localizations.
pub(super) fn describes(form: &mut FieldReader<'_, '_>, said: &mut Map<String, Value>) {
    if let Some(text) = form.required("description", localized::line) {
        said.insert("description".to_owned(), text.into());
    }
    if let Some(texts) = form.optional("description_localizations", localized::localizations(localized::line)) {
        said.insert("description_localizations".to_owned(), texts.into());
    }
}

/// Reads permissions, as a string or as a number: YAML loses no bits.
fn permissions(value: &Value, at: &mut FieldContext<'_>) -> Option<String> {
    let bits = match value {
        Value::String(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse::<u64>().ok(),
        Value::Number(number) => number.as_u64(),
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => None,
    };
    let says = "must be permission bits as one number, such as \"8\" for ADMINISTRATOR; use \"0\" for administrators \
        only, and null for everyone";
    bits.map(|bits| bits.to_string()).or_else(|| at.wrong(says))
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
