//! Addresses of webhooks.

use guildhall_core::event::handler::HandlerFieldError;
use serde_json::Value;
use url::Url;

/// What is wrong with a webhook's address, beside what it starts with.
pub(super) fn check(handler: &Value, place: &str) -> Option<HandlerFieldError> {
    let text = handler.get("webhook")?.get("url")?.as_str()?;
    let says = match Url::parse(text) {
        // What else there is wrong with it is told already.
        Ok(url) if !matches!(url.scheme(), "http" | "https") => return None,
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            "must hold no user name and no password: requests are signed instead".to_owned()
        }
        Ok(url) if url.fragment().is_some() => "must hold no `#`: what follows it would not be sent".to_owned(),
        Ok(_) => return None,
        // It may hold what others should not see, so it is not quoted.
        Err(_) if !text.contains("://") => return None,
        Err(error) => format!("is no address: {error}"),
    };
    Some(HandlerFieldError { field: format!("{place}.webhook.url"), message: says })
}
