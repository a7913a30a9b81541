//! What is to be done so that Discord has the commands of a file.

use serde_json::{Map, Value};

use super::{Command, CommandKind, CommandScope, Commands};

/// What only commands that hold everywhere have, and what stays if nobody says it.
const GLOBAL_ONLY: [&str; 3] = ["contexts", "integration_types", "handler"];
/// How `contexts` was said before there was such a thing.
const DIRECT: &str = "dm_permission";

/// What becomes of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandChange {
    /// Discord does not have it yet.
    Created {
        /// What people call it.
        label: String,
    },
    /// Discord has it, and says something else of it.
    Changed {
        /// What people call it.
        label: String,
        /// Which fields differ: `options[0].required`.
        fields: Vec<String>,
    },
    /// Discord has it, and the file does not.
    Removed {
        /// What people call it.
        label: String,
    },
    /// Nothing.
    Same {
        /// What people call it.
        label: String,
    },
}

impl CommandChange {
    /// Whether anything has to be done.
    #[must_use]
    pub const fn is_one(&self) -> bool {
        match self {
            Self::Created { .. } | Self::Changed { .. } | Self::Removed { .. } => true,
            Self::Same { .. } => false,
        }
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandPlan {
    /// What becomes of each command: those of the file in its order, then those that are gone.
    pub changes: Vec<CommandChange>,
    /// All commands, as one bulk overwrite takes them.
    pub body: Value,
}

impl CommandPlan {
    /// Whether Discord has to be told.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        self.changes.iter().any(CommandChange::is_one)
    }
}

/// Compares what should be with what Discord has, an answer of its own with all localizations.
///
/// What a file does not say of `contexts` and `integration_types` stays: Discord's own settings of the application decide
/// it, not a default. An entry point that the file does not name stays, too, since Discord lets nobody remove it so.
#[must_use]
pub fn plan(wanted: &Commands, there: &[Value], scope: CommandScope) -> CommandPlan {
    let there: Vec<(Command, &Map<String, Value>)> =
        there.iter().filter_map(Value::as_object).filter_map(|fields| Some((Command::of(fields)?, fields))).collect();
    let (mut changes, mut body) = (Vec::new(), Vec::new());
    for wanted in &wanted.0 {
        let found = there.iter().find(|(found, _)| found.is(wanted)).map(|(found, _)| found);
        let mut wanted = wanted.clone();
        settle(&mut wanted, found, scope);
        let label = wanted.label();
        changes.push(match found {
            None => CommandChange::Created { label },
            Some(found) => {
                let mut found = found.clone();
                found.fields.remove(DIRECT);
                let mut said = wanted.fields.clone();
                said.remove(DIRECT);
                if matches!(scope, CommandScope::Guild(_)) {
                    GLOBAL_ONLY.iter().for_each(|name| drop(found.fields.remove(*name)));
                }
                let mut fields = Vec::new();
                differences("", &Value::Object(found.fields), &Value::Object(said), &mut fields);
                if fields.is_empty() { CommandChange::Same { label } } else { CommandChange::Changed { label, fields } }
            }
        });
        body.push(Value::Object(wanted.fields));
    }
    for (found, fields) in there.iter().filter(|(found, _)| !wanted.0.iter().any(|wanted| wanted.is(found))) {
        let label = found.label();
        match found.kind {
            CommandKind::EntryPoint => {
                changes.push(CommandChange::Same { label });
                let mut kept = found.fields.clone();
                kept.remove(DIRECT);
                kept.extend(fields.get("id").map(|id| ("id".to_owned(), id.clone())));
                body.push(Value::Object(kept));
            }
            CommandKind::ChatInput | CommandKind::User | CommandKind::Message => {
                changes.push(CommandChange::Removed { label });
            }
        }
    }
    CommandPlan { changes, body: Value::Array(body) }
}

/// Leaves out what has no meaning in this scope, and takes over what is not said and stays.
fn settle(wanted: &mut Command, found: Option<&Command>, scope: CommandScope) {
    match scope {
        CommandScope::Guild(_) => GLOBAL_ONLY.iter().for_each(|name| drop(wanted.fields.remove(*name))),
        CommandScope::Global => {
            let Some(found) = found else { return };
            for name in GLOBAL_ONLY {
                if let (false, Some(value)) = (wanted.fields.contains_key(name), found.fields.get(name)) {
                    wanted.fields.insert(name.to_owned(), value.clone());
                }
            }
            let direct = found.fields.get(DIRECT).filter(|direct| **direct == Value::Bool(false));
            if let (false, Some(direct)) = (wanted.fields.contains_key("contexts"), direct) {
                wanted.fields.insert(DIRECT.to_owned(), direct.clone());
            }
        }
    }
}

/// The paths at which two differ, each as far down as can be told.
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
