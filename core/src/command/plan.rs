//! Plan of the changes that bring Discord's commands in line with a file.

use serde_json::{Map, Value};

use super::{Command, CommandKind, CommandScope, Commands};

/// Fields that only global commands have. They stay as they are when omitted.
const GLOBAL_ONLY: [&str; 3] = ["contexts", "integration_types", "handler"];
/// Deprecated predecessor of `contexts`.
const DM_PERMISSION: &str = "dm_permission";

/// What happens to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandChange {
    /// Discord does not have it yet.
    Created {
        /// Display name.
        label: String,
    },
    /// Discord has it with other properties.
    Changed {
        /// Display name.
        label: String,
        /// Fields that differ: `options[0].required`.
        fields: Vec<String>,
    },
    /// Discord has it, but the file does not.
    Removed {
        /// Display name.
        label: String,
    },
    /// It does not change.
    Same {
        /// Display name.
        label: String,
    },
}

impl CommandChange {
    /// Whether it is a change.
    #[must_use]
    pub const fn is_change(&self) -> bool {
        match self {
            Self::Created { .. } | Self::Changed { .. } | Self::Removed { .. } => true,
            Self::Same { .. } => false,
        }
    }
}

/// Changes to the commands.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandPlan {
    /// The change of each command: those of the file in its order, then removed ones.
    pub changes: Vec<CommandChange>,
    /// All commands, as the body of a bulk overwrite.
    pub body: Value,
}

impl CommandPlan {
    /// Whether a call to Discord is needed.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        self.changes.iter().any(CommandChange::is_change)
    }
}

/// Compares the desired commands with Discord's, which is Discord's response with all localizations.
///
/// Omitted `contexts` and `integration_types` stay: Discord's settings of the application decide about them, not a
/// default. An entry point that is not in the file stays too, because Discord does not allow its removal in a bulk
/// overwrite.
#[must_use]
pub fn plan(desired: &Commands, existing: &[Value], scope: CommandScope) -> CommandPlan {
    let existing: Vec<(Command, &Map<String, Value>)> = existing
        .iter()
        .filter_map(Value::as_object)
        .filter_map(|fields| Some((Command::from_fields(fields)?, fields)))
        .collect();
    let (mut changes, mut body) = (Vec::new(), Vec::new());
    for desired in &desired.0 {
        let found = existing.iter().find(|(found, _)| found.is_same_command(desired)).map(|(found, _)| found);
        let mut desired = desired.clone();
        merge_omitted_fields(&mut desired, found, scope);
        let label = desired.label();
        changes.push(match found {
            None => CommandChange::Created { label },
            Some(found) => {
                let mut found = found.clone();
                found.fields.remove(DM_PERMISSION);
                let mut desired_fields = desired.fields.clone();
                desired_fields.remove(DM_PERMISSION);
                if matches!(scope, CommandScope::Guild(_)) {
                    GLOBAL_ONLY.iter().for_each(|name| drop(found.fields.remove(*name)));
                }
                let mut fields = Vec::new();
                differences("", &Value::Object(found.fields), &Value::Object(desired_fields), &mut fields);
                if fields.is_empty() { CommandChange::Same { label } } else { CommandChange::Changed { label, fields } }
            }
        });
        body.push(Value::Object(desired.fields));
    }
    for (found, fields) in
        existing.iter().filter(|(found, _)| !desired.0.iter().any(|desired| desired.is_same_command(found)))
    {
        let label = found.label();
        match found.kind {
            CommandKind::EntryPoint => {
                changes.push(CommandChange::Same { label });
                let mut entry = found.fields.clone();
                entry.remove(DM_PERMISSION);
                entry.extend(fields.get("id").map(|id| ("id".to_owned(), id.clone())));
                body.push(Value::Object(entry));
            }
            CommandKind::ChatInput | CommandKind::User | CommandKind::Message => {
                changes.push(CommandChange::Removed { label });
            }
        }
    }
    CommandPlan { changes, body: Value::Array(body) }
}

/// Removes fields that have no meaning in this scope, and copies omitted fields that stay.
fn merge_omitted_fields(desired: &mut Command, found: Option<&Command>, scope: CommandScope) {
    match scope {
        CommandScope::Guild(_) => GLOBAL_ONLY.iter().for_each(|name| drop(desired.fields.remove(*name))),
        CommandScope::Global => {
            let Some(found) = found else { return };
            for name in GLOBAL_ONLY {
                if let (false, Some(value)) = (desired.fields.contains_key(name), found.fields.get(name)) {
                    desired.fields.insert(name.to_owned(), value.clone());
                }
            }
            let direct = found.fields.get(DM_PERMISSION).filter(|direct| **direct == Value::Bool(false));
            if let (false, Some(direct)) = (desired.fields.contains_key("contexts"), direct) {
                desired.fields.insert(DM_PERMISSION.to_owned(), direct.clone());
            }
        }
    }
}

/// The paths at which two values differ, as deep as possible.
fn differences(path: &str, one: &Value, other: &Value, found: &mut Vec<String>) {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let between = if path.is_empty() { "" } else { "." };
            let names = one.keys().chain(other.keys().filter(|name| !one.contains_key(*name)));
            for name in names {
                let path = format!("{path}{between}{name}");
                match (one.get(name), other.get(name)) {
                    (Some(one), Some(other)) => differences(&path, one, other, found),
                    (Some(_), None) | (None, Some(_)) | (None, None) => found.push(path),
                }
            }
        }
        (Value::Array(one), Value::Array(other)) if has_objects(one) && has_objects(other) => {
            for index in 0..one.len().max(other.len()) {
                let path = format!("{path}[{index}]");
                match (one.get(index), other.get(index)) {
                    (Some(one), Some(other)) => differences(&path, one, other, found),
                    (Some(_), None) | (None, Some(_)) | (None, None) => found.push(path),
                }
            }
        }
        (one, other) if one == other => {}
        (_, _) => found.push(path.to_owned()),
    }
}

fn has_objects(items: &[Value]) -> bool {
    items.iter().all(Value::is_object)
}
