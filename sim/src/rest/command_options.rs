//! Options of commands, subcommands and choices, validated as Discord does.

use super::form::{Field, Form};

/// Maximum number of options of a command or option, and of choices of an option.
const MAX_ITEMS: usize = 25;
const SUB_COMMAND: u8 = 1;
const GROUP: u8 = 2;
const TYPES: [u8; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];

/// The properties of an option that later options are checked against.
#[derive(Clone, PartialEq, Eq)]
struct OptionInfo {
    kind: u8,
    name: String,
    required: bool,
}

/// Reads the options of a command, or of an option that has options.
pub(super) fn read(form: &mut Form<'_>) {
    let mut before: Vec<OptionInfo> = Vec::new();
    for (index, item) in form.list("options", MAX_ITEMS).value().unwrap_or_default().iter().enumerate() {
        let path = format!("options.{index}");
        let Some(option) = form.nested(&path, item, option) else { continue };
        if before.iter().any(|other| other.name == option.name) {
            form.add_error(
                &format!("{path}.name"),
                "APPLICATION_COMMAND_OPTIONS_NAME_ALREADY_USED",
                "Option name is already used",
            );
        }
        let is_sub = |option: &OptionInfo| option.kind <= GROUP;
        if before.iter().any(|other| is_sub(other) != is_sub(&option)) {
            let message = "Sub-command and sub-command group option types are mutually exclusive to all other types";
            form.add_error(&path, "APPLICATION_COMMAND_OPTIONS_TYPE_INVALID", message);
        }
        if option.required && before.iter().any(|other| !is_sub(other) && !other.required) {
            let message = "Required options must be placed before non-required options";
            form.add_error(&path, "APPLICATION_COMMAND_OPTIONS_REQUIRED_INVALID", message);
        }
        before.push(option);
    }
}

/// Whether a user can type this name: no whitespace, and lowercase where that exists.
pub(super) fn is_valid_name(name: &str) -> bool {
    !name.contains(char::is_whitespace) && !name.contains(['/', '.', '!']) && name.to_lowercase() == name
}

fn option(form: &mut Form<'_>) -> OptionInfo {
    let kind = form.choice("type", &TYPES);
    let kind = form.required("type", kind).unwrap_or(3);
    let name = form.string("name", 1..=32);
    if let Field::Given(name) = name
        && !is_valid_name(name)
    {
        form.add_error("name", "APPLICATION_COMMAND_INVALID_NAME", "Command name is invalid");
    }
    let name = form.required("name", name).unwrap_or_default().to_owned();
    let description = form.string("description", 1..=100);
    form.required("description", description);
    let required = form.boolean("required").value().unwrap_or(false);
    if kind == SUB_COMMAND || kind == GROUP {
        read(form);
    }
    for (index, item) in form.list("choices", MAX_ITEMS).value().unwrap_or_default().iter().enumerate() {
        form.nested(&format!("choices.{index}"), item, |form| {
            let name = form.string("name", 1..=100);
            form.required("name", name);
            let value = form.raw("value");
            form.required("value", value);
        });
    }
    OptionInfo { kind, name, required }
}
