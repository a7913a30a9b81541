//! Reads the file of handlers, TOML, into `core`'s handlers. Reports all errors of the file at once.

mod sample;
mod secrets;
mod toml_to_json;

mod dry_run;
mod intents;
mod urls;
mod warnings;

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use guildhall_core::event::handler::{EventHandlers, HandlerAction, HandlerFieldError};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

pub use self::dry_run::{DryRun, DryRunAction, HandlerDryRun};
pub use self::intents::unreachable;
pub use self::sample::{Sample, SampleError};
pub use self::warnings::{HandlerWarning, warnings};
use crate::settings::{self, SecretValue};

/// Maximum size of a handlers file, in bytes.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// Error that makes a handlers file unusable.
#[derive(Debug, thiserror::Error)]
pub enum HandlersError {
    /// The file cannot be read.
    #[error("cannot read the handlers in {}: {reason}; check handlers.file", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the failure.
        reason: String,
    },
    /// The file has invalid fields. All of them are listed.
    #[error("{}", ErrorList { path, problems })]
    Invalid {
        /// Path of the file.
        path: PathBuf,
        /// The errors; never empty, and never with a secret.
        problems: Vec<HandlerFieldError>,
    },
}

impl HandlersError {
    /// Returns all errors, each with its field.
    #[must_use]
    pub fn field_errors(&self) -> Vec<(String, String)> {
        match self {
            Self::Unreadable { .. } => vec![("handlers.file".to_owned(), self.to_string())],
            Self::Invalid { problems, .. } => {
                problems.iter().map(|error| (error.field.clone(), error.to_string())).collect()
            }
        }
    }
}

struct ErrorList<'a> {
    path: &'a Path,
    problems: &'a [HandlerFieldError],
}

impl fmt::Display for ErrorList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let noun = if self.problems.len() == 1 { "error" } else { "errors" };
        write!(f, "{} {noun} in the handlers in {}:", self.problems.len(), self.path.display())?;
        self.problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

/// Reads the handlers file of the settings; returns no handlers if they name no file.
///
/// # Errors
///
/// If the file is missing, or a field in it is invalid.
pub fn load(settings: &settings::HandlerSettings) -> Result<EventHandlers, HandlersError> {
    load_with_digests(settings).map(|(handlers, _)| handlers)
}

/// The name of each handler, in order, and a digest of its definition.
pub type HandlerDigests = Vec<(Arc<str>, [u8; 32])>;

/// The same as [`load`], with digests to detect changed handlers.
///
/// # Errors
///
/// See [`load`].
pub fn load_with_digests(
    settings: &settings::HandlerSettings,
) -> Result<(EventHandlers, HandlerDigests), HandlersError> {
    let Some(path) = &settings.file else { return Ok((EventHandlers::default(), HandlerDigests::new())) };
    let parsed = parse_values(&read_text(path)?);
    let (handlers, values) = parsed.map_err(|problems| HandlersError::Invalid { path: path.clone(), problems })?;
    let digest_of = |value: &Value| {
        let mut digest = Sha256::new();
        digest.update([u8::from(settings.shadow)]);
        digest.update(value.to_string());
        digest.finalize().into()
    };
    let digests = handlers.iter().map(|handler| Arc::clone(&handler.name)).zip(values.iter().map(digest_of)).collect();
    Ok((if settings.shadow { handlers.in_shadow() } else { handlers }, digests))
}

/// Returns all secrets of the handlers, which no log line may contain.
#[must_use]
pub fn secrets(handlers: &EventHandlers) -> Vec<SecretValue> {
    let webhooks = handlers.iter().filter_map(|handler| match &handler.action {
        HandlerAction::Webhook(webhook) => Some(webhook),
        HandlerAction::Rule(_) | HandlerAction::Broker => None,
    });
    webhooks.flat_map(|webhook| &webhook.secrets).map(|secret| SecretValue::new(secret.expose())).collect()
}

/// Returns the files that contain secrets of webhooks. Empty if the handlers file cannot be read.
#[must_use]
pub fn files_with_secrets(settings: &settings::HandlerSettings) -> Vec<PathBuf> {
    let Some(path) = &settings.file else { return Vec::new() };
    let value = read_text(path).ok().and_then(|text| toml_to_json::to_json(&text).ok());
    let handlers = value.as_ref().and_then(|value| value["handlers"].as_array());
    let webhooks: Vec<&Value> = handlers.into_iter().flatten().map(|handler| &handler["webhook"]).collect();
    let separate = webhooks.iter().filter_map(|webhook| webhook["secrets_file"].as_str()).map(PathBuf::from);
    let inline = webhooks.iter().any(|webhook| webhook["secrets"].is_array()).then(|| path.clone());
    inline.into_iter().chain(separate).collect()
}

fn read_text(path: &Path) -> Result<String, HandlersError> {
    let unreadable = |reason: String| HandlersError::Unreadable { path: path.to_owned(), reason };
    let mut text = String::new();
    let file = File::open(path).map_err(|error| unreadable(error.to_string()))?;
    let bytes =
        file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(|error| unreadable(error.to_string()))?;
    if bytes as u64 > MAX_FILE_BYTES {
        Err(unreadable(format!("the file is larger than {MAX_FILE_BYTES} bytes")))
    } else {
        Ok(text)
    }
}

/// Parses the text of a handlers file.
#[cfg(test)]
fn parse(text: &str) -> Result<EventHandlers, Vec<HandlerFieldError>> {
    parse_values(text).map(|(handlers, _)| handlers)
}

/// Parses the text of a handlers file. Returns the handlers and the value of each, including secrets.
fn parse_values(text: &str) -> Result<(EventHandlers, Vec<Value>), Vec<HandlerFieldError>> {
    let mut value = toml_to_json::to_json(text)?;
    let mut problems = Vec::new();
    for (handler_path, handler) in handlers_of(&mut value) {
        problems.extend(secrets::load_secrets(handler, &handler_path));
        problems.extend(urls::check(handler, &handler_path));
    }
    match EventHandlers::parse(&value) {
        Ok(handlers) if problems.is_empty() => {
            let values = handlers_of(&mut value).map(|(_, handler)| handler.take()).collect();
            Ok((handlers, values))
        }
        Ok(_) => Err(problems),
        Err(mut found) => {
            // The errors found here are more specific.
            found.retain(|error| problems.iter().all(|problem| !error.field.starts_with(&problem.field)));
            found.extend(problems);
            Err(found)
        }
    }
}

/// Returns the elements of `handlers`, each with its path.
fn handlers_of(value: &mut Value) -> impl Iterator<Item = (String, &mut Value)> {
    let handlers = value.get_mut("handlers").and_then(Value::as_array_mut);
    handlers.into_iter().flatten().enumerate().map(|(n, handler)| (format!("handlers[{n}]"), handler))
}

#[cfg(test)]
mod tests;
