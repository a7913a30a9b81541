//! Checks the URLs of webhooks.

use guildhall_core::event::handler::HandlerFieldError;
use serde_json::Value;
use url::Url;

/// Checks a webhook's URL, except for its scheme.
pub(super) fn check(handler: &Value, handler_path: &str) -> Option<HandlerFieldError> {
    let text = handler.get("webhook")?.get("url")?.as_str()?;
    let message = match Url::parse(text) {
        // Other schemes are reported by the parser of handlers.
        Ok(url) if !matches!(url.scheme(), "http" | "https") => return None,
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            "must not contain a user name or a password: requests are signed instead".to_owned()
        }
        Ok(url) if url.fragment().is_some() => "must not contain `#`: what follows it would not be sent".to_owned(),
        Ok(_) => return None,
        // The URL may contain secrets, so it is not quoted.
        Err(_) if !text.contains("://") => return None,
        Err(error) => format!("is not a valid URL: {error}"),
    };
    Some(HandlerFieldError { field: format!("{handler_path}.webhook.url"), message })
}
