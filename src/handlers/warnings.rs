//! Handlers that can be used, but deserve a warning.

use std::sync::Arc;

use guildhall_core::event::handler::{EventHandlers, HandlerAction, ResponsePolicy};
use url::Url;

use crate::webhook::may_be_plain;

/// What an operator should know of a handler.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandlerWarning {
    /// Its webhook's answers are accepted from anyone on the network path.
    #[error(
        "handler {handler}: answers = \"any\" accepts unsigned answers over plain http from {host}: anyone on the network \
         path can act with the rights of the daemon; use https, or sign answers (docs/webhooks.md#signed-answers)"
    )]
    UnsignedAllowed {
        /// The handler's name.
        handler: Arc<str>,
        /// The host of the webhook.
        host: String,
    },
    /// Its webhook's answers are refused unless they are signed.
    #[error(
        "handler {handler}: answers over plain http from {host} are refused unless they are signed \
         (docs/webhooks.md#signed-answers) or come from a loopback address; use https, or sign them and set \
         answers = \"signed\""
    )]
    SignatureNeeded {
        /// The handler's name.
        handler: Arc<str>,
        /// The host of the webhook.
        host: String,
    },
}

/// The warnings about these handlers, in the order of the file.
#[must_use]
pub fn warnings(handlers: &EventHandlers) -> Vec<HandlerWarning> {
    let mut warnings = Vec::new();
    for handler in handlers {
        let HandlerAction::Webhook(webhook) = &handler.does else { continue };
        let Ok(url) = Url::parse(&webhook.url) else { continue };
        if !may_be_plain(&url) {
            continue;
        }
        // Without the path and the query, which may hold keys.
        let host = url.host().map(|host| host.to_string()).unwrap_or_default();
        let handler = Arc::clone(&handler.name);
        match webhook.answers {
            ResponsePolicy::Any => warnings.push(HandlerWarning::UnsignedAllowed { handler, host }),
            ResponsePolicy::Secure => warnings.push(HandlerWarning::SignatureNeeded { handler, host }),
            ResponsePolicy::Signed => {}
        }
    }
    warnings
}
