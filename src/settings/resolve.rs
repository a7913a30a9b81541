//! Merges the layers: one value for each setting, and where it came from.

use std::{fs::File, io::Read, path::Path};

use super::{
    error::SettingsProblem,
    schema::{Key, Named, SCHEMA},
    source::{Entry, Layer, Raw, SettingOrigin, from_file},
    value::{self, Value},
};

/// Maximum size of a secret file, in bytes. A larger file is something else.
const SECRET_FILE_MAX: u64 = 64 * 1024;

/// The effective value of a setting.
#[derive(Clone)]
pub(crate) struct Effective {
    pub(crate) key: &'static Key,
    /// `None` if it was not set and has no default.
    pub(crate) value: Option<Value>,
    pub(crate) origin: SettingOrigin,
    /// Path of the file that a secret was read from, if any.
    pub(crate) secret_file: Option<String>,
}

/// Merges the layers over the defaults, lowest first, and returns all errors of all layers. Without an error, the
/// result has every setting of the schema.
pub(crate) fn resolve(mut layers: Vec<Layer>) -> (Vec<Effective>, Vec<SettingsProblem>) {
    let mut problems = Vec::new();
    for layer in &mut layers {
        problems.append(&mut layer.problems);
        problems.extend(duplicate_secret_forms(layer));
    }
    let mut settings = Vec::with_capacity(SCHEMA.len());
    for key in SCHEMA {
        // An invalid value is an error even if a higher layer overrides it: it would surface when that is removed.
        let mut winner = None;
        for entry in layers.iter().flat_map(|layer| &layer.entries) {
            match entry.named {
                Named::Value(named) if named.path == key.path => match value::check(key, &entry.raw) {
                    Ok(value) => winner = Some(Winner::Value(value, entry.origin.clone())),
                    Err(message) => problems.push(problem(key, entry, message)),
                },
                Named::SecretFile(named) if named.path == key.path => winner = Some(Winner::File(entry)),
                Named::Value(_) | Named::SecretFile(_) => {}
            }
        }
        match winner {
            None => settings.push(default_of(key)),
            Some(Winner::Value(value, origin)) => {
                settings.push(Effective { key, value: Some(value), origin, secret_file: None });
            }
            Some(Winner::File(entry)) => match read_secret(key, &entry.raw) {
                Ok((value, path)) => settings.push(Effective {
                    key,
                    value: Some(value),
                    origin: entry.origin.clone(),
                    secret_file: Some(path),
                }),
                Err(message) => problems.push(SettingsProblem {
                    key: key.file_form().unwrap_or_default(),
                    origin: Some(entry.origin.clone()),
                    message,
                }),
            },
        }
    }
    (settings, problems)
}

enum Winner<'a> {
    Value(Value, SettingOrigin),
    File(&'a Entry),
}

fn problem(key: &Key, entry: &Entry, message: String) -> SettingsProblem {
    SettingsProblem { key: key.path.to_owned(), origin: Some(entry.origin.clone()), message }
}

/// Reports a secret that is set in both forms in one layer: it is unclear which one was meant.
fn duplicate_secret_forms(layer: &Layer) -> Vec<SettingsProblem> {
    let file_forms = layer.entries.iter().filter_map(|entry| match entry.named {
        Named::SecretFile(key) => Some((key, entry)),
        Named::Value(_) => None,
    });
    file_forms
        .filter(|(key, _)| layer.entries.iter().any(|e| matches!(e.named, Named::Value(k) if k.path == key.path)))
        .map(|(key, entry)| problem(key, entry, format!("is set twice, as itself and as {}_file; keep one", key.path)))
        .collect()
}

/// Parses defaults in the same way as the file, so that a default cannot be a value that users may not set.
fn default_of(key: &'static Key) -> Effective {
    let value = key.default.map(|text| {
        let (section, name) = key.section_and_name();
        let layer = from_file(Path::new("default"), &format!("[{section}]\n{name} = {text}\n"));
        let entry = layer.entries.first().expect("invariant: a default is TOML");
        value::check(key, &entry.raw).expect("invariant: a default is allowed")
    });
    Effective { key, value, origin: SettingOrigin::Default, secret_file: None }
}

fn read_secret(key: &Key, raw: &Raw) -> Result<(Value, String), String> {
    let (Raw::Text(path) | Raw::String(path)) = raw else {
        return Err("must be the path of a file, as a string".to_owned());
    };
    if path.is_empty() {
        return Err("is empty; allowed: the path of a file that contains only the secret".to_owned());
    }
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(SECRET_FILE_MAX).read_to_string(&mut text));
    if let Err(error) = read {
        return Err(format!("names {path:?}, which cannot be read: {error}"));
    }
    let secret = text.trim_end_matches(['\n', '\r']);
    if secret.is_empty() {
        return Err(format!("names {path:?}, which is empty"));
    }
    value::check(key, &Raw::Text(secret.to_owned()))
        .map(|value| (value, path.clone()))
        .map_err(|message| format!("names {path:?}, whose content {message}"))
}
