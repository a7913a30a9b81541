//! Secrets that stand in files of their own.

use std::fs::File;
use std::io::Read as _;

use guildhall_core::event::handler::HandlerFieldError;
use serde_json::Value;

/// A file of secrets is never this long; a path to something else is.
const LARGEST: u64 = 64 * 1024;

/// Puts what `secrets_file` names into `secrets`: one secret a line.
pub(super) fn fill_in(handler: &mut Value, place: &str) -> Option<HandlerFieldError> {
    let webhook = handler.get_mut("webhook")?.as_object_mut()?;
    let path = webhook.remove("secrets_file")?;
    let wrong = |message: String| Some(HandlerFieldError { field: format!("{place}.webhook.secrets"), message });
    let Some(path) = path.as_str() else {
        return wrong("are to be read from `secrets_file`, which must be the path of a file, as a string".to_owned());
    };
    if webhook.contains_key("secrets") {
        return wrong("are given twice, here and as `secrets_file`; keep one".to_owned());
    }
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(LARGEST).read_to_string(&mut text));
    if let Err(error) = read {
        return wrong(format!("are to be read from `secrets_file` {path:?}, which cannot be read: {error}"));
    }
    let secrets: Vec<Value> = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(Value::from).collect();
    if secrets.is_empty() {
        return wrong(format!("are to be read from `secrets_file` {path:?}, which is empty: write one on each line"));
    }
    webhook.insert("secrets".to_owned(), Value::Array(secrets));
    None
}
