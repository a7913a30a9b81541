//! The canonical form in which commands are compared: without defaults, empty lists and what Discord adds.

use serde_json::{Map, Number, Value};

use super::{Command, CommandKind};

/// Fields that Discord adds. A file may contain them, for example if it was made from Discord's response.
pub(super) const ADDED_BY_DISCORD: [&str; 6] =
    ["id", "application_id", "version", "guild_id", "name_localized", "description_localized"];

/// Flags that are off by default.
const DEFAULT_FALSE: [&str; 3] = ["nsfw", "required", "autocomplete"];

/// Lists whose order has no meaning.
const SETS: [&str; 3] = ["contexts", "integration_types", "channel_types"];

impl Command {
    /// A command from the fields of a file or of Discord. `None` if it has no name, or an unknown type.
    pub(super) fn from_fields(fields: &Map<String, Value>) -> Option<Self> {
        let name = fields.get("name")?.as_str()?.to_owned();
        let kind = match fields.get("type") {
            None | Some(Value::Null) => CommandKind::ChatInput,
            Some(kind) => CommandKind::from_number(kind.as_u64()?)?,
        };
        let mut fields = canonical_fields(fields);
        fields.insert("type".to_owned(), kind.number().into());
        Some(Self { kind, name, fields })
    }
}

fn canonical_fields(fields: &Map<String, Value>) -> Map<String, Value> {
    let own_fields = fields.iter().filter(|(name, _)| !ADDED_BY_DISCORD.contains(&name.as_str()));
    own_fields.filter_map(|(name, value)| Some((name.clone(), canonical_field(name, value)?))).collect()
}

fn canonical_field(name: &str, value: &Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Bool(false) if DEFAULT_FALSE.contains(&name) => None,
        Value::String(text) if text.is_empty() && name == "description" => None,
        Value::Number(bits) if name == "default_member_permissions" => Some(bits.to_string().into()),
        Value::Number(number) => Some(Value::Number(normalize_number(number))),
        // These are texts in other languages, not fields.
        Value::Object(texts) if name.ends_with("_localizations") => {
            (!texts.is_empty()).then(|| Value::Object(texts.clone()))
        }
        Value::Object(fields) => Some(Value::Object(canonical_fields(fields))),
        Value::Array(items) if items.is_empty() => None,
        Value::Array(items) => {
            let mut items: Vec<Value> = items.iter().filter_map(|item| canonical_field("", item)).collect();
            if SETS.contains(&name) {
                items.sort_by_key(Value::as_u64);
                items.dedup();
            }
            Some(Value::Array(items))
        }
        Value::Bool(_) | Value::String(_) => Some(value.clone()),
    }
}

/// Converts 5.0 to 5.
fn normalize_number(number: &Number) -> Number {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match number.as_f64() {
        #[expect(clippy::cast_possible_truncation, reason = "it is a whole number, and not too large")]
        Some(float) if !number.is_i64() && !number.is_u64() && float.fract() == 0.0 && float.abs() <= EXACT => {
            Number::from(float as i64)
        }
        _ => number.clone(),
    }
}
