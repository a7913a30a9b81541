//! Sources of values: the file, the environment and the command line, each with the origin of the value.

use std::{ffi::OsString, fmt, path::PathBuf};

use toml::de::{DeTable, DeValue};

use super::{
    error::SettingsProblem,
    schema::{self, Named},
    secret::SecretValue,
};

/// Where a value came from, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingOrigin {
    /// Built-in default.
    Default,
    /// A line of the settings file.
    File {
        /// The file.
        path: PathBuf,
        /// Its line, counted from 1.
        line: usize,
    },
    /// An environment variable.
    Environment(String),
    /// A command-line flag.
    Flag(&'static str),
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// A value as it was written, before it is validated. It may be a secret.
#[derive(Clone)]
pub(crate) enum Raw {
    /// Text of any type: from the environment or a flag.
    Text(SecretValue),
    /// A string in the file.
    String(SecretValue),
    Integer(i64),
    Bool(bool),
    List(Vec<String>),
    /// A value in the file of a type that no setting has; describes the type.
    Other(&'static str),
}

impl Raw {
    /// Returns the text, if it is one.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::String(text) => Some(text.expose()),
            Self::Integer(_) | Self::Bool(_) | Self::List(_) | Self::Other(_) => None,
        }
    }

    /// Formats it for an error message; `None` if it might contain a password.
    pub(crate) fn quote(&self) -> Option<String> {
        Some(match self {
            Self::Text(text) | Self::String(text) if text.expose().contains('@') => return None,
            Self::Text(text) | Self::String(text) => format!("{:?}", text.expose()),
            Self::Integer(number) => number.to_string(),
            Self::Bool(truth) => truth.to_string(),
            Self::List(items) => format!("{items:?}"),
            Self::Other(what) => (*what).to_owned(),
        })
    }
}

/// One value that was set.
pub(crate) struct Entry {
    pub(crate) named: Named,
    pub(crate) raw: Raw,
    pub(crate) origin: SettingOrigin,
}

/// All values of one source; a later layer overrides an earlier one.
#[derive(Default)]
pub(crate) struct Layer {
    pub(crate) entries: Vec<Entry>,
    pub(crate) problems: Vec<SettingsProblem>,
}

impl Layer {
    fn push(&mut self, path: &str, raw: Raw, origin: SettingOrigin) {
        match schema::find(path) {
            Some(named) => self.entries.push(Entry { named, raw, origin }),
            None => self.problems.push(unknown(path, origin)),
        }
    }
}

fn unknown(path: &str, origin: SettingOrigin) -> SettingsProblem {
    let in_environment = matches!(origin, SettingOrigin::Environment(_));
    let message = if schema::is_section(path) {
        "is a section, not a setting".to_owned()
    } else {
        let guess = schema::nearest(path)
            .map(|near| if in_environment { schema::env_name(&near) } else { near })
            .map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
        format!("is not a setting{guess}")
    };
    SettingsProblem { key: path.to_owned(), origin: Some(origin), message }
}

/// Parses the text of a settings file. Reports all errors in it, not only the first.
pub(crate) fn from_file(path: &std::path::Path, text: &str) -> Layer {
    let mut layer = Layer::default();
    let origin_at = |at: usize| SettingOrigin::File { path: path.to_owned(), line: line_of(text, at) };
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        // The error's own `Display` quotes the line, which may contain a secret; its message does not.
        layer.problems.extend(errors.iter().map(|error| SettingsProblem {
            key: "(the file)".to_owned(),
            origin: Some(origin_at(error.span().map_or(0, |span| span.start))),
            message: format!("is not valid TOML: {}", error.message()),
        }));
        return layer;
    }
    take_table(&mut layer, "", table.get_ref(), &origin_at);
    layer
}

/// Takes the values in a table and in its subtables.
fn take_table(layer: &mut Layer, section: &str, table: &DeTable<'_>, origin_at: &impl Fn(usize) -> SettingOrigin) {
    for (key, value) in table.iter() {
        let path = if section.is_empty() { key.get_ref().to_string() } else { format!("{section}.{}", key.get_ref()) };
        let origin = origin_at(key.span().start);
        match value.get_ref() {
            DeValue::Table(settings) if schema::is_section(&path) => take_table(layer, &path, settings, origin_at),
            // An unknown section: name the settings in it, so that each gets its own "did you mean".
            DeValue::Table(settings) if section.is_empty() && !settings.is_empty() => {
                for (key, _) in settings.iter() {
                    layer.problems.push(unknown(&format!("{path}.{}", key.get_ref()), origin_at(key.span().start)));
                }
            }
            _ if section.is_empty() => layer.problems.push(unknown(&path, origin)),
            value => layer.push(&path, raw_of(value), origin),
        }
    }
}

fn raw_of(value: &DeValue<'_>) -> Raw {
    match value {
        DeValue::String(text) => Raw::String(SecretValue::new(text.clone())),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or(Raw::Other("a number out of range"), Raw::Integer),
        DeValue::Boolean(truth) => Raw::Bool(*truth),
        DeValue::Array(items) => items
            .iter()
            .map(|item| item.get_ref().as_str().map(str::to_owned))
            .collect::<Option<Vec<_>>>()
            .map_or(Raw::Other("a list that contains more than strings"), Raw::List),
        DeValue::Float(_) => Raw::Other("a fraction"),
        DeValue::Datetime(_) => Raw::Other("a date"),
        DeValue::Table(_) => Raw::Other("a table"),
    }
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count()
}

/// Takes the settings from the environment. Other variables are ignored.
pub(crate) fn from_environment(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Layer {
    let mut layer = Layer::default();
    let mut ours: Vec<_> = variables
        .into_iter()
        .filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            name.starts_with("GUILDHALL__").then_some((name, value))
        })
        .collect();
    // The environment has no order; sort it so that errors have one.
    ours.sort();
    for (name, value) in ours {
        let path = name["GUILDHALL__".len()..].replace("__", ".").to_lowercase();
        let origin = SettingOrigin::Environment(name);
        match value.into_string() {
            Ok(text) => layer.push(&path, Raw::Text(SecretValue::new(text)), origin),
            Err(_) => {
                layer.problems.push(SettingsProblem {
                    key: path,
                    origin: Some(origin),
                    message: "is not UTF-8 text".to_owned(),
                });
            }
        }
    }
    layer
}

/// A setting from the command line.
#[derive(Clone, Debug)]
pub struct Flag {
    /// The flag, such as `--api-bind`.
    pub name: &'static str,
    /// The setting it sets, such as `api.bind`.
    pub path: &'static str,
    /// Its value.
    pub value: String,
}

/// Takes the settings from the command line.
pub(crate) fn from_flags(flags: impl IntoIterator<Item = Flag>) -> Layer {
    let mut layer = Layer::default();
    for flag in flags {
        layer.push(flag.path, Raw::Text(SecretValue::new(flag.value)), SettingOrigin::Flag(flag.name));
    }
    layer
}
