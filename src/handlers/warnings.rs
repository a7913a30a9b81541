//! Warnings about handlers that are usable.

use std::sync::Arc;

use guildhall_core::event::handler::{EventHandlers, HandlerAction, ResponsePolicy};
use url::Url;

use crate::webhook::may_be_plain;

/// A warning about a handler, for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandlerWarning {
    /// Responses of its webhook are accepted from anyone on the network path.
    #[error(
        "handler {handler}: answers = \"any\" accepts unsigned responses over plain http from {host}: anyone on the \
         network path can act with the rights of the daemon; use https, or sign responses \
         (docs/webhooks.md#signed-answers)"
    )]
    UnsignedAllowed {
        /// Name of the handler.
        handler: Arc<str>,
        /// Host of the webhook.
        host: String,
    },
    /// Discord sends no event that a pattern of its `on` matches.
    #[error("handler {handler}: Discord sends no event for `{pattern}` with the configured intents; {advice}")]
    NotDelivered {
        /// Name of the handler.
        handler: Arc<str>,
        /// The pattern.
        pattern: String,
        /// What to do.
        advice: String,
    },
    /// Responses of its webhook are rejected unless they are signed.
    #[error(
        "handler {handler}: responses over plain http from {host} are rejected unless they are signed \
         (docs/webhooks.md#signed-answers) or come from a loopback address; use https, or sign them and set answers = \
         \"signed\""
    )]
    SignatureNeeded {
        /// Name of the handler.
        handler: Arc<str>,
        /// Host of the webhook.
        host: String,
    },
}

/// Returns the warnings about these handlers, in the order of the file.
#[must_use]
pub fn warnings(handlers: &EventHandlers) -> Vec<HandlerWarning> {
    let mut warnings = Vec::new();
    for handler in handlers {
        let HandlerAction::Webhook(webhook) = &handler.action else { continue };
        let Ok(url) = Url::parse(&webhook.url) else { continue };
        if !may_be_plain(&url) {
            continue;
        }
        // Without the path and the query, which may contain keys.
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
