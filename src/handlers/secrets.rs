//! Webhook secrets in separate files.

use std::fs::File;
use std::io::Read as _;

use guildhall_core::event::handler::HandlerFieldError;
use serde_json::Value;

/// Maximum size of a secrets file, in bytes. A larger file is something else.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// Reads the secrets in the file `secrets_file`, one a line, into `secrets`.
pub(super) fn load_secrets(handler: &mut Value, handler_path: &str) -> Option<HandlerFieldError> {
    let webhook = handler.get_mut("webhook")?.as_object_mut()?;
    let path = webhook.remove("secrets_file")?;
    let field_error =
        |message: String| Some(HandlerFieldError { field: format!("{handler_path}.webhook.secrets"), message });
    let Some(path) = path.as_str() else {
        return field_error("cannot be read: `secrets_file` must be the path of a file, as a string".to_owned());
    };
    if webhook.contains_key("secrets") {
        return field_error("are set here and in `secrets_file`; use only one of them".to_owned());
    }
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE_BYTES).read_to_string(&mut text));
    if let Err(error) = read {
        return field_error(format!("cannot be read from `secrets_file` {path:?}: {error}"));
    }
    let secrets: Vec<Value> = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(Value::from).collect();
    if secrets.is_empty() {
        return field_error(format!("cannot be read: `secrets_file` {path:?} is empty; write one secret on each line"));
    }
    webhook.insert("secrets".to_owned(), Value::Array(secrets));
    None
}
