//! Checks that the webhooks of the handlers can be reached: their names, addresses and certificates. Nothing is sent.

use std::sync::Arc;

use futures_util::{StreamExt as _, stream};
use guildhall_core::event::handler::EventHandlers;

use super::Finding;
use crate::{
    daemon::webhook_targets,
    handlers,
    settings::Settings,
    terminal_text::escape_controls,
    webhook::{ConnectionProbe, TargetProblem, WebhookConfig, WebhookTarget, probe_target},
};

const CHECK: &str = "webhooks";
/// Maximum number of webhooks that are connected to at once.
const CONCURRENT_PROBES: usize = 8;

/// Reports on the handlers file and on each webhook in it.
pub(crate) async fn check_webhooks(settings: &Settings, report: &mut impl FnMut(Finding)) {
    if settings.handlers.file.is_none() {
        return report(Finding::skip(CHECK, "handlers.file is not set"));
    }
    // Reads files that may be on a slow disk, but a command has nothing else to do.
    match handlers::load(&settings.handlers) {
        Ok(handlers) => check_handlers(&handlers, report).await,
        Err(error) => {
            let advice = "correct the file; `guildhall handlers check` checks it again";
            report(Finding::fail(CHECK, error.to_string(), advice));
        }
    }
}

async fn check_handlers(handlers: &EventHandlers, report: &mut impl FnMut(Finding)) {
    let targets = match webhook_targets(handlers) {
        Ok(targets) => targets,
        Err(error) => return report(Finding::fail(CHECK, error.to_string(), "correct it in the handlers file")),
    };
    if targets.is_empty() {
        return report(Finding::skip(CHECK, "no handler has a webhook"));
    }
    let config = Arc::new(WebhookConfig::default());
    let probes = stream::iter(targets).map(|target| {
        let config = Arc::clone(&config);
        async move { check_target(&target, &config).await }
    });
    // In the order of the handlers.
    let mut probes = std::pin::pin!(probes.buffered(CONCURRENT_PROBES));
    while let Some(finding) = probes.next().await {
        report(finding);
    }
}

async fn check_target(target: &WebhookTarget, config: &WebhookConfig) -> Finding {
    let problems = target.problems();
    if !problems.is_empty() {
        let seen = problems.iter().map(TargetProblem::to_string).collect::<Vec<_>>().join("\n");
        return Finding::fail(CHECK, seen, "correct the handler in the handlers file");
    }
    evaluate_probe(target, probe_target(target, config).await)
}

fn evaluate_probe(target: &WebhookTarget, probe: Result<ConnectionProbe, String>) -> Finding {
    // Without the path and the query, which may contain keys.
    let origin = target.url.origin().ascii_serialization();
    let handler = escape_controls(&target.handler).into_owned();
    match probe {
        Ok(ConnectionProbe { elapsed, is_tls }) => {
            let transport = if is_tls { "TLS" } else { "TCP, not encrypted" };
            let seen = format!("{handler}: connected to {origin} in {} ms ({transport})", elapsed.as_millis());
            Finding::ok(CHECK, seen)
        }
        Err(reason) => {
            let advice = if reason.contains("not permitted") {
                "set allow_private for this handler if that address is intended, or correct its url"
            } else {
                "start the brain, and check the url of the handler, its name in DNS, its certificate and firewalls; \
                 events wait until it responds"
            };
            Finding::fail(CHECK, format!("{handler}: cannot connect to {origin}: {}", escape_controls(&reason)), advice)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use guildhall_core::event::handler::ResponsePolicy;

    use super::*;
    use crate::doctor::CheckStatus;

    #[test]
    fn finding_names_the_origin_and_not_the_path() {
        let target = WebhookTarget {
            handler: "greet".into(),
            url: "https://brain.example/canary?key=canary".parse().unwrap(),
            secrets: Vec::new(),
            allow_private: false,
            response_policy: ResponsePolicy::default(),
        };
        let probe = ConnectionProbe { elapsed: Duration::from_millis(12), is_tls: true };
        let ok = evaluate_probe(&target, Ok(probe));
        assert_eq!(ok.seen, "greet: connected to https://brain.example in 12 ms (TLS)");
        let refused = "brain.example resolves to 10.0.0.1, a private address, which is not permitted".to_owned();
        let failed = evaluate_probe(&target, Err(refused));
        assert_eq!(failed.status, CheckStatus::Fail);
        assert!(failed.advice.unwrap().contains("allow_private"));
        let silent = evaluate_probe(&target, Err("no connection within 2000 ms".to_owned()));
        assert!(silent.advice.unwrap().contains("start the brain") && !silent.seen.contains("canary"));
    }
}
