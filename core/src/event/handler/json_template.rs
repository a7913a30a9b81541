//! JSON with placeholders in its strings.

use serde_json::{Map, Value};

use super::template::{PlaceholderScope, StateValues, Template, TemplateError, TypeKnowledge};
use super::view::EventView;
use crate::operation::payload::validation::FieldContext;

/// JSON whose strings are templates. Field names are not.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum JsonTemplate {
    /// The same for every event.
    Fixed(Value),
    Text(Template),
    List(Vec<Self>),
    Object(Vec<(String, Self)>),
}

impl JsonTemplate {
    /// Reads JSON, and records every string that is not a valid template.
    pub(super) fn read(value: &Value, names: PlaceholderScope<'_>, at: &mut FieldContext<'_>) -> Option<Self> {
        let shape = match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => Self::Fixed(value.clone()),
            Value::String(text) => match Template::parse(text, names) {
                Ok(template) => match template.fixed() {
                    Some(text) => Self::Fixed(Value::String(text)),
                    None => Self::Text(template),
                },
                Err(message) => return at.invalid(message),
            },
            Value::Array(items) => {
                // Reads every item, so that all errors are reported.
                let read: Vec<Option<Self>> =
                    items.iter().enumerate().map(|(n, item)| Self::read(item, names, &mut at.item(n))).collect();
                Self::List(read.into_iter().collect::<Option<_>>()?)
            }
            Value::Object(fields) => {
                let read: Vec<Option<(String, Self)>> = fields
                    .iter()
                    .map(|(name, value)| Some((name.clone(), Self::read(value, names, &mut at.field(name))?)))
                    .collect();
                Self::Object(read.into_iter().collect::<Option<_>>()?)
            }
        };
        Some(shape)
    }

    /// The value for an event.
    pub(super) fn value(&self, view: &EventView<'_>, state: &StateValues) -> Result<Value, TemplateError> {
        match self {
            Self::Fixed(value) => Ok(value.clone()),
            Self::Text(template) => template.value(view, state),
            Self::List(items) => {
                items.iter().map(|item| item.value(view, state)).collect::<Result<_, _>>().map(Value::Array)
            }
            Self::Object(fields) => {
                let fields = fields.iter().map(|(name, shape)| Ok((name.clone(), shape.value(view, state)?)));
                fields.collect::<Result<Map<_, _>, _>>().map(Value::Object)
            }
        }
    }

    /// A sample value, and the paths of values whose type is unknown without an event.
    pub(super) fn sample(&self) -> (Value, Vec<String>) {
        let mut unknown = Vec::new();
        let value = self.sample_at("", &mut unknown);
        (value, unknown)
    }

    fn sample_at(&self, path: &str, unknown: &mut Vec<String>) -> Value {
        match self {
            Self::Fixed(value) => value.clone(),
            Self::Text(template) => {
                let (value, knowledge) = template.sample();
                match knowledge {
                    TypeKnowledge::Kind => {}
                    TypeKnowledge::Nothing => unknown.push(path.to_owned()),
                }
                value
            }
            Self::List(items) => {
                let items = items.iter().enumerate();
                items.map(|(n, item)| item.sample_at(&format!("{path}[{n}]"), unknown)).collect()
            }
            Self::Object(fields) => {
                let between = if path.is_empty() { "" } else { "." };
                let fields = fields.iter();
                fields
                    .map(|(name, shape)| (name.clone(), shape.sample_at(&format!("{path}{between}{name}"), unknown)))
                    .collect()
            }
        }
    }
}
